import os
import time
from pathlib import Path

import pytest

from flows.housekeeping import clean, status, usable_store
from tasks import locks
from tasks.contract import UserError
from tasks.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with something in the trash and with one unfinished stage."""
    store = Store(tmp_path / "store")
    store.create()
    (store.root / "trash/corpus-old").mkdir()
    (store.root / "trash/corpus-old/data").write_bytes(b"0" * 1_000_000)
    (store.root / "work/corpus/abc/scratch").mkdir(parents=True)
    (store.root / "work/corpus/abc/scratch/part").write_text("half")
    return store


def test_clean_removes_the_trash_and_keeps_work(store: Store) -> None:
    assert clean(str(store.root), work=False, dry_run=True) == ["would remove trash/corpus-old  1.0 MB"]
    assert (store.root / "trash/corpus-old").exists()
    assert clean(str(store.root), work=False, dry_run=False) == ["removed trash/corpus-old  1.0 MB"]
    assert list((store.root / "trash").iterdir()) == []
    assert (store.root / "work/corpus/abc/scratch/part").exists()


def test_clean_of_work_leaves_what_somebody_holds(store: Store) -> None:
    (store.root / "work/pack/def").mkdir(parents=True)
    with locks.held(store.lock("corpus", "abc")):
        for dry_run in (True, False):
            lines = clean(str(store.root), work=True, dry_run=dry_run)
            assert [line for line in lines if "corpus/abc" in line] == []
            assert [line for line in lines if "pack/def" in line] != []
        assert (store.root / "work/corpus/abc/scratch/part").exists()
        assert not (store.root / "work/pack/def").exists()
    assert clean(str(store.root), work=True, dry_run=False) == ["removed work/corpus/abc  0.0 MB"]


def test_clean_holds_the_lock_while_it_removes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    holders = []
    monkeypatch.setattr(
        "flows.housekeeping.durable.remove", lambda path: holders.append(locks.holder_of(store.lock("corpus", "abc")))
    )
    clean(str(store.root), work=True, dry_run=False)
    trash, work = holders
    assert trash is None
    assert work is not None
    assert work["pid"] == os.getpid()


def test_clean_deletes_nothing_in_a_folder_that_is_no_store(tmp_path: Path) -> None:
    for name in ("trash/mine.txt", "work/mine/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("foreign")
    with pytest.raises(UserError, match="is not empty and no store"):
        clean(str(tmp_path), work=True, dry_run=False)
    assert (tmp_path / "trash/mine.txt").exists()
    assert (tmp_path / "work/mine/notes.txt").exists()


def test_status_counts_from_the_newest_change_in_the_tree(store: Store) -> None:
    work = store.root / "work/corpus/abc"
    long_ago, lately = time.time() - 7200, time.time() - 600
    os.utime(work / "scratch/part", (lately, lately))
    for folder in (work / "scratch", work):
        os.utime(folder, (long_ago, long_ago))
    assert "resumable  corpus-abc  untouched for 10 min" in status(str(store.root))


def test_new_and_empty_folders_may_become_stores(tmp_path: Path) -> None:
    assert usable_store(str(tmp_path)).root == tmp_path
    assert usable_store(str(tmp_path / "new")).root == tmp_path / "new"
    assert not (tmp_path / "new").exists()
