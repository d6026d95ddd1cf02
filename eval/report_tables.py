"""The tables of a report: which figures stand where, and how numbers become text. Both output formats use them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eval.report_schema import (
    CorpusFacts,
    PackingFacts,
    PretrainingFacts,
    Report,
    TokenizerCard,
    TokenizerFacts,
    ValidationPoint,
)
from eval.report_wording import per_cent

_JOIN = "\N{NO-BREAK SPACE}"

_LOSS_ROWS = 12
"""Validations that the table beside the loss curve shows at most, beside as many with a probe."""


@dataclass(frozen=True)
class Table:
    """A table of texts. The first cell of each row is its heading."""

    name: str
    """Identifier on the page."""
    caption: str
    titles: tuple[str, ...]
    alignment: str
    """One letter a column, as in LaTeX: "l" for text, "r" for numbers, which are set flush right."""
    rows: tuple[tuple[str, ...], ...]
    totals: tuple[tuple[str, ...], ...] = ()
    bars: tuple[float, ...] = ()
    """For HTML: a bar of this share (0 to 1) at the end of each row."""
    shades: tuple[tuple[float, ...], ...] = ()
    """For HTML: how much each cell of each row but its heading is coloured, 0 to 1."""
    foreign: bool = False
    """Strangers wrote some of the cells: no web address in them becomes a link."""


def duration(seconds: float | None) -> str:
    """ "4.2 s", "12 min 05 s", "3 h 20 min"; "not recorded" for None."""
    if seconds is None:
        return "not recorded"
    if seconds < 59.95:
        return f"{seconds:.1f}{_JOIN}s"
    whole = round(seconds)
    if whole < 3600:
        return _JOIN.join([str(whole // 60), "min", f"{whole % 60:02d}", "s"])
    minutes = round(seconds / 60)
    return _JOIN.join([f"{minutes // 60:,}", "h", f"{minutes % 60:02d}", "min"])


def _share(part: float, whole: float) -> str:
    return f"{per_cent(part / whole)} %" if whole else "not defined"


def _figure(value: float | None, digits: int) -> str:
    return "not recorded" if value is None else f"{value:,.{digits}f}"


def make_table(
    name: str,
    caption: str,
    titles: Sequence[str],
    alignment: str,
    rows: Sequence[tuple[str, ...]],
    totals: Sequence[tuple[str, ...]] = (),
    bars: Sequence[float] = (),
    shades: Sequence[tuple[float, ...]] = (),
    foreign: bool = False,
) -> Table:
    """A :class:`Table` whose rows all fit its titles."""
    assert all(len(row) == len(titles) == len(alignment) for row in [*rows, *totals])
    return Table(
        name, caption, tuple(titles), alignment, tuple(rows), tuple(totals), tuple(bars), tuple(shades), foreign
    )


def loss_table(facts: PretrainingFacts) -> Table | None:
    """The validations of the loss curve, and those of them with a probe; each thinned to :data:`_LOSS_ROWS`."""
    probed = [point for point in facts.validation_curve if point.probe_score is not None]
    by_step = {point.step: point for point in [*_thinned(facts.validation_curve), *_thinned(probed)]}
    points = [by_step[step] for step in sorted(by_step)]
    if not points:
        return None
    columns = {
        "masked tokens guessed right, per cent": ([point.masked_accuracy for point in points], "not recorded"),
        "sentence order accuracy, per cent": ([point.validation_sop_accuracy for point in points], "not recorded"),
    }
    if facts.probe is not None:
        title = f"probe on {facts.probe.task}: {facts.probe.metric}, per cent"
        columns[title] = ([point.probe_score for point in points], "no probe")
    shown = {title: column for title, column in columns.items() if any(value is not None for value in column[0])}
    rows = []
    for number, point in enumerate(points):
        found = [(values[number], otherwise) for values, otherwise in shown.values()]
        cells = [otherwise if share is None else per_cent(share) for share, otherwise in found]
        rows.append((f"{point.step:,}", _figure(point.validation_loss, 3), *cells))
    titles = ["step", "validation loss, nats per masked token", *shown]
    return make_table("validations", "Validation during pretraining", titles, "lrrrr"[: len(titles)], rows)


def _thinned(points: Sequence[ValidationPoint]) -> Sequence[ValidationPoint]:
    """At most :data:`_LOSS_ROWS` of them, evenly chosen, with first and last kept."""
    if len(points) <= _LOSS_ROWS:
        return points
    return [points[round(number * (len(points) - 1) / (_LOSS_ROWS - 1))] for number in range(_LOSS_ROWS)]


def tokenizer_table(facts: TokenizerFacts) -> Table:
    """The tokenizer's figures with what each means, beside those of the reference tokenizers."""
    cards: list[TokenizerCard] = [facts, *facts.references.values()]

    def row(title: str, cells: Sequence[str], meaning: str) -> tuple[str, ...]:
        return (title, *cells, *[""] * (len(cards) - len(cells)), meaning)

    rows = [
        row(
            "entries",
            [f"{card.entries:,}" for card in cards],
            f"pieces in the vocabulary, learned by {facts.algorithm}",
        ),
        row(
            "tokens per word",
            [_figure(card.tokens_per_word, 3) for card in cards],
            "1 would be one piece for every word",
        ),
        row(
            "tokens per byte",
            [_figure(card.tokens_per_byte, 4) for card in cards],
            "comparable between languages and scripts",
        ),
        row(
            "unknown tokens",
            [_rate(card.unknown_rate) for card in cards],
            "pieces of unseen text that the vocabulary cannot spell",
        ),
        row(
            "vocabulary in use",
            [_rate(card.vocabulary_in_use) for card in cards],
            "share of the entries that the unseen text needs",
        ),
        row("words measured on", [f"{facts.held_out_words:,}"], "from the held-out split, never seen in training"),
        row("training time", [duration(facts.seconds_training)], ""),
    ]
    titles = ["figure", "this tokenizer" if facts.references else "value", *facts.references, "meaning"]
    alignment = "l" + "r" * len(cards) + "l"
    return make_table("tokenizer-figures", "Tokenizer, measured on held-out text", titles, alignment, rows)


def _rate(value: float | None) -> str:
    return "not recorded" if value is None else f"{per_cent(value)} %"


def packing_table(facts: PackingFacts) -> Table:
    """Where every token went, one column a split."""
    splits = facts.splits
    lines = [
        ("documents", "documents", False),
        ("tokens in", "tokens_in", True),
        ("= packed into blocks", "tokens_packed", True),
        ("+ dropped", "tokens_dropped", True),
        ("+ remainder, too short for a block", "tokens_remainder", True),
        ("blocks", "blocks", False),
        ("special tokens added", "special_tokens", False),
        ("padding added", "padding", False),
    ]
    rows = []
    for title, field, with_share in lines:
        cells = []
        for account in splits.values():
            value = getattr(account, field)
            cells += [f"{value:,}", _share(value, account.tokens_in) if with_share else ""]
        rows.append((title, *cells))
    titles = ["account", *(title for split in splits for title in (split, f"{split}, share"))]
    caption = f"Packing: blocks of {facts.sequence_length:,} tokens, mode {facts.mode}"
    return make_table("packing-account", caption, titles, "l" + "rr" * len(splits), rows)


_LEFT_OUT = {
    "empty_dropped": "empty, dropped",
    "duplicates_dropped": "duplicates, dropped",
    "near_duplicates_dropped": "near duplicates, dropped",
    "script_dropped": "other scripts, dropped",
    "overlap_dropped": "overlap with test texts, dropped",
    "unreadable_skipped": "unreadable, skipped",
}


def corpus_table(facts: CorpusFacts) -> Table:
    """The sources of the corpus, and what was left out of them; of the rarer reasons only those that occurred."""
    sources = facts.sources.values()
    totals = {count: sum(getattr(source, count) for source in sources) for count in _LEFT_OUT}
    shown = [count for count, total in totals.items() if total or count in ("empty_dropped", "duplicates_dropped")]
    documents = sum(source.documents for source in sources)
    characters = sum(source.characters for source in sources)
    rows = [
        (
            name,
            f"{source.documents:,}",
            f"{source.characters:,}",
            _share(source.characters, characters),
            *(f"{getattr(source, count):,}" for count in shown),
        )
        for name, source in facts.sources.items()
    ]
    share = _share(characters, characters)
    total = ("all sources", f"{documents:,}", f"{characters:,}", share, *(f"{totals[count]:,}" for count in shown))
    titles = ["source", "documents", "characters", "share", *(_LEFT_OUT[count] for count in shown)]
    alignment = "lrrr" + "r" * len(shown)
    return make_table("corpus-sources", "Sources of the corpus", titles, alignment, rows, totals=[total])


def timing_table(report: Report) -> Table:
    """How long each stage took; the seed runs, which are stages of their own, as one line."""
    times = [(stage.stage, f"{stage.started:%Y-%m-%d %H:%M} UTC", stage.seconds) for stage in report.stages]
    if report.seed_run_seconds is not None:
        before = next(i for i, (stage, _, _) in enumerate(times) if stage == "evaluate")
        times.insert(before, (f"{report.seed_runs:,} seed runs (fine-tuning)", "", report.seed_run_seconds))
    total = sum(seconds for _, _, seconds in times)
    longest = max(seconds for _, _, seconds in times) or 1.0
    return make_table(
        "timing-table",
        "Working time of each stage",
        ["stage", "started", "time", "share"],
        "llrr",
        [(stage, started, duration(seconds), _share(seconds, total)) for stage, started, seconds in times],
        totals=[("all stages", "", duration(total), _share(total, total))],
        bars=[seconds / longest for _, _, seconds in times],
    )


def stages_table(report: Report) -> Table:
    """Fingerprint (what was asked) and digest (what came out) of every stage, by their first 16 digits."""
    rows = [(stage.stage, str(stage.version), stage.fingerprint[:16], stage.digest[:16]) for stage in report.stages]
    caption = "Fingerprints and digests, first 16 digits"
    return make_table("stages", caption, ["stage", "version", "fingerprint", "digest"], "lrll", rows)


def environment_tables(report: Report) -> tuple[Table, ...]:
    """Code, versions and machine: one table for each distinct environment in which stages ran."""
    tables = []
    for number, place in enumerate(report.environments, start=1):
        state = " with uncommitted changes" if place.git and place.git.dirty else ", no uncommitted changes"
        rows = [
            ("git commit", f"{place.git.commit}{state}" if place.git else "not run from a git checkout"),
            ("python", place.python),
            *place.packages.items(),
            ("machine", ", ".join(part for part in (place.host, place.machine) if part)),
            ("cores", "not recorded" if place.cores is None else f"{place.cores:,}"),
        ]
        if "pretrain" in place.stages:
            rows += [(f"pretraining {key}", str(value)) for key, value in report.pretraining.resolved.items()]
        caption = f"Environment of {', '.join(place.stages)}"
        tables.append(make_table(f"environment-{number}", caption, ["what", "version or value"], "ll", rows))
    return tuple(tables)
