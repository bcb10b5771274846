"""Presets: well-known models as settings, by name.

`preset("gpt2")` returns the settings; `find_preset("gpt2")` also returns the exact and the published size. This module
must not import torch, so that `regard presets` starts fast. It lists the exact sizes; a test builds each preset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from regard.blocks.settings import (
    Attention,
    Dense,
    Gated,
    LayerNorm,
    Learned,
    Llama3Scaling,
    Normal,
    Relative,
    RmsNorm,
    Rotary,
    Sinusoidal,
    TextPosition,
    TransformerXL,
)
from regard.errors import SettingsError
from regard.models.settings import (
    Classification,
    Decoder,
    Encoder,
    EncoderDecoder,
    Masked,
    ModelSettings,
    Pooling,
    TextHead,
    Vision,
)
from regard.settings import did_you_mean


@dataclass(frozen=True)
class Published:
    """A model's size as its authors print it: rounded, and sometimes without some parts."""

    text: str
    """As printed: "65 M"."""
    source: str

    @property
    def parameters(self) -> int:
        amount, unit = self.text.split()
        return round(float(amount) * {"k": 10**3, "M": 10**6, "B": 10**9}[unit])


@dataclass(frozen=True)
class Preset:
    """Model settings with a name."""

    name: str
    settings: ModelSettings
    parameters: int
    """The exact number of parameters."""
    description: str
    """One line."""
    published: Published | None = None
    counted_only: bool = False
    """Whether the model is listed for its size only: it is too large or too special to run here."""


def preset(name: str, /, **changes: Any) -> ModelSettings:
    """Return the settings of a preset with changes.

    A change is a keyword (`depth=4`), a table (`attention={"heads": 4}`) or a settings value (`position=Rotary()`).
    """
    settings = find_preset(name).settings
    return settings.changed(changes) if changes else settings


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets."""
    return tuple(_BY_NAME)


def find_preset(name: str) -> Preset:
    """Return the preset with this name, or raise a `SettingsError` that suggests the nearest name."""
    if name not in _BY_NAME:
        raise SettingsError(f"preset ({name}) is not known{did_you_mean(name, _BY_NAME)}; `regard presets` lists all")
    return _BY_NAME[name]


# Attention Is All You Need (Vaswani et al. 2017). The vocabulary is the paper's "about 37000 tokens"; projections have
# no biases (section 3.2.2); the embeddings and the output share one matrix (section 3.4), which is the default.
BASE = EncoderDecoder(
    vocabulary=37_000,
    width=512,
    depth=6,
    attention=Attention(heads=8, bias=False),
    ffn=Dense(hidden=2048, activation="relu"),
    embedding_scale=True,
    dropout=0.1,
)
BIG = BASE.changed({"width": 1024, "attention.heads": 16, "ffn.hidden": 4096, "dropout": 0.3})
TINY = BASE.changed(
    {"vocabulary": 10_000, "width": 128, "depth": 4, "attention.heads": 4, "ffn.hidden": 256, "dropout": 0.3}
)
MARIAN = EncoderDecoder(
    vocabulary=58_101,
    attention=Attention(heads=8),
    ffn=Dense(hidden=2048, activation="silu"),
    norm=LayerNorm(eps=1e-5),
    position=Sinusoidal(order="halves"),
    embedding_scale=True,
    output_bias=True,
)
_TABLE_3 = "Vaswani et al. 2017, table 3"


def _row(name: str, parameters: int, row: str, changes: dict[str, Any], printed: str | None = None) -> Preset:
    """Return one row of the paper's table 3, which lists only the differences from base.

    In rows C the feed-forward keeps its 2048 when the width changes; in rows B the values keep their 64 when the keys
    shrink. The printed sizes confirm both. Where a row has base's size, the paper prints none.
    """
    published = Published(printed, _TABLE_3) if printed else None
    return Preset(f"transformer-{name}", BASE.changed(changes), parameters, f"Table 3, row {row}", published)


def _t5(size: str, width: int, depth: int, heads: int, hidden: int, parameters: int, printed: str) -> Preset:
    """T5 v1.0 (Raffel et al. 2020): no biases, unscaled scores, dropout 0.1 everywhere (section 3.1.1)."""
    settings = EncoderDecoder(
        vocabulary=32_128,
        width=width,
        depth=depth,
        attention=Attention(heads=heads, head_size=64, bias=False, scale=1.0, dropout=0.1),
        ffn=Dense(hidden=hidden, activation="relu", bias=False, dropout=0.1),
        norm=RmsNorm(eps=1e-6),
        norm_place="pre",
        position=Relative(buckets=32, longest=128),
        output_scale=width**-0.5,
        # T5 initialises its queries small instead of scaling the scores. A small deviation does the same.
        initial=Normal(),
    )
    published = Published(printed, "Raffel et al. 2020, section 3.7")
    return Preset(f"t5-{size}", settings, parameters, f"T5 v1.0 (Raffel et al. 2020), {size}", published)


def _bart(size: str, width: int, depth: int, heads: int, parameters: int, printed: str) -> Preset:
    """BART (Lewis et al. 2020), with the dropouts of its checkpoints' configuration."""
    settings = EncoderDecoder(
        vocabulary=50_265,
        width=width,
        depth=depth,
        attention=Attention(heads=heads, dropout=0.1),
        ffn=Dense(hidden=4 * width, activation="gelu", dropout=0.1),
        norm=LayerNorm(eps=1e-5),
        position=Learned(length=1024, offset=2),
        embedding_norm=True,
        initial=Normal(),
    )
    published = Published(printed, "fairseq, examples/bart")
    return Preset(f"bart-{size}", settings, parameters, f"BART (Lewis et al. 2020), {size}", published)


def _encoder(
    depth: int, width: int, vocabulary: int, position: TextPosition, segments: int, eps: float, **heads: TextHead
) -> Encoder:
    """BERT's shape: post-norm, heads of 64, feed-forward of 4 × width, dropout 0.1 (Devlin et al. 2019)."""
    return Encoder(
        vocabulary=vocabulary,
        width=width,
        depth=depth,
        attention=Attention(heads=width // 64, dropout=0.1),
        ffn=Dense(activation="gelu"),
        norm=LayerNorm(eps=eps),
        position=position,
        segments=segments,
        embedding_norm=True,
        initial=Normal(),
        heads=heads,
    )


def _bert(size: str, depth: int, width: int, parameters: int, printed: str) -> Preset:
    """BERT with its pooler. The published sizes include the pooler and not the pre-training heads."""
    pooler = Pooling(pooling="class", dense=True)
    settings = _encoder(depth, width, 30_522, Learned(length=512), segments=2, eps=1e-12, pooler=pooler)
    if size in ("base", "large"):
        description, source = f"BERT (Devlin et al. 2019), {size}", "Devlin et al. 2019, section 3"
    else:
        description, source = f"BERT (Turc et al. 2019), {depth} layers of {width}", "Turc et al. 2019, table 1"
    return Preset(f"bert-{size}", settings, parameters, description, Published(printed, source))


def _roberta(size: str, depth: int, width: int, parameters: int, printed: str, source: str) -> Preset:
    """RoBERTa has no next-sentence task, so its only head is the masked one."""
    settings = _encoder(depth, width, 50_265, Learned(length=512, offset=2), segments=1, eps=1e-5, masked=Masked())
    description = f"RoBERTa (Liu et al. 2019), {size}"
    return Preset(f"roberta-{size}", settings, parameters, description, Published(printed, source))


ROFORMER = _encoder(12, 768, 30_522, Rotary(order="interleaved"), segments=2, eps=1e-12, masked=Masked())
# Without XLNet's relative segments (3 vectors per layer) and its vector for masked positions.
XLNET_LARGE = Encoder(
    vocabulary=32_000,
    width=1024,
    depth=24,
    attention=Attention(heads=16, bias=False, dropout=0.1),
    ffn=Dense(activation="gelu"),
    norm=LayerNorm(eps=1e-12),
    position=TransformerXL(),
    initial=Normal(),
)


def _gpt2(
    depth: int, width: int, heads: int, vocabulary: int = 50_257, length: int = 1024, dropout: float = 0.1
) -> Decoder:
    """GPT-2 (Radford et al. 2019): pre-norm, smaller initial weights on the residual stream (section 2.3)."""
    return Decoder(
        vocabulary=vocabulary,
        width=width,
        depth=depth,
        attention=Attention(heads=heads, dropout=dropout),
        ffn=Dense(activation="gelu-tanh"),
        norm=LayerNorm(eps=1e-5),
        norm_place="pre",
        position=Learned(length=length),
        dropout=dropout,
        initial=Normal(scaled_residual=True),
    )


GPT = _gpt2(12, 768, 12, vocabulary=40_478, length=512).changed(
    {"norm_place": "post", "initial.scaled_residual": False}
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


def _llama(
    vocabulary: int, width: int, depth: int, heads: int, hidden: int, kv_heads: int | None = None, **changes: Any
) -> ModelSettings:
    """LLaMA (Touvron et al. 2023): rotary positions, RMS norms, pre-norm, a SiLU gate, no biases."""
    return Decoder(
        vocabulary=vocabulary,
        width=width,
        depth=depth,
        attention=Attention(heads=heads, kv_heads=kv_heads, bias=False),
        ffn=Gated(hidden=hidden, activation="silu", bias=False),
        norm=RmsNorm(eps=1e-5),
        norm_place="pre",
        position=Rotary(),
        dropout=0.0,
        initial=Normal(),
    ).changed(changes)


_LLAMA_3 = Rotary(base=500_000.0, scaling=Llama3Scaling(factor=32.0, original_length=8192))


def _vit(width: int, depth: int, heads: int, dropout: float = 0.1, stochastic_depth: float = 0.0) -> Vision:
    """ViT (Dosovitskiy et al. 2021) for ImageNet's 1000 classes. Dropout follows every dense layer but q, k and v."""
    return Vision(
        image=(224, 224),
        patch=16,
        width=width,
        depth=depth,
        attention=Attention(heads=heads),
        ffn=Dense(activation="gelu", dropout=dropout),
        norm=LayerNorm(eps=1e-6),
        norm_place="pre",
        dropout=dropout,
        stochastic_depth=stochastic_depth,
        initial=Normal(),
        heads={"label": Classification(classes=1000)},
    )


def _deit(width: int, heads: int) -> Vision:
    """The two small sizes of DeiT (Touvron et al. 2021, table 9): stochastic depth instead of dropout."""
    return _vit(width, 12, heads, dropout=0.0, stochastic_depth=0.1)


VIT_28 = Vision(
    image=(28, 28),
    patch=4,
    channels=1,
    width=64,
    depth=6,
    attention=Attention(heads=4),
    ffn=Dense(hidden=128, activation="gelu", dropout=0.1),
    norm_place="pre",
    initial=Normal(),
    heads={"label": Classification(classes=10)},
)
VIT_32 = Vision(
    image=(32, 32),
    patch=4,
    width=192,
    depth=9,
    attention=Attention(heads=12, bias=False, output_bias=True),
    ffn=Dense(hidden=384, activation="gelu"),
    norm_place="pre",
    dropout=0.0,
    stochastic_depth=0.1,
    heads={"label": Classification(classes=10)},
)

_GPT2 = "openai/gpt-2, model names (the paper's own counts were wrong)"
_DEIT = "Touvron et al. 2021, table 1"
_VIT = "Dosovitskiy et al. 2021, table 1"


# fmt: off
PRESETS: tuple[Preset, ...] = (
    Preset("transformer-base", BASE, 63_045_632, "The paper's base model: 6 + 6 layers of 512",
           Published("65 M", _TABLE_3)),
    Preset("transformer-big", BIG, 214_171_648,
           "The paper's big model (en-de; en-fr used dropout 0.1): 6 + 6 layers of 1024",
           Published("213 M", _TABLE_3)),
    Preset("transformer-tiny", TINY, 2_598_912, "4 + 4 layers of 128, for small corpora and CPUs",
           Published("2.6 M", "Wu et al. 2021, Good for Misconceived Reasons")),
    _row("a-h1", 63_045_632, "A: 1 head of 512", {"attention.heads": 1}),
    _row("a-h4", 63_045_632, "A: 4 heads of 128", {"attention.heads": 4}),
    _row("a-h16", 63_045_632, "A: 16 heads of 32", {"attention.heads": 16}),
    _row("a-h32", 63_045_632, "A: 32 heads of 16", {"attention.heads": 32}),
    _row("b-dk16", 55_967_744, "B: keys of 16, values of 64",
         {"attention.head_size": 16, "attention.value_size": 64}, "58 M"),
    _row("b-dk32", 58_327_040, "B: keys of 32, values of 64",
         {"attention.head_size": 32, "attention.value_size": 64}, "60 M"),
    _row("c-n2", 33_644_544, "C: 2 + 2 layers", {"depth": 2}, "36 M"),
    _row("c-n4", 48_345_088, "C: 4 + 4 layers", {"depth": 4}, "50 M"),
    _row("c-n8", 77_746_176, "C: 8 + 8 layers", {"depth": 8}, "80 M"),
    _row("c-d256", 26_816_512, "C: width 256, heads of 32", {"width": 256}, "28 M"),
    _row("c-d1024", 163_815_424, "C: width 1024, heads of 128", {"width": 1024}, "168 M"),
    _row("c-ff1024", 50_450_432, "C: feed-forward of 1024", {"ffn.hidden": 1024}, "53 M"),
    _row("c-ff4096", 88_236_032, "C: feed-forward of 4096", {"ffn.hidden": 4096}, "90 M"),
    _row("d-dropout0.0", 63_045_632, "D: no dropout", {"dropout": 0.0}),
    _row("d-dropout0.2", 63_045_632, "D: dropout 0.2", {"dropout": 0.2}),
    _row("d-smoothing0.0", 63_045_632, "D: label smoothing 0.0 (a training setting; the model is base)", {}),
    _row("d-smoothing0.2", 63_045_632, "D: label smoothing 0.2 (a training setting; the model is base)", {}),
    # The paper gives no length; 256 is max_length in its own code (tensor2tensor, transformer_base_v1).
    _row("e-learned", 63_307_776, "E: learned positions", {"position": {"kind": "learned", "length": 256}}),
    _t5("small", 512, 6, 8, 2048, 60_506_624, "60 M"),
    _t5("base", 768, 12, 12, 3072, 222_903_552, "220 M"),
    _t5("large", 1024, 24, 16, 4096, 737_668_096, "770 M"),
    Preset("marian", MARIAN, 73_944_309, "OPUS-MT's Marian shape (Tiedemann and Thottingal 2020), vocabulary of en-de"),
    _bart("base", 768, 6, 12, 139_420_416, "140 M"),
    _bart("large", 1024, 12, 16, 406_291_456, "400 M"),
    _bert("tiny", 2, 128, 4_385_920, "4.4 M"),
    _bert("mini", 4, 256, 11_170_560, "11.3 M"),
    _bert("small", 4, 512, 28_763_648, "29.1 M"),
    _bert("medium", 8, 512, 41_373_184, "41.7 M"),
    _bert("base", 12, 768, 109_482_240, "110 M"),
    _bert("large", 24, 1024, 335_141_888, "340 M"),
    _roberta("base", 12, 768, 124_697_433, "125 M", "fairseq, examples/roberta"),
    _roberta("large", 24, 1024, 355_412_057, "355 M", "Liu et al. 2019, section 5"),
    Preset("roformer", ROFORMER, 109_121_082, "RoFormer (Su et al. 2021): BERT base with rotary positions"),
    Preset("gpt", GPT, 116_534_784, "GPT (Radford et al. 2018)", Published("117 M", "Radford et al. 2019, table 2")),
    Preset("gpt2", _gpt2(12, 768, 12), 124_439_808, "GPT-2 (Radford et al. 2019), smallest", Published("124 M", _GPT2)),
    Preset("gpt2-medium", _gpt2(24, 1024, 16), 354_823_168, "GPT-2 (Radford et al. 2019), medium",
           Published("355 M", _GPT2)),
    Preset("gpt2-large", _gpt2(36, 1280, 20), 774_030_080, "GPT-2 (Radford et al. 2019), large",
           Published("774 M", _GPT2)),
    Preset("gpt2-xl", _gpt2(48, 1600, 25), 1_557_611_200, "GPT-2 (Radford et al. 2019), largest",
           Published("1.5 B", "Radford et al. 2019, abstract")),
    Preset("llama-tiny", _llama(512, 64, 5, 8, 172, kv_heads=4, dropout=0.05), 260_032,
           "LLaMA's shape for tests: 5 layers of 64, grouped heads (llama2.c, stories260K)",
           Published("260 k", "llama2.c, README")),
    Preset("llama-small", _llama(32_000, 288, 6, 6, 768), 15_191_712,
           "LLaMA's shape for CPUs: 6 layers of 288 (llama2.c, stories15M)", Published("15 M", "llama2.c, README")),
    Preset("llama-1b", _llama(128_256, 2048, 16, 32, 8192, kv_heads=8, position=_LLAMA_3), 1_235_814_400,
           "LLaMA 3.2, 1 billion (Meta 2024): grouped heads, tied, scaled rotation",
           Published("1.23 B", "Meta 2024, LLaMA 3.2 model card")),
    Preset("llama-7b", _llama(32_000, 4096, 32, 32, 11_008, tied=False, norm={"eps": 1e-6}), 6_738_415_616,
           "LLaMA (Touvron et al. 2023), 7 billion", Published("6.7 B", "Touvron et al. 2023, table 2")),
    Preset("vit-ti16", _deit(192, 3), 5_717_416, "ViT-Ti/16 (DeiT: Touvron et al. 2021)", Published("5 M", _DEIT)),
    Preset("vit-s16", _deit(384, 6), 22_050_664, "ViT-S/16 (DeiT: Touvron et al. 2021)", Published("22 M", _DEIT)),
    Preset("vit-b16", _vit(768, 12, 12), 86_567_656, "ViT-B/16 (Dosovitskiy et al. 2021)", Published("86 M", _VIT)),
    Preset("vit-l16", _vit(1024, 24, 16), 304_326_632, "ViT-L/16 (Dosovitskiy et al. 2021)", Published("307 M", _VIT)),
    Preset("vit-28", VIT_28, 205_962, "ViT for 28 × 28 grey images, patches of 4 (MNIST's size)",
           Published("210 k", "s-chh, PyTorch-Vision-Transformer-ViT-MNIST-CIFAR10 (with a dense layer in its head)")),
    Preset("vit-32", VIT_32, 2_692_426, "ViT for 32 × 32 colour images, patches of 4 (CIFAR's size)",
           Published("2.69 M", "Lee et al. 2021, Vision Transformer for Small-Size Datasets")),
    # Listed for their sizes only. Dropout is 0 where the authors give none; Turing-NLG gives no vocabulary: GPT-2's.
    Preset("xlnet-large", XLNET_LARGE, 360_194_048, "XLNet (Yang et al. 2019), large; one stream",
           Published("340 M", "Yang et al. 2019, as large as BERT; without the relative projections"),
           counted_only=True),
    Preset("megatron-lm", _gpt2(72, 3072, 32, vocabulary=51_200), 8_317_040_640,
           "Megatron-LM (Shoeybi et al. 2019), GPT-2's shape with a padded vocabulary",
           Published("8.3 B", "Shoeybi et al. 2019, table 1"), counted_only=True),
    Preset("turing-nlg", _gpt2(78, 4256, 28, dropout=0.0), 17_176_845_728,
           "Turing-NLG (Rosset 2020), GPT-2's shape and vocabulary",
           Published("17 B", "Rosset 2020, Microsoft Research blog"), counted_only=True),
    Preset("gpt3", _gpt2(96, 12_288, 96, length=2048, dropout=0.0), 174_604_259_328,
           "GPT-3 (Brown et al. 2020), all layers dense",
           Published("175 B", "Brown et al. 2020, table 2.1"), counted_only=True),
    Preset("gopher", GOPHER, 279_708_975_104,
           "Gopher (Rae et al. 2021): RMS norms, relative positions as in Transformer-XL",
           Published("280 B", "Rae et al. 2021, table 1; 258 B without the relative projections"), counted_only=True),
)
# fmt: on
"""All presets, in the order in which they are listed."""

_BY_NAME = {entry.name: entry for entry in PRESETS}
