"""What is started is what optimum-habana's own runner builds, and the bridge finds its variables."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.pretraining.gaudi import installed, launch
from tasks.pretraining.settings import PretrainSettings

MODEL = {"architecture": "bert", "hidden_size": 32, "layers": 1, "heads": 2, "intermediate_size": 64}


@pytest.fixture(autouse=True)
def _environment(gaudi_environment, monkeypatch):
    """Importing optimum-habana asks ``pip`` and ``hl-smi`` for versions."""
    monkeypatch.setenv("PYTHONPATH", gaudi_environment["PYTHONPATH"])
    monkeypatch.setenv("PATH", gaudi_environment["PATH"])


def settings_of(**gaudi: Any) -> PretrainSettings:
    pretraining = {"engine": "gaudi", "steps": 1, "batch_size": 256, "gaudi": gaudi}
    return PretrainSettings.model_validate({"model": MODEL, "pretraining": pretraining})


def started(settings: PretrainSettings, folders: tuple[Path, ...], monkeypatch) -> list[str]:
    """What the runner gives the shell when it runs."""
    from optimum.habana.distributed import distributed_runner

    commands = []

    class Popen:
        returncode = 0

        def __init__(self, command, **_):
            commands.append(command)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def wait(self):
            return 0

    monkeypatch.setattr(distributed_runner.subprocess, "Popen", Popen)
    assert not launch.runner(settings, folders).run()
    return commands


def test_eight_hpus_are_started_by_optimum_habanas_runner(tmp_path, monkeypatch):
    from optimum.habana.distributed import DistributedRunner

    folders = tuple(tmp_path / name for name in ("the place", "tokenizer", "pack", "folder"))
    rank = " ".join(shlex.quote(str(path)) for path in (launch.RANK, *folders))
    reference = DistributedRunner(command_list=[rank], world_size=8)
    (command,) = started(settings_of(), folders, monkeypatch)
    assert command == reference._interpreter + reference._commands[0]
    assert shlex.split(command)[:5] == [
        sys.executable,
        "-um",
        "torch.distributed.run",
        "--nproc_per_node=8",
        rank_file(),
    ]
    assert shlex.split(command)[5:] == [str(path) for path in folders]


def rank_file() -> str:
    return str(Path(launch.__file__).with_name("rank.py"))


def test_several_hosts_are_started_by_optimum_habanas_runner(tmp_path, monkeypatch):
    from optimum.habana.distributed import DistributedRunner

    hostfile = tmp_path / "hosts"
    hostfile.write_text("10.0.0.7 slots=8\n10.0.0.8 slots=8\n")
    folders = (tmp_path / "place", tmp_path / "tokenizer", tmp_path / "pack", tmp_path / "folder")
    rank = " ".join(str(path) for path in (launch.RANK, *folders))
    reference = DistributedRunner(command_list=[rank], hostfile=hostfile, use_deepspeed=True)
    (command,) = started(settings_of(devices=16, hostfile=str(hostfile)), folders, monkeypatch)
    assert command == reference._interpreter + reference._commands[0]
    assert command.startswith(f"deepspeed --hostfile {hostfile} --master_addr 10.0.0.7 ")


def test_the_validated_version_is_the_one_that_optimum_habana_compares_with():
    from optimum.habana.utils.misc import CURRENTLY_VALIDATED_SYNAPSE_VERSION

    assert installed.validated_synapse() == str(CURRENTLY_VALIDATED_SYNAPSE_VERSION)


@pytest.mark.parametrize(("mode", "lazy"), [("lazy", "1"), ("compile", "0")])
def test_the_bridge_finds_its_variables_when_it_is_loaded(tmp_path, gaudi_environment, mode, lazy):
    from optimum.habana.transformers.gaudi_configuration import DEFAULT_BF16_OPS

    variables = launch.environment(settings_of(mode=mode), tmp_path)
    (tmp_path / "environment.json").write_text(json.dumps(variables))
    code = (
        "import os, sys; from pathlib import Path; from tasks.pretraining.gaudi import rank;"
        "rank.prepare(Path(sys.argv[1])); from habana_frameworks.torch import hpu;"
        "print(hpu.OPS_AT_IMPORT, os.environ['PT_HPU_LAZY_MODE'])"
    )
    clean = {name: value for name, value in gaudi_environment.items() if not name.startswith("PT_HPU")}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(tmp_path)], env=clean, capture_output=True, text=True, check=True
    )
    path, said = done.stdout.split()
    assert said == lazy
    assert Path(path).read_text().splitlines() == DEFAULT_BF16_OPS


def test_arguments_that_an_hpu_wants_are_taken_by_optimum_habana(tmp_path, gaudi_environment):
    """Its own defaults are refused by itself; nothing here touches a device."""
    code = '''
import json, sys, torch
from pathlib import Path
from optimum.habana.transformers import GaudiTrainingArguments
GaudiTrainingArguments.device = property(lambda self: torch.device("hpu"))
GaudiTrainingArguments.world_size = property(lambda self: 8)
from tasks.pretraining.gaudi.training import gaudi_config, hardware_of, training_arguments
from tasks.pretraining.settings import PretrainingSettings
from flows.recipe import load_recipe
recipe = load_recipe("bert-gaudi").pretraining
told = {}
for mode in ("lazy", "compile"):
    asked = recipe.model_copy(update={"gaudi": recipe.gaudi.model_copy(update={"mode": mode})})
    arguments = training_arguments(asked, hardware_of(asked), Path(sys.argv[1]))
    kept = """use_habana use_cpu use_lazy_mode torch_compile torch_compile_backend bf16 half_precision_backend
        max_steps per_device_train_batch_size learning_rate seed adam_epsilon throughput_warmup_steps
        ddp_find_unused_parameters""".split()
    told[mode] = {name: getattr(arguments, name) for name in kept}
told["config"] = vars(gaudi_config(recipe, hardware_of(recipe)))
print(json.dumps(told))
'''
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(tmp_path)],
        env={**gaudi_environment, "PT_HPU_LAZY_MODE": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    published = {
        "use_habana": True,
        "use_cpu": False,
        "bf16": True,
        "half_precision_backend": "hpu_amp",
        "max_steps": 100_000,
        "per_device_train_batch_size": 32,
        "learning_rate": 5e-5,
        "seed": 34,
        "adam_epsilon": 1e-6,
        "throughput_warmup_steps": 2,
        "ddp_find_unused_parameters": True,
    }
    lazy = {"use_lazy_mode": True, "torch_compile": False, "torch_compile_backend": None}
    compiled = {"use_lazy_mode": False, "torch_compile": True, "torch_compile_backend": "hpu_backend"}
    assert told["lazy"] == published | lazy
    assert told["compile"] == published | compiled
    for name in ("use_fused_adam", "use_fused_clip_norm", "use_torch_autocast"):
        assert told["config"][name] is True
    assert told["config"]["use_dynamic_shapes"] is False
