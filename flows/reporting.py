"""What a running chain tells the Prefect server besides its states: progress, tables, the report.

All of it is best effort. One thread does the talking, so that a slow or missing server never holds up a stage: the
stage leaves its newest figures and goes on. What fails is remembered as a warning, once; later reports are tried
all the same, since servers come back.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flows import local_server
from flows.artifacts import Shown, key_of
from flows.attempts import without_secrets
from flows.lost_runs import mark_lost_runs, note_process
from tasks.contract import Rows
from tasks.foreign_text import printable

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient

    Report = Callable[[SyncPrefectClient], object]

logger = logging.getLogger(__name__)

PROGRESS_SECONDS = 10.0
"""Shortest time between two updates of a stage's progress and of its live table; shorter stages have neither."""

CLOSE_SECONDS = 10.0
"""How long the end of a chain waits for reports that are still on their way."""


@dataclass
class _Live:
    """An artifact that is updated in place."""

    artifact: dict[str, Any]
    artifact_id: UUID | None = None

    def tell(self, client: SyncPrefectClient, newest: dict[str, Any]) -> None:
        """Create the artifact, or change what it says."""
        from prefect.client.schemas.actions import ArtifactUpdate

        if self.artifact_id is None:
            self.artifact_id = _create(client, self.artifact | newest)
        else:
            client.update_artifact(self.artifact_id, ArtifactUpdate(**newest))


@dataclass(frozen=True)
class _Figures:
    percent: float
    text: str
    note: str
    rows: Rows


class _Running:
    """The newest figures of a running stage, and what the server knows of them; called as its progress callback."""

    def __init__(self, recipe_name: str, stage: str):
        ids = _run_ids()
        self._stage = stage
        self._progress = _Live({"key": key_of(recipe_name, stage, "progress"), "type": "progress"} | ids)
        self._table = _Live({"key": key_of(recipe_name, stage, "live"), "type": "table"} | ids)
        self._newest: _Figures | None = None
        self._told: _Figures | None = None

    def __call__(self, done: float, total: float, *, unit: str = "", note: str = "", rows: Rows = ()) -> None:
        percent = min(100.0, 100 * done / total) if total > 0 else 0.0
        text = f"{self._stage}: {done:,.0f} of {total:,.0f} {unit}"
        before = self._newest.rows if self._newest else ()
        self._newest = _Figures(percent, text, note, rows or before)

    @property
    def shown(self) -> bool:
        """Whether the server knows of the stage's progress at all."""
        return self._told is not None

    @property
    def has_news(self) -> bool:
        """Whether there is something that the server does not know yet."""
        return self._newest != self._told

    def tell(self, client: SyncPrefectClient) -> None:
        """Send the newest figures."""
        newest = self._newest
        if newest is None or newest == self._told:
            return
        description = f"{newest.text}, {newest.note}" if newest.note else newest.text
        self._progress.tell(client, {"data": newest.percent, "description": description})
        if newest.rows:
            table = [{title: printable(cell) for title, cell in row.items()} for row in newest.rows]
            self._table.tell(client, {"data": json.dumps(table, ensure_ascii=False), "description": newest.text})
        self._told = newest


class Reporter:
    """Sends reports of one chain to the Prefect server that this process is set up for."""

    def __init__(self, recipe_name: str):
        self.warnings: list[str] = []
        self._recipe_name = recipe_name
        self._running: list[_Running] = []
        """The stages that run now: several seed runs do so at once."""
        self._reports: queue.SimpleQueue[tuple[str, Report] | None] = queue.SimpleQueue()
        self._beginning: threading.Thread | None = None
        self._thread = threading.Thread(target=self._work, name="reports to Prefect", daemon=True)
        self._thread.start()

    @contextmanager
    def stage(self, name: str) -> Iterator[_Running]:
        """Report the progress of one stage while the body of the ``with`` runs; yields the progress callback."""
        running = _Running(self._recipe_name, name)
        self._running.append(running)
        try:
            yield running
        finally:
            self._running.remove(running)
            if running.shown:
                self._send("progress", running.tell)

    def begin(self) -> None:
        """Say whose process this run is, and which earlier runs of this machine have none any more.

        In a thread of its own: with many runs it takes the server seconds, in which nothing else would be told.
        """
        run = _run_ids()["flow_run_id"]

        def tell(client: SyncPrefectClient) -> None:
            if run is not None:
                note_process(client, run)
            mark_lost_runs(client)

        self._beginning = threading.Thread(
            target=self._report, args=("the run's process", tell), name="beginning", daemon=True
        )
        self._beginning.start()

    def show(self, shown: Shown) -> None:
        """Put a table or a text on the page of the current run."""
        artifact = {
            "key": key_of(self._recipe_name, shown.stage),
            "type": shown.kind,
            "description": shown.description,
            "data": shown.data,
        } | _run_ids()
        self._send(shown.stage, lambda client: _create(client, artifact))

    def trouble(self, what: str, problem: BaseException) -> None:
        """Remember that a report failed. One lost server is one warning, however many reports it takes with it."""
        if not self.warnings:
            reason = next((line for line in str(problem).splitlines() if line), type(problem).__name__)
            self.warnings.append(f"Prefect's pages do not show all of this run ({what}: {reason})")
            logger.warning("%s; the work goes on", self.warnings[0])

    def reachable(self) -> bool:
        """Whether the server answers now; takes 5 s at most."""
        from prefect.settings import get_current_settings

        return local_server.answers(get_current_settings().api.url or "")

    def close(self) -> None:
        """Wait a little for what is still to be sent, then end."""
        self._reports.put(None)
        self._thread.join(CLOSE_SECONDS)
        if self._beginning is not None:
            self._beginning.join(CLOSE_SECONDS)

    def _send(self, what: str, report: Report) -> None:
        self._reports.put((what, report))

    def _work(self) -> None:
        while True:
            try:
                item = self._reports.get(timeout=PROGRESS_SECONDS)
            except queue.Empty:
                for running in list(self._running):
                    if running.has_news:
                        self._send("progress", running.tell)
                continue
            if item is None:
                return
            self._report(*item)

    def _report(self, what: str, report: Report) -> None:
        try:
            from prefect.client.orchestration import get_client

            with get_client(sync_client=True) as client:
                report(client)
        except Exception as problem:  # whatever it is, it must not reach the stage
            self.trouble(what, problem)


_logging_threads: set[int] = set()
"""Threads of which each sends logs to a run of its own."""


@contextmanager
def logs_to_prefect() -> Iterator[None]:
    """Send what stages log to the current Prefect run while the body of the ``with`` runs.

    Of several such bodies in threads each gets what its own thread logs, and all get what no such thread does.
    """
    from prefect.logging import get_run_logger

    own = threading.get_ident()
    handler = _RunLog(get_run_logger())
    handler.addFilter(lambda record: record.thread == own or record.thread not in _logging_threads)
    _logging_threads.add(own)
    loggers = [logging.getLogger(name) for name in ("sahajflow", "tasks", "eval", "flows")]
    for stage_logger in loggers:
        stage_logger.addHandler(handler)
        stage_logger.setLevel(stage_logger.level or logging.INFO)  # and stays so: others may still be at work
    try:
        yield
    finally:
        _logging_threads.discard(own)
        for stage_logger in loggers:
            stage_logger.removeHandler(handler)


class _RunLog(logging.Handler):
    """Hands records on to a logger of Prefect's. That one puts them in a queue, so a dead server costs no time."""

    def __init__(self, run_logger: logging.Logger | logging.LoggerAdapter[Any]):
        super().__init__()
        self._run_logger = run_logger

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._run_logger.log(record.levelno, without_secrets(self.format(record)))
        except Exception:
            self.handleError(record)


def _run_ids() -> dict[str, Any]:
    from prefect.context import FlowRunContext, TaskRunContext

    flow_context, task_context = FlowRunContext.get(), TaskRunContext.get()
    return {
        "flow_run_id": flow_context.flow_run.id if flow_context and flow_context.flow_run else None,
        "task_run_id": task_context.task_run.id if task_context else None,
    }


def _create(client: SyncPrefectClient, artifact: dict[str, Any]) -> UUID:
    from prefect.client.schemas.actions import ArtifactCreate

    return client.create_artifact(ArtifactCreate(**artifact)).id
