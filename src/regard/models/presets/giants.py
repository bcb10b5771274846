"""Models to be counted only: their sizes are quoted everywhere, and few machines could hold them.

Where their authors tell no dropout there is none, and Turing-NLG, which tells no vocabulary, has GPT-2's.
"""

from __future__ import annotations

from regard.blocks.settings import Attention, Dense, LayerNorm, Learned, RmsNorm, TransformerXL
from regard.models.presets.entry import Preset, Published
from regard.models.settings import Decoder, Encoder, Normal


def _gpt(depth: int, width: int, heads: int, vocabulary: int, length: int, dropout: float) -> Decoder:
    """GPT-2's shape, which all three follow."""
    return Decoder(
        vocabulary=vocabulary,
        width=width,
        depth=depth,
        attention=Attention(heads=heads, dropout=dropout),
        ffn=Dense(activation="gelu-tanh"),
        norm_place="pre",
        position=Learned(length=length),
        dropout=dropout,
        initial=Normal(scaled_residual=True),
    )


# Its segments are relative (3 vectors a layer) and it has one vector for a masked place: both are left out.
XLNET_LARGE = Encoder(
    vocabulary=32_000,
    width=1024,
    depth=24,
    attention=Attention(heads=16, bias=False, dropout=0.1),
    ffn=Dense(activation="gelu"),
    norm=LayerNorm(eps=1e-12),
    norm_place="post",
    position=TransformerXL(),
    dropout=0.1,
    initial=Normal(),
)
GOPHER = Decoder(
    vocabulary=32_000,
    width=16_384,
    depth=80,
    attention=Attention(heads=128, bias=False),
    ffn=Dense(activation="gelu"),
    norm=RmsNorm(),
    norm_place="pre",
    position=TransformerXL(),
    dropout=0.0,
    initial=Normal(),
)

GIANTS: tuple[Preset, ...] = (
    Preset(
        "xlnet-large",
        XLNET_LARGE,
        "XLNet (Yang et al. 2019), large; one stream",
        Published("340 M", "Yang et al. 2019, as large as BERT; the relative projections are not counted"),
        counted_only=True,
    ),
    Preset(
        "megatron-lm",
        _gpt(72, 3072, 32, vocabulary=51_200, length=1024, dropout=0.1),
        "Megatron-LM (Shoeybi et al. 2019), GPT-2's shape with a padded vocabulary",
        Published("8.3 B", "Shoeybi et al. 2019, table 1"),
        counted_only=True,
    ),
    Preset(
        "turing-nlg",
        _gpt(78, 4256, 28, vocabulary=50_257, length=1024, dropout=0.0),
        "Turing-NLG (Rosset 2020), GPT-2's shape and vocabulary",
        Published("17 B", "Rosset 2020, Microsoft Research blog"),
        counted_only=True,
    ),
    Preset(
        "gpt3",
        _gpt(96, 12_288, 96, vocabulary=50_257, length=2048, dropout=0.0),
        "GPT-3 (Brown et al. 2020), all layers dense",
        Published("175 B", "Brown et al. 2020, table 2.1"),
        counted_only=True,
    ),
    Preset(
        "gopher",
        GOPHER,
        "Gopher (Rae et al. 2021): RMS norms, relative positions as in Transformer-XL",
        Published("280 B", "Rae et al. 2021, table 1; 258 B without the relative positions' projections"),
        counted_only=True,
    ),
)
