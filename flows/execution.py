"""Carrying out a plan: node by node, with the lock, the store and the stage's own function. No Prefect here.

`run_chain` hands every node to ``run_node(node, work)``; ``work(progress)`` does everything that has to be done for
it. So whoever shows or reports runs (the terminal, Prefect) wraps the work and cannot change it.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from eval.data import check as check_tasks
from flows.graph import Node, nodes_of
from flows.plan import Selection, Step, counted, make_plan
from flows.recipe import Recipe, load_recipe
from tasks import locks
from tasks.contract import Progress, StageError, UserError
from tasks.corpus import check as check_corpus
from tasks.identity import fingerprint_of, identity_of
from tasks.record import Damaged, Input, Record, read_record, verified_record
from tasks.store import Building, FileDigests, Store

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


@dataclass(frozen=True)
class StageOutcome:
    """How one node ended."""

    name: str
    action: Literal["ran", "reused"]
    path: Path
    record: Record
    seconds: float


Work = Callable[[Progress], StageOutcome]
RunNode = Callable[[Node, Work], StageOutcome]


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
    store = Store(options.store)
    selection = Selection(options.only, options.from_, options.until, options.force)
    steps, inputs = make_plan(nodes_of(recipe), store, selection, verify=options.verify)
    return Prepared(recipe, store, steps, inputs, options)


def blocked(prepared: Prepared) -> str | None:
    """Why the plan cannot be carried out on this machine, in one line; None if it can."""
    from tasks.pretraining.engines import check_engine
    from tasks.pretraining.settings import PretrainSettings

    for step in prepared.steps:
        if isinstance(step.node.settings, PretrainSettings) and step.action != "reuse":
            return check_engine(step.node.settings)
    return None


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
    return carry_out(prepared.steps, prepared.inputs, prepared.store, run_node, verify=options.verify)


def carry_out(
    steps: list[Step], inputs: list[Step], store: Store, run_node: RunNode, *, verify: bool = False
) -> list[StageOutcome]:
    """Work through a plan.

    A seed run that fails is missing: it is said, and the evaluation gathers the others. As what is missing, and why,
    is part of that evaluation's identity, the next run tries the seed run again and gathers anew if it succeeds. Wrong
    input ends the run, and so does what the machine refuses.

    Args:
        steps: what to do, in order.
        inputs: what the steps read and is not among them; all of it exists.
        store: where it was planned for.
        run_node: called for each step.
        verify: compare the hashes of all files before a result is reused.

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
    for planned in steps:
        step = _without(planned, failures, store)
        try:
            outcomes[step.node.name] = run_node(step.node, _work(step, outcomes, store, verify=verify))
        except (UserError, OSError):
            raise
        except Exception as error:
            if not step.node.dispensable:
                raise
            failures[step.node.name] = one_line(error)
            traceback = None if isinstance(error, StageError) else error
            logger.warning(
                "%s failed and is missing: %s", step.node.name, failures[step.node.name], exc_info=traceback
            )
    return [outcomes[step.node.name] for step in steps if step.node.name in outcomes]


def one_line(error: Exception) -> str:
    """A failure in one line of at most 200 characters: a stage's own message, else with the kind of the error."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if not isinstance(error, StageError):
        first = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return first if len(first) <= 200 else first[:199] + "\N{HORIZONTAL ELLIPSIS}"


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


def _work(step: Step, outcomes: dict[str, StageOutcome], store: Store, *, verify: bool) -> Work:
    def work(progress: Progress) -> StageOutcome:
        started = time.time()
        node = step.node
        inputs = {name: outcomes[source] for name, source in node.inputs.items()}
        building = Building(
            node.stage,
            fingerprint_of(
                node.stage, step.identity, {name: counted(node.stage, one.record) for name, one in inputs.items()}
            ),
            step.identity,
            {
                name: Input(path=outcome.path.relative_to(store.root).as_posix(), digest=outcome.record.digest)
                for name, outcome in inputs.items()
            },
        )
        path = store.artifact(node.stage.name, building.fingerprint)
        record = None if step.forced else _standing(store, building, verify=verify, repair=False)
        action: Literal["ran", "reused"] = "reused"
        if record is None:
            with locks.held(store.lock(node.stage.name, building.fingerprint), _say_who(node.name)):
                record = None if step.forced else _standing(store, building, verify=verify, repair=True)
                if record is None:
                    record = _build(step, building, store, progress)
                    action = "ran"
        return StageOutcome(node.name, action, path, record, round(time.time() - started, 3))

    return work


def _standing(store: Store, building: Building, *, verify: bool, repair: bool) -> Record | None:
    """The finished result, if there is one; with ``repair`` (under the lock) a damaged one goes to the trash."""
    try:
        return store.look(building.stage.name, building.fingerprint, hashes=verify)
    except Damaged as damage:
        if repair:
            place = store.discard(store.artifact(building.stage.name, building.fingerprint))
            logger.warning("%s was damaged (%s): moved to %s, built again", building.stage.name, damage, place)
        return None


def _build(step: Step, building: Building, store: Store, progress: Progress) -> Record:
    """Run the stage in its work folder and publish what it leaves; under the lock."""
    started = time.time()
    stage, fingerprint = building.stage, building.fingerprint
    if store.finished_work(building) and (not step.forced or store.artifact(stage.name, fingerprint).exists()):
        return store.publish(building, replace=step.forced)
    fresh = not store.work(stage.name, fingerprint).exists()
    _check_sources(step, building, store)
    work = store.open_work(building, again=step.forced)
    inputs = {name: store.root / source.path for name, source in building.inputs.items()}
    try:
        metrics = stage.run(step.node.settings, inputs, work, progress)
    except UserError:
        # Nothing that came of wrong input is worth going on from; but what an earlier run left is.
        if fresh:
            shutil.rmtree(work, ignore_errors=True)
        raise
    except StageError:
        raise
    except Exception as error:
        _blame_damaged_input(inputs, error)
        raise
    _check_sources(step, building, store)
    return store.finish(building, metrics, started, replace=step.forced)


def _check_sources(step: Step, building: Building, store: Store) -> None:
    """Whether what was planned with is still there: hours may lie between, and another run may force an input.

    Raises:
        StageError: a file of the user's or an input has another content by now. Without this check the result would
            stand under the fingerprint of the old one.
    """
    files = FileDigests(store)
    identity = identity_of(step.node.settings, files)
    files.save()
    if identity != step.identity:
        raise StageError(f"{step.node.name}: a file that it reads was changed during the run; run again")
    for name, source in building.inputs.items():
        try:
            digest = read_record(store.root / source.path).digest
        except Damaged as damage:
            raise StageError(f"{step.node.name}: its input {name} is gone or damaged ({damage}); run again") from None
        if digest != source.digest:
            raise StageError(f"{step.node.name}: its input {name} was replaced during the run; run again")


def _blame_damaged_input(inputs: dict[str, Path], error: Exception) -> None:
    """If a stage failed since an input is damaged in a way that its size does not show, say so."""
    for name, path in inputs.items():
        try:
            verified_record(path, hashes=True)
        except Damaged as damage:
            raise StageError(
                f"the result of {name} is damaged: {damage} in {path}; run again with --verify"
            ) from error


def _say_who(name: str) -> Callable[[dict[str, Any]], None]:
    def say(holder: dict[str, Any]) -> None:
        minutes = (time.time() - holder["started"]) / 60
        logger.info(
            "%s: waiting for process %s on %s, which has been at it for %.0f min",
            name,
            holder["pid"],
            holder["host"],
            minutes,
        )

    return say
