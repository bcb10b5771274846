"""The encoder-decoder of *Attention Is All You Need*: reads one sequence, writes another."""

from __future__ import annotations

from torch import Tensor, nn

from regard.blocks.cache import Cache, CacheKind
from regard.blocks.embedding import TextEmbedding
from regard.blocks.layout import Layout, layout_of
from regard.blocks.stack import Stack
from regard.blocks.tap import tap_pass
from regard.models import settings
from regard.models.generation import new_cache
from regard.models.heads import Output
from regard.models.plan import stack_plan


class EncoderDecoder(nn.Module):
    """Encoder and decoder stacks; the decoder's cross-attention looks at what the encoder made of the source."""

    def __init__(self, model: settings.EncoderDecoder) -> None:
        super().__init__()
        self.settings = model
        source = nn.Embedding(model.vocabulary, model.width)
        shared = {"source", "target"} <= set(model.tied)
        target = source if shared else nn.Embedding(model.target_size, model.width)
        tied = target if "target" in model.tied else source
        norm = model.norm if model.embedding_norm else None
        self.source = TextEmbedding(source, model.position, model.embedding_scale, norm, model.dropout)
        self.target = TextEmbedding(target, model.position, model.embedding_scale, norm, model.dropout)
        self.encoder = Stack(stack_plan(model, model.position))
        self.decoder = Stack(stack_plan(model, model.position, causal=True, cross=True, depth=model.decoder_layers))
        self.output = Output(
            tied if "output" in model.tied else None,
            model.target_size,
            model.width,
            model.output_bias,
            model.output_scale,
        )

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_layout: Layout | None = None,
        target_layout: Layout | None = None,
        seen: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """`[B, T, V]` (or `[N, V]`): for each target token, the scores of the one that follows it.

        Teacher forcing: one pass over the shifted target gives every step's scores at once. `seen` hides tokens of
        source and target, as SimCut trains.
        """
        source_seen, target_seen = (None, None) if seen is None else seen
        memory = self.encode(source, source_layout, source_seen)
        hidden = self.states(target, memory, layout_of(source, source_layout), target_layout, seen=target_seen)
        logits: Tensor = self.output(hidden)
        return logits

    def encode(self, source: Tensor, source_layout: Layout | None = None, seen: Tensor | None = None) -> Tensor:
        """`[B, S, D]`: what the decoder will look at."""
        tap_pass(self)
        layout = layout_of(source, source_layout)
        memory: Tensor = self.encoder(self.source(source, layout, seen=seen), layout)
        return memory

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        source_layout: Layout | None = None,
        target_layout: Layout | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """`[B, T, V]`: scores for what follows each target token. With a cache, `target` holds the new tokens alone."""
        logits: Tensor = self.output(self.states(target, memory, source_layout, target_layout, cache))
        return logits

    def states(
        self,
        target: Tensor,
        memory: Tensor,
        source_layout: Layout | None = None,
        target_layout: Layout | None = None,
        cache: Cache | None = None,
        seen: Tensor | None = None,
    ) -> Tensor:
        """`[B, T, D]`: the decoder's last hidden states, before the output weights."""
        tap_pass(self, cache)
        layout = layout_of(target, target_layout)
        memory_layout = layout_of(memory[..., 0], source_layout)
        queries, keys = (layout, layout) if cache is None else cache.plan(layout)
        x = self.target(target, queries, seen=seen)
        hidden: Tensor = self.decoder(x, queries, keys, memory, memory_layout, cache)
        return hidden

    def new_cache(self, batch: int, kind: CacheKind = "growing", capacity: int | None = None) -> Cache:
        """An empty cache for decoding `batch` sequences."""
        like = self.target.tokens.weight
        return new_cache(self.settings, self.settings.decoder_layers, like, batch, kind, capacity)
