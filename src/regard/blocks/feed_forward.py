"""The feed-forward of a layer: applied to each token by itself."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from regard.blocks import settings
from regard.blocks.recording import tap


def activation(name: settings.Activation) -> Callable[[Tensor], Tensor]:
    """The function behind a name of the settings."""
    functions: dict[settings.Activation, Callable[[Tensor], Tensor]] = {
        "relu": functional.relu,
        "gelu": functional.gelu,
        "gelu-tanh": _gelu_tanh,
        "silu": functional.silu,
        "relu2": _relu_squared,
    }
    return functions[name]


def _gelu_tanh(x: Tensor) -> Tensor:
    """The tanh form of GELU (Hendrycks and Gimpel 2016), which GPT-2 uses."""
    return functional.gelu(x, approximate="tanh")


def _relu_squared(x: Tensor) -> Tensor:
    """So et al. 2021: Primer."""
    return functional.relu(x).square()


class Dense(nn.Module):
    """down(activation(up(x)))."""

    def __init__(self, ffn: settings.Dense, width: int) -> None:
        super().__init__()
        hidden = ffn.hidden_for(width)
        self.up = nn.Linear(width, hidden, bias=ffn.bias)
        self.down = nn.Linear(hidden, width, bias=ffn.bias)
        self.activation = activation(ffn.activation)
        self.dropout = ffn.dropout

    def forward(self, x: Tensor) -> Tensor:
        x = tap(self, "input", x)
        hidden = tap(self, "hidden", self.activation(self.up(x)))
        return tap(self, "out", self.down(functional.dropout(hidden, self.dropout, self.training)))


class Gated(nn.Module):
    """down(activation(gate(x)) · up(x))."""

    def __init__(self, ffn: settings.Gated, width: int) -> None:
        super().__init__()
        hidden = ffn.hidden_for(width)
        self.gate = nn.Linear(width, hidden, bias=ffn.bias)
        self.up = nn.Linear(width, hidden, bias=ffn.bias)
        self.down = nn.Linear(hidden, width, bias=ffn.bias)
        self.activation = activation(ffn.activation)
        self.dropout = ffn.dropout

    def forward(self, x: Tensor) -> Tensor:
        x = tap(self, "input", x)
        hidden = tap(self, "hidden", self.activation(self.gate(x)) * self.up(x))
        return tap(self, "out", self.down(functional.dropout(hidden, self.dropout, self.training)))


def build_feed_forward(ffn: settings.FeedForward, width: int) -> nn.Module:
    return Gated(ffn, width) if isinstance(ffn, settings.Gated) else Dense(ffn, width)
