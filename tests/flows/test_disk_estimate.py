"""What becomes of a stage's estimate of the disk that it takes."""

import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from stub_chain import Chain, StubSettings

from flows import execution
from flows.command_line import main
from flows.graph import Node
from tasks import room
from tasks.contract import MachineError, Stage

FREE = 1_000


@pytest.fixture
def estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A chain whose stages estimate what they are given here, on a disk with 1,000 bytes free."""
    chain = Chain(tmp_path)
    needs: dict[str, int | None] = {}
    make = chain.nodes

    def nodes() -> list[Node]:
        return [
            Node(
                node.name,
                Stage(node.name, 1, StubSettings, node.stage.run, lambda *_, name=node.name: needs.get(name)),
                node.settings,
                node.inputs,
            )
            for node in make()
        ]

    monkeypatch.setattr(chain, "nodes", nodes)
    monkeypatch.setattr(execution, "nodes_of", lambda recipe: nodes())
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(room.shutil, "disk_usage", lambda place: usage(FREE))
    return chain, needs


def test_plan_warns_and_run_refuses_before_the_first_stage(estimated: Any, capsys: pytest.CaptureFixture[str]) -> None:
    chain, needs = estimated
    store = ["--store", str(chain.store.root)]
    needs |= {"corpus": 600, "pack": 600, "tokenizer": None}
    assert main(["plan", "demo", *store]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("run    corpus")
    assert "will be needed (corpus 0.0 MB, pack 0.0 MB), and 0.0 MB are free" in told.err
    assert main(["run", "demo", *store]) == 2
    assert capsys.readouterr().err == told.err
    assert chain.ran == []
    assert main(["plan", "demo", "--until", "tokenizer", *store]) == 0
    assert capsys.readouterr().err == ""


def test_a_stage_whose_need_is_known_late_does_not_begin(estimated: Any) -> None:
    chain, needs = estimated
    needs["pack"] = FREE + 1
    with pytest.raises(MachineError, match=r"^pack: .*store: about .* of disk will be needed \(pack .* are free; "):
        chain.run()
    assert chain.ran == ["corpus", "tokenizer"]


def test_what_an_unfinished_attempt_has_written_is_not_needed_again(estimated: Any) -> None:
    chain, needs = estimated
    needs["pack"] = FREE + 300

    def write(folder: Path) -> None:
        (folder / "scratch").mkdir()
        (folder / "scratch" / "half").write_bytes(bytes(300))
        needs["pack"] = FREE + 300
        raise KeyboardInterrupt

    needs["pack"], chain.meanwhile["pack"] = FREE, write
    with pytest.raises(KeyboardInterrupt):
        chain.run()
    chain.meanwhile.clear()
    chain.run()
    assert chain.ran == ["pack", "evaluate", "report"]


def test_a_machine_that_refuses_ends_the_run_at_a_seed_run_too(
    estimated: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, needs = estimated
    monkeypatch.setattr(Node, "dispensable", True)
    needs["pack"] = FREE + 1
    with pytest.raises(MachineError):
        chain.run()
    assert "evaluate" not in chain.ran
