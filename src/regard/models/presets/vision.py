"""Vision Transformers: Ti, S, B and L with patches of 16, and small ones for 28 × 28 and 32 × 32 pixels."""

from __future__ import annotations

from regard.blocks.settings import Attention, Dense, LayerNorm
from regard.models.presets.entry import Preset, Published
from regard.models.settings import Classification, Normal, Vision, Xavier


def _vit(width: int, depth: int, heads: int, dropout: float, stochastic_depth: float) -> Vision:
    """ViT (Dosovitskiy et al. 2021) for ImageNet's 1000 classes; dropout follows every dense layer but q, k and v."""
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
    """The two small sizes come from DeiT (Touvron et al. 2021, table 9), which drops sublayers instead of values."""
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
    dropout=0.1,
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
    initial=Xavier(),
    heads={"label": Classification(classes=10)},
)

_DEIT = "Touvron et al. 2021, table 1"
_VIT = "Dosovitskiy et al. 2021, table 1"

VISION: tuple[Preset, ...] = (
    Preset("vit-ti16", _deit(192, 3), "ViT-Ti/16 (DeiT: Touvron et al. 2021)", Published("5 M", _DEIT)),
    Preset("vit-s16", _deit(384, 6), "ViT-S/16 (DeiT: Touvron et al. 2021)", Published("22 M", _DEIT)),
    Preset("vit-b16", _vit(768, 12, 12, 0.1, 0.0), "ViT-B/16 (Dosovitskiy et al. 2021)", Published("86 M", _VIT)),
    Preset("vit-l16", _vit(1024, 24, 16, 0.1, 0.0), "ViT-L/16 (Dosovitskiy et al. 2021)", Published("307 M", _VIT)),
    Preset(
        "vit-28",
        VIT_28,
        "ViT for 28 × 28 grey images, patches of 4 (MNIST's size)",
        Published("210 k", "s-chh, PyTorch-Vision-Transformer-ViT-MNIST-CIFAR10 (with a dense layer in its head)"),
    ),
    Preset(
        "vit-32",
        VIT_32,
        "ViT for 32 × 32 colour images, patches of 4 (CIFAR's size)",
        Published("2.69 M", "Lee et al. 2021, Vision Transformer for Small-Size Datasets"),
    ),
)
