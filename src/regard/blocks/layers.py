"""Layers and stacks: norms, attention, feed-forward, residual connections, encoder and decoder layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from regard.blocks import recording, settings
from regard.blocks.cache import Cache, CrossCache, SelfCache
from regard.blocks.experts import Experts
from regard.blocks.kernels import Scoring, attend
from regard.blocks.layout import Layout, Padded
from regard.blocks.positions import RelativeScores, Rotation, Signals, build_attended, rotate
from regard.blocks.recording import Tapped, TappedStack, is_recorded, tap, tap_attention
from regard.blocks.visibility import Visibility


class RmsNorm(nn.Module):
    """x / √(mean of squares + eps) · weight. 16-bit inputs are squared and averaged in float32."""

    def __init__(self, width: int, eps: float, unit_offset: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps, self.unit_offset = eps, unit_offset
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.weight, 0.0 if self.unit_offset else 1.0)

    def forward(self, x: Tensor) -> Tensor:
        weight = 1 + self.weight if self.unit_offset else self.weight
        return functional.rms_norm(x, weight.shape, weight, self.eps)


def build_norm(norm: settings.Norm, width: int) -> nn.Module:
    if isinstance(norm, settings.RmsNorm):
        return RmsNorm(width, norm.eps, norm.unit_offset)
    return nn.LayerNorm(width, norm.eps, bias=norm.bias)


class Attention(nn.Module):
    """Multi-head self-attention or cross-attention (Vaswani et al. 2017, section 3.2.2)."""

    taps = recording.ATTENTION_TAPS

    def __init__(self, attention: settings.Attention, width: int, relative: bool = False) -> None:
        """`relative` adds the weights that Transformer-XL positions need in each layer."""
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads = attention.heads, attention.kv_heads or attention.heads
        self.head_size = head_size = attention.head_size or width // heads
        self.value_size = value_size = attention.value_size or head_size
        self.q = nn.Linear(width, heads * head_size, bias=attention.bias)
        self.k = nn.Linear(width, kv_heads * head_size, bias=attention.bias)
        self.v = nn.Linear(width, kv_heads * value_size, bias=attention.bias)
        output_bias = attention.bias if attention.output_bias is None else attention.output_bias
        self.out = nn.Linear(heads * value_size, width, bias=output_bias)
        self.joined: nn.Module | None = None
        """One product for q, k and v of self-attention instead of three; see `regard.models.cpu`."""
        norm = attention.qk_norm
        self.joint = attention.qk_norm_joint
        sizes = (head_size * (groups if self.joint else 1) for groups in (heads, kv_heads))
        self.q_norm, self.k_norm = (None if norm is None else build_norm(norm, size) for size in sizes)
        self.relative = RelativeScores(width, heads, head_size) if relative else None
        self.scale = head_size**-0.5 if attention.scale is None else attention.scale
        self.soft_cap, self.dropout = attention.soft_cap, attention.dropout
        self.sinks = nn.Parameter(torch.zeros(heads)) if attention.sinks else None

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
            q, k, v = self.attended(x, signals, cache)
        q = tap(self, "q", q)
        bias = signals.bias
        if self.relative is not None and signals.distances is not None:
            q, bias = self.relative(q, signals.distances, visibility, self.scale)
        scoring = Scoring(self.scale, bias, self.soft_cap, self.dropout if self.training else 0.0, self.sinks)
        mixed = attend(q, k, v, visibility, scoring)
        mixed = tap(self, "heads", tap_attention(self, q, k, v, visibility, scoring, mixed))
        return tap(self, "out", self.out(mixed.flatten(-2)))

    def _tapped(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return tap(self, "k", k), tap(self, "v", v)

    @property
    def cached_sizes(self) -> tuple[int, tuple[int, int]]:
        """Key/value heads of a cache, and the sizes of their keys and values."""
        return self.kv_heads, (self.head_size, self.value_size)

    def attended(self, x: Tensor, signals: Signals, cache: SelfCache | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of x, and keys and values of x and of what the cache holds."""
        q, k, v = self.queries_keys_values(x, signals)
        k, v = self._tapped(k, v)
        return (q, k, v) if cache is None else (q, *cache.append(k, v))

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
        x = norm(x) if norm is not None and self.joint else x
        x = x.view(*x.shape[:-1], x.shape[-1] // self.head_size, self.head_size)
        x = norm(x) if norm is not None and not self.joint else x
        return x if signals.rotation is None else rotate(x, signals.rotation)


class LatentAttention(Attention):
    """Multi-head latent attention (DeepSeek-AI 2024: DeepSeek-V2, section 2.1), for self-attention.

    c = norm(x W_down); keys [c W_k, r] and values c W_v of all heads, where r is a rotated key that the heads share.
    A cache holds c and r only.
    """

    def __init__(self, attention: settings.Attention, width: int, relative: bool = False) -> None:
        super().__init__(attention, width, relative)
        latent = attention.latent
        assert latent is not None
        heads, self.rank, self.rotary = self.heads, latent.rank, latent.rotary
        if latent.query_rank is not None:
            self.q_down = nn.Linear(width, latent.query_rank, bias=attention.bias)
            self.q_down_norm = RmsNorm(latent.query_rank, eps=1e-6)
            self.q = nn.Linear(latent.query_rank, heads * self.head_size, bias=False)
        self.query_rank = latent.query_rank
        self.down = nn.Linear(width, self.rank + self.rotary, bias=attention.bias)
        self.down_norm = RmsNorm(self.rank, eps=1e-6)
        self.k = nn.Linear(self.rank, heads * (self.head_size - self.rotary), bias=False)
        self.v = nn.Linear(self.rank, heads * self.value_size, bias=False)

    @property
    def cached_sizes(self) -> tuple[int, tuple[int, int]]:
        return 1, (self.rotary, self.rank)

    def attended(self, x: Tensor, signals: Signals, cache: SelfCache | None) -> tuple[Tensor, Tensor, Tensor]:
        q = self.q(x if self.query_rank is None else self.q_down_norm(self.q_down(x)))
        plain, turned = q.unflatten(-1, (self.heads, -1)).tensor_split([self.head_size - self.rotary], dim=-1)
        latent, shared = self.down(x).tensor_split([self.rank], dim=-1)
        latent, shared = self.down_norm(latent)[..., None, :], shared[..., None, :]
        if signals.rotation is not None:
            turned, shared = rotate(turned, signals.rotation), rotate(shared, signals.rotation)
        if cache is not None:
            shared, latent = cache.append(shared, latent)
        k, v = (each(latent).view(*latent.shape[:-2], self.heads, -1) for each in (self.k, self.v))
        k = torch.cat([k, shared.expand(*k.shape[:-1], -1)], dim=-1)
        return torch.cat([plain, turned], dim=-1), *self._tapped(k, v)


ACTIVATIONS: dict[settings.Activation, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu-tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
    "relu2": lambda x: functional.relu(x).square(),  # So et al. 2021: Primer
    "gelu-quick": lambda x: x * torch.sigmoid(1.702 * x),  # Hendrycks and Gimpel 2016; CLIP
}


class FeedForward(nn.Module):
    """down(activation(up(x))), or with a gate down(activation(gate(x)) · up(x))."""

    taps = recording.FFN_TAPS

    def __init__(self, ffn: settings.Dense | settings.Gated, width: int) -> None:
        super().__init__()
        hidden = ffn.hidden_for(width)
        self.gate = nn.Linear(width, hidden, bias=ffn.bias) if isinstance(ffn, settings.Gated) else None
        self.up = nn.Linear(width, hidden, bias=ffn.bias)
        self.down = nn.Linear(hidden, width, bias=ffn.bias)
        self.activation = ACTIVATIONS[ffn.activation]
        self.dropout = ffn.dropout

    def forward(self, x: Tensor) -> Tensor:
        x = tap(self, "input", x)
        hidden = self.activation(self.up(x)) if self.gate is None else self.activation(self.gate(x)) * self.up(x)
        hidden = functional.dropout(tap(self, "hidden", hidden), self.dropout, self.training)
        return tap(self, "out", self.down(hidden))


def build_feed_forward(ffn: settings.FeedForward, width: int, layer: int) -> FeedForward | Experts:
    if not isinstance(ffn, settings.Experts):
        return FeedForward(ffn, width)
    gated = settings.Gated(hidden=ffn.dense_hidden, activation=ffn.activation, dropout=ffn.dropout)
    if layer < ffn.first_dense:
        return FeedForward(gated, width)
    # Shared experts are one wider feed-forward.
    shared = FeedForward(gated.changed({"hidden": ffn.shared * ffn.hidden_for(width)}), width) if ffn.shared else None
    return Experts(ffn, width, ACTIVATIONS[ffn.activation], shared)


class Residual(nn.Module):
    """post: norm(x + f(x)); pre: x + f(norm(x)); sandwich: x + after(f(norm(x))); output: x + norm(f(x)).

    Dropout applies to f's output before it is added (Vaswani et al. 2017, section 5.4). Layer scale multiplies it by a
    learned vector (Touvron et al. 2021); stochastic depth omits it for some sequences (Huang et al. 2016).
    """

    def __init__(self, body: settings.Body, drop_path: float = 0.0) -> None:
        super().__init__()
        self.place = body.norm_place
        self.norm = build_norm(body.norm, body.width)
        self.after = build_norm(body.norm, body.width) if body.norm_place == "sandwich" else None
        self.scale = None if body.layer_scale is None else nn.Parameter(torch.full((body.width,), body.layer_scale))
        self.dropout, self.drop_path = body.dropout, drop_path

    def forward(
        self,
        x: Tensor,
        sublayer: Callable[[Tensor], Tensor],
        layout: Layout | None = None,
        stream: Tensor | None = None,
    ) -> Tensor:
        """The result is added to x, or to `stream` if it is given."""
        added = sublayer(self.norm(x) if self.place in ("pre", "sandwich") else x)
        if self.place == "output":
            added = self.norm(added)
        if self.after is not None:
            added = self.after(added)
        added = functional.dropout(added, self.dropout, self.training)
        if self.scale is not None:
            added = added * self.scale
        if self.drop_path and self.training:
            added = added * self._kept(added, layout)
        x = (x if stream is None else stream) + added
        return self.norm(x) if self.place == "post" else x

    def _kept(self, x: Tensor, layout: Layout | None) -> Tensor:
        """Zero for the sequences that skip the sublayer, 1 / (1 − rate) for the others, shaped to multiply x."""
        count = x.shape[0] if layout is None else layout.count
        kept = x.new_empty(count).bernoulli_(1 - self.drop_path) / (1 - self.drop_path)
        if layout is None or isinstance(layout, Padded):
            return kept.view(-1, *[1] * (x.dim() - 1))
        return kept[layout.sequences(x.device)][:, None]


@dataclass(frozen=True)
class View:
    """The inputs that layers of a stack with the same window share in one forward pass."""

    attention: Visibility
    signals: Signals
    memory: Tensor | None = None
    cross: Visibility | None = None


class Layer(Tapped):
    """Self-attention, cross-attention in decoders with a memory, feed-forward; each with a residual connection."""

    taps = (recording.LAYER_TAP,)

    def __init__(self, body: settings.Body, cross: bool, relative: bool, drop_path: float, number: int) -> None:
        """`relative`: whether attention has the weights of Transformer-XL positions."""
        super().__init__()
        kind = Attention if body.attention.latent is None else LatentAttention
        self.attention = kind(body.attention, body.width, relative)
        self.attention_residual = Residual(body, drop_path)
        self.cross = Attention(body.attention, body.width) if cross else None
        self.cross_residual = Residual(body, drop_path) if cross else None
        self.ffn = build_feed_forward(body.ffn, body.width, number)
        self.ffn_residual = Residual(body, drop_path)
        self.parallel = body.parallel

    def forward(
        self, x: Tensor, view: View, cache: SelfCache | None = None, cross_cache: CrossCache | None = None
    ) -> Tensor:
        """`[..., D]` in, `[..., D]` out."""
        layout, given = view.attention.queries, x
        x = self.attention_residual(x, lambda y: self.attention(y, view.attention, view.signals, cache=cache), layout)
        x = tap(self, "attention.residual", x)
        cross, cross_view = self.cross, view.cross
        if cross is not None and cross_view is not None and self.cross_residual is not None:
            x = self.cross_residual(x, lambda y: cross(y, cross_view, memory=view.memory, cache=cross_cache), layout)
            x = tap(self, "cross.residual", x)
        ffn = partial(self.ffn, layout=layout) if isinstance(self.ffn, Experts) else self.ffn
        return tap(self, "residual", self.ffn_residual(given if self.parallel else x, ffn, layout, stream=x))


class Stack(TappedStack):
    """The layers of a Transformer."""

    __getitem__: Callable[..., Layer]

    def __init__(
        self,
        body: settings.Body,
        position: settings.TextPosition,
        causal: bool = False,
        cross: bool = False,
        depth: int | None = None,
    ) -> None:
        depth = depth or body.depth
        relative = isinstance(position, settings.TransformerXL)
        rates = [body.stochastic_depth * i / max(depth - 1, 1) for i in range(depth)]
        super().__init__(Layer(body, cross, relative, rate, i) for i, rate in enumerate(rates))
        self.causal, self.windows = causal, body.attention.windows(depth)
        self.position = build_attended(position, body.width, body.attention.heads, body.rotated_size, causal)
        self.norm = build_norm(body.norm, body.width) if body.has_final_norm else None
        self.recompute = False
        """Whether training stores only the input of each layer and recomputes the rest in the backward pass (Chen et
        al. 2016): about a third more computation for a fraction of the memory, with the same results."""

    def new_cache(self, batch: int, longest: int | None = None, steps: int | None = None, beams: int = 1) -> Cache:
        """Return an empty cache for `batch` sequences. The other arguments are for searches; see `Cache`."""
        one = self[0].attention
        return Cache(len(self), batch, *one.cached_sizes, next(self.parameters()), longest, steps, beams)

    def forward(
        self,
        x: Tensor,
        queries: Layout,
        keys: Layout | None = None,
        memory: Tensor | None = None,
        memory_layout: Layout | None = None,
        cache: Cache | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """`[..., D]` through every layer.

        `keys` is the layout from `Cache.plan`; without a cache it equals `queries`. `rotation` is for images, whose
        positions are not those of a sequence.
        """
        cross: Visibility | None = None
        if memory_layout is not None and cache is not None:
            assert isinstance(queries, Padded)
            cross = cache.cross_visibility(queries, memory_layout)
        elif memory_layout is not None:
            cross = Visibility(queries, memory_layout)
        if cache is not None:
            cache.commit()  # nothing raises any more
        views: dict[int | None, View] = {}
        for window in dict.fromkeys(self.windows):
            attention = Visibility(queries, keys or queries, self.causal, window)
            if cache is not None and cache.mask is not None:
                attention = replace(attention, mask=cache.mask, beams=not cache.fixed)
            signals = Signals(rotation=rotation)
            if rotation is None:
                signals = self.position.signals(attention, x.device, x.dtype)
            views[window] = View(attention, signals, memory, cross)
        x = tap(self, "residual", x)
        recompute = self.recompute and self.training and torch.is_grad_enabled() and cache is None
        recompute = recompute and not is_recorded(self)  # or values would be recorded twice
        for i, layer in enumerate(self):
            view = views[self.windows[i]]
            if recompute:
                x = _recomputed(layer, x, view)
                continue
            own, other = (None, None) if cache is None else (cache.layers[i], cache.cross[i])
            x = layer(x, view, own, other)
        return tap(self, "out", x if self.norm is None else self.norm(x))


def _recomputed(layer: Layer, x: Tensor, view: View) -> Tensor:
    """Runs one layer with activation checkpointing; dropout draws the same numbers both times."""

    def forward(x: Tensor) -> Tensor:
        # Without cached masks, or the second pass would read those of the first.
        bias, cross = view.signals.bias, view.cross
        signals = view.signals if bias is None else view.signals._replace(bias=replace(bias, memo={}))
        cross = None if cross is None else replace(cross, memo={})
        return layer(x, View(replace(view.attention, memo={}), signals, view.memory, cross))

    out: Tensor = checkpoint(forward, x, use_reentrant=False)
    return out


def set_recompute(model: nn.Module, on: bool) -> None:
    for module in model.modules():
        if isinstance(module, Stack):
            module.recompute = on
