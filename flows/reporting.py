"""What a running chain tells the Prefect server besides its states: progress, tables, the report.

All of it is best effort. One thread does the talking, so that a slow or missing server never holds up a stage: the
stage leaves its newest figures and goes on. What fails is remembered as a warning, once; later reports are tried
all the same, since servers come back.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flows import local_server
from flows.artifacts import Shown, key_of

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient

    Report = Callable[[SyncPrefectClient], object]

logger = logging.getLogger(__name__)

PROGRESS_SECONDS = 10.0
"""Shortest time between two updates of one progress artifact; shorter stages have none."""

CLOSE_SECONDS = 10.0
"""How long the end of a chain waits for reports that are still on their way."""


@dataclass
class _Running:
    """The newest figures of a running stage, and what the server knows of them."""

    title: str
    artifact: dict[str, Any]
    percent: float = 0.0
    text: str = ""
    told: tuple[float, str] = (0.0, "")
    artifact_id: UUID | None = None

    def __call__(self, done: float, total: float, *, unit: str = "", note: str = "") -> None:
        self.percent = min(100.0, 100 * done / total) if total > 0 else 0.0
        self.text = f"{self.title}: {done:,.0f} of {total:,.0f} {unit}" + (f", {note}" if note else "")


class Reporter:
    """Sends reports of one chain to the Prefect server that this process is set up for."""

    def __init__(self, recipe_name: str):
        self.warnings: list[str] = []
        self._recipe_name = recipe_name
        self._running: _Running | None = None
        self._reports: queue.SimpleQueue[tuple[str, Report] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="reports to Prefect", daemon=True)
        self._thread.start()

    @contextmanager
    def stage(self, name: str) -> Iterator[_Running]:
        """Report the progress of one stage while the body of the ``with`` runs; yields the progress callback."""
        running = _Running(name, {"key": key_of(self._recipe_name, name, "progress"), "type": "progress"} | _run_ids())
        self._running = running
        try:
            yield running
        finally:
            self._running = None
            if running.artifact_id is not None:
                self._send("progress", lambda client: _tell_progress(client, running))

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

    def _send(self, what: str, report: Report) -> None:
        self._reports.put((what, report))

    def _work(self) -> None:
        while True:
            try:
                item = self._reports.get(timeout=PROGRESS_SECONDS)
            except queue.Empty:
                running = self._running
                if running is None or running.told == (running.percent, running.text):
                    continue
                item = ("progress", lambda client, running=running: _tell_progress(client, running))
            if item is None:
                return
            what, report = item
            try:
                from prefect.client.orchestration import get_client

                with get_client(sync_client=True) as client:
                    report(client)
            except Exception as problem:  # whatever it is, it must not reach the stage
                self.trouble(what, problem)


@contextmanager
def logs_to_prefect() -> Iterator[None]:
    """Send what stages log to the current Prefect run while the body of the ``with`` runs."""
    from prefect.logging import get_run_logger

    handler = _RunLog(get_run_logger())
    loggers = [logging.getLogger(name) for name in ("sahajflow", "tasks", "eval", "flows")]
    levels = [stage_logger.level for stage_logger in loggers]
    for stage_logger in loggers:
        stage_logger.addHandler(handler)
        stage_logger.setLevel(stage_logger.level or logging.INFO)
    try:
        yield
    finally:
        for stage_logger, level in zip(loggers, levels, strict=True):
            stage_logger.removeHandler(handler)
            stage_logger.setLevel(level)


class _RunLog(logging.Handler):
    """Hands records on to a logger of Prefect's. That one puts them in a queue, so a dead server costs no time."""

    def __init__(self, run_logger: logging.Logger | logging.LoggerAdapter[Any]):
        super().__init__()
        self._run_logger = run_logger

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._run_logger.log(record.levelno, self.format(record))
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


def _tell_progress(client: SyncPrefectClient, running: _Running) -> None:
    from prefect.client.schemas.actions import ArtifactUpdate

    percent, text = running.percent, running.text
    if running.artifact_id is None:
        running.artifact_id = _create(client, running.artifact | {"data": percent, "description": text})
    else:
        client.update_artifact(running.artifact_id, ArtifactUpdate(data=percent, description=text))
    running.told = (percent, text)
