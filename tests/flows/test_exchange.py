"""Results that are pushed to another place and pulled into another store, over fsspec's own file systems."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.command_line import main
from flows.exchange import Place, pull_all, pull_planned, push, verify
from flows.graph import Node
from flows.plan import Selection, Step, make_plan
from flows.step_work import StageOutcome, work_of
from tasks.contract import Settings, Stage, StageError, UserError, no_progress
from tasks.record import Damaged, digest_of, read_record
from tasks.store import Store


class Length(Settings):
    length: int = 3


def _write(settings: Length, inputs: object, folder: Path, progress: object) -> dict[str, int]:
    (folder / "data" / "বাংলা").mkdir(parents=True)
    (folder / "data" / "বাংলা" / "text").write_text("ক" * settings.length)
    return {}


def _copy(settings: Length, inputs: dict[str, Path], folder: Path, progress: object) -> dict[str, int]:
    (folder / "copy").write_bytes((inputs["corpus"] / "data" / "বাংলা" / "text").read_bytes())
    return {}


NODES = [
    Node("corpus", Stage("corpus", 1, Length, _write), Length(), {}),
    Node("tokenizer", Stage("tokenizer", 1, Length, _copy), Length(), {"corpus": "corpus"}),
]


def plan(store: Store) -> list[Step]:
    return make_plan(NODES, store, Selection(until="tokenizer"))[0]


def run_all(store: Store) -> list[Path]:
    store.create()
    outcomes: dict[str, StageOutcome] = {}
    for step in plan(store):
        outcomes[step.node.name] = work_of(step, outcomes, store, verify=False)(no_progress)
    return [outcome.path for outcome in outcomes.values()]


@pytest.fixture
def ours(tmp_path: Path) -> Store:
    store = Store(tmp_path / "ours")
    run_all(store)
    return store


@pytest.fixture
def theirs(tmp_path: Path) -> Store:
    store = Store(tmp_path / "theirs")
    store.create()
    return store


@pytest.fixture(params=["folder", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place.at(str(tmp_path / "place") if request.param == "folder" else f"memory://{uuid.uuid4()}")


def artifacts(store: Store) -> list[Path]:
    return sorted((store.root / "artifacts").glob("*/*"))


def contents(store: Store) -> dict[str, bytes]:
    root = store.root / "artifacts"
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_what_was_pushed_is_pulled_and_reused(ours: Store, theirs: Store, place: Place) -> None:
    lines = list(push(ours, artifacts(ours), place))
    assert [line.split()[0] for line in lines] == ["pushed", "pushed"]
    assert [step.action for step in plan(theirs)] == ["run", "wait"]
    lines = list(pull_planned(lambda: plan(theirs), theirs, place))
    assert [line.split()[0] for line in lines] == ["pulled", "pulled"]
    assert [step.action for step in plan(theirs)] == ["reuse", "reuse"]
    assert {name for name in contents(ours) if not name.endswith("record.json")} == {
        name for name in contents(theirs) if not name.endswith("record.json")
    }
    assert all(fine for fine, _ in verify(theirs, artifacts(theirs)))
    assert [line.split("  ")[0] for line in push(ours, artifacts(ours), place)] == ["there already"] * 2
    assert [line.split("  ")[0] for line in pull_all(theirs, place)] == ["here already"] * 2


def test_the_record_goes_last_and_a_push_that_was_killed_goes_on(
    ours: Store, theirs: Store, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    put = place.files.put_file

    def failing(source: str, target: str) -> None:
        names.append(target.rpartition("/")[2])
        if names[-1] == "record.json":
            raise OSError(28, "No space left on device")
        put(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(place.files, "put_file", failing)
        with pytest.raises(StageError, match=r".*: No space left on device"):
            list(push(ours, artifacts(ours), place))
    assert names[-1] == "record.json"
    assert len(names) == 2
    lines = pull_planned(lambda: plan(theirs), theirs, place)
    assert next(lines) == f"not there  corpus/{artifacts(ours)[0].name}"
    with pytest.raises(UserError, match="has none of the results that are missing here"):
        next(lines)
    list(push(ours, artifacts(ours), place))
    assert len(list(pull_all(theirs, place))) == 2


@pytest.mark.parametrize("how", ["other bytes", "shorter", "missing", "record", "outside"])
def test_what_is_damaged_there_is_not_taken(ours: Store, theirs: Store, tmp_path: Path, how: str) -> None:
    place = Place.at(str(tmp_path / "place"))
    list(push(ours, artifacts(ours), place))
    (folder,) = (tmp_path / "place/artifacts/corpus").iterdir()
    text, record = folder / "data/বাংলা/text", folder / "record.json"
    changes: dict[str, Callable[[], object]] = {
        "other bytes": lambda: text.write_text("খ" * 3),
        "shorter": lambda: text.write_text("ক"),
        "missing": text.unlink,
        "record": lambda: record.write_text("{"),
        "outside": lambda: record.write_text(record.read_text().replace("data/বাংলা/text", "../../text")),
    }
    changes[how]()
    with pytest.raises(StageError, match=r"place: .*(push again|No such file)") as caught:
        list(pull_all(theirs, place))
    assert "\n" not in str(caught.value)
    assert artifacts(theirs) == []
    assert not (theirs.root / "text").exists()
    shutil.rmtree(folder)
    list(push(ours, artifacts(ours), place))
    assert len(list(pull_all(theirs, place))) == 2


@pytest.mark.parametrize(("stage", "name"), [("..", "0" * 16), ("corpus", "..")])
def test_a_name_that_leads_out_of_the_store_is_not_taken(ours: Store, stage: str, name: str) -> None:
    place = Place.at(f"memory://{uuid.uuid4()}")
    record = read_record(artifacts(ours)[0]).model_copy(update={"stage": stage, "fingerprint": name})
    place.files.pipe_file(place.path(stage, name, "record.json"), record.model_dump_json().encode())
    with pytest.raises(Damaged, match="no result is called so"):
        place.record(stage, name)


@pytest.mark.parametrize("file", ["../../text", "/etc/text", "a/../../text", ".", "", "a//b", "..\\\\text"])
def test_a_file_that_leads_out_of_its_result_is_not_taken(ours: Store, file: str) -> None:
    place = Place.at(f"memory://{uuid.uuid4()}")
    artifact = artifacts(ours)[0]
    record = read_record(artifact)
    outputs = {file: next(iter(record.outputs.values()))}
    # With a digest that fits: else that alone would refuse it.
    record = record.model_copy(update={"outputs": outputs, "digest": digest_of(outputs)})
    place.files.pipe_file(place.path("corpus", artifact.name, "record.json"), record.model_dump_json().encode())
    with pytest.raises(Damaged, match="names a file outside of the result"):
        place.record("corpus", artifact.name)


def test_a_damaged_result_is_not_pushed_and_one_here_is_replaced(ours: Store, theirs: Store, tmp_path: Path) -> None:
    place = Place.at(str(tmp_path / "place"))
    list(push(ours, artifacts(ours), place))
    list(pull_all(theirs, place))
    damaged = artifacts(theirs)[0] / "data/বাংলা/text"
    damaged.write_text("short")
    with pytest.raises(StageError, match="is damaged here"):
        list(push(theirs, artifacts(theirs), place))
    assert [fine for fine, _ in verify(theirs, artifacts(theirs))] == [False, True]
    assert [line.split("  ")[0] for line in pull_all(theirs, place)] == ["pulled", "here already"]
    assert all(fine for fine, _ in verify(theirs, artifacts(theirs)))


def test_places_that_are_none(tmp_path: Path, theirs: Store) -> None:
    with pytest.raises(UserError, match="nonsense://x: Protocol not known"):
        Place.at("nonsense://x")
    with pytest.raises(UserError, match=r"^nonsense://host/x: ") as caught:
        Place.at("nonsense://anna:geheim@host/x")
    assert "geheim" not in str(caught.value)
    with pytest.raises(UserError, match="holds no results"):
        list(pull_all(theirs, Place.at(str(tmp_path / "empty"))))


def test_commands(ours: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = str(tmp_path / "place")
    assert main(["push", there, "--store", str(ours.root)]) == 0
    assert main(["pull", there, "--store", str(tmp_path / "theirs")]) == 0
    assert main(["verify", "--store", str(tmp_path / "theirs")]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        *["pushed"] * 2,
        *["pulled"] * 2,
        *["sound"] * 2,
    ]
    (path,) = (tmp_path / "theirs/artifacts/tokenizer").glob("*/copy")
    os.chmod(path, 0o644)
    path.write_text("খ" * 3)
    assert main(["verify", "--store", str(tmp_path / "theirs")]) == 1
    told = capsys.readouterr()
    assert "has another content than when it was published" in told.out
    assert "sahajflow run RECIPE --verify builds what is damaged again" in told.err
    shutil.rmtree(tmp_path / "theirs")
    assert main(["push", there, "--store", str(tmp_path / "theirs")]) == 2
    assert "holds no finished result" in capsys.readouterr().err
