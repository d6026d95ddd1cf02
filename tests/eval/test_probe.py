from __future__ import annotations

import json
import pkgutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import eval.prepared
import eval.tuning
from eval.data import TaskData, load_task
from eval.probe import SEED, probe_call, score
from eval.seed_run import STAGE, seed_run_settings
from eval.settings import EvaluationSettings
from tasks.contract import UserError, no_progress
from tasks.pretraining.models import build_model
from tasks.pretraining.probe import ProbeCall, ProbeSettings
from tasks.pretraining.settings import ModelSettings

SHAPE = ModelSettings(architecture="bert", hidden_size=32, layers=1, heads=2, intermediate_size=64, max_positions=32)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SOURCE = {"kind": "sample", "train": 200, "validation": 30, "test": 10}
TUNING = {"epochs": 4, "learning_rate": 1e-2, "max_length": 32, "batch_size": 8, "precision": "fp32"}
EVALUATION = EvaluationSettings.model_validate(
    {
        "seeds": [SEED],
        "models": ["pretrained"],
        "tasks": {
            "ner": {"kind": "ner", "source": SOURCE, "fine_tuning": TUNING, "title": "names"},
            "topics": {"kind": "classification", "source": SOURCE, "fine_tuning": TUNING},
        },
    }
)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> Path:
    """An artifact like the pretrain stage's, of a model whose vocabulary are the sample's words."""
    sentences = load_task(EVALUATION.tasks["ner"]).splits["train"].inputs
    words = sorted({word for sentence in sentences for word in sentence})
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    folder = tmp_path_factory.mktemp("pretrain")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder / "checkpoint")
    loaded = AutoTokenizer.from_pretrained(folder / "checkpoint")
    build_model(SHAPE, loaded, "mlm", seed=7).save_pretrained(folder / "checkpoint")
    return folder


def carried_out(call: ProbeCall, checkpoint: Path) -> float:
    """As a training process does it that got the call from a file."""
    again = ProbeCall.model_validate_json(call.model_dump_json())
    return float(pkgutil.resolve_name(again.function)(checkpoint, **again.arguments))


@pytest.mark.parametrize(("task", "metric"), [("ner", "entity F1"), ("topics", "accuracy")])
def test_on_all_items_it_is_the_validation_score_of_the_seed_run(task, metric, pretrained, tmp_path):
    probe = ProbeSettings(task=task, every=1, epochs=4)
    call = probe_call(probe, EVALUATION)
    assert call is not None
    assert call.metric == metric
    found = carried_out(call, pretrained / "checkpoint")
    settings = seed_run_settings(EVALUATION, SHAPE)[f"pretrained/{task}/{SEED}"]
    whole = STAGE.run(settings, {"checkpoint": pretrained}, tmp_path, no_progress)
    assert found == whole["validation_score"] > 0.1
    fewer = probe_call(probe.model_copy(update={"epochs": 1}), EVALUATION)
    assert fewer is not None
    assert carried_out(fewer, pretrained / "checkpoint") < found


def test_it_sees_few_items_spread_over_the_training_split_and_no_test_split(pretrained, monkeypatch):
    seen: list[TaskData] = []
    jobs: list[eval.tuning.Job] = []
    encode_task, tune = eval.prepared.encode_task, eval.tuning.tune

    def watched(task, data, tokenizer):
        seen.append(data)
        return encode_task(task, data, tokenizer)

    monkeypatch.setattr("eval.prepared.encode_task", watched)
    monkeypatch.setattr("eval.tuning.tune", lambda job, *rest: jobs.append(job) or tune(job, *rest))
    call = probe_call(ProbeSettings(task="ner", every=1, train_items=8, epochs=1), EVALUATION)
    assert call is not None
    first = carried_out(call, pretrained / "checkpoint")
    assert carried_out(call, pretrained / "checkpoint") == first
    whole = load_task(EVALUATION.tasks["ner"])
    assert [(set(job.encoded), len(job.encoded["train"])) for job in jobs] == [({"train", "validation"}, 8)] * 2
    assert len(seen) == 2
    for data in seen:
        assert set(data.splits) == {"train", "validation"}
        assert data.labels == whole.labels
        assert data.splits["train"].inputs == [whole.splits["train"].inputs[at] for at in range(0, 200, 25)]
        assert data.splits["train"].labels == [whole.splits["train"].labels[at] for at in range(0, 200, 25)]
        assert data.splits["validation"] == whole.splits["validation"]


def test_the_call_holds_all_that_decides_the_score_and_nothing_else():
    def call(evaluation=EVALUATION, **changes):
        probe = ProbeSettings.model_validate({"task": "ner", "every": 5, **changes})
        return probe_call(probe, evaluation)

    def changed(**changes):
        tasks = {**EVALUATION.tasks, "ner": EVALUATION.tasks["ner"].model_copy(update=changes)}
        return EVALUATION.model_copy(update={"tasks": tasks})

    assert call() == call(every=7) == call(changed(title="other")) == call(changed(published="wikiann-bn"))
    tuning = EVALUATION.tasks["ner"].fine_tuning
    assert call(changed(fine_tuning=tuning.model_copy(update={"epochs": 50}))) == call()
    for other in (
        call(changed(fine_tuning=tuning.model_copy(update={"batch_size": 4}))),
        call(task="topics"),
        call(epochs=7),
        call(train_items=7),
    ):
        assert other != call()
    json.dumps(call().model_dump(mode="json"), allow_nan=False)
    assert probe_call(None, EVALUATION) is None


def test_wrong_data_is_the_usual_error(tmp_path, pretrained):
    (tmp_path / "x.conll").write_text("a\tB-PER\n\n")
    source = {"kind": "files"} | {split: str(tmp_path / "x.conll") for split in ("train", "validation", "test")}
    task = {"kind": "ner", "source": source}
    (tmp_path / "x.conll").unlink()
    with pytest.raises(UserError, match=r"x\.conll"):
        score(pretrained / "checkpoint", task, 10, 1)
