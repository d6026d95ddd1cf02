from pathlib import Path

import pytest

from flows.command_line import main
from flows.doctor import doctor, table
from tasks.checks import Check
from tasks.store import Store


def test_nothing_is_written_into_a_foreign_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    assert any("no store" in check.finding and check.state == "fail" for check in doctor(str(tmp_path)))
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_the_locks_of_a_store_are_tried(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.create()
    assert any(check.finding == "locks work in the store" and check.state == "ok" for check in doctor(str(store.root)))


def test_the_remedy_stands_below_what_is_not_fine() -> None:
    checks = [Check("Python", "ok", "3.11", "no use"), Check("driver", "fail", "none", "install it")]
    assert table([*checks, Check("disk", "warn", "little", "clean")]) == [
        "ok    Python  3.11",
        "FAIL  driver  none",
        "              install it",
        "WARN  disk    little",
        "              clean",
    ]


def test_the_engine_adds_its_own_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = str(tmp_path / "store")
    interpreter = f"pretraining.gaudi.python={tmp_path / 'none/bin/python'}"
    assert main(["doctor", "--store", store, "--engine", "gaudi", "--set", interpreter]) == 1
    told = capsys.readouterr().out
    assert f"no interpreter at {tmp_path / 'none/bin/python'}" in told
    assert "for 8 processes" in told
    assert "'.[gaudi]'" in told
    assert main(["doctor", "--store", store, "--set", interpreter]) == 2
    assert "--set goes with --engine" in capsys.readouterr().err
