"""Windows, patterns of layers and rotary bases against transformers: who sees whom, and by which angles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch.testing import assert_close

from regard.blocks.layout import Padded
from regard.blocks.positions import RotaryPosition
from regard.blocks.settings import Attention, Rotary
from regard.blocks.visibility import Visibility

SMALL = {"vocab_size": 11, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "pad_token_id": 0}
CAUSAL = SMALL | {"num_key_value_heads": 1, "head_dim": 8, "bos_token_id": 1, "eos_token_id": 2}
SPECIAL = {"cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}
GEMMA_3 = ("window",) * 5 + ("full",)
CASES: dict[str, tuple[Any, dict[str, Any], bool, Attention, Rotary]] = {
    "mistral": (
        transformers.MistralModel,
        {**CAUSAL, "num_hidden_layers": 3, "sliding_window": 4},
        True,
        Attention(window=4),
        Rotary(),
    ),
    "gemma2": (
        transformers.Gemma2Model,
        {**CAUSAL, "num_hidden_layers": 5, "sliding_window": 4},
        True,
        Attention(window=4, pattern=("window", "full")),
        Rotary(),
    ),
    "gemma3": (
        transformers.Gemma3TextModel,
        {**CAUSAL, "num_hidden_layers": 8, "sliding_window": 4},
        True,
        Attention(window=4, pattern=GEMMA_3),
        Rotary(base=1e6, window_base=1e4),
    ),
    "modernbert": (
        transformers.ModernBertModel,
        {**SMALL, **SPECIAL, "num_hidden_layers": 7, "local_attention": 6},
        False,
        Attention(window=6 // 2 + 1, pattern=("full", "window", "window")),
        Rotary(base=160_000.0, window_base=10_000.0),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_layer_sees_the_same_tokens_at_the_same_angles(name: str) -> None:
    kind, config, causal, attention, rotary = CASES[name]
    torch.manual_seed(0)
    theirs = kind(kind.config_class(**config)).eval()
    theirs.set_attn_implementation("eager")
    tokens = torch.randint(3, 11, (1, 12))
    with torch.no_grad():
        weights = theirs(tokens, output_attentions=True).attentions
    layout = Padded(1, 12)
    for layer, window in enumerate(attention.windows(config["num_hidden_layers"])):
        visible = Visibility(layout, layout, causal, window).visible(tokens.device)[:, None]
        assert torch.equal(weights[layer] > 0, visible.expand(weights[layer].shape)), layer
    position = RotaryPosition(rotary, 16, 2, 8, causal)
    types = getattr(theirs.config, "layer_types", None) or ["sliding_attention"]
    for layer, window in enumerate(attention.windows(len(types))):
        found = position.signals(Visibility(layout, layout, causal, window), tokens.device, torch.float32).rotation
        assert found is not None
        arguments = (types[layer],) if rotary.window_base else ()
        cos, sin = theirs.rotary_emb(torch.zeros(1), torch.arange(12)[None], *arguments)
        assert_close(found.cos[..., 0, :].squeeze(), cos[0, :, :4], rtol=0, atol=1e-5)
        assert_close(found.sin[..., 0, :].squeeze(), sin[0, :, :4], rtol=0, atol=1e-5)
