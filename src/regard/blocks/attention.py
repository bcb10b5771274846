"""Multi-head attention (Vaswani et al. 2017, section 3.2.2): self, masked or cross, by what it is given."""

from __future__ import annotations

from torch import Tensor, nn

from regard.blocks import settings
from regard.blocks.attend import attend
from regard.blocks.cache import CrossCache, SelfCache
from regard.blocks.norms import build_norm
from regard.blocks.positions.position import Signals
from regard.blocks.positions.relative import RelativeScores
from regard.blocks.positions.rotary import rotate
from regard.blocks.visibility import Visibility


class Attention(nn.Module):
    """Projects queries, keys and values, attends with every head, joins the heads and projects back."""

    def __init__(self, attention: settings.Attention, width: int, relative: bool = False) -> None:
        """`relative` adds the weights that Transformer-XL positions need in each layer."""
        super().__init__()
        heads, kv_heads = attention.heads, attention.kv_heads or attention.heads
        head_size = attention.head_size or width // heads
        value_size = attention.value_size or head_size
        self.heads, self.kv_heads = heads, kv_heads
        self.head_size, self.value_size = head_size, value_size
        self.q = nn.Linear(width, heads * head_size, bias=attention.bias)
        self.k = nn.Linear(width, kv_heads * head_size, bias=attention.bias)
        self.v = nn.Linear(width, kv_heads * value_size, bias=attention.bias)
        output_bias = attention.bias if attention.output_bias is None else attention.output_bias
        self.out = nn.Linear(heads * value_size, width, bias=output_bias)
        self.q_norm = None if attention.qk_norm is None else build_norm(attention.qk_norm, head_size)
        self.k_norm = None if attention.qk_norm is None else build_norm(attention.qk_norm, head_size)
        self.relative = RelativeScores(width, heads, head_size) if relative else None
        self.scale = head_size**-0.5 if attention.scale is None else attention.scale
        self.soft_cap = attention.soft_cap
        self.dropout = attention.dropout

    def forward(
        self,
        x: Tensor,
        visibility: Visibility,
        signals: Signals | None = None,
        memory: Tensor | None = None,
        cache: SelfCache | CrossCache | None = None,
    ) -> Tensor:
        """x `[..., D]` attends to itself, or to `memory` where it is given; the result has the shape of x.

        A `SelfCache` puts the keys and values of earlier calls before those of x; a `CrossCache` keeps the memory's,
        so that they are projected once.
        """
        signals = signals or Signals()
        q = self.q(x).unflatten(-1, (self.heads, self.head_size))
        q = q if self.q_norm is None else self.q_norm(q)
        q = q if signals.rotation is None else rotate(q, signals.rotation)
        if isinstance(cache, CrossCache):
            k, v = cache.get(lambda: self.keys_and_values(x if memory is None else memory, signals))
        else:
            k, v = self.keys_and_values(x if memory is None else memory, signals)
            k, v = (k, v) if cache is None else cache.append(k, v)
        bias = signals.bias
        if self.relative is not None and signals.distances is not None:
            q, bias = self.relative(q, signals.distances, visibility, self.scale)
        dropout = self.dropout if self.training else 0.0
        mixed = attend(q, k, v, visibility, self.scale, bias, self.soft_cap, dropout)
        out: Tensor = self.out(mixed.flatten(-2))
        return out

    def keys_and_values(self, source: Tensor, signals: Signals) -> tuple[Tensor, Tensor]:
        """`[..., G, E]` and `[..., G, V]`, the keys turned where positions are rotary."""
        k = self.k(source).unflatten(-1, (self.kv_heads, self.head_size))
        k = k if self.k_norm is None else self.k_norm(k)
        k = k if signals.rotation is None else rotate(k, signals.rotation)
        return k, self.v(source).unflatten(-1, (self.kv_heads, self.value_size))
