"""BART, Marian and T5 against transformers and, in float64, against themselves or NumPy."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
import transformers as hf
from huggingface_cases import DOUBLE, SINGLE, difference, random_model, saved_and_read, written_and_loaded
from numpy_models import t5_logits
from safetensors.torch import load_file, save_file
from torch import nn
from translation_cases import assert_same, assert_same_stepwise, batch_for, ours_of, theirs_of

import regard
from regard.blocks.settings import Attention, Dense, LayerNorm
from regard.models.settings import EncoderDecoder
from regard.weights.huggingface.directory import read_pretrained, write_pretrained


def bart_config(seed: int) -> hf.BartConfig:
    draw = random.Random(seed)
    heads, hidden = draw.choice([1, 2, 3, 4]), draw.choice([8, 24, 50])
    vocabulary = draw.randint(20, 60)
    return hf.BartConfig(
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


def marian_config(seed: int) -> hf.MarianConfig:
    draw = random.Random(seed)
    heads, hidden = draw.choice([1, 2, 3, 4]), draw.choice([8, 24, 50])
    shared = seed % 3 != 0
    vocabulary = draw.randint(20, 60)
    return hf.MarianConfig(
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


def t5_config(seed: int) -> hf.T5Config:
    draw = random.Random(seed)
    return hf.T5Config(
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


def t5_model(seed: int) -> hf.T5ForConditionalGeneration:
    """Tied and scaled as version 1.0, or with an output of its own as 1.1, which their class only takes from a file."""
    model = random_model(hf.T5ForConditionalGeneration, t5_config(seed), seed)
    if seed % 2:
        with torch.no_grad():
            model.lm_head.weight = nn.Parameter(model.shared.weight.flip(0, 1) * 0.7)
        model.all_tied_weights_keys.pop("lm_head.weight")
    return model


def in_both_stacks(attention_heads: int, ffn_dim: int) -> dict[str, int]:
    sizes = {"layers": 1, "attention_heads": attention_heads, "ffn_dim": ffn_dim}
    return {f"{stack}_{key}": value for stack in ("encoder", "decoder") for key, value in sizes.items()}


def model_of(name: str, seed: int) -> hf.PreTrainedModel:
    """For seed 4 with the published sizes of one layer: BART base, OPUS-MT, T5 base."""
    if name == "t5":
        published = hf.T5Config(vocab_size=1000, d_model=768, d_ff=3072, num_layers=1, num_heads=12)
        return t5_model(seed) if seed < 4 else random_model(hf.T5ForConditionalGeneration, published)
    if name == "bart":
        published = hf.BartConfig(**in_both_stacks(12, 3072), d_model=768, vocab_size=1000, pad_token_id=1)
        return random_model(hf.BartForConditionalGeneration, bart_config(seed) if seed < 4 else published, seed)
    names = {
        "activation_function": "swish",
        "vocab_size": 1000,
        "pad_token_id": 999,
        "scale_embedding": True,
        "max_position_embeddings": 512,
    }
    published = hf.MarianConfig(**in_both_stacks(8, 2048), d_model=512, **names)
    return random_model(hf.MarianMTModel, marian_config(seed) if seed < 4 else published, seed)


@torch.no_grad()
def test_logits_at_random_sizes(tmp_path: Path) -> None:
    for name in ("bart", "marian", "t5"):
        for seed in range(5):
            place = tmp_path / f"{name}{seed}"
            model = model_of(name, seed)
            # Our sinusoids have no end, so their length is given.
            length = {"max_position_embeddings": model.config.max_position_embeddings} if name == "marian" else None
            assert_same(model, place, seed, length)
            exact = saved_and_read(model, place / "double", torch.float64)
            if name == "t5":
                assert ("output" in exact.settings.tied) == (seed % 2 == 0)
                against_numpy(model, exact, place / "double", seed)
            else:
                batch = batch_for(model, seed)
                assert difference(ours_of(exact, batch), theirs_of(model.double(), batch)) < DOUBLE, (name, seed)


def against_numpy(model: hf.PreTrainedModel, exact: nn.Module, directory: Path, seed: int) -> None:
    """T5 computes norms and scores in float32 in transformers, whatever the dtype."""
    weights = {name: tensor.double().numpy() for name, tensor in load_file(directory / "model.safetensors").items()}
    config = json.loads((directory / "config.json").read_text())
    source, target, source_layout, target_layout, _, _, _ = batch_for(model, seed, times=(40, 37))
    logits = exact(source, target, source_layout, target_layout)
    for row, (long, short) in enumerate(zip(source_layout.lengths_B, target_layout.lengths_B, strict=True)):
        wanted = t5_logits(weights, config, source[row, :long].tolist(), target[row, :short].tolist())
        assert difference(logits[row, :short], torch.from_numpy(wanted)) < DOUBLE, seed


@torch.no_grad()
def test_logits_with_a_cache(tmp_path: Path) -> None:
    double = ((torch.float32, SINGLE), (torch.float64, DOUBLE))
    for name, seed, precisions in (
        ("bart", 3, double),
        ("marian", 3, double),
        ("t5", 0, double[:1]),
        ("t5", 1, double[:1]),
    ):
        for dtype, limit in precisions:
            model = model_of(name, seed)
            ours = saved_and_read(model, tmp_path / f"{name}{seed}", dtype)
            model = model.to(dtype)
            assert_same_stepwise(model, ours, limit, model.get_encoder())


@torch.no_grad()
def test_distances_beyond_the_longest(tmp_path: Path) -> None:
    model = t5_model(0)
    batch = batch_for(model, 0, times=(150, 140))
    assert difference(ours_of(saved_and_read(model, tmp_path), batch), theirs_of(model, batch)) < SINGLE


@torch.no_grad()
def test_bart_without_a_head(tmp_path: Path) -> None:
    for tied in (True, False):
        config = bart_config(2)
        config.tie_word_embeddings = tied
        model = random_model(hf.BartModel, config)
        source, target, layout, _, mask, _, _ = batch_for(model, 0)
        hidden = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).last_hidden_state
        ours = saved_and_read(model, tmp_path / f"theirs{tied}")
        assert difference(ours.states(target, ours.encode(source, layout), layout), hidden) < SINGLE


@torch.no_grad()
def test_an_untied_bart_file_of_version_4(tmp_path: Path) -> None:
    """It shared the embeddings even when the output was a matrix of its own, and wrote them once."""
    config = bart_config(1)
    model = random_model(hf.BartForConditionalGeneration, config)
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


@torch.no_grad()
def test_the_papers_own_model_is_one_of_theirs(tmp_path: Path) -> None:
    """Without biases and with sines and cosines in turn: zeros and another order of the channels make it theirs.

    With norms first it becomes a Pegasus."""
    for name, settings in PAPER.items():
        torch.manual_seed(0)
        ours = regard.build(settings, dtype=torch.float64).eval()
        for parameter in ours.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        write_pretrained(ours, tmp_path / name)
        theirs, report = hf.AutoModelForSeq2SeqLM.from_pretrained(
            tmp_path / name, output_loading_info=True, dtype=torch.float64
        )
        assert not any(report.values()), report
        batch = batch_for(theirs, 0)
        expected = ours_of(ours, batch)
        assert difference(theirs_of(theirs.eval(), batch), expected) < DOUBLE
        assert difference(ours_of(read_pretrained(tmp_path / name), batch), expected) < DOUBLE
