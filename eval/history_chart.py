"""The drawing of a task's history: each model's mean in every evaluation, with its interval, in order of time."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

from eval.charts import nice_ticks
from eval.history import HistoryEntry, Point
from eval.report_wording import per_cent

_WIDTH, _HEIGHT = 360, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 30, 14, 22, 32
_MOST_DATES = 4
"""Dates that fit below the chart."""

_ROLES = {"pretrained": "pretrained", "random": "baseline"}
_FURTHER = ("third", "fourth", "other")
"""Roles of further models, in the order in which they appear; all from the third of them on share one."""


def roles_of(points: Sequence[Point]) -> dict[str, str]:
    """The colour and shape of each model, as a class of the page's style sheet."""
    roles: dict[str, str] = {}
    for model in dict.fromkeys(point.model for point in points):
        further = sum(one not in _ROLES for one in roles)
        roles[model] = _ROLES.get(model) or _FURTHER[min(further, len(_FURTHER) - 1)]
    return roles


def history_chart(task: str, points: Sequence[Point], name: str) -> Markup:
    """Evaluations at equal distances, not by date: several of one day would cover each other.

    A line joins what can be compared; it ends where data, metric or fine-tuning are others than before. Returns the
    empty string for a single evaluation, which shows no trend.

    Args:
        task: its name.
        points: of this task, the oldest first.
        name: what the identifiers on the page begin with.
    """
    entries = list(dict.fromkeys(point.entry.file_name for point in points))
    if len(entries) < 2:
        return Markup("")
    places = {name: number for number, name in enumerate(entries)}
    ends = [end for point in points for end in _ends(point)]
    span = max(max(ends) - min(ends), 2.0)
    low, high = max(0.0, min(ends) - 0.06 * span), min(100.0, max(ends) + 0.06 * span)

    def x(entry: HistoryEntry) -> float:
        return _LEFT + 12 + places[entry.file_name] / (len(entries) - 1) * (_WIDTH - _LEFT - _RIGHT - 24)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [f'<text x="0" y="10">{escape(points[-1].on.metric)}, per cent</text>']
    for tick in nice_ticks(low, high, 5):
        parts.append(
            f'<line class="rule" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
            f'<text x="{_LEFT - 5}" y="{y(tick) + 3.5:.1f}" text-anchor="end">{tick:g}</text>'
        )
    dated = {point.entry.file_name: point.entry for point in points}
    for number in _dated(len(entries)):
        entry = dated[entries[number]]
        anchor = "start" if number == 0 else "end" if number == len(entries) - 1 else "middle"
        shift = {"start": -12, "end": 12, "middle": 0}[anchor]
        parts.append(
            f'<text x="{x(entry) + shift:.1f}" y="{_HEIGHT - _BOTTOM + 17}" text-anchor="{anchor}">'
            f"{entry.finished:%Y-%m-%d}</text>"
        )
    for model, role in roles_of(points).items():
        own = [point for point in points if point.model == model]
        marks = []
        for point in own:
            at, value = x(point.entry), 100 * point.score.mean
            if point.previous is not None and point.before is not None:
                before = 100 * point.before.mean
                marks.append(
                    f'<path class="trend" d="M{x(point.previous):.1f} {y(before):.1f}L{at:.1f} {y(value):.1f}"/>'
                )
            if point.score.interval is not None:
                top, bottom = y(100 * point.score.interval.high), y(100 * point.score.interval.low)
                marks.append(f'<path class="range" d="M{at:.1f} {top:.1f}V{bottom:.1f}"/>')
            marks.append(_mark(at, y(value), role, point.dropped))
        parts.append(f'<g class="{role}">{"".join(marks)}</g>')
    return Markup(
        f'<svg class="chart history" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-labelledby="{name}-title {name}-description"><title id="{name}-title">'
        f"{escape(task)}: {escape(points[-1].on.metric)} in {len(entries)} evaluations</title>"
        f'<desc id="{name}-description">{escape(_described(points))}</desc>{"".join(parts)}</svg>'
    )


def _ends(point: Point) -> list[float]:
    interval = point.score.interval
    ends = [point.score.mean, *([interval.low, interval.high] if interval else [])]
    return [100 * end for end in ends]


def _dated(count: int) -> list[int]:
    """Which of so many evaluations have their date below: first, last, and evenly between."""
    shown = min(count, _MOST_DATES)
    return sorted({round(number * (count - 1) / (shown - 1)) for number in range(shown)})


def _mark(x: float, y: float, role: str, dropped: bool) -> str:
    ring = f'<circle class="drop" cx="{x:.1f}" cy="{y:.1f}" r="8"/>' if dropped else ""
    if role == "third":
        return f'{ring}<path class="point" d="M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z"/>'
    if role == "baseline":
        return f'{ring}<rect class="point" x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7"/>'
    return f'{ring}<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'


def _described(points: Sequence[Point]) -> str:
    sentences = []
    for model in dict.fromkeys(point.model for point in points):
        own = [point for point in points if point.model == model]
        drops = sum(point.dropped for point in own)
        sentences.append(
            f"{model}: from {per_cent(own[0].score.mean)} on {own[0].entry.finished:%Y-%m-%d} to "
            f"{per_cent(own[-1].score.mean)} on {own[-1].entry.finished:%Y-%m-%d}"
            + (f", drops beyond the interval: {drops}." if drops else ".")
        )
    return " ".join(sentences)
