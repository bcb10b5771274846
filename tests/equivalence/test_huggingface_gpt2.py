from __future__ import annotations

import random
from pathlib import Path

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
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

from regard.weights.huggingface.directory import read_pretrained


def small_config(seed: int) -> GPT2Config:
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


@pytest.mark.parametrize("seed", range(8))
@torch.no_grad()
def test_logits_at_a_random_size(seed: int, tmp_path: Path) -> None:
    model = random_model(GPT2LMHeadModel, small_config(seed), seed)
    layout, mask, real = ragged(3, 13, seed)
    ids = tokens(model.config, 3, 13, seed)
    expected = model(ids, attention_mask=mask).logits[real]

    ours = saved_and_read(model, tmp_path / "theirs")
    assert difference(ours(ids, layout)[real], expected) < SINGLE
    back = written_and_loaded(ours, model, tmp_path / "ours")
    assert difference(back(ids, attention_mask=mask).logits[real], expected) < SINGLE

    exact = saved_and_read(model, tmp_path / "theirs", torch.float64)
    model = model.double()
    assert difference(exact(ids, layout)[real], model(ids, attention_mask=mask).logits[real]) < DOUBLE


@pytest.mark.parametrize("kind", ["growing", "fixed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_logits_with_a_cache(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = random_model(GPT2LMHeadModel, small_config(3))
    ours = saved_and_read(model, tmp_path, dtype)
    model = model.to(dtype)
    limit = SINGLE if dtype == torch.float32 else DOUBLE
    ids = tokens(model.config, 3, 15)
    assert difference(stepwise(ours, ids, 6, kind), stepwise_theirs(model, ids, 6)) < limit

    layout, _, _ = ragged(3, 9)
    prompts, more = ids[:, :9], ids[:, 9:]
    for row, logits in enumerate(stepwise_ragged(ours, prompts, layout, more, kind)):
        whole = torch.cat([prompts[row, : layout.lengths_B[row]], more[row]])[None]
        assert difference(logits, model(whole).logits[0]) < limit


@torch.no_grad()
def test_the_class_without_a_head(tmp_path: Path) -> None:
    model = random_model(GPT2Model, small_config(4))
    ids = tokens(model.config, 2, 11)
    hidden = model(ids).last_hidden_state
    ours = saved_and_read(model, tmp_path / "theirs")
    assert difference(ours.states(ids), hidden) < SINGLE
    back = written_and_loaded(ours, model, tmp_path / "ours", architecture="GPT2Model")
    assert difference(back(ids).last_hidden_state, hidden) < SINGLE


@torch.no_grad()
def test_a_file_without_prefix_and_with_old_buffers(tmp_path: Path) -> None:
    """The first published files of GPT-2 are such."""
    config = small_config(0)
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
