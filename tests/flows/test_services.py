"""Server and worker as systemd starts them: the unit files, and that they are the same ones that `up` knows."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flows import deployment, local_server
from flows.background import Background
from flows.command_line import main
from flows.services import SERVER, WORKER, units, write_units
from tasks.contract import UserError

if TYPE_CHECKING:
    from tests.flows.conftest import Server


@pytest.fixture
def home(tmp_path: Path, no_prefect_configured: None) -> Path:
    """One whose name has all that systemd takes for something else."""
    os.environ["SAHAJFLOW_HOME"] = str(tmp_path / '50%h "of" it')
    return tmp_path / '50%h "of" it'


def test_units_start_this_interpreter_with_this_home(home: Path, tmp_path: Path) -> None:
    found = units()
    assert list(found) == [SERVER, WORKER]
    place = str(home).replace("%", "%%")
    for text in found.values():
        lines = text.splitlines()
        quoted = place.replace('"', r"\"")
        assert f'Environment="SAHAJFLOW_HOME={quoted}"' in lines
        assert f"EnvironmentFile=-{place}/environment" in lines
        assert "Restart=on-failure" in lines
    assert f'ExecStart="{sys.executable}" -P -m flows.services server' in found[SERVER].splitlines()
    assert f'ExecStart="{sys.executable}" -P -m flows.services worker %i' in found[WORKER].splitlines()
    assert f"Wants={SERVER}\nAfter={SERVER}\n" in found[WORKER], "not required: its restart must not end runs"
    assert "Wants" not in found[SERVER]
    if shutil.which("systemd-analyze"):
        assert_that_systemd_takes(tmp_path / "units")


def assert_that_systemd_takes(folder: Path) -> None:
    write_units(folder)
    (folder / WORKER).rename(folder / WORKER.replace("@", "@gpu"))
    runtime = folder.parent / "runtime"
    runtime.mkdir(mode=0o700)
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", *folder.iterdir()],
        env={"PATH": os.environ["PATH"], "HOME": str(runtime), "XDG_RUNTIME_DIR": str(runtime)},
        capture_output=True,
        text=True,
    )
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")


def test_with_a_configured_server_there_is_a_worker_alone(home: Path) -> None:
    os.environ["PREFECT_API_URL"] = "http://server:4200/api"
    found = units()
    assert list(found) == [WORKER]
    assert '"PREFECT_API_URL=http://server:4200/api"' in found[WORKER]
    assert SERVER not in found[WORKER]


def test_the_command_writes_them_and_says_what_comes_next(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "user"
    assert main(["up", "--systemd", str(folder), "--pool", "gpu"]) == 0
    told = capsys.readouterr().out
    assert f"wrote {folder / SERVER}\nwrote {folder / WORKER}\n" in told
    assert "systemctl --user enable --now sahajflow-server.service sahajflow-worker@gpu\n" in told
    assert "sahajflow up --pool gpu\n" in told
    assert sorted(path.name for path in folder.iterdir()) == [SERVER, WORKER]
    assert not home.exists(), "nothing is started"
    assert main(["up", "--systemd", str(folder), "--dry-run"]) == 2
    assert "--systemd writes unit files alone" in capsys.readouterr().err
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        write_units(tmp_path / "file" / "units")


@contextmanager
def service(background: Background, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process as a unit starts it; at the end it is asked to stop as systemd does it."""
    process = subprocess.Popen([sys.executable, "-P", "-m", "flows.services", *arguments], start_new_session=True)
    try:
        wait_for(lambda: background.running() and background.state()["pid"] == process.pid, "it notes itself")
        yield process
    finally:
        process.terminate()
        ended = process.wait(timeout=120)
    assert ended in (0, -15), "systemd takes that for no failure, so what `down` has stopped stays so"


def wait_for(met: Callable[[], object], what: str, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def schedules(server: Server) -> list[tuple[str | None, bool]]:
    found = server.ask("/deployments/name/evaluate/local")["schedules"]
    return [(one["slug"], one["active"]) for one in found]


def test_services_are_the_ones_that_up_keeps_and_a_restart_pauses_no_schedule(server: Server) -> None:
    url, _ = deployment.up()
    before = schedules(server)  # another test may have added and switched off some, which `up` respects
    assert any(active for _, active in before)
    with deployment.worker().alone():
        deployment.worker().stop()
    os.killpg(local_server.server().state()["pid"], signal.SIGKILL)
    wait_for(lambda: not local_server.server().running(), "the server is killed")
    with ExitStack() as started:
        as_server = started.enter_context(service(local_server.server(), "server"))
        wait_for(lambda: local_server.healthy(url), "the address stays what it was")
        assert local_server.start() == url
        assert local_server.server().state()["pid"] == as_server.pid
        again = subprocess.run(
            [sys.executable, "-P", "-m", "flows.services", "server"], capture_output=True, text=True
        )
        told = "sahajflow: the local server runs already; stop it with: sahajflow down\n"
        assert (again.returncode, again.stderr) == (1, told)
        as_worker = started.enter_context(service(deployment.worker(), "worker", "cpu"))
        assert schedules(server) == before
        assert server.ask("/deployments/name/evaluate/local")["paused"] is False
        deployment.up()
        assert deployment.worker().state()["pid"] == as_worker.pid, "`up` keeps it"
        wait_for(lambda: workers_online(server), "the worker is online")


def workers_online(server: Server) -> bool:
    workers = server.ask("/work_pools/cpu/workers/filter", {})
    return any(worker["status"] == "ONLINE" for worker in workers)
