"""The sentences of a report that follow from its figures: the verdict, and what to be careful about.

They are written for members of a community, not for statisticians: no "significant", no p; those stand in a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eval.report_schema import (
    Caution,
    CorpusFacts,
    EnvironmentFacts,
    PackingFacts,
    PretrainingFacts,
    ProbeFacts,
    TokenizerFacts,
)
from eval.results import AbsentModel, ModelResult, Results, TaskResult

FEW_SEEDS = 5
"""Fewer runs than this per model are called few."""

HIGH_UNKNOWN_RATE = 0.01
"""Above this share of unknown tokens a reader is warned: with 1 in 100 lost, texts lose whole words."""

SMALL_TEST_SPLIT = 500
"""Below this number of test items, the choice of the items matters more than the choice of the seed."""

READING = (
    "Two things are left to chance: the seeds, and which texts the test split holds. Each has its 95 % interval: what "
    "the mean could be with other seeds (t interval), and with other test items (bootstrap). A difference between two "
    "models counts as shown only if neither chance explains it: the larger of two p, of Welch's test over the seeds "
    "and of a randomisation test over the test items, is at most 0.05 after Holm's correction for all comparisons "
    "shown here. That no difference is shown does not say that there is none."
)
"""What the intervals and the comparisons of a report mean."""

_DOING = {"ner": "finding names in text", "classification": "sorting texts into classes"}


def per_cent(fraction: float) -> str:
    """A fraction as per cent with two decimals and a true minus sign: 0.9197 is "91.97"."""
    return f"{100 * fraction:.2f}".replace("-", "\N{MINUS SIGN}")


def mean_and_std(mean: float, std: float | None) -> str:
    """ "91.97 ± 0.47" in per cent; without ± when there is no std, that is for one run."""
    return per_cent(mean) if std is None else f"{per_cent(mean)} ± {per_cent(std)}"


def find_model(task: TaskResult, name: str) -> ModelResult:
    """The result of the model of that name; a comparison only names models that were measured."""
    found = [model for model in task.models if model.model == name]
    assert found, f"{task.task}: the comparison names {name!r}, which was not measured"
    return found[0]


def probe_sentence(probe: ProbeFacts) -> str:
    """What the scores of the probe are."""
    passes = "once" if probe.epochs == 1 else f"{probe.epochs:,} times over"
    return (
        f"The probe: every now and then a copy of the model was trained on up to {probe.train_items:,} items of "
        f"{probe.task}, {passes}, and its {probe.metric} on the validation split was measured. It shows the "
        "direction; the scores above come from the whole training split and unseen text."
    )


def verdict(results: Results) -> str:
    """Does pretraining help, and by how much: one sentence."""
    compared = [task for task in results.tasks if task.comparison is not None]
    outcomes = {task.comparison.outcome for task in results.tasks if task.comparison is not None}
    if not compared:
        return "No model without pretraining was measured, so this report cannot say whether pretraining helps."
    if outcomes == {"better"}:
        opening = "Pretraining helps"
    elif outcomes == {"unknown"}:
        opening = "Too few runs to say whether pretraining helps"
    elif {"better", "worse"} <= outcomes:
        opening = "Pretraining helps on some tasks and makes others worse"
    elif "better" in outcomes:
        opening = "Pretraining clearly helps on some tasks but not on all"
    elif "worse" in outcomes:
        opening = "Pretraining does not help, and makes some results worse"
    else:
        opening = "No clear benefit of pretraining was shown"
    return f"{opening}: {'; '.join(_clause(task) for task in compared)}."


def _clause(task: TaskResult) -> str:
    comparison = task.comparison
    assert comparison is not None
    scores = [per_cent(find_model(task, name).mean) for name in (comparison.model, comparison.baseline)]
    points = f"{per_cent(abs(comparison.difference))} points {'more' if comparison.difference >= 0 else 'less'}"
    remark = {"same": ", which could be chance", "unknown": ", from too few runs"}.get(comparison.outcome, "")
    return (
        f"at {_DOING[task.kind]} ({task.task}) the model scores {scores[0]} out of 100 with pretraining "
        f"and {scores[1]} without ({points}{remark})"
    )


def cautions(
    *,
    results: Results,
    corpus: CorpusFacts,
    tokenizer: TokenizerFacts,
    packing: PackingFacts,
    pretraining: PretrainingFacts,
    environments: Sequence[EnvironmentFacts],
) -> tuple[Caution, ...]:
    """What to be careful about, the gravest first. Empty when nothing stands out."""
    return (
        *_of_pretraining(pretraining),
        *_of_results(results),
        *_of_text(corpus, tokenizer, packing),
        *_of_code(environments),
    )


def _of_pretraining(pretraining: PretrainingFacts) -> Iterator[Caution]:
    loss, entropy = pretraining.validation_loss, pretraining.unigram_entropy
    if loss is None:
        yield Caution(
            kind="loss not a number",
            text="The validation loss at the end of pretraining is not a number: training went wrong, and the "
            "scores say nothing about the method. A lower learning rate or longer warmup usually helps.",
            important=True,
        )
    elif not pretraining.left_plateau:
        beside = f" beside {entropy:.2f} for guessing by frequency alone" if entropy is not None else ""
        yield Caution(
            kind="plateau",
            text=f"The model has not left the plateau: its validation loss is {loss:.2f}{beside} (the unigram "
            "entropy). It has learned how frequent words are, but not yet how they fit together, so little can be "
            "expected of it on the tasks below. It needs more steps, or another learning rate or warmup.",
            important=True,
        )
    if pretraining.probe is not None and pretraining.probe.failures:
        yield Caution(
            kind="failed probes",
            text="Probes during pretraining that failed and are missing in the curve: "
            f"{pretraining.probe.failures:,}. The log of the run says why.",
        )


def _of_results(results: Results) -> Iterator[Caution]:
    counts = sorted({model.n for task in results.tasks for model in task.models})
    if counts and counts[0] == 1:
        yield Caution(
            kind="one seed",
            text="Some scores come from a single run. How much they would change with another seed is unknown, which "
            "is why they have no ± and no difference between models is claimed from them.",
        )
    for n in counts:
        if 1 < n < FEW_SEEDS:
            yield Caution(
                kind="few seeds",
                text=f"Few seeds: with {n} runs per model the spread itself is uncertain, so the interval for other "
                "seeds is wide, and only large differences can be shown.",
            )
    absent: dict[AbsentModel, list[str]] = {}
    for task in results.tasks:
        for one in task.absent:
            absent.setdefault(one, []).append(task.task)
    for one, tasks in absent.items():
        yield Caution(
            kind="absent model",
            text=f"{one.model} ({one.title}) was to be compared with and has no score on {' and '.join(tasks)}: "
            f"{one.reason.rstrip('.')}. Running again tries it again.",
            important=True,
        )
    for task in results.tasks:
        for model in task.models:
            for failed in model.missing:
                yield Caution(
                    kind="missing run",
                    text=f"{task.task}, {model.model}, seed {failed.seed}: failed and is missing ({failed.reason}). "
                    f"The mean is over {model.n} of {model.declared} declared seeds; running again tries it again.",
                    important=True,
                )
            second_line = "; a second line leaves out those that learnt nothing" if model.without_degenerate else ""
            flagged: dict[tuple[str, ...], list[str]] = {}
            for seed in model.seeds:
                if seed.flags:
                    flagged.setdefault(seed.flags, []).append(str(seed.seed))
            for flags, seeds in flagged.items():
                yield Caution(
                    kind="flagged run",
                    text=f"{task.task}, {model.model}, seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}: "
                    f"{', '.join(flags)}. Flagged runs are kept in the mean{second_line}.",
                )
        if task.comparison is None:
            yield Caution(
                kind="no comparison",
                text=f"{task.task}: no model of the same shape without pretraining was measured beside it, so the "
                "gain from pretraining is not known.",
            )
        for warning in task.warnings:
            yield Caution(kind="labelled data", text=f"{task.task}: {warning}.")
        if task.published and task.published_differences:
            yield Caution(
                kind="published on other data",
                text=f"{task.task}: the published figures are not known to be of the same data: "
                f"{'; '.join(task.published_differences)}. They show what is possible; they are not a ranking.",
            )
        items = task.items.get("test", 0)
        if 0 < items < SMALL_TEST_SPLIT:
            yield Caution(
                kind="small test split",
                text=f"{task.task}: the test split has only {items:,} items. With other test texts the scores could "
                "differ by more than the spread between seeds.",
            )


def _of_text(corpus: CorpusFacts, tokenizer: TokenizerFacts, packing: PackingFacts) -> Iterator[Caution]:
    dropped = {name: source.empty_dropped for name, source in corpus.sources.items() if source.empty_dropped}
    if dropped:
        listed = ", ".join(f"{number:,} of {name}" for name, number in dropped.items())
        yield Caution(kind="dropped documents", text=f"Documents without any text were dropped: {listed}.")
    skipped = {name: source.unreadable_skipped for name, source in corpus.sources.items() if source.unreadable_skipped}
    if skipped:
        listed = ", ".join(f"{number:,} of {name}" for name, number in skipped.items())
        yield Caution(
            kind="unreadable documents",
            text=f"Documents that could not be read were skipped: {listed}. The corpus's record names the first ones, "
            "logs/left-out.jsonl.gz beside it all of them.",
        )
    for split, account in packing.splits.items():
        if account.tokens_dropped:
            share = account.tokens_dropped / account.tokens_in
            yield Caution(
                kind="dropped tokens",
                text=f"Packing dropped {account.tokens_dropped:,} tokens of the {split} split "
                f"({per_cent(share)} %): the model never sees them.",
            )
    if tokenizer.unknown_rate is not None and tokenizer.unknown_rate > HIGH_UNKNOWN_RATE:
        yield Caution(
            kind="unknown tokens",
            text=f"{per_cent(tokenizer.unknown_rate)} % of the tokens of unseen text are unknown to the tokenizer. "
            "Letters or signs are missing from its vocabulary.",
        )


def _of_code(environments: Sequence[EnvironmentFacts]) -> Iterator[Caution]:
    dirty = [stage for place in environments if place.git and place.git.dirty for stage in place.stages]
    if dirty:
        yield Caution(
            kind="dirty git tree",
            text=f"The code had changes that no git commit holds when these stages ran: {', '.join(dirty)}. "
            "The commit alone does not reproduce them.",
        )
    commits = {place.git.commit for place in environments if place.git}
    if len(commits) > 1:
        yield Caution(
            kind="several commits",
            text=f"The stages were made by {len(commits)} different commits of the code; see the provenance.",
        )
