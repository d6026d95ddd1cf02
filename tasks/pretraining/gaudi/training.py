"""A training by optimum-habana's own trainer, in one process of those that train together.

Runs in the second environment (transformers 4.55). ``GaudiTrainer`` is taken as it is: what is ours goes in through
its arguments, a data set, a loss, a callback.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from optimum.habana.transformers import GaudiConfig, GaudiTrainer, GaudiTrainingArguments
from transformers import AutoTokenizer

from tasks.contract import SCRATCH, no_progress
from tasks.pretraining.batches import Collator, PackedSplit
from tasks.pretraining.devices import STATUS
from tasks.pretraining.gaudi.data import TrainingRows, figures, loss_over_whole_batch, rows_of, stack, summed
from tasks.pretraining.gaudi.telling import Telling
from tasks.pretraining.local import check_data, save_checkpoint
from tasks.pretraining.models import build_model, count_parameters
from tasks.pretraining.optimizers import learning_rate_at
from tasks.pretraining.precision import Hardware, choose_hardware
from tasks.pretraining.settings import MaskingSettings, PretrainingSettings, PretrainSettings
from tasks.pretraining.training_log import TrainingLog
from tasks.pretraining.utilisation import peak_memory
from tasks.pretraining.validation import PLATEAU_MARGIN, ROWS, perplexity, unigram_entropy, validation_batches
from tasks.status_file import status_writer

if TYPE_CHECKING:
    from tasks.pretraining.batches import Batch

logger = logging.getLogger(__name__)

SETTINGS, RESUME, RESULT = "settings.json", "resume.json", "result.json"
"""Files in the processes' folder: what is asked, the checkpoint to go on from or null, the first one's metrics."""

PATIENCE = 24 * 3600
"""Seconds that a process waits for the others: the first one counts the corpus's tokens meanwhile."""


def training_arguments(settings: PretrainingSettings, hardware: Hardware, building: Path) -> Any:
    """``GaudiTrainingArguments`` for these settings.

    Its own defaults ask for lazy mode without an HPU, which it then refuses; so what belongs to the device is said in
    full. Log, validation and checkpoints are left to the callback.

    Args:
        settings: of the training.
        hardware: where and how precisely.
        building: where checkpoints are built.
    """
    on_hpu, asked = hardware.device.type == "hpu", settings.gaudi
    compiled = {"torch_compile": True, "torch_compile_backend": "hpu_backend"} if asked.mode == "compile" else {}
    return GaudiTrainingArguments(
        output_dir=str(building),
        use_habana=on_hpu,
        use_cpu=not on_hpu,
        use_lazy_mode=on_hpu and asked.mode == "lazy",
        **(compiled if on_hpu else {}),
        bf16=hardware.precision == "bf16",
        half_precision_backend="hpu_amp" if on_hpu else "cpu_amp",
        max_steps=settings.steps,
        per_device_train_batch_size=settings.micro_batch_size // asked.devices,
        gradient_accumulation_steps=settings.accumulation,
        per_device_eval_batch_size=ROWS,
        learning_rate=settings.learning_rate,
        adam_beta1=settings.betas[0],
        adam_beta2=settings.betas[1],
        adam_epsilon=settings.epsilon,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.clip_norm or 0.0,  # 0 is the trainer's word for no limit
        seed=settings.seed,
        throughput_warmup_steps=asked.throughput_warmup_steps,
        ddp_find_unused_parameters=asked.ddp_find_unused_parameters,
        ddp_timeout=PATIENCE,
        # every process draws its rows itself; nothing is to be skipped, the data set starts where it is to go on
        accelerator_config={"dispatch_batches": False, "split_batches": False, "even_batches": True},
        ignore_data_skip=True,
        remove_unused_columns=False,
        label_names=["labels"],
        dataloader_pin_memory=False,
        eval_strategy="no",
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def gaudi_config(settings: PretrainingSettings, hardware: Hardware) -> Any:
    """``GaudiConfig`` for these settings; the op lists are in the environment already."""
    return GaudiConfig(
        use_fused_adam=settings.gaudi.use_fused_adam,
        use_fused_clip_norm=settings.gaudi.use_fused_clip_norm,
        use_torch_autocast=hardware.precision == "bf16",
        use_dynamic_shapes=False,
    )


def hardware_of(settings: PretrainingSettings) -> Hardware:
    """HPUs, in bf16 unless the settings say another; with device cpu what the engine ``local`` would take."""
    if settings.device == "cpu":
        return choose_hardware(settings)
    if settings.precision == "auto":
        return Hardware(torch.device("hpu"), "bf16", "HPUs compute bf16")
    return Hardware(torch.device("hpu"), settings.precision, "as the recipe says")


def train(place: Path, tokenizer_folder: Path, pack_folder: Path, folder: Path) -> dict[str, Any]:
    """Trains as one of the processes; result and errors as ``tasks.pretraining.stage.run``, empty but for the first.

    Args:
        place: the processes' folder, with ``settings.json`` and ``resume.json``.
        tokenizer_folder: the artifact.
        pack_folder: the artifact.
        folder: the stage's work folder.
    """
    settings = PretrainSettings.model_validate_json((place / SETTINGS).read_text(encoding="utf-8"))
    asked, building = settings.pretraining, folder / SCRATCH / "building"
    resume = json.loads((place / RESUME).read_text(encoding="utf-8"))
    hardware = hardware_of(asked)
    # first of all: they adapt transformers to HPUs, which has to be done before a model is made
    arguments = training_arguments(asked, hardware, building)
    first = arguments.process_index == 0

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    train_split, held_out = PackedSplit(pack_folder, "train"), PackedSplit(pack_folder, "validation")
    check_data(settings, train_split)
    # optimum-habana's own default on an HPU
    attention = "eager" if hardware.device.type == "hpu" else hardware.attention
    model = build_model(settings.model, tokenizer, asked.objective, asked.seed, attention)
    parameters = count_parameters(model)
    logger.info("%s with %s parameters on %s", type(model).__name__, f"{parameters:,}", hardware.device)

    # validated with the published masking whatever the training's is, so that losses of recipes compare
    validation = validation_batches(held_out, Collator(tokenizer, MaskingSettings(), False), asked.validation_blocks)
    collator = Collator(tokenizer, asked.masking, False)
    entropy = unigram_entropy(train_split, validation, collator.is_special) if first else 0.0
    telling = Telling(
        asked,
        folder,
        building,
        TrainingLog(folder, asked.batch_size * train_split.sequence_length, None, hardware, lambda line: None)
        if first
        else None,
        asked.batch_size * train_split.sequence_length,
        status_writer(place / STATUS) if first else no_progress,
    )
    if resume is not None:
        telling.restore(Path(resume))
    trainer = GaudiTrainer(
        model=model,
        gaudi_config=gaudi_config(asked, hardware),
        args=arguments,
        data_collator=stack,
        train_dataset=TrainingRows(asked, train_split, collator, telling.standing.step),
        eval_dataset=_rows(validation, held_out.has_padding),
        compute_loss_func=loss_over_whole_batch,
        compute_metrics=summed,
        preprocess_logits_for_metrics=figures,
        callbacks=[telling],
    )
    if hardware.device.type == "cpu":
        # it sets this before it calls the class above, which sets it back: bf16 would silently be fp32
        trainer.use_cpu_amp = hardware.precision == "bf16"
    _give_schedule(trainer, asked)
    if arguments.world_size > 1 and hardware.device.type == "cpu":
        # their device is cpu:0, cpu:1, ..., which torch does not know when the trainer reads a checkpoint
        torch.serialization.register_package(0, lambda storage: None, _stay_on_cpu)
        # optimum-habana's accelerator does so for HPUs only: processes on CPUs would each train a model of their own
        trainer.model_wrapped = torch.nn.parallel.DistributedDataParallel(
            model, find_unused_parameters=asked.gaudi.ddp_find_unused_parameters
        )
    trainer.train(resume_from_checkpoint=resume)
    if not first:
        return {}
    memory = peak_memory(hardware)
    model.to("cpu")
    model.tie_weights()  # moving a model from an HPU parts them
    save_checkpoint(model, tokenizer_folder, folder / "checkpoint")
    standing = telling.standing
    samples = standing.step * asked.batch_size
    return {
        "steps": standing.step,
        "samples": samples,
        "tokens": samples * train_split.sequence_length,
        "parameters": parameters,
        "seconds_training": round(standing.seconds, 3),
        "tokens_per_second": round(telling.tokens_per_second(), 1),
        "flop_utilisation": None,
        "train_loss": standing.train_loss,
        "validation_loss": standing.validation_loss,
        "perplexity": perplexity(standing.validation_loss),
        "masked_accuracy": standing.masked_accuracy,
        "validation_sop_accuracy": None,
        "unigram_entropy": entropy,
        "left_plateau": standing.validation_loss < entropy - PLATEAU_MARGIN,
        "probe": None,
        "roll_backs": 0,
        "peak_memory_bytes": memory,
        "resolved": {
            "precision": hardware.precision,
            "precision_reason": hardware.reason,
            "device": hardware.device.type,
            "attention": attention,
            "threads": torch.get_num_threads(),
            "devices": arguments.world_size,
            "mode": asked.gaudi.mode if hardware.device.type == "hpu" else "eager",
            **{name: importlib.metadata.version(name) for name in ("optimum-habana", "transformers", "torch")},
        },
    }


def _rows(batches: list[Batch], padded: bool) -> list[dict[str, torch.Tensor]]:
    return [row for batch in batches for row in rows_of(batch, padded)]


def _stay_on_cpu(storage: Any, location: str) -> Any:
    return storage if location.startswith("cpu:") else None


def _give_schedule(trainer: Any, settings: PretrainingSettings) -> None:
    """The learning rate of the other engines; the trainer makes the optimiser, fused or not, as it would anyway."""
    optimizer = trainer.create_optimizer()
    highest = settings.learning_rate
    trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_at(step, settings) / highest
    )
