"""The scores of a report as shown: a task's measured models with their drawings, and the published figures apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from eval.charts import score_axis, score_range, score_strip
from eval.report_details import detail_tables
from eval.report_schema import Report
from eval.report_tables import Table, duration, make_table
from eval.report_wording import mean_and_std, per_cent
from eval.results import Interval, ModelResult, TaskResult


@dataclass(frozen=True)
class ModelView:
    """One model's line in a task's score table."""

    name: str
    remark: str
    score: str
    n: str
    """ "5", or "4/5" if one of five failed."""
    other_seeds: str
    """t interval of the mean, or why there is none."""
    other_items: str
    """Bootstrap interval of the mean."""
    without_degenerate: str
    """Mean ± std and n without runs that learnt nothing; empty if there are none."""
    seeds: tuple[tuple[int, str, str], ...]
    """Seed, score in per cent, flags; a seed run that failed has "missing" and the failure."""
    strip: Markup


@dataclass(frozen=True)
class TaskView:
    """One task's scores as shown: measured and published apart."""

    name: str
    kind: str
    anchor: str
    data: str
    heading: str
    score_title: str
    drawing: str
    """What the strips show."""
    models: tuple[ModelView, ...]
    absent: tuple[tuple[str, str, str], ...]
    """Models of others without any score: name, which one it is, and why."""
    majority: str
    axis: Markup
    sentence: str
    comparisons: Table | None
    details: tuple[Table, ...]
    """Other scores, each label's, and what was taken for what."""
    headline: str
    """How the score is computed; empty if an old file does not say."""
    scores: Table
    """The measured scores as a plain table, for Markdown."""
    published: Table | None
    sources: tuple[str, ...]
    """Where the published figures are from: one text a source, with its models if there are several."""
    same_data: str


def interval_text(interval: Interval | None) -> str:
    """ "91.21 to 92.73" in per cent, or "one run" for None."""
    return "one run" if interval is None else f"{per_cent(interval.low)} to {per_cent(interval.high)}"


def p_text(p: float | None) -> str:
    """ "0.031", "< 0.001", or "not known" for None."""
    if p is None:
        return "not known"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def run_facts(report: Report) -> str:
    """The size of the experiment in one sentence."""
    facts = report.pretraining
    counts = sorted({model.n for task in report.results.tasks for model in task.models})
    runs = "once" if counts == [1] else f"{' to '.join(str(n) for n in sorted({counts[0], counts[-1]}))} times"
    return (
        f"A model of {facts.parameters:,} parameters read {facts.tokens:,} tokens in {facts.steps:,} steps "
        f"({duration(facts.seconds_training)}), and was then trained and scored "
        f"{runs} on each task."
    )


def task_view(task: TaskResult, number: int, parts: Mapping[str, tuple[str, str]] | None = None) -> TaskView:
    """The scores of one task.

    Args:
        task: its result.
        number: counts tasks from 1, for anchors.
        parts: by model the role that :func:`eval.charts.score_strip` draws it in, and a remark; by default those of
            the pretrained model and its random twin.
    """
    scale = score_range(
        [seed.score for model in task.models for seed in model.seeds] or [task.majority],
        [interval for model in task.models for interval in (model.interval, model.item_interval)],
    )
    parts = _parts(task) if parts is None else parts
    models = tuple(_model_view(task, model, scale, *parts.get(model.model, ("other", ""))) for model in task.models)
    several = any(model.std is not None for model in task.models)
    title = "mean ± std, per cent (sample std, n - 1)" if several else "score, per cent"
    majority = f"{per_cent(task.majority)}"
    declared = max(model.declared for model in task.models)
    rows = []
    for model, view in zip(task.models, models, strict=True):
        rows.append(
            (
                f"{view.name} ({model.title})" if model.title else view.name,
                view.score,
                view.n,
                view.other_seeds,
                view.other_items,
                _seed_list(view),
            )
        )
        if view.without_degenerate:
            rows.append((f"{view.name}, without runs that learnt nothing", view.without_degenerate, "", "", "", ""))
    rows += [(f"{one.model} ({one.title})", "no score", f"0/{declared}", "", "", one.reason) for one in task.absent]
    items = ", ".join(f"{count:,} {split}" for split, count in task.items.items())
    return TaskView(
        name=task.task,
        kind=task.kind,
        anchor=f"task-{number}",
        data=f"{task.data}. Items: {items}.",
        heading=f"{task.task}: {task.metric} on the test split",
        score_title=title,
        drawing=(
            "each seed as a point, the mean as an upright line; the wide bar is the mean's interval for other seeds, "
            "the thin one that for other test items"
            if several
            else "the one seed as a point, and the interval for other test items as a bar"
        ),
        models=models,
        absent=tuple((one.model, one.title, one.reason) for one in task.absent),
        majority=majority,
        axis=score_axis(scale),
        sentence=" ".join([one.sentence for one in task.comparisons if one.model == task.comparisons[0].model]),
        comparisons=_comparisons(task, number),
        details=detail_tables(task, number),
        headline=f"The score is {task.headline}." if task.headline else "",
        scores=make_table(
            f"scores-{number}",
            f"{task.task}: {task.metric}, measured here",
            ["model", title, "n", "other seeds, 95 %", "other test items, 95 %", "each seed's score"],
            "lrrrrl",
            [*rows, ("majority baseline", majority, "not applicable", "", "", "")],
        ),
        published=_published(task, number),
        sources=_sources(task),
        same_data=(
            "Measured on the same data and splits. Only means and spreads are published, so whether a difference "
            "to ours is chance cannot be tested item by item."
            if not task.published_differences
            else "Not known to be of the same data, so the figures cannot be compared directly: "
            f"{'; '.join(task.published_differences)}."
        ),
    )


def _parts(task: TaskResult) -> dict[str, tuple[str, str]]:
    comparison = task.comparison
    parts = {model.model: ("other", model.title) for model in task.models}
    if comparison is not None:
        parts[comparison.baseline] = ("baseline", "same shape, without pretraining")
    if "pretrained" in parts:
        parts["pretrained"] = ("pretrained", "ours, with pretraining")
    return parts


def _model_view(task: TaskResult, model: ModelResult, scale: tuple[float, float], role: str, remark: str) -> ModelView:
    values = ", ".join(per_cent(seed.score) for seed in model.seeds)
    sound = model.without_degenerate
    return ModelView(
        name=model.model,
        remark=", ".join(filter(None, (remark, _size(model)))),
        score=mean_and_std(model.mean, model.std),
        n=str(model.n) if not model.missing else f"{model.n}/{model.declared}",
        other_seeds=interval_text(model.interval),
        other_items=interval_text(model.item_interval),
        without_degenerate=f"{mean_and_std(sound.mean, sound.std)} (n = {sound.n})" if sound else "",
        seeds=(
            *((seed.seed, per_cent(seed.score), ", ".join(seed.flags)) for seed in model.seeds),
            *((failed.seed, "missing", failed.reason) for failed in model.missing),
        ),
        strip=score_strip(
            [seed.score for seed in model.seeds],
            model.mean,
            model.interval,
            model.item_interval,
            scale,
            role=role,
            title=f"{model.model} on {task.task}: mean {per_cent(model.mean)}, seeds {values}",
        ),
    )


def _size(model: ModelResult) -> str:
    return "" if model.parameters is None else f"{model.parameters:,} parameters"


def _seed_list(view: ModelView) -> str:
    return ", ".join(f"{score} ({flags})" if flags else score for _, score, flags in view.seeds)


def _comparisons(task: TaskResult, number: int) -> Table | None:
    if not task.comparisons:
        return None
    words = {"better": "more", "worse": "less", "same": "no difference", "unknown": "nothing: too few runs"}
    rows = [
        (
            f"{one.model} against {one.baseline}",
            per_cent(one.difference),
            interval_text(one.interval),
            p_text(one.p_items),
            p_text(one.p_seeds),
            p_text(one.p_corrected),
            words[one.outcome],
        )
        for one in task.comparisons
    ]
    titles = ["models", "difference, points", "other test items, 95 %", "p, test items", "p, seeds", "p, corrected"]
    caption = f"{task.task}: could the difference be chance?"
    return make_table(f"comparisons-{number}", caption, [*titles, "shown"], "lrrrrrl", rows)


def _published(task: TaskResult, number: int) -> Table | None:
    if not task.published:
        return None
    rows = [
        (
            score.model,
            mean_and_std(score.mean, score.std),
            "not stated" if score.runs is None else str(score.runs),
        )
        for score in task.published
    ]
    titles = ["model", f"{task.metric}, per cent", "runs"]
    caption = f"{task.task}: published, not measured here"
    return make_table(f"published-{number}", caption, titles, "lrr", rows)


def _sources(task: TaskResult) -> tuple[str, ...]:
    models: dict[str, list[str]] = {}
    for score in task.published:
        text = f"{score.source}. {score.note.removesuffix('.')}." if score.note else score.source
        models.setdefault(text, []).append(score.model)
    if len(models) == 1:
        return tuple(f"Source: {text}" for text in models)
    return tuple(f"Source of {', '.join(names)}: {text}" for text, names in models.items())
