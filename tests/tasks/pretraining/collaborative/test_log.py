"""From peers' records to the lines of global steps, and from those to the ledger."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tasks.pretraining.collaborative.log import PATIENCE, StepLog, ledger, steps_of
from tasks.pretraining.collaborative.records import PeerRecord, StepEntry
from tasks.pretraining.collaborative.sharding import Taken
from tasks.pretraining.settings import PretrainingSettings
from tasks.pretraining.validation import Validation

LENGTH = 128
SETTINGS = PretrainingSettings(steps=700, batch_size=64, warmup_steps=10, learning_rate=1e-3)
A, B = "aaaa000011112222", "bbbb000011112222"


def entry(step: int, samples: int = 32, **changes: Any) -> StepEntry:
    values: dict[str, Any] = {
        "step": step,
        "samples": samples,
        "mlm": 100.0,
        "masked": 40,
        "order": None,
        "outcome": "averaged",
        "group": 2,
        "matching": 0.5,
        "reducing": 0.25,
        "computing": 2.0,
    }
    return StepEntry(**values | changes)


def record(name: str, *steps: StepEntry) -> PeerRecord:
    return PeerRecord(name=name, peer_id="Qm", state="training", step=0, rate=1.0, taken=Taken(), steps=steps)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "training.jsonl"


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_line_holds_what_all_peers_put_into_a_step(path):
    log = StepLog(path, SETTINGS, LENGTH)
    slow = entry(1, 40, mlm=90.0, masked=60, matching=0.1, reducing=0.75, computing=2.5)
    log.hear({B: record("peer-1", slow), A: record("peer-0", entry(1, 24))}, 12.34567, last=True)
    (line,) = lines_of(path)
    assert line == {
        "step": 1,
        "loss": 1.9,
        "mlm_loss": 1.9,  # (100 + 90) / (40 + 60)
        "sop_loss": None,
        "learning_rate": 0.0,  # the first step of a warmup
        "tokens": 64 * LENGTH,
        "samples": 64,
        "seconds": 12.346,
        "group": 2,
        "outcome": "averaged",
        "matching": 0.1,
        "reducing": 0.75,
        "computing": 2.5,
        "contributions": [
            {
                "peer": A,
                "name": "peer-0",
                "samples": 24,
                "outcome": "averaged",
                "group": 2,
                "aggregated": 0.0,
                "matching": 0.5,
                "reducing": 0.25,
                "computing": 2.0,
            },
            {
                "peer": B,
                "name": "peer-1",
                "samples": 40,
                "outcome": "averaged",
                "group": 2,
                "aggregated": 0.0,
                "matching": 0.1,
                "reducing": 0.75,
                "computing": 2.5,
            },
        ],
    }
    assert log.loss == 1.9
    assert log.written == 1


def test_sentence_order_is_a_mean_over_sequences(path):
    log = StepLog(path, SETTINGS, LENGTH)
    log.hear({A: record("a", entry(6, 30, order=15.0)), B: record("b", entry(6, 10, order=9.0))}, 1.0, last=True)
    (line,) = lines_of(path)
    assert line["sop_loss"] == pytest.approx(24 / 40)
    assert line["mlm_loss"] == pytest.approx(200 / 80)
    assert line["loss"] == pytest.approx(24 / 40 + 200 / 80)
    assert line["learning_rate"] == pytest.approx(0.5e-3)


def test_a_line_waits_for_peers_that_lag_and_comes_once(path):
    log = StepLog(path, SETTINGS, LENGTH)
    log.hear({A: record("a", entry(1), entry(2))}, 1.0)
    assert lines_of(path) == []
    log.hear({A: record("a", entry(1), entry(2)), B: record("b", entry(1, 8))}, 2.0)
    assert lines_of(path) == []
    log.hear({A: record("a", *(entry(step) for step in range(1, 2 + PATIENCE))), B: record("b", entry(1, 8))}, 3.0)
    assert [(line["step"], line["samples"], line["seconds"]) for line in lines_of(path)] == [
        (1, 40, 1.0)
    ]  # when it was first heard of
    # what comes too late, and what comes again, changes nothing
    log.hear({B: record("b", entry(1, 8), entry(2, 8))}, 4.0)
    log.hear({B: record("b", entry(1, 8), entry(2, 8))}, 5.0)
    assert len(lines_of(path)) == 1
    log.hear({}, 6.0, last=True)
    assert [(line["step"], line["samples"], line["tokens"]) for line in lines_of(path)] == [
        (1, 40, 40 * LENGTH),
        (2, 40, 80 * LENGTH),
        (3, 32, 112 * LENGTH),
    ]


def test_steps_come_in_order_even_if_told_out_of_order(path):
    log = StepLog(path, SETTINGS, LENGTH)
    log.hear({A: record("a", entry(3), entry(1), entry(2))}, 1.0)
    log.hear({B: record("b", entry(2), entry(9))}, 2.0, last=True)
    assert [line["step"] for line in lines_of(path)] == [1, 2, 3, 9]


def test_the_averaged_count_and_those_who_went_alone_do_not(path):
    log = StepLog(path, SETTINGS, LENGTH)
    alone = entry(1, 64, mlm=999.0, outcome="no group", group=1, matching=9.0)
    three = {A: entry(1), B: entry(1, 16), "cccc000011112222": alone}
    log.hear({key: record("p", one) for key, one in three.items()}, 1.0, last=True)
    (line,) = lines_of(path)
    assert (line["samples"], line["outcome"], line["group"], line["mlm_loss"]) == (48, "averaged", 2, 2.5)
    assert line["matching"] == 0.5
    assert [one["outcome"] for one in line["contributions"]] == ["averaged", "averaged", "no group"]


def test_without_a_group_a_step_is_that_of_the_peer_with_most_samples(path):
    log = StepLog(path, SETTINGS, LENGTH)
    apart = {
        A: record("a", entry(1, 24, outcome="no group", group=1)),
        B: record("b", entry(1, 40, mlm=80.0, outcome="failed", group=1)),
    }
    log.hear(apart, 1.0, last=True)
    (line,) = lines_of(path)
    assert (line["samples"], line["tokens"], line["mlm_loss"]) == (40, 40 * LENGTH, 2.0)
    assert (line["outcome"], line["group"], len(line["contributions"])) == ("failed", 1, 2)


def test_a_peer_with_no_masked_token_divides_by_nothing(path):
    log = StepLog(path, SETTINGS, LENGTH)
    log.hear({A: record("a", entry(1, 0, mlm=0.0, masked=0, order=0.0))}, 1.0, last=True)
    assert lines_of(path)[0]["loss"] == 0.0


def test_a_name_with_line_breaks_stays_in_its_line(path):
    log = StepLog(path, SETTINGS, LENGTH)
    log.hear({A: record('"\n{"step": 9}\u2028', entry(1))}, 1.0, last=True)
    assert [line["contributions"][0]["name"] for line in steps_of(path)] == ['"\n{"step": 9}\u2028']


def test_the_log_goes_on_where_it_was(path):
    log = StepLog(path, SETTINGS, LENGTH)
    log.hear({A: record("a", entry(1), entry(2))}, 1.0, last=True)
    log.tell_validation(2, Validation(math.log(25.0), 0.5, 0.75))
    again = StepLog(path, SETTINGS, LENGTH)
    again.go_on_from(2)
    assert (again.written, again.loss) == (2, 2.5)
    again.hear({A: record("a", entry(2), entry(3))}, 5.0, last=True)
    assert [(line["step"], line.get("tokens")) for line in lines_of(path)] == [
        (1, 32 * LENGTH),
        (2, 64 * LENGTH),
        (2, None),
        (3, 96 * LENGTH),
    ]
    assert lines_of(path)[2] == {
        "step": 2,
        "validation_loss": math.log(25.0),
        "perplexity": pytest.approx(25.0),
        "masked_accuracy": 0.5,
        "validation_sop_accuracy": 0.75,
    }
    assert [line["step"] for line in steps_of(path)] == [1, 2, 3]
    assert (StepLog(path.with_name("other"), SETTINGS, LENGTH).loss, steps_of(path.with_name("other"))) == (None, [])


def test_cutting_back_to_a_checkpoint_keeps_its_validation_that_came_after_later_steps(path):
    """While the coordinator downloads and validates step 4 the peers go on, so its line comes after that of step 5."""
    log = StepLog(path, SETTINGS, LENGTH)
    log.hear({A: record("a", *(entry(step) for step in range(1, 6)))}, 1.0, last=True)
    log.tell_validation(4, Validation(3.25, 0.5, None))
    log.hear({A: record("a", entry(6))}, 2.0, last=True)
    StepLog(path, SETTINGS, LENGTH).go_on_from(4)
    assert [line["step"] for line in steps_of(path)] == [1, 2, 3, 4]
    assert [line["step"] for line in lines_of(path) if "validation_loss" in line] == [4]


def test_what_a_checkpoint_had_no_line_for_and_the_log_has_by_now_is_not_written_twice(path):
    log = StepLog(path, SETTINGS, LENGTH)
    log.hear({A: record("a", *(entry(step) for step in range(1, 6)))}, 1.0)
    checkpoint = log.unwritten
    assert [one["entry"]["step"] for one in checkpoint] == [4, 5]
    log.hear({A: record("a", *(entry(step) for step in range(4, 9)))}, 2.0)
    again = StepLog(path, SETTINGS, LENGTH)
    assert again.go_on_from(5, checkpoint) == 1.0
    again.hear({A: record("a", entry(6), entry(7))}, 3.0, last=True)
    assert [line["step"] for line in steps_of(path)] == [1, 2, 3, 4, 5, 6, 7]


def test_a_strangers_step_beyond_the_run_does_not_end_the_log(path):
    log = StepLog(path, SETTINGS, LENGTH)
    log.hear({A: record("a", entry(1)), B: record("b", entry(10**9), entry(10**9 + PATIENCE))}, 1.0)
    log.hear({A: record("a", entry(1), entry(2))}, 2.0)
    log.hear({A: record("a", entry(3))}, 3.0, last=True)
    assert [line["step"] for line in steps_of(path)] == [1, 2, 3]


def test_the_ledger_is_the_sum_of_the_lines(path):
    log = StepLog(path, SETTINGS, LENGTH)
    together = {
        B: record("peer-0", entry(1, 48), entry(2, 32, matching=1.5)),
        A: record("peer-1", entry(1, 16), entry(2, 32)),
    }
    log.hear(together, 10.0, last=True)
    log.tell_validation(2, Validation(3.0, 0.5, None))
    apart = {
        B: record("peer-0", entry(3, 64, outcome="no group", group=1, matching=5.0, reducing=0.0)),
        A: record("peer-1", entry(3, 8, outcome="failed", group=1)),
    }
    log.hear(apart, 20.0, last=True)
    log.hear(
        {B: record("peer-0", entry(4, 60, outcome="alone", group=1, matching=0.0, reducing=0.0))}, 30.0, last=True
    )
    final = {"peers": ["peer-0"], "distance": None, "bound": 1e-3}
    book = ledger(steps_of(path), SETTINGS, "deadline", final, {A: 60, B: 210})
    assert book == {
        "target_step": 700,
        "step": 4,
        "end": "deadline",
        "target_batch": 64,
        "samples": 64 + 64 + 64 + 60,
        "lost": 6 + 12,
        "seconds": 30.0,
        "peers": [
            {
                "name": "peer-0",
                "peer": B,
                "samples": 204,
                "share": round(204 / 260, 4),
                "steps": 4,
                "first_step": 1,
                "last_step": 4,
                "aggregated": 0.0,
                "matching": 7.0,
                "reducing": 0.5,
                "computing": 8.0,
                "outcomes": {"averaged": 2, "no group": 1, "alone": 1},
                "lost": 210 - 204,
            },
            {
                "name": "peer-1",
                "peer": A,
                "samples": 56,
                "share": round(56 / 260, 4),
                "steps": 3,
                "first_step": 1,
                "last_step": 3,
                "aggregated": 0.0,
                "matching": 1.5,
                "reducing": 0.75,
                "computing": 6.0,
                "outcomes": {"averaged": 2, "failed": 1},
                "lost": 60 - (56 - 8),  # its gradients of the third step were not used
            },
        ],
        "groups": {"1": 2, "2": 2},
        "outcomes": {"averaged": 2, "no group": 1, "alone": 1},
        "per_step": {
            "matching": round((0.5 + 1.5 + 5.0 + 0.0) / 4, 4),
            "reducing": round((0.25 + 0.25) / 4, 4),
            "computing": 2.0,
            "seconds": 7.5,
        },
        "final": final,
    }
    assert json.loads(json.dumps(book)) == book


def test_the_ledger_of_a_run_without_steps():
    book = ledger([], SETTINGS, "deadline", {"peers": [], "distance": None, "bound": 1e-3}, {})
    assert (book["step"], book["samples"], book["peers"], book["groups"], book["seconds"]) == (0, 0, [], {}, 0.0)
    assert book["per_step"] == {"matching": 0.0, "reducing": 0.0, "computing": 0.0, "seconds": 0.0}


def test_what_a_peer_computed_counts_over_its_processes_and_the_coordinators(path):
    log = StepLog(path, SETTINGS, LENGTH)
    for count in (32, 96, 16, 48):  # a new process begins to count anew
        log.hear({A: record("a").model_copy(update={"computed": count})}, 1.0)
    assert log.computed == {A: 96 + 48}
    again = StepLog(path, SETTINGS, LENGTH)
    again.go_on_from(0, (), log.counts)
    again.hear({A: record("a").model_copy(update={"computed": 8})}, 2.0)
    assert again.computed == {A: 96 + 48 + 8}


def test_a_process_that_outlived_the_coordinator_is_not_counted_twice(path):
    log = StepLog(path, SETTINGS, LENGTH)
    log.hear({A: record("a").model_copy(update={"computed": 48})}, 1.0)
    again = StepLog(path, SETTINGS, LENGTH)
    again.go_on_from(0, (), log.counts)
    again.hear({A: record("a").model_copy(update={"computed": 60})}, 2.0)
    assert again.computed == {A: 60}


def test_the_log_goes_on_where_the_swarm_is_and_says_what_it_lacks(path, caplog):
    log = StepLog(path, SETTINGS, LENGTH)
    log.hear({A: record("a", *(entry(step) for step in range(1, 6)))}, 9.0, last=True)
    with path.open("a") as file:
        file.write('{"step": 6, "lo')  # killed while it wrote
    again = StepLog(path, SETTINGS, LENGTH)
    assert again.go_on_from(4) == 9.0
    assert again.written == 4
    again.hear({A: record("a", *(entry(step) for step in (4, 5, 8)))}, 10.0, last=True)
    assert [line["step"] for line in steps_of(path)] == [1, 2, 3, 4, 5, 8]
    assert "global steps 6 to 7" in caplog.text
