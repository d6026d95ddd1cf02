"""Carrying out a plan: node by node, with the lock, the store and the stage's own function. No Prefect here.

`run_chain` hands every node to ``run_node(node, work)``; ``work(progress)`` does everything that has to be done for
it. So whoever shows or reports runs (the terminal, Prefect) wraps the work and cannot change it.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from eval.compared_model import STAGE as COMPARED_MODEL
from eval.compared_model import check as check_models
from eval.data import check as check_tasks
from eval.prices import load_prices
from eval.seed_run import STAGE as SEED_RUN
from eval.seed_run import run_by
from eval.spread import Spread, opened, spread_of
from flows.at_once import Ended, one_by_one, threads_until_the_end
from flows.graph import Node, nodes_of
from flows.plan import Selection, Step, make_plan
from flows.recipe import Recipe, load_recipe
from flows.step_work import StageOutcome, Work, still_needed, work_of
from tasks.contract import MachineError, Run, StageError, UserError
from tasks.corpus import check as check_corpus
from tasks.foreign_text import first_line
from tasks.identity import identity_of
from tasks.room import shortage
from tasks.store import FileDigests, Store

logger = logging.getLogger("sahajflow")


@dataclass(frozen=True)
class Options:
    """What the user asked for: the same for the command line, a Prefect flow and a schedule."""

    recipe: str
    only: str | None = None
    from_: str | None = None
    until: str | None = None
    force: tuple[str, ...] = ()
    set_: tuple[str, ...] = ()
    store: str | None = None
    workers: int | None = None
    verify: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, for another process."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Options:
        """The inverse of :meth:`to_json`."""
        return cls(**{**values, "force": tuple(values["force"]), "set_": tuple(values["set_"])})

    def run_command(self) -> str:
        """The command that makes what these options ask for, to be pasted: with the settings and the store."""
        words = ["sahajflow", "run", self.recipe, *(word for change in self.set_ for word in ("--set", change))]
        store = Store(self.store).root
        return shlex.join(words + ["--store", str(store)] * (store != Store().root))


RunNode = Callable[[Node, Work], StageOutcome]

HowToSpread = Callable[[Sequence[tuple[Path, int]]], Spread]


@dataclass(frozen=True)
class Prepared:
    """A checked recipe with its plan."""

    recipe: Recipe
    store: Store
    steps: list[Step]
    inputs: list[Step]
    options: Options

    @property
    def idle(self) -> bool:
        """Whether everything that was asked for exists already."""
        return all(step.action == "reuse" for step in self.steps)


def prepare(options: Options) -> Prepared:
    """Load the recipe and plan; reads only.

    Raises:
        UserError: anything that the user has to mend first.
    """
    recipe = load_recipe(options.recipe, options.set_)
    check_corpus(recipe.corpus)
    check_tasks(recipe.evaluation)
    check_models(recipe.evaluation)
    load_prices(recipe.cost.prices)  # for the last stage: what is wrong is said before the first
    store = Store(options.store)
    selection = Selection(options.only, options.from_, options.until, options.force)
    steps, inputs = make_plan(nodes_of(recipe), store, selection, verify=options.verify)
    return Prepared(recipe, store, steps, inputs, options)


def blocked(prepared: Prepared) -> str | None:
    """Why the plan cannot be carried out on this machine, in one line; None if it can."""
    from tasks.pretraining.engines import check_engine
    from tasks.pretraining.settings import PretrainSettings

    to_do = [step for step in prepared.steps if step.action != "reuse"]
    for step in to_do:
        if isinstance(step.node.settings, PretrainSettings) and (
            reason := check_engine(step.node.settings, prepared.store.root)
        ):
            return reason
    known = {step.node.name: step.path for step in (*prepared.inputs, *prepared.steps) if step.record is not None}
    needs = {}
    for step in to_do:
        inputs = {name: path for name, source in step.node.inputs.items() if (path := known.get(source)) is not None}
        work = prepared.store.work(step.node.stage.name, step.fingerprint) if step.fingerprint else None
        needs[step.node.name] = still_needed(step.node, inputs, work)
    return shortage(needs, prepared.store.root)


def run_chain(options: Options, run_node: RunNode) -> list[StageOutcome]:
    """Do what the plan says, in order; the first stage that fails ends the run, but for a seed run: :func:`carry_out`.

    Raises:
        UserError: the user's input is wrong, found before or while a stage reads it.
        Exception: whatever a stage raised. Its work folder stays, and the next run goes on from it.
    """
    prepared = prepare(options)
    if reason := blocked(prepared):
        raise UserError(reason)
    set_workers(options.workers)
    outcomes = carry_out(
        prepared.steps,
        prepared.inputs,
        prepared.store,
        run_node,
        verify=options.verify,
        spread=lambda compared: spread_of(prepared.recipe.evaluation, prepared.recipe.model, compared),
    )
    keep_history(prepared, [outcome.path for outcome in outcomes if outcome.record.stage == "evaluate"])
    return outcomes


def keep_history(prepared: Prepared, evaluations: Iterable[Path]) -> None:
    """Write down the entries of a recipe's evaluations. If that fails it is said and no more: while an artifact is
    there its entry can be written at any time."""
    from eval.history import keep

    for evaluation in evaluations:
        try:
            keep(prepared.store, evaluation, prepared.recipe.name)
        except OSError as error:
            logger.warning("history: %s is not written down yet (%s)", evaluation, error.strerror)


def carry_out(
    steps: list[Step],
    inputs: list[Step],
    store: Store,
    run_node: RunNode,
    *,
    verify: bool = False,
    spread: HowToSpread | None = None,
) -> list[StageOutcome]:
    """Work through a plan.

    A seed run that fails is missing, and so are all of a compared model that cannot be had: it is said, and the
    evaluation gathers the others. As what is missing, and why, is part of that evaluation's identity, the next run
    tries again and gathers anew if it succeeds. Wrong input ends the run, and so does what the machine refuses.

    Args:
        steps: what to do, in order.
        inputs: what the steps read and is not among them; all of it exists.
        store: where it was planned for.
        run_node: called for each step; for several seed runs at once, each in a thread of its own.
        verify: compare the hashes of all files before a result is reused.
        spread: asked how to spread seed runs, when there are some to do, and told the checkpoints of the models of
            others with their numbers of parameters; without it they are done one by one, as their stage does them.

    Returns:
        The outcomes in order, without the seed runs that failed.
    """
    if any(step.action != "reuse" for step in steps):
        store.create()
    outcomes: dict[str, StageOutcome] = {}
    for step in inputs:
        assert step.path is not None
        assert step.record is not None
        outcomes[step.node.name] = StageOutcome(step.node.name, "reused", step.path, step.record, 0.0)
    failures: dict[str, str] = {}

    def done(step: Step, run: Run | None = None) -> StageOutcome:
        return run_node(step.node, work_of(_without(step, failures, store), outcomes, store, verify=verify, run=run))

    for stage, group in groupby(steps, key=lambda step: step.node.stage):
        planned = list(group)
        for step in planned:
            lost = [failures[name] for name in step.node.inputs.values() if name in failures]
            if lost and step.node.dispensable:
                failures[step.node.name] = lost[0]
        able = [step for step in planned if step.node.name not in failures]
        how = None if spread is None or stage is not SEED_RUN else partial(spread, _compared(outcomes))
        with _ended(able, done, how) as ended:
            for step, result in ended:
                if not isinstance(result, Exception):
                    outcomes[step.node.name] = result
                elif isinstance(result, UserError | OSError | MachineError) or not step.node.dispensable:
                    raise result
                else:
                    failures[step.node.name] = one_line(result)
                    traceback = None if isinstance(result, StageError) else result
                    reason = failures[step.node.name]
                    logger.warning("%s failed and is missing: %s", step.node.name, reason, exc_info=traceback)
    return [outcomes[step.node.name] for step in steps if step.node.name in outcomes]


@contextmanager
def _ended(
    steps: list[Step], done: Callable[[Step, Run | None], StageOutcome], spread: Callable[[], Spread] | None
) -> Iterator[Ended]:
    """Steps as they end: one by one, or seed runs, which do not read each other, at once if that is asked for."""
    to_do = sum(step.action != "reuse" for step in steps)
    if spread is None or not to_do:
        yield one_by_one(steps, lambda step: done(step, None))
        return
    with threads_until_the_end() as in_threads, opened(spread(), to_do) as (count, do):
        run = run_by(do)
        if count == 1:
            yield one_by_one(steps, lambda step: done(step, run))
        else:
            with closing(in_threads(steps, lambda step: done(step, run), count)) as ended:
                yield ended


def one_line(error: Exception) -> str:
    """A failure in one line of at most 200 characters: a stage's own message, else with the kind of the error."""
    first, kind = first_line(error), type(error).__name__
    if not isinstance(error, StageError) and first != kind:
        first = f"{kind}: {first}"
    return first if len(first) <= 200 else first[:199] + "\N{HORIZONTAL ELLIPSIS}"


def _compared(outcomes: Mapping[str, StageOutcome]) -> list[tuple[Path, int]]:
    """Checkpoint and number of parameters of each model of others."""
    return [
        (outcome.path / "checkpoint", outcome.record.metrics["parameters"])
        for outcome in outcomes.values()
        if outcome.record.stage == COMPARED_MODEL.name
    ]


def _without(step: Step, failures: dict[str, str], store: Store) -> Step:
    """The step as it can be done after the failures; the same if it reads nothing that failed."""
    node = step.node.without(failures)
    if node is step.node:
        return step
    return replace(step, node=node, identity=identity_of(node.settings, FileDigests(store)))


def set_workers(workers: int | None) -> None:
    """The one setting for threads: OpenMP's, torch's and the tokenizers' follow it.

    Takes effect when it is called before those libraries start their threads. Default: the cores that this process
    may use.
    """
    count = workers or len(os.sched_getaffinity(0))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ[name] = str(count)
    # Threads that wait by spinning take the core from those that have work: on two busy cores a step of 0.5 s took 5.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
