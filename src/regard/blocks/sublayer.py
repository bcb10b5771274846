"""Add & norm: how a sublayer (attention or feed-forward) joins the residual stream."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.blocks import settings
from regard.blocks.layout import Layout, Padded
from regard.blocks.norms import build_norm


class Residual(nn.Module):
    """post: norm(x + f(x)); pre: x + f(norm(x)); sandwich: x + after(f(norm(x))).

    Dropout falls on f's output before it is added (Vaswani et al. 2017, section 5.4). Layer scale multiplies it by a
    learned vector (Touvron et al. 2021); stochastic depth leaves it out for some sequences (Huang et al. 2016).
    """

    def __init__(
        self,
        norm: settings.Norm,
        place: settings.NormPlace,
        width: int,
        dropout: float = 0.0,
        layer_scale: float | None = None,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.place = place
        self.norm = build_norm(norm, width)
        self.after = build_norm(norm, width) if place == "sandwich" else None
        self.scale = None if layer_scale is None else nn.Parameter(torch.full((width,), layer_scale))
        self.dropout = dropout
        self.drop_path = drop_path

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor], layout: Layout | None = None) -> Tensor:
        added = sublayer(x if self.place == "post" else self.norm(x))
        if self.after is not None:
            added = self.after(added)
        added = functional.dropout(added, self.dropout, self.training)
        if self.scale is not None:
            added = added * self.scale
        if self.drop_path and self.training:
            added = added * self._kept(added, layout)
        x = x + added
        return self.norm(x) if self.place == "post" else x

    def _kept(self, x: Tensor, layout: Layout | None) -> Tensor:
        """Zero for the sequences that skip the sublayer, 1 / (1 − rate) for the others, shaped to multiply x."""
        count = x.shape[0] if layout is None else layout.count
        kept = x.new_empty(count).bernoulli_(1 - self.drop_path) / (1 - self.drop_path)
        if layout is None or isinstance(layout, Padded):
            return kept.view(-1, *[1] * (x.dim() - 1))
        return kept[layout.sequences(x.device)][:, None]
