import itertools
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from tiny import SETTINGS, processes_of_session

from tasks.record import verified_record
from tasks.store import Store

DRIVER = Path(__file__).with_name("chain_driver.py")
STAGES = ("corpus", "tokenizer", "pack", "pretrain", "seed-run", "evaluate", "report")
POINTS = [(stage, where) for stage in STAGES for where in ("start", "middle")]


def drive(store: Path, log: Path, *point: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", str(DRIVER), str(store), str(log), *point],
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=300,
        check=False,
    )


def published(store: Path) -> dict[str, tuple[int, int]]:
    files = (path for path in (store / "artifacts").rglob("*") if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_ino) for path in files}


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]], list[dict[str, Any]]]:
    """One chain, killed at the start and in the middle of every stage, each run going on from the last."""
    folder = tmp_path_factory.mktemp("kills")
    store, log = folder / "store", folder / "log.jsonl"
    snapshots = []
    for point in POINTS:
        done = drive(store, log, *point)
        assert done.returncode == -signal.SIGKILL, (point, done.stderr)
        snapshots.append(published(store))
    done = drive(store, log)
    assert done.returncode == 0, done.stderr
    snapshots.append(published(store))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return store, lines, snapshots


def test_every_named_point_was_hit(history: Any) -> None:
    _, lines, _ = history
    assert [line["killed"] for line in lines if "killed" in line] == [f"{stage} {where}" for stage, where in POINTS]


def test_published_artifacts_never_change(history: Any) -> None:
    _, _, snapshots = history
    for earlier, later in itertools.pairwise(snapshots):
        assert {path: later.get(path) for path in earlier} == earlier


def test_it_finishes_and_everything_verifies(history: Any) -> None:
    store, lines, _ = history
    assert lines[-1] == {"stage": "report", "action": "ran"}
    artifacts = list((store / "artifacts").glob("*/*"))
    assert len(artifacts) == 8
    for artifact in artifacts:
        verified_record(artifact, hashes=True)
    assert list((store / "work").glob("*/*")) == []
    assert list((store / "trash").iterdir()) == []


def test_nothing_finished_was_done_again(history: Any) -> None:
    _, lines, _ = history
    ran = [line["stage"] for line in lines if line.get("action") == "ran"]
    assert len(ran) == len(set(ran)) == 8


def test_pretraining_went_on_from_its_checkpoint(history: Any) -> None:
    _, lines, _ = history
    begins = [line["begins_at"] for line in lines if line.get("stage") == "pretrain" and "begins_at" in line]
    # Killed at the start, killed in the middle (step 20 of 40, a checkpoint every 5), and then to the end.
    assert len(begins) == 3
    assert begins[0] <= 1
    assert 15 <= begins[2] <= 21


def test_corpus_is_that_of_an_undisturbed_run(history: Any, tmp_path: Path) -> None:
    from flows.execution import Options, run_chain
    from tasks.contract import no_progress

    store, _, _ = history
    options = Options("demo", only="corpus", set_=SETTINGS, store=str(tmp_path / "store"))
    (outcome,) = run_chain(options, lambda node, work: work(no_progress))
    (record,) = Store(store).records("corpus")
    assert record.digest == outcome.record.digest


def test_kill_leaves_no_child(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-P", str(DRIVER), str(tmp_path / "store"), str(tmp_path / "log"), "pretrain", "middle"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.wait(timeout=300) == -signal.SIGKILL
    assert processes_of_session(process.pid) == []
