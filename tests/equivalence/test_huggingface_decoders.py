"""GPT-2 and LLaMA against transformers and, in float64, against transformers or NumPy."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

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
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model, LlamaConfig, LlamaForCausalLM, LlamaModel

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


SMOLLM2 = LlamaConfig(
    vocab_size=1000,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=2,
    num_attention_heads=9,
    num_key_value_heads=3,
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
    rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
)
"""The published sizes of SmolLM2 135M, with fewer layers and tokens."""


def gpt2_config(seed: int) -> GPT2Config:
    draw = random.Random(seed)
    heads = draw.choice([1, 2, 3, 4])
    return GPT2Config(
        vocab_size=draw.randint(20, 60),
        n_embd=heads * draw.choice([-(-16 // heads), 10, 16]),
        n_layer=draw.randint(1, 3),
        n_head=heads,
        n_inner=draw.choice([None, 24, 50]),
        n_positions=draw.choice([24, 31]),
        activation_function=draw.choice(["gelu_new", "gelu", "relu", "silu"]),
        layer_norm_epsilon=draw.choice([1e-5, 1e-3]),
        scale_attn_weights=draw.random() < 0.8,
        tie_word_embeddings=draw.random() < 0.6,
        bos_token_id=None,
        eos_token_id=None,
    )


def llama_config(seed: int, rope: str = "default") -> LlamaConfig:
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


@torch.no_grad()
def test_logits_at_random_sizes(tmp_path: Path) -> None:
    models = {f"gpt2 {seed}": (GPT2LMHeadModel, gpt2_config(seed)) for seed in range(4)}
    models |= {rope: (LlamaForCausalLM, llama_config(seed, rope)) for seed, rope in enumerate(ROPES)}
    models |= {
        "gpt2, published": (GPT2LMHeadModel, GPT2Config(vocab_size=1000, n_layer=2)),
        "smollm2": (LlamaForCausalLM, SMOLLM2),
    }
    for seed, (name, (kind, config)) in enumerate(models.items()):
        place = tmp_path / name
        model = random_model(kind, config, seed)
        layout, mask, real = ragged(3, 13 if kind is GPT2LMHeadModel else 33, seed)
        ids = tokens(config, 3, layout.time, seed)
        expected = model(ids, attention_mask=mask).logits[real]
        ours = saved_and_read(model, place / "theirs")
        assert difference(ours(ids, layout)[real], expected) < SINGLE, name
        back = written_and_loaded(ours, model, place / "ours")
        assert difference(back(ids, attention_mask=mask).logits[real], expected) < SINGLE, name
        exact = saved_and_read(model, place / "theirs", torch.float64)(ids, layout)
        if kind is GPT2LMHeadModel:
            assert difference(exact[real], model.double()(ids, attention_mask=mask).logits[real]) < DOUBLE, name
            continue
        for row, length in enumerate(layout.lengths_B.tolist()):  # their norms are in float32, whatever the dtype
            wanted = reference(place / "theirs", ids[row, :length].tolist())
            assert difference(exact[row, :length], wanted) < DOUBLE, name


@torch.no_grad()
def test_logits_with_a_cache(tmp_path: Path) -> None:
    for name, kind, config in (
        ("gpt2", GPT2LMHeadModel, gpt2_config(3)),
        ("llama", LlamaForCausalLM, llama_config(2, "llama3")),
    ):
        model = random_model(kind, config)
        ours, exact = (saved_and_read(model, tmp_path / name, dtype) for dtype in (None, torch.float64))
        ids = tokens(config, 3, 15 if name == "gpt2" else 21)
        layout, _, _ = ragged(3, 9)
        prompts, more = ids[:, :9], ids[:, 9:]
        assert difference(stepwise(ours, ids, 6), stepwise_theirs(model.float(), ids, 6)) < SINGLE
        single, double = (stepwise_ragged(network, prompts, layout, more) for network in (ours, exact))
        for row in range(3):
            whole = torch.cat([prompts[row, : layout.lengths_B[row]], more[row]])
            assert difference(single[row], model.float()(whole[None]).logits[0]) < SINGLE
            wanted = reference(tmp_path / name, whole.tolist()) if name == "llama" else None
            wanted = model.double()(whole[None]).logits[0] if wanted is None else wanted
            assert difference(double[row], wanted) < DOUBLE


@torch.no_grad()
def test_the_class_without_a_head(tmp_path: Path) -> None:
    untied = llama_config(1)
    untied.tie_word_embeddings = False
    tied = llama_config(1)
    tied.tie_word_embeddings = True
    for number, (kind, config) in enumerate(((GPT2Model, gpt2_config(4)), (LlamaModel, tied), (LlamaModel, untied))):
        model = random_model(kind, config)
        ids = tokens(config, 2, 11)
        hidden = model(ids).last_hidden_state
        ours = saved_and_read(model, tmp_path / f"theirs{number}")
        assert difference(ours.states(ids), hidden) < SINGLE


@torch.no_grad()
def test_a_file_without_prefix_and_with_old_buffers(tmp_path: Path) -> None:
    """The first published files of GPT-2 are such."""
    config = gpt2_config(0)
    config.tie_word_embeddings = True
    model = random_model(GPT2LMHeadModel, config)
    saved_and_read(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    old = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    for i in range(config.n_layer):
        old[f"h.{i}.attn.bias"] = torch.ones(1, 1, 24, 24).tril()
        old[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(old, tmp_path / "model.safetensors")
    ids = tokens(config, 2, 9)
    assert difference(read_pretrained(tmp_path)(ids), model(ids).logits) < SINGLE


@torch.no_grad()
def test_the_older_form_of_rope_settings(tmp_path: Path) -> None:
    for rope in ROPES:
        model = random_model(LlamaForCausalLM, llama_config(0, rope))
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
