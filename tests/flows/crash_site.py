"""The place of a crash run: a home with a Prefect server and a worker, a store, and what is looked at in it."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

sys.path.insert(0, str(Path(__file__).parent))
from collaboration_runs import GONE_SECONDS, members_below, recorded
from tiny import processes_of_session

from tasks.record import read_record

DRIVER = Path(__file__).with_name("crash_driver.py")
DEFINITIONS = Path(__file__).parents[2] / "prefect.yaml"
CALL = "from flows.command_line import main; raise SystemExit(main())"
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
WAIT_SECONDS = 300.0
"""How long something that comes may take on a busy machine."""


def wait_for(what: Callable[[], Any], told: str, seconds: float = WAIT_SECONDS) -> Any:
    """What the function returns once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{told}: not within {seconds:.0f} s")
        time.sleep(0.03)
    return found


@dataclass
class Site:
    """One folder with everything."""

    folder: Path
    _changing: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    _attempts: set[Path] = field(default_factory=set)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def log(self) -> Path:
        """Where the runs note the points at which they kill themselves."""
        return self.folder / "points.jsonl"

    def environment(self) -> dict[str, str]:
        without = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        own = {"SAHAJFLOW_HOME": self.home, "PREFECT_HOME": self.home / "client", "PREFECT_WORKER_QUERY_SECONDS": 1}
        return without | {name: str(value) for name, value in own.items()} | {"OMP_NUM_THREADS": "1"}

    def start(self, changes: tuple[str, ...], workers: int, point: str | None = None) -> subprocess.Popen[bytes]:
        """`sahajflow run demo` in a process of its own, which kills itself at the point."""
        settings = [word for change in changes for word in ("--set", change)]
        arguments = ["run", "demo", "--store", str(self.store), "--workers", str(workers), *settings]
        begin = ["-c", CALL] if point is None else [str(DRIVER), str(self.log), point]
        return self._process("run", [*begin, *arguments])

    def undisturbed(self, log: Path, changes: tuple[str, ...], workers: int) -> subprocess.Popen[bytes]:
        """The chain alone in this store, without Prefect; the log then has each point that it passed."""
        arguments = [str(DRIVER), str(log), "", "undisturbed", "demo", str(self.store), str(workers), *changes]
        return self._process("undisturbed", arguments)

    def up(self) -> None:
        """Server, worker and the chain's deployment, without schedules: nothing runs that is not asked for."""
        content = yaml.safe_load(DEFINITIONS.read_text())
        chain = next(one for one in content["deployments"] if one["entrypoint"] == "flows.chain.chain")
        content["deployments"] = [{key: value for key, value in chain.items() if key != "schedules"}]
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "prefect.yaml"
        file.write_text(yaml.safe_dump(content))
        self._command("up", "--file", str(file))

    def down(self) -> None:
        self._command("down")

    def _command(self, *arguments: str) -> None:
        assert self._process("commands", ["-c", CALL, *arguments]).wait() == 0, self.output("commands")

    def _process(self, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        self.home.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{name}.txt").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-P", *arguments],
                env=self.environment(),
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def output(self, name: str) -> str:
        """The end of what processes of that name have said."""
        return "\n".join((self.folder / f"{name}.txt").read_text(errors="replace").splitlines()[-15:])

    def background(self, name: str) -> int:
        """The process id of the server, or of the worker."""
        place = {"server": "server", "worker": "workers/cpu"}[name]
        state = json.loads((self.home / place / "process.json").read_text())
        return int(state["pid"])

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """What the server answers; asked again where its database is locked, or while it still starts."""
        url = json.loads((self.home / "server" / "process.json").read_text())["url"]
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                with urllib.request.urlopen(request, timeout=30) as response:
                    return json.load(response)
            except (urllib.error.URLError, OSError) as error:
                refused = isinstance(error, urllib.error.HTTPError) and error.code != 503
                if refused or time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def deploy_run(self, changes: tuple[str, ...]) -> str:
        """Ask the server for a run of the whole chain; returns its id."""
        deployed = self.ask("/deployments/name/chain/local")
        parameters = {"recipe": "demo", "set_": list(changes), "store": str(self.store), "workers": 1}
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        return str(self.ask(f"/deployments/{deployed['id']}/create_flow_run", body)["id"])

    def state_of(self, run: str) -> str:
        return str(self.ask(f"/flow_runs/{run}")["state"]["type"])

    def published(self) -> list[str]:
        """Results, and parts of unfinished ones, by their names in the store."""
        found = [*self.store.glob("artifacts/*/*"), *self.store.glob("work/*/*/scratch/parts/[!.]*.json")]
        return sorted(str(path.relative_to(self.store)) for path in found)

    def swarm(self) -> dict[str, int]:
        """The process ids of the members of the swarm that trains now, by name."""
        return {name: one.pid for name, one in recorded(self.store).items()}

    def check(self) -> list[str]:
        """What is wrong now, of what must hold after each kill: a result has changed, or was made again."""
        now = dict(self._contents())
        wrong = [f"{name} has changed" for name, before in self._changing.items() if now.get(name) != before]
        logs = set(self.store.glob("logs/*/*/*.log"))
        before = {"/".join(Path(name).parts[1:3]) for name in self._changing}
        wrong += [f"{log} began when its result stood" for log in logs - self._attempts if _result(log) in before]
        for folder in self.store.glob("logs/*/*"):
            # the names begin with the time at which the attempt began
            ends = [" end published" in log.read_text().rpartition("Z end")[1] for log in sorted(folder.glob("*.log"))]
            if any(ends[:-1]):
                wrong.append(f"{folder}: an attempt after the one that published")
        self._changing, self._attempts = now, logs
        return wrong

    def _contents(self) -> Iterator[tuple[str, tuple[str, int, int]]]:
        for path in sorted(self.store.glob("artifacts/*/*/**/*")):
            if path.is_file():
                stat = path.stat()
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                yield str(path.relative_to(self.store)), (digest, stat.st_mtime_ns, stat.st_ino)

    def digests(self, stage: str) -> dict[str, str]:
        """Of the results of a stage, by fingerprint."""
        return {path.name: read_record(path).digest for path in sorted(self.store.glob(f"artifacts/{stage}/*"))}


def _result(log: Path) -> str:
    return "/".join(log.parts[-3:-1])


def left_of(session: int, store: Path) -> list[str]:
    """What is left of a run that was killed, once it had the time in which all has to be gone."""

    def left() -> list[str]:
        return [*processes_of_session(session), *(str(member.pid) for member in members_below(store))]

    deadline = time.monotonic() + GONE_SECONDS
    while (found := left()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def processes_of_run(run: str) -> list[psutil.Process]:
    """The processes that have a flow run's id in their environment, the oldest first."""
    found = []
    for process in psutil.process_iter():
        try:
            if run in process.environ().values() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return sorted(found, key=lambda process: process.create_time())


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)
