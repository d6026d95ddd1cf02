"""A member's node of the DHT, in a process of its own."""

from __future__ import annotations


def test_answers_come_back_and_end_with_the_node(member):
    one = member("network")
    one.ask("start", run_id="run")
    told = one.ask(
        "run",
        code="""
import asyncio, os, signal
from hivemind.utils import get_dht_time

def problem_with(ask):
    try:
        return str(ask())
    except Exception as error:
        return type(error).__name__

async def awaited():
    return await asyncio.wait_for(self.dht.get("word", return_future=True), 10)

answer = {"stored": self.dht.store("word", [1, "two"], get_dht_time() + 60)}
answer["found"] = [self.dht.get("word").value, asyncio.run(awaited()).value, self.dht.get("nothing")]
answer["wrong"] = problem_with(lambda: self.dht.store("word", 1, "soon"))
answer["after"] = self.dht.get("word").value
given_up = self.dht.get("word", return_future=True)
given_up.cancel()
os.kill(self.dht.pid, signal.SIGSTOP)
waiting = self.dht.get("word", return_future=True)
os.kill(self.dht.pid, signal.SIGKILL)
answer["waiting"] = problem_with(lambda: waiting.result(10))
answer["ended"] = problem_with(lambda: self.dht.get("word"))
""",
    )
    assert told["stored"] is True
    assert told["found"] == [[1, "two"], [1, "two"], None]
    assert told["wrong"] == "RuntimeError"  # what went wrong in the other process, and at once
    assert told["after"] == [1, "two"]
    assert told["waiting"] == told["ended"] == "ConnectionError"
