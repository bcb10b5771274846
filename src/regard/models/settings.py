"""Settings of the model families. One value describes a whole model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from regard.blocks import settings as blocks
from regard.settings import Settings, to_table


class Masked(Settings):
    """Logits over the vocabulary for each token: masked language modelling (Devlin et al. 2019)."""

    kind: Literal["masked"] = "masked"
    activation: blocks.Activation = "gelu"
    """The activation of the head's own layer."""
    tied: bool = True
    """Whether the output weights are the token embeddings."""
    bias: bool = True
    """Whether the head's own layer has a bias."""


class _Pooled(Settings):
    pooling: blocks.PoolingKind = "class"
    """How the tokens of a sequence become one vector: first token, last token, mean or maximum."""
    dense: bool = False
    """Whether a linear layer and an activation follow the pooling (BERT's pooler)."""
    activation: Literal["tanh", "gelu", "relu"] = "tanh"
    """The activation after that layer."""
    norm: bool = False
    """Whether a norm follows the activation; then that layer has no bias (ModernBERT)."""


class Pooling(_Pooled):
    """One vector for each sequence."""

    kind: Literal["pooling"] = "pooling"


class NextSentence(_Pooled):
    """Two logits for each sequence: whether its second part follows the first."""

    kind: Literal["next-sentence"] = "next-sentence"
    dense: bool = True


class Classification(_Pooled):
    """Logits over classes for each sequence or image; one class means regression."""

    kind: Literal["classification"] = "classification"
    classes: blocks.Positive = 2
    """Number of classes."""
    dropout: blocks.Rate = 0.0
    """Dropout before the last layer."""
    distilled: bool = False
    """Whether a second layer reads the first register, which a teacher trains; the logits are the mean of both (images
    only; Touvron et al. 2021: DeiT)."""


class Tagging(Settings):
    """Logits over classes for each token."""

    kind: Literal["tagging"] = "tagging"
    classes: blocks.Positive = 2
    """Number of classes."""
    dropout: blocks.Rate = 0.0
    """Dropout before the last layer."""


class Spans(Settings):
    """Two logits for each token: whether the answer starts here, and whether it ends here."""

    kind: Literal["spans"] = "spans"


class Replaced(Settings):
    """A logit for each token: whether a generator, a smaller encoder, replaced it (Clark et al. 2020: ELECTRA)."""

    kind: Literal["replaced"] = "replaced"
    depth: Literal[0] | blocks.Depth = 2
    """Number of layers of the generator. It has the width and the token embeddings of the model. 0: it has no layers of
    its own, because the model itself is the generator."""


class TwoDirections(Settings):
    """Logits over the vocabulary for the token after each token and for the token before it (Peters et al. 2018)."""

    kind: Literal["two-directions"] = "two-directions"


TextHead: TypeAlias = Annotated[
    Masked | NextSentence | Classification | Tagging | Spans | Pooling | Replaced | TwoDirections,
    Field(discriminator="kind"),
]
ImageHead: TypeAlias = Annotated[Classification | Pooling, Field(discriminator="kind")]


def _check_names(heads: Mapping[str, object]) -> None:
    """Refuse names that cannot be part of a tensor's name or of a dotted override."""
    for name in heads:
        if not name or "." in name:
            raise ValueError(f"heads: the name {name!r} must not be empty or contain a dot; choose another one")


class _WithoutAttention(blocks.Core):
    """A model with one state for each token or cell; constants in place of the settings of attention."""

    position: ClassVar = blocks.NoPosition()
    attention: ClassVar = blocks.StateAttention(score="last")


class _Vocabulary(blocks.Core):
    vocabulary: blocks.Positive = 37_000
    """Vocabulary size."""


class _Text(blocks.Body, _Vocabulary):
    position: blocks.TextPosition = blocks.Sinusoidal()
    """How tokens get their positions."""
    embedding_scale: bool = False
    """Whether token embeddings are multiplied by √width, as in the paper."""
    embedding_norm: bool = False
    """Whether a norm follows the embeddings (BERT, BART)."""
    heads: dict[str, TextHead] = {}
    """The heads by name."""

    @model_validator(mode="after")
    def _positions_fit(self) -> Self:
        _check_names(self.heads)
        for name, head in self.heads.items():
            if isinstance(head, Classification) and head.distilled:
                raise ValueError(f"heads.{name}.distilled is for images only; remove it")
        if isinstance(self.position, blocks.Rotary):
            if self.position.window_base is not None and self.attention.window is None:
                raise ValueError(f"position.window_base ({self.position.window_base}) needs attention.window; set it")
            channels = self.position.channels(self.rotated_size)
            if channels < 2 or channels % 2:
                share = f"position.fraction ({self.position.fraction}) of the head size ({self.rotated_size})"
                raise ValueError(f"{share} gives {channels} rotated channels, which must be even and at least 2")
        elif self.attention.latent is not None:
            raise ValueError(f'attention.latent needs position.kind = "rotary", not {self.position.kind}; set it')
        return self


class Seq2Seq(_Vocabulary):
    """The settings of all models that read one sequence and write another."""

    target_vocabulary: blocks.Positive | None = None
    """Target vocabulary size; none: the same as vocabulary."""
    decoder_depth: blocks.Depth | None = None
    """Number of decoder layers; none: depth."""
    tied: tuple[Literal["source", "target", "output"], ...] = Field(
        default=("source", "target", "output"), strict=False
    )
    """Which of the source embedding, the target embedding and the output weights share one matrix."""
    output_bias: bool = False
    """Whether the output has a bias."""

    @property
    def target_size(self) -> int:
        return self.target_vocabulary or self.vocabulary

    @property
    def decoder_layers(self) -> int:
        return self.decoder_depth or self.depth

    @model_validator(mode="after")
    def _ties_fit(self) -> Self:
        if len(self.tied) == 1 or len(set(self.tied)) != len(self.tied):
            raise ValueError(f"tied ({list(self.tied)}) must name two or three different matrices, or be empty: []")
        if "source" in self.tied and self.target_size != self.vocabulary:
            raise ValueError(
                f"tied ({list(self.tied)}) needs one vocabulary, but vocabulary is {self.vocabulary} and "
                f'target_vocabulary {self.target_size}; tie at most ["target", "output"]'
            )
        return self


class EncoderDecoder(_Text, Seq2Seq):
    """Reads one sequence and writes another (Vaswani et al. 2017)."""

    kind: Literal["encoder-decoder"] = "encoder-decoder"
    output_scale: float | None = Field(default=None, gt=0)
    """Factor on the last hidden states before the output weights (T5: 1 / √width)."""


class Recurrent(Seq2Seq):
    """Reads and writes sequences by LSTMs or GRUs with attention (Bahdanau et al. 2015; Luong et al. 2015)."""

    kind: Literal["recurrent"] = "recurrent"
    depth: blocks.Depth = 2
    cell: Literal["lstm", "gru"] = "lstm"
    """LSTM (Hochreiter and Schmidhuber 1997) or GRU (Cho et al. 2014)."""
    bidirectional: bool = True
    """Whether the encoder reads in both directions, with half of the width each."""
    attention: blocks.StateAttention = blocks.StateAttention()
    """How the decoder reads the encoder's states."""
    position: ClassVar = blocks.NoPosition()

    @model_validator(mode="after")
    def _halves_fit(self) -> Self:
        if self.bidirectional and self.width % 2:
            raise ValueError(f"width ({self.width}) must be even for two directions; or set bidirectional = false")
        return self


class Convolutional(Seq2Seq):
    """Reads and writes sequences by gated convolutions with attention in each layer (Gehring et al. 2017: ConvS2S)."""

    kind: Literal["convolutional"] = "convolutional"
    kernel: blocks.Positive = 3
    """Width of the convolutions, in tokens. In the decoder the token itself is the last of them."""
    position: blocks.Learned = blocks.Learned()
    """How tokens get their positions."""
    attention: ClassVar = blocks.StateAttention(score="dot")


class Encoder(_Text):
    """Reads a sequence; every token sees every other (Devlin et al. 2019: BERT)."""

    kind: Literal["encoder"] = "encoder"
    segments: int = Field(default=0, ge=0)
    """Number of segments (2 for pairs of sentences); 0: no segment embedding."""
    embedding_width: blocks.Positive | None = None
    """Size of the embeddings, which a linear layer maps to `width` (Lan et al. 2020); none: `width`, and no layer."""
    first_norm: bool = True
    """Whether the first attention normalises its input; it need not after `embedding_norm` (ModernBERT)."""

    @model_validator(mode="after")
    def _first_norm_is_before(self) -> Self:
        if not self.first_norm and self.norm_place == "post":
            raise ValueError('first_norm (false) needs a norm before each sublayer; set norm_place = "pre"')
        return self


class Elmo(_WithoutAttention, _Vocabulary):
    """Reads a sequence by two LSTM language models, one from each end; heads read a mix of their layers (Peters et al.
    2018: ELMo)."""

    kind: Literal["elmo"] = "elmo"
    depth: blocks.Depth = 2
    """Number of layers of each direction."""
    heads: dict[str, TextHead] = {}
    """The heads by name."""
    segments: ClassVar = 0

    @model_validator(mode="after")
    def _halves_fit(self) -> Self:
        _check_names(self.heads)
        if self.width % 2:
            raise ValueError(f"width ({self.width}) must be even: each direction has half of it")
        wrong = [name for name, head in self.heads.items() if isinstance(head, Masked | Replaced)]
        if wrong:
            raise ValueError(f'heads.{wrong[0]} needs an encoder that sees all tokens; set model.kind = "encoder"')
        return self


class Decoder(_Text):
    """Continues a sequence; each token sees only the tokens before it (Radford et al. 2018: GPT)."""

    kind: Literal["decoder"] = "decoder"
    tied: bool = True
    """Whether the output weights are the token embeddings."""
    output_bias: bool = False
    """Whether the output has a bias."""
    output_soft_cap: float | None = Field(default=None, gt=0)
    """Logits are smoothly limited to ± this value (Gemma 2); none: no limit."""
    word_dropout: blocks.Rate = 0.0
    """Probability that a token of the vocabulary is read as zeros everywhere in a batch (Merity et al. 2018)."""
    embedding_dropout: blocks.Rate | None = None
    """Dropout after the embeddings, the same for all tokens of a sequence (Gal and Ghahramani 2016); none: `dropout`,
    which is drawn for each token."""
    output_dropout: blocks.Rate = 0.0
    """Dropout of the last hidden states, the same for all tokens of a sequence."""


class _Images(blocks.Core):
    image: tuple[blocks.Positive, blocks.Positive] = Field(default=(224, 224), strict=False)
    """Height and width of the images in pixels."""
    channels: blocks.Positive = 3
    """Colour channels."""
    heads: dict[str, ImageHead] = {}
    """The heads by name."""


class Vision(blocks.Body, _Images):
    """Reads an image as a sequence of patches (Dosovitskiy et al. 2021: ViT)."""

    kind: Literal["vision"] = "vision"
    image: tuple[blocks.Positive, blocks.Positive] = Field(default=(224, 224), strict=False)
    """Height and width of the images in pixels. For other multiples of patch, learned positions are resized."""
    patch: blocks.Positive = 16
    """Height and width of a patch in pixels."""
    class_token: bool = True
    """Whether a learned token, which heads may read, precedes the patches."""
    registers: int = Field(default=0, ge=0)
    """Number of learned tokens between the class token and the patches, without positions (Darcet et al. 2024)."""
    patch_bias: bool = True
    """Whether the projection of the patches has a bias."""
    embedding_norm: bool = False
    """Whether a norm follows the embeddings (CLIP)."""
    mean: tuple[float, ...] = Field(default=(0.5,), strict=False)
    """Mean of the pixels, from 0 to 1, for all channels or for each. A model reads (value − mean) / deviation."""
    deviation: tuple[float, ...] = Field(default=(0.5,), strict=False)
    """Deviation of the pixels, as the mean."""
    position: blocks.ImagePosition = blocks.Learned2d()
    """How patches get their positions."""

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.image[0] // self.patch, self.image[1] // self.patch

    @property
    def tokens(self) -> int:
        """Length of the sequence: learned tokens and patches."""
        rows, columns = self.grid
        return self.learned_tokens + rows * columns

    @property
    def learned_tokens(self) -> int:
        """Number of tokens before the patches: class token and registers."""
        return self.class_token + self.registers

    @model_validator(mode="after")
    def _patches_fit(self) -> Self:
        _check_names(self.heads)
        if self.attention.latent is not None:
            raise ValueError('attention.latent does not suit images; set it to "none"')
        if self.attention.window is not None:
            raise ValueError(f'attention.window ({self.attention.window}) does not suit images; set it to "none"')
        if self.image[0] % self.patch or self.image[1] % self.patch:
            raise ValueError(f"image ({list(self.image)}) must be multiples of patch ({self.patch}); change one")
        if isinstance(self.position, blocks.Sinusoidal2d) and self.width % 4:
            raise ValueError(f"width ({self.width}) must be a multiple of 4 for sinusoidal-2d positions")
        if isinstance(self.position, blocks.Rotary2d) and self.head_size % 4:
            raise ValueError(f"attention.head_size ({self.head_size}) must be a multiple of 4 for rotary-2d positions")
        if not self.class_token and any(head.pooling == "class" for head in self.heads.values()):
            raise ValueError('a head with pooling "class" needs class_token = true; or choose pooling "mean"')
        for name, head in self.heads.items():
            if isinstance(head, Classification) and head.distilled and (head.pooling != "class" or not self.registers):
                raise ValueError(f'heads.{name}.distilled needs pooling "class" and registers = 1; set both')
        for name, values in (("mean", self.mean), ("deviation", self.deviation)):
            if len(values) not in (1, self.channels):
                raise ValueError(f"{name} has {len(values)} numbers, expected 1, or {self.channels} as channels")
        if min(self.deviation) <= 0:
            raise ValueError(f"deviation ({list(self.deviation)}) must be above 0")
        return self


class _ImageWithoutAttention(_Images, _WithoutAttention):
    image: tuple[blocks.Positive, blocks.Positive] = Field(default=(32, 32), strict=False)
    class_token: ClassVar = False

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        _check_names(self.heads)
        if any(head.pooling == "class" for head in self.heads.values()):
            raise ValueError('a head with pooling "class" needs a class token; choose pooling "mean"')
        return self


class ResNet(_ImageWithoutAttention):
    """Reads an image by convolutions with residual connections (He et al. 2016), normalized by groups of channels."""

    kind: Literal["resnet"] = "resnet"
    width: blocks.Positive = 128
    """Channels of the last stage; each stage has twice the channels and half the rows and columns of the one before."""
    depth: blocks.Depth = 2
    """Number of residual blocks of each of the three stages."""

    @property
    def tokens(self) -> int:
        """Number of cells after the last stage."""
        return math.prod(-(-size // 4) for size in self.image)

    @model_validator(mode="after")
    def _channels_fit(self) -> Self:
        if self.width % 32:
            raise ValueError(f"width ({self.width}) must be a multiple of 32: the first stage has a quarter of it")
        return self


class ImageLstm(_ImageWithoutAttention):
    """Reads the patches of an image, row by row, by an LSTM in both directions."""

    kind: Literal["image-lstm"] = "image-lstm"
    width: blocks.Positive = 128
    """Size of the states, half of it for each direction."""
    depth: blocks.Depth = 2
    patch: blocks.Positive = 4
    """Height and width of a patch in pixels."""
    cell: ClassVar = "lstm"
    bidirectional: ClassVar = True

    @property
    def tokens(self) -> int:
        """Number of patches."""
        return math.prod(size // self.patch for size in self.image)

    @model_validator(mode="after")
    def _patches_fit(self) -> Self:
        if self.width % 2:
            raise ValueError(f"width ({self.width}) must be even: each direction has half of it")
        if self.image[0] % self.patch or self.image[1] % self.patch:
            raise ValueError(f"image ({list(self.image)}) must be multiples of patch ({self.patch}); change one")
        return self


AnySeq2Seq: TypeAlias = EncoderDecoder | Recurrent | Convolutional
AnyVision: TypeAlias = Vision | ResNet | ImageLstm
ModelSettings: TypeAlias = EncoderDecoder | Encoder | Decoder | Recurrent | Convolutional | Elmo | AnyVision
AnyModel: TypeAlias = Annotated[ModelSettings, Field(discriminator="kind")]
"""The type for `parse`: `kind` selects the family."""


def complete(settings: ModelSettings) -> dict[str, Any]:
    """Return all settings by dotted key, with the derived values filled in. Empty settings are left out."""
    table = to_table(settings)
    if isinstance(settings, blocks.Body):
        output_bias = settings.attention.output_bias
        table["attention"] |= {
            "head_size": settings.head_size,
            "value_size": settings.value_size,
            "kv_heads": settings.kv_heads,
            "output_bias": settings.attention.bias if output_bias is None else output_bias,
            "scale": settings.attention.scale or settings.head_size**-0.5,
        }
        table["ffn"]["hidden"] = settings.ffn_hidden
        table["final_norm"] = settings.has_final_norm
    if isinstance(settings, Seq2Seq):
        table["tied"] = sorted(settings.tied)
        table["target_vocabulary"] = settings.target_size
        table["decoder_depth"] = settings.decoder_layers
    return dict(flat(table))


def reach(model: ModelSettings) -> int | None:
    """The longest sequence that the model's positions allow; None: any length."""
    return model.position.length if isinstance(model.position, blocks.Learned) else None


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def differences(ours: ModelSettings, theirs: ModelSettings) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ, by dotted key, with both values (None: not set).

    Of two tables of different kinds, only `kind` is returned.
    """
    here, there = complete(ours), complete(theirs)
    kinds = {key for key in here.keys() & there.keys() if key.endswith("kind") and here[key] != there[key]}
    hidden = tuple(key.removesuffix("kind") for key in kinds)
    return {
        key: (here.get(key), there.get(key))
        for key in [*here, *(key for key in there if key not in here)]
        if not _equal(here.get(key), there.get(key)) and (key in kinds or not key.startswith(hidden))
    }


def _equal(ours: Any, theirs: Any) -> bool:
    """Compare values; numbers that were computed in two ways (1 / √width) may differ in the last bit."""
    numbers = isinstance(ours, float) and isinstance(theirs, float)
    return math.isclose(ours, theirs, rel_tol=1e-12) if numbers else bool(ours == theirs)
