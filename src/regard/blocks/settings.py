"""Settings of the blocks. Each variant is a type; recipes select it by `kind`. No torch at import."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from regard.settings import Settings

Positive: TypeAlias = Annotated[int, Field(gt=0, lt=2**31)]
Depth: TypeAlias = Annotated[int, Field(gt=0, le=1000)]
"""A number of layers. Each takes time to build, even without memory."""
Rate: TypeAlias = Annotated[float, Field(ge=0.0, lt=1.0)]
"""A dropout probability."""

Activation: TypeAlias = Literal["relu", "gelu", "gelu-tanh", "silu", "relu2", "gelu-quick"]
ChannelOrder: TypeAlias = Literal["interleaved", "halves"]
"""Order of sines and cosines (or of the channels of a rotated pair): alternating, or one half after the other."""

Reach: TypeAlias = Literal["window", "full"]
NormPlace: TypeAlias = Literal["pre", "post", "sandwich", "output"]
PoolingKind: TypeAlias = Literal["class", "last", "mean", "max"]


class LayerNorm(Settings):
    """(x − mean) / √(variance + eps) · weight + bias, over the features of one token (Ba et al. 2016)."""

    kind: Literal["layer"] = "layer"
    eps: float = Field(default=1e-5, gt=0)
    """Added to the variance."""
    bias: bool = True
    """Whether a bias is added."""


class RmsNorm(Settings):
    """x / √(mean of squares + eps) · weight (Zhang and Sennrich 2019)."""

    kind: Literal["rms"] = "rms"
    eps: float = Field(default=1e-6, gt=0)
    """Added to the mean of squares."""
    unit_offset: bool = False
    """Whether the scale is 1 + weight, so that weight decay pulls it to one."""


Norm: TypeAlias = Annotated[LayerNorm | RmsNorm, Field(discriminator="kind")]


class Latent(Settings):
    """Keys and values from a small vector of each token (DeepSeek-AI 2024: DeepSeek-V2, multi-head latent attention).

    A cache holds this vector and a rotated key that all heads share.
    """

    rank: Positive
    """Size of the vector that keys and values are computed from."""
    rotary: Positive
    """Size of the shared rotated key. The other channels of a head carry no position."""
    query_rank: Positive | None = None
    """Size of the vector that queries are computed from; none: from the hidden state."""


class Attention(Settings):
    """Multi-head attention (Vaswani et al. 2017, section 3.2), with later extensions."""

    heads: Positive = 8
    """Number of query heads."""
    head_size: Positive | None = None
    """Size of one head's queries and keys; none: width / heads."""
    value_size: Positive | None = None
    """Size of one head's values; none: head_size."""
    kv_heads: Positive | None = None
    """Number of key/value heads, shared by groups of query heads; none: heads."""
    bias: bool = True
    """Whether the query, key and value projections have a bias."""
    output_bias: bool | None = None
    """Whether the output projection has a bias; none: as `bias`."""
    scale: float | None = Field(default=None, gt=0)
    """Factor on the scores; none: 1 / √head_size."""
    qk_norm: Norm | None = None
    """Norm over each head's queries and keys, before any rotation."""
    qk_norm_joint: bool = False
    """Whether qk_norm is over all heads together, with a weight for each channel of each head (OLMo 2)."""
    soft_cap: float | None = Field(default=None, gt=0)
    """Scores are smoothly limited to ± this value, before a position bias is added; none: no limit."""
    window: Positive | None = None
    """A token sees only tokens fewer than this many positions away; none: all."""
    pattern: tuple[Reach, ...] | None = Field(default=None, strict=False)
    """Which layers have the window and which see everything, repeated over the layers; none: all have it.

    Gemma 2: ["window", "full"]; ModernBERT: ["full", "window", "window"].
    """
    latent: Latent | None = None
    """Compressed keys and values in self-attention. `head_size` includes the rotated channels. None: not compressed."""
    sinks: bool = False
    """Whether each head has a learned logit that takes part in the softmax and has no value (gpt-oss 2025)."""
    dropout: Rate = 0.0
    """Dropout on the attention weights."""

    def windows(self, depth: int) -> tuple[int | None, ...]:
        """The window of each layer of a stack."""
        pattern = self.pattern or ("window",)
        return tuple(self.window if pattern[i % len(pattern)] == "window" else None for i in range(depth))

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.latent is not None and (self.kv_heads not in (None, self.heads) or self.qk_norm is not None):
            raise ValueError('latent excludes kv_heads and qk_norm; set them to "none"')
        if self.pattern is not None and (self.window is None or "window" not in self.pattern):
            raise ValueError(
                f'pattern ({list(self.pattern)}) needs window, and at least one "window" in it; or set it to "none"'
            )
        return self


class Dense(Settings):
    """Two linear maps with an activation between them."""

    kind: Literal["dense"] = "dense"
    hidden: Positive | None = None
    """Width between the two maps; none: 4 × width."""
    activation: Activation = "relu"
    """The activation between the two maps."""
    bias: bool = True
    """Whether the maps have biases."""
    dropout: Rate = 0.0
    """Dropout after the activation."""

    def hidden_for(self, width: int) -> int:
        return self.hidden or 4 * width


class Gated(Settings):
    """activation(x W) · (x V), then a map back (Shazeer 2020: GLU variants)."""

    kind: Literal["gated"] = "gated"
    hidden: Positive | None = None
    """Width of gate and value; none: 8/3 × width rounded up to a multiple of 8: as many weights as dense."""
    activation: Activation = "silu"
    """The activation of the gate."""
    bias: bool = False
    """Whether the maps have biases."""
    dropout: Rate = 0.0
    """Dropout after the product."""

    def hidden_for(self, width: int) -> int:
        return self.hidden or -(-8 * width // 24) * 8


class Experts(Settings):
    """Gated feed-forwards, of which each token uses the few that a router selects (Shazeer et al. 2017)."""

    kind: Literal["experts"] = "experts"
    experts: int = Field(default=8, ge=2, le=65_536)
    """Number of experts to select from."""
    active: Positive = 2
    """Number of experts that each token uses."""
    shared: int = Field(default=0, ge=0, le=65_536)
    """Number of further experts, which every token uses (DeepSeek-V2)."""
    hidden: Positive | None = None
    """Width of an expert; none: active and shared ones have together as many weights as a gated feed-forward."""
    activation: Activation = "silu"
    """The activation of the gates."""
    scores: Literal["softmax", "sigmoid"] = "softmax"
    """The scores of all experts together (Mixtral), or of each by itself (DeepSeek-V3)."""
    normalized: bool = True
    """Whether the scores of the selected experts are divided by their sum."""
    scale: float = Field(default=1.0, gt=0)
    """Factor on the output of the selected experts."""
    balance: float = Field(default=0.01, ge=0)
    """Factor of the auxiliary loss that keeps the load even (Fedus et al. 2022); 0: no such loss."""
    bias_rate: float | None = Field(default=None, gt=0)
    """Step of the biases that keep the load even without a loss (Wang et al. 2024: 0.001); none: no biases."""
    first_dense: int = Field(default=0, ge=0)
    """Number of first layers that have one gated feed-forward instead."""
    dense_hidden: Positive | None = None
    """Width of that feed-forward; none: 8/3 × width rounded up to a multiple of 8."""
    dropout: Rate = 0.0
    """Dropout after the product with the gate."""

    def hidden_for(self, width: int) -> int:
        return self.hidden or -(-8 * width // (24 * (self.active + self.shared))) * 8

    @model_validator(mode="after")
    def _active_exist(self) -> Self:
        if self.active > self.experts:
            raise ValueError(f"active ({self.active}) must be at most experts ({self.experts}); lower it")
        return self


FeedForward: TypeAlias = Annotated[Dense | Gated | Experts, Field(discriminator="kind")]


class Sinusoidal(Settings):
    """Sines and cosines of growing wavelength, added to the embeddings (Vaswani et al. 2017, section 3.5)."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    base: float = Field(default=10_000.0, gt=1)
    """Wavelengths run from 2π to 2π · base."""
    order: ChannelOrder = "interleaved"
    """Alternating sines and cosines (the paper), or all sines before all cosines (tensor2tensor, Marian)."""


class Relative(Settings):
    """A learned score for each head and bucket of distances, shared by all layers (Raffel et al. 2020: T5)."""

    kind: Literal["relative"] = "relative"
    buckets: int = Field(default=32, ge=4)
    """Number of buckets; small distances have one each, large ones share."""
    longest: Positive = 128
    """Distances from this value on share the last bucket."""

    @model_validator(mode="after")
    def _buckets_reach(self) -> Self:
        if self.longest <= self.buckets // 2:
            raise ValueError(f"longest ({self.longest}) must be more than half of buckets ({self.buckets}); raise it")
        return self


class Learned(Settings):
    """One learned vector for each position, added to the embeddings."""

    kind: Literal["learned"] = "learned"
    length: Positive = 512
    """The longest sequence."""
    offset: int = Field(default=0, ge=0)
    """Unused rows before position 0 (2 in BART and RoBERTa)."""
    relative: Relative | None = None
    """Scores of distances, in addition (MPNet)."""


class TransformerXL(Settings):
    """Scores from the query and a projected sinusoid of the distance (Dai et al. 2019)."""

    kind: Literal["transformer-xl"] = "transformer-xl"
    base: float = Field(default=10_000.0, gt=1)
    """Base of the sinusoid over distances."""


class _Scaling(Settings):
    kind: str
    factor: float = Field(ge=1)
    """How many times longer the sequences may be."""


class LinearScaling(_Scaling):
    """Positions divided by a factor (Chen et al. 2023: position interpolation)."""

    kind: Literal["linear"] = "linear"


class DynamicScaling(_Scaling):
    """A base that grows with the length of a sequence beyond the original one (transformers: dynamic NTK).

    Each call uses the length at that time. So with a cache, keys keep the rotation of an earlier length, and results
    beyond the original length differ from those without a cache, as in transformers.
    """

    kind: Literal["dynamic"] = "dynamic"
    factor: float = Field(ge=1)
    """How fast the base grows: with factor × (length / original_length − 1) + 1."""
    original_length: Positive
    """Length that the model was trained for."""


class YarnScaling(_Scaling):
    """Keeps high frequencies, interpolates low ones, with a ramp between, and scales scores (Peng et al. 2023)."""

    kind: Literal["yarn"] = "yarn"
    original_length: Positive
    """Length that the model was trained for."""
    beta_fast: float = Field(default=32.0, gt=0)
    """Channels with more rotations than this over original_length are kept."""
    beta_slow: float = Field(default=1.0, gt=0)
    """Channels with fewer rotations than this are interpolated."""

    @model_validator(mode="after")
    def _ramp_rises(self) -> Self:
        if self.beta_slow > self.beta_fast:
            raise ValueError(f"beta_slow ({self.beta_slow}) must be at most beta_fast ({self.beta_fast}); swap them")
        return self


class Llama3Scaling(_Scaling):
    """Divides low frequencies by a factor and keeps high ones, with a smooth step between (LLaMA 3.1)."""

    kind: Literal["llama3"] = "llama3"
    factor: float = Field(default=8.0, ge=1)
    low_frequency_factor: float = Field(default=1.0, gt=0)
    """Frequencies of wavelengths above original_length / this value are divided."""
    high_frequency_factor: float = Field(default=4.0, gt=0)
    """Frequencies of wavelengths below original_length / this value are kept."""
    original_length: Positive = 8192
    """Length that the model was trained for."""

    @model_validator(mode="after")
    def _step_rises(self) -> Self:
        if self.low_frequency_factor >= self.high_frequency_factor:
            low, high = self.low_frequency_factor, self.high_frequency_factor
            raise ValueError(f"low_frequency_factor ({low}) must be below high_frequency_factor ({high}); swap them")
        return self


RotaryScaling: TypeAlias = Annotated[
    LinearScaling | DynamicScaling | YarnScaling | Llama3Scaling, Field(discriminator="kind")
]


class Rotary(Settings):
    """Pairs of query and key channels, rotated by an angle that grows with the position (Su et al. 2021: RoFormer)."""

    kind: Literal["rotary"] = "rotary"
    base: float = Field(default=10_000.0, gt=1)
    """Pair j rotates by base^(−2j / channels) per position."""
    window_base: float | None = Field(default=None, gt=1)
    """Base of layers with a window, where angles are never scaled (Gemma 3, ModernBERT); none: as in other layers."""
    fraction: float = Field(default=1.0, gt=0, le=1)
    """Share of each head's channels that are rotated; the others carry no position."""
    order: ChannelOrder = "halves"
    """Which channels form a pair: j and j + half (LLaMA), or 2j and 2j + 1 (RoFormer)."""
    scaling: RotaryScaling | None = None
    """How angles are scaled for sequences longer than those in training; none: not scaled."""

    def channels(self, head_size: int) -> int:
        """Number of rotated channels of a head."""
        return int(head_size * self.fraction)


class Alibi(Settings):
    """A penalty that grows with the distance, steeper in some heads than in others (Press et al. 2022)."""

    kind: Literal["alibi"] = "alibi"


class NoPosition(Settings):
    """No position: the model sees a set, or with causal attention a growing prefix."""

    kind: Literal["none"] = "none"


class Sinusoidal2d(Settings):
    """concat(PE(x), PE(y)) for the patch in column x and row y."""

    kind: Literal["sinusoidal-2d"] = "sinusoidal-2d"
    base: float = Field(default=10_000.0, gt=1)
    """Wavelengths run from 2π to 2π · base."""
    order: ChannelOrder = "interleaved"
    """As in the one-dimensional encoding."""


class Learned2d(Settings):
    """One learned vector for each patch of the grid, resized (bicubic) for images of another size."""

    kind: Literal["learned-2d"] = "learned-2d"


class Rotary2d(Settings):
    """Rotates half of each head's channels by the column, half by the row; the class token is not rotated."""

    kind: Literal["rotary-2d"] = "rotary-2d"
    base: float = Field(default=100.0, gt=1)
    """Pair j rotates by base^(−4j / channels) per grid step."""


TextPosition: TypeAlias = Annotated[
    Sinusoidal | Learned | Relative | TransformerXL | Rotary | Alibi | NoPosition, Field(discriminator="kind")
]
ImagePosition: TypeAlias = Annotated[Sinusoidal2d | Learned2d | Rotary2d | NoPosition, Field(discriminator="kind")]


class Xavier(Settings):
    """Uniform in ±√(6 / (inputs + outputs)); embeddings normal with variance 1 / width (the paper's own code)."""

    kind: Literal["xavier"] = "xavier"


class Normal(Settings):
    """Normal around zero (BERT, GPT-2, ViT)."""

    kind: Literal["normal"] = "normal"
    deviation: float = Field(default=0.02, gt=0)
    """Standard deviation."""
    scaled_residual: bool = False
    """Whether matrices that write to the residual stream are divided by √(number of sublayers), as in GPT-2."""


Initial: TypeAlias = Annotated[Xavier | Normal, Field(discriminator="kind")]


class StateAttention(Settings):
    """How a decoder without self-attention reads the encoder's states: one weighted sum at each step."""

    score: Literal["dot", "general", "additive", "last", "sum"] = "general"
    """dot: q · k; general: q · Wk (Luong et al. 2015); additive: v · tanh(Wq + Uk) (Bahdanau et al. 2015). Without
    attention, every step reads the same vector: the last state, or the sum of all states."""
    window: Positive | None = None
    """Local attention (Luong et al. 2015, local-m): step t sees the states fewer than this many positions from t; none:
    all."""

    @property
    def heads(self) -> int:
        return 1

    @model_validator(mode="after")
    def _window_fits(self) -> Self:
        if self.window is not None and self.score in ("last", "sum"):
            raise ValueError(f'attention.window ({self.window}) needs a score, but attention.score is "{self.score}"')
        return self


class Core(Settings):
    """The settings that every family has."""

    width: Positive = 512
    """Size of the hidden states."""
    depth: Depth = 6
    """Number of layers."""
    dropout: Rate = 0.1
    """Dropout on each sublayer's output and on the embeddings, as in the paper."""
    initial: Initial = Xavier()
    """How weights are initialised."""


class Body(Core):
    """The settings that every Transformer has."""

    attention: Attention = Attention()
    """The attention of every layer."""
    ffn: FeedForward = Dense()
    """The feed-forward of every layer."""
    norm: Norm = LayerNorm()
    """The norm around every sublayer."""
    norm_place: NormPlace = "post"
    """post: norm(x + f(x)) (the paper); pre: x + f(norm(x)); output: x + norm(f(x)); sandwich: x + norm(f(norm(x)))."""
    parallel: bool = False
    """Whether the feed-forward reads the input of the layer, as attention does, instead of attention's result."""
    final_norm: bool | None = None
    """Whether a norm follows the last layer; none: yes unless norm_place is post."""
    stochastic_depth: Rate = 0.0
    """Probability of skipping a sublayer; it grows linearly from 0 to this value at the last layer."""
    layer_scale: float | None = Field(default=None, gt=0)
    """Initial value of a learned factor for each channel of a sublayer's output; none: no factor."""

    @property
    def head_size(self) -> int:
        return self.attention.head_size or self.width // self.attention.heads

    @property
    def rotated_size(self) -> int:
        """Channels of a head that positions apply to."""
        return self.head_size if self.attention.latent is None else self.attention.latent.rotary

    @property
    def value_size(self) -> int:
        return self.attention.value_size or self.head_size

    @property
    def kv_heads(self) -> int:
        return self.attention.kv_heads or self.attention.heads

    @property
    def ffn_hidden(self) -> int:
        return self.ffn.hidden_for(self.width)

    @property
    def has_final_norm(self) -> bool:
        return self.norm_place != "post" if self.final_norm is None else self.final_norm

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        heads, kv_heads = self.attention.heads, self.kv_heads
        if self.attention.head_size is None and self.width % heads:
            raise ValueError(f"width ({self.width}) must be a multiple of heads ({heads}); or set attention.head_size")
        if heads % kv_heads:
            raise ValueError(f"attention.heads ({heads}) must be a multiple of attention.kv_heads ({kv_heads})")
        if self.rotated_size > self.head_size:
            raise ValueError(
                f"attention.latent.rotary ({self.rotated_size}) must be at most the head size ({self.head_size})"
            )
        return self
