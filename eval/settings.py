"""Settings of the evaluation: which tasks, which models, which seeds, and how to fine-tune.

All of it is declared before anything runs. The pretrained model and its randomly initialised twin are fine-tuned
with the same settings, so that the only difference between them is the pretraining.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from eval.compared_settings import ComparedModel
from eval.fields import RepositoryName, Revision, absolute, like, name_of
from eval.labels import ner_label_problem
from eval.presets import resolved
from tasks.contract import EXECUTION, Settings, UserPath
from tasks.executor import Scheduler

OwnModel = Literal["pretrained", "random"]
TaskName = Annotated[str, name_of("task", "ner")]
ModelName = Annotated[str, name_of("model", "xlm-r-large")]
TaskKind = Literal["ner", "classification"]
FileFormat = Literal["auto", "conll", "csv", "tsv", "jsonl", "parquet"]

SplitName = Literal["train", "validation", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")

METRICS: dict[TaskKind, str] = {"ner": "entity F1", "classification": "accuracy"}
"""The headline score of each kind of task."""

MAX_SEED = 2**32 - 1

MAX_SEEDS = 1000
"""Most seeds: each one is a fine-tuning of every model on every task, and their interval no longer shrinks by much."""

MAX_AT_ONCE = 1024
"""Most seed runs at once, and most threads of one."""

MAX_ITEMS = 10_000_000
"""Upper limit of items, and of all that is counted over them."""


def filled(pattern: str, split: SplitName, config: str | None) -> str:
    """A glob with its ``{split}`` and ``{config}`` filled in."""
    return pattern.replace("{split}", split).replace("{config}", config or "")


_with_split = like(r".*\{split\}.*", "should have {split} where the name of the split stands")


class FineTuningSettings(Settings):
    """How one model is fine-tuned on one task: AdamW, linear warmup, linear decay to zero.

    Without ``patience`` the epoch with the best validation score is kept; with it, the one with the lowest
    validation loss. The test split is scored once, with the weights of that epoch.
    """

    # excluded and no part of the identity: a preset is the values that it stands for
    preset: Annotated[Literal["default", "paper"] | None, EXECUTION] = Field(
        None, exclude=True, description="named values for the keys that are not given, see eval/presets.py"
    )
    learning_rate: float = Field(5e-4, gt=0, description="highest learning rate, reached after the warmup")
    epochs: int = Field(3, gt=0, le=100_000, description="passes over the training split, fewer if stopped early")
    batch_size: int = Field(32, gt=0, le=1_000_000, description="items in an optimiser step")
    max_length: int = Field(
        128,
        ge=8,
        le=65_536,
        description="longest item in tokens, special tokens included; at most model.max_positions",
    )
    warmup_fraction: float = Field(0.1, ge=0, lt=1, description="share of the steps in which the rate rises from 0")
    weight_decay: float = Field(0.01, ge=0, description="decoupled weight decay, not of biases and norms")
    dropout: float | None = Field(
        0.1, ge=0, lt=1, description="dropout of hidden states and before the head; null: as the model has it"
    )
    patience: int | None = Field(
        None, gt=0, le=100_000, description="stop after so many epochs without lower validation loss; null: never"
    )
    threshold: float = Field(
        0.0, ge=0, description="with patience: a loss that is no more than this below the lowest so far does not count"
    )
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="of the matrix products; weights stay fp32; auto takes bf16 where it is faster"
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto takes the GPU if there is one")

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, data: Any) -> Any:
        return resolved(data)

    @model_validator(mode="after")
    def _consistent(self) -> FineTuningSettings:
        if self.threshold and self.patience is None:
            raise ValueError(f"threshold {self.threshold} has no effect without patience; set both, or threshold to 0")
        return self


class SampleSource(Settings):
    """The built-in labelled sample; it needs no file and no network."""

    kind: Literal["sample"]
    seed: int = Field(1, ge=0, le=MAX_SEED, description="of the generator")
    train: int = Field(2000, gt=0, le=MAX_ITEMS, description="items of the training split")
    validation: int = Field(400, gt=0, le=MAX_ITEMS, description="items of the validation split")
    test: int = Field(400, gt=0, le=MAX_ITEMS, description="items of the test split")


class _Columns(Settings):
    text_field: str = Field("text", description="classification: column of the text")
    label_field: str = Field("label", description="classification: column of the label")
    token_column: int | str | None = Field(
        None, description="NER: number (CoNLL, from 0) or name of the tokens' column; null: 0 or 'tokens'"
    )
    tag_column: int | str | None = Field(
        None,
        description="NER: number (CoNLL, from 0, -1 is the last) or name of the tags' column; null: -1 or 'ner_tags'",
    )


class FilesSource(_Columns):
    """The user's own files, one or several a split (a glob)."""

    kind: Literal["files"]
    train: UserPath = Field(description="file of the training split")
    validation: UserPath = Field(description="file of the validation split")
    test: UserPath = Field(description="file of the test split")
    format: FileFormat = Field("auto", description="auto goes by the ending; CoNLL if there is no known one")


class HubSource(_Columns):
    """A data set of the Hugging Face hub with splits train, validation and test, pinned to a commit."""

    kind: Literal["hub"]
    dataset: RepositoryName = Field(description="owner/name")
    config: str | None = Field(None, description="configuration, such as the language")
    revision: Revision = Field(description="commit, 40 hexadecimal digits")
    parquet_files: Annotated[str | None, _with_split] = Field(
        None, description="glob of Parquet files with {split} in it, and {config}, where it has no configurations"
    )
    local: Annotated[str | None, _with_split, absolute] = Field(
        None,
        description="glob of a local copy's Parquet files with {split} in it, and {config}, read in place of the hub: "
        "copies/wikiann/{config}/{split}-*.parquet",
    )

    def identity_inputs(self) -> dict[str, Any]:
        """A local copy by its content, so that editing it runs the stage again, and moving it does not."""
        if self.local is None:
            return {}
        files = {split: filled(self.local, split, self.config) for split in SPLITS}
        return {"local": {split: LocalFiles(paths=pattern) for split, pattern in files.items()}}


class LocalFiles(Settings):
    """Files of one split of a local copy, as the identity has them."""

    paths: UserPath


Source = Annotated[SampleSource | FilesSource | HubSource, Field(discriminator="kind")]


class TaskSettings(Settings):
    """One downstream task: its data, its labels, and its fine-tuning."""

    kind: TaskKind = Field(description="ner: a tag for each word; classification: one label for a text")
    source: Source = Field(description="where the three splits come from")
    labels: tuple[str, ...] | None = Field(
        None, min_length=2, description="labels in the order of their ids; null: those of the training split, sorted"
    )
    fine_tuning: FineTuningSettings = Field(default_factory=FineTuningSettings, description="same for every model")
    sha256: Annotated[
        str | None, like("[0-9a-f]{64}", "should be 64 digits of 0-9 and a-f, as scores.json of a seed run has it")
    ] = Field(None, description="digest that the content must have, from data.sha256 in a seed run's scores.json")
    max_overlap: float = Field(
        0.01,
        ge=0,
        le=1,
        description="share of a split's items that may be in training too; above it there is a warning",
    )
    title: str | None = Field(None, description="what the report calls the data; null: named after the source")
    published: str | None = Field(None, description="table of eval/published.yaml that is shown beside the scores")

    @model_validator(mode="after")
    def _consistent(self) -> TaskSettings:
        if self.labels is None:
            return self
        if self.source.kind == "sample":
            raise ValueError("labels: the sample has labels of its own; leave them out")
        if len(set(self.labels)) != len(self.labels):
            raise ValueError(f"labels {list(self.labels)} are not distinct")
        if self.kind == "ner" and (problem := ner_label_problem(self.labels)):
            raise ValueError(f"labels {list(self.labels)}: {problem}")
        return self


class EvaluationSettings(Settings):
    """The whole evaluation: every model on every task with every seed."""

    seeds: (
        Annotated[int, Field(gt=0, le=MAX_SEEDS)]
        | Annotated[tuple[int, ...], Field(min_length=1, max_length=MAX_SEEDS)]
    ) = Field(
        5,
        description="a number n for the seeds 1 to n, or a list of seeds; at most 1000, since each one is a "
        "fine-tuning of every model on every task",
    )
    models: tuple[OwnModel, ...] = Field(
        ("pretrained", "random"), min_length=1, description="pretrained, and its randomly initialised twin"
    )
    compare_with: dict[ModelName, ComparedModel] = Field(
        default_factory=dict, description="models of others by name, fine-tuned and scored in the same way"
    )
    tasks: dict[TaskName, TaskSettings] = Field(min_length=1, description="tasks by name")
    at_once: Annotated[Literal["auto"] | Annotated[int, Field(gt=0, le=MAX_AT_ONCE)], EXECUTION] = Field(
        "auto",
        description="seed runs at the same time on this machine, each in a process of its own; auto: as many as there "
        "are cores and memory for, or one after another where there is a GPU",
    )
    threads: Annotated[Literal["auto"] | Annotated[int, Field(gt=0, le=MAX_AT_ONCE)], EXECUTION] = Field(
        "auto",
        description="threads of a seed run; they decide the rounding on a CPU, so auto goes by the machine and by "
        "what the recipe declares, never by at_once or by what is left to do",
    )
    scheduler: Scheduler = None

    @model_validator(mode="after")
    def _consistent(self) -> EvaluationSettings:
        if self.scheduler is not None and self.at_once != "auto":
            raise ValueError(
                f"at_once {self.at_once} has no effect with a scheduler: each worker does one at a time; leave it out"
            )
        seeds = self.seed_list
        for number, seed in enumerate(seeds):
            if seed in seeds[:number] or not 0 <= seed <= MAX_SEED:
                raise ValueError(f"seeds: {seed} stands twice, or is not from 0 to {MAX_SEED}")
        if len(set(self.models)) != len(self.models):
            raise ValueError(f"models {list(self.models)} are not distinct")
        for name, model in self.compare_with.items():
            if name in (*get_args(OwnModel), "majority"):
                raise ValueError(f"compare_with.{name}: this name has a meaning of its own; choose another one")
            if problem := model.pin_problem():
                raise ValueError(f"compare_with.{name}: {problem}")
        return self

    @property
    def model_names(self) -> tuple[str, ...]:
        """Our own models, then those that they are compared with."""
        return (*self.models, *self.compare_with)

    @property
    def seed_list(self) -> tuple[int, ...]:
        """The declared seeds, in order."""
        return tuple(range(1, self.seeds + 1)) if isinstance(self.seeds, int) else self.seeds
