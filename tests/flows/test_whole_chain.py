"""The real chain, tiny, end to end; and what it leaves, loaded with the ecosystem's own tools."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from tiny import SETTINGS

from flows.execution import Options, prepare, run_chain
from flows.export import collect, write_folder
from flows.step_work import StageOutcome
from tasks.contract import no_progress

ALBERT = (
    "model.architecture=albert",
    "model.embedding_size=16",
    "packing.mode=sentence-pairs",
    "pretraining.objective=mlm+sop",
    "tokenizer.definition=bengali-unigram-32k",
    "tokenizer.vocabulary_size=400",
    "evaluation.models=[pretrained, random]",
    "pretraining.probe={task: ner, every: 20, train_items: 40, epochs: 1}",
)

SECRETS = ("HF_TOKEN", "WANDB_API_KEY", "PREFECT_API_KEY", "AWS_SECRET_ACCESS_KEY")
PLANTED = "planted-0123456789"


@pytest.fixture(scope="module", params=["bert", "albert"])
def chain(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Mapping[str, StageOutcome]]:
    store = tmp_path_factory.mktemp(request.param) / "store"
    changes = (*SETTINGS, *(ALBERT if request.param == "albert" else ()))
    with pytest.MonkeyPatch.context() as environment:
        for name in SECRETS:
            environment.setenv(name, PLANTED)
        outcomes = run_chain(
            Options("demo", set_=changes, store=str(store), workers=1), lambda node, work: work(no_progress)
        )
    return request.param, {outcome.name: outcome for outcome in outcomes}


def test_corpus_and_blocks_load_with_datasets(chain, tmp_path: Path) -> None:
    from datasets import load_dataset

    architecture, outcomes = chain
    corpus = load_dataset(str(outcomes["corpus"].path), cache_dir=str(tmp_path))
    assert set(corpus) == {"train", "validation"}
    assert set(corpus["train"].column_names) == {"id", "source", "text"}
    blocks = load_dataset(str(outcomes["pack"].path), cache_dir=str(tmp_path))
    metrics = outcomes["pack"].record.metrics["splits"]
    for split in ("train", "validation"):
        assert len(blocks[split]) == metrics[split]["blocks"]
        account = metrics[split]
        left = account["tokens_packed"] + account["tokens_dropped"] + account["tokens_remainder"]
        assert account["tokens_in"] == left
    assert len(blocks["train"][0]["input_ids"]) == 64
    assert ("boundary" in blocks["train"].column_names) == (architecture == "albert")


def test_tokenizer_and_checkpoint_load_with_transformers(chain) -> None:
    from transformers import AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer

    architecture, outcomes = chain
    tokenizer = AutoTokenizer.from_pretrained(outcomes["tokenizer"].path)
    assert "token_type_ids" in tokenizer("বাংলা", "ভাষা")
    checkpoint = outcomes["pretrain"].path / "checkpoint"
    auto = AutoModelForPreTraining if architecture == "albert" else AutoModelForMaskedLM
    model, loading = auto.from_pretrained(checkpoint, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    assert model.config.vocab_size == len(tokenizer)
    encoded = AutoTokenizer.from_pretrained(checkpoint)("ঢাকা [MASK]।", return_tensors="pt")
    assert model(**encoded)[0].shape[-1] == len(tokenizer)


def test_an_export_loads_by_its_cards_own_words(chain, tmp_path: Path, monkeypatch, capsys) -> None:
    architecture, outcomes = chain
    store = outcomes["report"].path.parents[2]
    changes = (*SETTINGS, *(ALBERT if architecture == "albert" else ()))
    export = collect(prepare(Options("demo", set_=changes, store=str(store), workers=1)), None, page=False)
    write_folder(export, str(tmp_path / "model"), store, force=False)
    monkeypatch.chdir(tmp_path / "model")
    card = Path("README.md").read_text(encoding="utf-8")
    capsys.readouterr()
    exec(compile(card.split("```python\n")[1].split("```")[0], "README.md", "exec"), {})
    assert capsys.readouterr().out.strip()
    assert ("AutoModelForPreTraining" in card) == (architecture == "albert")


def test_results_and_report_are_there(chain) -> None:
    architecture, outcomes = chain
    results = json.loads((outcomes["evaluate"].path / "results.json").read_text(encoding="utf-8"))
    models = ["pretrained", "random"] if architecture == "albert" else ["pretrained"]
    assert [[model["model"] for model in task["models"]] for task in results["tasks"]] == [models, models]
    report = outcomes["report"].path
    assert sorted(path.name for path in report.iterdir()) == [
        "record.json",
        "report.html",
        "report.json",
        "report.md",
    ]
    page = (report / "report.html").read_text(encoding="utf-8")
    assert "unigram entropy" in page
    assert ("Probe on ner" in page) == (architecture == "albert")


def test_the_report_says_what_the_run_cost(chain) -> None:
    _, outcomes = chain
    report = outcomes["report"].path
    (run,) = json.loads((report / "report.json").read_text(encoding="utf-8"))["cost"]["measured"]
    metrics = outcomes["pretrain"].record.metrics
    assert run["tokens_per_second"] == metrics["tokens_per_second"]
    assert run["run_hours"] == pytest.approx(metrics["seconds_training"] / 3600)
    assert run["full_hours"] == pytest.approx(run["run_hours"], rel=0.01)  # all steps of the schedule were done
    before = [outcome.record.seconds for name, outcome in outcomes.items() if name != "report"]
    assert run["chain_hours"] == pytest.approx(sum(before) / 3600)
    assert run["machine"]["accelerator"] == "CPU"
    assert "USD and kWh are unknown" in (report / "report.md").read_text(encoding="utf-8")


def test_the_probe_is_in_log_and_record(chain) -> None:
    architecture, outcomes = chain
    pretrain = outcomes["pretrain"]
    lines = [json.loads(line) for line in (pretrain.path / "logs/training.jsonl").open(encoding="utf-8")]
    scores = {line["step"]: line["probe_score"] for line in lines if "probe_score" in line}
    probe = pretrain.record.metrics["probe"]
    if architecture == "bert":
        assert (scores, probe) == ({}, None)
        return
    assert list(scores) == [20, 40]
    assert (probe["task"], probe["metric"], probe["failures"]) == ("ner", "entity F1", 0)
    assert probe["score"] == scores[40] <= probe["best_score"] == max(scores.values())


def test_records_say_what_auto_became(chain) -> None:
    _, outcomes = chain
    record = outcomes["seed-run/pretrained/ner/1"].record
    assert record.identity["task"]["fine_tuning"]["precision"] == "auto"
    assert record.resolved["precision"] in {"fp32", "bf16"}
    assert set(record.inputs) == {"checkpoint"}
    assert record.environment["packages"]["transformers"]


def test_no_secret_of_the_environment_is_in_the_store(chain) -> None:
    store = chain[1]["corpus"].path.parents[2]
    files = [path for path in store.rglob("*") if path.is_file()]
    assert len([path for path in files if path.suffix == ".log"]) == len(chain[1])
    assert [path for path in files if PLANTED.encode() in path.read_bytes()] == []
