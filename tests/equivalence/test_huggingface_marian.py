from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from huggingface_cases import DOUBLE, SINGLE, difference, random_model, saved_and_read
from transformers import AutoModelForSeq2SeqLM, MarianConfig, MarianMTModel
from translation_cases import assert_same, assert_same_stepwise, batch_for, ours_of, theirs_of

import regard
from regard.blocks.settings import Attention, Dense, LayerNorm
from regard.models.settings import EncoderDecoder
from regard.weights.huggingface.directory import read_pretrained, write_pretrained


def small_config(seed: int) -> MarianConfig:
    draw = random.Random(seed)
    heads, hidden = draw.choice([1, 2, 3, 4]), draw.choice([8, 24, 50])
    shared = seed % 3 != 0
    vocabulary = draw.randint(20, 60)
    return MarianConfig(
        vocab_size=vocabulary,
        decoder_vocab_size=vocabulary if shared else draw.randint(20, 60),
        share_encoder_decoder_embeddings=shared,
        tie_word_embeddings=seed % 4 != 1,
        d_model=heads * draw.choice([-(-16 // heads), 10, 17]),
        encoder_layers=draw.randint(1, 3),
        decoder_layers=draw.randint(1, 3),
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=hidden,
        decoder_ffn_dim=hidden,
        activation_function=draw.choice(["swish", "relu", "gelu"]),
        scale_embedding=draw.random() < 0.5,
        max_position_embeddings=draw.choice([16, 40]),
        pad_token_id=vocabulary - 1 if shared else 3,
        decoder_start_token_id=1,
    )


@pytest.mark.parametrize("seed", range(8))
@torch.no_grad()
def test_logits_at_a_random_size(seed: int, tmp_path: Path) -> None:
    model = random_model(MarianMTModel, small_config(seed), seed)
    # With us the sinusoids have no end, so their length is said again.
    assert_same(model, tmp_path, seed, {"max_position_embeddings": model.config.max_position_embeddings})
    exact = saved_and_read(model, tmp_path / "double", torch.float64)
    batch = batch_for(model, seed)
    assert difference(ours_of(exact, batch), theirs_of(model.double(), batch)) < DOUBLE


@pytest.mark.parametrize("kind", ["growing", "fixed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_logits_with_a_cache(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = random_model(MarianMTModel, small_config(3))
    ours = saved_and_read(model, tmp_path, dtype)
    model = model.to(dtype)
    limit = SINGLE if dtype == torch.float32 else DOUBLE
    assert_same_stepwise(model, ours, kind, limit, model.get_encoder())


PAPER = {
    "paper": EncoderDecoder(
        vocabulary=40, width=24, depth=2, attention=Attention(heads=3, bias=False), embedding_scale=True
    ),
    "few biases": EncoderDecoder(
        vocabulary=40,
        target_vocabulary=30,
        width=20,
        depth=1,
        decoder_depth=2,
        attention=Attention(heads=2, bias=True, output_bias=False),
        ffn=Dense(hidden=30, activation="silu", bias=False),
        norm=LayerNorm(bias=False),
        tied=("target", "output"),
        output_bias=True,
    ),
    "norms first": EncoderDecoder(
        vocabulary=40,
        width=24,
        depth=2,
        decoder_depth=1,
        attention=Attention(heads=3, bias=False),
        norm_place="pre",
        embedding_scale=True,
    ),
    "odd width": EncoderDecoder(vocabulary=40, width=15, depth=1, attention=Attention(heads=3, bias=False), tied=()),
}


@pytest.mark.parametrize("name", PAPER)
@torch.no_grad()
def test_the_papers_own_model_is_one_of_theirs(name: str, tmp_path: Path) -> None:
    """Without biases and with sines and cosines in turn: zeros and another order of the channels make it theirs.

    With norms first it becomes a Pegasus."""
    torch.manual_seed(0)
    ours = regard.build(PAPER[name], dtype=torch.float64).eval()
    for parameter in ours.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    write_pretrained(ours, tmp_path)
    theirs, report = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True, dtype=torch.float64)
    assert not any(report.values()), report
    batch = batch_for(theirs, 0)
    expected = ours_of(ours, batch)
    assert difference(theirs_of(theirs.eval(), batch), expected) < DOUBLE
    assert difference(ours_of(read_pretrained(tmp_path), batch), expected) < DOUBLE
