"""The chain as a Prefect flow: a thin layer that shows each stage as a task.

What runs and what is reused is decided by the store, in ``flows/execution.py``; Prefect's caching, retries and result
storage stay out of it. Prefect sees one task a stage, ``Completed`` or ``Cached``, its log, its progress and its
tables. If Prefect fails around a stage, the stage's work goes on without it.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from prefect import Task, flow
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext
from prefect.states import Cancelled, Completed, State

from flows.artifacts import shown_for
from flows.drops import tell_history
from flows.execution import Options, RunNode, run_chain
from flows.graph import Node
from flows.reporting import Reporter, logs_to_prefect
from flows.step_work import StageOutcome, Work
from tasks.contract import Progress, Rows, no_progress

MISSED = timedelta(hours=1)
"""A scheduled run that begins later than this is skipped."""

StageName = Literal["corpus", "tokenizer", "pack", "pretrain", "evaluate", "report"]


def run_silently(node: Node, work: Work) -> StageOutcome:
    """Run a node and show nothing."""
    return work(no_progress)


@dataclass
class Attempt:
    """What becomes of one run of the chain under Prefect, whatever happens to Prefect meanwhile."""

    show: RunNode = run_silently
    """Runs a node and shows it elsewhere than on the server, usually in the terminal."""
    outcomes: list[StageOutcome] | None = None
    """The stages' outcomes, once the whole chain has come to its end."""
    error: BaseException | None = None
    """What ended the chain instead: an error of a stage or of the user's input, or an interruption."""
    warnings: list[str] = field(default_factory=list)


current_attempt: ContextVar[Attempt | None] = ContextVar("current_attempt", default=None)
"""Set by whoever calls a flow in its own process and wants to know more than the flow's final state."""


@flow(name="chain")
def chain(
    recipe: str,
    only: StageName | None = None,
    from_: StageName | None = None,
    until: StageName | None = None,
    force: tuple[StageName, ...] = (),
    set_: tuple[str, ...] = (),
    store: str | None = None,
    workers: int | None = None,
    verify: bool = False,
) -> State[None] | None:
    """Run the chain from text to report; stages whose results are in the store are reused.

    Args:
        recipe: name of a built-in recipe, or the absolute path of a recipe file.
        only: run this stage alone.
        from_: first stage to run.
        until: last stage to run.
        force: stages to run again although their results exist.
        set_: changes to the recipe, each `key=value` as in `evaluation.seeds=4`.
        store: absolute path of the store; by default the one that the command line uses.
        workers: number of threads and processes; by default all cores.
        verify: compare the hashes of all files before a result is reused, not only their sizes.
    """
    return run_reported(Options(recipe, only, from_, until, tuple(force), tuple(set_), store, workers, verify))


def missed() -> State[None] | None:
    """The state in which a scheduled run ends that is later than :data:`MISSED`; None for one that is in time.

    When a host that slept wakes, its worker begins everything that was due meanwhile. The next one of the schedule
    does the same work.
    """
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    if run is None or not run.auto_scheduled or run.expected_start_time is None:
        return None
    late = datetime.now(UTC) - run.expected_start_time
    if late <= MISSED:
        return None
    return Cancelled(
        name="Missed", message=f"was due at {run.expected_start_time:%Y-%m-%d %H:%M} UTC; the next one runs"
    )


def run_reported(options: Options) -> State[None] | None:
    """Run the chain inside the current flow run, each stage as a task; returns a state if it is not to run."""
    if (state := missed()) is not None:
        return state
    attempt = current_attempt.get() or Attempt()
    reporter = Reporter(Path(options.recipe).stem)
    reporter.begin()
    try:
        attempt.outcomes = run_chain(options, lambda node, work: _run_as_task(node, work, attempt.show, reporter))
        tell_history(attempt.outcomes, options, reporter)
    except BaseException as error:
        attempt.error = error
        raise
    finally:
        reporter.close()
        attempt.warnings += reporter.warnings
    return None


def _run_as_task(node: Node, work: Work, show: RunNode, reporter: Reporter) -> StageOutcome:
    if not reporter.reachable():
        # A task would queue events that Prefect then tries to deliver, one by one, before the process may end.
        reporter.trouble(node.name, ConnectionError("it does not answer"))
        return show(node, work)
    outcomes: list[StageOutcome] = []
    errors: list[BaseException] = []

    def run_stage() -> State[None]:
        try:
            with logs_to_prefect(), reporter.stage(node.name) as reported:
                outcome = show(node, lambda shown: work(_both(shown, reported)))
        except BaseException as error:
            errors.append(error)
            raise
        outcomes.append(outcome)
        _show(node.name, outcome, reporter)
        return Completed(
            name="Cached" if outcome.action == "reused" else "Completed", message=f"{outcome.action}: {outcome.path}"
        )

    task = Task(run_stage, name=node.stage.name, task_run_name=node.name, cache_policy=NO_CACHE, persist_result=False)
    try:
        task()
    except Exception as problem:
        if errors:
            raise errors[0] from None
        reporter.trouble(node.name, problem)
        if not outcomes:
            return show(node, work)
    return outcomes[0]


def _both(first: Progress, second: Progress) -> Progress:
    def progress(done: float, total: float, *, unit: str = "", note: str = "", rows: Rows = ()) -> None:
        first(done, total, unit=unit, note=note, rows=rows)
        second(done, total, unit=unit, note=note, rows=rows)

    return progress


def _show(stage: str, outcome: StageOutcome, reporter: Reporter) -> None:
    try:
        shown = shown_for(stage, outcome.path, outcome.record.metrics)
        if shown is not None:
            reporter.show(shown)
    except Exception as problem:  # a table that cannot be made must not undo a stage that is published
        reporter.trouble(stage, problem)
