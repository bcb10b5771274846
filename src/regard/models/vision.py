"""The vision Transformer: reads an image as a sequence of patches."""

from __future__ import annotations

from torch import Tensor, nn

from regard.blocks.embedding import PatchEmbedding
from regard.blocks.layout import Padded
from regard.blocks.positions.image import build_grid_position
from regard.blocks.stack import Stack
from regard.models import settings
from regard.models.heads import build_head, name_heads
from regard.models.plan import stack_plan


class Vision(nn.Module):
    """Gives hidden states; `heads[name](hidden)` turns them into answers."""

    def __init__(self, model: settings.Vision) -> None:
        super().__init__()
        self.settings = model
        position = build_grid_position(model.position, model.grid, model.width, model.head_size, model.class_token)
        self.embedding = PatchEmbedding(model.channels, model.patch, model.width, position, model.dropout)
        self.encoder = Stack(stack_plan(model))
        self.heads = name_heads({name: build_head(head, model.width, model.norm) for name, head in model.heads.items()})

    def forward(self, images: Tensor) -> Tensor:
        """`[B, T, D]` from `[B, C, height, width]`: the class token's vector, where there is one, then each patch's."""
        x_BTD = self.embedding(images)
        grid = self.embedding.grid(images)
        rotation = self.embedding.position.rotation(grid, x_BTD.device, x_BTD.dtype)
        hidden: Tensor = self.encoder(x_BTD, Padded(*x_BTD.shape[:2]), rotation=rotation)
        return hidden
