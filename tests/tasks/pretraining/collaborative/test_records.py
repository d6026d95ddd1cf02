"""What strangers write under a run's names is left out, and nobody writes under another's."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hivemind.utils import ValueWithExpiration
from pydantic import ValidationError

sys.path.insert(0, str(Path(__file__).parent))
from boards import PEER, PROGRESS, RUN, STEP, HeldDHT, board, peer, step

from tasks.pretraining.collaborative import records
from tasks.pretraining.collaborative.records import (
    MAX_RECORD,
    SKETCHES_TOLD,
    STEPS_TOLD,
    PeerRecord,
    StepEntry,
    SwarmRecord,
    key_digest,
    progress_of,
)
from tasks.pretraining.collaborative.sharding import Taken
from tasks.pretraining.collaborative.sketch import LENGTH


def test_records_round_trip():
    record = PeerRecord.model_validate_json(peer())
    assert record.model_dump(mode="json") == PEER
    assert PeerRecord.model_validate_json(record.model_dump_json()) == record
    assert record.taken.numbers == set(range(8))
    swarm = SwarmRecord(final_step=7, step=0, go=True, released=False, taken=Taken())
    assert SwarmRecord.model_validate_json(swarm.model_dump_json()) == swarm


def test_the_longest_record_of_a_peer_is_read(key):
    longest = StepEntry(**STEP | {"step": 10**9, "samples": 10**6, "mlm": 1234567.8901, "masked": 10**8, "order": 1e6})
    record = PeerRecord.model_validate(
        PEER
        | {"name": "n" * 40, "peer_id": "Q" * 100, "weights": "w" * 100, "taken": {"shards": "f" * 64}}
        | {"steps": [longest] * STEPS_TOLD, "sketches": [{"step": 10**9, "sketch": "A" * LENGTH}] * SKETCHES_TOLD}
    )
    text = record.model_dump_json()
    assert len(text) < MAX_RECORD / 2
    assert list(board({b"one": text}, key).contributions().values()) == [record]


GARBAGE: dict[str, Any] = {
    "no JSON": "garbage",
    "empty": "",
    "nothing": "null",
    "a list": "[]",
    "no fields": "{}",
    "a number": "17",
    "cut off": peer()[:-5],
    "two of them": peer() + peer(),
    "bytes": peer().encode(),
    "not a text": 17,
    "None": None,
    "a mapping": PEER,
    "a field more": peer(more=1),
    "a field less": json.dumps({name: value for name, value in PEER.items() if name != "taken"}),
    "NaN": peer(rate=float("nan")),
    "infinity": peer(rate=float("inf")),
    "too large a float": peer().replace("12.5", "1e999"),
    "NaN in a step": step(mlm=float("nan")),
    "infinity in a step": step(order=float("-inf")),
    "NaN in the proof": peer(proof=[float("nan"), 1.0]),
    "a negative rate": peer(rate=-1.0),
    "a negative step": peer(step=-1),
    "half a step": peer(step=1.5),
    "a text for a number": peer(step="many"),
    "a list for a number": peer(rate=[1.0]),
    "an unknown state": peer(state="dancing"),
    "an unknown outcome": step(outcome="great"),
    "step 0": step(step=0),
    "no group at all": step(group=0),
    "negative time": step(matching=-0.1),
    "a field more in a step": step(more=1),
    "no name": peer(name=""),
    "a long name": peer(name="x" * 41),
    "a long identity": peer(peer_id="x" * 101),
    "more steps than are told": peer(steps=[STEP] * (STEPS_TOLD + 1)),
    "1e6 entries": '{"steps": [' + "1," * 999_999 + "1]}",
    "1e6 short entries": peer(steps=[0] * 20_000),
    "shards that are none": peer(taken={"passed": 0, "shards": "zz"}),
    "too many shards": peer(taken={"passed": 0, "shards": "f" * 65}),
    "deep": "[" * 30_000 + "]" * 30_000,
    "deep in a field": peer().replace("12.5", "[" * 30_000 + "]" * 30_000),
    "half a character": peer().replace("peer-0", "\\ud800"),
    "a number of many digits": peer().replace('"step": 3', '"step": ' + "9" * 5_000),
    "too long": peer() + " " * MAX_RECORD,
}


@pytest.mark.parametrize("value", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_left_out_and_the_rest_is_read(value, key):
    entries = {b"stranger": value, b"friend": peer()}
    assert board(entries, key).contributions() == {key_digest(b"friend"): PeerRecord.model_validate(PEER)}
    assert board(entries, key).swarm(key_digest(b"stranger")) is None
    assert records.manifests(HeldDHT(entries)) == {}


ABSURD: dict[str, Any] = {
    "samples": step(samples=10**400),
    "masked": step(masked=10**400),
    "step of an entry": step(step=10**400),
    "group": step(group=10**400),
    "step": peer(step=10**400),
    "discarded": peer(discarded=10**400),
    "pass": peer(taken={"passed": 10**400, "shards": ""}),
}


@pytest.mark.parametrize("value", ABSURD.values(), ids=ABSURD)
def test_numbers_that_no_float_can_hold_are_left_out(value, key):
    """They would break the log, whose means divide by them."""
    assert board({b"stranger": value}, key).contributions() == {}


@pytest.mark.parametrize(
    "found",
    [None, TimeoutError(), RuntimeError("gone"), ValueWithExpiration("text", 1.0), ValueWithExpiration([1], 1.0), 5],
    ids=repr,
)
def test_a_network_that_gives_nothing_of_use_is_an_empty_board(found, key):
    empty = board(found, key)
    assert (empty.contributions(), empty.swarm("0" * 16), progress_of(empty.dht, empty.run_id)) == ({}, None, [])
    assert records.manifests(HeldDHT(found)) == {}


def test_names_that_are_no_bytes_are_left_out(key):
    entries = {5: peer(), "text": peer(), None: peer(), b"friend": peer(name="friend")}
    assert [one.name for one in board(entries, key).contributions().values()] == ["friend"]


def test_many_strangers_are_read_in_time(key):
    entries = {str(number).encode(): "x" * 1000 for number in range(5_000)} | {b"friend": peer()}
    started = time.monotonic()
    assert len(board(entries, key).contributions()) == 1
    assert time.monotonic() - started < 2


def test_only_the_word_of_the_coordinator_counts(key):
    word = SwarmRecord(final_step=7, step=0, go=True, released=False, taken=Taken())
    false = word.model_copy(update={"released": True})
    told = board({b"coordinator": word.model_dump_json(), b"stranger": false.model_dump_json()}, key)
    assert told.swarm(key_digest(b"coordinator")) == word
    assert told.swarm("0" * 16) is None


def test_progress_is_read_as_hiveminds_tracker_tells_it(key):
    entries = {b"one": PROGRESS, b"gone": None, b"stranger": "text", b"other": PROGRESS | {"epoch": 4}}
    assert [one.epoch for one in progress_of(board(entries, key).dht, RUN)] == [3, 4]


@pytest.mark.parametrize(
    "changes",
    [{"epoch": -1}, {"epoch": "x"}, {"time": None}, {"samples_per_second": float("inf")}],
    ids=repr,
)
def test_progress_that_does_not_fit_is_left_out(changes, key):
    entries = {b"stranger": PROGRESS | changes, b"one": PROGRESS}
    assert [one.epoch for one in progress_of(board(entries, key).dht, RUN)] == [3]


@pytest.mark.parametrize("model", [PeerRecord, StepEntry, SwarmRecord])
def test_records_do_not_change(model):
    values = {PeerRecord: PEER, StepEntry: STEP}.get(
        model, {"final_step": 1, "step": 0, "go": True, "released": False, "taken": {}}
    )
    record = model.model_validate(values)
    with pytest.raises(ValidationError, match="frozen"):
        setattr(record, next(iter(values)), 5)
