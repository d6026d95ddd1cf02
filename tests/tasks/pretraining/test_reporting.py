from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
from transformers import TrainerCallback
from transformers.integrations import integration_utils

from tasks.contract import UserError, no_progress
from tasks.pretraining.engines import check_engine
from tasks.pretraining.probe import ProbeCall
from tasks.pretraining.stage import run


class Recorder(TrainerCallback):
    """An integration that keeps what it is told."""

    calls: ClassVar[list[tuple[str, Any]]] = []
    fails_at: str | None = None

    def told(self, what: str, fact: Any) -> None:
        self.calls.append((what, fact))
        if what == self.fails_at:
            raise ConnectionError("the server is gone\nsince yesterday")

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.told("begin", (args, state.max_steps, type(model).__name__))

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.told("log", (state.global_step, dict(logs)))
        logs.clear()

    def on_train_end(self, args, state, control, **kwargs):
        self.told("end", state.global_step)


@pytest.fixture
def recorder(monkeypatch):
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "recorder", Recorder)
    monkeypatch.setattr(Recorder, "calls", [])
    monkeypatch.setattr(Recorder, "fails_at", None)
    return Recorder


@pytest.fixture
def inputs(tokenizer_folder, pack_folder):
    return {"tokenizer": tokenizer_folder, "pack": pack_folder}


def test_an_integration_gets_settings_steps_and_validations(recorder, settings, inputs, tmp_path):
    probe = {"task": "ner", "every": 4}
    asked = settings(report_to=["recorder"], steps=4, log_every=2, validate_every=4, learning_rate=2e-3, probe=probe)
    call = ProbeCall(function="os.path:getsize", arguments={}, metric="bytes of the folder")
    asked = asked.model_copy(update={"probe_call": call})
    run(asked, inputs, tmp_path / "0123456789abcdef0123", no_progress)
    assert [what for what, _ in recorder.calls] == ["begin", "log", "log", "end"]
    arguments, steps, model = recorder.calls[0][1]
    assert (steps, model) == (4, "BertForMaskedLM")
    assert arguments.run_name == "pretrain-0123456789abcdef"
    assert arguments.output_dir == str(tmp_path / "0123456789abcdef0123/logs")
    shown = json.loads(arguments.to_json_string())
    assert shown["pretraining"]["learning_rate"] == 2e-3
    assert "probe_call" not in shown
    lines = [json.loads(line) for line in (tmp_path / "0123456789abcdef0123/logs/training.jsonl").open()]
    assert [step for step, _ in (fact for what, fact in recorder.calls if what == "log")] == [2, 4]
    for line, (_, logs) in zip(lines, (fact for what, fact in recorder.calls if what == "log"), strict=True):
        assert logs["loss"] == line["loss"]
        assert logs["tokens_per_second"] == line["tokens_per_second"]
        assert None not in logs.values()
    assert "eval_loss" not in recorder.calls[1][1][1]
    last = recorder.calls[2][1][1]
    assert last["eval_loss"] == lines[1]["validation_loss"]
    assert last["eval_masked_accuracy"] == lines[1]["masked_accuracy"]
    assert last["eval_perplexity"] == lines[1]["perplexity"]
    assert last["eval_probe_score"] == lines[1]["probe_score"] > 0


def test_one_that_fails_before_the_training_is_the_users_error(recorder, settings, inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "fails_at", "begin")
    with pytest.raises(UserError, match=r"^pretraining.report_to: recorder: the server is gone; mend that, or leave "):
        run(settings(report_to=["recorder"]), inputs, tmp_path, no_progress)
    assert not (tmp_path / "logs/training.jsonl").exists()


def test_one_that_fails_later_is_left_out(recorder, settings, inputs, tmp_path, monkeypatch, caplog):
    class Second(Recorder):
        calls: ClassVar[list[tuple[str, Any]]] = []

    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "second", Second)
    monkeypatch.setattr(recorder, "fails_at", "log")
    monkeypatch.setattr(Second, "fails_at", None)
    metrics = run(settings(report_to=["recorder", "second"], log_every=4), inputs, tmp_path, no_progress)
    assert metrics["steps"] == 12
    assert [what for what, _ in recorder.calls] == ["begin", "log"]
    assert [what for what, _ in Second.calls] == ["begin", "log", "log", "log", "end"]
    assert Second.calls[1][1][1]["loss"] > 0
    warnings = [text for name, _, text in caplog.record_tuples if name == "tasks.pretraining.reporting"]
    assert warnings == ["recorder gets no more of the log: the server is gone"]


def test_integrations_are_told_of_an_end_by_an_error(recorder, settings, inputs, tmp_path):
    def interrupt(done, total, **_):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(settings(report_to=["recorder"], log_every=1), inputs, tmp_path, interrupt)
    assert recorder.calls[-1] == ("end", 2)


def test_what_cannot_report_is_said_before_anything_ran(settings, inputs, tmp_path, monkeypatch):
    problem = check_engine(settings(report_to=["tensorbord"])) or ""
    assert problem.startswith("pretraining.report_to: tensorbord: ")
    assert "tensorboard" in problem
    assert "\n" not in problem
    monkeypatch.setattr(integration_utils, "is_tensorboard_available", lambda: False)
    problem = check_engine(settings(report_to=["tensorboard"])) or ""
    assert "requires tensorboard to be installed" in problem
    with pytest.raises(UserError, match="requires tensorboard to be installed"):
        run(settings(report_to=["tensorboard"]), inputs, tmp_path, no_progress)


def test_tensorboard_gets_its_files(settings, inputs, tmp_path):
    run(settings(report_to=["tensorboard"], log_every=4), inputs, tmp_path, no_progress)
    assert len(list((tmp_path / "logs/runs").rglob("events.out.tfevents.*"))) == 1
