"""The chain as a graph: which stages a recipe asks for, with which settings, reading which artifacts.

corpus -> tokenizer -> pack -> pretrain -> seed runs (model x task x seed) -> evaluate -> report

A corpus that is to hold no test text reads those first: test texts -> corpus. Models of others that ours is compared
with are made ready each for itself: compared model -> its seed runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from eval.compared_model import STAGE as COMPARED_MODEL
from eval.compared_settings import ComparedModel
from eval.gathering import STAGE as EVALUATE
from eval.gathering import GatheringSettings, gathering_settings
from eval.probe import probe_call
from eval.report import STAGE as REPORT
from eval.report import ReportSettings
from eval.seed_run import STAGE as SEED_RUN
from eval.seed_run import seed_run_settings
from eval.task_texts import STAGE as TEST_TEXTS
from eval.task_texts import texts_settings
from flows.recipe import Recipe
from tasks.contract import Settings, Stage
from tasks.corpus import STAGE as CORPUS
from tasks.packing import STAGE as PACK
from tasks.pretraining.settings import PretrainSettings
from tasks.pretraining.stage import STAGE as PRETRAIN
from tasks.tokenizer_training import STAGE as TOKENIZER

STAGES = ("corpus", "tokenizer", "pack", "pretrain", "evaluate", "report")
"""What a user can select, in order; seed runs and compared models belong to ``evaluate``, test texts to ``corpus``."""

GROUPS = {SEED_RUN.name: "evaluate", COMPARED_MODEL.name: "evaluate", TEST_TEXTS.name: "corpus"}


@dataclass(frozen=True)
class Node:
    """One result to make: a stage with its settings and the nodes whose artifacts it reads, by input name."""

    name: str
    stage: Stage
    settings: Settings
    inputs: dict[str, str]

    @property
    def group(self) -> str:
        """The selectable stage that this node belongs to."""
        return GROUPS.get(self.stage.name, self.stage.name)

    @property
    def dispensable(self) -> bool:
        """Whether the chain goes on without this node if it fails: a seed run that crashes is missing, and so are all
        of a compared model that cannot be had."""
        return self.stage.name in {SEED_RUN.name, COMPARED_MODEL.name}

    @property
    def fetches(self) -> str | None:
        """What the node gets from the network unless it is on this machine already, for the plan."""
        return self.settings.fetches if isinstance(self.settings, ComparedModel) else None

    def without(self, failures: Mapping[str, str]) -> Node:
        """The node as it reads what is there of its inputs, and is told why the others are not.

        Args:
            failures: nodes that failed, by name, each with its failure in one line.
        """
        missing = {name: failures[source] for name, source in self.inputs.items() if source in failures}
        if not missing:
            return self
        assert isinstance(self.settings, GatheringSettings)
        inputs = {name: source for name, source in self.inputs.items() if name not in missing}
        return replace(self, settings=self.settings.model_copy(update={"missing": missing}), inputs=inputs)


def nodes_of(recipe: Recipe) -> list[Node]:
    """The recipe's nodes in an order in which each one comes after its inputs."""
    # first, so that one that cannot be had is known before hours of pretraining
    compared = {
        name: Node(f"compared-model/{name}", COMPARED_MODEL, model.model_copy(update={"title": None}), {})
        for name, model in recipe.evaluation.compare_with.items()
    }
    tested = [Node("test-texts", TEST_TEXTS, texts_settings(recipe.evaluation), {})]
    tested = tested if recipe.corpus.decontamination else []
    nodes = [
        *compared.values(),
        *tested,
        Node("corpus", CORPUS, recipe.corpus, {node.name: node.name for node in tested}),
        Node("tokenizer", TOKENIZER, recipe.tokenizer, {"corpus": "corpus"}),
        Node("pack", PACK, recipe.packing, {"corpus": "corpus", "tokenizer": "tokenizer"}),
        Node(
            "pretrain",
            PRETRAIN,
            PretrainSettings(
                model=recipe.model,
                pretraining=recipe.pretraining,
                probe_call=probe_call(recipe.pretraining.probe, recipe.evaluation),
            ),
            {"tokenizer": "tokenizer", "pack": "pack"},
        ),
    ]
    sources = {"pretrained": {"checkpoint": "pretrain"}, "random": {"tokenizer": "tokenizer"}}
    sources |= {name: {"checkpoint": node.name} for name, node in compared.items()}
    seed_runs = {
        name: Node(f"seed-run/{name}", SEED_RUN, settings, sources[settings.model])
        for name, settings in seed_run_settings(recipe.evaluation, recipe.model).items()
    }
    gathering = gathering_settings(recipe.evaluation, recipe.name)
    # Licences and the like concern the model card alone, which reads them from the recipe itself.
    shown = recipe.model_dump(mode="json", exclude={"publishing"})
    report = ReportSettings(
        recipe_name=recipe.name, description=recipe.description, recipe=shown, prices=recipe.cost.prices
    )
    return [
        *nodes,
        *seed_runs.values(),
        Node("evaluate", EVALUATE, gathering, {name: node.name for name, node in seed_runs.items()}),
        Node("report", REPORT, report, {name: name for name in STAGES[:-1]}),
    ]


def needed_by(nodes: Iterable[Node], names: Iterable[str]) -> set[str]:
    """The names of all nodes that the given ones read, directly or through others."""
    inputs = {node.name: list(node.inputs.values()) for node in nodes}
    needed: set[str] = set()
    waiting = [name for start in names for name in inputs[start]]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += inputs[name]
    return needed
