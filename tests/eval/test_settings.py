import sys
from pathlib import Path

import pytest

from eval.settings import EvaluationSettings, FineTuningSettings, TaskSettings

sys.path.insert(0, str(Path(__file__).parent))
from labelled_files import SHARED

shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the real data are not here")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"labels": ["O", "PER"]}, "'PER' is not an IOB2 tag"),
        ({"labels": ["B-PER", "I-PER"]}, "the tag O is missing"),
        ({"labels": ["O", "I-PER"]}, "but not 'B-PER'"),
        ({"labels": ["O", "B-X", "O"]}, "not distinct"),
        ({"source": {"kind": "hub", "dataset": "a/b", "revision": "main"}}, "pin it"),
        ({"source": {"kind": "sample"}, "labels": ["O", "B-X"]}, "labels of its own"),
        ({"source": {"kind": "web"}}, "does not match any of the expected tags"),
    ],
)
def test_settings_that_cannot_be(change, says):
    source = {"kind": "files", "train": "a", "validation": "b", "test": "c"}
    with pytest.raises(ValueError, match=says):
        TaskSettings.model_validate({"kind": "ner", "source": source, **change})


def test_seeds():
    task = {"t": {"kind": "ner", "source": {"kind": "sample"}}}
    assert EvaluationSettings(seeds=3, tasks=task).seed_list == (1, 2, 3)
    assert EvaluationSettings(seeds=[7, 5], tasks=task).seed_list == (7, 5)
    for bad in (0, [1, 1], [], [-1], "x"):
        with pytest.raises(ValueError, match="seeds"):
            EvaluationSettings(seeds=bad, tasks=task)
    with pytest.raises(ValueError, match="no effect without patience"):
        FineTuningSettings(threshold=0.01)
