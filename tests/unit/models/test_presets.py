"""Presets against what their authors printed and against the configurations that transformers ships."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from settings_cases import to_toml

import regard
from regard.blocks.settings import Learned, Rotary, Sinusoidal
from regard.errors import SettingsError
from regard.models.count import count
from regard.models.presets import all_presets, find_preset, preset, preset_names
from regard.models.settings import AnyModel, EncoderDecoder
from regard.settings import parse, read_toml

# Table 3 of Attention Is All You Need: name, N, d_model, d_ff, h, d_k, d_v, dropout.
TABLE_3 = [
    ("transformer-base", 6, 512, 2048, 8, 64, 64, 0.1),
    ("transformer-a-h1", 6, 512, 2048, 1, 512, 512, 0.1),
    ("transformer-a-h4", 6, 512, 2048, 4, 128, 128, 0.1),
    ("transformer-a-h16", 6, 512, 2048, 16, 32, 32, 0.1),
    ("transformer-a-h32", 6, 512, 2048, 32, 16, 16, 0.1),
    ("transformer-b-dk16", 6, 512, 2048, 8, 16, 64, 0.1),
    ("transformer-b-dk32", 6, 512, 2048, 8, 32, 64, 0.1),
    ("transformer-c-n2", 2, 512, 2048, 8, 64, 64, 0.1),
    ("transformer-c-n4", 4, 512, 2048, 8, 64, 64, 0.1),
    ("transformer-c-n8", 8, 512, 2048, 8, 64, 64, 0.1),
    ("transformer-c-d256", 6, 256, 2048, 8, 32, 32, 0.1),
    ("transformer-c-d1024", 6, 1024, 2048, 8, 128, 128, 0.1),
    ("transformer-c-ff1024", 6, 512, 1024, 8, 64, 64, 0.1),
    ("transformer-c-ff4096", 6, 512, 4096, 8, 64, 64, 0.1),
    ("transformer-d-dropout0.0", 6, 512, 2048, 8, 64, 64, 0.0),
    ("transformer-d-dropout0.2", 6, 512, 2048, 8, 64, 64, 0.2),
    ("transformer-d-smoothing0.0", 6, 512, 2048, 8, 64, 64, 0.1),
    ("transformer-d-smoothing0.2", 6, 512, 2048, 8, 64, 64, 0.1),
    ("transformer-e-learned", 6, 512, 2048, 8, 64, 64, 0.1),
    ("transformer-big", 6, 1024, 4096, 16, 64, 64, 0.3),
]


def test_every_preset() -> None:
    assert len(set(preset_names())) == len(all_presets())
    for entry in all_presets():
        assert parse(AnyModel, read_toml(to_toml(entry.settings))) == entry.settings
        assert "\n" not in entry.description
        assert preset(entry.name) == entry.settings == regard.preset(entry.name)


def test_changes_are_laid_over_a_preset() -> None:
    base = preset("transformer-base")
    assert preset("transformer-base", depth=4) == base.changed({"depth": 4})
    assert preset("gpt2", attention={"kv_heads": 4}).attention.heads == 12
    assert preset("gpt2", **{"attention.kv_heads": 4}) == preset("gpt2", attention={"kv_heads": 4})
    assert preset("gpt2", position=Rotary()).position == Rotary()  # type: ignore[union-attr]
    assert base == find_preset("transformer-base").settings


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(SettingsError, match=r"transformer-bse.* \(did you mean transformer-base\?\)"):
        preset("transformer-bse")
    with pytest.raises(SettingsError, match=r"dept \(did you mean depth\?\)"):
        preset("gpt2", dept=3)


def test_table_3() -> None:
    for name, layers, width, hidden, heads, key_size, value_size, dropout in TABLE_3:
        settings = preset(name)
        assert isinstance(settings, EncoderDecoder)
        assert (settings.depth, settings.decoder_layers, settings.width) == (layers, layers, width), name
        assert (settings.ffn_hidden, settings.attention.heads) == (hidden, heads), name
        assert (settings.head_size, settings.value_size, settings.dropout) == (key_size, value_size, dropout), name
        assert (settings.vocabulary, settings.attention.bias, settings.norm_place) == (37_000, False, "post"), name
        assert set(settings.tied) == {"source", "target", "output"}
        assert settings.embedding_scale
        assert isinstance(settings.position, Learned if name.endswith("learned") else Sinusoidal)


def test_the_published_size_is_near() -> None:
    """Published sizes are rounded, some to one digit, and leave parts out: 7 % covers all but ViT-Ti's "5 M"."""
    for entry in all_presets():
        if entry.published is not None:
            printed = entry.printed
            assert entry.parameters == pytest.approx(printed, rel=0.15 if entry.name == "vit-ti16" else 0.07), (
                entry.name
            )


def test_gopher_in_its_smaller_sizes() -> None:
    """Rae et al. 2021, table 1: that all five agree to the printed digits settles ties, biases and positions."""
    sizes = [
        (8, 512, 16, 44e6),
        (12, 768, 12, 117e6),
        (12, 1536, 12, 417e6),
        (24, 2048, 16, 1.4e9),
        (32, 4096, 32, 7.1e9),
    ]
    for depth, width, heads, printed in sizes:
        settings = preset("gopher", depth=depth, width=width, attention={"heads": heads})
        assert count(settings).parameters == pytest.approx(printed, rel=0.02)


def parameters_of(model_class: Any, config: Any, leave_out: str = "nothing") -> int:
    with torch.device("meta"):
        model = model_class(config)
    return sum(value.numel() for name, value in model.named_parameters() if leave_out not in name)


def bert(layers: int, width: int) -> transformers.BertConfig:
    return transformers.BertConfig(
        num_hidden_layers=layers, hidden_size=width, num_attention_heads=width // 64, intermediate_size=4 * width
    )


def gpt2(layers: int, width: int, heads: int) -> transformers.GPT2Config:
    return transformers.GPT2Config(n_layer=layers, n_embd=width, n_head=heads)


def t5(width: int, layers: int, heads: int, hidden: int) -> transformers.T5Config:
    return transformers.T5Config(
        d_model=width, num_layers=layers, num_heads=heads, d_ff=hidden, tie_word_embeddings=True
    )


THEIRS: dict[str, tuple[str, Any]] = {
    "bert-tiny": ("BertModel", bert(2, 128)),
    "bert-mini": ("BertModel", bert(4, 256)),
    "bert-small": ("BertModel", bert(4, 512)),
    "bert-medium": ("BertModel", bert(8, 512)),
    "bert-base": ("BertModel", transformers.BertConfig()),
    "bert-large": ("BertModel", bert(24, 1024)),
    "roberta-base": (
        "RobertaForMaskedLM",
        transformers.RobertaConfig(vocab_size=50_265, max_position_embeddings=514, type_vocab_size=1),
    ),
    "roformer": ("RoFormerForMaskedLM", transformers.RoFormerConfig(vocab_size=30_522)),
    "gpt": ("OpenAIGPTLMHeadModel", transformers.OpenAIGPTConfig()),
    "gpt2": ("GPT2LMHeadModel", transformers.GPT2Config()),
    "gpt2-medium": ("GPT2LMHeadModel", gpt2(24, 1024, 16)),
    "gpt2-large": ("GPT2LMHeadModel", gpt2(36, 1280, 20)),
    "gpt2-xl": ("GPT2LMHeadModel", gpt2(48, 1600, 25)),
    "llama-7b": ("LlamaForCausalLM", transformers.LlamaConfig()),
    "t5-small": ("T5ForConditionalGeneration", t5(512, 6, 8, 2048)),
    "t5-base": ("T5ForConditionalGeneration", t5(768, 12, 12, 3072)),
    "t5-large": ("T5ForConditionalGeneration", t5(1024, 24, 16, 4096)),
    "bart-large": ("BartForConditionalGeneration", transformers.BartConfig()),
    "marian": (
        "MarianMTModel",
        transformers.MarianConfig(
            vocab_size=58_101,
            d_model=512,
            **{f"{side}_layers": 6 for side in ("encoder", "decoder")},
            **{f"{side}_attention_heads": 8 for side in ("encoder", "decoder")},
            **{f"{side}_ffn_dim": 2048 for side in ("encoder", "decoder")},
            pad_token_id=58_100,
            decoder_start_token_id=58_100,
        ),
    ),
    "vit-b16": ("ViTForImageClassification", transformers.ViTConfig(num_labels=1000)),
}
OUTPUT_BIAS = {"marian": 58_101}
"""In transformers the bias of these outputs is a buffer; with us it is trained."""


def test_as_many_parameters_as_in_transformers() -> None:
    """Marian and RoFormer hold sinusoids as parameters that are not trained; here they are no parameters."""
    for name, (model_class, config) in THEIRS.items():
        sinusoids = "embed_positions" if name in ("marian", "roformer") else "nothing"
        theirs = parameters_of(getattr(transformers, model_class), config, leave_out=sinusoids)
        assert find_preset(name).parameters == theirs + OUTPUT_BIAS.get(name, 0), name
    # Counts that model cards and repositories print. BART's `final_logits_bias` is a buffer that is not trained.
    known = {"llama-1b": 1_235_814_400, "llama-7b": 6_738_415_616, "vit-l16": 304_326_632}
    for name, exact in (known | {"bart-base": 139_420_416, "bart-large": 406_291_456}).items():
        assert find_preset(name).parameters == exact
