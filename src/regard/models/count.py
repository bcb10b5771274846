"""Counts a model without allocating it: parameters, FLOPs and memory.

The model is built on the meta device, which has shapes and no memory. The conventions:

- **Parameters**: every trained value once. A tied matrix counts once, under the first module that has it.
- **FLOPs**: a multiply-add is two. Only matrix products count; norms, activations, softmax and embeddings are one or
  two per cent more. A weight costs 2 for each token, an expert's only for tokens that select it; attention costs
  2 · heads · (key size + value size) for each query and key. A causal mask is *not* discounted, as is usual; a window
  is. Training costs three forward passes.
- **Memory**: weights and gradients in `dtype`; AdamW's two moments in float32, and a float32 copy of 16-bit weights
  (Rajbhandari et al. 2020: 16 bytes per parameter). Activations are the tensors that autograd saves on a GPU. The
  cache holds keys and values of every layer in `dtype`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean
from typing import TYPE_CHECKING, Literal, TypeAlias

from regard.blocks.settings import Body, TransformerXL
from regard.errors import SettingsError
from regard.models.settings import (
    AnyModel,
    AnyVision,
    Convolutional,
    Decoder,
    Elmo,
    ModelSettings,
    ResNet,
    Seq2Seq,
    Vision,
    reach,
)
from regard.settings import parse

if TYPE_CHECKING:  # The command line imports this module, and its help must not import torch.
    from regard.models.build import Model

Dtype: TypeAlias = Literal["float64", "float32", "bfloat16", "float16"]
BYTES: dict[Dtype, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
LARGEST = 2**24
"""The largest batch and length; PyTorch's sizes have 64 bits."""
DEFAULT_LENGTH = 512
"""The sequence length where the settings give no limit."""


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of one sequence. For an encoder-decoder: a source and a target of the same length."""

    length: int
    """Tokens in the sequence."""
    weights: int
    """Forward pass: products with weights."""
    scores: int
    """Forward pass: products of queries with keys, and of attention weights with values."""

    @property
    def sequence(self) -> int:
        """Forward pass of the sequence."""
        return self.weights + self.scores

    @property
    def forward(self) -> float:
        """Forward pass, per token."""
        return self.sequence / self.length

    @property
    def training(self) -> float:
        """Forward and backward pass, per token."""
        return 3 * self.forward


@dataclass(frozen=True)
class Memory:
    """Bytes on one device that holds everything."""

    weights: int
    gradients: int
    optimizer: int
    """AdamW's moments, and the float32 weights if `dtype` has 16 bits."""
    activations: int
    """Tensors that the forward pass saves for the backward pass."""
    cache_token: int
    """Keys and values of one more decoded token; 0 for models that do not decode."""
    cache: int
    """Keys and values of the whole batch at the given length, including an encoder-decoder's source."""

    @property
    def training(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations

    @property
    def inference(self) -> int:
        """Weights and cache. Temporary tensors are small in comparison."""
        return self.weights + self.cache


@dataclass(frozen=True)
class Count:
    """The size and the cost of a model."""

    parameters: int
    active: int
    """Parameters that a token uses: all but those of the experts that are not selected."""
    parts: dict[str, int]
    """Parameters by part: `encoder.attention`, `heads.label`; layers are summed."""
    tensors: dict[str, tuple[int, ...]]
    """The shape of every parameter."""
    flops: Flops
    memory: Memory
    length: int
    batch: int
    dtype: Dtype


def count(settings: ModelSettings, length: int | None = None, batch: int = 1, dtype: Dtype = "bfloat16") -> Count:
    """Count a model at `length` tokens, by default all learned positions, or 512. Example: `regard.count(settings)`."""
    import torch

    from regard.blocks.experts import Experts
    from regard.models.activations import activation_bytes
    from regard.models.build import build

    if dtype not in BYTES:
        raise SettingsError(f"dtype ({dtype}) is not known; choose one of {', '.join(BYTES)}")
    for name, value in (("batch", batch), ("length", 1 if length is None else length)):
        if not 0 < value <= LARGEST:
            raise SettingsError(f"{name} ({value}) must be from 1 to {LARGEST:,}")
    model = build(settings, "meta", getattr(torch, dtype))
    length = _length(settings, length)
    parts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        parts[_part(name)] += parameter.numel()
    element, total = BYTES[dtype], parts.total()
    token, kept = _cache_sizes(settings, length)
    memory = Memory(
        weights=total * element,
        gradients=total * element,
        optimizer=total * (12 if element < 4 else 8),
        activations=activation_bytes(model, length, batch),
        cache_token=token * element,
        cache=batch * kept * element,
    )
    inactive = sum(module.inactive for module in model.modules() if isinstance(module, Experts))
    return Count(
        parameters=total,
        active=total - inactive,
        parts=dict(parts),
        tensors={name: tuple(parameter.shape) for name, parameter in model.named_parameters()},
        flops=Flops(length, *map(round, _forward_flops(settings, _products(model), length, length))),
        memory=memory,
        length=length,
        batch=batch,
        dtype=dtype,
    )


def _cache_sizes(settings: ModelSettings, length: int) -> tuple[int, int]:
    """Values that a decoder keeps for one more token, and for a source and a target of `length`."""
    if isinstance(settings, Body):
        written, cross = settings.depth if isinstance(settings, Decoder) else 0, 0
        if isinstance(settings, Seq2Seq):
            written = cross = settings.decoder_layers
        token = memory = settings.kv_heads * (settings.head_size + settings.value_size)
        if latent := settings.attention.latent:
            token = latent.rank + latent.rotary
        return written * token, length * (written * token + cross * memory)
    if isinstance(settings, Elmo | AnyVision):
        return 0, 0
    # The states of each layer, and keys and values of the source.
    states = settings.kernel - 1 if isinstance(settings, Convolutional) else 2
    return 0, settings.width * (states * settings.decoder_layers + 2 * length)


def training_flops(settings: ModelSettings, examples: float, tokens: float, source_tokens: float = 0) -> float:
    """Return the FLOPs of training on `examples` with `tokens` in total, without padding.

    `tokens` are target tokens for an encoder-decoder, whose sources have `source_tokens`; they are ignored for images.
    Attention counts as if all examples had the mean length, which is slightly too low.
    """
    if examples <= 0:
        return 0.0
    target = settings.tokens if isinstance(settings, AnyVision) else tokens / examples
    products = _cached_products(settings.model_dump_json(exclude_none=True))
    return 3 * examples * sum(_forward_flops(settings, products, source_tokens / examples, target))


def _length(settings: ModelSettings, length: int | None) -> int:
    if isinstance(settings, AnyVision):
        if length not in (None, settings.tokens):
            raise SettingsError(f"length ({length}) must be {settings.tokens}, the number of patches; change image")
        return settings.tokens
    longest = reach(settings)
    if length is None:
        return longest or DEFAULT_LENGTH
    if longest is not None and length > longest:
        raise SettingsError(f"length ({length}) is beyond position.length ({longest}); set position.length={length}")
    return length


def _part(name: str) -> str:
    """Return the part that a parameter belongs to: its name without layer number and tensor."""
    words = name.split(".")
    if words[0] == "heads":
        return f"heads.{words[1]}"
    if words[0] == "output":
        return "output"
    if not words[1].isdigit():
        return f"{words[0]}.{words[1]}"
    if len(words) == 3:
        return words[0]
    if words[2].endswith("_residual"):
        return f"{words[0]}.{'scale' if words[3] == 'scale' else 'norm'}"
    return f"{words[0]}.{'relative' if words[3] == 'relative' else words[2]}"


@lru_cache(maxsize=8)
def _cached_products(settings: str) -> Counter[str]:
    from regard.models.build import build

    return _products(build(parse(AnyModel, json.loads(settings)), "meta"))


def _products(model: Model) -> Counter[str]:
    """Return the multiply-adds with weights, by the unit that they are proportional to."""
    import torch
    from torch import nn
    from torch.utils.flop_counter import FlopCounterMode

    from regard.blocks.experts import Experts
    from regard.models.families import Output, PoolingHead

    if isinstance(model.settings, ResNet):
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(1, model.settings.channels, *model.settings.image, device="meta"))
        return Counter(image=counter.get_total_flops() // 2)
    products: Counter[str] = Counter()
    for name, module in model.named_modules():
        stack = name.partition(".")[0]
        unit = "source" if stack == "encoder" and isinstance(model.settings, Seq2Seq) else "target"
        if isinstance(module, Output):
            products[unit] += module.matrix.numel()
        elif isinstance(module, Experts):
            used = sum(each.numel() for each in (module.router, module.gate, module.up, module.down)) - module.inactive
            products[unit] += used
        elif isinstance(module, nn.Conv2d):
            products["patch" if isinstance(model.settings, Vision) else unit] += module.weight.numel()
        elif isinstance(module, nn.RNNBase | nn.Conv1d):
            products[unit] += sum(x.numel() for key, x in module.named_parameters() if key.startswith("weight"))
        elif isinstance(module, nn.Linear):
            if name.endswith("relative.project"):
                unit = f"{stack} distance"
            elif name.endswith(("cross.k", "cross.v")):
                unit = "source"
            elif isinstance(model.get_submodule(name.rpartition(".")[0]), PoolingHead):
                unit = "sequence"
            products[unit] += module.weight.numel()
    return products


def _forward_flops(
    settings: ModelSettings, products: Counter[str], source: float, target: float
) -> tuple[float, float]:
    """Return the FLOPs of one sequence: with weights, and of attention scores and values."""
    if not isinstance(settings, Body):
        used = 0 if settings.attention.score in ("last", "sum") else min(source, settings.attention.window or source)
        times: dict[str, float] = {"source": source, "target": target, "image": 1, "sequence": 1}
        weights = sum(size * times[unit] for unit, size in products.items())
        layers = settings.decoder_layers if isinstance(settings, Convolutional) else 1
        return 2 * weights, 4 * settings.width * target * used * layers
    two_stacks = isinstance(settings, Seq2Seq)
    encoder = _visible(settings.attention.windows(settings.depth), source if two_stacks else target, causal=False)
    depth = settings.decoder_layers if isinstance(settings, Seq2Seq) else settings.depth
    decoder = _visible(settings.attention.windows(depth), target, causal=True)
    times = {
        "source": source,
        "target": target,
        "sequence": 1,
        "patch": settings.grid[0] * settings.grid[1] if isinstance(settings, Vision) else 0,
        "encoder distance": encoder[1],
        "decoder distance": decoder[1],
    }
    per_key = settings.head_size + settings.value_size
    per_distance = settings.head_size if isinstance(settings.position, TransformerXL) else 0
    in_encoder = encoder[0] * per_key + encoder[1] * per_distance
    in_decoder = decoder[0] * per_key + decoder[1] * per_distance
    if isinstance(settings, Seq2Seq):
        cross = source * per_key  # without a window and positions
        scores = settings.depth * source * in_encoder + settings.decoder_layers * target * (in_decoder + cross)
    else:
        scores = settings.depth * target * (in_decoder if isinstance(settings, Decoder) else in_encoder)
    weights = sum(size * times[unit] for unit, size in products.items())
    return 2 * weights, 2 * settings.attention.heads * scores


def _visible(windows: Sequence[int | None], length: float, causal: bool) -> tuple[float, float]:
    """Return how many keys and how many distances each query is compared with, in the mean of the layers."""
    reaches = [min(length, window or length) for window in windows]
    if causal:
        return fmean(reaches), fmean(reaches)
    both_ways = [max(2 * reach - 1, 0) for reach in reaches]
    return fmean(min(length, both) for both in both_ways), fmean(both_ways)
