"""Members of a swarm as processes of their own, none of which outlives its test module."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks import lifeline

DRIVER = Path(__file__).with_name("member_driver.py")


class Told:
    """A member of a swarm that does what it is told, and whose answers are waited for at most so long."""

    def __init__(self, folder: Path, name: str):
        self._folder, self._name, self._asked = folder, name, 0
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(DRIVER), str(folder), name],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", lifeline.MARK: str(folder / name)},
            )

    def tell(self, do: str, **arguments: Any) -> Callable[[], Any]:
        """Have something done; what is returned waits for the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        self.process.stdin.flush()
        path = self._folder / f"{self._name}-{self._asked}.pt"
        self._asked += 1
        return lambda seconds=60.0: self._answer(path, do, seconds)

    def ask(self, do: str, **arguments: Any) -> Any:
        """Have something done and wait for the answer."""
        return self.tell(do, **arguments)()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the member."""
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """End the member, and see to it that nothing of it is left."""
        with suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self.process.wait(10)
        lifeline.sweep(self._folder / self._name)

    def _answer(self, path: Path, do: str, seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        while not path.exists():
            ended = self.process.poll() is not None
            if ended or time.monotonic() > deadline:
                why = f"ended with {self.process.returncode}" if ended else f"gave no answer for {seconds:.0f} s"
                pytest.fail(f"{self._name} {why} at {do!r}:\n{self._log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.02)
        return torch.load(path, weights_only=True)


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Told]]:
    """Starts a member with a name."""
    folder, started = tmp_path_factory.mktemp("members"), []

    def start(name: str) -> Told:
        started.append(Told(folder, name))
        return started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.fixture(scope="module")
def key() -> Any:
    from hivemind.utils.crypto import RSAPrivateKey

    return RSAPrivateKey()


@pytest.fixture(scope="module")
def other_key() -> Any:
    from hivemind.utils.crypto import RSAPrivateKey

    return RSAPrivateKey()
