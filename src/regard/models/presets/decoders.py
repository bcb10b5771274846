"""Decoders: GPT, GPT-2 in four sizes, LLaMA from 260 thousand to 7 billion parameters."""

from __future__ import annotations

from regard.blocks.settings import Attention, Dense, Gated, LayerNorm, Learned, Llama3Scaling, RmsNorm, Rotary
from regard.models.presets.entry import Preset, Published
from regard.models.settings import Decoder, Normal

GPT = Decoder(
    vocabulary=40_478,
    width=768,
    depth=12,
    attention=Attention(heads=12, dropout=0.1),
    ffn=Dense(activation="gelu-tanh"),
    norm=LayerNorm(eps=1e-5),
    norm_place="post",
    position=Learned(length=512),
    dropout=0.1,
    initial=Normal(),
)


def _gpt2(depth: int, width: int, heads: int) -> Decoder:
    """GPT-2 (Radford et al. 2019): norms first, what is added to the residual stream starts smaller (section 2.3)."""
    return Decoder(
        vocabulary=50_257,
        width=width,
        depth=depth,
        attention=Attention(heads=heads, dropout=0.1),
        ffn=Dense(activation="gelu-tanh"),
        norm=LayerNorm(eps=1e-5),
        norm_place="pre",
        position=Learned(length=1024),
        dropout=0.1,
        initial=Normal(scaled_residual=True),
    )


def _llama(
    vocabulary: int, width: int, depth: int, attention: Attention, hidden: int, position: Rotary, tied: bool
) -> Decoder:
    """LLaMA (Touvron et al. 2023): rotary positions, RMS norms first, a SiLU gate, no biases, no dropout."""
    return Decoder(
        vocabulary=vocabulary,
        width=width,
        depth=depth,
        attention=attention,
        ffn=Gated(hidden=hidden, activation="silu", bias=False),
        norm=RmsNorm(eps=1e-5),
        norm_place="pre",
        position=position,
        tied=tied,
        dropout=0.0,
        initial=Normal(),
    )


LLAMA_TINY = _llama(512, 64, 5, Attention(heads=8, kv_heads=4, bias=False), 172, Rotary(), tied=True).changed(
    {"dropout": 0.05}
)
LLAMA_SMALL = _llama(32_000, 288, 6, Attention(heads=6, bias=False), 768, Rotary(), tied=True)
LLAMA_1B = _llama(
    128_256,
    2048,
    16,
    Attention(heads=32, kv_heads=8, bias=False),
    8192,
    Rotary(base=500_000.0, scaling=Llama3Scaling(factor=32.0, original_length=8192)),
    tied=True,
)
LLAMA_7B = _llama(32_000, 4096, 32, Attention(heads=32, bias=False), 11_008, Rotary(), tied=False).changed(
    {"norm.eps": 1e-6}
)

_GPT2 = "openai/gpt-2, model names (the paper's own counts were wrong)"

DECODERS: tuple[Preset, ...] = (
    Preset("gpt", GPT, "GPT (Radford et al. 2018)", Published("117 M", "Radford et al. 2019, table 2")),
    Preset("gpt2", _gpt2(12, 768, 12), "GPT-2 (Radford et al. 2019), smallest", Published("124 M", _GPT2)),
    Preset("gpt2-medium", _gpt2(24, 1024, 16), "GPT-2 (Radford et al. 2019), medium", Published("355 M", _GPT2)),
    Preset("gpt2-large", _gpt2(36, 1280, 20), "GPT-2 (Radford et al. 2019), large", Published("774 M", _GPT2)),
    Preset(
        "gpt2-xl",
        _gpt2(48, 1600, 25),
        "GPT-2 (Radford et al. 2019), largest",
        Published("1.5 B", "Radford et al. 2019, abstract"),
    ),
    Preset(
        "llama-tiny",
        LLAMA_TINY,
        "LLaMA's shape for tests: 5 layers of 64, grouped heads (llama2.c, stories260K)",
        Published("260 k", "llama2.c, README"),
    ),
    Preset(
        "llama-small",
        LLAMA_SMALL,
        "LLaMA's shape for CPUs: 6 layers of 288 (llama2.c, stories15M)",
        Published("15 M", "llama2.c, README"),
    ),
    Preset(
        "llama-1b",
        LLAMA_1B,
        "LLaMA 3.2, 1 billion (Meta 2024): grouped heads, tied, scaled rotation",
        Published("1.23 B", "Meta 2024, LLaMA 3.2 model card"),
    ),
    Preset(
        "llama-7b",
        LLAMA_7B,
        "LLaMA (Touvron et al. 2023), 7 billion",
        Published("6.7 B", "Touvron et al. 2023, table 2"),
    ),
)
