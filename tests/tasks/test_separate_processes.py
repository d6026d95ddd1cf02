"""Processes for long pieces: one that dies loses only its own piece, and none outlives who started it."""

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from tasks.contract import StageError
from tasks.executor import result_of
from tasks.separate_processes import separate_processes


def about(number):
    return number, os.getpid(), os.environ["OMP_NUM_THREADS"], "imported_by_nobody_else" in sys.modules


def die(number):
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(number):
    raise ValueError(f"number {number}")


def test_pieces_are_done_elsewhere_with_the_threads_and_modules_asked_for(tmp_path, monkeypatch):
    (tmp_path / "imported_by_nobody_else.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with separate_processes(2, 3, ["imported_by_nobody_else"]) as processes:
        done = [future.result() for future in [processes.submit(about, number) for number in range(6)]]
        with pytest.raises(ValueError, match="number 7"):
            processes.submit(refuse, 7).result()
    assert [number for number, *_ in done] == list(range(6))
    assert {(threads, imported) for _, _, threads, imported in done} == {("3", True)}
    pids = {pid for _, pid, *_ in done}
    assert os.getpid() not in pids
    assert not any(map(psutil.pid_exists, pids))


def test_one_that_is_killed_takes_only_its_own_piece_with_it():
    told = []
    with separate_processes(2, 1) as processes:
        slow = processes.submit(time.sleep, 1)
        killed = processes.submit(die, 1)
        with pytest.raises(StageError, match="a worker process was killed"):
            result_of(processes, killed)
        after = [processes.submit(about, number) for number in range(4)]
        result_of(processes, slow, lambda: told.append(1), 0.05)
        assert [future.result()[0] for future in after] == list(range(4))
    assert told


def test_left_by_an_interruption_they_are_gone_at_once():
    began = time.monotonic()
    before = set(psutil.Process().children(recursive=True))  # of other tests: a Dask cluster's
    futures, children = [], []

    def interrupted():
        with separate_processes(2, 1) as processes:
            futures.extend(processes.submit(time.sleep, 600) for _ in range(3))
            children.extend(set(psutil.Process().children(recursive=True)) - before)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - began < 60
    assert all(future.done() for future in futures)
    assert len(children) >= 2
    assert [child for child in children if child.is_running() and "spawn_main" in " ".join(child.cmdline())] == []
    assert [thread for thread in threading.enumerate() if thread.name.startswith("process")] == []


def test_they_end_when_their_parent_is_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, time\n"
        "from tasks.separate_processes import separate_processes\n"
        "if __name__ == '__main__':\n"
        "    with separate_processes(2, 1) as processes:\n"
        "        print(processes.submit(os.getpid).result(), flush=True)\n"
        "        [processes.submit(time.sleep, 600) for _ in range(2)]\n"
        "        time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    parent.stdout.readline()
    workers = psutil.Process(parent.pid).children(recursive=True)
    assert len(workers) >= 2
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs(workers, timeout=15)
    assert not alive
