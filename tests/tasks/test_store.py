import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.contract import Settings, Stage, UserError
from tasks.record import Damaged, read_record
from tasks.store import Building, FileDigests, Store

DRIVER = Path(__file__).with_name("publishing_driver.py")
STAGE = Stage("pack", 1, Settings, lambda *_: {})


def building(fingerprint: str = "ab" * 32) -> Building:
    return Building(STAGE, fingerprint, {"length": 128}, {})


def fill_work(store: Store, text: str = "content", fingerprint: str = "ab" * 32) -> Path:
    store.create()
    work = store.work("pack", fingerprint)
    (work / "data").mkdir(parents=True)
    (work / "data" / "0.arrow").write_text(text)
    (work / "logs").mkdir()
    (work / "logs" / "times.jsonl").write_text(str(time.time_ns()))
    (work / "scratch").mkdir()
    (work / "scratch" / "half").write_text("half")
    return work


def test_finish_publishes_without_scratch_and_look_verifies(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    fill_work(store)
    record = store.finish(building(), {"blocks": 1, "resolved": {"threads": 2}}, 0.0)
    artifact = store.artifact("pack", "ab" * 32)
    assert artifact.name == ("ab" * 32)[:16]
    assert sorted(path.name for path in artifact.iterdir()) == ["data", "logs", "record.json"]
    assert store.look("pack", "ab" * 32) == record == read_record(artifact)
    assert (record.metrics, record.resolved) == ({"blocks": 1}, {"threads": 2})
    assert list((store.root / "trash").iterdir()) == []
    assert list((store.root / "work" / "pack").iterdir()) == []
    assert set(json.loads((artifact / "record.json").read_text())) == {
        *("stage", "version", "fingerprint", "identity", "resolved", "inputs", "outputs", "digest", "metrics"),
        *("started", "finished", "seconds", "environment"),
    }


def test_digest_counts_outputs_but_not_logs(tmp_path: Path) -> None:
    digests = []
    for name, text in (("one", "same"), ("two", "same"), ("three", "other")):
        store = Store(tmp_path / name)
        fill_work(store, text)
        digests.append(store.finish(building(), {}, 0.0).digest)
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda artifact: (artifact / "data" / "0.arrow").write_text("longer than before"), "18 bytes instead of 7"),
        (lambda artifact: (artifact / "data" / "0.arrow").unlink(), "data/0.arrow is missing"),
        (lambda artifact: (artifact / "extra").write_text("x"), "extra is not in the record"),
        (lambda artifact: (artifact / "record.json").write_text("{"), "record.json does not parse"),
        (lambda artifact: (artifact / "record.json").unlink(), "record.json is missing"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage, told: str) -> None:
    store = Store(tmp_path / "store")
    fill_work(store)
    store.finish(building(), {}, 0.0)
    damage(store.artifact("pack", "ab" * 32))
    with pytest.raises(Damaged, match=told):
        store.look("pack", "ab" * 32)


def test_equal_size_damage_is_found_by_hashes(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    fill_work(store)
    store.finish(building(), {}, 0.0)
    (store.artifact("pack", "ab" * 32) / "data" / "0.arrow").write_text("CONTENT")
    assert store.look("pack", "ab" * 32) is not None
    with pytest.raises(Damaged, match="another content"):
        store.look("pack", "ab" * 32, hashes=True)


def test_hashes_are_compared_once_on_another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store")
    fill_work(store)
    store.finish(building(), {}, 0.0)
    data = store.artifact("pack", "ab" * 32) / "data" / "0.arrow"
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    data.write_text("CONTENT")
    with pytest.raises(Damaged, match="another content"):
        store.look("pack", "ab" * 32)
    data.write_text("content")
    assert store.look("pack", "ab" * 32) is not None
    data.write_text("CONTENT")
    assert store.look("pack", "ab" * 32) is not None  # noted: this host has checked it


def test_a_standing_artifact_is_kept_unless_replacing_with_other_bytes(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    fill_work(store, "first")
    first = store.finish(building(), {"run": 1}, 0.0)
    fill_work(store, "second")
    assert store.finish(building(), {"run": 2}, 0.0) == first
    fill_work(store, "first")
    assert store.finish(building(), {"run": 3}, 0.0, replace=True) == first
    fill_work(store, "second")
    second = store.finish(building(), {"run": 4}, 0.0, replace=True)
    assert second.digest != first.digest
    assert store.look("pack", "ab" * 32) == second
    (old,) = (store.root / "trash").iterdir()
    assert read_record(old) == first


def test_a_damaged_standing_artifact_goes_to_trash(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    fill_work(store)
    store.finish(building(), {}, 0.0)
    (store.artifact("pack", "ab" * 32) / "data" / "0.arrow").unlink()
    fill_work(store)
    store.finish(building(), {}, 0.0)
    assert store.look("pack", "ab" * 32) is not None
    assert len(list((store.root / "trash").iterdir())) == 1


def test_kill_before_and_after_every_system_call_of_publishing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", str(DRIVER), str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    calls = result["calls"]
    # Both renames (scratch away, work into place), the record, and the syncs around them are among the points.
    assert [call for call in calls if call.startswith("rename")] != []
    assert sum(call.startswith("rename") for call in calls) == 3
    assert sum(call.startswith("fsync") for call in calls) >= 8
    assert result["killed"] == [[call, side] for call in calls for side in ("before", "after")]
    assert result["failures"] == []


def test_foreign_folder_and_other_format_are_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.doc").write_text("x")
    with pytest.raises(UserError, match="is not empty and no store"):
        Store(tmp_path).create()
    store = Store(tmp_path / "store")
    store.create()
    for found, remedy in ((99, "upgrade sahajflow"), (0, "take the sahajflow that made it")):
        (store.root / "format.json").write_text(f'{{"format": {found}}}')
        with pytest.raises(UserError, match=f"store format {found}, this version reads 1; {remedy}, or use another"):
            store.check_format()


def test_folder_whose_making_was_killed_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / ".format.json.123").write_text("{")
    store = Store(tmp_path)
    store.create()
    store.check_format()
    assert (tmp_path / "artifacts").is_dir()


def test_file_digests_are_remembered_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store")
    store.create()
    file = tmp_path / "corpus.txt"
    file.write_text("one")
    digests = FileDigests(store)
    first = digests(file)
    digests.save()
    with monkeypatch.context() as patch:
        patch.setattr("tasks.durable.sha256_of", lambda path: pytest.fail("hashed again"))
        assert FileDigests(store)(file) == first
    file.write_text("two!")
    assert FileDigests(store)(file) != first


def test_moved_store_still_verifies(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    fill_work(store)
    record = store.finish(building(), {}, 0.0)
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    assert Store(tmp_path / "elsewhere").look("pack", "ab" * 32) == record
    assert str(tmp_path) not in json.dumps(record.model_dump(mode="json", exclude={"environment"}))
