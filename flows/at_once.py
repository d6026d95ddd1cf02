"""Steps that are worked on at the same time, each in a thread that shows it and publishes what it leaves."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from contextvars import copy_context

from flows.plan import Step
from flows.step_work import StageOutcome

Ended = Generator[tuple[Step, StageOutcome | Exception]]
"""Steps as they end, each with its outcome or with what it raised."""


def one_by_one(steps: list[Step], do: Callable[[Step], StageOutcome]) -> Ended:
    """The steps in order, in this thread."""
    for step in steps:
        try:
            yield step, do(step)
        except Exception as error:
            yield step, error


@contextmanager
def threads_until_the_end() -> Iterator[Callable[[list[Step], Callable[[Step], StageOutcome], int], Ended]]:
    """A function that does steps in so many threads, begun in order; the context ends when no thread is left.

    Whatever the threads wait for is to be opened inside the context: when an interruption leaves it, what is inside is
    ended first, and then the threads come to an end as well. Steps that were not begun are not begun any more.
    """
    with ExitStack() as end:

        def at_once(steps: list[Step], do: Callable[[Step], StageOutcome], count: int) -> Ended:
            threads = ThreadPoolExecutor(count, thread_name_prefix="step")
            end.callback(threads.shutdown, wait=True, cancel_futures=True)
            # A context for each thread: Prefect keeps there which flow, and which task of it, is running.
            running: dict[Future[StageOutcome], Step] = {
                threads.submit(copy_context().run, do, step): step for step in steps
            }
            try:
                while running:
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        error = future.exception()
                        if error is not None and not isinstance(error, Exception):
                            raise error
                        yield running.pop(future), error or future.result()
            finally:
                for future in running:
                    future.cancel()

        yield at_once
