"""The model families (encoder-decoder, encoder, decoder, vision) and their heads.

The stacks of an encoder-decoder are those of a Transformer, or recurrent or
convolutional: see `regard.models.recurrent` and `regard.models.convolutional`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.blocks.cache import Cache
from regard.blocks.embedding import PatchEmbedding, TextEmbedding, pool
from regard.blocks.layers import ACTIVATIONS, Stack, build_norm
from regard.blocks.layout import Layout, Padded, layout_of, require_images
from regard.blocks.positions import GridPosition, build_grid_position
from regard.blocks.recording import POOLED_TAP, SEQUENCE_TAP, TOKEN_TAP, VOCABULARY_TAP, Tap, Tapped, tap, tap_pass
from regard.blocks.settings import LayerNorm, NoPosition, PoolingKind
from regard.errors import SettingsError
from regard.models import settings
from regard.models.convolutional import ConvolutionalDecoder, ConvolutionalEncoder, ResNetStack
from regard.models.recurrent import ElmoStack, RecurrentDecoder, RecurrentEncoder


class _Writer(Tapped):
    """A model with a decoder."""

    decoder: Stack

    def new_cache(self, batch: int, longest: int | None = None, steps: int | None = None, beams: int = 1) -> Cache:
        """Return an empty cache for `batch` sequences. The other arguments are for searches; see `Cache`."""
        return self.decoder.new_cache(batch, longest, steps, beams)


class EncoderDecoder(_Writer):
    """Encoder and decoder stacks (Vaswani et al. 2017). The decoder attends to the encoder's output."""

    encoder: Stack

    def __init__(self, model: settings.AnySeq2Seq) -> None:
        super().__init__()
        self.settings = model
        source = nn.Embedding(model.vocabulary, model.width)
        shared = {"source", "target"} <= set(model.tied)
        target = source if shared else nn.Embedding(model.target_size, model.width)
        tied = target if "target" in model.tied else source
        self.source = _text_embedding(model, source)
        self.target = _text_embedding(model, target)
        tokens, scale = tied if "output" in model.tied else None, None
        if isinstance(model, settings.Recurrent):
            stacks: list[Any] = [RecurrentEncoder(model), RecurrentDecoder(model)]  # used as `Stack` is
            self.encoder, self.decoder = stacks
        elif isinstance(model, settings.Convolutional):
            stacks = [ConvolutionalEncoder(model), ConvolutionalDecoder(model)]
            self.encoder, self.decoder = stacks
        else:
            self.encoder = Stack(model, model.position)
            self.decoder = Stack(model, model.position, causal=True, cross=True, depth=model.decoder_layers)
            scale = model.output_scale
        self.output = Output(tokens, model.target_size, model.width, model.output_bias, scale)
        self.heads = build_heads(getattr(model, "heads", {}), model, target)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_layout: Layout | None = None,
        target_layout: Layout | None = None,
        seen: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Return logits `[B, T, V]` (or `[N, V]`) for the token after each target token (teacher forcing).

        `seen` masks tokens of the source and of the target, as SimCut training needs.
        """
        source_seen, target_seen = (None, None) if seen is None else seen
        memory = self.encode(source, source_layout, source_seen)
        hidden = self.states(target, memory, layout_of(source, source_layout), target_layout, seen=target_seen)
        return self.output(hidden)

    def encode(self, source: Tensor, source_layout: Layout | None = None, seen: Tensor | None = None) -> Tensor:
        """Return the encoder's output `[B, S, D]`, which cross-attention reads."""
        tap_pass(self)
        layout = layout_of(source, source_layout)
        return self.encoder(self.source(source, layout, seen=seen), layout)

    def states(
        self,
        target: Tensor,
        memory: Tensor,
        source_layout: Layout | None = None,
        target_layout: Layout | None = None,
        cache: Cache | None = None,
        seen: Tensor | None = None,
    ) -> Tensor:
        """Return the decoder's last hidden states `[B, T, D]`, before the output weights."""
        tap_pass(self, cache)
        layout = layout_of(target, target_layout)
        memory_layout = layout_of(memory[..., 0], source_layout)
        queries, keys = (layout, layout) if cache is None else cache.plan(layout)
        x = self.target(target, queries, seen=seen)
        return self.decoder(x, queries, keys, memory, memory_layout, cache)


class Encoder(Tapped):
    """A stack where every token sees every other (Devlin et al. 2019). `heads[name](hidden, layout)` gives logits."""

    def __init__(self, model: settings.Encoder | settings.Elmo) -> None:
        super().__init__()
        self.settings = model
        if isinstance(model, settings.Elmo):
            tokens = nn.Embedding(model.vocabulary, model.width // 2)
            self.embedding = TextEmbedding(tokens, model.position, True, None, model.dropout)
            self.encoder: Stack | ElmoStack = ElmoStack(model)
        else:
            tokens = nn.Embedding(model.vocabulary, model.embedding_width or model.width)
            self.embedding = _text_embedding(model, tokens, model.segments, model.embedding_width and model.width)
            self.encoder = Stack(model, model.position)
            if not model.first_norm:
                self.encoder[0].attention_residual.norm = nn.Identity()
        self.heads = build_heads(model.heads, model, tokens)

    def forward(self, tokens: Tensor, layout: Layout | None = None, segments: Tensor | None = None) -> Tensor:
        """Return the hidden states `[B, T, D]` (or `[N, D]`)."""
        layout = layout_of(tokens, layout)
        return self.encoder(self.embedding(tokens, layout, segments), layout)

    def directions(self, tokens: Tensor, layout: Layout) -> Tensor:
        """Return the last states `[..., D]` of the two language models of ELMo, for a head of kind two-directions."""
        assert isinstance(self.encoder, ElmoStack)
        return self.encoder.states(self.embedding(tokens, layout), layout)[-1]


class Decoder(_Writer):
    """A causal stack (Radford et al. 2018): each token sees itself and the tokens before it."""

    def __init__(self, model: settings.Decoder) -> None:
        super().__init__()
        self.settings = model
        tokens = nn.Embedding(model.vocabulary, model.width)
        self.embedding = _text_embedding(model, tokens)
        self.decoder = Stack(model, model.position, causal=True)
        tied = tokens if model.tied else None
        self.output = Output(tied, model.vocabulary, model.width, model.output_bias, cap=model.output_soft_cap)
        self.heads = build_heads(model.heads, model, tokens)

    def forward(self, tokens: Tensor, layout: Layout | None = None, cache: Cache | None = None) -> Tensor:
        """Return logits `[B, T, V]` (or `[N, V]`) for the token after each token.

        With a cache, `tokens` holds the new tokens only: a prompt in the first call, then one token at a time.
        """
        return self.output(self.states(tokens, layout, cache))

    def states(self, tokens: Tensor, layout: Layout | None = None, cache: Cache | None = None) -> Tensor:
        """Return the last hidden states `[B, T, D]`, before the output weights."""
        tap_pass(self, cache)
        layout = layout_of(tokens, layout)
        queries, keys = (layout, layout) if cache is None else cache.plan(layout)
        given, seen = self.settings, None
        if self.training and given.word_dropout:
            seen = functional.dropout(self.output.matrix.new_ones(given.vocabulary), given.word_dropout)[tokens]
        x = self.embedding(tokens, queries, seen=seen)
        x = shared_dropout(x, given.embedding_dropout or 0.0, queries, self.training)
        x = self.decoder(x, queries, keys, cache=cache)
        return shared_dropout(x, given.output_dropout, queries, self.training)


def shared_dropout(x: Tensor, rate: float, layout: Layout, training: bool) -> Tensor:
    """Dropout that is the same for all tokens of a sequence (Gal and Ghahramani 2016)."""
    if not training or not rate:
        return x
    kept_SD = functional.dropout(x.new_ones(layout.count, x.shape[-1]), rate)
    return x * kept_SD[layout.sequences(x.device)]


class Vision(Tapped):
    """An encoder of images: a stack over patches (Dosovitskiy et al. 2021), or without attention LSTMs or convolutions.

    `heads[name](hidden)` gives logits.
    """

    def __init__(self, model: settings.AnyVision) -> None:
        super().__init__()
        self.settings = model
        self.encoder: Stack | RecurrentEncoder | ResNetStack
        if isinstance(model, settings.ResNet):
            self.encoder = ResNetStack(model)
        elif isinstance(model, settings.ImageLstm):
            none = GridPosition(model.position, model.width, model.class_token)
            self.embedding = PatchEmbedding(model.channels, model.patch, model.width, none, model.dropout)
            self.encoder = RecurrentEncoder(model)
        else:
            position = build_grid_position(
                model.position, model.grid, model.width, model.head_size, model.class_token, model.registers
            )
            norm = model.norm if model.embedding_norm else None
            self.embedding = PatchEmbedding(
                model.channels, model.patch, model.width, position, model.dropout, model.patch_bias, norm
            )
            self.encoder = Stack(model, NoPosition())
        self.heads = build_heads(model.heads, model)

    def forward(self, images: Tensor) -> Tensor:
        """Return `[B, T, D]` for images `[B, C, height, width]`: class token (if any), registers, patches or cells."""
        if isinstance(self.encoder, ResNetStack):
            require_images(images, self.settings.channels)
            return self.encoder(images)
        x_BTD = self.embedding(images)
        layout = Padded(*x_BTD.shape[:2])
        if isinstance(self.encoder, RecurrentEncoder):
            return self.encoder(x_BTD, layout)
        rotation = self.embedding.position.rotation(self.embedding.grid(images), x_BTD.device, x_BTD.dtype)
        return self.encoder(x_BTD, layout, rotation=rotation)


def _text_embedding(
    model: settings.AnySeq2Seq | settings.Encoder | settings.Decoder,
    tokens: nn.Embedding,
    segments: int = 0,
    projected: int | None = None,
) -> TextEmbedding:
    if isinstance(model, settings.Recurrent | settings.Convolutional):
        return TextEmbedding(tokens, model.position, True, None, model.dropout)
    norm = model.norm if model.embedding_norm else None
    shared = isinstance(model, settings.Decoder) and model.embedding_dropout is not None
    dropout = 0.0 if shared else model.dropout
    return TextEmbedding(tokens, model.position, model.embedding_scale, norm, dropout, segments, projected)


class Output(Tapped):
    """Logits over a vocabulary, by a matrix of its own or by the matrix of a token embedding."""

    taps = (VOCABULARY_TAP,)

    def __init__(
        self,
        tokens: nn.Embedding | None,
        vocabulary: int,
        width: int,
        bias: bool,
        scale: float | None = None,
        cap: float | None = None,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, width)) if tokens is None else None
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if bias else None
        self.scale, self.cap = scale, cap
        self.product: nn.Module | None = None
        """A module that computes the product in place of the matrix; see `regard.models.cpu`."""
        # In a tuple, so that it is not registered as a submodule: the embedding owns the matrix.
        self._tied: tuple[nn.Embedding, ...] = () if tokens is None else (tokens,)

    @property
    def matrix(self) -> Tensor:
        """The weights `[V, D]`."""
        return self._tied[0].weight if self.weight is None else self.weight

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `[..., V]` for hidden states `[..., D]`."""
        if self.product is not None:
            scores = self.product(x)
        else:
            scores = functional.linear(x if self.scale is None else x * self.scale, self.matrix, self.bias)
        return tap(self, "logits", scores if self.cap is None else self.cap * torch.tanh(scores / self.cap))


TextModel: TypeAlias = settings.Encoder | settings.Decoder | settings.EncoderDecoder
# A head's `forward(hidden, layout)` returns logits for hidden states `[B, T, D]` (or `[N, D]` with a packed layout).


class MaskedHead(nn.Module):
    """Logits `[..., V]` for masked tokens. The input may be the hidden states of selected tokens only."""

    def __init__(self, head: settings.Masked, model: TextModel, tokens: nn.Embedding) -> None:
        super().__init__()
        width = tokens.embedding_dim
        self.dense = nn.Linear(model.width, width, head.bias)
        self.activation = ACTIVATIONS[head.activation]
        self.norm = build_norm(model.norm, width)
        self.output = Output(tokens if head.tied else None, tokens.num_embeddings, width, bias=True)

    def forward(self, hidden: Tensor, layout: Layout | None = None) -> Tensor:
        return self.output(self.norm(self.activation(self.dense(hidden))))


class PoolingHead(Tapped):
    """One vector `[B, D]` for each sequence."""

    taps: tuple[Tap, ...] = (POOLED_TAP,)

    def __init__(
        self, head: settings.Pooling | settings.NextSentence | settings.Classification, model: settings.ModelSettings
    ) -> None:
        super().__init__()
        self.pooling: PoolingKind = head.pooling
        # The mean and the maximum of an image are those of its patches.
        self.skipped = model.learned_tokens if isinstance(model, settings.Vision) and head.pooling != "class" else 0
        self.pool = nn.Linear(model.width, model.width, bias=not head.norm) if head.dense else None
        norm = getattr(model, "norm", LayerNorm())
        self.norm = build_norm(norm, model.width) if head.norm else nn.Identity()
        self.activation = getattr(torch, head.activation, None) or getattr(functional, head.activation)

    def forward(self, hidden: Tensor, layout: Layout | None = None) -> Tensor:
        hidden = hidden[:, self.skipped :] if self.skipped else hidden
        layout = Padded(*hidden.shape[:2]) if layout is None else layout
        pooled = pool(hidden, layout, self.pooling)
        return tap(self, "pooled", pooled if self.pool is None else self.norm(self.activation(self.pool(pooled))))


class SequenceHead(PoolingHead):
    """Logits `[B, classes]` for each sequence."""

    taps = (POOLED_TAP, SEQUENCE_TAP)

    def __init__(self, head: settings.NextSentence | settings.Classification, model: settings.ModelSettings) -> None:
        super().__init__(head, model)
        classes, self.dropout = (2, 0.0) if isinstance(head, settings.NextSentence) else (head.classes, head.dropout)
        self.output = nn.Linear(model.width, classes)
        distilled = isinstance(head, settings.Classification) and head.distilled
        self.distilled = nn.Linear(model.width, classes) if distilled else None

    def forward(self, hidden: Tensor, layout: Layout | None = None) -> Tensor:
        logits, others = self.both(hidden, layout)
        return tap(self, "logits", logits if others is None else (logits + others) / 2)

    def both(self, hidden: Tensor, layout: Layout | None = None) -> tuple[Tensor, Tensor | None]:
        """The logits of the class token, and those of the first register, if a teacher trains them."""
        pooled = functional.dropout(super().forward(hidden, layout), self.dropout, self.training)
        return self.output(pooled), None if self.distilled is None else self.distilled(hidden[:, 1])


class TokenHead(nn.Module):
    """Logits `[..., classes]` for each token; spans have two, for start and end."""

    taps = (TOKEN_TAP,)

    def __init__(self, width: int, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.output = nn.Linear(width, classes)
        self.dropout = dropout

    def forward(self, hidden: Tensor, layout: Layout | None = None) -> Tensor:
        return tap(self, "logits", self.output(functional.dropout(hidden, self.dropout, self.training)))


class TwoDirectionsHead(nn.Module):
    """Logits `[..., 2, V]`: of the next token from the first half of a state, of the one before from the second."""

    def __init__(self, tokens: nn.Embedding) -> None:
        super().__init__()
        self.output = Output(tokens, tokens.num_embeddings, tokens.embedding_dim, bias=True)

    def forward(self, hidden: Tensor, layout: Layout | None = None) -> Tensor:
        return self.output(torch.stack(hidden.chunk(2, dim=-1), dim=-2))


class ReplacedHead(nn.Module):
    """A logit `[..., 1]` for each token: whether a generator replaced it. Its layers are part of the head."""

    def __init__(self, head: settings.Replaced, model: TextModel, tokens: nn.Embedding) -> None:
        super().__init__()
        self.generator = Stack(model, model.position, depth=head.depth) if head.depth else None
        self.masked = MaskedHead(settings.Masked(), model, tokens) if head.depth else None
        self.dense = nn.Linear(model.width, model.width)
        self.output = nn.Linear(model.width, 1)

    def forward(self, hidden: Tensor, layout: Layout | None = None) -> Tensor:
        scores: Tensor = self.output(functional.gelu(self.dense(hidden)))
        return scores


def build_head(
    head: settings.TextHead | settings.ImageHead, model: settings.ModelSettings, tokens: nn.Embedding | None = None
) -> nn.Module:
    if isinstance(head, settings.NextSentence | settings.Classification):
        return SequenceHead(head, model)
    if isinstance(head, settings.Pooling):
        return PoolingHead(head, model)
    if isinstance(head, settings.Tagging):
        return TokenHead(model.width, head.classes, head.dropout)
    if isinstance(head, settings.Spans):
        return TokenHead(model.width, classes=2)
    assert tokens is not None  # the settings of images have no such head
    if isinstance(head, settings.TwoDirections):
        return TwoDirectionsHead(tokens)
    assert isinstance(model, TextModel)  # nor have those without attention
    return MaskedHead(head, model, tokens) if isinstance(head, settings.Masked) else ReplacedHead(head, model, tokens)


def build_heads(
    heads: Mapping[str, settings.TextHead] | Mapping[str, settings.ImageHead],
    model: settings.ModelSettings,
    tokens: nn.Embedding | None = None,
) -> nn.ModuleDict:
    """Return the heads by name. Attribute names of PyTorch modules, such as "type", are refused."""
    named = nn.ModuleDict()
    for name, head in heads.items():
        if hasattr(named, name):
            raise SettingsError(f"heads.{name}: PyTorch uses this name; choose another one, such as {name}_head")
        named[name] = build_head(head, model, tokens)
    return named
