"""The typed content of ``report.json``: everything that a report shows, so that it can be rendered again from it.

Scores, rates and shares are fractions from 0 to 1, losses are nats per masked token, times are seconds; the renderer
alone turns them into per cent and words. A figure that a killed or degenerate run left as "not a number" is None.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from eval.cost_schema import Cost
from eval.results import Results
from tasks.foreign_text import printable


class _Facts(BaseModel):
    """Metrics of a stage: what the report does not show is left out."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class SourceFacts(_Facts):
    """One source of the corpus."""

    documents: int
    characters: int
    empty_dropped: int
    duplicates_dropped: int = 0
    unreadable_skipped: int = 0
    script_dropped: int = 0
    overlap_dropped: int = 0
    near_duplicates_dropped: int = 0


class CorpusFacts(_Facts):
    """The corpus after reading and splitting; ``documents`` counts both splits."""

    documents: int
    characters: int
    bytes: int
    validation_documents: int
    sources: dict[str, SourceFacts]


class TokenizerCard(_Facts):
    """A tokenizer, measured on the held-out split of the corpus; a word is what stands between spaces."""

    entries: int
    tokens_per_word: float | None
    tokens_per_byte: float | None
    unknown_rate: float | None
    vocabulary_in_use: float | None
    """Share of the entries that occur in the held-out text."""


class TokenizerFacts(TokenizerCard):
    """The tokenizer that was trained, and others on the same text."""

    algorithm: str
    held_out_words: int
    seconds_training: float | None
    references: dict[str, TokenizerCard] = {}
    """By the names that the recipe gives them."""


class SplitAccount(_Facts):
    """Where the tokens of one split went: ``tokens_in`` = packed + dropped + remainder."""

    documents: int
    tokens_in: int
    tokens_packed: int
    tokens_dropped: int
    tokens_remainder: int
    special_tokens: int
    padding: int
    blocks: int


class PackingFacts(_Facts):
    """The packed blocks."""

    mode: str
    sequence_length: int
    splits: dict[str, SplitAccount]


class LossPoint(_Facts):
    """Training loss on masked tokens, averaged over the log lines that end at ``step``."""

    step: int
    mlm_loss: float | None


class ValidationPoint(_Facts):
    """One validation during pretraining."""

    step: int
    validation_loss: float | None
    masked_accuracy: float | None = None
    """Share of the held-out masked tokens that were guessed right."""
    validation_sop_accuracy: float | None = None
    probe_score: float | None = None
    """Of a probe after this step; None without one."""


class ProbeFacts(_Facts):
    """The probe during pretraining: a short fine-tuning of a copy of the model, scored on the validation split."""

    task: str
    metric: str
    train_items: int
    """At most."""
    epochs: int
    failures: int
    """Probes that gave no score."""


class PretrainingFacts(_Facts):
    """The pretraining run and its loss curve, thinned to a few hundred points."""

    steps: int
    samples: int
    tokens: int
    parameters: int
    seconds_training: float | None
    tokens_per_second: float | None
    train_loss: float | None
    validation_loss: float | None
    unigram_entropy: float | None
    left_plateau: bool
    peak_memory_bytes: int | None = None
    training_curve: tuple[LossPoint, ...] = ()
    validation_curve: tuple[ValidationPoint, ...] = ()
    probe: ProbeFacts | None = None
    resolved: dict[str, JsonValue] = {}


def _printable(name: object) -> object:
    return printable(name) or "unnamed" if isinstance(name, str) else name


PeerName = Annotated[str, BeforeValidator(_printable)]
"""What a peer calls itself. Strangers choose theirs: it is made printable here, and escaped where it is shown."""


class PeerFacts(_Facts):
    """What one peer gave, and how it spent its time."""

    name: PeerName
    peer: str
    """Digest of its key, which tells two peers of one name apart."""
    samples: int
    share: float
    """Of the samples of all peers."""
    lost: int = 0
    """Samples whose gradients it computed and that went into no global step."""
    steps: int
    """Global steps that it took part in."""
    computing: float
    matching: float
    reducing: float
    outcomes: dict[str, int]
    """Its rounds by outcome: "averaged", "alone", "no group", "failed"."""


class StepTimes(_Facts):
    """Means over the global steps; ``seconds`` is the whole step."""

    computing: float
    matching: float
    reducing: float
    seconds: float


class FinalWeights(_Facts):
    """The weights of the peers that were there at the end, compared."""

    peers: tuple[PeerName, ...]
    distance: float | None
    """The largest relative L2 distance between two of them; None if there was only one."""
    bound: float


class CollaborationFacts(_Facts):
    """The ledger of a pretraining run by several peers (engine ``collaborative``)."""

    target_step: int
    step: int
    end: Literal["target", "deadline"]
    target_batch: int = Field(gt=0)
    samples: int
    """Really used, in all steps together."""
    lost: int = 0
    """Computed, and used in no step: of peers that left or came too late for a step."""
    peers: tuple[PeerFacts, ...]
    groups: dict[int, int]
    """Number of global steps by the size of their largest averaged group."""
    outcomes: dict[str, int]
    """Number of global steps by outcome."""
    per_step: StepTimes
    final: FinalWeights


class StageFacts(_Facts):
    """One stage's record: what was made, from what, and when."""

    stage: str
    version: int
    fingerprint: str
    digest: str
    started: datetime
    finished: datetime
    seconds: float


class GitState(_Facts):
    """The checkout that the code ran from."""

    commit: str
    dirty: bool


class EnvironmentFacts(_Facts):
    """Where some of the stages ran."""

    stages: tuple[str, ...] = ()
    git: GitState | None = None
    python: str = ""
    packages: dict[str, str] = {}
    host: str = ""
    machine: str = ""
    cores: int | None = None


class Caution(_Facts):
    """Something that a reader must know before trusting a figure."""

    kind: str
    """For machines, such as ``"plateau"`` or ``"few seeds"``."""
    text: str
    important: bool = False
    """Shown at the top of the page as well."""


class Report(BaseModel):
    """The whole report."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[2] = 2
    name: str
    description: str
    verdict: str
    """The result in one plain sentence."""
    cautions: tuple[Caution, ...]
    results: Results
    corpus: CorpusFacts
    tokenizer: TokenizerFacts
    packing: PackingFacts
    pretraining: PretrainingFacts
    collaboration: CollaborationFacts | None = None
    """None unless several peers could pretrain together."""
    stages: tuple[StageFacts, ...]
    seed_runs: int
    seed_run_seconds: float | None
    """Working time of all seed runs together, even if they ran side by side; None if a record of one is gone."""
    cost: Cost | None = None
    """None in reports of versions before it was computed."""
    environments: tuple[EnvironmentFacts, ...]
    recipe: dict[str, Any]
