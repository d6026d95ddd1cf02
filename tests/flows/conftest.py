"""One real Prefect server for all tests here, started by four processes at once and stopped at the end."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from tiny import processes_of

START = "from flows import local_server; print(local_server.start(), local_server.server().state()['pid'])"


@dataclass
class Server:
    """A server that tests can ask; ``starts`` is what the four processes that started it said."""

    home: Path
    starts: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        from flows import local_server

        url: str = local_server.server().state()["url"]
        return url

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        deadline = time.monotonic() + 30
        while True:
            try:
                with urllib.request.urlopen(request, timeout=30) as response:
                    return json.load(response)
            except urllib.error.HTTPError as error:
                # its database is locked: Prefect's own client asks again, too
                if error.code != 503 or time.monotonic() > deadline:
                    raise
                time.sleep(1)

    def last_run(self) -> dict[str, Any]:
        """The newest run of the chain; runs that are only scheduled come in no useful order."""
        runs = self.ask(
            "/flow_runs/filter",
            {"flows": {"name": {"any_": ["chain"]}}, "sort": "START_TIME_DESC", "limit": 1},
        )
        run: dict[str, Any] = runs[0]
        return run

    def task_states(self, flow_run: dict[str, Any]) -> dict[str, str]:
        runs = self.ask("/task_runs/filter", {"flow_runs": {"id": {"any_": [flow_run["id"]]}}})
        return {run["name"]: run["state"]["name"] for run in runs if run["state"]}

    def logs(self, flow_run: dict[str, Any]) -> list[str]:
        logs = self.ask("/logs/filter", {"logs": {"flow_run_id": {"any_": [flow_run["id"]]}}})
        return [log["message"] for log in logs]

    def processes(self) -> list[str]:
        """The command lines of all processes that were started with this home, children included."""
        return processes_of(self.home)

    def artifacts(self, flow_run: dict[str, Any]) -> dict[str, dict[str, Any]]:
        found = self.ask("/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [flow_run["id"]]}}})
        return {artifact["key"]: artifact for artifact in found}


@pytest.fixture
def no_prefect_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A working folder and an environment without any Prefect setting; what a test sets goes away with it."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        del os.environ[name]
    os.environ["PREFECT_HOME"] = str(tmp_path / "prefect home")
    monkeypatch.chdir(tmp_path)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def _session_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("sahajflow"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment |= {"SAHAJFLOW_HOME": str(server.home), "PREFECT_HOME": str(server.home / "client")}
    starters = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", START], env=environment, cwd=server.home, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    try:
        server.starts = [starter.communicate(timeout=120)[0].strip() for starter in starters]
        yield server
    finally:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SAHAJFLOW_HOME", str(server.home))
            from flows import deployment, local_server

            deployment.down()
            assert not local_server.server().running()
        assert processes_of(server.home) == []


@pytest.fixture
def server(_session_server: Server, no_prefect_configured: None) -> Server:
    """The server, running (a test before may have killed it), and this process set up to find it."""
    os.environ["SAHAJFLOW_HOME"] = str(_session_server.home)
    from flows import local_server

    local_server.start()
    return _session_server
