"""Multi-head attention (Vaswani et al. 2017, section 3.2.2): self-attention and cross-attention."""

from __future__ import annotations

from torch import Tensor, nn

from regard.blocks import settings
from regard.blocks.cache import CrossCache, SelfCache
from regard.blocks.kernels import Scoring, attend
from regard.blocks.norms import build_norm
from regard.blocks.positions import RelativeScores, Signals, rotate
from regard.blocks.recording import tap, tap_attention
from regard.blocks.visibility import Visibility


class Attention(nn.Module):
    """Projects queries, keys and values, attends with every head, and projects the joined heads."""

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
        self.joined: nn.Module | None = None
        """One product for q, k and v of self-attention instead of three; see `regard.models.cpu`."""
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
        """x `[..., D]` attends to itself, or to `memory` if it is given; the result has the shape of x.

        A `SelfCache` adds the keys and values of earlier calls; a `CrossCache` projects the memory once.
        """
        signals = signals or Signals()
        x = tap(self, "input", x)
        if isinstance(cache, CrossCache):
            q = self.queries(x, signals)
            k, v = cache.get(lambda: self._tapped(*self.keys_and_values(x if memory is None else memory, signals)))
        elif memory is not None:
            q, (k, v) = self.queries(x, signals), self._tapped(*self.keys_and_values(memory, signals))
        else:
            q, k, v = self.queries_keys_values(x, signals)
            k, v = self._tapped(k, v)
        q = tap(self, "q", q)
        if isinstance(cache, SelfCache):
            k, v = cache.append(k, v)
        bias = signals.bias
        if self.relative is not None and signals.distances is not None:
            q, bias = self.relative(q, signals.distances, visibility, self.scale)
        dropout = self.dropout if self.training else 0.0
        mixed = attend(q, k, v, visibility, self.scale, bias, self.soft_cap, dropout)
        scoring = Scoring(self.scale, bias, self.soft_cap, dropout)
        mixed = tap(self, "heads", tap_attention(self, q, k, v, visibility, scoring, mixed))
        return tap(self, "out", self.out(mixed.flatten(-2)))

    def _tapped(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return tap(self, "k", k), tap(self, "v", v)

    def queries_keys_values(self, x: Tensor, signals: Signals) -> tuple[Tensor, Tensor, Tensor]:
        """`[..., H, E]`, `[..., G, E]` and `[..., G, V]` of x alone."""
        if self.joined is None:
            return self.queries(x, signals), *self.keys_and_values(x, signals)
        sizes = (self.heads * self.head_size, self.kv_heads * self.head_size, self.kv_heads * self.value_size)
        q, k, v = self.joined(x).split(sizes, dim=-1)
        q, k = self._normed_and_rotated(q, self.q_norm, signals), self._normed_and_rotated(k, self.k_norm, signals)
        return q, k, v.unflatten(-1, (self.kv_heads, self.value_size))

    def queries(self, x: Tensor, signals: Signals) -> Tensor:
        """`[..., H, E]`, rotated if positions are rotary."""
        return self._normed_and_rotated(self.q(x), self.q_norm, signals)

    def keys_and_values(self, source: Tensor, signals: Signals) -> tuple[Tensor, Tensor]:
        """`[..., G, E]` and `[..., G, V]`, the keys rotated if positions are rotary."""
        k = self._normed_and_rotated(self.k(source), self.k_norm, signals)
        return k, self.v(source).unflatten(-1, (self.kv_heads, self.value_size))

    def _normed_and_rotated(self, x: Tensor, norm: nn.Module | None, signals: Signals) -> Tensor:
        x = x.view(*x.shape[:-1], x.shape[-1] // self.head_size, self.head_size)
        x = x if norm is None else norm(x)
        return x if signals.rotation is None else rotate(x, signals.rotation)
