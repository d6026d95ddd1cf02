"""Where a stage's work is spread: the processes of this machine, or a Dask cluster.

A stage that has many equal pieces of work hands them to a ``concurrent.futures.Executor`` and takes the results in the
order of the pieces, so that its result is the same wherever they were done. What is handed over is a function at the
top of a module and plain values: a worker elsewhere imports the function by name and may see no file of this machine.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from pydantic import AfterValidator, Field

from tasks.contract import EXECUTION, StageError, UserError
from tasks.foreign_text import first_line

if TYPE_CHECKING:
    from distributed import Client

Piece = TypeVar("Piece")
Result = TypeVar("Result")

CONNECT_SECONDS = 30
"""How long a scheduler may take to answer, and to have a worker."""

POLL_SECONDS = 1.0
"""How often it is looked whether the scheduler is still there while its result is waited for."""

SCHEMES = ("tcp://", "tls://")


def _address(address: str | None) -> str | None:
    if address is not None and not (address.startswith(SCHEMES) and address.rpartition(":")[2].isdigit()):
        raise ValueError("should be a Dask scheduler's address, such as tcp://10.0.0.1:8786")
    return address


Scheduler = Annotated[
    str | None,
    AfterValidator(_address),
    EXECUTION,
    Field(description="Address of a Dask scheduler whose workers do this stage's work; null: this machine."),
]
"""The setting of every stage that spreads its work. It does not change the result."""


def worker_count() -> int:
    """How many processes to use here: what ``--workers`` says (it sets the threads' variable), or the cores."""
    threads = os.environ.get("OMP_NUM_THREADS", "")
    return int(threads) if threads.isdigit() and int(threads) > 0 else len(os.sched_getaffinity(0))


@contextmanager
def open_executor(workers: int, dask_address: str | None = None, packages: Sequence[str] = ()) -> Iterator[Executor]:
    """An executor for the time of a ``with`` block; what it has not begun is cancelled at the end.

    Args:
        workers: processes on this machine; 1 is a thread of this process. Not used with ``dask_address``: there the
            cluster has the workers that it has.
        dask_address: a Dask scheduler, whose workers have the same versions of Python and sahajflow.
        packages: of which they must have the same versions too.

    Raises:
        UserError: ``distributed`` is not installed, or the workers have other versions.
        StageError: the scheduler does not answer or has no workers.
    """
    if dask_address is not None:
        with _dask_client(dask_address, packages) as client:
            yield DaskExecutor(client)
        return
    executor: Executor
    if workers == 1:
        executor = ThreadPoolExecutor(1, thread_name_prefix="work")
    else:
        import multiprocessing

        # A fork would copy the locks of threads that are not copied: tokenizers and Arrow hang then.
        context = multiprocessing.get_context("spawn")
        executor = ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent)
    try:
        yield executor
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def in_order(
    executor: Executor,
    function: Callable[[Piece], Result],
    pieces: Iterable[Piece],
    *,
    ahead: int,
    known: Callable[[Piece], Result | None] = lambda piece: None,
) -> Iterator[tuple[Piece, Result]]:
    """Each piece with what ``function`` makes of it, in the order of the pieces.

    Args:
        executor: where it is called.
        function: at the top of a module; pieces and results can be pickled.
        pieces: read as they are needed.
        ahead: how many are read at most before the first one's result is taken, which bounds memory.
        known: the result of a piece if it need not be computed.

    Raises:
        StageError: workers died, or the cluster is gone.
        Exception: whatever ``function`` or the reading of the pieces raised.
    """
    waiting: deque[tuple[Piece, Future[Result]]] = deque()
    try:
        for piece in pieces:
            waiting.append((piece, _submitted(executor, function, piece, known(piece))))
            if len(waiting) == ahead:
                piece, future = waiting.popleft()
                yield piece, result_of(executor, future)
        while waiting:
            piece, future = waiting.popleft()
            yield piece, result_of(executor, future)
    finally:
        for _, future in waiting:
            future.cancel()


def _submitted(
    executor: Executor, function: Callable[[Piece], Result], piece: Piece, known: Result | None
) -> Future[Result]:
    if known is not None:
        done: Future[Result] = Future()
        done.set_result(known)
        return done
    with _one_line():
        return executor.submit(function, piece)


def result_of(
    executor: Executor,
    future: Future[Result],
    meanwhile: Callable[[], None] = lambda: None,
    poll_seconds: float | None = None,
) -> Result:
    """What a submitted piece gives, waited for.

    Args:
        executor: where it was submitted.
        future: what it returned.
        meanwhile: called now and then while there is no result, at most every ``poll_seconds``.
        poll_seconds: ``POLL_SECONDS`` if not given.

    Raises:
        StageError: its worker died, or the cluster is gone.
        Exception: whatever the function raised.
    """
    with _one_line():
        while True:
            try:
                return future.result(timeout=poll_seconds or POLL_SECONDS)
            except TimeoutError:
                if future.done():  # it is the function's own error, or it has just ended
                    return future.result()
                meanwhile()
                if isinstance(executor, DaskExecutor) and executor.lost:
                    raise StageError("the Dask scheduler is gone; start it, and run again") from None


@contextmanager
def _one_line() -> Iterator[None]:
    """What becomes of workers' ends: one line. What a function raises stays what it is."""
    try:
        yield
    except BrokenProcessPool as error:
        raise StageError(
            f"a worker process was killed, for want of memory perhaps ({first_line(error)}); run again"
        ) from None
    except Exception as error:
        # Nobody here cancels what is waited for: a cluster that is gone does. Its own errors are known by where they
        # are defined, since the package may not be there to compare with.
        if not isinstance(error, CancelledError) and type(error).__module__.partition(".")[0] != "distributed":
            raise
        raise StageError(
            f"the Dask cluster is gone or failed ({type(error).__name__}: {first_line(error)}); run again"
        ) from error


def _end_with_parent() -> None:
    """In a worker process: leave when the parent is gone, by ``kill -9`` too, and let it alone handle Ctrl-C."""
    import multiprocessing

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait_for_end() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait_for_end, name="lifeline", daemon=True).start()


class DaskExecutor(Executor):
    """Dask's executor, and whether its scheduler is there: if that is killed, some futures never end."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._executor = client.get_executor()

    def submit(self, function: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """As every executor's; what :meth:`sent` returned may stand among the arguments."""
        return cast("Future[Result]", self._executor.submit(function, *args, **kwargs))

    @property
    def lost(self) -> bool:
        """Whether its scheduler is gone."""
        return bool(self._client.status != "running")

    def threads_of_workers(self) -> list[int]:
        """How many threads each worker was started with."""
        return sorted(self._client.nthreads().values())

    def sent(self, value: Any) -> Any:
        """Stands for the value among a function's arguments, and is sent to every worker once."""
        return self._client.scatter(value, hash=True, broadcast=True)


class GivenUp(Exception):
    """Nobody waits for the piece any more that a worker of a cluster computes."""


def check_wanted() -> None:
    """In a worker of a cluster, at every step of a piece that takes long: leave if nobody waits for it any more.

    Dask cancels what has not begun and lets the rest come to its end, however long that takes, after Ctrl-C or
    ``kill -9`` of whoever handed it over.

    Raises:
        GivenUp: which Dask drops with the piece.
    """
    from distributed import get_worker

    worker = get_worker()
    task = worker.state.tasks.get(worker.get_current_task())
    if task is None or task.state == "cancelled":
        raise GivenUp


@contextmanager
def _dask_client(address: str, packages: Sequence[str]) -> Iterator[Client]:
    try:
        from distributed import Client
    except ImportError:
        raise UserError(f"{address}: needs Dask, which is not installed; pip install 'sahajflow[dask]'") from None
    # A lost scheduler comes as the stage's error, in one line; these would show tracebacks beside it.
    for name in ("distributed", "distributed.client", "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise StageError(
            f"{address}: no Dask scheduler answers ({first_line(error)}); start it, or unset scheduler"
        ) from None
    try:
        try:
            client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except TimeoutError:
            raise StageError(f"{address}: the Dask scheduler has no workers; start some") from None
        own = versions(packages)
        for worker, theirs in sorted(client.run(partial(versions, packages)).items()):
            for name, version in own.items():
                if theirs[name] != version:
                    raise UserError(
                        f"{address}: its worker {worker} has {name} {theirs[name]}, this machine {version}; "
                        "install the same versions"
                    )
        yield client
    finally:
        client.close()


def versions(more: Sequence[str] = ()) -> dict[str, str]:
    """What decides a piece's result: this package, those that it calls, and Python with its tables of Unicode."""
    packages = {name: metadata.version(name) for name in ("sahajflow", "regex", "rensa", "tokenizers", *more)}
    return packages | {"Python": f"{sys.version_info[0]}.{sys.version_info[1]}"}
