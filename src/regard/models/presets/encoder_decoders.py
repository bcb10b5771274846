"""Encoder-decoders after the paper: T5, Marian, BART."""

from __future__ import annotations

from regard.blocks.settings import Attention, Dense, LayerNorm, Learned, Relative, RmsNorm, Sinusoidal
from regard.models.presets.entry import Preset, Published
from regard.models.settings import EncoderDecoder, Normal, Xavier


def _t5(width: int, depth: int, heads: int, hidden: int) -> EncoderDecoder:
    """T5 v1.0 (Raffel et al. 2020): no biases, scores not scaled, dropout 0.1 wherever there is one (section 3.1.1)."""
    return EncoderDecoder(
        vocabulary=32_128,
        width=width,
        depth=depth,
        attention=Attention(heads=heads, head_size=64, bias=False, scale=1.0, dropout=0.1),
        ffn=Dense(hidden=hidden, activation="relu", bias=False, dropout=0.1),
        norm=RmsNorm(eps=1e-6),
        norm_place="pre",
        position=Relative(buckets=32, longest=128),
        tied=("source", "target", "output"),
        output_scale=width**-0.5,
        dropout=0.1,
        # T5 starts its queries small instead of scaling the scores; a small deviation does the same for all weights.
        initial=Normal(),
    )


def _bart(width: int, depth: int, heads: int) -> EncoderDecoder:
    """BART (Lewis et al. 2020); dropouts as in the checkpoints' own configuration."""
    return EncoderDecoder(
        vocabulary=50_265,
        width=width,
        depth=depth,
        attention=Attention(heads=heads, dropout=0.1),
        ffn=Dense(hidden=4 * width, activation="gelu", dropout=0.1),
        norm=LayerNorm(eps=1e-5),
        norm_place="post",
        position=Learned(length=1024, offset=2),
        embedding_norm=True,
        tied=("source", "target", "output"),
        dropout=0.1,
        initial=Normal(),
    )


MARIAN = EncoderDecoder(
    vocabulary=58_101,
    width=512,
    depth=6,
    attention=Attention(heads=8),
    ffn=Dense(hidden=2048, activation="silu"),
    norm=LayerNorm(eps=1e-5),
    norm_place="post",
    position=Sinusoidal(order="halves"),
    embedding_scale=True,
    tied=("source", "target", "output"),
    output_bias=True,
    dropout=0.1,
    initial=Xavier(),
)

_T5 = "Raffel et al. 2020, section 3.7"
_FAIRSEQ = "fairseq, examples/bart"

ENCODER_DECODERS: tuple[Preset, ...] = (
    Preset("t5-small", _t5(512, 6, 8, 2048), "T5 v1.0 (Raffel et al. 2020), small", Published("60 M", _T5)),
    Preset("t5-base", _t5(768, 12, 12, 3072), "T5 v1.0 (Raffel et al. 2020), base", Published("220 M", _T5)),
    Preset("t5-large", _t5(1024, 24, 16, 4096), "T5 v1.0 (Raffel et al. 2020), large", Published("770 M", _T5)),
    Preset("marian", MARIAN, "OPUS-MT's Marian shape (Tiedemann and Thottingal 2020), vocabulary of en-de"),
    Preset("bart-base", _bart(768, 6, 12), "BART (Lewis et al. 2020), base", Published("140 M", _FAIRSEQ)),
    Preset("bart-large", _bart(1024, 12, 16), "BART (Lewis et al. 2020), large", Published("400 M", _FAIRSEQ)),
)
