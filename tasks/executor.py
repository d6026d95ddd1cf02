"""Where a stage's work is spread: the processes of this machine, or a Dask cluster.

A stage that has many equal pieces of work hands them to a ``concurrent.futures.Executor`` and takes the results in the
order of the pieces, so that its result is the same wherever they were done. What is handed over is a function at the
top of a module and plain values: a worker elsewhere imports the function by name and may see no file of this machine.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, TypeVar

from pydantic import AfterValidator, Field

from tasks.contract import EXECUTION, StageError, UserError

if TYPE_CHECKING:
    from distributed import Client

Piece = TypeVar("Piece")
Result = TypeVar("Result")

CONNECT_SECONDS = 30
"""How long a scheduler may take to answer, and to have a worker."""

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
def open_executor(workers: int, dask_address: str | None = None) -> Iterator[Executor]:
    """An executor for the time of a ``with`` block; what it has not begun is cancelled at the end.

    Args:
        workers: processes on this machine; 1 is a thread of this process. Not used with ``dask_address``: there the
            cluster has the workers that it has.
        dask_address: a Dask scheduler, whose workers have the same versions of Python and sahajflow.

    Raises:
        UserError: ``distributed`` is not installed, or the workers have other versions.
        StageError: the scheduler does not answer or has no workers.
    """
    if dask_address is not None:
        with _dask_client(dask_address) as client:
            yield client.get_executor()
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
    executor: Executor, function: Callable[[Piece], Result], pieces: Iterable[Piece], *, ahead: int
) -> Iterator[Result]:
    """``map`` that reads no more than ``ahead`` pieces before their results are taken, so that memory is bounded.

    Raises:
        StageError: workers died, or the cluster is gone.
        Exception: whatever ``function`` or the reading of the pieces raised.
    """
    waiting: deque[Future[Result]] = deque()
    try:
        for piece in pieces:
            waiting.append(_submitted(executor, function, piece))
            if len(waiting) == ahead:
                yield _result(waiting.popleft())
        while waiting:
            yield _result(waiting.popleft())
    finally:
        for future in waiting:
            future.cancel()


def _submitted(executor: Executor, function: Callable[[Piece], Result], piece: Piece) -> Future[Result]:
    try:
        return executor.submit(function, piece)
    except BrokenProcessPool as error:
        raise _died(error) from None


def _result(future: Future[Result]) -> Result:
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise _died(error) from None
    except Exception as error:
        # Dask's own errors are known by where they are defined: the package may not be there to compare with.
        if type(error).__module__.partition(".")[0] != "distributed":
            raise
        raise StageError(
            f"the Dask cluster failed: {type(error).__name__}: {_first_line(error)}; run again"
        ) from error


def _died(error: Exception) -> StageError:
    return StageError(f"a worker process was killed, for want of memory perhaps ({_first_line(error)}); run again")


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


@contextmanager
def _dask_client(address: str) -> Iterator[Client]:
    try:
        from distributed import Client
    except ImportError:
        raise UserError(f"{address}: needs Dask, which is not installed; pip install 'sahajflow[dask]'") from None
    try:
        client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise StageError(
            f"{address}: no Dask scheduler answers ({_first_line(error)}); start it, or unset scheduler"
        ) from None
    try:
        try:
            client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except TimeoutError:
            raise StageError(f"{address}: the Dask scheduler has no workers; start some") from None
        own = versions()
        for worker, theirs in sorted(client.run(versions).items()):
            for name, version in own.items():
                if theirs[name] != version:
                    raise UserError(
                        f"{address}: its worker {worker} has {name} {theirs[name]}, this machine {version}; "
                        "install the same versions"
                    )
        yield client
    finally:
        client.close()


def versions() -> dict[str, str]:
    """What decides a piece's result: this package, those that it calls, and Python with its tables of Unicode."""
    packages = {name: metadata.version(name) for name in ("sahajflow", "regex", "rensa", "tokenizers")}
    return packages | {"Python": f"{sys.version_info[0]}.{sys.version_info[1]}"}


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
