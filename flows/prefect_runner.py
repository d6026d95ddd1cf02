"""Run a chain under Prefect in this process, and without it if its server is gone.

A stage's work never depends on the server: if the flow cannot start, the chain runs without Prefect; if the server
is lost on the way or at the end, the stages go on and publish. In each case the run ends with a warning.
"""

from __future__ import annotations

import logging
import os
import signal
from dataclasses import asdict

from flows import local_server
from flows.execution import Options, RunNode, run_chain
from flows.step_work import StageOutcome

_SETTINGS = {
    # Without this a lost server makes Prefect start a throw-away one.
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
    # Prefect tries again after 2 s, 4 s, ... (5 times by default, a minute in all); here the chain goes on instead.
    "PREFECT_CLIENT_MAX_RETRIES": "1",
    "PREFECT_API_REQUEST_TIMEOUT": "20",
}


def run_with_prefect(options: Options, show: RunNode) -> tuple[list[StageOutcome], list[str]]:
    """Run the chain as a flow against the configured or the local server.

    Args:
        options: what to run.
        show: runs a node and shows it here, besides Prefect's pages: the terminal's `run_node`.

    Returns:
        The outcomes of the selected stages, and warnings: what the server did not take.

    Raises:
        UserError: wrong input, or a configured server that does not answer.
        StageError: a stage failed, or the local server does not start.
    """
    os.environ.update(_SETTINGS)
    local_server.use(local_server.ensure())
    _keep_from_terminal()
    _deliver_events_quickly()

    from prefect.exceptions import TerminationSignal

    from flows.chain import Attempt, chain, current_attempt

    attempt = Attempt(show)
    token = current_attempt.set(attempt)
    try:
        chain(**asdict(options))
    except Exception as problem:
        if isinstance(attempt.error, TerminationSignal):
            signal.raise_signal(signal.SIGTERM)
        if attempt.error is not None:
            raise attempt.error from None
        reason = next((line for line in str(problem).splitlines() if line), type(problem).__name__)
        attempt.warnings.append(f"the flow did not end properly on the Prefect server ({reason})")
    finally:
        current_attempt.reset(token)
    if attempt.outcomes is None:
        attempt.outcomes = run_chain(options, show)
    return attempt.outcomes, attempt.warnings


def _keep_from_terminal() -> None:
    """Prefect's log lines go to its server only: the terminal shows what the stages say."""
    from prefect.logging.configuration import setup_logging

    setup_logging()  # now, since it would undo what follows
    prefect = logging.getLogger("prefect")
    prefect.propagate = False
    prefect.addHandler(logging.NullHandler())  # without any handler, warnings would go to stderr
    # Prefect's log thread writes to stderr when the server is gone; this is the standard library's switch for it.
    logging.raiseExceptions = False


def _deliver_events_quickly() -> None:
    """Let the end of the process not wait for a lost server.

    Prefect tells of task runs by events, tries each one for about 8 s, and delivers all before the process may end.
    With fewer tries an event that fails is not lost: the client keeps it and sends it with the next that gets through.
    """
    from prefect.events.clients import PrefectEventsClient
    from prefect.events.worker import EventsWorker, emit_events_to_cloud

    if not emit_events_to_cloud():
        EventsWorker.set_client_override(PrefectEventsClient, reconnection_attempts=1)
