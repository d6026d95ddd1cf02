import os
import resource
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

import flows.doctor as doctor_module
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
    assert doctor_module._lock(store) == Check(
        "locks",
        "ok",
        "locks work in the store, between two processes",
        "put the store on a local disk or on NFS 4 with locking",
    )


def test_locks_that_do_not_hold_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store")
    store.create()
    monkeypatch.setattr(doctor_module.locks, "held", lambda path, must_tell: nullcontext())
    assert (doctor_module._lock(store).state, doctor_module._lock(store).finding) == (
        "fail",
        "locks do not hold in the store",
    )


def test_a_result_from_the_future_is_said(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    record = store.root / "artifacts/corpus/0/record.json"
    record.parent.mkdir(parents=True)
    record.touch()
    assert doctor_module._clock(store).state == "ok"
    os.utime(record, (time.time() + 3600,) * 2)
    assert doctor_module._clock(store) == Check(
        "clock",
        "warn",
        "the store has a result from 60 minutes ahead",
        "timedatectl set-ntp true, here and on the machine that made it",
    )


def test_memory_processes_and_home_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAHAJFLOW_HOME", str(tmp_path / "home"))
    checks = {check.name: check for check in doctor(str(tmp_path / "store"))}
    assert {"GPU", "memory", "processes", "home", "server"} <= set(checks)
    assert checks["server"].finding == "none runs; `sahajflow run` and `sahajflow up` start a local one"
    monkeypatch.setattr(resource, "getrlimit", lambda which: (100, 100))
    assert (doctor_module._processes().state, doctor_module._processes().remedy) == ("fail", "ulimit -u 1024")


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
