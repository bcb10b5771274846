"""Encoders: BERT in Google's six sizes, RoBERTa, RoFormer."""

from __future__ import annotations

from regard.blocks.settings import Attention, Dense, LayerNorm, Learned, Rotary, TextPosition
from regard.models.presets.entry import Preset, Published
from regard.models.settings import Encoder, Masked, Normal, Pooling, TextHead


def _encoder(
    depth: int,
    width: int,
    vocabulary: int,
    position: TextPosition,
    segments: int,
    eps: float,
    heads: dict[str, TextHead],
) -> Encoder:
    """What all three share: post-norm, heads of 64, feed-forward of 4 × width, dropout 0.1 (Devlin et al. 2019)."""
    return Encoder(
        vocabulary=vocabulary,
        width=width,
        depth=depth,
        attention=Attention(heads=width // 64, dropout=0.1),
        ffn=Dense(activation="gelu"),
        norm=LayerNorm(eps=eps),
        norm_place="post",
        position=position,
        segments=segments,
        embedding_norm=True,
        dropout=0.1,
        initial=Normal(),
        heads=heads,
    )


def _bert(depth: int, width: int) -> Encoder:
    """BERT with its pooler, which the authors count and the pre-training heads they do not."""
    pooler = Pooling(pooling="class", dense=True)
    return _encoder(depth, width, 30_522, Learned(length=512), segments=2, eps=1e-12, heads={"pooler": pooler})


def _roberta(depth: int, width: int) -> Encoder:
    """RoBERTa has no next sentences to tell, so the masked head is all it has."""
    position = Learned(length=512, offset=2)
    return _encoder(depth, width, 50_265, position, segments=1, eps=1e-5, heads={"masked": Masked()})


ROFORMER = _encoder(12, 768, 30_522, Rotary(order="interleaved"), segments=2, eps=1e-12, heads={"masked": Masked()})

_DEVLIN = "Devlin et al. 2019, section 3"
_TURC = "Turc et al. 2019, table 1"
_LIU = "Liu et al. 2019, section 5"
_FAIRSEQ = "fairseq, examples/roberta"

ENCODERS: tuple[Preset, ...] = (
    Preset("bert-tiny", _bert(2, 128), "BERT (Turc et al. 2019), 2 layers of 128", Published("4.4 M", _TURC)),
    Preset("bert-mini", _bert(4, 256), "BERT (Turc et al. 2019), 4 layers of 256", Published("11.3 M", _TURC)),
    Preset("bert-small", _bert(4, 512), "BERT (Turc et al. 2019), 4 layers of 512", Published("29.1 M", _TURC)),
    Preset("bert-medium", _bert(8, 512), "BERT (Turc et al. 2019), 8 layers of 512", Published("41.7 M", _TURC)),
    Preset("bert-base", _bert(12, 768), "BERT (Devlin et al. 2019), base", Published("110 M", _DEVLIN)),
    Preset("bert-large", _bert(24, 1024), "BERT (Devlin et al. 2019), large", Published("340 M", _DEVLIN)),
    Preset("roberta-base", _roberta(12, 768), "RoBERTa (Liu et al. 2019), base", Published("125 M", _FAIRSEQ)),
    Preset("roberta-large", _roberta(24, 1024), "RoBERTa (Liu et al. 2019), large", Published("355 M", _LIU)),
    Preset("roformer", ROFORMER, "RoFormer (Su et al. 2021): BERT base with rotary positions"),
)
