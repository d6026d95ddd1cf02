"""Seed runs at once: equal files however they are spread, crashes that stay single, and no process that is left."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from distributed import Client
from transformers import DistilBertConfig

sys.path.insert(0, str(Path(__file__).parent))
import spread_runs
from spread_runs import SHAPE, carried_out, evaluation

import eval.spread
import eval.tuning
from eval.prepared import prepared
from eval.spread import Spread, _shape_of, seed_run_bytes, spread_of
from tasks.contract import UserError

KEYS = [f"seed-run/random/topics/{seed}" for seed in (1, 2, 3)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Outcomes of the three seed runs, one after another in this process."""
    return carried_out(evaluation(3), tmp_path_factory.mktemp("alone"), Spread(1, 1))


def files_of(outcomes):
    return {
        (key, name): (outcomes[key].path / name).read_bytes()
        for key in KEYS
        for name in ("scores.json", "predictions.jsonl")
    }


def test_two_processes_give_the_same_bytes(alone, tmp_path):
    began = {}
    ended = {}

    def timed(node, work):
        began[node.name] = time.monotonic()
        told = []
        outcome = work(lambda done, total, **more: told.append((done, total)))
        ended[node.name] = time.monotonic()
        if node.name in KEYS:
            assert told[-1] == (8, 8), told
        return outcome

    spread = carried_out(evaluation(3), tmp_path, Spread(2, 1), timed)
    assert began[KEYS[1]] < ended[KEYS[0]], "not at once"
    assert files_of(spread) == files_of(alone)
    assert [spread[key].record.fingerprint for key in KEYS] == [alone[key].record.fingerprint for key in KEYS]
    assert {spread[key].record.resolved["threads"] for key in KEYS} == {1}
    assert {outcome.action for outcome in carried_out(evaluation(3), tmp_path, Spread(2, 1)).values()} == {"reused"}
    (scratch,) = {tuple(spread[key].path.glob("scratch*")) for key in KEYS}
    assert scratch == ()


def test_a_cluster_gives_the_same_bytes(alone, dask_address, tmp_path):
    spread = carried_out(evaluation(3), tmp_path, Spread(1, None, dask_address))
    assert files_of(spread) == files_of(alone)
    assert {spread[key].record.resolved["threads"] for key in KEYS} == {1}


def _tunes():
    tuning = sys.modules.get("eval.tuning")
    return tuning is not None and tuning._alone.locked()


def test_an_interrupted_run_leaves_no_worker_of_a_cluster_at_work(dask_address, tmp_path, monkeypatch):
    def tuning():
        with Client(dask_address, set_as_default=False) as client:
            return any(client.run(_tunes, on_error="ignore").values())

    def wait_for(met):
        deadline = time.monotonic() + 60
        while not met():
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def interrupt(cluster, future):
        wait_for(tuning)
        raise KeyboardInterrupt

    monkeypatch.setattr(eval.spread, "result_of", interrupt)
    with pytest.raises(KeyboardInterrupt):
        carried_out(evaluation(1, epochs=5000, train=2000), tmp_path, Spread(1, None, dask_address))
    wait_for(lambda: not tuning())


def test_seed_runs_that_crash_are_missing_and_named(tmp_path, monkeypatch):
    monkeypatch.setattr(eval.tuning, "tune_there", spread_runs.crashing)
    outcomes = carried_out(evaluation(5), tmp_path, Spread(2, 1))
    results = json.loads((outcomes["evaluate"].path / "results.json").read_text(encoding="utf-8"))
    (model,) = results["tasks"][0]["models"]
    missing = {failed["seed"]: failed["reason"] for failed in model["missing"]}
    assert (model["n"], sorted(missing)) == (3, [2, 3])
    assert missing[2] == "RuntimeError: no luck"
    assert missing[3].startswith("a worker process was killed")


def test_interrupted_while_two_run_none_is_left(tmp_path):
    script = Path(spread_runs.__file__)
    run = subprocess.Popen(
        [sys.executable, "-P", script, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert run.stdout.readline() == "both\n"
        children = psutil.Process(run.pid).children(recursive=True)
        assert len(children) >= 2
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == -signal.SIGINT
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    assert len(list(tmp_path.glob("work/seed-run/*"))) == 2
    assert list(tmp_path.glob("artifacts/seed-run/*")) == []


def test_wrong_input_ends_the_run_before_the_other_is_done(tmp_path, monkeypatch):
    began = time.monotonic()
    monkeypatch.setattr(eval.tuning, "tune_there", spread_runs.wrong_input)
    with pytest.raises(UserError, match="no label"):
        carried_out(evaluation(4), tmp_path, Spread(2, 1))
    assert time.monotonic() - began < 60
    assert list(tmp_path.glob("artifacts/seed-run/*")) == []


def test_threads_follow_the_machine_and_the_recipe_alone(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    def asked(cores, **changes):
        monkeypatch.setenv("OMP_NUM_THREADS", str(cores))
        found = spread_of(evaluation(3).model_copy(update=changes), SHAPE)
        return found.at_once, found.threads

    assert asked(1) == (1, 1)
    assert asked(2) == (2, 1)
    assert asked(8) == (3, 2), "more cores than seed runs"
    assert asked(8, at_once=1) == (1, 2)
    assert asked(8, at_once=8) == (8, 2)
    assert asked(8, threads=4) == (3, 4)
    monkeypatch.setattr(eval.spread, "total_memory", lambda: 2.9e9)
    assert asked(8) == (2, 4), "memory for two"
    monkeypatch.setattr(eval.spread, "total_memory", lambda: 1e8)
    assert asked(8) == (1, 8)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert asked(8) == (1, None)


def test_a_larger_model_of_others_leaves_room_for_fewer_and_the_threads_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.setattr(eval.spread, "total_memory", lambda: 8e9)
    DistilBertConfig(dim=768, n_layers=6, n_heads=12, hidden_dim=3072).save_pretrained(tmp_path)
    assert spread_of(evaluation(3), SHAPE) == Spread(3, 2)
    # 66 million weights at 24 bytes, and the process: two of them fit into 5.6 GB
    assert spread_of(evaluation(3), SHAPE, [(tmp_path, 66_000_000)]) == Spread(2, 2)
    assert spread_of(evaluation(3), SHAPE, [(tmp_path, 660_000_000)]) == Spread(1, 2)
    asked = evaluation(3).model_copy(update={"at_once": 3})
    assert spread_of(asked, SHAPE, [(tmp_path, 660_000_000)]) == Spread(3, 2), "what is asked for is done"


def test_a_seed_run_takes_more_memory_with_a_larger_model_and_batch():
    task = evaluation(1).tasks["topics"]
    small = seed_run_bytes(_shape_of(SHAPE), task)
    large = seed_run_bytes(_shape_of(SHAPE.model_copy(update={"hidden_size": 768, "layers": 12})), task)
    assert 0.7e9 < small < 0.8e9
    assert large > small + 7e6 * 12 * 4
    longer = task.model_copy(update={"fine_tuning": task.fine_tuning.model_copy(update={"batch_size": 800})})
    assert seed_run_bytes(_shape_of(SHAPE), longer) > small


def test_at_once_does_not_go_with_a_scheduler():
    with pytest.raises(ValueError, match="at_once 2 has no effect with a scheduler"):
        type(evaluation(1)).model_validate(
            evaluation(1).model_dump(mode="json") | {"at_once": 2, "scheduler": "tcp://127.0.0.1:1"}
        )


def test_data_are_read_and_encoded_once_until_a_file_changes(alone, tmp_path, monkeypatch):
    for split, rows in (("train", 4), ("validation", 2), ("test", 2)):
        lines = [json.dumps({"text": f"ক {row}", "label": "ab"[row % 2]}) for row in range(rows)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    files = {split: str(tmp_path / f"{split}.jsonl") for split in ("train", "validation", "test")}
    task = (
        evaluation(1)
        .tasks["topics"]
        .model_validate(
            {"kind": "classification", "source": {"kind": "files", **files}, "fine_tuning": {"max_length": 16}}
        )
    )
    folder = alone["tokenizer"].path
    first = prepared(task, folder)
    assert prepared(task.model_copy(update={"title": "other"}), folder) is first
    shorter = task.model_copy(update={"fine_tuning": task.fine_tuning.model_copy(update={"max_length": 8})})
    assert prepared(shorter, folder) is not first
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write('\n{"text": "খ", "label": "a"}\n')
    assert len(prepared(task, folder).data.splits["train"]) == 5
    assert len(first.encoded["train"]) == 4
