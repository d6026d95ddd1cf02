from __future__ import annotations

import pytest
import torch

from tasks.pretraining.models import build_model, count_parameters
from tasks.pretraining.settings import ModelSettings


class Vocabulary:
    """Stands for a tokenizer with 32,000 entries."""

    pad_token_id, cls_token_id, sep_token_id = 0, 2, 3

    def __len__(self) -> int:
        return 32_000


@pytest.mark.parametrize(
    ("architecture", "hidden", "layers", "heads", "objective", "parameters"),
    [
        ("albert", 1024, 24, 16, "mlm+sop", 18_105_474),  # as counted for the sahajBERT script's model
        ("bert", 768, 12, 12, "mlm", 110_650_000),
    ],
)
def test_published_sizes(architecture, hidden, layers, heads, objective, parameters):
    settings = ModelSettings(
        architecture=architecture,
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        intermediate_size=4 * hidden,
    )
    with torch.device("meta"):
        model = build_model(settings, Vocabulary(), objective, seed=0)
    assert abs(count_parameters(model) - parameters) <= (0 if architecture == "albert" else 10_000)


@pytest.mark.parametrize(
    ("architecture", "objective", "name"),
    [
        ("bert", "mlm", "BertForMaskedLM"),
        ("albert", "mlm", "AlbertForMaskedLM"),
        ("albert", "mlm+sop", "AlbertForPreTraining"),
    ],
)
def test_seed_decides_the_weights_and_nothing_else(settings, tokenizer, architecture, objective, name):
    shape = settings(architecture).model
    before = torch.get_rng_state()
    one, same, other = (build_model(shape, tokenizer, objective, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert type(one).__name__ == name
    assert (one.config.pad_token_id, one.config.bos_token_id, one.config.eos_token_id) == (0, 2, 3)
    weights = one.state_dict()
    assert all(torch.equal(weights[key], value) for key, value in same.state_dict().items())
    assert any(not torch.equal(weights[key], value) for key, value in other.state_dict().items())
    embeddings = one.get_input_embeddings().weight
    assert one.get_output_embeddings().weight is embeddings
    assert 0.015 < float(embeddings[1:].detach().std()) < 0.025


def test_layer_groups_have_weights_of_their_own(tokenizer):
    shape = {"architecture": "albert", "hidden_size": 32, "layers": 4, "heads": 2, "intermediate_size": 64}
    shared, own = (
        count_parameters(build_model(ModelSettings(**shape, layer_groups=groups), tokenizer, "mlm", 0))
        for groups in (1, 4)
    )
    layer = 4 * (32 * 32 + 32) + 2 * 32 * 64 + 64 + 32 + 4 * 32
    assert own - shared == 3 * layer
