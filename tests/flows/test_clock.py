"""A clock that is set back by an hour: while a stage runs, between a kill and the next run, while others wait.

What is on the disk keeps its times, so to a program whose clock was set back files seem to come from the future.
"""

import logging
import sys
import threading
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from stub_chain import Chain

from flows import attempts
from flows.housekeeping import status
from flows.retention import clean, last_use
from tasks import locks
from tasks.contract import StageError
from tasks.store import Store

HOUR = 3_600.0


class Clock:
    """This process's clock, which can be set back."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.behind = 0.0
        now, now_ns = time.time, time.time_ns
        patch.setattr(time, "time", lambda: now() - self.behind)
        patch.setattr(time, "time_ns", lambda: now_ns() - int(self.behind * 1e9))
        clock = self

        class Datetime(datetime):
            @classmethod
            def now(cls, zone: Any = None) -> Any:
                return datetime.now(zone) - timedelta(seconds=clock.behind)

        patch.setattr(attempts, "datetime", Datetime)

    def set_back(self, *_: object) -> None:
        self.behind += HOUR


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_stage_in_which_the_clock_is_set_back_took_no_negative_time(tmp_path: Path, clock: Clock) -> None:
    chain = Chain(tmp_path)
    chain.meanwhile = dict.fromkeys(("tokenizer", "evaluate"), clock.set_back)
    outcomes = chain.run()
    for outcome in outcomes.values():
        assert 0 <= outcome.record.seconds < 60
        assert 0 <= outcome.seconds < 60
        assert (outcome.record.finished - outcome.record.started).total_seconds() == pytest.approx(
            outcome.record.seconds, abs=0.01
        )
    clock.set_back()
    assert set(chain.actions().values()) == {"reuse"}


def test_an_attempt_after_the_clock_was_set_back_is_the_newest(tmp_path: Path, clock: Clock) -> None:
    chain = Chain(tmp_path)

    def fail(folder: Path) -> None:
        raise StageError("no more power")

    chain.meanwhile["pack"] = fail
    with pytest.raises(StageError):
        chain.run()
    assert "failed: no more power" in status(str(chain.store.root))[1]
    clock.set_back()

    def interrupt(folder: Path) -> None:
        raise KeyboardInterrupt

    chain.meanwhile["pack"] = interrupt
    with pytest.raises(KeyboardInterrupt):
        chain.run()
    assert [one.state for one in attempts.attempts(chain.store, "pack")] == ["interrupted", "failed"]
    (line,) = status(str(chain.store.root))[1:]
    assert line.endswith("untouched for 0 min  interrupted")
    clock.set_back()
    chain.meanwhile.clear()
    assert chain.run()["pack"].action == "ran"
    assert [one.state for one in attempts.attempts(chain.store, "pack")] == ["published", "interrupted", "failed"]


def test_who_waits_for_a_holder_of_the_future_gets_the_lock(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    chain, other = Chain(tmp_path), Chain(tmp_path)
    inside, go_on = threading.Event(), threading.Event()

    def wait(folder: Path) -> None:
        inside.set()
        assert go_on.wait(30)

    chain.meanwhile["corpus"] = wait
    holder = threading.Thread(target=chain.run, kwargs={"until": "corpus"})
    holder.start()
    assert inside.wait(30)
    clock.set_back()
    caplog.set_level(logging.INFO, "sahajflow")
    waiter = threading.Thread(target=other.run, kwargs={"until": "corpus"})
    waiter.start()
    deadline = time.monotonic() + 30
    while "waiting for process" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.02)
    go_on.set()
    for thread in (holder, waiter):
        thread.join(30)
    assert "which has been at it for 0 min" in caplog.text
    assert (chain.ran, other.ran) == (["corpus"], [])


def test_cleaning_spares_what_was_used_in_the_hour_that_comes_again(tmp_path: Path, clock: Clock) -> None:
    chain = Chain(tmp_path)
    outcomes = chain.run()
    clock.set_back()
    chain.run()
    assert clean(chain.store, work=False, unused_days=0.01, dry_run=False) == ["nothing to remove"]
    clock.behind = 0
    chain.run()
    assert clean(chain.store, work=False, unused_days=0.01, dry_run=False) == ["nothing to remove"]
    assert last_use(chain.store, outcomes["corpus"].path) > time.time() - 60


def test_what_goes_to_the_trash_at_the_same_moment_again_finds_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store")
    store.create()
    monkeypatch.setattr(time, "time_ns", lambda: 1_000)
    for text in "abc":
        path = store.artifact("pack", "f" * 64)
        path.mkdir(parents=True)
        (path / "out").write_text(text)
        store.discard(path)
    assert sorted((one / "out").read_text() for one in (store.root / "trash").iterdir()) == ["a", "b", "c"]


def test_a_lock_of_the_future_is_free_once_its_holder_is_gone(tmp_path: Path, clock: Clock) -> None:
    lock = tmp_path / "a.lock"
    with locks.held(lock):
        clock.set_back()
        assert locks.holder_of(lock) is not None
    assert locks.holder_of(lock) is None
    with locks.held(lock, lambda holder: pytest.fail("it is held")):
        pass
