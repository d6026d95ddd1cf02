"""A tiny evaluation on the built-in sample, as nodes of a store, and functions that workers can import."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from eval.gathering import STAGE as EVALUATE
from eval.gathering import gathering_settings
from eval.seed_run import STAGE as SEED_RUN
from eval.seed_run import seed_run_settings
from eval.settings import EvaluationSettings
from eval.spread import Spread
from flows.execution import carry_out
from flows.graph import Node
from flows.plan import Selection, make_plan
from tasks.contract import Settings, Stage, UserError, no_progress
from tasks.pretraining.settings import ModelSettings
from tasks.store import Store

SHAPE = ModelSettings(architecture="bert", hidden_size=32, layers=1, heads=2, intermediate_size=64, max_positions=32)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def evaluation(seeds: int, epochs: int = 1, train: int = 60) -> EvaluationSettings:
    """Topics of the sample, with a randomly initialised model."""
    source = {"kind": "sample", "train": train, "validation": 20, "test": 20}
    tuning = {"epochs": epochs, "learning_rate": 1e-2, "max_length": 32, "batch_size": 8}
    task = {"kind": "classification", "source": source, "fine_tuning": tuning}
    return EvaluationSettings.model_validate({"seeds": seeds, "models": ["random"], "tasks": {"topics": task}})


class _Nothing(Settings):
    pass


def _tokenizer(settings: Settings, inputs: Any, folder: Path, progress: Any) -> dict[str, Any]:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    letters = [chr(number) for number in range(0x0980, 0x0A00)]
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *letters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    return {}


def nodes(asked: EvaluationSettings) -> list[Node]:
    """A tokenizer of letters, the seed runs, and what gathers them."""
    runs = {
        key: Node(f"seed-run/{key}", SEED_RUN, settings, {"tokenizer": "tokenizer"})
        for key, settings in seed_run_settings(asked, SHAPE).items()
    }
    gathering = Node("evaluate", EVALUATE, gathering_settings(asked), {key: node.name for key, node in runs.items()})
    return [Node("tokenizer", Stage("tokenizer", 1, _Nothing, _tokenizer), _Nothing(), {}), *runs.values(), gathering]


def carried_out(asked: EvaluationSettings, root: Path, spread: Spread | None, run_node: Any = None) -> dict[str, Any]:
    """The outcomes by node."""
    store = Store(root)
    steps, inputs = make_plan(nodes(asked), store, Selection())
    show = run_node or (lambda node, work: work(no_progress))
    outcomes = carry_out(steps, inputs, store, show, spread=None if spread is None else lambda compared: spread)
    return {outcome.name: outcome for outcome in outcomes}


def crashing(job: Any, source: Any, status: Any) -> Any:
    """In place of ``eval.tuning.tune_there``: seed 2 fails, and seed 3's process is killed if it is ours to kill."""
    from eval.tuning import tune

    if job.seed == 2:
        raise RuntimeError("no luck\nat all")
    if job.seed == 3 and status is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return tune(job, source, no_progress)


def wrong_input(job: Any, source: Any, status: Any) -> Any:
    """The same: seed 1 finds wrong input, the others take long."""
    if job.seed == 1:
        time.sleep(1)
        raise UserError("train.csv:3: no label")
    time.sleep(600)


def main(root: str) -> None:
    """Two seed runs at once that take long; prints a line when both are at work."""
    begun: set[str] = set()

    def run_node(node: Node, work: Any) -> Any:
        def progress(done: float, total: float, **_: Any) -> None:
            if node.stage.name == "seed-run" and node.name not in begun:
                begun.add(node.name)
                if len(begun) == 2:
                    print("both", flush=True)

        return work(progress)

    started = time.time()
    carried_out(evaluation(4, epochs=5000, train=2000), Path(root), Spread(2, 1), run_node)
    print("ended", time.time() - started)


if __name__ == "__main__":
    main(sys.argv[1])
