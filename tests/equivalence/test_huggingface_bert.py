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
    tokens,
    written_and_loaded,
)
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import BertConfig, PreTrainedModel
from transformers.models import bert

from regard.weights.huggingface.directory import read_pretrained

HEADS = {
    "BertModel": ("pooling",),
    "BertForMaskedLM": ("masked",),
    "BertForPreTraining": ("masked", "next-sentence"),
    "BertForNextSentencePrediction": ("next-sentence",),
    "BertForSequenceClassification": ("classification",),
    "BertForTokenClassification": ("tagging",),
    "BertForQuestionAnswering": ("spans",),
}


def small_config(seed: int) -> BertConfig:
    draw = random.Random(seed)
    heads = draw.choice([1, 2, 3, 4])
    return BertConfig(
        vocab_size=draw.randint(20, 60),
        hidden_size=heads * draw.choice([-(-16 // heads), 10, 16]),
        num_hidden_layers=draw.randint(1, 3),
        num_attention_heads=heads,
        intermediate_size=draw.choice([8, 24, 50]),
        hidden_act=draw.choice(["gelu", "gelu_new", "relu", "silu"]),
        max_position_embeddings=draw.choice([16, 21]),
        type_vocab_size=draw.choice([1, 2, 3]),
        layer_norm_eps=draw.choice([1e-12, 1e-5]),
        tie_word_embeddings=draw.random() < 0.6,
        num_labels=2 if seed % 7 == 6 else draw.randint(1, 5),
    )


def theirs_of(model: PreTrainedModel, inputs: dict[str, Tensor], real: Tensor) -> list[Tensor]:
    """Their answers, one for each of our heads, and the hidden states."""
    out = model(**inputs, output_hidden_states=True)
    match type(model).__name__:
        case "BertModel":
            answers = [out.pooler_output]
        case "BertForPreTraining":
            answers = [out.prediction_logits[real], out.seq_relationship_logits]
        case "BertForQuestionAnswering":
            answers = [torch.stack([out.start_logits, out.end_logits], dim=-1)[real]]
        case "BertForMaskedLM" | "BertForTokenClassification":
            answers = [out.logits[real]]
        case _:
            answers = [out.logits]
    return [*answers, out.hidden_states[-1][real]]


def ours_of(
    model: nn.Module, names: tuple[str, ...], inputs: dict[str, Tensor], layout: object, real: Tensor
) -> list[Tensor]:
    hidden = model(inputs["input_ids"], layout, inputs["token_type_ids"])
    answers = [model.heads[name](hidden, layout) for name in names]
    return [*(answer[real] if answer.dim() == 3 else answer for answer in answers), hidden[real]]


@pytest.mark.parametrize("seed", range(14))
@torch.no_grad()
def test_every_head_at_a_random_size(seed: int, tmp_path: Path) -> None:
    name, heads = list(HEADS.items())[seed % 7]
    config = small_config(seed)
    model = random_model(getattr(bert, name), config, seed)
    layout, mask, real = ragged(3, 13, seed)
    segments = tokens(config, 3, 13, seed + 1, config.type_vocab_size)
    inputs = {"input_ids": tokens(config, 3, 13, seed), "attention_mask": mask, "token_type_ids": segments}

    ours = saved_and_read(model, tmp_path / "theirs")
    assert tuple(ours.heads) == heads
    expected = theirs_of(model, inputs, real)
    for answer, wanted in zip(ours_of(ours, heads, inputs, layout, real), expected, strict=True):
        assert difference(answer, wanted) < SINGLE

    back = written_and_loaded(ours, model, tmp_path / "ours")
    for answer, wanted in zip(theirs_of(back, inputs, real), expected, strict=True):
        assert difference(answer, wanted) < SINGLE

    exact = saved_and_read(model, tmp_path / "theirs", torch.float64)
    for answer, wanted in zip(
        ours_of(exact, heads, inputs, layout, real), theirs_of(model.double(), inputs, real), strict=True
    ):
        assert difference(answer, wanted) < DOUBLE


@torch.no_grad()
def test_old_names_of_norms_and_buffers_are_understood(tmp_path: Path) -> None:
    model = random_model(bert.BertForMaskedLM, small_config(1))
    saved_and_read(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    old["bert.embeddings.position_ids"] = torch.arange(16)[None]
    save_file(old, tmp_path / "model.safetensors")
    ours = read_pretrained(tmp_path)
    ids = tokens(model.config, 2, 9)
    assert difference(ours.heads["masked"](ours(ids)), model(ids).logits) < SINGLE


@torch.no_grad()
def test_a_file_for_masked_words_that_also_holds_the_other_pretraining_head(tmp_path: Path) -> None:
    """bert-base-uncased is such a file."""
    model = random_model(bert.BertForPreTraining, small_config(2))
    model.config.architectures = ["BertForMaskedLM"]
    saved_and_read(model, tmp_path)
    config = (tmp_path / "config.json").read_text().replace("BertForPreTraining", "BertForMaskedLM")
    (tmp_path / "config.json").write_text(config)
    ours = read_pretrained(tmp_path)
    ids = tokens(model.config, 2, 9)
    out, hidden = model(ids), ours(ids)
    assert difference(ours.heads["masked"](hidden), out.prediction_logits) < SINGLE
    assert difference(ours.heads["next-sentence"](hidden), out.seq_relationship_logits) < SINGLE
