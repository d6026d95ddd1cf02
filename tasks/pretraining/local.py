"""Engine ``local``: this machine, one process, its GPU or its CPU's cores."""

from __future__ import annotations

import logging
import resource
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from tasks.contract import Progress, UserError
from tasks.pretraining.batches import Collator, PackedSplit
from tasks.pretraining.models import build_model, count_parameters
from tasks.pretraining.precision import Hardware, choose_hardware
from tasks.pretraining.settings import MaskingSettings, PretrainSettings
from tasks.pretraining.training import Training
from tasks.pretraining.validation import PLATEAU_MARGIN, unigram_entropy, validation_batches

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)


def pretrain(
    settings: PretrainSettings, tokenizer_folder: Path, pack_folder: Path, folder: Path, progress: Progress
) -> dict[str, Any]:
    """Trains on this machine; arguments, result and errors as ``tasks.pretraining.stage.run``."""
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
    # validated with the published masking whatever the training's is, so that losses of recipes compare
    validation_collator = Collator(tokenizer, MaskingSettings(), sentence_order)
    validation = validation_batches(held_out, validation_collator, asked.validation_blocks)
    entropy = unigram_entropy(train, validation, collator.is_special)
    logger.info(
        "unigram entropy %.3f nats: a model above it minus %.1f has learnt no context", entropy, PLATEAU_MARGIN
    )

    training = Training(model, asked, hardware, train, collator, validation, folder)
    standing = training.run(progress)
    save_checkpoint(model, tokenizer_folder, folder / "checkpoint")

    samples = standing.step * asked.batch_size
    tokens = samples * train.sequence_length
    return {
        "steps": standing.step,
        "samples": samples,
        "tokens": tokens,
        "parameters": parameters,
        "seconds_training": round(standing.seconds, 3),
        "tokens_per_second": round(tokens / standing.seconds, 1),
        "train_loss": standing.train_loss,
        "validation_loss": standing.validation_loss,
        "validation_sop_accuracy": standing.validation_sop_accuracy,
        "unigram_entropy": entropy,
        "left_plateau": standing.validation_loss < entropy - PLATEAU_MARGIN,
        "peak_memory_bytes": _peak_memory(hardware),
        "resolved": {
            "precision": hardware.precision,
            "precision_reason": hardware.reason,
            "device": hardware.device.type,
            "attention": hardware.attention,
            "threads": threads,
            **training.compilation.resolved(),
        },
    }


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


def _peak_memory(hardware: Hardware) -> int:
    """Most memory in bytes that this process, or torch on the GPU, has held."""
    if hardware.device.type == "cuda":
        return torch.cuda.max_memory_allocated(hardware.device)
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage counts bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
