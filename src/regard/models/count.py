"""Counting a model from its settings, before anything is allocated: parameters, FLOPs, memory. No torch in here.

The conventions, so that a figure can be compared with another's:

- **Parameters**: every trained value once; a matrix that several places share counts once, under the first of them.
- **FLOPs**: a multiply-add is two. Matrix products are counted, nothing else (norms, activations, softmax and look-ups
  are a per cent or two). A weight costs 2 for each token that it meets; attention costs 2 · heads · (key size + value
  size) for each query and key, and *a causal mask is not discounted*, as is usual; a window is. Training is three times
  the forward pass: backward multiplies twice, by weights and by inputs; nothing is recomputed.
- **Memory**: weights and gradients in `dtype`; AdamW's two moments in float32, and where `dtype` has 16 bits also the
  float32 copy of the weights that it updates (Rajbhandari et al. 2020: 16 bytes a parameter in all). Activations as
  `regard.models.activations` says. The cache holds keys and values of every layer in `dtype`; a window bounds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from regard.blocks.settings import Learned, TransformerXL
from regard.errors import SettingsError
from regard.models.activations import FLOAT32, activation_bytes
from regard.models.parameters import Parameter, parameters, tied_outputs
from regard.models.settings import Decoder, EncoderDecoder, ModelSettings, Vision

Dtype: TypeAlias = Literal["float64", "float32", "bfloat16", "float16"]
BYTES: dict[Dtype, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}

USUAL_LENGTH = 512
"""The length that is counted with where the settings do not bound it."""


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of one sequence, and a token's share of them.

    For an encoder-decoder, a sequence is a source and a target of the same length, a token one of each.
    """

    length: int
    """Tokens of the sequence."""
    weights: int
    """Of the forward pass: products with weights."""
    scores: int
    """Of the forward pass: scores of queries and keys, and the mix of values."""

    @property
    def sequence(self) -> int:
        """Forward, for the whole sequence."""
        return self.weights + self.scores

    @property
    def forward(self) -> float:
        """Forward, for a token."""
        return self.sequence / self.length

    @property
    def training(self) -> float:
        """Forward and backward, for a token."""
        return 3 * self.forward


@dataclass(frozen=True)
class Memory:
    """Bytes on one device, if it holds everything."""

    weights: int
    gradients: int
    optimizer: int
    """AdamW's moments, and the float32 weights where `dtype` has 16 bits."""
    activations: int
    """What the forward pass keeps for the backward pass."""
    cache_token: int
    """Keys and values of one more token that a decoder has written; 0 for models that do not write."""
    cache: int
    """Keys and values of the whole batch at the given length, an encoder-decoder's source included."""

    @property
    def training(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations

    @property
    def inference(self) -> int:
        """Weights and cache; what is computed on the way is small beside them."""
        return self.weights + self.cache


@dataclass(frozen=True)
class Count:
    """What a model costs."""

    parameters: int
    parts: dict[str, int]
    """Parameters by part, in the order of the modules; they sum to `parameters`."""
    flops: Flops
    memory: Memory
    length: int
    batch: int
    dtype: Dtype


def count(settings: ModelSettings, length: int | None = None, batch: int = 1, dtype: Dtype = "bfloat16") -> Count:
    """Parameters, FLOPs and memory of a model, from its settings alone.

    `length` is the number of tokens of a sequence (none: the longest that learned positions allow, or 512; a vision
    model's follows from its image), `batch` the number of sequences, `dtype` that of weights and activations.
    """
    if not isinstance(settings, ModelSettings):
        raise SettingsError(f"count takes the settings of a model, not {settings!r}; give regard.preset(name)")
    if dtype not in BYTES:
        raise SettingsError(f"dtype ({dtype}) is not known; choose one of {', '.join(BYTES)}")
    length = _length(settings, length)
    if batch < 1:
        raise SettingsError(f"batch ({batch}) must be at least 1; count one sequence or more")
    entries = parameters(settings)
    total = sum(entry.size for entry in entries)
    return Count(
        parameters=total,
        parts=_parts(entries),
        flops=Flops(length, _weight_flops(settings, entries, length), _score_flops(settings, length)),
        memory=_memory(settings, total, length, batch, dtype),
        length=length,
        batch=batch,
        dtype=dtype,
    )


def _length(settings: ModelSettings, length: int | None) -> int:
    if isinstance(settings, Vision):
        if length not in (None, settings.tokens):
            raise SettingsError(
                f"length ({length}) must be {settings.tokens}, which follows from image and patch; change image instead"
            )
        return settings.tokens
    longest = settings.position.length if isinstance(settings.position, Learned) else None
    if length is None:
        return longest or USUAL_LENGTH
    if length < 1:
        raise SettingsError(f"length ({length}) must be at least 1; count one token or more")
    if longest is not None and length > longest:
        raise SettingsError(f"length ({length}) is beyond position.length ({longest}); set position.length={length}")
    return length


def _parts(entries: tuple[Parameter, ...]) -> dict[str, int]:
    parts: dict[str, int] = {}
    for entry in entries:
        parts[entry.part] = parts.get(entry.part, 0) + entry.size
    return parts


# -------------------------------------------------------------------------------------------------------------- FLOPs


def _weight_flops(settings: ModelSettings, entries: tuple[Parameter, ...], length: int) -> int:
    times = {"token": length, "memory": length, "sequence": 1, "other": 0}
    patches = settings.grid[0] * settings.grid[1] if isinstance(settings, Vision) else 0
    products = 0
    for entry in entries:
        if entry.use == "patch":
            products += entry.size * patches
        elif entry.use == "distance":
            products += entry.size * _sight(settings, length, causal=entry.name.startswith("decoder")).distances
        else:
            products += entry.size * times[entry.use]
    if not isinstance(settings, Vision):
        vocabulary = settings.target_size if isinstance(settings, EncoderDecoder) else settings.vocabulary
        products += tied_outputs(settings) * vocabulary * settings.width * length
    return 2 * products


def _score_flops(settings: ModelSettings, length: int) -> int:
    """Self-attention of every layer, and cross-attention, which has neither window nor positions."""
    both_ways, causal = _sight(settings, length, causal=False), _sight(settings, length, causal=True)
    plain = settings.head_size + settings.value_size
    relative = settings.head_size if isinstance(settings.position, TransformerXL) else 0
    encoder = both_ways.keys * plain + both_ways.distances * relative
    decoder = causal.keys * plain + causal.distances * relative
    match settings:
        case EncoderDecoder():
            multiplied = settings.depth * encoder + settings.decoder_layers * (decoder + length * plain)
        case Decoder():
            multiplied = settings.depth * decoder
        case _:
            multiplied = settings.depth * encoder
    return 2 * length * settings.attention.heads * multiplied


class _Sight(NamedTuple):
    """What one query is compared with."""

    keys: int
    distances: int


def _sight(settings: ModelSettings, length: int, causal: bool) -> _Sight:
    """A causal mask hides half of the keys, but they are computed with all the same; what a window hides is not."""
    reach = min(length, settings.attention.window or length)
    if causal:
        return _Sight(keys=reach, distances=reach)
    return _Sight(keys=min(length, 2 * reach - 1), distances=2 * reach - 1)


# ------------------------------------------------------------------------------------------------------------- memory


def _memory(settings: ModelSettings, total: int, length: int, batch: int, dtype: Dtype) -> Memory:
    element = BYTES[dtype]
    master_copy = FLOAT32 if element < FLOAT32 else 0
    written, cross = _cache_layers(settings)
    token = settings.kv_heads * (settings.head_size + settings.value_size) * element
    held = min(length, settings.attention.window or length)
    return Memory(
        weights=total * element,
        gradients=total * element,
        optimizer=total * (2 * FLOAT32 + master_copy),
        activations=batch * activation_bytes(settings, length, element),
        cache_token=written * token,
        cache=batch * token * (written * held + cross * length),
    )


def _cache_layers(settings: ModelSettings) -> tuple[int, int]:
    """Layers that keep what was written, and layers that keep the source's keys and values."""
    match settings:
        case EncoderDecoder():
            return settings.decoder_layers, settings.decoder_layers
        case Decoder():
            return settings.depth, 0
        case _:
            return 0, 0
