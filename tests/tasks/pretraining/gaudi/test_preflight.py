"""What is missing is said in one line, with what to do."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.contract import UserError
from tasks.pretraining.engines import check_engine
from tasks.pretraining.gaudi import installed, preflight
from tasks.pretraining.settings import ModelSettings, PretrainSettings

BERT_BASE = {"architecture": "bert", "hidden_size": 768, "layers": 12, "heads": 12, "intermediate_size": 3072}
SMALL = {"architecture": "bert", "hidden_size": 32, "layers": 1, "heads": 2, "intermediate_size": 64}
FIT = {"optimum-habana": "1.21.2", "transformers": "4.55.4", "habana-torch-plugin": "1.24.0.5", "deepspeed": None}


def settings_of(python: Path, devices: int = 2, device: str = "auto", **gaudi: Any) -> PretrainSettings:
    asked = {"engine": "gaudi", "steps": 1, "device": device, "batch_size": 4 * devices}
    asked["gaudi"] = {"python": str(python), "devices": devices, **gaudi}
    return PretrainSettings.model_validate({"model": SMALL, "pretraining": asked})


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host with two HPUs, driver and interpreter: (the interpreter, changes to what it says)."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "accel").mkdir()
    for name in ("accel0", "accel1", "accel_controlD0"):
        (tmp_path / "accel" / name).touch()
    monkeypatch.setattr(preflight, "DEVICE_FILES", ((str(tmp_path / "accel"), r"accel\d+"),))
    smi = tmp_path / "bin/hl-smi"
    smi.write_text(
        '#!/bin/sh\necho +---+\necho "| HL-SMI Version: hl-1.24.0-fw |"\necho "| Driver Version: 1.24.1-abc |"\n'
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    python = tmp_path / "bin/python"

    def build(**changes: Any) -> Path:
        has = {"python": "3.11.9", "validated": "1.24.0", "code": installed.code_digest(), "bridge": True}
        libraries = FIT | changes.pop("libraries", {})
        python.write_text(f"#!/bin/sh\ncat <<'E'\n{json.dumps({**has, 'libraries': libraries, **changes})}\nE\n")
        python.chmod(0o755)
        return python

    return build


def test_a_fit_host_has_nothing_to_mend(host, tmp_path):
    checks = preflight.checks(settings_of(host()), tmp_path / "store")
    assert {check.name: check.state for check in checks if check.state != "ok"} == {}
    assert [check.name for check in checks] == [
        *(
            "HPUs",
            "driver",
            "interpreter",
            "optimum-habana",
            "transformers",
            "sahajflow",
            "SynapseAI",
            "memory",
            "disk",
        )
    ]
    assert check_engine(settings_of(host())) is None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"libraries": {"transformers": "5.2.0"}}, "transformers 5.2.0, not 4.55.*"),
        ({"libraries": {"optimum-habana": None}}, "optimum-habana is not installed"),
        ({"libraries": {"habana-torch-plugin": None}}, "bridge (habana-torch-plugin) is not installed"),
        (
            {"bridge": False},
            "bridge (habana-torch-plugin) is not installed. install SynapseAI 1.24.0 with its PyTorch",
        ),
        ({"code": "0" * 64}, "the second environment has another sahajflow"),
        ({"code": None}, "sahajflow is not installed in the second environment"),
    ],
)
def test_what_the_second_environment_lacks(host, changes, told):
    line = check_engine(settings_of(host(**changes))) or ""
    assert told in line
    assert line.startswith("pretraining.engine: gaudi cannot run here: ")
    assert "\n" not in line


def test_versions_that_were_not_validated_are_a_warning(host):
    python = host(libraries={"habana-torch-plugin": "1.22.1"}, validated="1.23.0")
    warned = {check.name: check for check in preflight.checks(settings_of(python)) if check.state == "warn"}
    assert set(warned) == {"driver", "SynapseAI"}
    assert warned["driver"].finding == "driver 1.24.1, and optimum-habana is validated with 1.23.0"
    assert "install the driver of SynapseAI 1.23.0" in warned["driver"].remedy
    assert check_engine(settings_of(python)) is None


def test_without_an_hpu_it_says_where_to_run_it(host, tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "DEVICE_FILES", ((str(tmp_path / "none"), r"accel\d+"),))
    line = check_engine(settings_of(host())) or ""
    assert "no HPU found" in line
    assert "sahajflow run RECIPE --only pretrain" in line
    assert "pool gaudi" in line
    assert check_engine(settings_of(host(), device="cpu")) is None  # for trying it out


def test_fewer_hpus_than_asked(host):
    assert "2 HPUs, 8 wanted. --set pretraining.gaudi.devices=2" in (check_engine(settings_of(host(), 8)) or "")


def test_no_driver_and_no_interpreter(tmp_path, host, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    line = check_engine(settings_of(tmp_path / "other/bin/python")) or ""
    assert "hl-smi is not there" in line
    assert f"no interpreter at {tmp_path / 'other/bin/python'}" in line
    host().write_text("#!/bin/sh\necho no module >&2\nexit 1\n")
    assert "does not answer (no module)" in (check_engine(settings_of(tmp_path / "bin/python")) or "")


def test_hosts_are_checked_before_anything_starts(host, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("a slots=2\nb slots=2\n")
    line = check_engine(settings_of(host(), 8, hostfile=str(hosts))) or ""
    assert "hosts has 4 slots, and pretraining.gaudi.devices is 8" in line
    line = check_engine(settings_of(host(), 4, hostfile=str(hosts))) or ""
    assert f"several hosts are started by DeepSpeed, and {tmp_path / 'bin/deepspeed'} is not there" in line
    (tmp_path / "bin/deepspeed").touch()
    assert check_engine(settings_of(host(libraries={"deepspeed": "0.16"}), 4, hostfile=str(hosts))) is None
    hosts.write_text("a slots=2\nb 2\n")
    assert "line 2: 'b 2' is not NAME slots=N" in (check_engine(settings_of(host(), 4, hostfile=str(hosts))) or "")
    hosts.write_text("a slots=4\n")
    with pytest.raises(UserError, match="several hosts need HPUs"):
        preflight.checks(settings_of(host(), 4, "cpu", hostfile=str(hosts)))


def test_memory_and_disk_are_what_the_model_takes(host, tmp_path, monkeypatch):
    checks = {check.name: check for check in preflight.checks(settings_of(host(), 2), tmp_path)}
    assert "about 2.0 for 2 processes" in checks["memory"].finding
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda place: type("usage", (), {"free": 1000}))
    failed = {check.name for check in preflight.checks(settings_of(host()), tmp_path) if check.state == "fail"}
    assert failed == {"disk"}


def test_weights_are_those_of_the_model(tokenizer):
    from tasks.pretraining.models import build_model, count_parameters

    for model in (
        BERT_BASE | {"layers": 2},
        BERT_BASE | {"architecture": "albert", "embedding_size": 64, "layers": 3},
    ):
        settings = ModelSettings.model_validate(model)
        built = count_parameters(build_model(settings, tokenizer, "mlm", 0))
        assert preflight.weights(settings, len(tokenizer)) == pytest.approx(built, rel=0.05)


def test_an_interpreter_says_what_it_has():
    has, check = preflight.ask(Path(sys.executable))
    assert has is not None
    assert has == installed.installed()
    assert check.state == "ok"
    assert has["libraries"]["sahajflow"]
