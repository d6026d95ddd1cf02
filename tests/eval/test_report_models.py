"""What the report says of models of others, and of one that has no score."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from eval.results import AbsentModel, Results

sys.path.insert(0, str(Path(__file__).parent))
from report_artifacts import Page, markdown_tables, report_in, task_result

XLM_R, LOST = "FacebookAI/xlm-roberta-large at c23d21b", "some/model: the hub does not answer"
SCORES = {
    "pretrained": [0.9, 0.91, 0.92],
    "random": [0.6, 0.61, 0.59],
    "xlm-r-large": [0.95, 0.94, 0.96],
    "muril": [0.9, 0.9, 0.91],
}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    absent = (AbsentModel(model="lost", title="some/model at 0123456", reason=LOST),)
    tasks = []
    for name, kind in (("wikiann-bn", "ner"), ("soham-ncc", "classification")):
        task = task_result(name, kind, SCORES, absent=absent, published=())
        facts = {"pretrained": {"parameters": 18_000_000}, "xlm-r-large": {"title": XLM_R, "parameters": 560_000_000}}
        models = tuple(model.model_copy(update=facts.get(model.model, {})) for model in task.models)
        ours = task.comparisons[0]
        pairs = [("pretrained", "xlm-r-large"), ("random", "xlm-r-large")]
        more = tuple(
            ours.model_copy(update={"model": model, "baseline": other, "sentence": f"{model} and {other} on {name}."})
            for model, other in pairs
        )
        tasks.append(task.model_copy(update={"models": models, "comparisons": (ours, *more)}))
    return report_in(tmp_path_factory.mktemp("models"), results=Results(tasks=tuple(tasks)))


def test_ours_is_named_and_the_others_say_which_they_are(shown: tuple[str, str, str]) -> None:
    _, markdown, html = shown
    text = Page(html).text
    assert "ours, with pretraining, 18,000,000 parameters" in text
    assert f"{XLM_R}, 560,000,000 parameters" in text
    assert f"xlm-r-large ({XLM_R})" in markdown


def test_the_sentences_are_on_ours_and_the_table_has_every_pair(shown: tuple[str, str, str]) -> None:
    _, markdown, _ = shown
    assert "pretrained and xlm-r-large on wikiann-bn." in markdown
    assert "random and xlm-r-large on wikiann-bn." not in markdown
    assert "random against xlm-r-large" in markdown


def test_a_model_without_a_score_stands_in_the_table_and_is_told_once(shown: tuple[str, str, str]) -> None:
    report, markdown, html = shown
    told = (
        f"lost (some/model at 0123456) was to be compared with and has no score on wikiann-bn and soham-ncc: {LOST}."
    )
    assert report.count(told) == 1
    assert Page(html).text.count(told) == 2  # at the top, and among what to be careful about
    rows = [row for table in markdown_tables(markdown) for row in table if row[0].strip().startswith("lost (")]
    assert [[cell.strip() for cell in row[1:3]] for row in rows] == [["no score", "0/3"]] * 2
