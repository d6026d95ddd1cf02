"""Several seed runs at once: processes of this machine, or the workers of a Dask cluster.

On a CPU the number of threads decides in which order numbers are added up, and so the last digits of every score.
Threads are therefore chosen first, by what the machine and the recipe are, and the number of seed runs at once has no
say in it: a seed run's files are equal bytes whether it is computed alone or beside others. Two processes with a
thread each also get more of two cores than one process with two, since no thread waits for the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.seed_run import Do, tune_here
from eval.settings import EvaluationSettings, TaskSettings
from tasks.contract import Progress
from tasks.executor import DaskExecutor, open_executor, result_of, worker_count
from tasks.pretraining.settings import ALBERT_EMBEDDING_SIZE, ModelSettings
from tasks.separate_processes import separate_processes
from tasks.status_file import LOOK_SECONDS, tell_status
from tasks.tokenizer_memory import total_memory

if TYPE_CHECKING:
    from eval.tuning import Job, Tuned

PROCESS_BYTES = 700_000_000
"""A process with torch and transformers, before it has a model."""

BYTES_A_WEIGHT = 24
"""A weight, its gradient, AdamW's two averages, the best epoch's copy, and the one in bf16 with its gradient."""

BYTES_A_STATE = 4
"""A number that is kept for the backward pass; in bf16 half of it, with as much again for copies in fp32."""

VOCABULARY = 32_000
"""Entries that are reckoned with: the tokenizer is not known yet. Only the embeddings depend on them."""

MEMORY_SHARE = 0.7
"""Share of the machine's memory that the seed runs may take together."""

PACKAGES = ("torch", "transformers", "numpy")
"""What a cluster's workers must have in the same versions: they compute with it."""


@dataclass(frozen=True)
class Spread:
    """How the seed runs of an evaluation are spread.

    Attributes:
        at_once: how many at the same time on this machine.
        threads: of each; None leaves the process's own.
        scheduler: a Dask scheduler's address; its workers do one at a time each, and ``at_once`` does not count.
    """

    at_once: int
    threads: int | None
    scheduler: str | None = None


def spread_of(
    evaluation: EvaluationSettings, model: ModelSettings, compared: Sequence[tuple[Path, int]] = ()
) -> Spread:
    """What the settings mean on this machine.

    With ``auto`` as many seed runs at once as there are cores and memory for, and each has its share of the cores as
    threads. Where the first task would be fine-tuned on a GPU it is one after another, with all cores. Models of
    others may leave memory for fewer; the threads do not follow them, since one may be missing the next time.

    Args:
        evaluation: the recipe's settings.
        model: the shape of the recipe's model, by which the memory of a seed run is estimated.
        compared: checkpoints of models of others, each with the number of its parameters.
    """
    threads = None if evaluation.threads == "auto" else evaluation.threads
    if evaluation.scheduler is not None:
        return Spread(1, threads, evaluation.scheduler)
    asked = None if evaluation.at_once == "auto" else evaluation.at_once
    if _on_gpu(evaluation):
        return Spread(asked or 1, threads)
    cores = worker_count()
    declared = len(evaluation.model_names) * len(evaluation.tasks) * len(evaluation.seed_list)
    own = _shape_of(model)
    usual = max(1, min(cores, declared, _room(evaluation, [own])))
    shapes = [own, *(_shape_in(folder, parameters) for folder, parameters in compared)]
    return Spread(asked or max(1, min(usual, _room(evaluation, shapes))), threads or max(1, cores // usual))


@contextmanager
def opened(spread: Spread, count: int) -> Iterator[tuple[int, Do]]:
    """Where fine-tunings are done, for the time of a ``with`` block: how many at once, and the function that does one.

    Args:
        spread: from :func:`spread_of`.
        count: how many there are to do; one alone needs no process of its own.

    Raises:
        UserError: Dask is not installed, or the workers have other versions.
        StageError: the scheduler does not answer or has no workers.
    """
    if spread.scheduler is not None:
        with open_executor(1, spread.scheduler, PACKAGES) as cluster:
            assert isinstance(cluster, DaskExecutor)
            of_workers = cluster.threads_of_workers()
            yield min(count, len(of_workers)), _tune_on(cluster, spread.threads or of_workers[0])
        return
    at_once = min(spread.at_once, count)
    if at_once <= 1:
        yield 1, tune_here(spread.threads)
        return
    threads = spread.threads or max(1, worker_count() // at_once)
    with separate_processes(at_once, threads, ("eval.tuning",)) as processes:
        yield at_once, _tune_in(processes, threads)


def _tune_on(cluster: DaskExecutor, threads: int) -> Do:
    """By a worker of a cluster, which gets the files and tells nothing of the steps."""
    sent: dict[Path, Any] = {}

    def do(job: Job, source: Path, scratch: Path, progress: Progress) -> Tuned:
        from eval.tuning import tune_there

        if source not in sent:
            files = {path.name: path.read_bytes() for path in sorted(source.iterdir()) if path.is_file()}
            sent[source] = cluster.sent(files)
        progress(0, 1, note="on the cluster")
        job = replace(job, threads=threads)
        return result_of(cluster, cluster.submit(tune_there, job, sent[source], None))

    return do


def _tune_in(processes: Executor, threads: int) -> Do:
    """In a process of this machine."""

    def do(job: Job, source: Path, scratch: Path, progress: Progress) -> Tuned:
        from eval.tuning import tune_there

        scratch.mkdir(exist_ok=True)
        status = scratch / "steps.json"
        status.unlink(missing_ok=True)
        told: dict[str, Any] = {}

        def tell() -> None:
            nonlocal told
            told = tell_status(status, told, progress)

        future = processes.submit(tune_there, replace(job, threads=threads), source, status)
        tuned = result_of(processes, future, tell, LOOK_SECONDS)
        tell()
        return tuned

    return do


def _on_gpu(evaluation: EvaluationSettings) -> bool:
    if all(task.fine_tuning.device == "cpu" for task in evaluation.tasks.values()):
        return False
    import torch

    return torch.cuda.is_available()


def _room(evaluation: EvaluationSettings, shapes: Sequence[Shape]) -> int:
    """For how many seed runs the machine has memory, by its size and not by what is free just now."""
    most = max(seed_run_bytes(shape, task) for shape in shapes for task in evaluation.tasks.values())
    return int(MEMORY_SHARE * total_memory() / most)


@dataclass(frozen=True)
class Shape:
    """What of a model decides the memory of its fine-tuning.

    Attributes:
        weights: their number.
        layers: that are computed, shared or not.
        hidden: size of a layer's states.
        wide: size of its feed-forward states.
        heads: of its attention.
    """

    weights: int
    layers: int
    hidden: int
    wide: int
    heads: int


def _shape_of(model: ModelSettings) -> Shape:
    hidden, wide = model.hidden_size, model.intermediate_size
    layer = 4 * hidden**2 + 2 * hidden * wide
    own_layers = model.layers if model.architecture == "bert" else model.layer_groups
    embedding = hidden if model.architecture == "bert" else model.embedding_size or ALBERT_EMBEDDING_SIZE
    return Shape(own_layers * layer + VOCABULARY * embedding, model.layers, hidden, wide, model.heads)


def _shape_in(checkpoint: Path, parameters: int) -> Shape:
    """By the names that transformers gives to all architectures; a feed-forward size under another name is reckoned
    as the usual four times the hidden size."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=False)
    hidden = config.hidden_size
    wide = getattr(config, "intermediate_size", None) or 4 * hidden
    return Shape(parameters, config.num_hidden_layers, hidden, wide, config.num_attention_heads)


def seed_run_bytes(shape: Shape, task: TaskSettings) -> int:
    """Memory that fine-tuning takes in a process of its own, with every item of a batch as long as it may be."""
    length = task.fine_tuning.max_length
    tokens = task.fine_tuning.batch_size * length
    states = tokens * shape.layers * (12 * shape.hidden + 4 * shape.wide + 4 * shape.heads * length)
    return PROCESS_BYTES + BYTES_A_WEIGHT * shape.weights + BYTES_A_STATE * states
