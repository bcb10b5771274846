"""Every family at the size at which it was published, in float32 and float64.

Weights are random, so nothing is downloaded. One model at a time, since each takes up to a gigabyte.
"""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers as hf
from huggingface_cases import (
    DOUBLE,
    SINGLE,
    difference,
    ragged,
    random_model,
    saved_and_read,
    stepwise,
    stepwise_theirs,
    tokens,
)
from numpy_models import llama_logits, t5_logits
from safetensors.torch import load_file
from torch import Tensor, nn
from translation_cases import Batch, batch_for, ours_of, theirs_of


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path)
    gc.collect()


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@torch.no_grad()
def test_bert_base(directory: Path) -> None:
    model = random_model(hf.BertForPreTraining, hf.BertConfig())
    ours = saved_and_read(model, directory)
    assert parameters(ours) == 110_106_428
    layout, mask, real = ragged(2, 16)
    ids, segments = tokens(model.config, 2, 16), tokens(model.config, 2, 16, vocabulary=2)

    for dtype, limit in ((torch.float32, SINGLE), (torch.float64, DOUBLE)):
        ours, model = ours.to(dtype), model.to(dtype)
        out = model(ids, attention_mask=mask, token_type_ids=segments)
        hidden = ours(ids, layout, segments)
        assert hidden.dtype == dtype
        assert difference(ours.heads["masked"](hidden)[real], out.prediction_logits[real]) < limit
        assert difference(ours.heads["next-sentence"](hidden, layout), out.seq_relationship_logits) < limit


@torch.no_grad()
def test_gpt2(directory: Path) -> None:
    model = random_model(hf.GPT2LMHeadModel, hf.GPT2Config())
    ours = saved_and_read(model, directory)
    assert parameters(ours) == 124_439_808
    layout, mask, real = ragged(2, 16)
    ids = tokens(model.config, 2, 16)

    for dtype, limit in ((torch.float32, SINGLE), (torch.float64, DOUBLE)):
        ours, model = ours.to(dtype), model.to(dtype)
        assert difference(ours(ids, layout)[real], model(ids, attention_mask=mask).logits[real]) < limit
        assert difference(stepwise(ours, ids, 12), stepwise_theirs(model, ids, 12)) < limit


@torch.no_grad()
def test_vit_base(directory: Path) -> None:
    model = random_model(hf.ViTForImageClassification, hf.ViTConfig(num_labels=1000))
    ours = saved_and_read(model, directory)
    assert parameters(ours) == 86_567_656
    images = torch.randn(2, 3, 224, 224)
    assert difference(ours.heads["classification"](ours(images)), model(images).logits) < SINGLE
    model.set_attn_implementation("sdpa")  # their plain attention takes the softmax in float32 in any case
    ours, model, images = ours.double(), model.double(), images.double()
    assert difference(ours.heads["classification"](ours(images)), model(images).logits) < DOUBLE


def step_by_step(ours: nn.Module, model: hf.PreTrainedModel, batch: Batch) -> float:
    """How far cached decoding, over a ragged source, is from theirs."""
    source, target, layout, _, mask, _, _ = batch
    encoded = model.get_encoder()(input_ids=source, attention_mask=mask)
    expected = stepwise_theirs(model, target, 11, encoder_outputs=encoded, attention_mask=mask)
    return difference(stepwise(ours, target, 11, (ours.encode(source, layout), layout)), expected)


def translation(kind: type[hf.PreTrainedModel], config: hf.MarianConfig | hf.BartConfig, directory: Path) -> nn.Module:
    model = random_model(kind, config)
    ours = saved_and_read(model, directory)
    batch = batch_for(model, 0, times=(16, 15))
    for dtype, limit in ((torch.float32, SINGLE), (torch.float64, DOUBLE)):
        ours, model = ours.to(dtype), model.to(dtype)
        assert difference(ours_of(ours, batch), theirs_of(model, batch)) < limit
        assert step_by_step(ours, model, batch) < limit
    return ours


def in_both_stacks(layers: int, attention_heads: int, ffn_dim: int) -> dict[str, int]:
    sizes = {"layers": layers, "attention_heads": attention_heads, "ffn_dim": ffn_dim}
    return {f"{stack}_{key}": value for stack in ("encoder", "decoder") for key, value in sizes.items()}


@torch.no_grad()
def test_marian_as_opus_mt(directory: Path) -> None:
    config = hf.MarianConfig(
        **in_both_stacks(layers=6, attention_heads=8, ffn_dim=2048),
        d_model=512,
        activation_function="swish",
        scale_embedding=True,
        max_position_embeddings=512,
    )
    ours = translation(hf.MarianMTModel, config, directory)
    assert parameters(ours) == 73_886_208 + 58_101


@torch.no_grad()
def test_bart_base(directory: Path) -> None:
    config = hf.BartConfig(**in_both_stacks(layers=6, attention_heads=12, ffn_dim=3072), d_model=768)
    ours = translation(hf.BartForConditionalGeneration, config, directory)
    assert parameters(ours) == 139_420_416 + 50_265  # theirs do not count the output's bias, a buffer


def float64_weights(directory: Path) -> dict[str, object]:
    return {name: tensor.double().numpy() for name, tensor in load_file(directory / "model.safetensors").items()}


@torch.no_grad()
def test_t5_base(directory: Path) -> None:
    config = hf.T5Config(d_model=768, d_ff=3072, num_layers=12, num_heads=12)
    model = random_model(hf.T5ForConditionalGeneration, config)
    ours = saved_and_read(model, directory)
    assert parameters(ours) == 222_903_552
    batch = batch_for(model, 0, times=(16, 15))
    assert difference(ours_of(ours, batch), theirs_of(model, batch)) < SINGLE
    assert step_by_step(ours, model, batch) < SINGLE
    del model
    source, target, source_layout, target_layout, _, _, _ = batch
    logits: Tensor = ours.double()(source, target, source_layout, target_layout)
    cached = stepwise(ours, target, 11, (ours.encode(source, source_layout), source_layout))
    row, weights = 1, float64_weights(directory)
    long, short = int(source_layout.lengths_B[row]), int(target_layout.lengths_B[row])
    values = json.loads((directory / "config.json").read_text())
    wanted = t5_logits(weights, values, source[row, :long].tolist(), target[row, :short].tolist())
    assert difference(logits[row, :short], torch.from_numpy(wanted)) < DOUBLE
    assert difference(cached[row, :short], torch.from_numpy(wanted)) < DOUBLE


@torch.no_grad()
def test_llama_as_smollm2_135m(directory: Path) -> None:
    config = hf.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
    )
    model = random_model(hf.LlamaForCausalLM, config)
    ours = saved_and_read(model, directory)
    assert parameters(ours) == 134_515_008
    layout, mask, real = ragged(2, 16)
    ids = tokens(config, 2, 16)
    assert difference(ours(ids, layout)[real], model(ids, attention_mask=mask).logits[real]) < SINGLE
    assert difference(stepwise(ours, ids, 12), stepwise_theirs(model, ids, 12)) < SINGLE
    del model
    values = json.loads((directory / "config.json").read_text())
    wanted = llama_logits(float64_weights(directory), values, ids[0].tolist())
    assert difference(ours.double()(ids, layout)[0], torch.from_numpy(wanted)) < DOUBLE
    assert difference(stepwise(ours, ids, 12)[0], torch.from_numpy(wanted)) < DOUBLE
