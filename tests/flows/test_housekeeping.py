import os
import socket
import time
from datetime import datetime
from pathlib import Path

import pytest

from flows.attempts import logged
from flows.housekeeping import status, usable_store
from tasks import locks
from tasks.contract import StageError
from tasks.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with one unfinished stage."""
    store = Store(tmp_path / "store")
    store.create()
    (store.root / "work/corpus/abc/scratch").mkdir(parents=True)
    (store.root / "work/corpus/abc/scratch/part").write_text("half")
    return store


def test_status_counts_from_the_newest_change_in_the_tree(store: Store) -> None:
    work = store.root / "work/corpus/abc"
    long_ago, lately = time.time() - 7200, time.time() - 600
    os.utime(work / "scratch/part", (lately, lately))
    for folder in (work / "scratch", work):
        os.utime(folder, (long_ago, long_ago))
    assert "resumable  corpus-abc  untouched for 10 min" in status(str(store.root))


def test_status_says_how_the_last_attempt_ended(store: Store) -> None:
    with pytest.raises(StageError), logged(store, "corpus", "abc", "corpus"):
        raise StageError("the source is gone; bring it back")
    (line,) = (line for line in status(str(store.root)) if line.startswith("resumable"))
    assert line.endswith("  failed: the source is gone; bring it back")


def test_status_names_the_node_and_who_holds_its_lock(store: Store) -> None:
    with locks.held(store.lock("seed-run", "def"), facts={"inputs": [], "title": "seed-run/random/ner/1"}):
        (running,) = (line for line in status(str(store.root)) if line.startswith("running"))
    assert running.startswith(
        f"running    seed-run-def (seed-run/random/ner/1)  process {os.getpid()} on {socket.gethostname()} since "
        f"{datetime.now():%Y-%m-%d }"
    )
    assert not any(line.startswith("running") for line in status(str(store.root)))


def test_new_and_empty_folders_may_become_stores(tmp_path: Path) -> None:
    assert usable_store(str(tmp_path)).root == tmp_path
    assert usable_store(str(tmp_path / "new")).root == tmp_path / "new"
    assert not (tmp_path / "new").exists()
