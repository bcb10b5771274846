from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from huggingface_cases import DOUBLE, SINGLE, difference, random_model, saved_and_read
from numpy_models import t5_logits
from safetensors.torch import load_file
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration
from translation_cases import assert_same, assert_same_stepwise, batch_for, ours_of, theirs_of


def small_config(seed: int) -> T5Config:
    draw = random.Random(seed)
    return T5Config(
        vocab_size=draw.randint(20, 60),
        d_model=draw.choice([16, 20, 33]),
        d_kv=draw.choice([3, 8]),
        d_ff=draw.choice([8, 24, 50]),
        num_layers=draw.randint(1, 3),
        num_decoder_layers=draw.randint(1, 3),
        num_heads=draw.choice([1, 2, 3]),
        relative_attention_num_buckets=draw.choice([8, 32]),
        relative_attention_max_distance=draw.choice([20, 128]),
        feed_forward_proj=["relu", "gated-gelu", "gated-silu", "gelu"][seed % 4],
        tie_word_embeddings=seed % 2 == 0,
        decoder_start_token_id=0,
    )


def small_model(seed: int) -> T5ForConditionalGeneration:
    """Tied and scaled as version 1.0, or with an output of its own as 1.1, which their class only takes from a file."""
    model = random_model(T5ForConditionalGeneration, small_config(seed), seed)
    if seed % 2:
        with torch.no_grad():
            model.lm_head.weight = nn.Parameter(model.shared.weight.flip(0, 1) * 0.7)
        model.all_tied_weights_keys.pop("lm_head.weight")
    return model


def reference(directory: Path, source: list[int], target: list[int]) -> torch.Tensor:
    weights = {name: tensor.double().numpy() for name, tensor in load_file(directory / "model.safetensors").items()}
    config = json.loads((directory / "config.json").read_text())
    return torch.from_numpy(t5_logits(weights, config, source, target))


@pytest.mark.parametrize("seed", range(8))
@torch.no_grad()
def test_logits_at_a_random_size(seed: int, tmp_path: Path) -> None:
    model = small_model(seed)
    assert_same(model, tmp_path, seed)

    ours = saved_and_read(model, tmp_path / "double", torch.float64)
    assert ("output" in ours.settings.tied) == (seed % 2 == 0)
    source, target, source_layout, target_layout, _, _, _ = batch_for(model, seed, times=(40, 37))
    logits = ours(source, target, source_layout, target_layout)
    for row, (long, short) in enumerate(zip(source_layout.lengths_B, target_layout.lengths_B, strict=True)):
        wanted = reference(tmp_path / "double", source[row, :long].tolist(), target[row, :short].tolist())
        assert difference(logits[row, :short], wanted) < DOUBLE


@torch.no_grad()
def test_distances_beyond_the_longest(tmp_path: Path) -> None:
    model = small_model(0)
    batch = batch_for(model, 0, times=(150, 140))
    assert difference(ours_of(saved_and_read(model, tmp_path), batch), theirs_of(model, batch)) < SINGLE


@pytest.mark.parametrize("kind", ["growing", "fixed"])
@pytest.mark.parametrize("seed", [0, 1])
@torch.no_grad()
def test_logits_with_a_cache(seed: int, kind: str, tmp_path: Path) -> None:
    model = small_model(seed)
    assert_same_stepwise(model, saved_and_read(model, tmp_path), kind, SINGLE, model.get_encoder())
