"""Processes of this machine for long pieces of work, each of which may crash by itself.

``ProcessPoolExecutor`` gives all pieces up when one of its processes is killed, for want of memory say, and waits for
running ones when it is left. Here each process is a pool of its own: one that dies takes nothing with it but its own
piece, and another takes its place. When the executor is left by an error or an interruption, or its process ends in
any way, ``kill -9`` included, they are gone at once: each holds the reading end of a pipe that nobody writes to.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib import import_module
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")


@contextmanager
def separate_processes(count: int, threads: int, modules: Sequence[str] = ()) -> Iterator[Executor]:
    """So many processes, started at once, for the time of a ``with`` block.

    Args:
        count: number of processes, and of pieces that are done at the same time.
        threads: for the computing libraries of each.
        modules: imported by each process before its first piece, so that they start up together.
    """
    executor = _Separate(count, threads, modules)
    try:
        yield executor
    except BaseException:
        executor.end()
        raise
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


class _Separate(Executor):
    def __init__(self, count: int, threads: int, modules: Sequence[str]) -> None:
        self._arguments = (threads, tuple(modules))
        # A fork would copy the locks of threads that are not copied: torch and Arrow hang then.
        self._context = multiprocessing.get_context("spawn")
        self._lifeline, self._held_end = self._context.Pipe(duplex=False)
        self._ended = False
        self._idle: SimpleQueue[ProcessPoolExecutor] = SimpleQueue()
        for _ in range(count):
            self._idle.put(self._process())
        self._waiting = ThreadPoolExecutor(count, thread_name_prefix="process")
        self._count = count

    def submit(self, function: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        return self._waiting.submit(self._done, function, args, kwargs)

    def end(self) -> None:
        """Have all processes gone, whatever they do."""
        self._ended = True
        self._held_end.close()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._waiting.shutdown(wait=wait, cancel_futures=cancel_futures)
        if not wait:
            return
        for _ in range(self._count):
            self._idle.get().shutdown(wait=True)
        self._held_end.close()
        self._lifeline.close()

    def _process(self) -> ProcessPoolExecutor:
        pool = ProcessPoolExecutor(
            1, mp_context=self._context, initializer=_begin, initargs=(self._lifeline, *self._arguments)
        )
        pool.submit(os.getpid)  # starts it now
        return pool

    def _done(self, function: Callable[..., Result], args: Any, kwargs: Any) -> Result:
        pool = self._idle.get()
        try:
            if self._ended:
                raise BrokenProcessPool("the processes were ended")
            return pool.submit(function, *args, **kwargs).result()
        except BrokenProcessPool:
            if not self._ended:
                pool.shutdown(wait=True)
                pool = self._process()
            raise
        finally:
            self._idle.put(pool)


def _begin(lifeline: Connection, threads: int, modules: tuple[str, ...]) -> None:
    """In a new process: end when the lifeline does, leave Ctrl-C to the parent, and import what will be needed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def wait_for_end() -> None:
        try:
            lifeline.recv_bytes()
        finally:
            os._exit(1)

    threading.Thread(target=wait_for_end, name="lifeline", daemon=True).start()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ[name] = str(threads)  # read when the libraries are imported
    for name in modules:
        import_module(name)
