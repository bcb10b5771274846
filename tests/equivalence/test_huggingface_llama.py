from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_cases import (
    DOUBLE,
    SINGLE,
    difference,
    ragged,
    random_model,
    saved_and_read,
    stepwise,
    stepwise_ragged,
    stepwise_theirs,
    tokens,
    written_and_loaded,
)
from numpy_models import llama_logits
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel

from regard.weights.huggingface.directory import read_pretrained

ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10_000.0},
    "large base": {"rope_type": "default", "rope_theta": 500_000.0},
    "linear": {"rope_type": "linear", "factor": 2.5, "rope_theta": 10_000.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 48,
        "rope_theta": 10_000.0,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 40, "rope_theta": 10_000.0},
    "yarn, own bounds": {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 8.0,
        "beta_slow": 2.0,
        "rope_theta": 1000.0,
    },
}


def small_config(seed: int, rope: str = "default") -> LlamaConfig:
    draw = random.Random(seed)
    groups = draw.choice([1, 2, 3])
    heads = groups * draw.choice([1, 2, 4])
    size = draw.choice([8, 12, 16])
    return LlamaConfig(
        vocab_size=draw.randint(20, 60),
        hidden_size=heads * draw.choice([-(-16 // heads), 16]),
        intermediate_size=draw.choice([20, 37, 64]),
        num_hidden_layers=draw.randint(1, 3),
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=size,
        hidden_act=draw.choice(["silu", "silu", "gelu", "gelu_new"]),
        rms_norm_eps=draw.choice([1e-6, 1e-5]),
        tie_word_embeddings=draw.random() < 0.5,
        attention_bias=draw.random() < 0.5,
        mlp_bias=draw.random() < 0.5,
        rope_parameters=dict(ROPES[rope]),
        max_position_embeddings=160,
        bos_token_id=None,
        eos_token_id=None,
    )


def reference(directory: Path, row: list[int]) -> torch.Tensor:
    weights = {name: tensor.double().numpy() for name, tensor in load_file(directory / "model.safetensors").items()}
    return torch.from_numpy(llama_logits(weights, json.loads((directory / "config.json").read_text()), row))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rope", ROPES)
@torch.no_grad()
def test_logits_at_a_random_size(rope: str, seed: int, tmp_path: Path) -> None:
    model = random_model(LlamaForCausalLM, small_config(seed, rope), seed)
    layout, mask, real = ragged(3, 33, seed)
    ids = tokens(model.config, 3, 33, seed)
    expected = model(ids, attention_mask=mask).logits[real]

    ours = saved_and_read(model, tmp_path / "theirs")
    assert difference(ours(ids, layout)[real], expected) < SINGLE
    back = written_and_loaded(ours, model, tmp_path / "ours")
    assert difference(back(ids, attention_mask=mask).logits[real], expected) < SINGLE

    exact = saved_and_read(model, tmp_path / "theirs", torch.float64)(ids, layout)
    for row, length in enumerate(layout.lengths_B.tolist()):
        wanted = reference(tmp_path / "theirs", ids[row, :length].tolist())
        assert difference(exact[row, :length], wanted) < DOUBLE


@pytest.mark.parametrize("kind", ["growing", "fixed"])
@torch.no_grad()
def test_logits_with_a_cache(kind: str, tmp_path: Path) -> None:
    model = random_model(LlamaForCausalLM, small_config(2, "llama3"))
    ours, exact = saved_and_read(model, tmp_path), saved_and_read(model, tmp_path, torch.float64)
    ids = tokens(model.config, 3, 21)
    assert difference(stepwise(ours, ids, 6, kind), stepwise_theirs(model, ids, 6)) < SINGLE

    layout, _, _ = ragged(3, 9)
    prompts, more = ids[:, :9], ids[:, 9:]
    single, double = (stepwise_ragged(network, prompts, layout, more, kind) for network in (ours, exact))
    for row in range(3):
        whole = torch.cat([prompts[row, : layout.lengths_B[row]], more[row]])
        assert difference(single[row], model(whole[None]).logits[0]) < SINGLE
        assert difference(double[row], reference(tmp_path, whole.tolist())) < DOUBLE


@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_the_class_without_a_head(tied: bool, tmp_path: Path) -> None:
    config = small_config(1)
    config.tie_word_embeddings = tied
    model = random_model(LlamaModel, config)
    ids = tokens(config, 2, 11)
    hidden = model(ids).last_hidden_state
    ours = saved_and_read(model, tmp_path / "theirs")
    assert difference(ours.states(ids), hidden) < SINGLE
    back = written_and_loaded(ours, model, tmp_path / "ours", architecture="LlamaModel")
    assert difference(back(ids).last_hidden_state, hidden) < SINGLE


@pytest.mark.parametrize("rope", ROPES)
@torch.no_grad()
def test_the_older_form_of_rope_settings(rope: str, tmp_path: Path) -> None:
    model = random_model(LlamaForCausalLM, small_config(0, rope))
    ids = tokens(model.config, 2, 30)
    expected = saved_and_read(model, tmp_path)(ids)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    values = config.pop("rope_parameters")
    config["rope_theta"] = values.pop("rope_theta")
    if values["rope_type"] != "default":
        config["rope_scaling"] = {"type": values.pop("rope_type"), **values}
    path.write_text(json.dumps(config))
    assert difference(read_pretrained(tmp_path)(ids), expected) < SINGLE
