"""Counting, against what PyTorch builds, computes and keeps, and against measurements on a GPU."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from regard.blocks.settings import Attention, TransformerXL
from regard.errors import SettingsError
from regard.models.build import build
from regard.models.count import Dtype, count, training_flops
from regard.models.presets import all_presets, preset
from regard.models.settings import Decoder, Encoder, EncoderDecoder, ModelSettings, Vision

NO_DROPOUT = {"dropout": 0.0, "attention.dropout": 0.0, "ffn.dropout": 0.0, "stochastic_depth": 0.0}


def run(network: nn.Module, model: ModelSettings, batch: int, length: int, device: str) -> Tensor:
    """A forward pass with every head."""
    tokens = torch.zeros(batch, length, dtype=torch.long, device=device)
    if isinstance(model, EncoderDecoder):
        return network(tokens, tokens)
    if isinstance(model, Decoder):
        return network(tokens)
    if isinstance(model, Vision):
        dtype = next(network.parameters()).dtype
        hidden = network(torch.zeros(batch, model.channels, *model.image, device=device, dtype=dtype))
    else:
        hidden = network(tokens)
    scores = [head(hidden) for head in network.heads.values()]
    return scores[0] if scores else hidden


def test_every_preset_has_the_size_that_it_lists() -> None:
    for entry in all_presets():
        shapes = {name: tuple(p.shape) for name, p in build(entry.settings, device="meta").named_parameters()}
        assert entry.parameters == sum(torch.Size(shape).numel() for shape in shapes.values()), entry.name
    counted = count(preset("transformer-tiny"))
    assert counted.tensors["decoder.3.cross.q.weight"] == (128, 128)
    assert counted.parameters == sum(counted.parts.values()) == 2_599_424


def test_parts_are_named_by_what_they_hold() -> None:
    model = Encoder(
        width=16,
        depth=2,
        attention=Attention(heads=2),
        position=TransformerXL(),
        layer_scale=0.1,
        heads={"topic": {"kind": "classification"}},  # type: ignore[dict-item]
    )
    parts = count(model).parts
    assert parts["heads.topic"] == 2 * 16 + 2
    assert parts["encoder.relative"] == 2 * (16 * 16 + 2 * 16)
    assert parts["encoder.scale"] == 2 * 2 * 16
    assert parts["encoder.norm"] == 2 * 2 * 2 * 16
    two = EncoderDecoder(vocabulary=30, target_vocabulary=20, tied=("target", "output"), width=16, depth=1)
    assert count(two).parts["target.tokens"] == 20 * 16


def test_flops_are_those_that_pytorch_counts() -> None:
    """PyTorch's counter sees the operators of a real forward pass; it does not discount causal masks either."""
    names = ("transformer-tiny", "transformer-b-dk16", "t5-small", "marian", "bart-base", "bert-base", "roberta-base")
    for name in (*names, "roformer", "gpt2", "llama-1b", "vit-b16", "vit-32", "xlnet-large", "gopher"):
        model = preset(name, depth=2)
        length = model.tokens if isinstance(model, Vision) else 48
        network = build(model, device="meta").eval()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            run(network, model, batch=1, length=length, device="meta")
        counted = count(model, length).flops
        assert counted.sequence == counter.get_total_flops(), name
        assert training_flops(model, 2, 2 * length, 2 * length) == pytest.approx(6 * counted.sequence, rel=1e-12)


def test_sources_and_targets_of_different_lengths() -> None:
    model = EncoderDecoder(width=32, depth=2, decoder_depth=1, attention=Attention(heads=4), vocabulary=50)
    network = build(model, device="meta").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(*(torch.zeros(2, length, dtype=torch.long, device="meta") for length in (9, 5)))
    assert training_flops(model, 2, 10, 18) == pytest.approx(3 * counter.get_total_flops(), rel=1e-12)
    assert training_flops(model, 0, 0) == 0.0


def test_flops_of_well_known_models() -> None:
    """ViT-B/16: 17.6 G multiply-adds (timm's results table). GPT-3: 3.14e23 for 300 B tokens (Brown et al. 2020, D)."""
    assert count(preset("vit-b16")).flops.sequence / 2 == pytest.approx(17.6e9, rel=0.01)
    assert count(preset("gpt3")).flops.training * 300e9 == pytest.approx(3.14e23, rel=0.03)
    matrices = 124_439_808 - 1024 * 768  # without the learned positions; the output is tied
    assert training_flops(preset("gpt2"), 1000, 32_000) == pytest.approx(6 * matrices * 32_000, rel=0.01)


def test_a_window_bounds_scores() -> None:
    whole, windowed = preset("llama-small"), preset("llama-small", attention={"window": 64})
    assert count(windowed, 512).flops.scores * 8 == count(whole, 512).flops.scores
    assert count(windowed, 32).flops == count(whole, 32).flops
    pattern = ["window", "window", "full"]
    mixed = count(preset("llama-small", depth=5, attention={"window": 64, "pattern": pattern}), 512).flops.scores
    layer = count(preset("llama-small", depth=1), 512).flops.scores
    assert mixed == 4 * layer // 8 + layer
    for name in ("transformer-tiny", "gpt2", "bert-tiny"):
        for changes in ({"position": {"kind": "transformer-xl"}}, {"attention": {"heads": 8, "window": 7}}):
            model = preset(name, width=128, attention={"heads": 8}).changed(changes)
            counted = count(model, 40).flops.sequence
            assert training_flops(model, 3, 120, 120) == pytest.approx(9 * counted, rel=1e-12), (name, changes)


def test_experts_count_in_full_and_cost_what_is_active() -> None:
    """Mixtral: 46.7 B parameters, of which a token uses 12.9 B (Jiang et al. 2024, section 2)."""
    counted = count(preset("mixtral-8x7b"), length=16)
    assert counted.active == pytest.approx(12.9e9, rel=0.005)
    no_products = 32_000 * 4096 + 65 * 4096  # embeddings and norms
    assert counted.flops.weights / 16 / 2 == counted.active - no_products
    for name, total, active in (("deepseek-v2-lite", 15.7e9, 2.4e9), ("deepseek-v3", 671e9, 37e9)):
        counted = count(preset(name), length=16)
        embeddings = counted.tensors["embedding.tokens.weight"]
        assert counted.parameters == pytest.approx(total, rel=0.001)
        assert counted.active - embeddings[0] * embeddings[1] == pytest.approx(active, rel=0.03)  # which they leave out
    # Keys and values of rank 512 and a rotated key of 64 in 61 layers, in 16 bits (DeepSeek-V3, section 2.1.1).
    assert count(preset("deepseek-v3"), length=16).memory.cache_token == 61 * (512 + 64) * 2
    dense = preset("llama-tiny", ffn={"hidden": 192})
    ffn = {"kind": "experts", "experts": 6, "active": 2, "shared": 1, "dense_hidden": 192}
    experts = dense.changed({"ffn": ffn})
    router = experts.depth * 6 * experts.width
    assert experts.ffn_hidden * 3 == dense.ffn_hidden
    assert count(experts).active == count(dense).parameters + router
    assert count(experts).flops.weights == count(dense).flops.weights + 2 * 512 * router
    first = count(dense.changed({"ffn": {**ffn, "first_dense": 1}}))
    assert first.tensors["decoder.0.ffn.up.weight"] == (dense.ffn_hidden, dense.width)
    assert first.tensors["decoder.1.ffn.up"] == (6, experts.ffn_hidden, dense.width)


def test_training_takes_16_bytes_per_parameter() -> None:
    """Rajbhandari et al. 2020, section 3.1, for 16 bits; float32 takes the same."""
    dtypes: dict[Dtype, int] = {"bfloat16": 2, "float16": 2, "float32": 4}
    for dtype, size in dtypes.items():
        memory = count(preset("gpt2"), dtype=dtype).memory
        assert memory.weights == memory.gradients == size * 124_439_808
        assert memory.weights + memory.gradients + memory.optimizer == 16 * 124_439_808
        assert memory.training == 16 * 124_439_808 + memory.activations


def test_caches() -> None:
    """LLaMA 7B keeps half a MiB per token in 16 bits; with 8 of 32 heads, the 1B keeps a quarter of the full cache."""
    memory = count(preset("llama-7b"), length=2048, batch=4).memory
    assert memory.cache_token == 2**19
    assert memory.cache == 4 * 2048 * 2**19
    assert memory.inference == memory.weights + memory.cache
    grouped, full = count(preset("llama-1b")).memory, count(preset("llama-1b", attention={"kv_heads": 32})).memory
    assert grouped.cache_token * 4 == full.cache_token

    model = build(preset("llama-tiny"))
    cache = model.new_cache(batch=3)  # type: ignore[union-attr]
    model(torch.zeros(3, 10, dtype=torch.long), cache=cache)
    used = [x[:, :10].nbytes for layer in cache.layers for x in (layer.k_BCGE, layer.v_BCGV)]
    allocated = sum(used)
    assert count(preset("llama-tiny"), length=10, batch=3, dtype="float32").memory.cache == allocated

    memory = count(preset("transformer-base"), length=100).memory  # source and target
    assert memory.cache_token == 6 * 2 * 512 * 2
    assert memory.cache == 2 * 100 * memory.cache_token
    for name in ("bert-base", "vit-b16"):
        assert count(preset(name)).memory.cache == count(preset(name)).memory.cache_token == 0


def small_model(name: str, dropout: float) -> ModelSettings:
    """Models of all families and positions: four layers of 512."""
    base = {"transformer": "transformer-base", "t5": "t5-small", "bert": "bert-base", "vit": "vit-b16"}.get(
        name, "gpt2"
    )
    base = {"llama": "llama-small", "transformer-xl": "xlnet-large"}.get(name, base)
    changes: dict[str, Any] = {"width": 512, "depth": 4, "attention.heads": 8, "dropout": dropout}
    if name != "vit":
        changes["vocabulary"] = 8000
    if name in ("t5", "gpt2", "bert", "transformer-xl", "alibi"):
        changes["attention.dropout"] = dropout
    if name in ("t5", "vit"):
        changes["ffn.dropout"] = dropout
    if name == "llama":
        changes |= {"attention.kv_heads": 4, "ffn.hidden": 1376}
    if name == "alibi":
        changes["position.kind"] = "alibi"
    return preset(base).changed(changes)


MEASURED = {
    "transformer": (692_432_896, 601_440_256, 646_295_552, 578_371_584),
    "t5": (914_505_728, 784_209_920, 688_529_408, 621_541_376),
    "gpt2": (428_875_776, 352_225_280, 410_198_016, 342_788_096),
    "bert": (296_755_200, 286_689_280, 277_684_224, 277_252_096),
    "vit": (132_754_432, 246_375_424, 110_025_728, 226_857_984),
    "llama": (460_279_808, 466_182_144, 441_503_744, 456_744_960),
    "transformer-xl": (725_117_952, 507_779_072, 580_692_992, 446_060_544),
    "alibi": (433_065_984, 354_320_384, 427_253_760, 359_718_912),
}
"""Bytes allocated by a forward pass of 8 sequences on an H200 (PyTorch 2.11, 2026-11-16): with dropout 0.1 in bfloat16
(512 tokens) and float32 (256 tokens), then without dropout."""
CASES: list[tuple[float, Dtype, int]] = [
    (dropout, dtype, length)
    for dropout in (0.1, 0.0)
    for dtype, length in (("bfloat16", 512), ("float32", 256))  # type: ignore[misc]
]


def test_activations_are_those_measured_on_a_gpu() -> None:
    for name, allocated in MEASURED.items():
        for (dropout, dtype, length), wanted in zip(CASES, allocated, strict=True):
            found = count(small_model(name, dropout), None if name == "vit" else length, batch=8, dtype=dtype)
            assert found.memory.activations == pytest.approx(wanted, rel=0.06), (name, dropout, dtype)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # of the compiler of FlexAttention
def test_the_measurement_on_this_gpu() -> None:
    for name in MEASURED:
        for dropout, dtype, length in CASES:
            model = small_model(name, dropout)
            network = build(model, "cuda", getattr(torch, dtype)).train()

            def forward(network: nn.Module = network, model: ModelSettings = model, length: int = length) -> Tensor:
                out = run(network, model, 8, length, "cuda")
                return out if isinstance(model, Encoder | Vision) else out.float().log_softmax(-1)

            forward().float().sum().backward()
            gc.collect()
            before = torch.cuda.memory_allocated()
            out = forward()
            allocated = torch.cuda.memory_allocated() - before
            del out
            found = count(model, None if name == "vit" else length, batch=8, dtype=dtype).memory.activations
            assert found == pytest.approx(allocated, rel=0.15), (name, dropout, dtype)


def saved_bytes(network: nn.Module, forward: Callable[[], object]) -> int:
    """What autograd really saves: every storage once, without the model's own weights."""
    own = {value.untyped_storage().data_ptr() for value in [*network.parameters(), *network.buffers()]}
    kept: dict[int, Tensor] = {}

    def keep(value: Tensor) -> Tensor:
        storage = value.untyped_storage().data_ptr()
        if storage not in own and value.is_floating_point():
            kept[storage] = value
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        result = forward()
    del result
    return sum(value.untyped_storage().nbytes() for value in kept.values())


def test_activations_are_those_that_autograd_saves() -> None:
    """On a CPU, without dropout, RMS norms and score biases, for which it has other kernels than a GPU."""
    for name in ("transformer-tiny", "marian", "bart-base", "bert-tiny", "roberta-base", "gpt2", "vit-28"):
        small: dict[str, Any] = {"width": 128, "depth": 2, "attention.heads": 4}
        model = preset(name).changed(small | ({} if name == "vit-28" else {"vocabulary": 300})).changed(NO_DROPOUT)
        length = model.tokens if isinstance(model, Vision) else 64
        network = build(model).train()
        measured = saved_bytes(
            network,
            lambda model=model, length=length, network=network: run(network, model, 2, length, "cpu").log_softmax(-1),
        )
        estimate = count(model, length, batch=2, dtype="float32").memory.activations
        assert estimate == pytest.approx(measured, rel=0.05), name


def test_activations_of_a_layer_as_published() -> None:
    """34 · width bytes per token (Korthikanti et al. 2022, 4.1), plus float32 statistics of norms and softmax."""
    one, two = (count(preset("gpt2", depth=depth), length=8).memory.activations for depth in (1, 2))
    two_norms, softmax = 2 * 2 * 4, 12 * 4
    assert two - one == 8 * (34 * 768 + two_norms + softmax)


def test_refused_values() -> None:
    for name, options, setting in (
        ("gpt2", {"length": 2000}, "position.length"),
        ("vit-b16", {"length": 64}, "image"),
        ("gpt2", {"length": 0}, "length"),
        ("gpt2", {"batch": 0}, "batch"),
        ("gpt2", {"dtype": "fp8"}, "dtype"),
    ):
        with pytest.raises(SettingsError, match=setting):
            count(preset(name), **options)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="'gpt2'"):
        count("gpt2")  # type: ignore[arg-type]
