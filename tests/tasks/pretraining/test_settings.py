from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from tasks.durable import sha256_of
from tasks.identity import identity_of
from tasks.pretraining import engines
from tasks.pretraining.settings import ModelSettings, PretrainingSettings, PretrainSettings

ALBERT_LARGE = {
    "architecture": "albert",
    "hidden_size": 1024,
    "layers": 24,
    "heads": 16,
    "intermediate_size": 4096,
    "embedding_size": 128,
}
BERT_BASE = {"architecture": "bert", "hidden_size": 768, "layers": 12, "heads": 12, "intermediate_size": 3072}
SAHAJBERT = {
    "engine": "collaborative",
    "objective": "mlm+sop",
    "steps": 19_519,
    "schedule_steps": 1_000_000,
    "batch_size": 4096,
    "accumulation": 1024,
    "optimizer": "lamb",
    "learning_rate": 0.00176,
    "betas": [0.9, 0.999],
    "epsilon": 1e-6,
    "weight_decay": 0.01,
    "lamb_clamp": 10_000,
    "warmup_steps": 5000,
    "clip_norm": 1.0,
    "precision": "fp16",
    "seed": 42,
}
GAUDI = {
    "engine": "gaudi",
    "steps": 100_000,
    "batch_size": 256,
    "learning_rate": 5e-5,
    "seed": 34,
    "gaudi": {"devices": 8, "throughput_warmup_steps": 2},
}


@pytest.mark.parametrize(("model", "pretraining"), [(ALBERT_LARGE, SAHAJBERT), (BERT_BASE, GAUDI)])
def test_published_settings_and_round_trip(model, pretraining):
    settings = PretrainSettings.model_validate({"model": model, "pretraining": pretraining})
    assert PretrainSettings.model_validate_json(settings.model_dump_json()) == settings
    assert settings.pretraining.micro_batch_size == (4 if model is ALBERT_LARGE else 256)


def test_collaborative_engine_asks_for_hivemind_before_anything_ran(monkeypatch):
    settings = PretrainSettings.model_validate({"model": ALBERT_LARGE, "pretraining": SAHAJBERT})
    monkeypatch.setattr(engines, "GPU_DEVICE_FILES", ())
    assert engines.check_engine(settings) is None  # others may bring the GPU that fp16 needs
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None)
    assert engines.check_engine(settings) == (
        "pretraining.engine: collaborative needs hivemind, which has wheels for Linux x86-64 only and is not "
        "installed here; --set pretraining.engine=local trains without it"
    )


def test_local_engine_asks_for_a_gpu_before_anything_ran(monkeypatch):
    changed = SAHAJBERT | {"engine": "local"}
    settings = PretrainSettings.model_validate({"model": ALBERT_LARGE, "pretraining": changed})
    monkeypatch.setattr(engines, "GPU_DEVICE_FILES", ())
    assert "precision" in (engines.check_engine(settings) or "")
    changed["precision"] = "auto"
    settings = PretrainSettings.model_validate({"model": ALBERT_LARGE, "pretraining": changed})
    assert engines.check_engine(settings) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 7}, "not a multiple of heads 7"),
        ({"embedding_size": 128}, "embedding_size is for architecture albert"),
        ({"layer_groups": 2}, "layer_groups is for architecture albert"),
        ({"architecture": "albert", "layer_groups": 13}, "more than layers 12"),
    ],
)
def test_inconsistent_models(changes, message):
    with pytest.raises(ValidationError, match=message):
        ModelSettings.model_validate(BERT_BASE | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule_steps": 99}, "schedule_steps 99 is less than steps 100"),
        ({"warmup_steps": 100}, "leaves nothing of 100 steps"),
        ({"betas": [0.9, 1.0]}, "not both in"),
        ({"accumulation": 3}, "not a multiple of accumulation 3"),
        ({"lamb_clamp": 10}, "lamb_clamp is for optimizer lamb"),
        ({"precision": "fp16", "device": "cpu"}, "fp16 needs a GPU"),
        ({"spike_nats": None, "spike_steps": 5}, "spike_steps 5 has no effect"),
        ({"report_to": ["wandb", "wandb"]}, "names an integration twice"),
        ({"engine": "collaborative", "on_divergence": "roll-back"}, "on_divergence is for engine local"),
        ({"engine": "collaborative", "report_to": ["wandb"]}, "report_to is for engine local, not collaborative"),
        ({"engine": "gaudi", "batch_size": 8, "peak_tflops": 100}, "peak_tflops is for engine local, not gaudi"),
        ({"engine": "gaudi", "batch_size": 20}, "not a multiple of gaudi.devices 8"),
        ({"engine": "gaudi", "batch_size": 8, "optimizer": "lamb"}, "optimizer lamb is not for engine gaudi"),
        ({"engine": "gaudi", "batch_size": 8, "objective": "mlm+sop"}, "objective mlm.sop is not for engine gaudi"),
        ({"engine": "gaudi", "batch_size": 8, "precision": "fp16"}, "precision fp16 is not for engine gaudi"),
        ({"engine": "gaudi", "batch_size": 8, "device": "cuda"}, "device cuda is not for engine gaudi"),
        ({"gaudi": {"mode": "eager"}}, "'lazy' or 'compile'"),
        ({"devices": 3, "batch_size": 32}, "32 is not a multiple of devices 3"),
        ({"devices": 32, "batch_size": 32, "accumulation": 2}, "= 16 is not a multiple of devices 32"),
        ({"devices": 2, "engine": "collaborative"}, "devices is for engine local, not collaborative"),
        ({"devices": 0}, "greater than 0"),
        ({"masking": {"mask": 0.8, "random": 0.3}}, "together more than 1"),
        (
            {"collaborative": {"averaging_timeout_seconds": 5}},
            "5 leaves no time for averaging after matchmaking_seconds",
        ),
        ({"collaborative": {"compression": "8bit"}}, "'none', 'float16' or 'by-size'"),
        ({"collaborative": {"target_group_size": 1}}, "greater than 1"),
        ({"collaborative": {"peers": -1}}, "greater than or equal to 0"),
        ({"collaborative": {"deadline_minutes": 0}}, "greater than 0"),
        ({"collaborative": {"matchmaking_seconds": float("nan")}}, "finite number"),
        ({"collaborative": {"listen": []}}, "at least 1 item"),
        ({"collaborative": {"peer": 2}}, "Extra inputs"),
        ({"engine": "collaborative", "compile": True}, "compile is for engine local, not collaborative"),
        (
            {"engine": "collaborative", "probe": {"task": "ner", "every": 5}},
            "probe is for engine local, not collaborative",
        ),
        ({"probe": {"task": "ner"}}, "Field required"),
        ({"warmup_step": 1}, "Extra inputs"),
    ],
)
def test_inconsistent_training(changes, message):
    with pytest.raises(ValidationError, match=message):
        PretrainingSettings.model_validate({"steps": 100} | changes)


def test_how_peers_meet_is_no_part_of_the_identity():
    def identity(**collaborative):
        asked = {"engine": "collaborative", "steps": 1, "collaborative": collaborative}
        settings = PretrainSettings.model_validate({"model": BERT_BASE, "pretraining": asked})
        return identity_of(settings, sha256_of)

    meeting = {"peers": 5, "matchmaking_seconds": 1.0, "averaging_timeout_seconds": 9.0, "bandwidth_mbps": 1.0}
    meeting |= {
        "statistics_expiration_seconds": 1.0,
        "listen": ["/ip4/0.0.0.0/tcp/1"],
        "announce": ["/dns4/a.org/tcp/1"],
    }
    assert identity(**meeting) == identity()
    for changed in (
        {"compression": "none"},
        {"average_state_every": 2},
        {"deadline_minutes": 1},
        {"target_group_size": 4},
    ):
        assert identity(**changed) != identity()


def test_who_is_told_and_the_number_of_devices_are_no_part_of_the_identity_and_going_back_is():
    def identity(**pretraining):
        settings = PretrainSettings.model_validate({"model": BERT_BASE, "pretraining": {"steps": 1, **pretraining}})
        return identity_of(settings, sha256_of)

    assert identity(report_to=["wandb"], peak_tflops=1.5) == identity()
    assert identity(devices=4) == identity(devices="auto") == identity()
    assert identity(probe={"task": "ner", "every": 5}) == identity()
    for changed in (
        {"on_divergence": "roll-back"},
        {"spike_nats": 3.0},
        {"spike_steps": 20},
        {"accumulation": 4},
    ):
        assert identity(**changed) != identity()


def test_settings_of_the_other_engines_are_no_part_of_the_identity():
    def identity(engine, **pretraining):
        asked = {"engine": engine, "steps": 1, "batch_size": 8, **pretraining}
        return identity_of(PretrainSettings.model_validate({"model": BERT_BASE, "pretraining": asked}), sha256_of)

    changes = {"collaborative": {"compression": "none"}, "gaudi": {"mode": "compile"}}
    for engine in ("local", "collaborative", "gaudi"):
        assert set(identity(engine)["pretraining"]) & set(changes) == {engine} - {"local"}
        for name, change in changes.items():
            assert (identity(engine, **{name: change}) != identity(engine)) == (name == engine)
    where = {"python": "/opt/python", "devices": 4, "hostfile": "/etc/hosts", "throughput_warmup_steps": 9}
    assert identity("gaudi", gaudi=where) == identity("gaudi")


def test_the_second_interpreter_lies_beside_the_recipe():
    asked = {"steps": 1, "gaudi": {"python": "other/bin/python", "hostfile": "hosts"}}
    settings = PretrainingSettings.model_validate(asked, context={"folder": "/recipes"})
    assert (settings.gaudi.python, settings.gaudi.hostfile) == ("/recipes/other/bin/python", "/recipes/hosts")
    assert PretrainingSettings.model_validate({"steps": 1}, context={"folder": "/recipes"}).gaudi.python[0] != "/"


def test_sentence_order_is_alberts():
    with pytest.raises(ValidationError, match=r"needs model.architecture albert, not bert"):
        PretrainSettings.model_validate({"model": BERT_BASE, "pretraining": {"steps": 1, "objective": "mlm+sop"}})


def test_every_field_is_described():
    from tasks.pretraining import settings

    models = (settings.CollaborativeSettings, settings.GaudiSettings, settings.ProbeSettings)
    for model in (ModelSettings, PretrainingSettings, *models):
        assert [name for name, field in model.model_fields.items() if not field.description] == []


def test_planning_imports_nothing_heavy():
    code = (
        "import sys, tasks.pretraining.stage;"
        "print([name for name in ('torch', 'transformers', 'numpy', 'pyarrow') if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
