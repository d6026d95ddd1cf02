import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks import locks

HOLDER = """
import sys, time
from pathlib import Path
from tasks import locks
with locks.held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def start_holder(lock: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-P", "-c", HOLDER, str(lock)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_killed_holder_is_followed_within_5_seconds(tmp_path: Path) -> None:
    lock = tmp_path / "locks" / "pack-1.lock"
    process = start_holder(lock)
    told = []

    def kill(holder: dict[str, object]) -> None:
        told.append(holder)
        process.send_signal(signal.SIGKILL)

    started = time.monotonic()
    with locks.held(lock, waiting=kill):
        waited = time.monotonic() - started
    process.wait()
    process.stdout.close()  # type: ignore[union-attr]
    assert [holder["pid"] for holder in told] == [process.pid]
    assert waited < 5


def test_holder_is_known_while_it_lives_and_not_from_its_note(tmp_path: Path) -> None:
    lock = tmp_path / "pack-1.lock"
    assert locks.holder_of(lock) is None
    with locks.held(lock):
        holder = locks.holder_of(lock)
        assert holder is not None
        assert holder["pid"] == os.getpid()
    assert lock.with_suffix(".json").exists()
    assert locks.holder_of(lock) is None


def test_a_living_child_that_inherited_the_descriptor_keeps_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "pretrain-1.lock"
    with locks.held(lock) as descriptor:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[descriptor])
    try:
        assert locks.holder_of(lock) is not None
    finally:
        child.communicate(b"\n")
    assert locks.holder_of(lock) is None


def test_a_store_that_may_only_be_read_tells_who_holds_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "x.lock"
    opened = os.open

    def read_only(path: Path, flags: int, *more: int) -> int:
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return opened(path, flags, *more)

    with locks.held(lock):
        monkeypatch.setattr(os, "open", read_only)
        holder = locks.holder_of(lock)
    assert holder is not None
    assert holder["pid"] == os.getpid()
    assert locks.holder_of(lock) is None
