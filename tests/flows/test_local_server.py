import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flows import local_server
from flows.background import Background, start_time
from tasks import durable
from tasks.contract import StageError, UserError

if TYPE_CHECKING:
    from tests.flows.conftest import Server

DEAD = "http://127.0.0.1:1/api"  # port 1 is never served by accident


def test_four_starts_at_once_give_one_server(server: "Server") -> None:
    assert len(server.starts) == 4
    assert len(set(server.starts)) == 1
    url, pid = server.starts[0].split()
    assert url.startswith("http://127.0.0.1:")
    # One process in the machine's list has the port in its arguments.
    port = url.split(":")[2].removesuffix("/api")
    listed = [
        path.parent.name for path in Path("/proc").glob("[0-9]*/cmdline") if _arguments(path)[-2:] == ["--port", port]
    ]
    assert len(listed) == 1
    assert int(listed[0]) == local_server.server().state()["pid"]
    assert os.getsid(int(listed[0])) == int(listed[0]), "Ctrl-C in the starter's terminal would reach it"
    assert pid.isdigit()


def test_server_keeps_all_it_writes_in_its_home(server: "Server") -> None:
    folder = server.home / "server"
    assert (folder / "prefect.db").is_file()
    assert (folder / "server.log").stat().st_size > 0
    environment = Path(f"/proc/{local_server.server().state()['pid']}/environ").read_bytes().split(b"\0")
    assert b"PREFECT_SERVER_ANALYTICS_ENABLED=false" in environment
    assert b"DO_NOT_TRACK=1" in environment
    assert f"PREFECT_HOME={folder}".encode() in environment


def test_the_page_asks_this_very_server(server: "Server") -> None:
    with urllib.request.urlopen(f"{server.url.removesuffix('/api')}/ui-settings", timeout=60) as settings:
        assert json.load(settings)["api_url"] == server.url


def test_running_server_is_found_at_once(server: "Server") -> None:
    began = time.monotonic()
    assert local_server.ensure() == server.url
    assert time.monotonic() - began < 1


@pytest.mark.usefixtures("no_prefect_configured")
class TestConfigured:
    def test_none(self) -> None:
        assert local_server.configured_url() is None

    def test_environment_comes_first(self) -> None:
        Path("prefect.toml").write_text('[api]\nurl = "http://other/api"\n')
        os.environ["PREFECT_API_URL"] = DEAD + "/"
        assert local_server.configured_url() == (DEAD, "PREFECT_API_URL")

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            (".env", f'PREFECT_API_URL="{DEAD}"\n'),
            ("prefect.toml", f'[api]\nurl = "{DEAD}"\n'),
            ("pyproject.toml", f'[tool.prefect.api]\nurl = "{DEAD}"\n'),
            ("prefect home/profiles.toml", f'active = "ours"\n[profiles.ours]\nPREFECT_API_URL = "{DEAD}"\n'),
        ],
    )
    def test_file(self, name: str, text: str) -> None:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
        found = local_server.configured_url()
        assert found is not None
        assert found[0] == DEAD
        assert name in found[1]

    def test_profile_that_comes_with_prefect(self) -> None:
        os.environ["PREFECT_PROFILE"] = "local"
        found = local_server.configured_url()
        assert found is not None
        assert found[0] == "http://127.0.0.1:4200/api"

    def test_other_settings_are_no_server(self) -> None:
        Path("prefect.toml").write_text("[logging]\nlevel = 'DEBUG'\n")
        Path("pyproject.toml").write_text("[project]\nname = 'x'\n")
        assert local_server.configured_url() is None

    def test_the_places_are_prefects_own(self) -> None:
        """What we read without Prefect is what Prefect reads."""
        Path("prefect.toml").write_text(f'[api]\nurl = "{DEAD}"\n')
        read = "from prefect.settings import get_current_settings as s; print(s().api.url)"
        told = subprocess.run([sys.executable, "-P", "-c", read], capture_output=True, text=True, check=True)
        assert told.stdout.strip() == DEAD

    def test_dead_one_is_an_error_of_one_line_and_starts_nothing(self, tmp_path: Path) -> None:
        os.environ |= {"PREFECT_API_URL": DEAD, "SAHAJFLOW_HOME": str(tmp_path / "home")}
        began = time.monotonic()
        with pytest.raises(UserError) as caught:
            local_server.ensure()
        assert time.monotonic() - began < local_server.HEALTH_SECONDS + 1
        message = str(caught.value)
        assert "\n" not in message
        assert DEAD in message
        assert "PREFECT_API_URL" in message
        assert "remove the setting" in message
        assert not (tmp_path / "home").exists()


def test_server_that_ends_at_once_names_its_log(
    tmp_path: Path, no_prefect_configured: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.environ["SAHAJFLOW_HOME"] = str(tmp_path)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(StageError, match=r"server\.log"):
        local_server.start()


class TestBackground:
    def test_stop_ends_the_whole_group(self, tmp_path: Path) -> None:
        background = Background("sleeper", tmp_path / "sleeper")
        background.start(["sh", "-c", "sleep 98.76 & sleep 98.76"], os.environ)
        assert wait_for_sleepers(2) == 2
        assert background.running()
        assert background.stop()
        assert not background.running()
        assert wait_for_sleepers(0) == 0
        assert not background.stop()

    def test_another_process_with_the_same_id_is_left_alone(self, tmp_path: Path) -> None:
        stranger = subprocess.Popen(["sleep", "100"], start_new_session=True)
        try:
            background = Background("server", tmp_path)
            durable.write_json(tmp_path / "process.json", {"pid": stranger.pid, "started": "12345"})
            assert not background.running()
            assert not background.stop()
            assert stranger.poll() is None
        finally:
            stranger.kill()
            stranger.wait()

    def test_killed_process_is_not_running(self, tmp_path: Path) -> None:
        background = Background("sleeper", tmp_path)
        background.start(["sleep", "100"], os.environ)
        os.kill(background.state()["pid"], signal.SIGKILL)
        deadline = time.monotonic() + 5
        while background.running() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not background.running()

    def test_start_time_tells_processes_apart(self) -> None:
        assert start_time(os.getpid()) == start_time(os.getpid()) != start_time(1)
        assert start_time(2**22 + 1) is None


def wait_for_sleepers(count: int) -> int:
    deadline = time.monotonic() + 5
    while True:
        found = sum(_arguments(path) == ["sleep", "98.76"] for path in Path("/proc").glob("[0-9]*/cmdline"))
        if found == count or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def _arguments(cmdline: Path) -> list[str]:
    try:
        return cmdline.read_bytes().decode().rstrip("\0").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []
