"""The section Parameters of the decks' worked numbers: one test a row, by public functions."""

from __future__ import annotations

import pytest

import regard
from regard.models.presets import find_preset

BASE = regard.preset("transformer-base")
PARTS = regard.count(BASE).parts
LAYERS = 6


def test_one_512_by_512_projection() -> None:
    assert regard.count(BASE).tensors["encoder.0.attention.q.weight"] == (512, 512)
    assert 512 * 512 == 262_144


def test_one_attention_layer_of_four_projections_without_biases() -> None:
    assert PARTS["encoder.attention"] / LAYERS == 1_048_576


def test_one_feed_forward() -> None:
    """2 · d · d_ff + d + d_ff at 512, 2048."""
    assert PARTS["encoder.ffn"] / LAYERS == 2 * 512 * 2048 + 512 + 2048 == 2_099_712


def test_a_37_000_by_512_embedding() -> None:
    assert PARTS["source.tokens"] == 37_000 * 512 == 18_944_000


def test_the_decks_formula() -> None:
    """2N · FFN + 3N · attention + V · d, which is all but the norms (the deck says 64 M, the paper 65 M)."""
    ffn, attention, embedding = PARTS["encoder.ffn"] // LAYERS, PARTS["encoder.attention"] // LAYERS, 37_000 * 512
    formula = 2 * LAYERS * ffn + 3 * LAYERS * attention + embedding
    assert formula == 63_014_912
    assert formula == regard.count(BASE).parameters - PARTS["encoder.norm"] - PARTS["decoder.norm"]


@pytest.mark.parametrize(
    ("name", "exact"),
    [("bert-base", 109_482_240), ("gpt2", 124_439_808), ("gpt2-xl", 1_557_611_200), ("vit-b16", 86_567_656)],
)
def test_exact_counts_known(name: str, exact: int) -> None:
    assert regard.count(regard.preset(name)).parameters == exact


@pytest.mark.parametrize(
    ("name", "printed", "counted"),
    [
        ("transformer-base", "65 M", 63.0e6),
        ("transformer-big", "213 M", 214.2e6),
        ("bert-large", "340 M", 335.1e6),
        ("xlnet-large", "340 M", 360.2e6),
        ("roberta-large", "355 M", 355.4e6),
        ("gpt2-xl", "1.5 B", 1.558e9),
        ("megatron-lm", "8.3 B", 8.317e9),
        ("turing-nlg", "17 B", 17.18e9),
        ("gpt3", "175 B", 174.6e9),
        ("gopher", "280 B", 279.7e9),
    ],
)
def test_published_sizes_beside_the_exact_count(name: str, printed: str, counted: float) -> None:
    """The decks' sizes; the counted column is worked by hand from each paper's depth, width and vocabulary."""
    published = find_preset(name).published
    assert published is not None
    assert published[0] == printed
    assert regard.count(regard.preset(name)).parameters == pytest.approx(counted, rel=1e-3)


def test_gopher_without_the_relative_positions() -> None:
    """258 B: the extra d × d in each layer is what Transformer-XL's positions cost."""
    counted = regard.count(regard.preset("gopher"))
    assert counted.parts["decoder.relative"] == pytest.approx(80 * 16_384**2, rel=1e-3)
    without = regard.count(regard.preset("gopher", position={"kind": "rotary"}))
    assert without.parameters == pytest.approx(258e9, rel=2e-3)


def test_a_preset_far_too_large_to_build_is_counted() -> None:
    assert regard.count(regard.preset("gpt3", width=122_880)).parameters > 17e12
