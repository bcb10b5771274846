from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from huggingface_cases import DOUBLE, SINGLE, difference, random_model, saved_and_read, written_and_loaded
from safetensors.torch import save_file
from transformers import ViTConfig, ViTForImageClassification, ViTModel

from regard.weights.huggingface.directory import read_pretrained


def small_config(seed: int) -> ViTConfig:
    draw = random.Random(seed)
    heads, patch = draw.choice([1, 2, 3, 4]), draw.choice([2, 4])
    return ViTConfig(
        hidden_size=heads * draw.choice([-(-16 // heads), 10, 16]),
        num_hidden_layers=draw.randint(1, 3),
        num_attention_heads=heads,
        intermediate_size=draw.choice([8, 24, 50]),
        hidden_act=draw.choice(["gelu", "gelu_new", "relu"]),
        layer_norm_eps=draw.choice([1e-12, 1e-5]),
        image_size=draw.choice([patch * 3, [patch * 2, patch * 3]]),
        patch_size=patch,
        num_channels=draw.choice([1, 3]),
        qkv_bias=draw.random() < 0.7,
        num_labels=draw.randint(1, 7),
    )


def images(config: ViTConfig, batch: int = 3, factor: int = 1) -> torch.Tensor:
    height, width = config.image_size if isinstance(config.image_size, list) else [config.image_size] * 2
    generator = torch.Generator().manual_seed(batch)
    return torch.randn(batch, config.num_channels, factor * height, factor * width, generator=generator)


@pytest.mark.parametrize("seed", range(8))
@torch.no_grad()
def test_classes_at_a_random_size(seed: int, tmp_path: Path) -> None:
    model = random_model(ViTForImageClassification, small_config(seed), seed)
    batch = images(model.config)
    expected = model(batch).logits
    ours = saved_and_read(model, tmp_path / "theirs")
    assert difference(ours.heads["classification"](ours(batch)), expected) < SINGLE
    back = written_and_loaded(ours, model, tmp_path / "ours")
    assert difference(back(batch).logits, expected) < SINGLE


@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_classes_in_float64(seed: int, tmp_path: Path) -> None:
    """Against their SDPA: their plain attention takes the softmax in float32 whatever the model's type."""
    model = random_model(ViTForImageClassification, small_config(seed), seed, attention="sdpa")
    ours = saved_and_read(model, tmp_path, torch.float64)
    batch = images(model.config).double()
    assert difference(ours.heads["classification"](ours(batch)), model.double()(batch).logits) < DOUBLE


@torch.no_grad()
def test_hidden_states_and_the_pooled_vector(tmp_path: Path) -> None:
    model = random_model(ViTModel, small_config(5))
    batch = images(model.config)
    out = model(batch)
    ours = saved_and_read(model, tmp_path / "theirs")
    assert difference(ours(batch), out.last_hidden_state) < SINGLE
    assert difference(ours.heads["pooling"](ours(batch)), out.pooler_output) < SINGLE
    back = written_and_loaded(ours, model, tmp_path / "ours")
    assert difference(back(batch).pooler_output, out.pooler_output) < SINGLE


@torch.no_grad()
def test_positions_resized_for_larger_images(tmp_path: Path) -> None:
    config = small_config(0)
    config.image_size = 3 * config.patch_size
    model = random_model(ViTModel, config)
    ours = saved_and_read(model, tmp_path)
    batch = images(config, factor=2)
    expected = model(batch, interpolate_pos_encoding=True).last_hidden_state
    assert difference(ours(batch), expected) < SINGLE


@torch.no_grad()
def test_the_names_inside_their_newer_modules(tmp_path: Path) -> None:
    """A state dict saved as it is has other names than `save_pretrained` writes."""
    model = random_model(ViTForImageClassification, small_config(1))
    expected = saved_and_read(model, tmp_path)(images(model.config))
    state = model.state_dict()
    assert any(".q_proj." in name for name in state)
    save_file(state, tmp_path / "model.safetensors")
    assert difference(read_pretrained(tmp_path)(images(model.config)), expected) < SINGLE
