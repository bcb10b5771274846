"""Settings of models: differences between two."""

from __future__ import annotations

import math

from regard.blocks.settings import Attention, Dense
from regard.models.settings import Decoder, EncoderDecoder, differences


def test_derived_values_are_no_difference() -> None:
    short = EncoderDecoder(width=32, depth=3, attention=Attention(heads=4), norm_place="pre")
    long = EncoderDecoder(
        width=32,
        depth=3,
        decoder_depth=3,
        attention=Attention(heads=4, kv_heads=4, head_size=8, value_size=8, output_bias=True, scale=8**-0.5),
        ffn=Dense(hidden=128),
        norm_place="pre",
        final_norm=True,
        target_vocabulary=37_000,
        tied=("output", "target", "source"),
    )
    assert differences(short, long) == {}
    by_power, by_root = 8**-0.5, 1 / math.sqrt(8)
    assert by_power != by_root
    assert differences(EncoderDecoder(output_scale=by_power), EncoderDecoder(output_scale=by_root)) == {}


def test_each_difference_with_both_values() -> None:
    here, there = Decoder(width=16, attention=Attention(heads=2)), Decoder(width=32, attention=Attention(heads=4))
    assert differences(here, there) == {
        "width": (16, 32),
        "attention.heads": (2, 4),
        "attention.kv_heads": (2, 4),
        "ffn.hidden": (64, 128),
    }
    assert differences(Decoder(attention=Attention(window=5)), Decoder()) == {"attention.window": (5, None)}
    assert differences(Decoder(), Decoder(attention=Attention(window=5))) == {"attention.window": (None, 5)}


def test_of_another_kind_only_the_kind_is_returned() -> None:
    changed = Decoder().changed({"position.kind": "learned", "ffn.kind": "gated"})
    wanted = {"ffn.kind": ("gated", "dense"), "position.kind": ("learned", "sinusoidal")}
    assert differences(changed, Decoder()) == wanted
    assert differences(Decoder(), EncoderDecoder(width=32)) == {"kind": ("decoder", "encoder-decoder")}
