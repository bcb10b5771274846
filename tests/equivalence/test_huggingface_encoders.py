"""BERT and ViT against transformers; and every family from us to transformers and back."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
import transformers
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
from huggingface_directories import SMALL, randomised
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import BertConfig, PreTrainedModel, ViTConfig, ViTForImageClassification, ViTModel
from transformers.models import bert

from regard.errors import WeightsError
from regard.weights.huggingface.directory import read_pretrained, write_pretrained

HEADS = {
    "BertModel": ("pooling",),
    "BertForMaskedLM": ("masked",),
    "BertForPreTraining": ("masked", "next-sentence"),
    "BertForNextSentencePrediction": ("next-sentence",),
    "BertForSequenceClassification": ("classification",),
    "BertForTokenClassification": ("tagging",),
    "BertForQuestionAnswering": ("spans",),
}


def bert_config(seed: int) -> BertConfig:
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


def vit_config(seed: int) -> ViTConfig:
    draw = random.Random(seed)
    heads, patch = draw.choice([1, 2, 3, 4]), draw.choice([2, 4])
    return ViTConfig(
        hidden_size=heads * draw.choice([-(-16 // heads), 10, 16]),
        num_hidden_layers=draw.randint(1, 3),
        num_attention_heads=heads,
        intermediate_size=draw.choice([8, 24, 50]),
        hidden_act=draw.choice(["gelu", "gelu_new", "relu"]),
        layer_norm_eps=draw.choice([1e-12, 1e-5]),
        image_size=draw.choice([patch * 3, [patch * 2, patch * 3]]),
        patch_size=patch,
        num_channels=draw.choice([1, 3]),
        qkv_bias=draw.random() < 0.7,
        num_labels=draw.randint(1, 7),
    )


def images(config: ViTConfig, batch: int = 3, factor: int = 1) -> torch.Tensor:
    height, width = config.image_size if isinstance(config.image_size, list) else [config.image_size] * 2
    generator = torch.Generator().manual_seed(batch)
    return torch.randn(batch, config.num_channels, factor * height, factor * width, generator=generator)


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


@torch.no_grad()
def test_every_head_of_bert_at_a_random_size(tmp_path: Path) -> None:
    for seed in range(8):
        name, heads = list(HEADS.items())[seed % 7]
        config = bert_config(seed) if seed < 7 else BertConfig(vocab_size=1000, num_hidden_layers=2)  # published sizes
        model = random_model(getattr(bert, name), config, seed)
        layout, mask, real = ragged(3, 13, seed)
        segments = tokens(config, 3, 13, seed + 1, config.type_vocab_size)
        inputs = {"input_ids": tokens(config, 3, 13, seed), "attention_mask": mask, "token_type_ids": segments}

        ours = saved_and_read(model, tmp_path / f"theirs{seed}")
        assert tuple(ours.heads) == heads
        expected = theirs_of(model, inputs, real)
        for answer, wanted in zip(ours_of(ours, heads, inputs, layout, real), expected, strict=True):
            assert difference(answer, wanted) < SINGLE

        back = written_and_loaded(ours, model, tmp_path / f"ours{seed}")
        for answer, wanted in zip(theirs_of(back, inputs, real), expected, strict=True):
            assert difference(answer, wanted) < SINGLE

        exact = saved_and_read(model, tmp_path / f"theirs{seed}", torch.float64)
        for answer, wanted in zip(
            ours_of(exact, heads, inputs, layout, real), theirs_of(model.double(), inputs, real), strict=True
        ):
            assert difference(answer, wanted) < DOUBLE


@torch.no_grad()
def test_old_names_of_norms_and_buffers_are_understood(tmp_path: Path) -> None:
    model = random_model(bert.BertForMaskedLM, bert_config(1))
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
    model = random_model(bert.BertForPreTraining, bert_config(2))
    model.config.architectures = ["BertForMaskedLM"]
    saved_and_read(model, tmp_path)
    config = (tmp_path / "config.json").read_text().replace("BertForPreTraining", "BertForMaskedLM")
    (tmp_path / "config.json").write_text(config)
    ours = read_pretrained(tmp_path)
    ids = tokens(model.config, 2, 9)
    out, hidden = model(ids), ours(ids)
    assert difference(ours.heads["masked"](hidden), out.prediction_logits) < SINGLE
    assert difference(ours.heads["next-sentence"](hidden), out.seq_relationship_logits) < SINGLE


@torch.no_grad()
def test_classes_at_a_random_size(tmp_path: Path) -> None:
    for seed in range(5):
        config = vit_config(seed) if seed < 4 else ViTConfig(num_hidden_layers=2, num_labels=1000)  # published sizes
        model = random_model(ViTForImageClassification, config, seed)
        batch = images(model.config)
        expected = model(batch).logits
        ours = saved_and_read(model, tmp_path / f"theirs{seed}")
        assert difference(ours.heads["classification"](ours(batch)), expected) < SINGLE
        back = written_and_loaded(ours, model, tmp_path / f"ours{seed}")
        assert difference(back(batch).logits, expected) < SINGLE
        exact = saved_and_read(model, tmp_path / f"theirs{seed}", torch.float64)
        model.set_attn_implementation("sdpa")  # their plain attention takes the softmax in float32 in any case
        batch = batch.double()
        assert difference(exact.heads["classification"](exact(batch)), model.double()(batch).logits) < DOUBLE


@torch.no_grad()
def test_hidden_states_and_the_pooled_vector(tmp_path: Path) -> None:
    model = random_model(ViTModel, vit_config(5))
    batch = images(model.config)
    out = model(batch)
    ours = saved_and_read(model, tmp_path / "theirs")
    assert difference(ours(batch), out.last_hidden_state) < SINGLE
    assert difference(ours.heads["pooling"](ours(batch)), out.pooler_output) < SINGLE
    back = written_and_loaded(ours, model, tmp_path / "ours")
    assert difference(back(batch).pooler_output, out.pooler_output) < SINGLE


@torch.no_grad()
def test_positions_resized_for_larger_images(tmp_path: Path) -> None:
    config = vit_config(0)
    config.image_size = 3 * config.patch_size
    model = random_model(ViTModel, config)
    ours = saved_and_read(model, tmp_path)
    batch = images(config, factor=2)
    expected = model(batch, interpolate_pos_encoding=True).last_hidden_state
    assert difference(ours(batch), expected) < SINGLE


@torch.no_grad()
def test_the_names_inside_their_newer_modules(tmp_path: Path) -> None:
    """A state dict saved as it is has other names than `save_pretrained` writes."""
    model = random_model(ViTForImageClassification, vit_config(1))
    expected = saved_and_read(model, tmp_path)(images(model.config))
    state = model.state_dict()
    assert any(".q_proj." in name for name in state)
    save_file(state, tmp_path / "model.safetensors")
    assert difference(read_pretrained(tmp_path)(images(model.config)), expected) < SINGLE


AUTO = {
    "bert": transformers.AutoModelForPreTraining,
    "gpt2": transformers.AutoModelForCausalLM,
    "vit": transformers.AutoModelForImageClassification,
    "marian": transformers.AutoModelForSeq2SeqLM,
    "pegasus": transformers.AutoModelForSeq2SeqLM,
    "bart": transformers.AutoModelForSeq2SeqLM,
    "t5": transformers.AutoModelForSeq2SeqLM,
    "llama": transformers.AutoModelForCausalLM,
}


def answers(name: str, ours: nn.Module, theirs: PreTrainedModel) -> tuple[Tensor, Tensor]:
    source, target = torch.randint(0, 20, (2, 8)), torch.randint(0, 20, (2, 6))
    if name == "bert":
        return ours.heads["masked"](ours(source)), theirs(source).prediction_logits
    if name == "vit":
        images = torch.randn(2, 3, 8, 12)
        return ours.heads["classification"](ours(images)), theirs(images).logits
    if name in ("gpt2", "llama"):
        return ours(source), theirs(source).logits
    return ours(source, target), theirs(input_ids=source, decoder_input_ids=target).logits


@torch.no_grad()
def test_from_us_to_them_and_back(tmp_path: Path) -> None:
    for name in SMALL:
        ours = randomised(SMALL[name]).eval()
        write_pretrained(ours, tmp_path / name / "ours")
        theirs, report = AUTO[name].from_pretrained(tmp_path / name / "ours", output_loading_info=True)
        assert not any(report.values()), report
        assert difference(*answers(name, ours, theirs.eval())) < SINGLE

        theirs.save_pretrained(tmp_path / name / "theirs", max_shard_size=5000)
        assert len(list((tmp_path / name / "theirs").glob("*.safetensors"))) > 1
        back = read_pretrained(tmp_path / name / "theirs")
        parameters = dict(ours.named_parameters())
        assert list(parameters) == [key for key, _ in back.named_parameters()]
        for key, parameter in back.named_parameters():
            assert torch.equal(parameter, parameters[key]), key
        assert difference(*answers(name, back, theirs)) < SINGLE


SMALL_ENCODER = {
    "vocab_size": 60,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 32,
    "intermediate_size": 56,
    "max_position_embeddings": 24,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
DISTIL = {"vocab_size": 60, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 50, "max_position_embeddings": 24}
ENCODERS: dict[str, tuple[dict[str, object], ...]] = {
    "Roberta": (
        {**SMALL_ENCODER, "type_vocab_size": 1},
        {**SMALL_ENCODER, "hidden_size": 48, "layer_norm_eps": 1e-5, "hidden_act": "gelu_new"},
    ),
    "DistilBert": (DISTIL, {**DISTIL, "dim": 48, "n_layers": 3, "activation": "relu"}),
    "Electra": (
        {**SMALL_ENCODER, "embedding_size": 16},
        {**SMALL_ENCODER, "embedding_size": 32, "hidden_act": "relu"},
    ),
    "Albert": (
        {**SMALL_ENCODER, "embedding_size": 16, "hidden_act": "gelu_new"},
        {**SMALL_ENCODER, "embedding_size": 32, "num_hidden_layers": 3},
    ),
}
MODERN: dict[str, object] = {key: value for key, value in SMALL_ENCODER.items() if not key.endswith("_prob")}
MODERN |= {"pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}
ENCODERS |= {
    "MPNet": (SMALL_ENCODER, {**SMALL_ENCODER, "hidden_size": 48, "hidden_act": "relu", "layer_norm_eps": 1e-5}),
    "ModernBert": (
        {**MODERN, "num_hidden_layers": 4, "local_attention": 8, "classifier_pooling": "mean"},
        {**MODERN, "global_attn_every_n_layers": 1},
        {
            **MODERN,
            "layer_types": ["full_attention", "sliding_attention"],
            "local_attention": 4,
            "attention_bias": True,
            "mlp_bias": True,
            "norm_bias": True,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 500.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        },
    ),
}
CLASSES = {"Model": None, "ForMaskedLM": "masked", "ForSequenceClassification": "classification"}
CLASSES |= {"ForTokenClassification": "tagging", "ForQuestionAnswering": "spans"}


@torch.no_grad()
@pytest.mark.parametrize("name", ENCODERS)
def test_other_encoders_are_read_and_written(name: str, tmp_path: Path) -> None:
    def answer(model: PreTrainedModel) -> Tensor:
        out = model(ids, attention_mask=mask)
        found = torch.stack([out.start_logits, out.end_logits], -1) if hasattr(out, "start_logits") else out[0]
        return found[real] if found.dim() == 3 else found

    layout, mask, real = ragged(3, 13, 1)
    for number, values in enumerate(ENCODERS[name]):
        for suffix, head in CLASSES.items():
            if name == "ModernBert" and head in ("tagging", "spans"):
                continue  # heads that are refused
            config = getattr(transformers, f"{name}Config")(**values, num_labels=2 if head == "spans" else 5)
            model = random_model(getattr(transformers, f"{name}{suffix}"), config, number)
            ids = tokens(config, 3, 13, number).clamp(min=3)  # without RoBERTa's padding token
            ours = saved_and_read(model, tmp_path / f"{number}{suffix}")
            hidden = ours(ids, layout)
            found = hidden[real] if head is None else ours.heads[head](hidden, layout)
            found = found[real] if found.dim() == 3 else found
            assert difference(found, answer(model)) < SINGLE
            back = tmp_path / f"{number}{suffix}.back"
            write_pretrained(ours, back)  # as the first type that can express it
            kind = getattr(transformers, f"Auto{suffix.replace('For', 'ModelFor')}")
            assert difference(answer(kind.from_pretrained(back).eval()), answer(model)) < SINGLE
            if head == "masked":  # a file with every copy of tied tensors, as older versions wrote
                every = {
                    name: tensor.clone() for name, tensor in model.state_dict().items() if tensor.is_floating_point()
                }
                save_file(every, tmp_path / f"{number}{suffix}" / "model.safetensors")
                assert torch.equal(read_pretrained(tmp_path / f"{number}{suffix}")(ids, layout), hidden)


def test_heads_and_types_that_cannot_be_expressed_are_named(tmp_path: Path) -> None:
    tags = transformers.ModernBertConfig(architectures=["ModernBertForTokenClassification"])
    for config, said in ((tags, "ModernBertForTokenClassification"), (transformers.DebertaConfig(), "deberta")):
        config.save_pretrained(tmp_path)
        save_file({"model.final_norm.weight": torch.ones(1)}, tmp_path / "model.safetensors")
        with pytest.raises(WeightsError, match=said):
            read_pretrained(tmp_path)
