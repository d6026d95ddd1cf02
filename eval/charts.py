"""The report's drawings as inline SVG: strips of seed scores, and the curves of pretraining.

Colours come from the page's style sheet through classes, so one drawing serves light, dark and print. Every drawing
that carries content has a title and a description for screen readers; the figures themselves stand beside it as text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from markupsafe import Markup, escape

from eval.report_schema import PretrainingFacts
from eval.results import Interval

_STRIP_WIDTH, _STRIP_HEIGHT, _STRIP_MARGIN = 260, 34, 8
_STRIP_MIDDLE = 13
_ITEMS_AT = 29  # height of the line below the points
_CHART_WIDTH, _CHART_HEIGHT = 360, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 30, 8, 22, 32
_RADIUS = 4.0

_Place = Callable[[float], float]


def nice_ticks(low: float, high: float, about: int) -> list[float]:
    """Round values within [low, high] at steps of 1, 2 or 5 times a power of ten, roughly ``about`` of them."""
    assert high > low
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = min((factor * power for factor in (1, 2, 5, 10)), key=lambda value: abs(math.log(value / rough)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def score_range(scores: Sequence[float], intervals: Sequence[Interval | None]) -> tuple[float, float]:
    """The common scale of a task's strips: all scores and intervals with a margin, at least 2 points wide, within 0
    to 1. An interval is never cut, so that what is uncertain looks uncertain."""
    ends = [end for one in intervals if one is not None for end in (one.low, one.high)]
    low, high = min([*scores, *ends]), max([*scores, *ends])
    missing = max(0.0, 0.02 - (high - low)) / 2
    margin = 0.04 * (high - low) + missing
    return max(0.0, low - margin), min(1.0, high + margin)


def score_strip(
    scores: Sequence[float],
    mean: float,
    seeds: Interval | None,
    items: Interval,
    scale: tuple[float, float],
    *,
    role: str,
    title: str,
) -> Markup:
    """Each seed's score as a point on the task's scale, the mean as an upright line, its two intervals as bars.

    Args:
        scores: fractions, one a seed.
        mean: of the scores.
        seeds: interval of the mean for other seeds, a wide bar behind the points; None for one run.
        items: interval of the mean for other test items, a thin bar below them.
        scale: as :func:`score_range` gives it.
        role: "pretrained", "baseline" or "other": the colour and, for those who see none, the shape.
        title: what a screen reader says instead of the drawing.
    """
    parts = [f'<line class="rule" x1="0" x2="{_STRIP_WIDTH}" y1="{_STRIP_MIDDLE}" y2="{_STRIP_MIDDLE}"/>']
    if seeds is not None:
        left, right = _strip_x(seeds.low, scale), _strip_x(seeds.high, scale)
        height = 2 * (_STRIP_MIDDLE - 5)
        parts.append(f'<rect class="band" x="{left:.1f}" y="5" width="{right - left:.1f}" height="{height}"/>')
    left, right = _strip_x(items.low, scale), _strip_x(items.high, scale)
    ends = "".join(f"M{x:.1f} {_ITEMS_AT - 3}v6" for x in (left, right))
    parts.append(f'<path class="items" d="M{left:.1f} {_ITEMS_AT}H{right:.1f}{ends}"/>')
    at = _strip_x(mean, scale)
    parts.append(f'<line class="mean" x1="{at:.1f}" x2="{at:.1f}" y1="1" y2="{2 * _STRIP_MIDDLE - 1}"/>')
    for x, y in _spread([_strip_x(score, scale) for score in scores], _STRIP_MIDDLE):
        parts.append(_point(x, y, role))
    return Markup(
        f'<svg class="strip {escape(role)}" viewBox="0 0 {_STRIP_WIDTH} {_STRIP_HEIGHT}" role="img">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def score_axis(scale: tuple[float, float]) -> Markup:
    """The scale below a task's strips, in per cent; decoration for the eye, hidden from screen readers."""
    low, high = 100 * scale[0], 100 * scale[1]
    parts = []
    for tick in nice_ticks(low, high, 4):
        x = _strip_x(tick / 100, scale)
        anchor = "start" if x < 14 else "end" if x > _STRIP_WIDTH - 14 else "middle"
        parts.append(
            f'<line class="rule" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="4"/>'
            f'<text x="{x:.1f}" y="15" text-anchor="{anchor}">{tick:g}</text>'
        )
    return Markup(
        f'<svg class="axis" viewBox="0 0 {_STRIP_WIDTH} 18" aria-hidden="true">'
        f'<line class="rule" x1="0" x2="{_STRIP_WIDTH}" y1="0.5" y2="0.5"/>{"".join(parts)}</svg>'
    )


def _strip_x(score: float, scale: tuple[float, float]) -> float:
    return _STRIP_MARGIN + (score - scale[0]) / (scale[1] - scale[0]) * (_STRIP_WIDTH - 2 * _STRIP_MARGIN)


def _spread(places: Sequence[float], middle: float) -> list[tuple[float, float]]:
    """Points that would cover each other move up and down in turn, so that every seed can be seen."""
    placed: list[tuple[float, float]] = []
    for x in sorted(places):
        levels = (0.0, -6.0, 6.0)
        free = [up for up in levels if all(abs(x - px) >= 6 or py != middle + up for px, py in placed)]
        placed.append((x, middle + (free[0] if free else levels[len(placed) % 3])))
    return placed


def _point(x: float, y: float, role: str) -> str:
    if role == "baseline":
        return f'<rect class="point" x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7"/>'
    return f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="{_RADIUS:g}"/>'


def loss_chart(facts: PretrainingFacts) -> Markup:
    """Training and validation loss over steps, with the unigram entropy as a labelled dashed line.

    Returns the empty string when nothing was logged.
    """
    training = [(point.step, point.mlm_loss) for point in facts.training_curve if point.mlm_loss is not None]
    validation = [
        (point.step, point.validation_loss) for point in facts.validation_curve if point.validation_loss is not None
    ]
    if not training and not validation:
        return Markup("")
    entropy = facts.unigram_entropy
    losses = [loss for _, loss in training + validation] + ([entropy] if entropy is not None else [])
    span = max(max(losses) - min(losses), 0.2)
    low, high = max(0.0, min(losses) - 0.08 * span), max(losses) + 0.08 * span
    last = max(step for step, _ in training + validation)

    x, y = _places(low, high, last)
    parts = [*_grid("nats per masked token", low, high, last)]
    if entropy is not None:
        parts.append(f'<path class="entropy" d="M{_LEFT} {y(entropy):.1f}H{_CHART_WIDTH - _RIGHT}"/>')
    if training:
        parts.append(f'<path class="training" d="{_path(training, x, y)}"/>')
    parts += _validations(validation, x, y)
    if entropy is not None:
        parts.append(
            f'<text class="halo" x="{_CHART_WIDTH - _RIGHT}" y="{y(entropy) - 5:.1f}" text-anchor="end">'
            f"unigram entropy {entropy:.2f}</text>"
        )
    return Markup(
        f'<svg class="chart" viewBox="0 0 {_CHART_WIDTH} {_CHART_HEIGHT}" role="img" '
        'aria-labelledby="loss-title loss-description">'
        '<title id="loss-title">Loss over pretraining steps</title>'
        f'<desc id="loss-description">{escape(_described(training, validation, entropy))}</desc>{"".join(parts)}</svg>'
    )


def accuracy_chart(facts: PretrainingFacts) -> Markup:
    """Share of the held-out masked tokens that were guessed right, over steps.

    Returns the empty string when it was not logged.
    """
    points = [(point.step, point.masked_accuracy) for point in facts.validation_curve]
    return _share_chart(points, "accuracy", "per cent of the masked tokens", "Masked tokens guessed right")


def probe_chart(facts: PretrainingFacts) -> Markup:
    """Score of the probe over steps. Returns the empty string when there was none."""
    if facts.probe is None:
        return Markup("")
    points = [(point.step, point.probe_score) for point in facts.validation_curve]
    title = f"probe on {facts.probe.task}"
    return _share_chart(points, "probe", f"{title}: {facts.probe.metric}, per cent", title.capitalize())


def _share_chart(found: Sequence[tuple[int, float | None]], name: str, unit: str, title: str) -> Markup:
    """Fractions over steps, in per cent, as far as there are any."""
    points = [(step, 100 * share) for step, share in found if share is not None]
    if not points:
        return Markup("")
    high, last = max(1.0, 1.08 * max(share for _, share in points)), points[-1][0]
    parts = [*_grid(escape(unit), 0.0, high, last), *_validations(points, *_places(0.0, high, last))]
    (first_step, first), (last_step, at_end) = points[0], points[-1]
    return Markup(
        f'<svg class="chart" viewBox="0 0 {_CHART_WIDTH} {_CHART_HEIGHT}" role="img" '
        f'aria-labelledby="{name}-title {name}-description">'
        f'<title id="{name}-title">{escape(title)} over pretraining steps</title>'
        f'<desc id="{name}-description">From {first:.1f} per cent at step {first_step:,} to {at_end:.1f} per cent '
        f"at step {last_step:,}.</desc>{''.join(parts)}</svg>"
    )


def _places(low: float, high: float, last: int) -> tuple[_Place, _Place]:
    """Where a step, and a value between ``low`` and ``high``, lie in the chart."""

    def x(step: float) -> float:
        return _LEFT + step / last * (_CHART_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _CHART_HEIGHT - _BOTTOM - (value - low) / (high - low) * (_CHART_HEIGHT - _TOP - _BOTTOM)

    return x, y


def _path(points: Sequence[tuple[int, float]], x: _Place, y: _Place) -> str:
    return "M" + "L".join(f"{x(step):.1f} {y(value):.1f}" for step, value in points)


def _validations(points: Sequence[tuple[int, float]], x: _Place, y: _Place) -> list[str]:
    if not points:
        return []
    # Beyond some forty validations the dots would only thicken the line.
    shown = points if len(points) <= 40 else points[-1:]
    dots = [f'<circle class="dot" cx="{x(step):.1f}" cy="{y(value):.1f}" r="2.4"/>' for step, value in shown]
    return [f'<path class="validation" d="{_path(points, x, y)}"/>', *dots]


def _grid(unit: str, low: float, high: float, last: int) -> list[str]:
    x, y = _places(low, high, last)
    parts = [f'<text x="0" y="10">{unit}</text>']
    for tick in nice_ticks(low, high, 5):
        parts.append(
            f'<line class="rule" x1="{_LEFT}" x2="{_CHART_WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
            f'<text x="{_LEFT - 5}" y="{y(tick) + 3.5:.1f}" text-anchor="end">{tick:g}</text>'
        )
    base = _CHART_HEIGHT - _BOTTOM
    for tick in nice_ticks(0, last, 4):
        at = x(tick)
        anchor = "end" if at > _CHART_WIDTH - 24 else "middle"
        parts.append(
            f'<line class="rule" x1="{at:.1f}" x2="{at:.1f}" y1="{base}" y2="{base + 4}"/>'
            f'<text x="{at:.1f}" y="{base + 15}" text-anchor="{anchor}">{tick:,.0f}</text>'
        )
    parts.append(f'<text x="{_CHART_WIDTH - _RIGHT}" y="{_CHART_HEIGHT - 4}" text-anchor="end">steps</text>')
    return parts


def _described(
    training: Sequence[tuple[int, float]], validation: Sequence[tuple[int, float]], entropy: float | None
) -> str:
    sentences = [
        f"{name} loss goes from {points[0][1]:.2f} at step {points[0][0]:,} to {points[-1][1]:.2f} at step "
        f"{points[-1][0]:,}."
        for name, points in (("Training", training), ("Validation", validation))
        if points
    ]
    if entropy is not None:
        sentences.append(f"The unigram entropy is a horizontal line at {entropy:.2f}.")
    return " ".join(sentences)
