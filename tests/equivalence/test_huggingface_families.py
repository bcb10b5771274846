"""Families of decoders against transformers: read, written, with a cache, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_cases import (
    SINGLE,
    difference,
    ragged,
    random_model,
    saved_and_read,
    stepwise,
    stepwise_theirs,
    tokens,
    written_and_loaded,
)
from safetensors.torch import load_file, save_file

from regard.errors import WeightsError
from regard.models.settings import differences
from regard.weights.huggingface.directory import read_pretrained, write_pretrained

SIZES: dict[str, Any] = {
    "vocab_size": 41,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 160,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5_000.0}
GEMMA_ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 50_000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
QWEN_WINDOWS = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
GEMMA2 = {"head_dim": 12, "query_pre_attn_scalar": 20, "sliding_window": 7}
NEOX = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
PARTIAL = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}

MODELS: dict[str, list[tuple[dict[str, Any], str]]] = {
    "Mistral": [({"sliding_window": 7, "head_dim": 12}, "mistral"), ({"sliding_window": None}, "llama")],
    "Qwen2": [({"tie_word_embeddings": True}, "qwen2"), ({**QWEN_WINDOWS, "rope_parameters": LINEAR}, "qwen2")],
    "Qwen3": [
        ({"head_dim": 12, "tie_word_embeddings": True}, "qwen3"),
        ({"head_dim": 8, "attention_bias": True, "rms_norm_eps": 1e-5, **QWEN_WINDOWS}, "qwen3"),
    ],
    "Phi3": [({"rope_parameters": PARTIAL, "sliding_window": 7}, "phi3"), ({}, "llama")],
    "Olmo2": [({"num_key_value_heads": 4}, "olmo2"), ({"attention_bias": True, "rope_parameters": LINEAR}, "olmo2")],
    "Gemma": [({"head_dim": 12}, "gemma"), ({"head_dim": 8, "hidden_act": "gelu", "num_key_value_heads": 1}, "gemma")],
    "Gemma2": [
        (GEMMA2, "gemma2"),
        ({**GEMMA2, "attn_logit_softcapping": None, "final_logit_softcapping": 1.5, "sliding_window": 5}, "gemma2"),
    ],
    "Gemma3": [
        ({**GEMMA2, "num_hidden_layers": 7, "rope_parameters": GEMMA_ROPES}, "gemma3_text"),
        ({**GEMMA2, "final_logit_softcapping": 2.0, "layer_types": ["full_attention"] * 3}, "gemma3_text"),
    ],
    "GPTNeoX": [
        ({"rope_parameters": {**PARTIAL, "rope_theta": 300.0}}, "gpt_neox"),
        ({"use_parallel_residual": False, "attention_bias": False, "hidden_act": "gelu_new"}, "gpt_neox"),
    ],
}
"""Two configurations of each class, and the type that is written: the first that can express the model."""


def random_family(name: str, changes: dict[str, Any], seed: int = 0) -> transformers.PreTrainedModel:
    text = "Text" if name == "Gemma3" else ""
    config = getattr(transformers, f"{name}{text}Config")(**{**(NEOX if name == "GPTNeoX" else SIZES), **changes})
    return random_model(getattr(transformers, f"{name}ForCausalLM"), config, seed)


@torch.no_grad()
def test_logits_read_and_written(tmp_path: Path) -> None:
    for family, cases in MODELS.items():
        for number, (changes, written) in enumerate(cases):
            model, name = random_family(family, changes, number), f"{family}{number}"
            layout, mask, real = ragged(3, 23, number)
            ids = tokens(model.config, 3, layout.time, number)
            expected = model(ids, attention_mask=mask).logits[real]
            ours = saved_and_read(model, tmp_path / name)
            assert difference(ours(ids, layout)[real], expected) < SINGLE, name
            if written == model.config.model_type:
                back = written_and_loaded(ours, model, tmp_path / name / "ours")
            else:
                write_pretrained(ours, tmp_path / name / "ours")
                back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name / "ours").eval()
            assert json.loads((tmp_path / name / "ours" / "config.json").read_text())["model_type"] == written
            assert difference(back(ids, attention_mask=mask).logits[real], expected) < SINGLE, name
            again = read_pretrained(tmp_path / name / "ours")
            assert not differences(again.settings, ours.settings), name


@torch.no_grad()
def test_logits_with_a_cache(tmp_path: Path) -> None:
    for family, cases in MODELS.items():
        for number, (changes, _) in enumerate(cases):
            model, name = random_family(family, changes, number), f"{family}{number}"
            ids = tokens(model.config, 2, 19)
            ours = saved_and_read(model, tmp_path / name)
            assert difference(stepwise(ours, ids, 6), ours(ids)) < SINGLE, name
            assert difference(stepwise(ours, ids, 6), stepwise_theirs(model, ids, 6)) < SINGLE, name


@torch.no_grad()
def test_dynamic_scaling(tmp_path: Path) -> None:
    """Within the original length, beyond it, and with a cache that grows beyond it."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    for time in (15, 40):
        model = random_family("Mistral", {"rope_parameters": rope, "max_position_embeddings": 16})
        ids = tokens(model.config, 2, time)
        ours = saved_and_read(model, tmp_path / str(time))
        assert difference(ours(ids), model(ids).logits) < SINGLE
        back = written_and_loaded(ours, model, tmp_path / str(time) / "ours")
        assert difference(back(ids).logits, model(ids).logits) < SINGLE
        fresh = random_family("Mistral", {"rope_parameters": rope, "max_position_embeddings": 16})
        assert difference(stepwise(ours, ids, 6), stepwise_theirs(fresh, ids, 6)) < SINGLE


@torch.no_grad()
def test_older_files(tmp_path: Path) -> None:
    """Keys before version 5, and null where it means none."""
    older = {
        "Gemma3": ({"rope_theta": 50_000.0, "rope_local_base_freq": 100.0}, "layer_types"),
        "GPTNeoX": ({"rotary_pct": 0.5, "rotary_emb_base": 300.0}, "is_decoder"),
        "Qwen2": ({"rope_theta": 10_000.0}, "layer_types"),
    }
    for family, (values, dropped) in older.items():
        changes, _ = MODELS[family][0]
        changes = {**changes, "rope_parameters": {**GEMMA_ROPES, "full_attention": {"rope_theta": 50_000.0}}}
        model = random_family(family, changes if family == "Gemma3" else MODELS[family][0][0])
        ids = tokens(model.config, 2, 19)
        expected = saved_and_read(model, tmp_path / family)(ids)
        path = tmp_path / family / "config.json"
        config = {key: value for key, value in json.loads(path.read_text()).items() if key != dropped}
        del config["rope_parameters"]
        path.write_text(json.dumps(config | values))
        assert torch.equal(read_pretrained(tmp_path / family)(ids), expected), family
    tensors = load_file(tmp_path / "GPTNeoX" / "model.safetensors")
    renamed = {name.replace("embed_out", "lm_head"): tensor for name, tensor in tensors.items()}
    buffers = {
        "gpt_neox.layers.0.attention.bias": torch.ones(1, 1, 4, 4),
        "gpt_neox.layers.0.attention.masked_bias": torch.ones(1),
    }
    save_file(renamed | buffers, tmp_path / "GPTNeoX" / "model.safetensors")
    read_pretrained(tmp_path / "GPTNeoX")


def test_features_that_are_refused_by_name(tmp_path: Path) -> None:
    longrope = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("Phi3", {"rope_parameters": longrope}, "rope_type"),
        ("Qwen2", {"layer_types": ["full_attention", "chunked_attention", "full_attention"]}, "layer_types"),
        ("Qwen2", {"layer_types": ["full_attention"]}, "layer_types"),
        ("Qwen2", {"layer_types": None, "max_window_layers": "all"}, "max_window_layers"),
        ("Gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("Gemma2", {"query_pre_attn_scalar": "large"}, "query_pre_attn_scalar"),
        ("Gemma3", {"rope_parameters": {"sliding_attention": LINEAR}}, "rope_type"),
        ("Gemma3", {"rope_parameters": []}, "rope_parameters"),
        ("Mistral", {"sliding_window": 0}, "sliding_window"),
        ("Mistral", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ]
    for family, changes, key in wrong:
        model = random_family(family, MODELS[family][0][0])
        model.save_pretrained(tmp_path)
        path = tmp_path / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        if changes == {"rope_parameters": []}:
            continue
        with pytest.raises(WeightsError, match=rf"config\.json.*: {key} \("):
            read_pretrained(tmp_path)
