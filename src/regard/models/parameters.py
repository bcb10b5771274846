"""Every parameter that a model will have: name, shape and use, told from the settings before anything is allocated.

The names are those of `model.named_parameters()`; a matrix that several places share appears once, under the
first of them. A test holds this list against every model that is really built. No torch in here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from regard.blocks.settings import Attention, Gated, Learned, Learned2d, Norm, Relative, RmsNorm, TransformerXL
from regard.models.settings import (
    Body,
    Classification,
    Decoder,
    Encoder,
    EncoderDecoder,
    ImageHead,
    Masked,
    ModelSettings,
    NextSentence,
    Spans,
    Tagging,
    TextHead,
    Vision,
)

Use: TypeAlias = Literal["token", "memory", "distance", "patch", "sequence", "other"]
"""What a parameter is multiplied with: every token of its stack, every token of the encoder's output (cross-attention's
keys and values), every distance between tokens, every patch, one vector a sequence; or it is part of no matrix product
(tables, norms, biases)."""


@dataclass(frozen=True)
class Parameter:
    """One tensor that training changes."""

    name: str
    shape: tuple[int, ...]
    use: Use = "other"

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def part(self) -> str:
        """The part of the model that it belongs to: its name without layer number and tensor, norms put together."""
        words = self.name.split(".")
        if words[0] == "heads":
            return f"heads.{words[1]}"
        if words[0] == "output":
            return "output"
        if not words[1].isdigit():
            return f"{words[0]}.{words[1]}"
        if words[2].endswith("_residual"):
            return f"{words[0]}.{'scale' if words[3] == 'scale' else 'norm'}"
        if words[3] == "relative":
            return f"{words[0]}.relative"
        return f"{words[0]}.{words[2]}"


def parameters(settings: ModelSettings) -> tuple[Parameter, ...]:
    """Every parameter of the model, from the embeddings to the heads."""
    match settings:
        case EncoderDecoder():
            found = _encoder_decoder(settings)
        case Encoder():
            found = _encoder(settings)
        case Decoder():
            found = _decoder(settings)
        case Vision():
            found = _vision(settings)
    return tuple(found)


def tied_outputs(settings: ModelSettings) -> int:
    """How many outputs multiply by a token embedding instead of a matrix of their own."""
    match settings:
        case EncoderDecoder():
            return int(_output_is_tied(settings))
        case Decoder():
            return int(settings.tied)
        case Encoder():
            return sum(isinstance(head, Masked) and head.tied for head in settings.heads.values())
        case Vision():
            return 0


# ----------------------------------------------------------------------------------------------------------- families


def _encoder_decoder(settings: EncoderDecoder) -> Iterator[Parameter]:
    yield from _below("source", _text_embedding(settings, settings.vocabulary))
    target = _text_embedding(settings, settings.target_size)
    shared = {"source", "target"} <= set(settings.tied)
    yield from _below("target", (entry for entry in target if not (shared and entry.name == "tokens.weight")))
    yield from _below("encoder", _stack(settings, settings.depth, cross=False))
    yield from _below("decoder", _stack(settings, settings.decoder_layers, cross=True))
    yield from _output(settings.width, settings.target_size, _output_is_tied(settings), settings.output_bias)


def _output_is_tied(settings: EncoderDecoder) -> bool:
    return "output" in settings.tied


def _encoder(settings: Encoder) -> Iterator[Parameter]:
    yield from _below("embedding", _text_embedding(settings, settings.vocabulary, settings.segments))
    yield from _below("encoder", _stack(settings, settings.depth, cross=False))
    for name, head in settings.heads.items():
        yield from _below(f"heads.{name}", _head(head, settings.width, settings.vocabulary, settings.norm))


def _decoder(settings: Decoder) -> Iterator[Parameter]:
    yield from _below("embedding", _text_embedding(settings, settings.vocabulary))
    yield from _below("decoder", _stack(settings, settings.depth, cross=False))
    yield from _output(settings.width, settings.vocabulary, settings.tied, settings.output_bias)


def _vision(settings: Vision) -> Iterator[Parameter]:
    width, patch = settings.width, settings.patch
    yield Parameter("embedding.patches.weight", (width, settings.channels, patch, patch), "patch")
    yield Parameter("embedding.patches.bias", (width,))
    if settings.class_token:
        yield Parameter("embedding.class_token", (width,))
    if isinstance(settings.position, Learned2d):
        rows, columns = settings.grid
        yield Parameter("embedding.position.weight", (rows * columns, width))
        if settings.class_token:
            yield Parameter("embedding.position.first", (width,))
    yield from _below("encoder", _stack(settings, settings.depth, cross=False))
    for name, head in settings.heads.items():
        yield from _below(f"heads.{name}", _head(head, width, 0, settings.norm))


# ------------------------------------------------------------------------------------------------- embeddings, heads


def _text_embedding(
    settings: EncoderDecoder | Encoder | Decoder, vocabulary: int, segments: int = 0
) -> Iterator[Parameter]:
    width, position = settings.width, settings.position
    yield Parameter("tokens.weight", (vocabulary, width))
    if segments:
        yield Parameter("segments.weight", (segments, width))
    if isinstance(position, Learned):
        yield Parameter("position.weight", (position.offset + position.length, width))
    if settings.embedding_norm:
        yield from _below("norm", _norm(settings.norm, width))


def _output(width: int, vocabulary: int, tied: bool, bias: bool) -> Iterator[Parameter]:
    if not tied:
        yield Parameter("output.weight", (vocabulary, width), "token")
    if bias:
        yield Parameter("output.bias", (vocabulary,))


def _head(head: TextHead | ImageHead, width: int, vocabulary: int, norm: Norm) -> Iterator[Parameter]:
    match head:
        case Masked():
            yield from _linear("dense", width, width, bias=True)
            yield from _below("norm", _norm(norm, width))
            yield from _output(width, vocabulary, head.tied, bias=True)
        case Tagging():
            yield from _linear("output", width, head.classes, bias=True)
        case Spans():
            yield from _linear("output", width, 2, bias=True)
        case _:
            if head.dense:
                yield from _linear("pool", width, width, bias=True, use="sequence")
            if isinstance(head, Classification | NextSentence):
                classes = head.classes if isinstance(head, Classification) else 2
                yield from _linear("output", width, classes, bias=True, use="sequence")


# ------------------------------------------------------------------------------------------------------------- stacks


def _stack(settings: Body, depth: int, cross: bool) -> Iterator[Parameter]:
    for index in range(depth):
        yield from _below(str(index), _layer(settings, cross))
    if settings.has_final_norm:
        yield from _below("norm", _norm(settings.norm, settings.width))
    position = settings.position if isinstance(settings, EncoderDecoder | Encoder | Decoder) else None
    if isinstance(position, Relative):
        yield Parameter("position.weight", (position.buckets, settings.attention.heads))


def _layer(settings: Body, cross: bool) -> Iterator[Parameter]:
    yield from _below("attention", _attention(settings))
    position = settings.position if isinstance(settings, EncoderDecoder | Encoder | Decoder) else None
    if isinstance(position, TransformerXL):
        yield from _below("attention.relative", _relative(settings))
    yield from _below("attention_residual", _residual(settings))
    if cross:
        # Keys and values are made from the encoder's output, so there are as many as the source has tokens.
        for entry in _attention(settings):
            memory = entry.name in ("k.weight", "v.weight")
            yield replace(entry, name=f"cross.{entry.name}", use="memory" if memory else entry.use)
        yield from _below("cross_residual", _residual(settings))
    yield from _below("ffn", _feed_forward(settings))
    yield from _below("ffn_residual", _residual(settings))


def _attention(settings: Body) -> Iterator[Parameter]:
    attention, width = settings.attention, settings.width
    heads, groups, head_size, value_size = attention.heads, settings.kv_heads, settings.head_size, settings.value_size
    yield from _linear("q", width, heads * head_size, attention.bias)
    yield from _linear("k", width, groups * head_size, attention.bias)
    yield from _linear("v", width, groups * value_size, attention.bias)
    yield from _linear("out", heads * value_size, width, _output_bias(attention))
    if attention.qk_norm is not None:
        yield from _below("q_norm", _norm(attention.qk_norm, head_size))
        yield from _below("k_norm", _norm(attention.qk_norm, head_size))


def _output_bias(attention: Attention) -> bool:
    return attention.bias if attention.output_bias is None else attention.output_bias


def _relative(settings: Body) -> Iterator[Parameter]:
    """Transformer-XL projects the sinusoid of each distance and adds two vectors to the queries."""
    heads, head_size = settings.attention.heads, settings.head_size
    yield Parameter("project.weight", (heads * head_size, settings.width), "distance")
    yield Parameter("content", (heads, head_size))
    yield Parameter("distance", (heads, head_size))


def _feed_forward(settings: Body) -> Iterator[Parameter]:
    ffn, width, hidden = settings.ffn, settings.width, settings.ffn_hidden
    if isinstance(ffn, Gated):
        yield from _linear("gate", width, hidden, ffn.bias)
    yield from _linear("up", width, hidden, ffn.bias)
    yield from _linear("down", hidden, width, ffn.bias)


def _residual(settings: Body) -> Iterator[Parameter]:
    yield from _below("norm", _norm(settings.norm, settings.width))
    if settings.norm_place == "sandwich":
        yield from _below("after", _norm(settings.norm, settings.width))
    if settings.layer_scale is not None:
        yield Parameter("scale", (settings.width,))


# ------------------------------------------------------------------------------------------------------------- pieces


def _linear(name: str, inputs: int, outputs: int, bias: bool, use: Use = "token") -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", (outputs, inputs), use)
    if bias:
        yield Parameter(f"{name}.bias", (outputs,))


def _norm(norm: Norm, width: int) -> Iterator[Parameter]:
    yield Parameter("weight", (width,))
    if not isinstance(norm, RmsNorm) and norm.bias:
        yield Parameter("bias", (width,))


def _below(prefix: str, entries: Iterable[Parameter]) -> Iterator[Parameter]:
    for entry in entries:
        yield replace(entry, name=f"{prefix}.{entry.name}")
