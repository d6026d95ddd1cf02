"""Volunteers with nothing but an address: a client counts, all leave, a keeper stays, and who comes later goes on."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from collaboration_runs import (
    assert_gone,
    join,
    lines_of,
    pack,
    recorded,
    start_driver,
    steps_of,
    swarm_folder,
    wait_for,
    work_folder,
)

from flows import swarm
from flows.swarm import Joining
from tasks.contract import UserError
from tasks.record import verified_record

STEPS = 90
BATCH = 1024

SETTINGS = (
    "pretraining.collaborative.peers=0",
    "pretraining.collaborative.keepers=1",
    f"pretraining.steps={STEPS}",
    f"pretraining.batch_size={BATCH}",
    "pretraining.accumulation=8",
)


def status_of(store: Path, member: str) -> dict[str, Any]:
    folder = swarm_folder(store)
    path = Path() if folder is None else folder / f"{member}.status.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def log_of(home: Path, name: str) -> str:
    (log,) = (home / "swarms").glob(f"*/{name}.log")
    return log.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A coordinator with a keeper; a peer and a client that leave; then another peer, to the end."""
    folder = tmp_path_factory.mktemp("volunteers")
    store = pack(folder / "organiser")
    processes: list[subprocess.Popen[str]] = [start_driver(store, *SETTINGS)]
    organiser, found = processes[0], SimpleNamespace(folder=folder)
    try:
        wait_for(lambda: (at := swarm_folder(store)) and (at / "meeting.json").exists(), organiser)
        at = swarm_folder(store)
        assert at is not None
        address = json.loads((at / "meeting.json").read_text())["addresses"][0]
        for name, options in {"asha": ("--bandwidth", "50"), "bimal": ("--role", "client")}.items():
            processes.append(join(address, name, folder / name, folder / f"{name}-home", *options))
        wait_for(
            lambda: (
                {part["name"] for line in steps_of(work_folder(store))[3:] for part in line["contributions"]}
                == {"asha", "bimal"}
            ),
            organiser,
            seconds=150,
        )
        found.roles = {peer["name"]: peer["role"] for peer in status_of(store, "coordinator")["peers"]}
        for volunteer in processes[1:]:
            volunteer.send_signal(signal.SIGINT)
        found.left = [(one.communicate(timeout=60)[0], one.returncode) for one in processes[1:]]
        wait_for(lambda: "nobody trains at present" in status_of(store, "coordinator")["message"], organiser)
        found.kept = status_of(store, "keeper-0")["step"]
        found.alive = sorted(recorded(store))
        processes.append(join(address, "chitra", folder / "chitra", folder / "chitra-home", "--stream"))
        found.last, _ = processes[-1].communicate(timeout=240)
        found.last_status = processes[-1].returncode
        found.said, _ = organiser.communicate(timeout=90)
        assert organiser.returncode == 0, found.said
        (found.published,) = store.glob("artifacts/pretrain/*")
        found.ledger = json.loads((found.published / "logs" / "ledger.json").read_text(encoding="utf-8"))
        found.store = store
        yield found
    finally:
        for one in processes:
            if one.poll() is None:
                one.kill()
                one.wait()
        assert_gone(folder)


def peers(run: SimpleNamespace) -> dict[str, dict[str, Any]]:
    return {peer["name"]: peer for peer in run.ledger["peers"]}


def test_everyones_role_is_told(run: SimpleNamespace) -> None:
    assert run.roles == {"keeper-0": "keeper", "asha": "peer", "bimal": "client"}


def test_only_those_who_computed_are_in_the_ledger(run: SimpleNamespace) -> None:
    assert set(peers(run)) == {"asha", "bimal", "chitra"}
    assert run.ledger["step"] == STEPS
    assert [line["step"] for line in steps_of(run.published)] == list(range(1, STEPS + 1))


def test_a_client_averages_nothing_and_its_gradients_count(run: SimpleNamespace) -> None:
    bimal, asha = peers(run)["bimal"], peers(run)["asha"]
    assert bimal["samples"] > 0
    assert bimal["outcomes"].get("averaged", 0) >= 2
    assert bimal["aggregated"] == 0
    assert asha["aggregated"] > 0
    both = [
        line["samples"]
        for line in steps_of(run.published)
        if {"asha", "bimal"} == {part["name"] for part in line["contributions"] if part["outcome"] == "averaged"}
    ]
    assert both
    assert min(both) >= BATCH


def test_who_leaves_says_goodbye(run: SimpleNamespace) -> None:
    assert [status for _, status in run.left] == [130, 130]
    assert "leaving" in log_of(run.folder / "asha-home", "asha")


def test_after_all_have_left_the_keeper_brings_the_next_one_to_the_same_step(run: SimpleNamespace) -> None:
    assert run.alive == ["coordinator", "keeper-0", "supervisor"]
    assert 4 <= run.kept < STEPS
    assert f"took over step {run.kept} from" in log_of(run.folder / "chitra-home", "chitra")
    assert peers(run)["chitra"]["first_step"] == run.kept + 1
    assert run.last_status == 0, run.last
    losses = [line["mlm_loss"] for line in steps_of(run.published)]
    assert losses[run.kept] < losses[0]  # it went on from there
    assert lines_of(run.published)[-1]["validation_loss"] < losses[0]


def test_who_joins_gets_tokenizer_and_corpus(run: SimpleNamespace) -> None:
    for artifact in ("tokenizer", "pack"):
        (theirs,) = (run.folder / "asha" / "artifacts" / artifact).iterdir()
        (ours,) = (run.store / "artifacts" / artifact).iterdir()
        assert verified_record(theirs, hashes=True).digest == verified_record(ours).digest


def test_who_streams_has_no_corpus_on_its_disk(run: SimpleNamespace) -> None:
    assert list((run.folder / "chitra" / "artifacts" / "tokenizer").iterdir())
    assert not (run.folder / "chitra" / "artifacts" / "pack").exists()
    assert peers(run)["chitra"]["samples"] >= BATCH


def test_who_joins_is_told_what_was_found_and_how_it_gets_on(run: SimpleNamespace) -> None:
    assert "reachable: others can connect to this machine" in run.last
    assert re.search(r"clock: [01]\.\d s (behind|before) the swarm's", run.last)
    assert "open files:" in run.last
    assert "micro-batches of" in log_of(run.folder / "chitra-home", "chitra")
    assert f"Left at step {STEPS} of {STEPS}; " in run.last
    (shown,) = (run.folder / "chitra-home" / "swarms").glob("*/chitra.status.json")
    status = json.loads(shown.read_text(encoding="utf-8"))
    assert (status["step"], status["target"], status["share"]) == (STEPS, STEPS, 1.0)
    assert {peer["role"] for peer in status["peers"]} <= {"peer", "keeper"}


def test_a_name_comes_back_to_its_place_in_the_data(run: SimpleNamespace) -> None:
    (place,) = (run.folder / "asha-home" / "swarms").glob("*/asha.shards.json")
    saved = json.loads(place.read_text())
    assert saved["position"]["used"] > 0


@pytest.mark.parametrize("role", ["auxiliary", "keeper"])
@pytest.mark.parametrize(("asked", "what"), [({"stream": True}, "--stream"), ({"micro_batch": 4}, "--micro-batch")])
def test_what_a_role_does_not_do_is_refused(tmp_path: Path, role: Any, asked: Any, what: str) -> None:
    joining = Joining(["/ip4/127.0.0.1/tcp/1/p2p/Qm"], role=role, **asked)
    with pytest.raises(UserError, match=f"{what}: the role {role} .*; leave it out"):
        swarm.join(joining, tmp_path, 1, lambda *_, **__: None)


def test_addresses_that_take_no_connection_are_named(caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    from tasks.pretraining.collaborative import machine

    one, two = "/ip4/192.0.2.1/tcp/1/p2p/Qm", "/ip4/192.0.2.2/tcp/1/p2p/Qm"
    monkeypatch.setattr(machine, "dial", lambda addresses: {one: "No route to host", two: None})
    assert swarm.reachable([one, two]) == [two]
    assert f"{one}: No route to host: going on without this address" in caplog.text
    monkeypatch.setattr(machine, "dial", lambda addresses: dict.fromkeys(addresses, "Connection refused"))
    with pytest.raises(UserError, match=r"192.0.2.1.*refused; .*192.0.2.2.*refused: no member takes a connection"):
        swarm.reachable([one, two])
