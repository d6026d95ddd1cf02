"""The model card: metadata that huggingface_hub reads back, and every figure as the report has it."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))
from report_artifacts import METRICS, NCC_SCORES, NER_SCORES, both_tasks, markdown_tables, report_in, task_result
from test_report_peers import NASTY, ledger, peer

from eval.model_card import SHOWN_PEERS, model_card
from eval.public_report import private_facts, public_report
from eval.publishing import PublishingSettings
from eval.report_schema import Report
from eval.results import MissingSeed, Results
from flows.recipe import load_recipe
from tasks.contract import StageError

WIKIANN = {"kind": "hub", "dataset": "unimelb-nlp/wikiann", "config": "bn", "revision": "a" * 40}
LOCAL = {"kind": "hub", "dataset": "ai4bharat/indic_glue", "revision": "b" * 40, "local": "x/{split}.parquet"}
STATED = PublishingSettings(
    languages=("bn",), license="apache-2.0", source_licenses={"wikipedia-bn": "cc-by-sa-3.0 and gfdl"}
)


def a_report(root: Path, **more: Any) -> Report:
    text, _, _ = report_in(root, **{"results": both_tasks(), **more})
    recipe = load_recipe("sahajbert").model_dump(mode="json", exclude={"publishing"})
    recipe["evaluation"]["tasks"] = {"wikiann-bn": {"source": WIKIANN}, "soham-ncc": {"source": LOCAL}}
    report = Report.model_validate_json(text)
    sources = dict(zip(("wikipedia-bn", "oscar-bn"), report.corpus.sources.values(), strict=True))
    corpus = report.corpus.model_copy(update={"sources": sources})
    return public_report(report.model_copy(update={"recipe": recipe, "corpus": corpus}), private_facts(report, []))


def card_of(
    root: Path, publishing: PublishingSettings = STATED, repository: str | None = "anna/model", **more: Any
) -> str:
    return model_card(a_report(root, **more), publishing, repository)


def section(card: str, title: str) -> str:
    return card.split(f"\n{title}\n")[1].split("\n## ")[0]


def test_the_metadata_are_read_back_with_the_scores_of_the_report(tmp_path: Path) -> None:
    from huggingface_hub import ModelCard, metadata_load
    from huggingface_hub.repocard_data import model_index_to_eval_results

    report = a_report(tmp_path)
    text = model_card(report, STATED, "anna/model")
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    metadata = metadata_load(tmp_path / "README.md")
    assert metadata
    assert yaml.safe_load(text.split("---")[1]) == metadata
    index = metadata.pop("model-index")
    assert metadata == {
        "language": ["bn"],
        "license": "apache-2.0",
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "tags": ["sahajflow", "albert"],
        "datasets": ["wikimedia/wikipedia", "nthngdy/oscar-small"],
        "metrics": ["f1", "accuracy"],
    }
    name, results = model_index_to_eval_results(index)
    assert name == "model"
    means = [task.models[0].mean for task in report.results.tasks]
    assert [result.metric_value for result in results] == [round(mean, 6) for mean in means]
    ner, topics = results
    assert (ner.task_type, ner.dataset_type, ner.dataset_config, ner.dataset_revision, ner.metric_type) == (
        *("token-classification", "unimelb-nlp/wikiann", "bn", "a" * 40, "f1"),
    )
    assert ner.metric_name == "entity F1, mean of 5 fine-tunings, sample std 0.0047"
    # a local copy is not known to be what lies on the hub under that name
    assert (topics.task_type, topics.dataset_type, topics.dataset_config, topics.dataset_revision) == (
        *("text-classification", "custom", "soham-ncc", None),
    )
    assert ModelCard.load(tmp_path / "README.md").data.eval_results == results


def test_two_tasks_of_one_kind_on_own_data_stay_two_results(tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    results = Results(
        tasks=(task_result("wikiann-bn", "ner", NER_SCORES), task_result("soham-ncc", "ner", NCC_SCORES))
    )
    report = a_report(tmp_path, results=results)
    report.recipe["evaluation"]["tasks"] = {
        task: {"source": {"kind": "files"}} for task in ("wikiann-bn", "soham-ncc")
    }
    index = ModelCard(model_card(report, STATED)).data.to_dict()["model-index"]
    assert [result["task"]["name"] for result in index[0]["results"]] == ["wikiann-bn", "soham-ncc"]


def test_the_scores_are_those_of_the_report_to_the_letter(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    _, markdown, _ = report_in(tmp_path / "other")
    card = card_of(tmp_path)
    reported, shown = (section(text, "## Scores").split("### ") for text in (markdown, card))
    for whole, short in zip(reported[1:], shown[1:], strict=True):
        lines = short.strip().splitlines()
        assert [line for line in whole.splitlines() if line in lines and line] == [line for line in lines if line]
        assert "predicted as" not in short
    assert "| pretrained | 74.58 ± 0.47 | 5 |" in card
    assert "| random | 61.22 ± 1.00 | 5 |" in card
    assert "Seeds, declared beforehand: 0, 1, 2, 3, 4." in card


def test_every_caution_of_the_report_is_there(tmp_path: Path) -> None:
    missing = {"random": [MissingSeed(seed=7, reason="out of memory")]}
    results = Results(
        tasks=(
            task_result("wikiann-bn", "ner", {"pretrained": [0.7], "random": [0.6]}, missing=missing),
            task_result("soham-ncc", "classification", NCC_SCORES),
        )
    )
    report = a_report(tmp_path, results=results, metrics={"pretrain": {"left_plateau": False}}, dirty=True)
    kinds = {caution.kind for caution in report.cautions}
    assert kinds >= {"plateau", "one seed", "missing run", "flagged run", "dirty git tree", "dropped tokens"}
    listed = section(model_card(report, STATED), "## What to be careful about")
    assert listed.count("\n- ") + listed.startswith("- ") >= len(report.cautions) + 1
    for caution in report.cautions:
        assert caution.text.split(":")[0].replace("_", r"\_") in listed
    important = [caution for caution in report.cautions if caution.important]
    assert model_card(report, STATED).count("> **Warning.**") == len(important) >= 2


def test_a_missing_run_is_told_in_the_metadata_and_one_run_has_no_std(tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    missing = {"pretrained": [MissingSeed(seed=7, reason="out of memory")]}
    results = Results(
        tasks=(
            task_result("wikiann-bn", "ner", {"pretrained": [0.7, 0.8]}, missing=missing),
            task_result("soham-ncc", "classification", {"pretrained": [0.7]}),
        )
    )
    found = ModelCard(card_of(tmp_path, results=results)).data.eval_results
    assert [result.metric_name for result in found] == [
        "entity F1, mean of 2 fine-tunings (3 declared), sample std 0.0707",
        "accuracy, one fine-tuning",
    ]


def test_without_a_score_of_the_pretrained_model_there_is_no_index(tmp_path: Path) -> None:
    results = Results(tasks=(task_result("wikiann-bn", "ner", {"random": [0.5, 0.6]}),))
    assert "model-index" not in card_of(tmp_path, results=results)


def test_what_nobody_stated_is_called_so(tmp_path: Path) -> None:
    card = card_of(tmp_path, PublishingSettings())
    metadata = yaml.safe_load(card.split("---")[1])
    assert not metadata.keys() & {"license", "language"}
    rows = {row[0].strip(): row[1].strip() for table in markdown_tables(card) for row in table if len(row) == 2}
    assert rows["languages"] == "not stated"
    assert rows["licence"] == "not stated; ask before you use the model"
    table = markdown_tables(section(card, "## Corpus"))[0]
    assert [row[2].strip() for row in table[2:]] == ["not stated", "not stated"]
    stated = markdown_tables(section(card_of_again(tmp_path), "## Corpus"))[0]
    assert [row[2].strip() for row in stated[2:]] == ["cc-by-sa-3.0 and gfdl", "not stated"]
    assert [row[1].strip() for row in stated[2:]] == [
        "wikimedia/wikipedia 20231101.bn, revision b04c8d1",
        r"nthngdy/oscar-small unshuffled\_deduplicated\_bn/train/\*.parquet, revision e5d270b",
    ]


def card_of_again(root: Path) -> str:
    (root / "again").mkdir()
    return card_of(root / "again")


def test_a_licence_of_ones_own(tmp_path: Path) -> None:
    own = PublishingSettings(license="other", license_name="sahaj-1", license_link="https://example.org/l")
    card = card_of(tmp_path, own)
    metadata = yaml.safe_load(card.split("---")[1])
    assert (metadata["license"], metadata["license_name"]) == ("other", "sahaj-1")
    assert metadata["license_link"] == "https://example.org/l"
    assert "| licence | sahaj-1: <https://example.org/l> |" in card


def test_peers_in_short(tmp_path: Path) -> None:
    peers = [peer(f"{NASTY} {number}", samples=1000 - number, share=1 / 25) for number in range(25)]
    card = card_of(tmp_path, ledger=ledger(peers=peers))
    table = next(table for table in markdown_tables(card) if table[0][0].strip() == "peer")
    rows = [[cell.strip() for cell in row] for row in table[2:]]
    assert len(rows) == SHOWN_PEERS + 1
    assert rows[0] == ["peer 1", "1,000", "4.00 %", "699"]
    assert rows[-1] == ["5 others", f"{sum(1000 - number for number in range(20, 25)):,}", "20.00 %", ""]
    assert yaml.safe_load(card.split("---")[1])["tags"] == ["sahajflow", "albert", "hivemind"]
    assert "onerror" not in card


def test_strangers_names_are_escaped_if_they_are_shown(tmp_path: Path) -> None:
    text, _, _ = report_in(tmp_path, ledger=ledger(peers=[peer(NASTY), peer("https://evil.example")]))
    named = Report.model_validate_json(text)
    (tmp_path / "card").mkdir()
    report = a_report(tmp_path / "card").model_copy(update={"collaboration": named.collaboration})
    card = model_card(report, STATED)
    assert "<img" not in card
    assert "https://evil.example" not in card


def test_the_words_of_the_recipe_cannot_become_metadata_or_markup(tmp_path: Path) -> None:
    report = a_report(tmp_path)
    nasty = "---\nlicense: mit\n---\n<script>alert(1)</script> {{ 7 * 7 }}"
    card = model_card(report.model_copy(update={"description": nasty}), STATED)
    assert yaml.safe_load(card.split("---")[1])["license"] == "apache-2.0"
    assert "<script>" not in card
    assert r"{{ 7 \* 7 }}" in card
    assert "\n---\n" not in card.split("---\n", 2)[2]


def test_no_place_was_left_unfilled_and_equal_reports_give_equal_cards(tmp_path: Path) -> None:
    report = a_report(tmp_path)
    card = model_card(report, STATED)
    assert card == model_card(report, STATED)
    assert not re.search(r"\{\{|\}\}|\bNone\b|\bnan\b|More Information Needed", card)
    assert card.endswith("|\n")
    assert f"| parameters | {METRICS['pretrain']['parameters']:,} |" in card
    assert 'from_pretrained(".")' in card
    assert "From inside this folder:" in card
    assert "`AutoModelForPreTraining` loads the head for sentence order as well." in card


def test_a_report_without_what_the_card_shows(tmp_path: Path) -> None:
    report = a_report(tmp_path)
    recipe = {**report.recipe, "model": {"architecture": "albert"}}
    with pytest.raises(StageError, match=r"report\.json: recipe\.model\.hidden_size: Field required; run the report"):
        model_card(report.model_copy(update={"recipe": recipe}), STATED)
