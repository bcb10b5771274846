"""Counting before building, against what is really built, computed and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import regard
from regard.errors import SettingsError
from regard.models.build import build
from regard.models.count import count
from regard.models.parameters import parameters
from regard.models.presets import PRESETS, Preset, preset
from regard.models.settings import AnyModel, Decoder, Encoder, EncoderDecoder, ModelSettings, Vision
from regard.settings import merge, parse, to_table

EVERY = pytest.mark.parametrize("entry", PRESETS, ids=lambda entry: entry.name)
NO_DROPOUT = {"dropout": 0.0, "attention": {"dropout": 0.0}, "ffn": {"dropout": 0.0}, "stochastic_depth": 0.0}


def built_shapes(model: ModelSettings) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in build(model, device="meta").named_parameters()}


def counted_shapes(model: ModelSettings) -> dict[str, tuple[int, ...]]:
    return {parameter.name: parameter.shape for parameter in parameters(model)}


def changed(model: ModelSettings, changes: dict[str, Any]) -> ModelSettings:
    result: ModelSettings = parse(AnyModel, merge(to_table(model), changes))
    return result


def run(network: nn.Module, model: ModelSettings, batch: int, length: int, device: str) -> Tensor | None:
    """A forward pass with every head."""
    tokens = torch.zeros(batch, length, dtype=torch.long, device=device)
    if isinstance(model, EncoderDecoder):
        return network(tokens, tokens)
    if isinstance(model, Decoder):
        return network(tokens)
    if isinstance(model, Vision):
        hidden = network(torch.randn(batch, model.channels, *model.image, device=device))
    else:
        hidden = network(tokens)
    scores = [head(hidden) for head in network.heads.values()]
    return scores[0] if scores else hidden


# --------------------------------------------------------------------------------------------------------- parameters


@EVERY
def test_counted_is_built(entry: Preset) -> None:
    """Names, shapes and sums, giants included: on the meta device they cost nothing either."""
    counted = count(entry.settings)
    shapes = built_shapes(entry.settings)
    assert counted_shapes(entry.settings) == shapes
    assert counted.parameters == sum(torch.Size(shape).numel() for shape in shapes.values())
    assert counted.parameters == sum(counted.parts.values())


NORMS = st.sampled_from([{"kind": "layer"}, {"kind": "layer", "bias": False}, {"kind": "rms"}])
POSITIONS = st.sampled_from(
    [
        {"kind": "sinusoidal"},
        {"kind": "learned", "length": 20, "offset": 2},
        {"kind": "relative", "buckets": 8},
        {"kind": "transformer-xl"},
        {"kind": "rotary"},
        {"kind": "alibi"},
        {"kind": "none"},
    ]
)
IMAGE_POSITIONS = st.sampled_from(
    [{"kind": kind} for kind in ("sinusoidal-2d", "learned-2d", "rotary-2d", "none")],
)
POOLED = st.fixed_dictionaries({"pooling": st.sampled_from(["mean", "max"]), "dense": st.booleans()})
IMAGE_HEADS = st.one_of(
    POOLED.map(lambda head: head | {"kind": "pooling"}),
    POOLED.map(lambda head: head | {"kind": "classification", "classes": 5}),
)
TEXT_HEADS = st.one_of(
    IMAGE_HEADS,
    POOLED.map(lambda head: head | {"kind": "next-sentence"}),
    st.booleans().map(lambda tied: {"kind": "masked", "tied": tied}),
    st.just({"kind": "tagging", "classes": 3}),
    st.just({"kind": "spans"}),
)
ATTENTION = st.fixed_dictionaries(
    {"heads": st.just(4), "head_size": st.sampled_from([4, 8]), "bias": st.booleans()},
    optional={
        "value_size": st.sampled_from([4, 12]),
        "kv_heads": st.sampled_from([1, 2, 4]),
        "output_bias": st.booleans(),
        "qk_norm": NORMS,
        "window": st.sampled_from([2, 5]),
    },
)
FFN = st.fixed_dictionaries({"kind": st.sampled_from(["dense", "gated"]), "bias": st.booleans()})
BODY: dict[str, st.SearchStrategy[Any]] = {
    "width": st.just(24),
    "depth": st.integers(1, 2),
    "attention": ATTENTION,
    "ffn": FFN,
    "norm": NORMS,
    "norm_place": st.sampled_from(["pre", "post", "sandwich"]),
}
BODY_OPTIONS: dict[str, st.SearchStrategy[Any]] = {"final_norm": st.booleans(), "layer_scale": st.just(0.1)}
TEXT = BODY | {"vocabulary": st.just(11), "position": POSITIONS, "embedding_norm": st.booleans()}
TIES = st.sampled_from(
    [[], ["source", "target"], ["source", "output"], ["target", "output"], ["source", "target", "output"]]
)
FAMILIES = st.one_of(
    st.fixed_dictionaries(
        TEXT | {"kind": st.just("encoder-decoder"), "tied": TIES, "output_bias": st.booleans()},
        optional=BODY_OPTIONS | {"decoder_depth": st.integers(1, 3)},
    ),
    st.fixed_dictionaries(
        TEXT
        | {
            "kind": st.just("encoder"),
            "segments": st.integers(0, 2),
            "heads": st.dictionaries(st.sampled_from(["a", "b"]), TEXT_HEADS),
        },
        optional=BODY_OPTIONS,
    ),
    st.fixed_dictionaries(
        TEXT | {"kind": st.just("decoder"), "tied": st.booleans(), "output_bias": st.booleans()}, optional=BODY_OPTIONS
    ),
    st.fixed_dictionaries(
        BODY
        | {
            "kind": st.just("vision"),
            "image": st.just([8, 12]),
            "patch": st.just(4),
            "position": IMAGE_POSITIONS,
            "class_token": st.booleans(),
            "heads": st.dictionaries(st.sampled_from(["a", "b"]), IMAGE_HEADS),
        },
        optional=BODY_OPTIONS,
    ),
)
MODELS = FAMILIES.map(lambda table: parse(AnyModel, table))


@settings(max_examples=150)
@given(MODELS)
def test_any_settings_are_counted_as_they_are_built(model: ModelSettings) -> None:
    assert counted_shapes(model) == built_shapes(model)


def test_a_separate_target_vocabulary() -> None:
    model = EncoderDecoder(vocabulary=30, target_vocabulary=20, tied=("target", "output"), width=16, depth=1)
    assert counted_shapes(model) == built_shapes(model)
    assert count(model).parts["target.tokens"] == 20 * 16


# -------------------------------------------------------------------------------------------------------------- FLOPs


@pytest.mark.parametrize(
    "name",
    [
        "transformer-tiny",
        "transformer-b-dk16",
        "t5-small",
        "marian",
        "bart-base",
        "bert-base",
        "roberta-base",
        "roformer",
        "gpt2",
        "llama-1b",
        "vit-b16",
        "vit-32",
        "xlnet-large",
        "gopher",
    ],
)
def test_flops_are_those_that_pytorch_counts(name: str) -> None:
    """PyTorch's counter watches the operators of a real forward pass; it does not discount causal masks either."""
    model = preset(name, depth=2)
    length = model.tokens if isinstance(model, Vision) else 48
    network = build(model, device="meta").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run(network, model, batch=1, length=length, device="meta")
    assert count(model, length).flops.sequence == counter.get_total_flops()


def test_flops_of_well_known_models() -> None:
    """ViT-B/16: 17.6 G multiply-adds (timm's results table). GPT-3: 3.14e23 for 300 B tokens (Brown et al. 2020, D)."""
    assert count(preset("vit-b16")).flops.sequence / 2 == pytest.approx(17.6e9, rel=0.01)
    assert count(preset("gpt3")).flops.training * 300e9 == pytest.approx(3.14e23, rel=0.03)


def test_flops_follow_their_formula() -> None:
    """2 a weight and token, and 2 · heads · (key size + value size) a query and key (Kaplan et al. 2020, table 1)."""
    model = preset("llama-7b")
    flops = count(model, length=2048).flops
    looked_up = 32_000 * 4096
    norms = (2 * 32 + 1) * 4096
    assert flops.weights == 2 * 2048 * (6_738_415_616 - looked_up - norms)
    assert flops.scores == 32 * 2048 * 2 * 2 * 2048 * 4096
    assert flops.training == 3 * flops.forward == 3 * (flops.weights + flops.scores) / 2048


def test_a_window_bounds_scores_and_cache() -> None:
    whole, windowed = preset("llama-small"), preset("llama-small", attention={"window": 64})
    assert count(windowed, 512).flops.scores * 8 == count(whole, 512).flops.scores
    assert count(windowed, 512).memory.cache * 8 == count(whole, 512).memory.cache
    assert count(windowed, 32).flops == count(whole, 32).flops


# ------------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize(("dtype", "weights"), [("bfloat16", 2), ("float16", 2), ("float32", 4)])
def test_training_takes_16_bytes_a_parameter(dtype: Any, weights: int) -> None:
    """Rajbhandari et al. 2020, section 3.1, for 16 bits; float32 comes to the same."""
    counted = count(preset("gpt2"), dtype=dtype)
    memory = counted.memory
    assert memory.weights == memory.gradients == weights * 124_439_808
    assert memory.weights + memory.gradients + memory.optimizer == 16 * 124_439_808
    assert memory.training == 16 * 124_439_808 + memory.activations


def test_cache_of_llama() -> None:
    """LLaMA 7B keeps half a MiB a token in 16 bits; 8 of 32 heads, in the 1B, a quarter of what 32 would."""
    memory = count(preset("llama-7b"), length=2048, batch=4).memory
    assert memory.cache_token == 2**19
    assert memory.cache == 4 * 2048 * 2**19
    assert memory.inference == memory.weights + memory.cache
    grouped, full = count(preset("llama-1b")).memory, count(preset("llama-1b", attention={"kv_heads": 32})).memory
    assert grouped.cache_token * 4 == full.cache_token


def test_cache_is_as_large_as_the_one_allocated() -> None:
    model = preset("llama-tiny")
    cache = build(model).new_cache(batch=3, kind="fixed", capacity=10)
    held = sum(layer.k_BCGE.nbytes + layer.v_BCGV.nbytes for layer in cache.layers)
    assert count(model, length=10, batch=3, dtype="float32").memory.cache == held


def test_an_encoder_decoder_also_keeps_the_source() -> None:
    memory = count(preset("transformer-base"), length=100).memory
    assert memory.cache_token == 6 * 2 * 512 * 2
    assert memory.cache == 2 * 100 * memory.cache_token


@pytest.mark.parametrize("name", ["bert-base", "vit-b16"])
def test_readers_have_no_cache(name: str) -> None:
    assert count(preset(name)).memory.cache == count(preset(name)).memory.cache_token == 0


def saved_bytes(network: nn.Module, forward: Callable[[], Tensor | None]) -> int:
    """What autograd really keeps: every saved storage once, the model's own weights left out."""
    own = {value.untyped_storage().data_ptr() for value in [*network.parameters(), *network.buffers()]}
    kept: dict[int, Tensor] = {}

    def keep(value: Tensor) -> Tensor:
        storage = value.untyped_storage().data_ptr()
        if storage not in own and value.is_floating_point():
            kept[storage] = value
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        forward()
    return sum(value.untyped_storage().nbytes() for value in kept.values())


@pytest.mark.parametrize(
    "name", ["transformer-tiny", "marian", "bart-base", "bert-tiny", "roberta-base", "gpt2", "vit-28"]
)
def test_activations_are_those_that_autograd_keeps(name: str) -> None:
    """Without dropout, whose masks a CPU keeps in another form. (Its RMS norm keeps more than a GPU's, too.)"""
    small: dict[str, Any] = {"width": 128, "depth": 2, "attention": {"heads": 4}}
    small |= {} if name == "vit-28" else {"vocabulary": 300}
    model = changed(changed(preset(name), small), NO_DROPOUT)
    length = model.tokens if isinstance(model, Vision) else 64
    network = build(model).train()

    def forward() -> None:
        scores = run(network, model, batch=2, length=length, device="cpu")
        assert scores is not None
        scores.log_softmax(-1)

    estimate = count(model, length, batch=2, dtype="float32").memory.activations
    assert estimate == pytest.approx(saved_bytes(network, forward), rel=0.05)


def test_activations_of_a_layer_as_published() -> None:
    """34 · width bytes a token (Korthikanti et al. 2022, section 4.1), and float32 figures of norms and softmax."""
    one, two = (count(preset("gpt2", depth=depth), length=1).memory.activations for depth in (1, 2))
    two_norms, softmax = 2 * 2 * 4, 12 * 4
    assert two - one == 34 * 768 + two_norms + softmax


# ------------------------------------------------------------------------------------------------------ what is given


def test_the_length_comes_from_the_settings() -> None:
    assert count(preset("gpt3")).length == 2048
    assert count(preset("transformer-base")).length == 512
    assert count(preset("vit-b16")).length == 197
    assert regard.count(preset("gpt2"), length=7, batch=3, dtype="float32").batch == 3


@pytest.mark.parametrize(
    ("name", "length", "batch", "message"),
    [
        ("gpt2", 2000, 1, r"length \(2000\) is beyond position.length \(1024\); set position.length=2000"),
        ("vit-b16", 64, 1, r"length \(64\) must be 197, which follows from image and patch; change image instead"),
        ("gpt2", 0, 1, r"length \(0\) must be at least 1"),
        ("gpt2", None, 0, r"batch \(0\) must be at least 1"),
    ],
)
def test_bad_lengths_and_batches(name: str, length: int | None, batch: int, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        count(preset(name), length, batch)


def test_heads_are_parts() -> None:
    model = Encoder(width=16, depth=1, attention={"heads": 2}, heads={"topic": {"kind": "classification"}})  # type: ignore[arg-type,dict-item]
    assert count(model).parts["heads.topic"] == 2 * 16 + 2
