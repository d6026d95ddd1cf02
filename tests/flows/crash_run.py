"""The crash run: the small demo to its end through `kill -9` of everything that takes part in it.

    python tests/flows/crash_run.py [--kills 50] [--seed 1] [--folder DIR]

Two chains in one store: the engine `local`, whose stages and seed runs are killed at named points, see
``crash_points.py``, and, as deployed runs, from outside with worker and server; then the engine `collaborative`, whose
members are killed.
Beside it the same two chains run undisturbed in another store. Prints a line for each kill, then what was compared.
Exit status 1 if anything is not as it has to be.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from crash_plan import ALL_CALLS, Plan, drawn
from crash_site import FINAL, WAIT_SECONDS, Site, kill, left_of, processes_of_run, wait_for
from tiny import COLLABORATIVE, SETTINGS, processes_of

from flows.execution import Options, prepare
from tasks.record import read_record, verified_record

STEPS = 30
"""Of the collaborative training."""
LOSS_TOLERANCE = 0.03


@dataclass
class Crashes:
    """One crash run."""

    site: Site
    beside: Site
    plan: Plan
    tell: Callable[[str], None]
    made: list[dict[str, Any]] = field(default_factory=list)
    """The kills, in order."""
    wrong: list[str] = field(default_factory=list)
    """What was not as it has to be."""
    _before: set[str] = field(default_factory=set)
    _began: float = field(default_factory=time.monotonic)

    @property
    def local(self) -> tuple[str, ...]:
        changes = {"pretraining.steps": 60, "pretraining.checkpoint_every": 2, "evaluation.seeds": self.plan.seeds}
        return _changed(SETTINGS, changes)

    @property
    def collaborative(self) -> tuple[str, ...]:
        return _changed(COLLABORATIVE, {"pretraining.steps": STEPS, "pretraining.validation_blocks": 128})

    def run(self) -> None:
        """All of it."""
        passed = self.beside.folder / "points.jsonl"
        undisturbed = self.beside.undisturbed(passed, self.local, 1)
        try:
            self.site.up()
            self._ends(undisturbed, 0, "the undisturbed local chain")
            undisturbed = self.beside.undisturbed(passed, self.collaborative, 2)
            self._points(self.plan.early)
            self._seed_runs()
            for targets in self.plan.deployed:
                self._deployed(targets)
            self._points(self.plan.late)
            self._ends(self.site.start(self.local, 1), 0, "the run after all kills")
            self._together()
            self._ends(undisturbed, 0, "the undisturbed collaborative chain")
        finally:
            undisturbed.kill()
            undisturbed.wait()
            self.site.down()
        self._check()
        self._compare()
        calls = {point.partition(" ")[2] for point in _column(passed, "passed")}
        self._equal("calls of publishing", {call for call in calls if ":" in call}, set(ALL_CALLS))
        wanted = [kill["point"] for kill in self.made if kill["target"] == "run"]
        self._equal("points at which runs killed themselves", _column(self.site.log, "killed"), wanted)
        self._equal("kills", Counter(kill["target"] for kill in self.made), self.plan.kills())

    def _points(self, points: list[str]) -> None:
        for point in points:
            self._killed_at(self.site.start(self.local, 1, point), point)

    def _killed_at(self, run: subprocess.Popen[bytes], point: str) -> None:
        self._ends(run, -signal.SIGKILL, f"the run to be killed at {point}")
        self._note("run", point)
        self.wrong += [
            f"process {left} is left of the run killed at {point}" for left in left_of(run.pid, self.site.store)
        ]

    def _seed_runs(self) -> None:
        for call, server_too in self.plan.seed_runs:
            missing = self._untouched_seed_runs()
            point = f"{missing[2 if server_too else 0]} {call}"
            before = self.site.published()
            run = self.site.start(self.local, 1, point)
            if server_too:
                self._kill_after(run, before, "server", lambda: self.site.background("server"))
            self._killed_at(run, point)

    def _untouched_seed_runs(self) -> list[str]:
        """Those that pass all points: one that was killed after its record was written is only published."""
        prepared = prepare(Options("demo", set_=self.local, store=str(self.site.store)))
        steps = [step for step in prepared.steps if step.node.stage.name == "seed-run" and step.action != "reuse"]
        # one that waits for its inputs has no fingerprint yet, and no work
        works = {
            step.node.name: step.fingerprint and prepared.store.work("seed-run", step.fingerprint) for step in steps
        }
        return [name for name, work in works.items() if not (work and work.exists())]

    def _deployed(self, targets: tuple[str, ...]) -> None:
        """A run that the worker carries out, until it is killed itself. Where worker or server were killed before, it
        goes on without them until then."""
        self.site.up()
        before = self.site.published()
        run = self.site.deploy_run(self.local)
        for target in targets:

            def process(target: str = target) -> int:
                return processes_of_run(run)[0].pid if target == "deployed run" else self.site.background(target)

            before = self._kill_after(None, before, target, process)
        wait_for(lambda: not processes_of_run(run), "the end of a deployed run's processes")
        self.site.up()
        wait_for(lambda: self.site.state_of(run) in FINAL, f"the end of the deployed run {run} on the server")
        self._equal(f"the server's word on a run ({' and '.join(targets)} killed)", self.site.state_of(run), "CRASHED")

    def _together(self) -> None:
        run = None
        before = self.site.published()
        for target in self.plan.together:
            run = run or self.site.start(self.collaborative, 2)
            name = target if target == "coordinator" else "peer-0"
            before = self._kill_after(run, before, target, lambda name=name: self.site.swarm()[name], "*step-*")
            if target == "coordinator":
                self._ends(run, 1, "the run whose coordinator was killed")
                self.wrong += [f"process {left} is left" for left in left_of(run.pid, self.site.store)]
                run = None
        self._ends(run or self.site.start(self.collaborative, 2), 0, "the collaborative chain after all kills")

    def _kill_after(
        self,
        run: subprocess.Popen[bytes] | None,
        before: list[str],
        target: str,
        process: Callable[[], int],
        pattern: str = "artifacts/*",
    ) -> list[str]:
        """Kill a process once something is published that was not there before; returns what is published then."""

        def new() -> list[str]:
            if run is not None and run.poll() is not None:
                raise SystemExit(f"the run ended before {target} was killed\n{self.site.output('run')}")
            return [name for name in self.site.published() if name not in before and fnmatch(name, pattern)]

        found = wait_for(new, f"something new before {target} is killed")
        kill(process())
        self._note(target, f"after {found[-1]}")
        return self.site.published()

    def _ends(self, process: subprocess.Popen[bytes], status: int, told: str) -> None:
        try:
            found = process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            found = process.wait()
        if found != status:
            raise SystemExit(f"{told}: ended with {found} instead of {status}\n{self.site.output('run')}")

    def _note(self, target: str, point: str) -> None:
        now = set(self.site.published())
        kill = {"number": len(self.made) + 1, "target": target, "point": point, "new": len(now - self._before)}
        kill["seconds"] = round(time.monotonic() - self._began, 1)
        self._before = now
        self.made.append(kill)
        self.tell(f"{kill['number']:3} {kill['seconds']:6.1f} s  {target:<12} {point}  (new: {kill['new']})")
        self._check()

    def _check(self) -> None:
        found = self.site.check()
        self.wrong += found
        for line in found:  # at once, for a run that comes to no end
            self.tell(f"wrong: {line}")

    def _equal(self, what: str, found: Any, wanted: Any) -> None:
        if found != wanted:
            self.wrong.append(f"{what}: {found}, should be {wanted}")

    def _trained_together(self) -> set[str]:
        """The results of the engine `collaborative`, whose weights depend on who was in which group."""
        found = self.site.store.glob("artifacts/pretrain/*")
        return {path.name for path in found if read_record(path).identity["pretraining"]["engine"] == "collaborative"}

    def _compare(self) -> None:
        """What came of it, with what came of the undisturbed chains."""
        self.wrong += [f"{name} is left" for name in processes_of(self.site.home)]
        for stage in ("corpus", "tokenizer", "pack", "pretrain", "seed-run"):
            found, wanted = self.site.digests(stage), self.beside.digests(stage)
            common = (set(found) & set(wanted)) - self._trained_together()
            results = {name: found[name] for name in common}, {name: wanted[name] for name in common}
            self._equal(f"digests of {stage}", *results)
            # their names hold the digests of what they were made of: but for what was trained together all are there
            if stage == "seed-run":
                self._equal("seed runs of the local chain", len(common), 2 * self.plan.seeds)
            else:
                self._equal(f"results of {stage}", set(found), set(wanted))
            self.tell(f"{stage}: {len(common)} digests compared with the undisturbed run's")
        for path in sorted(self.site.store.glob("artifacts/*/*")):
            verified_record(path, hashes=True)
        self._equal("unfinished work", list(self.site.store.glob("work/*/*")), [])
        losses = []
        for site in (self.site, self.beside):
            records = [read_record(path) for path in site.store.glob("artifacts/pretrain/*")]
            (record,) = [one for one in records if one.identity["pretraining"]["engine"] == "collaborative"]
            self._equal("steps of the collaborative training", record.metrics["steps"], STEPS)
            losses.append(record.metrics["validation_loss"])
        difference = abs(losses[0] / losses[1] - 1)
        told = f"validation loss {losses[0]:.4f}, undisturbed {losses[1]:.4f}, difference {difference:.2%}"
        self.tell(f"collaborative: {STEPS} steps, {told}")
        if difference > LOSS_TOLERANCE:
            self.wrong.append(f"the validation loss differs by {difference:.2%}")


def _changed(settings: tuple[str, ...], changes: dict[str, int]) -> tuple[str, ...]:
    kept = [setting for setting in settings if setting.partition("=")[0] not in changes]
    return (*kept, *(f"{key}={value}" for key, value in changes.items()))


def _column(log: Path, key: str) -> list[str]:
    lines = (json.loads(line) for line in log.read_text().splitlines())
    return [line[key] for line in lines if key in line]


def crash_run(folder: Path, kills: int, seed: int, tell: Callable[[str], None]) -> Crashes:
    """Make a crash run in a new folder; what came of it."""
    sites = [Site(folder / name) for name in ("killed", "undisturbed")]
    crashes = Crashes(*sites, drawn(kills, random.Random(seed)), tell)
    crashes.run()
    return crashes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--folder", type=Path, help="new folder to work in, which then stays (default: a temporary one)"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="crashes-") as temporary:
        folder = (arguments.folder or Path(temporary)).absolute()
        crashes = crash_run(folder, arguments.kills, arguments.seed, lambda line: print(line, flush=True))
    counts = ", ".join(f"{count} of {target}" for target, count in sorted(crashes.plan.kills().items()))
    print(f"{len(crashes.made)} kills ({counts}) in {crashes.made[-1]['seconds']:.0f} s, seed {arguments.seed}")
    for line in crashes.wrong or ["nothing is wrong"]:
        print(line)
    return 1 if crashes.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
