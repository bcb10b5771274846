"""The decoder of GPT and its successors: continues a sequence."""

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


class Decoder(nn.Module):
    """A causal stack: each token sees itself and those before it."""

    def __init__(self, model: settings.Decoder) -> None:
        super().__init__()
        self.settings = model
        tokens = nn.Embedding(model.vocabulary, model.width)
        norm = model.norm if model.embedding_norm else None
        self.embedding = TextEmbedding(tokens, model.position, model.embedding_scale, norm, model.dropout)
        self.decoder = Stack(stack_plan(model, model.position, causal=True))
        self.output = Output(tokens if model.tied else None, model.vocabulary, model.width, model.output_bias)

    def forward(
        self, tokens: Tensor, layout: Layout | None = None, cache: Cache | None = None, prefix: Tensor | None = None
    ) -> Tensor:
        """`[B, T, V]` (or `[N, V]`): for each token, the scores of the one that follows it.

        With a cache, `tokens` are the new ones alone. `prefix` is the number of tokens at the start of each sequence
        that all may see, later ones too; with a cache, the first call must hold all of it.
        """
        logits: Tensor = self.output(self.states(tokens, layout, cache, prefix))
        return logits

    def states(
        self, tokens: Tensor, layout: Layout | None = None, cache: Cache | None = None, prefix: Tensor | None = None
    ) -> Tensor:
        """`[B, T, D]`: the last hidden states, before the output weights."""
        tap_pass(self, cache)
        layout = layout_of(tokens, layout)
        queries, keys = (layout, layout) if cache is None else cache.plan(layout, prefix)
        x = self.embedding(tokens, queries)
        hidden: Tensor = self.decoder(x, queries, keys, cache=cache, prefix=prefix)
        return hidden

    def new_cache(self, batch: int, kind: CacheKind = "growing", capacity: int | None = None) -> Cache:
        """An empty cache for continuing `batch` sequences."""
        like = self.embedding.tokens.weight
        return new_cache(self.settings, self.settings.depth, like, batch, kind, capacity)
