"""The encoder of BERT and its successors: reads a sequence, every token seeing every other."""

from __future__ import annotations

from torch import Tensor, nn

from regard.blocks.embedding import TextEmbedding
from regard.blocks.layout import Layout, layout_of
from regard.blocks.stack import Stack
from regard.models import settings
from regard.models.heads import build_head, name_heads
from regard.models.plan import stack_plan


class Encoder(nn.Module):
    """Gives hidden states; `heads[name](hidden, layout)` turns them into answers."""

    def __init__(self, model: settings.Encoder) -> None:
        super().__init__()
        self.settings = model
        tokens = nn.Embedding(model.vocabulary, model.width)
        norm = model.norm if model.embedding_norm else None
        self.embedding = TextEmbedding(
            tokens, model.position, model.embedding_scale, norm, model.dropout, model.segments
        )
        self.encoder = Stack(stack_plan(model, model.position))
        self.heads = name_heads(
            {name: build_head(head, model.width, model.norm, tokens) for name, head in model.heads.items()}
        )

    def forward(self, tokens: Tensor, layout: Layout | None = None, segments: Tensor | None = None) -> Tensor:
        """`[B, T, D]` (or `[N, D]`): one contextual vector for each token."""
        layout = layout_of(tokens, layout)
        hidden: Tensor = self.encoder(self.embedding(tokens, layout, segments), layout)
        return hidden
