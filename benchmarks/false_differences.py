"""How often the report would call a difference shown where there is none: simulated models of equal skill.

Run from the repository's root: ``python -m benchmarks.false_differences``. For each way in which chance enters it
prints the share of pairs of models with p at most 0.05 by the test over items, by the one over seeds, and by the
larger p.
"""

from __future__ import annotations

import argparse

import numpy

from eval import uncertainty

CASES = {"test items only": (1.0, 0.0), "seeds only": (0.0, 0.1), "both": (1.0, 0.1)}
"""Spread of a model's liking for an item (all its seeds share it), and of a seed as a whole; an item's difficulty is
drawn with spread 1, and what is left to a seed run on an item with 0.7."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--items", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--draws", type=int, default=1000, help="of each randomisation test; the report takes 10,000")
    arguments = parser.parse_args()
    uncertainty.RESAMPLES = arguments.draws
    for name, (liking, luck) in CASES.items():
        generator = numpy.random.default_rng(0)
        found = numpy.array([_pair(generator, arguments, liking, luck) for _ in range(arguments.pairs)])
        items, seeds, both = (numpy.append(found, found.max(axis=1, keepdims=True), axis=1) <= 0.05).mean(axis=0)
        print(f"chance in {name}: test over items {items:.3f}, over seeds {seeds:.3f}, larger p {both:.3f}")


def _pair(generator: numpy.random.Generator, arguments: argparse.Namespace, liking: float, luck: float) -> list[float]:
    difficulty = generator.normal(0.8, 1.0, arguments.items)

    def model() -> numpy.ndarray:
        shape = (arguments.seeds, arguments.items)
        skill = difficulty + generator.normal(0, liking, arguments.items) + generator.normal(0, luck, (shape[0], 1))
        right = skill + generator.normal(0, 0.7, shape) > 0
        return numpy.stack([right, numpy.ones(shape), numpy.ones(shape)], axis=2).astype(int)

    models = model(), model()
    scores = [list(uncertainty.score_of(counts.sum(axis=1))) for counts in models]
    by_seeds = uncertainty.welch_p(*scores)
    assert by_seeds is not None
    return [uncertainty.randomisation_p(*models), by_seeds]


if __name__ == "__main__":
    main()
