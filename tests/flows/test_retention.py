"""What `sahajflow clean` removes, and what it must not."""

from __future__ import annotations

import errno
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from flows.attempts import attempts, logged
from flows.command_line import main
from flows.retention import DAY, clean, last_use, note_use
from tasks import locks
from tasks.record import Input, Record, digest_of, outputs_of
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
    assert clean(store, work=False, dry_run=True) == ["would remove trash/corpus-old  1.0 MB"]
    assert (store.root / "trash/corpus-old").exists()
    assert clean(store, work=False, dry_run=False) == ["removed trash/corpus-old  1.0 MB"]
    assert list((store.root / "trash").iterdir()) == []
    assert (store.root / "work/corpus/abc/scratch/part").exists()


def test_old_comparisons_go(store: Store) -> None:
    for name, days in (("a-b", 40), ("c-d", 20)):
        page = store.root / "rendered/compared" / name / "comparison.md"
        page.parent.mkdir(parents=True)
        page.touch()
        for path in (page, page.parent):
            os.utime(path, (time.time() - days * DAY,) * 2)
    (store.root / "rendered/demo").mkdir()  # rendered again, it takes the same place
    for dry_run, did in ((True, "would remove"), (False, "removed")):
        lines = clean(store, work=False, unused_days=30, dry_run=dry_run)
        assert [line for line in lines if "rendered" in line] == [f"{did} rendered/compared/a-b  0.0 MB"]
    left = sorted(path.relative_to(store.root / "rendered").as_posix() for path in store.root.glob("rendered/**/*"))
    assert left == ["compared", "compared/c-d", "compared/c-d/comparison.md", "demo"]


def test_what_a_killed_pull_had_fetched_goes(store: Store) -> None:
    for name in ("0" * 16, "1" * 16):
        (store.root / "arriving/corpus" / name).mkdir(parents=True)
        (store.root / "arriving/corpus" / name / "text").write_text("half")
    with locks.held(store.lock("corpus", "1" * 16)):  # a pull that goes on
        assert f"removed arriving/corpus/{'0' * 16}  0.0 MB" in clean(store, work=False, dry_run=False)
    assert [path.name for path in (store.root / "arriving/corpus").iterdir()] == ["1" * 16]


def test_clean_of_work_leaves_what_somebody_holds(store: Store) -> None:
    (store.root / "work/pack/def").mkdir(parents=True)
    with locks.held(store.lock("corpus", "abc")):
        for dry_run in (True, False):
            lines = clean(store, work=True, dry_run=dry_run)
            assert [line for line in lines if "corpus/abc" in line] == []
            assert [line for line in lines if "pack/def" in line] != []
        assert (store.root / "work/corpus/abc/scratch/part").exists()
        assert not (store.root / "work/pack/def").exists()
    assert clean(store, work=True, dry_run=False) == ["removed work/corpus/abc  0.0 MB"]


def test_clean_holds_the_lock_while_it_removes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    holders = []
    monkeypatch.setattr(
        "flows.retention.durable.remove", lambda path: holders.append(locks.holder_of(store.lock("corpus", "abc")))
    )
    clean(store, work=True, dry_run=False)
    trash, work = holders
    assert trash is None
    assert work is not None
    assert work["pid"] == os.getpid()


def test_clean_deletes_nothing_in_a_folder_that_is_no_store(tmp_path: Path) -> None:
    for name in ("trash/mine.txt", "work/mine/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("foreign")
    assert main(["clean", "--work", "--unused-for", "1", "--store", str(tmp_path)]) == 2
    assert (tmp_path / "trash/mine.txt").exists()
    assert (tmp_path / "work/mine/notes.txt").exists()


def publish(store: Store, stage: str, fingerprint: str, *, days: float, inputs: tuple[Path, ...] = ()) -> Path:
    """A result that was published, and not used since, so many days ago."""
    folder = store.artifact(stage, fingerprint)
    folder.mkdir(parents=True)
    (folder / "data").write_text("some")
    outputs = outputs_of(folder)
    record = Record(
        stage=stage,
        version=1,
        fingerprint=fingerprint,
        identity={},
        resolved={},
        inputs={path.parent.name: Input(path=path.relative_to(store.root).as_posix(), digest="") for path in inputs},
        outputs=outputs,
        digest=digest_of(outputs),
        metrics={},
        started=datetime.now(UTC),
        finished=datetime.now(UTC),
        seconds=1.0,
        environment={},
    )
    (folder / "record.json").write_text(record.model_dump_json())
    then = time.time() - days * DAY
    for path in (folder / "record.json", folder):
        os.utime(path, (then, then))
    return folder


def test_what_was_not_used_for_long_goes_and_what_newer_results_read_stays(store: Store) -> None:
    corpus = publish(store, "corpus", "1" * 16, days=90)
    packed = publish(store, "pack", "2" * 16, days=80, inputs=(corpus,))
    other = publish(store, "corpus", "3" * 16, days=50)
    model = publish(store, "pretrain", "4" * 16, days=5, inputs=(packed,))
    lines = clean(store, work=False, unused_days=30, dry_run=True)
    assert [line for line in lines if "artifacts" in line] == [f"would remove artifacts/corpus/{'3' * 16}  0.0 MB"]
    assert other.exists()
    lines = clean(store, work=False, unused_days=30, dry_run=False)
    assert [line for line in lines if "artifacts" in line] == [f"removed artifacts/corpus/{'3' * 16}  0.0 MB"]
    assert [path.exists() for path in (corpus, packed, other, model)] == [True, True, False, True]
    assert list((store.root / "trash").iterdir()) == []


def test_a_reused_result_counts_as_used(store: Store) -> None:
    corpus = publish(store, "corpus", "1" * 16, days=90)
    assert last_use(store, corpus) < time.time() - 80 * DAY
    note_use(store, corpus)
    assert last_use(store, corpus) > time.time() - 60
    clean(store, work=False, unused_days=30, dry_run=False)
    assert corpus.exists()


def test_inputs_of_what_runs_or_is_unfinished_stay(store: Store) -> None:
    read_by_running = publish(store, "corpus", "1" * 16, days=90)
    read_by_unfinished = publish(store, "corpus", "2" * 16, days=90)
    read_by_nobody = publish(store, "corpus", "3" * 16, days=90)

    def facts(path: Path) -> dict[str, list[str]]:
        return {"inputs": [path.relative_to(store.root).as_posix()]}

    with locks.held(store.lock("pack", "b" * 16), facts=facts(read_by_unfinished)):
        (store.root / f"work/pack/{'b' * 16}").mkdir(parents=True)
    with locks.held(store.lock("pack", "a" * 16), facts=facts(read_by_running)):
        clean(store, work=False, unused_days=30, dry_run=False)
    assert [path.exists() for path in (read_by_running, read_by_unfinished, read_by_nobody)] == [True, True, False]


def test_a_result_that_is_being_made_again_stays(store: Store) -> None:
    corpus = publish(store, "corpus", "1" * 16, days=90)
    with locks.held(store.lock("corpus", "1" * 16)):
        clean(store, work=False, unused_days=30, dry_run=False)
    assert corpus.exists()


def test_old_unfinished_work_and_old_logs_go(store: Store) -> None:
    with logged(store, "corpus", "abc", "corpus"):
        pass
    new = attempts(store)[0].path
    old = new.with_name("20200101T000000.000000Z-1.log")
    old.write_text("start corpus")
    then = time.time() - 40 * DAY
    for place, _, files in os.walk(store.root / "work/corpus/abc"):
        for path in (place, *(os.path.join(place, file) for file in files)):
            os.utime(path, (then, then))
    lines = clean(store, work=False, unused_days=30, dry_run=False)
    assert "removed work/corpus/abc  0.0 MB" in lines
    assert "removed 1 logs of attempts  0.0 MB" in lines
    assert new.exists()
    assert not old.exists()


def test_a_full_disk_can_be_cleaned(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    old = publish(store, "corpus", "a" * 64, days=40)
    with locks.held(store.lock("corpus", "a" * 64), facts={"inputs": ["artifacts/x/y"]}):
        pass

    def full(path: Path, *more: object, **others: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    clean(store, work=True, unused_days=30, dry_run=False)
    assert not old.exists()
    assert locks.last_note(store.lock("corpus", "a" * 64))["inputs"] == ["artifacts/x/y"]
