"""Steps at the same time: each a Prefect task with its own log, a bar for each, and an end that waits for nobody."""

import io
import logging
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from flows.at_once import threads_until_the_end
from flows.terminal import Terminal

if TYPE_CHECKING:
    from tests.flows.conftest import Server

NAMES = ("seed-run/random/ner/1", "seed-run/random/ner/2")


def steps() -> list[Any]:
    stage = SimpleNamespace(name="seed-run")
    return [SimpleNamespace(node=SimpleNamespace(name=name, stage=stage)) for name in NAMES]


def outcome() -> Any:
    return SimpleNamespace(
        action="ran", path="there", seconds=1.0, record=SimpleNamespace(metrics={}, stage="seed-run")
    )


def test_each_is_a_task_with_its_own_log(server: "Server") -> None:
    from flows import local_server

    local_server.use(local_server.ensure())
    from prefect import flow

    from flows.chain import _run_as_task, run_silently
    from flows.reporting import Reporter

    meeting = threading.Barrier(2)
    reporter = Reporter("demo")
    found = []

    def do(step: Any) -> Any:
        def work(progress: Any) -> Any:
            meeting.wait(30)  # passes only if both are at work
            logging.getLogger("eval.stub").info("from %s", step.node.name)
            meeting.wait(30)
            return outcome()

        return _run_as_task(step.node, work, run_silently, reporter)

    @flow(name="chain")
    def both() -> None:
        with threads_until_the_end() as at_once:
            found.extend(at_once(steps(), do, 2))

    both()
    reporter.close()
    assert sorted(step.node.name for step, _ in found) == list(NAMES)
    flow_run = server.last_run()
    deadline = time.monotonic() + 20
    while (states := server.task_states(flow_run)) != dict.fromkeys(NAMES, "Completed"):
        assert time.monotonic() < deadline, states
        time.sleep(0.2)
    while sorted(logs := [line for line in server.logs(flow_run) if line.startswith("from ")]) != [
        f"from {name}" for name in NAMES
    ]:
        assert time.monotonic() < deadline, logs
        time.sleep(0.2)
    assert reporter.warnings == []


def test_bars_stand_below_each_other_and_each_leaves_its_line() -> None:
    file = io.StringIO()
    terminal = Terminal(Console(file=file, force_terminal=True, width=120, height=40, color_system=None), 2)
    meeting = threading.Barrier(2)

    def do(step: Any) -> Any:
        def work(progress: Any) -> Any:
            progress(3, 10, unit="steps", note=f"at {step.node.name}")
            meeting.wait(30)
            time.sleep(0.6)
            return outcome()

        return terminal.run_node(step.node, work)

    with threads_until_the_end() as at_once:
        assert len(list(at_once(steps(), do, 2))) == 2
    text = file.getvalue()
    frames = [frame for frame in text.split("\x1b[2K") if f"at {NAMES[0]}" in frame and f"at {NAMES[1]}" in frame]
    assert frames
    assert frames[0].index("(1/2)") < frames[0].index("(2/2)")
    assert text.count("✓ random ner, seed") == 2


def test_what_was_not_begun_is_not_begun_after_an_error() -> None:
    begun: list[str] = []
    release = threading.Event()

    def do(step: Any) -> Any:
        begun.append(step.node.name)
        if step.node.name.endswith("/1"):
            raise ValueError("one")
        release.wait(30)
        return outcome()

    def run() -> None:
        with threads_until_the_end() as at_once:
            for _, result in at_once(steps() + steps()[1:] * 5, do, 2):
                release.set()
                assert isinstance(result, ValueError)
                raise result

    with pytest.raises(ValueError, match="one"):
        run()
    assert len(begun) <= 3
