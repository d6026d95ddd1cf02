"""hivemind's event loops, without a trap of theirs: a task that waits may be collected as garbage.

asyncio's loops refer to tasks weakly. One of hivemind 1.1.12 that waits for another process, as a round does for its
trigger and the sender of a state for that state, is known to nothing but the future that it waits for, and the future
to nothing but the task. If the two are collected, the task never ends, and whoever waits for it does so in vain.
"""

from __future__ import annotations

import asyncio
from typing import Any

_kept: set[asyncio.Future[Any]] = set()


def keep_tasks() -> None:
    """Have the running event loop keep each of its tasks until it is over."""
    asyncio.get_running_loop().set_task_factory(_make)


def _make(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    task = asyncio.Task(coroutine, loop=loop, **options)
    _kept.add(task)
    task.add_done_callback(_kept.discard)
    return task
