from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from huggingface_cases import DOUBLE, SINGLE, difference, random_model, saved_and_read, written_and_loaded
from safetensors.torch import load_file, save_file
from transformers import BartConfig, BartForConditionalGeneration, BartModel
from translation_cases import assert_same, assert_same_stepwise, batch_for, ours_of, theirs_of

from regard.weights.huggingface.directory import read_pretrained


def small_config(seed: int) -> BartConfig:
    draw = random.Random(seed)
    heads, hidden = draw.choice([1, 2, 3, 4]), draw.choice([8, 24, 50])
    vocabulary = draw.randint(20, 60)
    return BartConfig(
        vocab_size=vocabulary,
        tie_word_embeddings=seed % 4 != 1,
        d_model=heads * draw.choice([-(-16 // heads), 10, 17]),
        encoder_layers=draw.randint(1, 3),
        decoder_layers=draw.randint(1, 3),
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=hidden,
        decoder_ffn_dim=hidden,
        activation_function=draw.choice(["gelu", "relu", "gelu_new"]),
        scale_embedding=draw.random() < 0.5,
        max_position_embeddings=draw.choice([16, 40]),
        pad_token_id=vocabulary - 1,
        decoder_start_token_id=1,
    )


@pytest.mark.parametrize("seed", range(8))
@torch.no_grad()
def test_logits_at_a_random_size(seed: int, tmp_path: Path) -> None:
    model = random_model(BartForConditionalGeneration, small_config(seed), seed)
    assert_same(model, tmp_path, seed)
    exact = saved_and_read(model, tmp_path / "double", torch.float64)
    batch = batch_for(model, seed)
    assert difference(ours_of(exact, batch), theirs_of(model.double(), batch)) < DOUBLE


@pytest.mark.parametrize("kind", ["growing", "fixed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_logits_with_a_cache(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = random_model(BartForConditionalGeneration, small_config(3))
    ours = saved_and_read(model, tmp_path, dtype)
    model = model.to(dtype)
    limit = SINGLE if dtype == torch.float32 else DOUBLE
    assert_same_stepwise(model, ours, kind, limit, model.get_encoder())


@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_the_class_without_a_head(tied: bool, tmp_path: Path) -> None:
    config = small_config(2)
    config.tie_word_embeddings = tied
    model = random_model(BartModel, config)
    source, target, layout, _, mask, _, _ = batch_for(model, 0)
    hidden = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).last_hidden_state
    ours = saved_and_read(model, tmp_path / "theirs")
    assert difference(ours.states(target, ours.encode(source, layout), layout), hidden) < SINGLE
    if tied:
        back = written_and_loaded(ours, model, tmp_path / "ours", architecture="BartModel")
        again = back(input_ids=source, attention_mask=mask, decoder_input_ids=target).last_hidden_state
        assert difference(again, hidden) < SINGLE


@torch.no_grad()
def test_an_untied_file_of_version_4(tmp_path: Path) -> None:
    """It shared the embeddings even when the output was a matrix of its own, and wrote them once."""
    config = small_config(1)
    model = random_model(BartForConditionalGeneration, config)
    model.model.encoder.embed_tokens.weight = model.model.decoder.embed_tokens.weight = model.model.shared.weight
    batch = batch_for(model, 0)
    expected = theirs_of(model, batch)
    saved_and_read(model, tmp_path / "theirs")
    path = tmp_path / "theirs" / "model.safetensors"
    tensors = load_file(path)
    for stack in ("encoder", "decoder"):
        tensors.pop(f"model.{stack}.embed_tokens.weight", None)
    save_file(tensors, path)
    ours = read_pretrained(tmp_path / "theirs")
    assert ours.settings.tied == ("source", "target")
    assert difference(ours_of(ours, batch), expected) < SINGLE
    back = written_and_loaded(ours, model, tmp_path / "ours")
    assert difference(theirs_of(back, batch), expected) < SINGLE
