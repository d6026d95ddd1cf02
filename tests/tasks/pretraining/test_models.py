from __future__ import annotations

import pytest
import torch

from flows.recipe import load_recipe
from tasks.pretraining.models import build_model, count_parameters
from tasks.pretraining.settings import ModelSettings


class Vocabulary:
    """Stands for a tokenizer with 32,000 entries."""

    pad_token_id, cls_token_id, sep_token_id = 0, 2, 3

    def __len__(self) -> int:
        return 32_000


@pytest.mark.parametrize(
    ("recipe", "name", "parameters"),
    [
        ("sahajbert", "AlbertForPreTraining", 18_105_474),  # as counted for the sahajBERT script's model
        # ours; the published one has gates (16,785,408 more), two norms (8,192) and no positions (65,536 less)
        ("sahajbert-xl", "AlbertForPreTraining", 59_279_490),
        ("bert-gaudi", "BertForMaskedLM", 110_650_880),  # published as about 110.65 million
    ],
)
def test_published_sizes(recipe, name, parameters):
    asked = load_recipe(recipe)
    with torch.device("meta"):  # shapes without memory
        model = build_model(asked.model, Vocabulary(), asked.pretraining.objective, seed=0)
    assert type(model).__name__ == name
    assert count_parameters(model) == parameters


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
