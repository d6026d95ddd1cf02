import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from supervision_driver import GRACE, commands, note

from tasks import supervision
from tasks.contract import StageError
from tasks.locks import holder_of
from tasks.supervision import Command, Owned, processes

DRIVER = Path(__file__).with_name("supervision_driver.py")
GONE_SECONDS = 15.0
BORN = {"stage"} | {
    f"{name}{part}" for name in ("coordinator", "peer-0", "peer-1") for part in ("", " helper", " daemon")
}

Known = dict[str, tuple[int, float]]


def born(folder: Path) -> Known:
    """Pid and start time of each process that noted itself, and of the supervisor."""
    known = {}
    for path in (folder / "born").glob("[!.]*"):
        pid, created = path.read_text().split()
        known[path.name] = (int(pid), float(created))
    return known | {name: (process.pid, process.create_time) for name, process in processes(folder / "swarm").items()}


def alive(known: Known) -> set[str]:
    """Those that run; neither zombies nor others that were given the pid since."""
    names = set()
    for name, (pid, created) in known.items():
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if process.create_time() == created and process.status() != psutil.STATUS_ZOMBIE:
                names.add(name)
    return names


def wait_until(true: Callable[[], bool], seconds: float = 20.0) -> float:
    """Seconds until the condition holds."""
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < seconds
        time.sleep(0.02)
    return time.monotonic() - started


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "born").mkdir()
    yield tmp_path
    known = born(tmp_path)
    left = alive(known) - {"this test"}
    for name in left:
        os.kill(known[name][0], signal.SIGKILL)
    assert left == set()


def start_stage(folder: Path, end: str = "wait", expected: set[str] = BORN) -> tuple["subprocess.Popen[str]", Known]:
    process = subprocess.Popen(
        [sys.executable, "-P", str(DRIVER), "stage", str(folder), end],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: (folder / "inside").exists() and expected <= set(born(folder)))
    known = born(folder)
    assert alive(known) == expected | {"supervisor"}
    return process, known


def finish(stage: "subprocess.Popen[str]") -> str:
    """Reap a stage that has ended; what it said."""
    _, said = stage.communicate(timeout=20)
    return said


def test_all_are_gone_after_the_leader_has_exited(folder: Path) -> None:
    kinds = {"coordinator": "done", "peer-0": "orderly", "peer-1": "bad"}
    with Owned(commands(folder, kinds), "coordinator", folder / "swarm", GRACE) as owned:
        noted = processes(folder / "swarm")
        assert list(noted) == ["supervisor", *kinds]
        assert holder_of(folder / "swarm" / "swarm.lock") is not None
        wait_until(lambda: {*kinds, "peer-0 helper", "peer-0 daemon"} <= set(born(folder)))
        (folder / "end peer-1").touch()
        wait_until(lambda: processes(folder / "swarm")["peer-1"].exit_status == 3)
        assert not owned.ended()
        (folder / "end coordinator").touch()
        wait_until(owned.ended)
        assert owned.exit_status() == 0
    known = born(folder)
    assert alive(known) == set()
    after = processes(folder / "swarm")
    assert {name: (one.pid, one.create_time) for name, one in after.items()} == {
        name: (one.pid, one.create_time) for name, one in noted.items()
    }
    assert after["coordinator"].exit_status == 0
    assert after["peer-0"].exit_status == 0
    assert after["peer-1"].exit_status == 3
    assert (folder / "logs" / "peer-0.log").read_text() == "peer-0 starts\npeer-0 leaves\n"
    assert owned.ended()
    owned.stop()
    assert holder_of(folder / "swarm" / "swarm.lock") is None


def test_the_status_of_a_leader_that_fails_is_known(folder: Path) -> None:
    with Owned(commands(folder, {"coordinator": "bad"}), "coordinator", folder / "swarm", GRACE) as owned:
        assert owned.exit_status() is None
        assert not owned.ended()
        (folder / "end coordinator").touch()
        wait_until(owned.ended)
    assert owned.exit_status() == 3


def test_others_go_on_when_one_is_killed_and_its_helpers_die_with_it(folder: Path) -> None:
    stage, known = start_stage(folder)
    os.kill(known["peer-0"][0], signal.SIGKILL)
    wait_until(lambda: processes(folder / "swarm")["peer-0"].exit_status == -signal.SIGKILL)
    peer = {"peer-0", "peer-0 helper", "peer-0 daemon"}
    wait_until(lambda: not alive(known) & peer)
    time.sleep(0.5)
    assert alive(known) == (BORN | {"supervisor"}) - peer
    assert not any(psutil.pid_exists(known[name][0]) for name in peer)  # no zombies either
    os.kill(known["coordinator"][0], signal.SIGTERM)
    finish(stage)
    assert stage.returncode == 0
    assert alive(known) == set()


def test_all_are_gone_after_the_stage_is_killed(folder: Path) -> None:
    stage, known = start_stage(folder)
    stage.kill()
    took = wait_until(lambda: not alive(known), GONE_SECONDS)
    assert took > GRACE  # peer-1 heeds no SIGTERM
    statuses = {name: process.exit_status for name, process in processes(folder / "swarm").items()}
    assert statuses == {"supervisor": None, "coordinator": 0, "peer-0": 0, "peer-1": -signal.SIGKILL}
    assert "leaves" in (folder / "logs" / "peer-0.log").read_text()
    finish(stage)


def test_a_forked_copy_of_the_stage_does_not_keep_the_swarm(folder: Path) -> None:
    stage, known = start_stage(folder, "fork", BORN | {"copy"})
    stage.kill()
    wait_until(lambda: alive(known) == {"copy"}, GONE_SECONDS)
    os.kill(known["copy"][0], signal.SIGKILL)
    wait_until(lambda: not alive(known))
    finish(stage)


def test_all_are_gone_after_the_supervisor_is_killed(folder: Path) -> None:
    stage, known = start_stage(folder)
    os.kill(known["supervisor"][0], signal.SIGKILL)
    finish(stage)
    assert alive(known) == set()


def test_all_are_gone_after_supervisor_and_stage_are_killed(folder: Path) -> None:
    stage, known = start_stage(folder)
    stage.send_signal(signal.SIGSTOP)  # so that it does not see the supervisor's end
    os.kill(known["supervisor"][0], signal.SIGKILL)
    stage.kill()
    took = wait_until(lambda: not alive(known), GONE_SECONDS)
    assert took > GRACE / 2
    assert "leaves" in (folder / "logs" / "peer-0.log").read_text()
    finish(stage)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_all_are_gone_after_a_signal_to_the_stage(folder: Path, number: signal.Signals) -> None:
    stage, known = start_stage(folder)
    stage.send_signal(number)
    wait_until(lambda: not alive(known), GONE_SECONDS)
    finish(stage)
    assert stage.returncode == -number


def test_all_are_gone_after_an_exception(folder: Path) -> None:
    stage, known = start_stage(folder, "raise")
    (folder / "go on").touch()
    said = finish(stage)
    assert stage.returncode == 1
    assert said.splitlines()[-1] == "ValueError: the stage fails"
    assert alive(known) == set()


def test_a_supervisor_that_hangs_is_killed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "KILL_SECONDS", 0.0)
    with Owned(commands(folder, {"coordinator": "stubborn"}), "coordinator", folder / "swarm", 0.1):
        wait_until(lambda: {"coordinator", "coordinator helper", "coordinator daemon"} <= set(born(folder)))
        known = born(folder)
        os.kill(known["supervisor"][0], signal.SIGSTOP)
    assert alive(known) == set()


def test_works_in_a_thread_and_leaves_the_signals_alone(folder: Path) -> None:
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    statuses = []

    def run() -> None:
        with Owned(commands(folder, {"coordinator": "bad"}), "coordinator", folder / "swarm", GRACE) as owned:
            (folder / "end coordinator").touch()
            wait_until(owned.ended)
            statuses.append(owned.exit_status())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert statuses == [3]
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == handlers


def test_the_next_run_does_not_meet_the_dying_swarm(folder: Path) -> None:
    stage, known = start_stage(folder)
    stage.kill()
    with Owned(commands(folder, {"coordinator": "done"}), "coordinator", folder / "swarm", GRACE):
        assert alive(known) == set()
    finish(stage)


def test_the_next_run_ends_what_a_killed_supervisor_left(folder: Path) -> None:
    stage, known = start_stage(folder)
    for name in ("stage", "supervisor", "coordinator", "peer-0", "peer-1"):  # nobody is left to end the helpers
        os.kill(known[name][0], signal.SIGKILL)
    finish(stage)
    assert {"peer-0 helper", "peer-0 daemon"} <= alive(known)
    with Owned(commands(folder, {"coordinator": "done"}), "coordinator", folder / "swarm", GRACE):
        assert alive(known) == set()


def test_an_older_swarm_that_goes_on_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "LOCK_SECONDS", 0.3)
    kinds = {"coordinator": "orderly"}
    with Owned(commands(folder, kinds), "coordinator", folder / "swarm", GRACE) as owned:
        pid = processes(folder / "swarm")["supervisor"].pid
        with (
            pytest.raises(StageError, match=rf"older swarm's supervisor \(process {pid} on .*kill {pid}$"),
            Owned(commands(folder, kinds), "coordinator", folder / "swarm", GRACE),
        ):
            pass
        assert not owned.ended()
        assert alive({"supervisor": born(folder)["supervisor"]})


def test_a_program_that_does_not_exist_is_an_error_and_leaves_nothing(folder: Path) -> None:
    missing = Command("peer-0", ("/no/such/program",), {}, folder / "peer-0.log")
    with (
        pytest.raises(StageError, match=r"could not be started: .*/no/such/program.*supervisor\.log"),
        Owned([*commands(folder, {"coordinator": "orderly"}), missing], "coordinator", folder / "swarm", GRACE),
    ):
        pass
    known = born(folder)
    assert "supervisor" in known
    assert alive(known) == set()


def test_an_interrupt_while_they_start_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(swarm: Path) -> dict[str, supervision.OwnedProcess]:
        if "coordinator" in processes(swarm):
            raise KeyboardInterrupt
        return {}

    monkeypatch.setattr(supervision, "processes", interrupted)
    with (
        pytest.raises(KeyboardInterrupt),
        Owned(commands(folder, {"coordinator": "orderly"}), "coordinator", folder / "swarm", GRACE),
    ):
        pass
    known = born(folder)
    assert {"supervisor", "coordinator"} <= set(known)
    assert alive(known) == set()


def test_a_pid_that_another_process_has_by_now_is_spared(folder: Path) -> None:
    # The note of a swarm of long ago names this very process: neither the wait nor the sweep may go by it.
    (folder / "swarm").mkdir()
    facts = {"pid": os.getpid(), "create_time": 1.0}
    old = {"supervisor": facts, "commands": {"coordinator": {**facts, "exit_status": None}}}
    (folder / "swarm" / "processes.json").write_text(json.dumps(old))
    note(folder, "this test")
    assert alive(born(folder)) == {"this test"}
    with Owned(commands(folder, {"coordinator": "done"}), "coordinator", folder / "swarm", GRACE) as owned:
        (folder / "end coordinator").touch()
        wait_until(owned.ended)
    assert owned.exit_status() == 0
