"""Low-rank adaptation: what is trained, and that the merged weights compute the same."""

from __future__ import annotations

import pytest
import torch

from regard.errors import SettingsError
from regard.models.build import build
from regard.models.settings import Classification, Encoder
from regard.training.lora import LowRank, adapter, add_lora, merged
from regard.training.settings import Lora

SETTINGS = Encoder(vocabulary=20, width=16, depth=2, heads={"label": Classification()})
LORA = Lora(rank=3, alpha=6.0)


def test_only_small_matrices_and_heads_are_trained() -> None:
    model = build(SETTINGS)
    before = sum(parameter.numel() for parameter in model.parameters())
    add_lora(model, LORA)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {name.split(".")[0] for name in trained if "parametrizations" not in name} == {"heads"}
    small = [module for module in model.modules() if isinstance(module, LowRank)]
    assert len(small) == 4  # q and v of two layers
    added = sum(parameter.numel() for parameter in model.parameters()) - before
    assert added == 4 * 3 * (16 + 16)


def test_the_merged_weights_compute_the_same() -> None:
    model, plain = build(SETTINGS).double().eval(), build(SETTINGS).double().eval()
    tokens = torch.randint(0, 20, (2, 7))
    first = model(tokens)
    add_lora(model, LORA)
    assert torch.equal(model(tokens), first)  # the product is zero at first
    for module in model.modules():
        if isinstance(module, LowRank):
            torch.nn.init.normal_(module.up)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    plain.load_state_dict(merged(weights, LORA))
    assert not torch.allclose(model(tokens), first)
    assert torch.allclose(plain(tokens), model(tokens), atol=1e-12)
    assert set(adapter(weights)) == {
        f"encoder.{i}.attention.{x}.{m}" for i in (0, 1) for x in "qv" for m in ("up", "down")
    }


def test_a_pattern_without_a_layer_is_named() -> None:
    with pytest.raises(SettingsError, match=r"train\.lora\.layers.*\bq\b"):
        add_lora(build(SETTINGS), Lora(layers=("*.query",)))
