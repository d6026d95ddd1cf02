"""Engine ``local``: this machine, its GPUs with a process each, or its CPU's cores."""

from __future__ import annotations

import contextlib
import logging
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from tasks.contract import LOGS, SCRATCH, Progress, UserError
from tasks.freed_memory import kept_memory
from tasks.pretraining.batches import Collator, PackedSplit
from tasks.pretraining.devices import count_devices, train_together
from tasks.pretraining.group import ALONE, Group
from tasks.pretraining.models import build_model, count_parameters
from tasks.pretraining.precision import Hardware, choose_hardware
from tasks.pretraining.probe import Probe, told
from tasks.pretraining.reporting import Reporter
from tasks.pretraining.settings import MaskingSettings, PretrainSettings
from tasks.pretraining.training import Training
from tasks.pretraining.utilisation import flops_per_token, peak_flops, peak_memory
from tasks.pretraining.validation import PLATEAU_MARGIN, perplexity, unigram_entropy, validation_batches

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)


def pretrain(
    settings: PretrainSettings, tokenizer_folder: Path, pack_folder: Path, folder: Path, progress: Progress
) -> dict[str, Any]:
    """Trains on this machine; arguments, result and errors as ``tasks.pretraining.stage.run``."""
    count = count_devices(settings.pretraining)
    if count > 1:
        return train_together(count, settings, tokenizer_folder, pack_folder, folder, progress)
    return train_model(settings, tokenizer_folder, pack_folder, folder, progress, ALONE)


def train_model(
    settings: PretrainSettings,
    tokenizer_folder: Path,
    pack_folder: Path,
    folder: Path,
    progress: Progress,
    group: Group,
) -> dict[str, Any]:
    """Trains in this process, as one of ``group``; other arguments, result, errors as ``tasks.pretraining.stage.run``.

    The first process leaves the result; that of the others is empty.
    """
    asked = settings.pretraining
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    train, held_out = PackedSplit(pack_folder, "train"), PackedSplit(pack_folder, "validation")
    check_data(settings, train)
    hardware = choose_hardware(asked)
    threads = torch.get_num_threads()
    logger.info("device %s, precision %s: %s", hardware.device.type, hardware.precision, hardware.reason)

    model = build_model(settings.model, tokenizer, asked.objective, asked.seed, hardware.attention)
    parameters = count_parameters(model)
    logger.info("%s with %s parameters, %d threads", type(model).__name__, f"{parameters:,}", threads)
    model.to(hardware.device)

    sentence_order = asked.objective == "mlm+sop"
    collator = Collator(tokenizer, asked.masking, sentence_order)
    if group.rank:
        with _memory(hardware):
            Training(model, asked, hardware, train, collator, [], folder, group=group).run(progress)
        return {}
    # validated with the published masking whatever the training's is, so that losses of recipes compare
    validation_collator = Collator(tokenizer, MaskingSettings(), sentence_order)
    validation = validation_batches(held_out, validation_collator, asked.validation_blocks)
    entropy = unigram_entropy(train, validation, collator.is_special)
    logger.info(
        "unigram entropy %.3f nats: a model above it minus %.1f has learnt no context", entropy, PLATEAU_MARGIN
    )

    peak = peak_flops(hardware, asked.peak_tflops)
    per_token = flops_per_token(settings.model, len(tokenizer), train.sequence_length, asked.masking.rate)
    full_speed = None if peak is None else group.size * peak / per_token
    probe = None
    if asked.probe is not None:
        assert settings.probe_call is not None, "who builds these settings says what carries the probe out"
        save = partial(save_checkpoint, model, tokenizer_folder)
        probe = Probe(asked.probe, settings.probe_call, save, folder / SCRATCH / "probe")
    with Reporter(settings, model, folder, folder / LOGS) as report, _memory(hardware):
        training = Training(
            model, asked, hardware, train, collator, validation, folder, full_speed, report, group, probe
        )
        standing = training.run(progress)
    save_checkpoint(model, tokenizer_folder, folder / "checkpoint")

    samples = standing.step * asked.batch_size
    tokens = samples * train.sequence_length
    speed = tokens / standing.seconds
    return {
        "steps": standing.step,
        "samples": samples,
        "tokens": tokens,
        "parameters": parameters,
        "seconds_training": round(standing.seconds, 3),
        "tokens_per_second": round(speed, 1),
        "flop_utilisation": None if full_speed is None else round(speed / full_speed, 4),
        "train_loss": standing.train_loss,
        "validation_loss": standing.validation_loss,
        "perplexity": perplexity(standing.validation_loss),
        "masked_accuracy": standing.masked_accuracy,
        "validation_sop_accuracy": standing.validation_sop_accuracy,
        "unigram_entropy": entropy,
        "left_plateau": standing.validation_loss < entropy - PLATEAU_MARGIN,
        "probe": told(standing),
        "roll_backs": standing.roll_backs,
        "peak_memory_bytes": peak_memory(hardware),
        "resolved": {
            "precision": hardware.precision,
            "precision_reason": hardware.reason,
            "device": hardware.device.type,
            **hardware.accelerator(),
            "attention": hardware.attention,
            "threads": threads,
            "devices": group.size,
            **training.compilation.resolved(),
        },
    }


def _memory(hardware: Hardware) -> contextlib.AbstractContextManager[None]:
    return kept_memory() if hardware.device.type == "cpu" else contextlib.nullcontext()


def save_checkpoint(model: PreTrainedModel, tokenizer_folder: Path, target: Path) -> None:
    """Writes ``config.json`` and ``model.safetensors``, and the tokenizer's files unchanged beside them."""
    shutil.rmtree(target, ignore_errors=True)
    disable_progress_bar()  # transformers would draw its own over the run's
    model.save_pretrained(target)
    for path in sorted(tokenizer_folder.iterdir()):
        if path.is_file() and path.name != "record.json":
            shutil.copyfile(path, target / path.name)


def check_data(settings: PretrainSettings, train: PackedSplit) -> None:
    """Raises UserError if the packed data cannot be trained on with these settings."""
    if train.sequence_length > settings.model.max_positions:
        raise UserError(
            f"model.max_positions: {settings.model.max_positions} is less than packing.sequence_length "
            f"{train.sequence_length}; make it as long"
        )
    if settings.pretraining.objective == "mlm+sop" and not train.has_pairs:
        raise UserError("pretraining.objective: mlm+sop needs pairs of sentences; set packing.mode to sentence-pairs")
