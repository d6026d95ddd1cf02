"""Exporting a real, tiny run: what is in it, what is not, and that it loads without sahajflow."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from small_hub import TOKEN, small_hub
from tiny import SETTINGS

from flows.command_line import main
from flows.execution import Options, prepare, run_chain
from flows.export import Export, collect, model_files, write_folder
from tasks.contract import StageError, UserError, no_progress
from tasks.durable import sha256_of
from tasks.record import Output
from tasks.sample.text import documents

HOST = "annas-laptop"
FILES = ["README.md", "results.json", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


@dataclass(frozen=True)
class Finished:
    """A store with everything made of a recipe whose texts lie in a folder with a telling name."""

    store: Path
    changes: tuple[str, ...]
    private: Path

    def options(self, *more: str) -> Options:
        return Options("demo", set_=(*self.changes, *more), store=str(self.store), workers=1)

    def arguments(self, *more: str) -> list[str]:
        changes = [part for change in self.changes for part in ("--set", change)]
        return ["export", "demo", "--store", str(self.store), *changes, *more]

    def export(self, **more: bool) -> Export:
        return collect(prepare(self.options()), None, page=more.get("page", False))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    place = tmp_path_factory.mktemp("export")
    private = place / "Anna Sen" / "diary texts"
    private.mkdir(parents=True)
    (private / "all of it.txt").write_text("\n".join(documents(0, 300)), encoding="utf-8")
    source = {"kind": "files", "name": "texts", "paths": [str(private / "all of it.txt")], "documents": "line"}
    changes = (
        *(change for change in SETTINGS if not change.startswith(("corpus.", "evaluation.models"))),
        f"corpus.sources={json.dumps([source])}",
        "corpus.validation_fraction=0.05",
        "publishing.languages=[bn]",
        "publishing.license=apache-2.0",
        "publishing.source_licenses={texts: cc-by-4.0}",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("socket.gethostname", lambda: HOST)
        run_chain(
            Options("demo", set_=changes, store=str(place / "store"), workers=1), lambda node, work: work(no_progress)
        )
        yield Finished(place / "store", changes, private)


def snippet(card: str) -> str:
    found = re.search(r"```python\n(.*?)```", card, re.DOTALL)
    assert found
    return found.group(1)


def test_a_folder_loads_with_transformers_and_holds_the_very_model(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    folder = tmp_path / "a model"
    assert main(finished.arguments("--to", str(folder))) == 0
    told = capsys.readouterr().out
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    for path in folder.iterdir():
        assert re.search(rf"{re.escape(path.name)} .*sha256 {sha256_of(path)}\n", told)
    checkpoint = next((finished.store / "artifacts/pretrain").glob("*/checkpoint"))
    ours, theirs = (AutoTokenizer.from_pretrained(place) for place in (checkpoint, folder))
    texts = [*documents(3, 20), "ঢাকা [MASK]। 12 ab", ""]
    assert theirs(texts)["input_ids"] == ours(texts)["input_ids"]
    assert [theirs.decode(ids) for ids in theirs(texts)["input_ids"]] == [
        ours.decode(ids) for ids in ours(texts)["input_ids"]
    ]
    model, loading = AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert (set(loading["missing_keys"]), set(loading["unexpected_keys"])) == (set(), set())
    before = AutoModelForMaskedLM.from_pretrained(checkpoint).state_dict()
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())
    monkeypatch.chdir(folder)
    exec(compile(snippet((folder / "README.md").read_text(encoding="utf-8")), "README.md", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_nothing_private_is_in_any_file(finished: Finished) -> None:
    export = finished.export(page=True)
    told = [HOST, "Anna", "diary", str(finished.store), str(Path.home())]
    for file in export.files:
        text = file.read().decode("utf-8", "replace")
        assert [word for word in told if word in text] == [], file.name
    whole = next((finished.store / "artifacts/report").glob("*/report.json")).read_text(encoding="utf-8")
    assert [word for word in told[:3] if word not in whole] == []  # so the report itself has them
    page = next(file for file in export.files if file.name == "report.html")
    assert b"all of it.txt" in page.read()  # what a path leads to stays


def test_again_there_is_nothing_to_do_and_what_differs_stays_unless_forced(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    assert main(finished.arguments("--to", str(folder))) == 0
    stamps = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert main(finished.arguments("--to", str(folder))) == 0
    assert capsys.readouterr().out.endswith(f"Nothing to do: {folder} holds all of it already.\n")
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == stamps
    (folder / "config.json").write_text("{}")
    (folder / "mine.txt").write_text("mine")
    (folder / "tokenizer.json").unlink()
    assert main(finished.arguments("--to", str(folder))) == 2
    assert "has other content in config.json; --force replaces it" in capsys.readouterr().err
    assert not (folder / "tokenizer.json").exists()
    assert main(finished.arguments("--to", str(folder), "--force")) == 0
    assert "Wrote 2 of 6 files" in capsys.readouterr().out
    assert sorted(path.name for path in folder.iterdir()) == sorted([*FILES, "mine.txt"])
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_killed_export_leaves_nothing_under_the_name_and_the_next_one_cleans_up(
    finished: Finished, tmp_path: Path
) -> None:
    export = finished.export()

    class Killed(BaseException):
        pass

    def kill(*arguments: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.durable.sync_tree", kill)
        patch.setattr("tasks.durable.remove", lambda path: None)  # nobody cleans up after a kill -9
        with pytest.raises(Killed):
            write_folder(export, str(tmp_path / "model"), finished.store, force=False)
    assert not (tmp_path / "model").exists()
    (left,) = tmp_path.iterdir()
    (left / "junk").write_text("half")
    assert write_folder(export, str(tmp_path / "model"), finished.store, force=False) == len(FILES)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == sorted(FILES)


def test_places_where_nothing_is_written(finished: Finished, tmp_path: Path) -> None:
    export = finished.export()
    (tmp_path / "file").write_text("")
    for place, told in (
        (finished.store / "model", "lies in the store"),
        (tmp_path / "file", "is a file"),
        (tmp_path / "file" / "model", "cannot be made"),
        ("", "name a folder"),
        ("~nobody-of-this-name/model", "there is no such user"),
        ("a\0b", "cannot be made"),
    ):
        with pytest.raises(UserError, match=told):
            write_folder(export, str(place), finished.store, force=True)
    (tmp_path / "model" / "config.json").mkdir(parents=True)
    with pytest.raises(UserError, match=r"config\.json is a folder there"):
        write_folder(export, str(tmp_path / "model"), finished.store, force=True)
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["config.json"]


def checkpoint(folder: Path, **files: str) -> SimpleNamespace:
    outputs = {}
    for name, text in files.items():
        path = folder / "checkpoint" / name.replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        outputs[f"checkpoint/{path.name}"] = Output(bytes=len(text), sha256=sha256_of(path))
    return SimpleNamespace(path=folder, record=SimpleNamespace(outputs=outputs))


def test_trainer_state_is_left_out_and_configurations_do_not_say_where_they_are_from(tmp_path: Path) -> None:
    step = checkpoint(
        tmp_path,
        config__json='{"_name_or_path": "/mnt/anna/model", "vocab_size": 5}',
        tokenizer_config__json='{"name_or_path": "/mnt/anna", "tokenizer_file": "/mnt/anna/t", "cls_token": "c"}',
        model__safetensors="weights",
        optimizer__pt="moments",
        trainer_state__json='{"host": "x"}',
        training_args__bin="pickled",
    )
    taken, left_out = model_files(step)
    assert left_out == ("optimizer.pt", "trainer_state.json", "training_args.bin")
    assert {file.name: file.read().decode() for file in taken} == {
        "config.json": '{\n  "vocab_size": 5\n}\n',
        "model.safetensors": "weights",
        "tokenizer_config.json": '{\n  "cls_token": "c"\n}\n',
    }


def test_a_damaged_checkpoint_is_not_exported(tmp_path: Path) -> None:
    step = checkpoint(tmp_path, config__json="{}")
    (tmp_path / "checkpoint/config.json").write_text("{ }")
    with pytest.raises(StageError, match=r"config\.json: is not what was published"):
        model_files(step)


def test_a_text_with_a_folder_of_this_machine_is_refused(finished: Finished) -> None:
    home = str(Path.home())
    changes = ("publishing.license=other", "publishing.license_name=mine", f"publishing.license_link={home}/licence")
    with pytest.raises(UserError, match=r"README\.md: would tell .*; take it out first"):
        collect(prepare(finished.options(*changes)), None, page=False)


def test_publishing_settings_run_nothing_again(finished: Finished) -> None:
    prepared = prepare(finished.options("publishing.license=mit", "publishing.languages=[bn, as]"))
    assert prepared.idle
    card = collect(prepared, None, page=False).files[0].read().decode()
    assert "license: mit" in card
    assert "language:\n- bn\n- as\n" in card


def test_without_an_up_to_date_report(finished: Finished, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(finished.arguments("--set", "evaluation.seeds=2", "--to", str(tmp_path / "model"))) == 2
    told = capsys.readouterr().err
    assert "demo: has no up-to-date report; sahajflow run demo " in told
    assert f" --set evaluation.seeds=2 --store {finished.store} makes it" in told


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ([], "one of the arguments --to --hub is required"),
        (["--to", "x", "--hub", "a/b"], "not allowed with"),
        (["--to", "x", "--private"], "--private and --yes go with --hub"),
        (["--hub", "model"], "should be owner/name"),
    ],
)
def test_wrong_arguments(more: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["export", "demo", *more])
    except SystemExit as end:
        status = int(end.code or 0)
    assert status == 2
    assert told in capsys.readouterr().err


def test_the_hub_is_not_asked_without_a_yes(
    finished: Finished, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.hub_upload.upload", None)
    assert main(finished.arguments("--hub", "anna/model", "--private")) == 0
    told = capsys.readouterr().out
    assert [line.split()[0] for line in told.splitlines()[: len(FILES)]] == FILES
    assert "This would upload 6 files" in told
    assert "/anna/model (private)" in told
    assert told.endswith("Nothing was uploaded; the same command with --yes does it.\n")
    asked: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or "y")
    assert main(finished.arguments("--hub", "anna/model")) == 0
    assert asked == ["Type yes to upload: "]
    assert capsys.readouterr().out.endswith("Nothing was uploaded.\n")

    def ended(question: str) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", ended)
    assert main(finished.arguments("--hub", "anna/model")) == 0
    assert capsys.readouterr().out.endswith("Nothing was uploaded.\n")


def test_what_was_uploaded_loads_from_the_hub_by_the_cards_own_words(finished: Finished, tmp_path: Path) -> None:
    with small_hub() as hub:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_DISABLE_XET": "1",
        }

        def python(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, *arguments],
                env={**environment, **more},
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )

        command = ["-P", "-c", "import sys; from flows.command_line import main; sys.exit(main(sys.argv[1:]))"]
        root = str(Path(__file__).parents[2])
        done = python(*command, *finished.arguments("--hub", "anna/model", "--yes"), HF_TOKEN=TOKEN, PYTHONPATH=root)
        assert done.returncode == 0, done.stderr
        assert f"Uploaded to {hub.url}/anna/model: {hub.url}/anna/model/commit/" in done.stdout
        assert TOKEN not in done.stdout + done.stderr
        repository = hub.repositories["anna/model"]
        assert sorted(repository.files) == sorted([".gitattributes", *FILES])
        assert repository.messages[-1].startswith("Export demo (sahajflow ")
        code = snippet(repository.files["README.md"].decode())
        assert code.count('from_pretrained("anna/model")') == 2
        loaded = python("-I", "-c", code)
        assert loaded.returncode == 0, loaded.stderr
        assert loaded.stdout.strip()


def test_digests_are_of_the_content(finished: Finished, tmp_path: Path) -> None:
    export = finished.export()
    lied = replace(export.files[0], sha256="0" * 64)
    with pytest.raises(StageError, match="is not what was read"):
        write_folder(Export((lied,), ()), str(tmp_path / "model"), finished.store, force=False)
    assert list(tmp_path.iterdir()) == []
