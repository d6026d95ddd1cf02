"""Where work is spread: order, bounded reading, workers that die, and parents that do."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import psutil
import pytest
from pydantic import ValidationError

from tasks import executor
from tasks.contract import EXECUTION, Settings, StageError, UserError
from tasks.executor import Scheduler, in_order, open_executor, worker_count


def slower_at_first(number):
    time.sleep(0.02 if number < 4 else 0)
    return number, os.getpid()


def die(number):
    os.kill(os.getpid(), signal.SIGKILL)


def time_out(number):
    time.sleep(0.1)
    raise TimeoutError("own")


def refuse(number):
    raise UserError(f"number {number}: is odd")


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_pieces(workers):
    with open_executor(workers) as pool:
        results = [result for _, result in in_order(pool, slower_at_first, range(40), ahead=8)]
    assert [number for number, _ in results] == list(range(40))
    assert (os.getpid() in {process for _, process in results}) == (workers == 1)


def test_a_cluster_gives_the_same_and_its_workers_do_the_work(dask_address):
    with open_executor(1, dask_address) as cluster:
        results = [result for _, result in in_order(cluster, slower_at_first, range(40), ahead=8)]
        with pytest.raises(UserError, match="number 1: is odd"):
            list(in_order(cluster, refuse, [1], ahead=1))
    assert [number for number, _ in results] == list(range(40))
    assert len({process for _, process in results} - {os.getpid()}) == 2


def test_no_more_is_read_ahead_than_asked():
    read = []
    pieces = (read.append(number) or number for number in range(100))
    with ThreadPoolExecutor(1) as pool:
        results = in_order(pool, str, pieces, ahead=5)
        assert [next(results), next(results)] == [(0, "0"), (1, "1")]
        assert len(read) == 6
        results.close()


def test_what_is_known_is_not_computed_again():
    with ThreadPoolExecutor(1) as pool:
        results = dict(in_order(pool, refuse, [0, 2], ahead=2, known=lambda number: number + 1))
        with pytest.raises(UserError, match="number 1"):
            list(in_order(pool, refuse, [0, 1], ahead=2, known=lambda number: None if number else "even"))
    assert results == {0: 1, 2: 3}


def test_a_killed_worker_ends_the_stage_with_one_line():
    with open_executor(2) as pool, pytest.raises(StageError, match="worker process was killed") as failure:
        list(in_order(pool, die, range(3), ahead=2))
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("sign", ["cancelled", "silent"])
def test_a_cluster_that_is_gone_ends_the_stage_with_one_line(dask_address, monkeypatch, sign):
    # When its scheduler is killed, Dask cancels what it no longer does; or, at the wrong moment, says nothing.
    monkeypatch.setattr(executor, "POLL_SECONDS", 0.1)
    with open_executor(1, dask_address) as cluster:
        silent = Future()
        if sign == "cancelled":
            silent.cancel()
        monkeypatch.setattr(cluster, "submit", lambda *_: silent)
        monkeypatch.setattr(cluster, "_client", SimpleNamespace(status="connecting"))
        with pytest.raises(StageError, match=r"Dask (scheduler|cluster) is gone"):
            list(in_order(cluster, str, range(3), ahead=2))


def work_as_long_as_wanted(folder):
    (folder / "begun").touch()
    try:
        for _ in range(600):
            time.sleep(0.1)
            executor.check_wanted()
    finally:
        (folder / "left").touch()


def test_a_piece_that_nobody_waits_for_any_more_is_left(dask_address, tmp_path):
    def leave():
        with open_executor(1, dask_address) as cluster:
            cluster.submit(work_as_long_as_wanted, tmp_path)
            wait_until((tmp_path / "begun").exists)
            assert not (tmp_path / "left").exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leave()
    wait_until((tmp_path / "left").exists)


def wait_until(met, seconds=30):
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_an_error_that_looks_like_a_wait_is_the_functions_own(monkeypatch):
    monkeypatch.setattr(executor, "POLL_SECONDS", 0.05)
    with ThreadPoolExecutor(1) as pool:
        assert list(in_order(pool, slower_at_first, [0, 9], ahead=1)) == [(n, (n, os.getpid())) for n in (0, 9)]
        with pytest.raises(TimeoutError, match="own"):
            list(in_order(pool, time_out, [1], ahead=1))


def test_workers_end_when_their_parent_is_killed(tmp_path):
    code = (
        "import os, time\n"
        "from tasks.executor import open_executor\n"
        "if __name__ == '__main__':\n"
        "    with open_executor(2) as pool:\n"
        "        print(*set(pool.map(os.getppid, [])), flush=True)\n"
        "        futures = [pool.submit(time.sleep, 600) for _ in range(2)]\n"
        "        print(*pool._processes, flush=True)\n"
        "        time.sleep(600)\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    parent.stdout.readline()
    workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    assert len(workers) == 2
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(worker.num_threads() < 2 for worker in workers):
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive


@pytest.mark.parametrize("address", ["10.0.0.1:8786", "http://a:1", "tcp://host"])
def test_an_address_that_is_none(address):
    class Some(Settings):
        scheduler: Scheduler = None

    assert Some(scheduler="tcp://10.0.0.1:8786").scheduler
    assert EXECUTION in Some.model_fields["scheduler"].metadata
    with pytest.raises(ValidationError, match="such as tcp://10"):
        Some(scheduler=address)


def test_no_scheduler_there_other_versions_and_no_dask(dask_address, monkeypatch):
    monkeypatch.setattr(executor, "CONNECT_SECONDS", 1)
    with pytest.raises(StageError, match="no Dask scheduler answers"), open_executor(1, "tcp://127.0.0.1:9"):
        pass
    monkeypatch.setattr(executor, "versions", lambda more, own=executor.versions: own(more) | {"Python": "2.7"})
    theirs = executor.versions.__defaults__[0]
    monkeypatch.setattr("distributed.Client.run", lambda self, function: {"tcp://w:1": theirs()})
    with (
        pytest.raises(UserError, match=r"its worker .* has Python 3\.\d+, this machine 2\.7"),
        open_executor(1, dask_address),
    ):
        pass
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UserError, match=r"pip install 'sahajflow\[dask\]'"), open_executor(1, dask_address):
        pass


def test_worker_count_follows_the_one_setting_for_threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert worker_count() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    assert worker_count() == len(os.sched_getaffinity(0))
