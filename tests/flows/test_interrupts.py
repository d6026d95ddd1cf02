import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from tiny import SETTINGS, processes_of_session

if TYPE_CHECKING:
    from tests.flows.conftest import Server


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_says_how_to_go_on_and_leaves_no_process(
    server: "Server", tmp_path: Path, number: signal.Signals
) -> None:
    settings = [part for setting in (*SETTINGS, "pretraining.steps=100000") for part in ("--set", setting)]
    store = tmp_path / "store"
    run = subprocess.Popen(
        [str(Path(sys.executable).with_name("sahajflow")), "run", "demo", "--store", str(store), *settings],
        env={**os.environ, "SAHAJFLOW_HOME": str(server.home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not list(store.glob("work/pretrain/*/logs/training.jsonl")):
        assert time.monotonic() < deadline
        assert run.poll() is None
        time.sleep(0.2)
    run.send_signal(number)
    _, said = run.communicate(timeout=30)
    assert run.returncode == 130
    assert said.splitlines()[-1].startswith("sahajflow: interrupted; ")
    assert processes_of_session(run.pid) == []
    assert list(store.glob("work/pretrain/*"))
    assert len(list(store.glob("artifacts/*/*"))) == 3
