"""The model card: ``README.md`` with the hub's metadata, made of a public report and the recipe's publishing section.

Every figure comes from the report's own JSON; what nobody stated is called "not stated". The metadata and the
``model-index`` are built, and read back, by ``huggingface_hub``. The layout of a ``model-index`` is described in
https://github.com/huggingface/hub-docs/blob/main/modelcard.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from markupsafe import Markup
from pydantic import BaseModel, ConfigDict, ValidationError

from eval.publishing import PublishingSettings
from eval.rendering import markdown_environment
from eval.report_peers import peers_view
from eval.report_schema import CollaborationFacts, Report
from eval.report_scores import run_facts, task_view
from eval.report_tables import Table, duration, environment_tables, make_table, stages_table
from eval.report_wording import READING, per_cent
from eval.results import ModelResult, TaskResult
from tasks.contract import StageError

NOT_STATED = "not stated"

OWN_DATA = "custom"
"""Type of a data set that is not one of the hub's: an id there would link to somebody else's."""

SHOWN_PEERS = 20
"""Peers that the table names at most, those that gave most; the rest is one line."""

_TASK_TYPES = {"ner": "token-classification", "classification": "text-classification"}
_METRIC_TYPES = {"entity F1": "f1", "accuracy": "accuracy"}


class _Facts(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Source(_Facts):
    kind: str
    name: str = ""
    dataset: str = ""
    config: str | None = None
    parquet_files: str | None = None
    revision: str = ""
    local: str | None = None

    @property
    def on_the_hub(self) -> bool:
        return (
            self.kind == "hub" and self.local is None and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", self.dataset) is not None
        )

    def described(self) -> str:
        if self.kind == "sample":
            return "made-up text of sahajflow's built-in generator"
        if self.kind != "hub":
            return "own files"
        part = self.config or self.parquet_files or ""
        return f"{self.dataset} {part}".rstrip() + f", revision {self.revision[:7]}"


class _Corpus(_Facts):
    sources: tuple[_Source, ...]


class _Model(_Facts):
    architecture: str
    hidden_size: int
    layers: int
    heads: int
    intermediate_size: int
    max_positions: int


class _Masking(_Facts):
    rate: float


class _Pretraining(_Facts):
    engine: str
    objective: str
    batch_size: int
    optimizer: str
    learning_rate: float
    warmup_steps: int
    masking: _Masking


class _Task(_Facts):
    source: _Source


class _Evaluation(_Facts):
    tasks: dict[str, _Task]


class _Recipe(_Facts):
    """What the card shows of the recipe that the report holds."""

    corpus: _Corpus
    model: _Model
    pretraining: _Pretraining
    evaluation: _Evaluation


def model_card(report: Report, publishing: PublishingSettings, repository: str | None = None) -> str:
    """The text of the card; equal arguments give equal bytes.

    Args:
        report: a public one, of :func:`eval.public_report.public_report`.
        publishing: what the recipe says about publishing.
        repository: ``owner/name`` on the hub; None for a folder, from inside which the card's code then loads.

    Raises:
        StageError: the report's recipe lacks something that is shown, or the metadata did not survive being read back.
    """
    try:
        recipe = _Recipe.model_validate(report.recipe)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise StageError(f"report.json: recipe.{place}: {first['msg']}; run the report stage again") from None
    name = repository.rpartition("/")[2] if repository else report.name
    data = _metadata(report, recipe, publishing, name)
    body = (
        markdown_environment()
        .get_template("model_card.md.j2")
        .render(
            report=report,
            name=name,
            important=[caution for caution in report.cautions if caution.important],
            facts=_facts_table(report, recipe, publishing),
            run_facts=run_facts(report),
            place=Markup(repository or "."),
            on_hub=repository is not None,
            sentence_order=recipe.pretraining.objective == "mlm+sop",
            several_runs=any(model.n > 1 for task in report.results.tasks for model in task.models),
            reading=READING,
            seeds=_seeds(report),
            brief=True,  # classes, types and confusions are in results.json, and in the report
            tasks=[task_view(task, number) for number, task in enumerate(report.results.tasks, start=1)],
            pretraining=_pretraining_table(report, recipe),
            corpus=_corpus_table(report, recipe, publishing),
            unlicensed=any(source.name not in publishing.source_licenses for source in recipe.corpus.sources),
            peers=peers_view(report.collaboration) if report.collaboration else None,
            peers_table=_peers_table(report.collaboration) if report.collaboration else None,
            stages=stages_table(report),
            environments=environment_tables(report),
        )
    )
    card = ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body.rstrip()}\n")
    if card.data.to_dict() != data.to_dict():
        raise StageError("README.md: its metadata read back differ from what was written; report this as a fault")
    return str(card)


def _metadata(report: Report, recipe: _Recipe, publishing: PublishingSettings, name: str) -> ModelCardData:
    results = list(_eval_results(report, recipe))
    metrics = {_METRIC_TYPES[task.metric]: None for task in report.results.tasks}
    datasets = {source.dataset: None for source in recipe.corpus.sources if source.on_the_hub}
    return ModelCardData(
        language=list(publishing.languages) or None,
        license=publishing.license,
        license_name=publishing.license_name,
        license_link=publishing.license_link,
        library_name="transformers",
        pipeline_tag="fill-mask",
        tags=["sahajflow", recipe.model.architecture, *(["hivemind"] if report.collaboration else [])],
        datasets=list(datasets) or None,
        metrics=list(metrics) or None,
        model_name=name if results else None,
        eval_results=results or None,
    )


def _eval_results(report: Report, recipe: _Recipe) -> Iterator[EvalResult]:
    """The pretrained model's mean on every task: what the card is about, not the models beside it."""
    for task in report.results.tasks:
        source = recipe.evaluation.tasks[task.task].source
        hub = source.on_the_hub
        for model in task.models:
            if model.model == "pretrained":
                yield EvalResult(
                    task_type=_TASK_TYPES[task.kind],
                    task_name=task.task,
                    dataset_type=source.dataset if hub else OWN_DATA,
                    dataset_name=task.data,
                    # Of own data the task's name: results of equal type, configuration and split would become one.
                    dataset_config=source.config if hub else task.task,
                    dataset_split="test",
                    dataset_revision=source.revision if hub else None,
                    metric_type=_METRIC_TYPES[task.metric],
                    metric_value=round(model.mean, 6),
                    metric_name=_metric_name(task, model),
                )


def _metric_name(task: TaskResult, model: ModelResult) -> str:
    """ "entity F1, mean of 5 fine-tunings, sample std 0.0047"."""
    if model.std is None:
        return f"{task.metric}, one fine-tuning"
    declared = f" ({model.declared} declared)" if model.missing else ""
    return f"{task.metric}, mean of {model.n} fine-tunings{declared}, sample std {model.std:.4f}"


def _facts_table(report: Report, recipe: _Recipe, publishing: PublishingSettings) -> Table:
    model = recipe.model
    licence = publishing.license or f"{NOT_STATED}; ask before you use the model"
    if publishing.license == "other":
        licence = f"{publishing.license_name}: {publishing.license_link}"
    rows = [
        ("languages", ", ".join(publishing.languages) or NOT_STATED),
        ("licence", licence),
        ("architecture", f"{model.architecture.upper()} (masked language model)"),
        ("parameters", f"{report.pretraining.parameters:,}"),
        (
            "shape",
            f"{model.layers} layer{'s' * (model.layers != 1)} of hidden size {model.hidden_size:,}, "
            f"{model.heads} heads, intermediate size {model.intermediate_size:,}",
        ),
        ("longest input", f"{model.max_positions:,} tokens"),
        (
            "tokenizer",
            f"{report.tokenizer.algorithm}, {report.tokenizer.entries:,} entries"
            + (
                f", {report.tokenizer.tokens_per_word:.2f} tokens per word of unseen text"
                if report.tokenizer.tokens_per_word is not None
                else ""
            ),
        ),
    ]
    return make_table("facts", "The model", ["what", "value"], "ll", rows)


def _pretraining_table(report: Report, recipe: _Recipe) -> Table:
    facts, settings = report.pretraining, recipe.pretraining
    order = " and sentence order" if settings.objective == "mlm+sop" else ""
    loss = NOT_STATED if facts.validation_loss is None else f"{facts.validation_loss:.3f} nats per masked token"
    if facts.unigram_entropy is not None:
        loss += f"; guessing by frequency alone has {facts.unigram_entropy:.3f}"
    rows = [
        ("objective", f"masked language modelling, {100 * settings.masking.rate:g} % of the tokens{order}"),
        ("blocks", f"{report.packing.sequence_length:,} tokens, packed as {report.packing.mode}"),
        ("steps", f"{facts.steps:,} of {settings.batch_size:,} blocks"),
        ("tokens read", f"{facts.tokens:,}"),
        (
            "optimiser",
            f"{settings.optimizer}, learning rate {settings.learning_rate:g}, {settings.warmup_steps:,} warmup steps",
        ),
        ("engine", f"{settings.engine}, precision {facts.resolved.get('precision', NOT_STATED)}"),
        ("time", duration(facts.seconds_training)),
        ("validation loss", loss),
    ]
    return make_table("pretraining", "Pretraining", ["what", "value"], "ll", rows)


def _corpus_table(report: Report, recipe: _Recipe, publishing: PublishingSettings) -> Table:
    rows = []
    for source in recipe.corpus.sources:
        facts = report.corpus.sources.get(source.name)
        rows.append(
            (
                source.name,
                source.described(),
                publishing.source_licenses.get(source.name, NOT_STATED),
                "0" if facts is None else f"{facts.documents:,}",
                "0" if facts is None else f"{facts.characters:,}",
            )
        )
    titles = ["source", "what", "licence", "documents", "characters"]
    return make_table("corpus", "Sources of the corpus", titles, "lllrr", rows)


def _peers_table(facts: CollaborationFacts) -> Table:
    ordered = sorted(facts.peers, key=lambda peer: -peer.samples)
    rows = [(peer.name, f"{peer.samples:,}", f"{per_cent(peer.share)} %", f"{peer.steps:,}") for peer in ordered]
    rest = ordered[SHOWN_PEERS:]
    if rest:
        samples, share = sum(peer.samples for peer in rest), sum(peer.share for peer in rest)
        rows[SHOWN_PEERS:] = [(f"{len(rest):,} others", f"{samples:,}", f"{per_cent(share)} %", "")]
    titles = ["peer", "samples", "share", "global steps"]
    return make_table("peers", "What each peer gave", titles, "lrrr", rows, foreign=True)


def _seeds(report: Report) -> str:
    """The seeds by task and model where they differ: "1, 2, 3"."""
    found = {
        tuple(sorted([*(seed.seed for seed in model.seeds), *(one.seed for one in model.missing)]))
        for task in report.results.tasks
        for model in task.models
    }
    return "; ".join(", ".join(str(seed) for seed in seeds) for seeds in sorted(found))
