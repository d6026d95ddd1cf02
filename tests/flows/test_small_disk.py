"""A store on a file system of its own: one that is full, at each stage, and one that may only be read."""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from stub_chain import Chain
from tiny import SETTINGS

from flows import execution
from flows.command_line import main
from flows.execution import Options, run_chain
from flows.housekeeping import status
from tasks.contract import no_progress
from tasks.record import read_record

DRIVER = Path(__file__).with_name("disk_driver.py")
NODES = ("corpus", "tokenizer", "pack", "pretrain", "seed-run/pretrained/ner/1", "evaluate", "report")
PUBLISHED = ("corpus", "tokenizer", "pack", "report")
"""Filled while they are published, too. What comes after the others is so small that a full disk may hold it."""
POINTS = [
    f"{node} {point}"
    for node in NODES
    for point in ("start", "record: open new record", *["publish: rename work to artifact"] * (node in PUBLISHED))
]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no small file system can be mounted here")
    yield place
    subprocess.run(["umount", place], check=True)


def digests(store: Path) -> dict[str, str]:
    """Of all results but the report, which shows times."""
    results = (path for path in store.glob("artifacts/*/*") if path.parent.name != "report")
    return {f"{path.parent.name}/{path.name}": read_record(path).digest for path in results}


def test_a_full_disk_is_one_line_at_each_stage_and_costs_nothing(small: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", str(DRIVER), str(small / "store"), *POINTS],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout)
    assert [point for point, _, _ in ended] == POINTS
    # What is renamed needs no room: the last result is published on a full disk, too.
    assert ended.pop() == [POINTS[-1], "", ""]
    for point, kind, text in ended:
        assert kind == "MachineError", (point, kind, text)
        assert "\n" not in text
        assert "a disk is full (" in text or "of disk will be needed" in text, (point, text)
        assert f"{small / 'store'}" in text
    run_chain(
        Options("demo", set_=SETTINGS, store=str(tmp_path / "store"), workers=1), lambda _, work: work(no_progress)
    )
    assert digests(small / "store") == digests(tmp_path / "store")
    assert not list((small / "store").glob("work/*/*"))


def test_a_store_that_may_only_be_read_serves_what_it_has(
    small: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = Chain(small)
    chain.run()
    chain.settings["report"] = chain.settings["report"].model_copy(update={"size": 2})
    chain.meanwhile["report"] = lambda folder: pytest.fail("a run began")
    held = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in small.rglob("*") if path.is_file()}
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    store = ["--store", str(chain.store.root)]
    assert status(str(chain.store.root))[1:] == ["nothing is running, nothing is unfinished"]
    assert main(["verify", *store]) == 0
    assert main(["clean", *store]) == 0
    monkeypatch.setattr(execution, "nodes_of", lambda recipe: chain.nodes()[:-1])
    assert main(["run", "demo", "--until", "evaluate", *store]) == 0
    assert "Nothing to do" in capsys.readouterr().out
    monkeypatch.setattr(execution, "nodes_of", lambda recipe: chain.nodes())
    assert main(["run", "demo", *store]) == 2
    assert capsys.readouterr().err == (
        f"sahajflow: {chain.store.root}: the store cannot be written (it may only be read); use --store\n"
    )
    assert held == {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in small.rglob("*") if path.is_file()}
