"""Mixture of experts: each token goes through the few feed-forwards that a router selects (Shazeer et al. 2017).

Two ways keep the load of the experts even. An auxiliary loss (Fedus et al. 2022: Switch Transformer) is computed for
each sequence, as in DeepSeek-V3, so that it is a sum over sequences and does not depend on how batches are cut. Biases
that are added to the scores for the selection only (Wang et al. 2024) move against the load after each step; see
`regard.training.step`.

N: tokens, X: experts, A: active experts of a token, S: sequences, D: width, F: hidden width of an expert.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.blocks import recording, settings
from regard.blocks.layout import Layout, Padded
from regard.blocks.recording import tap


class Experts(nn.Module):
    """Σ weight · expert(x) over the selected experts, plus the shared experts."""

    taps = recording.EXPERTS_TAPS

    def __init__(
        self, ffn: settings.Experts, width: int, activation: Callable[[Tensor], Tensor], shared: nn.Module | None
    ) -> None:
        super().__init__()
        experts, hidden = ffn.experts, ffn.hidden_for(width)
        self.router = nn.Parameter(torch.empty(experts, width))
        self.gate = nn.Parameter(torch.empty(experts, hidden, width))
        self.up = nn.Parameter(torch.empty(experts, hidden, width))
        self.down = nn.Parameter(torch.empty(experts, width, hidden))
        # A parameter, so that it is saved with the weights; the optimizer does not change it.
        self.bias = None if ffn.bias_rate is None else nn.Parameter(torch.zeros(experts), requires_grad=False)
        self.shared = shared
        self.routing, self.activation = ffn, activation
        self.collected: tuple[tuple[Tensor, Tensor], ...] | None = None
        """Balance loss and load `[X]` of each call; None: nobody collects them."""

    @property
    def inactive(self) -> int:
        """Parameters that a token does not use."""
        matrices = self.gate.numel() + self.up.numel() + self.down.numel()
        return matrices // self.routing.experts * (self.routing.experts - self.routing.active)

    def forward(self, x: Tensor, layout: Layout | None = None) -> Tensor:
        """`[..., D]` in, `[..., D]` out. The layout tells padding from tokens, for the balance."""
        x = tap(self, "input", x)
        x_ND, active = x.flatten(0, -2), self.routing.active
        scores_NX = tap(self, "router", self._scores(x).view(*x.shape[:-1], -1)).flatten(0, -2)
        ranked_NX = scores_NX.detach() if self.bias is None else scores_NX.detach() + self.bias
        chosen_NA = ranked_NX.topk(active, dim=-1).indices
        weights_NA = scores_NX.gather(1, chosen_NA)
        if self.routing.normalized:
            weights_NA = weights_NA / weights_NA.sum(-1, keepdim=True)
        if self.training:
            terms = self._balance(scores_NX, chosen_NA, x.shape, layout)
            if self.collected is not None:  # it is None when activations are recomputed in the backward pass
                self.collected = (*self.collected, terms)
        order = chosen_NA.flatten().argsort(stable=True)
        counts_X = functional.one_hot(chosen_NA, len(self.router)).sum((0, 1))
        sorted_MD = x_ND[order // active]
        hidden_MF = self.activation(grouped(sorted_MD, self.gate, counts_X)) * grouped(sorted_MD, self.up, counts_X)
        hidden_MF = functional.dropout(hidden_MF, self.routing.dropout, self.training)
        out_NAD = grouped(hidden_MF, self.down, counts_X)[order.argsort()].view(*chosen_NA.shape, -1)
        mixed_ND = (out_NAD * (weights_NA * self.routing.scale).to(out_NAD.dtype)[..., None]).sum(1)
        out = mixed_ND.view(x.shape)
        return tap(self, "out", out if self.shared is None else out + self.shared(x))

    def _scores(self, x: Tensor) -> Tensor:
        """`[N, X]`: in float32 or better, since small errors select other experts."""
        with torch.autocast(_autocast_device(x), enabled=False):
            dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
            logits_NX = functional.linear(x.flatten(0, -2).to(dtype), self.router.to(dtype))
        return logits_NX.sigmoid() if self.routing.scores == "sigmoid" else logits_NX.softmax(-1)

    def _balance(
        self, scores_NX: Tensor, chosen_NA: Tensor, shape: torch.Size, layout: Layout | None
    ) -> tuple[Tensor, Tensor]:
        """The auxiliary loss, as a sum over the tokens of all sequences, and the load of each expert.

        Of a sequence of n tokens: n · X · Σᵢ (share of its choices that are expert i) · (mean score of expert i). With
        even loads and scores it is n.
        """
        layout = Padded(1, len(scores_NX)) if layout is None else layout
        device = scores_NX.device
        real = layout.real(device)
        real_N1 = torch.ones_like(scores_NX[:, :1]) if real is None else real.expand(shape[:-1]).reshape(-1, 1)
        sequence_N = layout.sequences(device).flatten()
        used_NX = torch.zeros_like(scores_NX).scatter(1, chosen_NA, 1.0) * real_N1
        shares_NX = scores_NX / scores_NX.sum(-1, keepdim=True) * real_N1
        zeros_SX = scores_NX.new_zeros(layout.count, scores_NX.shape[1])
        used_SX, shares_SX = (zeros_SX.index_add(0, sequence_N, each) for each in (used_NX, shares_NX))
        length_S = used_SX.sum(-1).clamp(min=1) / self.routing.active
        loss = ((used_SX * shares_SX).sum(-1) / length_S).sum() * len(self.router) / self.routing.active
        return loss * self.routing.balance, used_NX.sum(0)


def grouped(x_MI: Tensor, weight_XOI: Tensor, counts_X: Tensor) -> Tensor:
    """`[M, O]`: the first `counts[0]` rows times the first matrix, the next rows times the second, and so on."""
    dtype = autocast_dtype(x_MI)
    if dtype is not None:
        x_MI, weight_XOI = x_MI.to(dtype), weight_XOI.to(dtype)
    if x_MI.device.type == "meta":  # has no counts
        return x_MI @ weight_XOI[0].mT
    if x_MI.dtype == torch.bfloat16 and x_MI.shape[1] % 8 == weight_XOI.shape[1] % 8 == 0:  # what the kernel supports
        return functional.grouped_mm(x_MI, weight_XOI.mT, offs=counts_X.cumsum(0).to(torch.int32))
    parts = torch.split(x_MI, counts_X.tolist())
    return torch.cat([functional.linear(part, weight) for part, weight in zip(parts, weight_XOI, strict=True)])


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """The dtype of products in mixed precision; None: it is off."""
    device = _autocast_device(x)
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def _autocast_device(x: Tensor) -> str:
    """The type of its device; autocast does not know the meta device."""
    return "cpu" if x.device.type == "meta" else x.device.type
