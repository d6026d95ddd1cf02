import json
import logging
import os
import pickle
import shutil
import sys
from pathlib import Path

import pytest
import torch
import transformers

from eval.classifiers import build_classifier, choose, usable_positions
from eval.compared_model import STAGE, check
from eval.compared_settings import ComparedModel
from eval.seed_run import STAGE as SEED_RUN
from eval.seed_run import seed_run_settings
from eval.settings import EvaluationSettings, FineTuningSettings
from tasks.contract import StageError, UserError, no_progress
from tasks.durable import sha256_of
from tasks.identity import identity_of
from tasks.pretraining.settings import ModelSettings

sys.path.insert(0, str(Path(__file__).parent))
from others_models import ARCHITECTURES, make

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OPTIONS = {"albert": {"keep_accents": True}, "roberta": {"add_prefix_space": True}}
OWN = ModelSettings(architecture="bert", hidden_size=16, layers=1, heads=2, intermediate_size=32, max_positions=32)
SAMPLE = {"kind": "sample", "train": 24, "validation": 8, "test": 10}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    """A folder as on the hub for each architecture; half of them with PyTorch's own weights."""
    root = tmp_path_factory.mktemp("models")
    return {name: make(name, root / name, binary=number % 2 == 1) for number, name in enumerate(ARCHITECTURES)}


@pytest.fixture(scope="module")
def ready(models, tmp_path_factory) -> dict[str, tuple[Path, dict]]:
    """What the stage leaves for each architecture, with its metrics."""
    done = {}
    for name, folder in models.items():
        artifact = tmp_path_factory.mktemp(f"ready-{name}")
        settings = ComparedModel(path=str(folder), **OPTIONS.get(name, {}))
        done[name] = (artifact, STAGE.run(settings, {}, artifact, no_progress))
    return done


def copied(folder: Path, target: Path) -> Path:
    return Path(shutil.copytree(folder, target))


def run(folder: Path, target: Path, **options) -> dict:
    target.mkdir(exist_ok=True)
    return STAGE.run(ComparedModel(path=str(folder), **options), {}, target, no_progress)


def classifier(checkpoint: Path, kind: str = "classification", seed: int = 1, max_length: int = 16):
    settings = FineTuningSettings(max_length=max_length, precision="fp32", device="cpu")
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    return build_classifier(
        kind, ("O", "B-X"), settings, choose(settings), seed, checkpoint=checkpoint, tokenizer=tokenizer
    )


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_is_fine_tuned_and_scored_on_both_kinds_of_task(name, ready, tmp_path):
    artifact, metrics = ready[name]
    assert metrics["architecture"] == name
    assert metrics["keeps_accents"] is (name in {"albert", "roberta", "xlm-roberta"})
    assert metrics["weights_left_out"] > 0
    tuning = {"epochs": 1, "max_length": 24, "batch_size": 8, "learning_rate": 1e-3}
    tasks = {kind: {"kind": kind, "source": SAMPLE, "fine_tuning": tuning} for kind in ("ner", "classification")}
    evaluation = EvaluationSettings(seeds=1, models=["random"], compare_with={name: {"path": "x"}}, tasks=tasks)
    settings = seed_run_settings(evaluation, OWN)
    assert set(settings) == {f"{model}/{kind}/1" for model in ("random", name) for kind in tasks}
    for kind in tasks:
        folder = tmp_path / kind
        folder.mkdir()
        found = SEED_RUN.run(settings[f"{name}/{kind}/1"], {"checkpoint": artifact}, folder, no_progress)
        assert (found["model"], found["test_items"]) == (name, 10)
        assert len((folder / "predictions.jsonl").read_text().splitlines()) == 10
        history = json.loads((folder / "scores.json").read_text())["history"]
        assert 0 < history[0]["training_loss"] < 4


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_body_is_the_models_own_and_the_head_comes_from_the_seed_alone(name, models, ready):
    artifact, _ = ready[name]
    original = transformers.AutoModel.from_pretrained(models[name]).state_dict()
    for kind in ("ner", "classification"):
        model, again = classifier(artifact / "checkpoint", kind), None
        torch.manual_seed(99)
        torch.randn(7)
        again = classifier(artifact / "checkpoint", kind)
        other = classifier(artifact / "checkpoint", kind, seed=2)
        body, heads = model.base_model_prefix, 0
        others = other.state_dict()
        for key, weight in model.state_dict().items():
            assert torch.equal(weight, again.state_dict()[key])
            inner = key.removeprefix(f"{body}.")
            if key.startswith(f"{body}.") and not (name == "bert" and "pooler" in key):
                assert torch.equal(weight, original[inner]), key
            elif weight.ndim > 1:
                heads += 1
                assert not torch.equal(weight, others[key]), key
                assert 0.01 < float(weight.std()) < 0.04
            else:
                assert not weight.any()
        assert heads >= 1
    assert model.dtype == torch.float32


def test_a_head_does_not_depend_on_whether_the_pooler_is_there(models, ready, tmp_path):
    lacking = classifier(ready["bert"][0] / "checkpoint")
    whole = transformers.BertModel(transformers.AutoConfig.from_pretrained(models["bert"]))
    folder = copied(ready["bert"][0] / "checkpoint", tmp_path / "whole")
    whole.save_pretrained(folder)
    assert torch.equal(classifier(folder).classifier.weight, lacking.classifier.weight)


def test_positions_that_roberta_keeps_for_padding_are_not_usable(ready):
    usable = {name: usable_positions(classifier(artifact / "checkpoint")) for name, (artifact, _) in ready.items()}
    assert usable == {**dict.fromkeys(ARCHITECTURES, 32)}
    with pytest.raises(StageError, match=r"^fine_tuning\.max_length 33 is more than the 32 positions .* \(roberta\)"):
        classifier(ready["roberta"][0] / "checkpoint", max_length=33)
    model = classifier(ready["roberta"][0] / "checkpoint", "ner", max_length=32)
    assert model(torch.full((1, 32), 5)).logits.shape == (1, 32, 2)


def test_indic_tokenizers_keep_their_vowel_signs_if_asked(models, tmp_path, caplog):
    """IndicBERT's is one of ALBERT without tokenizer.json: what is kept is decided when it is converted."""
    assert not (models["albert"] / "tokenizer.json").exists()
    kept = run(models["albert"], tmp_path / "kept", keep_accents=True)
    with caplog.at_level(logging.WARNING):
        dropped = run(models["albert"], tmp_path / "dropped")
    assert (kept["keeps_accents"], dropped["keeps_accents"]) == (True, False)
    assert "drops accents and vowel signs" in caplog.text
    signs = transformers.AutoTokenizer.from_pretrained(tmp_path / "kept/checkpoint")
    none = transformers.AutoTokenizer.from_pretrained(tmp_path / "dropped/checkpoint")
    assert signs.tokenize("রবি") != signs.tokenize("রব")
    assert none.tokenize("রবি") == none.tokenize("রব")
    # saved without the signs; the options are for the vocabulary behind it
    folder = copied(models["albert"], tmp_path / "saved")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tmp_path / "dropped/checkpoint" / file, folder)
    assert run(folder, tmp_path / "again", keep_accents=True)["keeps_accents"]
    assert not run(folder, tmp_path / "as-saved")["keeps_accents"]


def test_options_of_bert(models, tmp_path):
    plain = run(models["bert"], tmp_path / "plain")
    kept = run(models["bert"], tmp_path / "kept", strip_accents=False, do_lower_case=False)
    assert (plain["keeps_accents"], kept["keeps_accents"]) == (False, True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "kept/checkpoint")
    assert tokenizer.tokenize("Café রবি") == ["Café", "রবি"]


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("bert", {"keep_accents": True}, r"keep_accents: true has no effect on its tokenizer \(\w*BertTokenizer"),
        ("xlm-roberta", {"do_lower_case": True}, "do_lower_case: true has no effect"),
        ("xlm-roberta", {"add_prefix_space": True}, "add_prefix_space: true has no effect"),
        ("roberta", {}, "set add_prefix_space: true"),
    ],
)
def test_options_that_a_tokenizer_does_not_have_or_needs(name, options, problem, models, tmp_path):
    with pytest.raises(StageError, match=problem):
        run(models[name], tmp_path / "out", **options)


def test_code_and_pickles_are_never_run(models, tmp_path):
    ran = tmp_path / "ran"
    folder = copied(models["distilbert"], tmp_path / "code")
    config = json.loads((folder / "config.json").read_text())
    (folder / "modeling_own.py").write_text(f"open({str(ran)!r}, 'w')\nclass Own: pass\n")
    config |= {
        "model_type": "own-type",
        "auto_map": {"AutoConfig": "modeling_own.Own", "AutoModel": "modeling_own.Own"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(StageError, match="its configuration cannot be loaded: it needs code of its own, which"):
        run(folder, tmp_path / "out")

    class Attack:
        def __reduce__(self):
            return os.system, (f"touch {ran}",)

    folder = copied(models["albert"], tmp_path / "pickled")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Attack()}))
    with pytest.raises(StageError, match="its weights cannot be loaded"):
        run(folder, tmp_path / "out2", keep_accents=True)
    assert not ran.exists()


def test_weights_that_lack_a_part_and_broken_files_are_told(models, tmp_path):
    folder = copied(models["albert"], tmp_path / "part")
    weights = torch.load(folder / "pytorch_model.bin")
    torch.save({key: weight for key, weight in weights.items() if "ffn" not in key}, folder / "pytorch_model.bin")
    with pytest.raises(StageError, match="lacks 4 weights of its architecture, such as encoder"):
        run(folder, tmp_path / "out", keep_accents=True)
    folder = copied(models["bert"], tmp_path / "broken")
    (folder / "model.safetensors").write_bytes(b"git-lfs pointer")
    with pytest.raises(StageError, match=r"^the model: its weights cannot be loaded: .*"):
        run(folder, tmp_path / "out2")


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda folder: shutil.rmtree(folder), "no such folder"),
        (lambda folder: (folder / "vocab.txt").unlink(), "has no tokenizer: neither tokenizer.json nor vocab.txt"),
        (lambda folder: (folder / "model.safetensors").unlink(), "has no weights: neither model.safetensors nor"),
        (lambda folder: (folder / "config.json").unlink(), "no such file"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json is not JSON"),
        (lambda folder: (folder / "config.json").write_text("{}"), "names no model_type"),
        (
            lambda folder: (folder / "config.json").write_text(
                '{"model_type": "bert", "max_position_embeddings": 31}'
            ),
            r"the model has 31 positions, fewer than evaluation\.tasks\.ner\.fine_tuning\.max_length 32",
        ),
    ],
)
def test_a_local_model_is_checked_before_anything_runs(spoil, problem, models, tmp_path):
    folder = copied(models["bert"], tmp_path / "mine")
    tasks = {"ner": {"kind": "ner", "source": SAMPLE, "fine_tuning": {"max_length": 32}}}
    evaluation = EvaluationSettings(compare_with={"mine": {"path": str(folder)}}, tasks=tasks)
    check(evaluation)
    spoil(folder)
    with pytest.raises(UserError, match=rf"^evaluation\.compare_with\.mine\.path: .*{problem}"):
        check(evaluation)


def test_the_identity_is_the_content_of_what_is_read(models, tmp_path):
    folder = copied(models["bert"], tmp_path / "a")
    moved = copied(models["bert"], tmp_path / "b")

    def identity(place: Path, **more) -> dict:
        return identity_of(ComparedModel(path=str(place), **more), sha256_of)

    first = identity(folder)
    assert str(tmp_path) not in json.dumps(first)
    assert identity(moved) == first
    (moved / "README.md").write_text("not read")
    (moved / "adapter_config.json").write_text("{}")
    assert identity(moved) == first
    (moved / "vocab.txt").write_text("other")
    assert identity(moved) != first
    assert identity(folder, do_lower_case=False) != first
    copy = ComparedModel(hub="a/b", revision=COMMIT, local=str(folder))
    assert identity_of(copy, sha256_of)["local"] == first["path"]
    assert copy.fetches is None


def test_an_index_leads_nowhere_else(models, tmp_path):
    folder = copied(models["bert"], tmp_path / "index")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-00001-of-00001.safetensors"}}))
    assert "model-00001-of-00001.safetensors" in ComparedModel(path=str(folder)).files_in(folder)
    index.write_text(json.dumps({"weight_map": {"a": "../secret"}}))
    with pytest.raises(UserError, match=r"'\.\./secret' is no file beside it"):
        ComparedModel(path=str(folder)).files_in(folder)
    index.write_text("[]")
    with pytest.raises(UserError, match="is no index of weights"):
        ComparedModel(path=str(folder)).files_in(folder)


def test_a_second_run_gives_the_same_bytes(models, ready, tmp_path):
    run(models["roberta"], tmp_path / "out", **OPTIONS["roberta"])
    files = sorted(path.name for path in (tmp_path / "out/checkpoint").iterdir())
    assert "model.safetensors" in files
    for name in files:
        first, second = (place / "checkpoint" / name for place in (ready["roberta"][0], tmp_path / "out"))
        assert first.read_bytes() == second.read_bytes(), name
    # and so does one that goes on in the folder of one that was killed
    before = {name: (tmp_path / "out/checkpoint" / name).read_bytes() for name in files}
    (tmp_path / "out/checkpoint/model.safetensors").write_bytes(b"half")
    run(models["roberta"], tmp_path / "out", **OPTIONS["roberta"])
    assert {name: (tmp_path / "out/checkpoint" / name).read_bytes() for name in files} == before
