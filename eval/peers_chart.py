"""The drawing of who gave what to a training of several peers: a bar a peer, as inline SVG like ``eval/charts.py``."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

MOST_BARS = 20
"""With more peers than this, the others share the last bar."""

_WIDTH, _ROW, _NAMES, _FIGURES = 360, 18, 110, 44
_LETTERS = 18


def contribution_chart(names: Sequence[str], samples: Sequence[int], lost: Sequence[int]) -> Markup:
    """The samples of each peer, those who gave most first, and faintly those that it computed in vain.

    Args:
        names: as shown; a stranger's is escaped here.
        samples: that each peer gave to global steps.
        lost: that it computed and that went into none.

    Returns:
        The empty string for fewer than two peers: there is nothing to compare.
    """
    if len(names) < 2 or not sum(samples):
        return Markup("")
    rows = sorted(zip(names, samples, lost, strict=True), key=lambda row: (-row[1], row[0]))
    if len(rows) > MOST_BARS:
        rest = rows[MOST_BARS - 1 :]
        gathered = (f"{len(rest):,} others", sum(row[1] for row in rest), sum(row[2] for row in rest))
        rows = [*rows[: MOST_BARS - 1], gathered]
    most, total = max(given + wasted for _, given, wasted in rows), sum(samples)
    scale = (_WIDTH - _NAMES - _FIGURES) / most
    parts = []
    for number, (name, given, wasted) in enumerate(rows):
        y = number * _ROW
        shown = name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}\N{HORIZONTAL ELLIPSIS}"
        width, end = given * scale, (given + wasted) * scale
        parts.append(
            f'<text x="{_NAMES - 6}" y="{y + 12}" text-anchor="end">{escape(shown)}</text>'
            f'<rect class="given" x="{_NAMES}" y="{y + 3}" width="{width:.1f}" height="{_ROW - 6}"/>'
            f'<rect class="lost" x="{_NAMES + width:.1f}" y="{y + 3}" width="{end - width:.1f}" '
            f'height="{_ROW - 6}"/>'
            f'<text x="{_NAMES + end + 5:.1f}" y="{y + 12}">{100 * given / total:.1f} %</text>'
        )
    told = (
        f"{len(names):,} peers gave {total:,} samples; the one that gave most {100 * rows[0][1] / total:.1f} per cent"
    )
    return Markup(
        f'<svg class="chart contributions" viewBox="0 0 {_WIDTH} {len(rows) * _ROW}" role="img" '
        'aria-labelledby="contributions-title contributions-description">'
        '<title id="contributions-title">What each peer gave</title>'
        f'<desc id="contributions-description">{told}. The table below has the figures.</desc>{"".join(parts)}</svg>'
    )
