"""Tasks that wait for nothing but another process are kept."""

import asyncio
import gc
import weakref

import pytest

from tasks.pretraining.collaborative.event_loop import keep_tasks


async def wait_in_vain(told: list[weakref.ref]) -> None:
    future = asyncio.get_running_loop().create_future()
    told.append(weakref.ref(future))  # all that hivemind's futures are known by
    await future


@pytest.mark.parametrize("kept", [False, True])
def test_a_task_that_waits_is_not_collected(kept):
    async def run() -> bool:
        told: list[weakref.ref] = []
        if kept:
            keep_tasks()
        asyncio.create_task(wait_in_vain(told))  # noqa: RUF006 - as hivemind does
        await asyncio.sleep(0)
        gc.collect()
        future = told[0]()
        if future is not None:
            future.set_result(None)
            await asyncio.sleep(0)
        return future is not None

    assert asyncio.run(run()) is kept
