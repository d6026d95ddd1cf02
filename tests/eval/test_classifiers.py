"""Models with a head: the pretrained one and its random twin."""

import sys
from pathlib import Path

import pytest
import torch

from eval.classifiers import build_classifier, choose
from eval.dropout import replace_dropout
from eval.settings import FineTuningSettings
from tasks.contract import StageError
from tasks.pretraining.models import build_model

sys.path.insert(0, str(Path(__file__).parent))
from tiny_runs import ALBERT, BERT


@pytest.mark.parametrize("kind", ["ner", "classification"])
@pytest.mark.parametrize("shape", [BERT, ALBERT], ids=["bert", "albert"])
def test_twins_share_the_head_and_differ_in_the_body(kind, shape, tokenizer, tmp_path):
    objective = "mlm" if shape is BERT else "mlm+sop"
    source = build_model(shape, tokenizer, objective, seed=7)
    source.save_pretrained(tmp_path)
    tuning = FineTuningSettings(max_length=16)

    def build(seed: int, **where) -> dict[str, torch.Tensor]:
        labels = ("O", "B-PER", "I-PER")
        hardware = choose(tuning)
        return build_classifier(kind, labels, tuning, hardware, seed, tokenizer=tokenizer, **where).state_dict()

    ours, twin, other = build(1, checkpoint=tmp_path), build(1, shape=shape), build(2, shape=shape)
    assert ours.keys() == twin.keys()
    heads = [name for name in ours if name.startswith("classifier.")]
    assert len(heads) == 2
    for name in heads:
        assert torch.equal(ours[name], twin[name])
    assert not torch.equal(twin["classifier.weight"], other["classifier.weight"])
    bodies = [name for name in ours if name.endswith("word_embeddings.weight") or "query.weight" in name]
    assert bodies
    for name in bodies:
        assert torch.equal(ours[name], source.state_dict()[name])
        assert not torch.equal(ours[name], twin[name])
        assert not torch.equal(other[name], twin[name])


def test_dropout_keeps_the_mean_and_is_seeded():
    ones = torch.ones(400, 500, requires_grad=True)

    def dropped(seed: int) -> torch.Tensor:
        layer = torch.nn.Sequential(torch.nn.Dropout(0.25))
        replace_dropout(layer, seed)
        assert torch.equal(layer.eval()(ones), ones)
        return layer.train()(ones)

    values = dropped(1)
    assert values.detach().unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert float((values == 0).float().mean()) == pytest.approx(0.25, abs=0.005)
    values.sum().backward()
    assert torch.equal(ones.grad, values.detach())
    assert torch.equal(values, dropped(1))
    assert not torch.equal(values, dropped(2))


def test_a_checkpoint_without_a_body_is_refused(pretrained, tokenizer, tmp_path):
    model = build_model(BERT, tokenizer, "mlm", seed=7)
    kept = {name: weight for name, weight in model.state_dict().items() if "layer.1." not in name}
    model.save_pretrained(tmp_path, state_dict=kept)
    tuning = FineTuningSettings(max_length=16)
    with pytest.raises(StageError, match=r"lacks \d+ weights, such as bert\.encoder\.layer\.1"):
        build_classifier("ner", ("O", "B-X"), tuning, choose(tuning), 1, checkpoint=tmp_path, tokenizer=tokenizer)


def test_more_tokens_than_positions_are_told(tokenizer):
    tuning = FineTuningSettings(max_length=64)
    with pytest.raises(StageError, match="max_length 64 is more than the 32 positions"):
        build_classifier("ner", ("O", "B-X"), tuning, choose(tuning), 1, shape=BERT, tokenizer=tokenizer)
