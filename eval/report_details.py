"""What a report shows behind a task's headline scores: other scores, each label's, and what was taken for what."""

from __future__ import annotations

from collections.abc import Sequence

from eval.report_tables import Table, make_table
from eval.report_wording import mean_and_std, per_cent
from eval.results import Confusion, ModelDetails, TaskResult

_TITLES = {
    "macro_f1": "macro F1",
    "precision": "precision",
    "recall": "recall",
    "strict_f1": "F1, strict IOB2",
    "token_accuracy": "accuracy of words' tags",
}

_Named = tuple[str, ModelDetails]


def detail_tables(task: TaskResult, number: int) -> tuple[Table, ...]:
    """The tables of one task; none if its file has no details. ``number`` counts tasks from 1, for anchors."""
    found = [(model.model, model.details) for model in task.models if model.details is not None]
    if not found:
        return ()
    confusions = (
        _confusion(task, name, details.confusion, f"confusion-{number}-{place}")
        for place, (name, details) in enumerate(found, start=1)
    )
    return (_other_scores(task, found, number), _labels(task, found, number), *confusions)


def _other_scores(task: TaskResult, found: Sequence[_Named], number: int) -> Table:
    names = list(found[0][1].other_scores)
    rows = [
        (model, *(mean_and_std(details.other_scores[name].mean, details.other_scores[name].std) for name in names))
        for model, details in found
    ]
    titles = ["model", *(_TITLES.get(name, name) for name in names)]
    return make_table(f"other-{number}", f"{task.task}: other scores, per cent", titles, "l" + "r" * len(names), rows)


def _labels(task: TaskResult, found: Sequence[_Named], number: int) -> Table:
    names = list(dict.fromkeys(one.label for _, details in found for one in details.labels))
    rows = []
    for name in names:
        for model, details in found:
            for one in details.labels:
                if one.label == name:
                    scores = (mean_and_std(score.mean, score.std) for score in (one.precision, one.recall, one.f1))
                    rows.append((name, model, *scores, f"{one.support:,}"))
    what, counted = ("entity type", "entities") if task.kind == "ner" else ("class", "test items")
    caption = f"{task.task}: each {what}, per cent"
    return make_table(
        f"labels-{number}", caption, [what, "model", "precision", "recall", "F1", counted], "llrrrr", rows
    )


def _confusion(task: TaskResult, model: str, confusion: Confusion, anchor: str) -> Table:
    """Shares of each gold label, since seed runs and rare labels would make counts hard to compare."""
    items = "words by tag" if task.kind == "ner" else "test items by class"
    rows, shades = [], []
    for label, counts in zip(confusion.labels, confusion.counts, strict=True):
        total = sum(counts)
        shares = [count / total if total else 0.0 for count in counts]
        rows.append((label, *(per_cent(share) if count else "" for share, count in zip(shares, counts, strict=True))))
        shades.append(tuple(shares))
    caption = (
        f"{task.task}, {model}: {items}; rows are what they are, columns what was predicted, per cent of the row over "
        "all seeds"
    )
    titles = ["is, predicted as", *confusion.labels]
    return make_table(anchor, caption, titles, "l" + "r" * len(confusion.labels), rows, shades=shades)
