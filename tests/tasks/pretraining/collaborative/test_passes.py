"""Passes: issued, read, revoked. What a revoked one means in a swarm: ``test_revoked.py``."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tasks.contract import UserError
from tasks.pretraining.collaborative import passes
from tasks.pretraining.collaborative.identities import peer_id_of_private
from tasks.pretraining.collaborative.passes import Register, read_pass


@pytest.fixture
def register(tmp_path: Path) -> Register:
    return Register(tmp_path / "passes")


def names(register: Register) -> list[str]:
    return [one.name for one in register.valid(register.read())]


def test_a_pass_is_issued_read_and_revoked(register, tmp_path):
    assert names(register) == []
    issued = register.issue("asha", 2.0, tmp_path / "asha.pass")
    assert (tmp_path / "asha.pass").stat().st_mode & 0o077 == 0
    found = read_pass(tmp_path / "asha.pass")
    assert found.issued_pass == issued
    assert peer_id_of_private(found.key) == issued.peer_id
    assert issued.expires == pytest.approx(time.time() + 2 * 86_400, abs=60)
    register.issue("binod", 2.0, tmp_path / "binod.pass")
    assert names(register) == ["asha", "binod"]
    register.revoke("asha")
    assert names(register) == ["binod"]
    again = register.issue("asha", 2.0, tmp_path / "again.pass")
    assert again.peer_id != issued.peer_id
    assert names(register) == ["binod", "asha"]


def test_what_an_organiser_may_not_do(register, tmp_path, monkeypatch):
    register.issue("asha", 2.0, tmp_path / "asha.pass")
    with pytest.raises(UserError, match="asha: has a pass already"):
        register.issue("asha", 2.0, tmp_path / "other.pass")
    with pytest.raises(UserError, match=r"asha\.pass: exists"):
        register.issue("binod", 2.0, tmp_path / "asha.pass")
    with pytest.raises(UserError, match="binod: has no pass that counts; those that do: asha"):
        register.revoke("binod")
    monkeypatch.setattr(passes, "MOST_PASSES", 1)
    with pytest.raises(UserError, match="1 passes count already"):
        register.issue("binod", 2.0, tmp_path / "binod.pass")
    (tmp_path / "passes" / "passes.json").write_text("{}x")
    with pytest.raises(UserError, match=r"passes\.json: is no register"):
        register.read()


def test_a_pass_that_was_changed_is_no_pass(register, tmp_path):
    register.issue("asha", 2.0, tmp_path / "asha.pass")
    register.issue("binod", 2.0, tmp_path / "binod.pass")
    good, other = (json.loads((tmp_path / f"{name}.pass").read_text()) for name in ("asha", "binod"))
    signed = good["issued_pass"]
    for change in (
        {"issued_pass": signed | {"expires": signed["expires"] + 1}},
        {"issued_pass": signed | {"name": "eve"}},
        {"issued_pass": signed | {"signature": other["issued_pass"]["signature"]}},
        {"issued_pass": signed | {"signature": ""}},
        {"private_key": other["private_key"]},
    ):
        file = tmp_path / "changed.pass"
        file.write_text(json.dumps(good | change))
        with pytest.raises(UserError, match="was changed after it was signed"):
            read_pass(file)
    for text in ("", "{}", json.dumps(good | {"more": 1}), json.dumps(good | {"private_key": "AAAA"})):
        file.write_text(text)
        with pytest.raises(UserError, match="is no pass"):
            read_pass(file)
    with pytest.raises(UserError, match="is no pass"):
        read_pass(tmp_path / "missing.pass")


def test_a_pass_expires(register, tmp_path, monkeypatch):
    register.issue("asha", 2.0, tmp_path / "asha.pass")
    later = time.time() + 3 * 86_400
    monkeypatch.setattr(passes.time, "time", lambda: later)
    assert names(register) == []
    with pytest.raises(UserError, match="expired on"):
        read_pass(tmp_path / "asha.pass")


def test_a_register_that_was_edited_admits_nobody_new(register, tmp_path):
    register.issue("asha", 2.0, tmp_path / "asha.pass")
    path = tmp_path / "passes" / "passes.json"
    issued = json.loads(path.read_text())
    forged = issued["passes"][0] | {"name": "eve", "peer_id": "QmEve"}
    elsewhere = Register(tmp_path / "elsewhere").issue("mallory", 9.0, tmp_path / "mallory.pass")
    issued["passes"] += [forged, elsewhere.model_dump()]
    path.write_text(json.dumps(issued))
    assert names(register) == ["asha"]
