"""The tables of a report: which figures stand where, and how numbers become text. Both output formats use them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eval.report_schema import CorpusFacts, PackingFacts, PretrainingFacts, Report, TokenizerCard, TokenizerFacts
from eval.report_wording import per_cent

_JOIN = "\N{NO-BREAK SPACE}"

_LOSS_ROWS = 12
"""Validations that the table beside the loss curve shows at most."""


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
    foreign: bool = False,
) -> Table:
    """A :class:`Table` whose rows all fit its titles."""
    assert all(len(row) == len(titles) == len(alignment) for row in [*rows, *totals])
    return Table(name, caption, tuple(titles), alignment, tuple(rows), tuple(totals), tuple(bars), foreign)


def loss_table(facts: PretrainingFacts) -> Table | None:
    """The validations of the loss curve, thinned to :data:`_LOSS_ROWS` with first and last kept."""
    points = facts.validation_curve
    if not points:
        return None
    if len(points) > _LOSS_ROWS:
        points = tuple(points[round(i * (len(points) - 1) / (_LOSS_ROWS - 1))] for i in range(_LOSS_ROWS))
    accuracies = {
        "masked tokens guessed right, per cent": [point.masked_accuracy for point in points],
        "sentence order accuracy, per cent": [point.validation_sop_accuracy for point in points],
    }
    shown = {title: column for title, column in accuracies.items() if any(value is not None for value in column)}
    rows = []
    for number, point in enumerate(points):
        found = [column[number] for column in shown.values()]
        cells = ["not recorded" if accuracy is None else per_cent(accuracy) for accuracy in found]
        rows.append((f"{point.step:,}", _figure(point.validation_loss, 3), *cells))
    titles = ["step", "validation loss, nats per masked token", *shown]
    return make_table("validations", "Validation during pretraining", titles, "lrrr"[: len(titles)], rows)


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


def corpus_table(facts: CorpusFacts) -> Table:
    """The sources of the corpus."""
    sources = facts.sources.values()
    documents, characters, empty, duplicates = (
        sum(source.documents for source in sources),
        sum(source.characters for source in sources),
        sum(source.empty_dropped for source in sources),
        sum(source.duplicates_dropped for source in sources),
    )
    rows = [
        (
            name,
            f"{source.documents:,}",
            f"{source.characters:,}",
            _share(source.characters, characters),
            f"{source.empty_dropped:,}",
            f"{source.duplicates_dropped:,}",
        )
        for name, source in facts.sources.items()
    ]
    share = _share(characters, characters)
    total = ("all sources", f"{documents:,}", f"{characters:,}", share, f"{empty:,}", f"{duplicates:,}")
    titles = ["source", "documents", "characters", "share", "empty, dropped", "duplicates, dropped"]
    return make_table("corpus-sources", "Sources of the corpus", titles, "lrrrrr", rows, totals=[total])


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
