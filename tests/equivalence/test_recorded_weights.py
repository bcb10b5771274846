"""Recorded attention and residual streams against those that transformers gives (eager attention, its own code)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_cases import ragged, random_model, saved_and_read, tokens
from torch import Tensor
from torch.testing import assert_close
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTModel,
)
from translation_cases import batch_for

import regard
from regard.blocks.recording import Recording

LAYERS = 3
BERT = BertConfig(
    vocab_size=40,
    hidden_size=24,
    num_hidden_layers=LAYERS,
    num_attention_heads=4,
    intermediate_size=30,
    max_position_embeddings=20,
)
GPT2 = GPT2Config(
    vocab_size=40, n_embd=24, n_layer=LAYERS, n_head=3, n_positions=20, bos_token_id=None, eos_token_id=None
)
LLAMA = LlamaConfig(
    vocab_size=40,
    hidden_size=24,
    intermediate_size=30,
    num_hidden_layers=LAYERS,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
    bos_token_id=None,
    eos_token_id=None,
)
VIT = ViTConfig(
    hidden_size=24, num_hidden_layers=LAYERS, num_attention_heads=4, intermediate_size=30, image_size=12, patch_size=4
)
MARIAN = MarianConfig(
    vocab_size=40,
    d_model=24,
    encoder_layers=LAYERS,
    decoder_layers=LAYERS,
    encoder_attention_heads=3,
    decoder_attention_heads=3,
    encoder_ffn_dim=30,
    decoder_ffn_dim=30,
    max_position_embeddings=40,
    pad_token_id=39,
    decoder_start_token_id=1,
)
T5 = T5Config(
    vocab_size=40,
    d_model=24,
    d_kv=6,
    d_ff=30,
    num_layers=LAYERS,
    num_heads=4,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=12,
    pad_token_id=39,
    decoder_start_token_id=1,
)


def assert_weights(seen: Recording, stack: str, part: str, theirs: tuple[Tensor, ...], real: Tensor) -> None:
    """`[B, H, T, K]` of every layer, at real queries: what padding looks at is nothing here and something there."""
    assert len(theirs) == LAYERS
    for layer, wanted in enumerate(theirs):
        ours = seen[f"{stack}.{layer}.{part}.weights"]
        assert isinstance(ours, Tensor)
        assert_close(ours.transpose(1, 2)[real], wanted.transpose(1, 2)[real], rtol=0, atol=1e-5)


def assert_streams(seen: Recording, stack: str, theirs: tuple[Tensor, ...], real: Tensor) -> None:
    """Before the first layer and after each but the last, which transformers gives after the last norm."""
    names = [f"{stack}.residual", *(f"{stack}.{layer}.residual" for layer in range(LAYERS - 1)), f"{stack}.out"]
    for name, wanted in zip(names, theirs, strict=True):
        ours = seen[name]
        assert isinstance(ours, Tensor)
        assert_close(ours[real], wanted[real], rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.parametrize(
    ("kind", "config", "stack"),
    [(BertModel, BERT, "encoder"), (GPT2LMHeadModel, GPT2, "decoder"), (LlamaForCausalLM, LLAMA, "decoder")],
)
@torch.no_grad()
def test_one_stack(kind: type, config: Any, stack: str, tmp_path: Path) -> None:
    model = random_model(kind, config)
    layout, mask, real = ragged(3, 13)
    ids = tokens(config, 3, 13)
    theirs = model(ids, attention_mask=mask, output_attentions=True, output_hidden_states=True)
    ours = saved_and_read(model, tmp_path)
    with regard.record(ours, "*") as seen:
        ours(ids, layout)
    assert_weights(seen, stack, "attention", theirs.attentions, real)
    assert_streams(seen, stack, theirs.hidden_states, real)


@torch.no_grad()
def test_steps_of_gpt2(tmp_path: Path) -> None:
    """With a cache on both sides."""
    model, ids = random_model(GPT2LMHeadModel, GPT2), tokens(GPT2, 2, 8)
    ours = saved_and_read(model, tmp_path)
    past, theirs = None, []
    for chunk in (ids[:, :4], *ids[:, 4:].split(1, dim=1)):
        out = model(chunk, past_key_values=past, use_cache=True, output_attentions=True)
        past = out.past_key_values
        theirs.append(out.attentions)
    cache = ours.new_cache(2)
    with regard.record(ours, "*.weights") as seen:
        for chunk in (ids[:, :4], *ids[:, 4:].split(1, dim=1)):
            ours(chunk, cache=cache)
    for layer in range(LAYERS):
        events = seen.events_of(f"decoder.{layer}.attention.weights")
        assert [event.step for event in events] == [0, 1, 2, 3, 4]
        for event, wanted in zip(events, theirs, strict=True):
            assert_close(event.value, wanted[layer], rtol=0, atol=1e-5)


@torch.no_grad()
def test_vit(tmp_path: Path) -> None:
    model, images = random_model(ViTModel, VIT), torch.randn(2, 3, 12, 12)
    theirs = model(images, output_attentions=True)
    ours = saved_and_read(model, tmp_path)
    with regard.record(ours, "*.weights") as seen:
        ours(images)
    assert_weights(seen, "encoder", "attention", theirs.attentions, torch.ones(2, 10, dtype=torch.bool))


@pytest.mark.parametrize(("kind", "config"), [(MarianMTModel, MARIAN), (T5ForConditionalGeneration, T5)])
@torch.no_grad()
def test_encoder_decoders(kind: type, config: MarianConfig | T5Config, tmp_path: Path) -> None:
    model = random_model(kind, config)
    source, target, source_layout, target_layout, source_mask, target_mask, real = batch_for(model, 0)
    theirs = model(
        input_ids=source,
        attention_mask=source_mask,
        decoder_input_ids=target,
        decoder_attention_mask=target_mask,
        output_attentions=True,
    )
    ours = saved_and_read(model, tmp_path)
    with regard.record(ours, "*.weights") as seen:
        ours(source, target, source_layout, target_layout)
    assert_weights(seen, "encoder", "attention", theirs.encoder_attentions, source_mask.bool())
    assert_weights(seen, "decoder", "attention", theirs.decoder_attentions, real)
    assert_weights(seen, "decoder", "cross", theirs.cross_attentions, real)
