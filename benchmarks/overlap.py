"""How much of the test splits stands in the pretraining corpus, and what the scores are without those items.

    python benchmarks/overlap.py RECIPE [--store DIR]

Needs the finished evaluation of the recipe. An item overlaps if more than a fifth of its word 6-grams occur in the
corpus. Prints for each task the number of overlapping test items, and for each model mean and sample std over the
seeds, with all items and without the overlapping ones, from the stored predictions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import string
import sys
from pathlib import Path

from eval.data import load_task
from eval.scoring import score_classification, score_ner
from flows.execution import Options, prepare
from flows.recipe import load_recipe
from tasks.corpus_text import read_texts

WORDS = 6
SHARE = 0.2


def grams(tokens: list[str]) -> set[tuple[str, ...]]:
    """Word n-grams without punctuation, which some data split off and some do not."""
    words = [word for token in tokens if (word := token.strip(string.punctuation + "।॥‘’“”—–"))]
    return {tuple(words[start : start + WORDS]) for start in range(len(words) - WORDS + 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--store")
    arguments = parser.parse_args()
    recipe = load_recipe(arguments.recipe)
    prepared = prepare(Options(arguments.recipe, store=arguments.store))
    paths = {step.node.name: step.path for step in prepared.steps if step.action == "reuse"}
    if "evaluate" not in paths:
        sys.exit(f"{arguments.recipe}: its evaluation is not finished; sahajflow run {arguments.recipe}")
    corpus: set[tuple[str, ...]] = set()
    for split in ("train", "validation"):
        for texts in read_texts(Path(str(paths["corpus"])), split):
            for text in texts:
                corpus |= grams(text.split())
    for name, task in recipe.evaluation.tasks.items():
        data = load_task(task)
        items = [item.split() if isinstance(item, str) else list(item) for item in data.splits["test"].inputs]
        overlapping = {
            index
            for index, words in enumerate(items)
            if (found := grams(words)) and len(found & corpus) > SHARE * len(found)
        }
        print(f"{name}: {len(overlapping)} of {len(items)} test items overlap with the corpus")
        for model in recipe.evaluation.models:
            for label, left_out in (("all items", set()), ("without them", overlapping)):
                scores = []
                for seed in recipe.evaluation.seed_list:
                    path = Path(str(paths[f"seed-run/{model}/{name}/{seed}"])) / "predictions.jsonl"
                    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
                    rows = [row for row in rows if row["index"] not in left_out]
                    gold, predicted = [row["gold"] for row in rows], [row["predicted"] for row in rows]
                    scored = (
                        score_ner(gold, predicted)
                        if task.kind == "ner"
                        else score_classification(gold, predicted, data.labels)
                    )
                    scores.append(100 * scored["score"])
                std = f" ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
                print(f"  {model:<11} {label:<13} {statistics.mean(scores):.2f}{std}")


if __name__ == "__main__":
    main()
