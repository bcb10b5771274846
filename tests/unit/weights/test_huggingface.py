"""Hugging Face directories without transformers: both ways, damaged files, and what cannot be expressed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_directories import SMALL, change_config, change_tensors, randomised
from safetensors.torch import load_file

import regard
from regard.errors import SettingsError, WeightsError
from regard.models.settings import Spans
from regard.weights.directory import load_model, read_config, save_model, write_config
from regard.weights.huggingface.directory import FAMILIES, family_for, read_pretrained, write_pretrained


def test_a_model_comes_back_equal(tmp_path: Path) -> None:
    for name, settings in SMALL.items():
        model = randomised(settings)
        write_pretrained(model, tmp_path / name)
        assert json.loads((tmp_path / name / "config.json").read_text())["model_type"] == name
        back = dict(load_model(tmp_path / name).named_parameters())
        assert list(back) == [key for key, _ in model.named_parameters()], name
        for key, parameter in model.named_parameters():
            assert torch.equal(back[key], parameter), (name, key)
        # The biases of a new model are zeros, which must not look like settings that cannot be expressed.
        model = regard.build(settings)
        write_pretrained(model, tmp_path / name)
        back = dict(load_model(tmp_path / name).named_parameters())
        for key, parameter in model.named_parameters():
            assert torch.equal(back[key], parameter) if key in back else not parameter.any()


def test_the_family_follows_from_the_settings() -> None:
    for name, settings in SMALL.items():
        assert family_for(settings).model_type == name
        assert FAMILIES[name].base in (*FAMILIES[name].architectures, "")
    for name, presets in {
        "bert": ("bert-tiny", "bert-base", "bert-large"),
        "gpt2": ("gpt2", "gpt2-xl"),
        "vit": ("vit-ti16", "vit-b16", "vit-28", "vit-32"),
        "marian": ("marian", "transformer-base"),
        "pegasus": ("transformer-tiny",),
        "bart": ("bart-base", "bart-large"),
        "t5": ("t5-small", "t5-base"),
        "llama": ("llama-tiny", "llama-7b"),
    }.items():
        for preset in presets:
            assert family_for(regard.preset(preset)).model_type == name, preset


def test_heads_of_any_name_are_written(tmp_path: Path) -> None:
    settings = SMALL["bert"].changed({"heads": {}}).model_copy(update={"heads": {"answers": Spans()}})
    write_pretrained(randomised(settings), tmp_path)
    assert list(read_pretrained(tmp_path).heads) == ["spans"]
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["BertForQuestionAnswering"]


def test_shards_of_an_earlier_model_are_removed(tmp_path: Path) -> None:
    for name in ("model-00001-of-00002.safetensors", "model.safetensors.index.json"):
        (tmp_path / name).touch()
    write_pretrained(randomised(SMALL["bart"]), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_options_of_writing(tmp_path: Path) -> None:
    extra = {"pad_token_id": 3, "max_position_embeddings": 50}
    write_pretrained(randomised(SMALL["marian"]), tmp_path / "marian", config=extra)
    config = json.loads((tmp_path / "marian" / "config.json").read_text())
    assert (config["pad_token_id"], config["max_position_embeddings"]) == (3, 50)
    tensors = load_file(tmp_path / "marian" / "model.safetensors")
    assert tensors["model.encoder.embed_positions.weight"].shape == (50, 16)

    model = randomised(SMALL["llama"]).half()
    write_pretrained(torch.compile(model, backend="eager"), tmp_path / "llama")
    assert json.loads((tmp_path / "llama" / "config.json").read_text())["dtype"] == "float16"
    assert {parameter.dtype for parameter in read_pretrained(tmp_path / "llama").parameters()} == {torch.float16}
    single = read_pretrained(tmp_path / "llama", torch.float32)
    assert {parameter.dtype for parameter in single.parameters()} == {torch.float32}


def test_missing_and_surplus_tensors(tmp_path: Path) -> None:
    for family, settings in SMALL.items():
        directory = tmp_path / family
        write_pretrained(randomised(settings), directory)
        tensors = load_file(directory / "model.safetensors")
        name = next(name for name in tensors if "norm" in name.lower() or "ln_" in name)
        change_tensors(directory, {name: None})
        with pytest.raises(WeightsError, match=name):
            load_model(directory)
        change_tensors(directory, {name: tensors[name], "adapter.weight": torch.zeros(2, 2)})
        with pytest.raises(WeightsError, match=r"adapter\.weight"):
            load_model(directory)


def test_damaged_files(tmp_path: Path) -> None:
    def directory() -> Path:
        write_pretrained(randomised(SMALL["gpt2"]), tmp_path)
        return tmp_path

    with pytest.raises(WeightsError, match=r"config\.json"):
        read_pretrained(tmp_path)
    change_tensors(directory(), {"transformer.h.0.attn.c_attn.weight": torch.zeros(48, 16)})
    with pytest.raises(WeightsError, match=r"h\.0\.attn\.c_attn\.weight is \[48, 16\].*\[16, 48\]"):  # their layout
        load_model(tmp_path)
    change_config(directory(), {"n_layer": 2})
    with pytest.raises(WeightsError, match=r"lacks transformer\.h\.1\..* 7 more"):
        load_model(tmp_path)
    change_tensors(directory(), {"transformer.wte.weight": torch.full((20, 16), float("nan"))})
    with pytest.raises(WeightsError, match=r"transformer\.wte\.weight .*320 NaN"):
        load_model(tmp_path)
    change_config(directory(), {"tie_word_embeddings": True})
    with pytest.raises(WeightsError, match=r"lm_head\.weight and transformer\.wte\.weight"):
        load_model(tmp_path)
    path = directory() / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(WeightsError, match="damaged"):
        load_model(tmp_path)
    write_pretrained(randomised(SMALL["bert"]), tmp_path)
    change_tensors(tmp_path, {"bert.embeddings.LayerNorm.gamma": torch.ones(16)})
    with pytest.raises(WeightsError, match=r"bert\.embeddings\.LayerNorm\.weight twice"):
        load_model(tmp_path)


def test_positions_that_are_not_sinusoids(tmp_path: Path) -> None:
    write_pretrained(randomised(SMALL["marian"]), tmp_path)
    name = "model.decoder.embed_positions.weight"
    table = load_file(tmp_path / "model.safetensors")[name]
    for wrong in (table + 0.01, table[:7].contiguous()):
        change_tensors(tmp_path, {name: wrong})
        with pytest.raises(WeightsError, match=rf"{name}.*not the fixed table"):
            load_model(tmp_path)
    change_tensors(tmp_path, {name: None, "model.encoder.embed_positions.weight": None})
    load_model(tmp_path)


def test_other_model_types_are_not_supported(tmp_path: Path) -> None:
    """And get no hint: CamemBERT read as BERT, and mT5 read as T5, load and give wrong results."""
    for family, others in {
        "bert": {"camembert": "CamembertModel", "deberta": "DebertaModel", "xlm-roberta": "XLMRobertaModel"},
        "t5": {"mt5": "MT5ForConditionalGeneration", "umt5": "UMT5ForConditionalGeneration"},
        "gpt2": {"gpt_neo": "GPTNeoForCausalLM", "llama3": "GPT2LMHeadModels", "xlstm": "X", None: None},
    }.items():
        write_pretrained(randomised(SMALL[family]), tmp_path)
        for model_type, architecture in others.items():
            change_config(tmp_path, {"model_type": model_type, "architectures": [architecture]})
            with pytest.raises(WeightsError, match=r"model_type .* is not supported") as error:
                load_model(tmp_path)
            assert "did you mean" not in str(error.value)
            change_config(tmp_path, {"model_type": family})
            with pytest.raises(WeightsError, match=r"architectures .* is not supported") as error:
                load_model(tmp_path)
            assert "did you mean" not in str(error.value)


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("bert", {"position_embedding_type": "relative_key"}),
    ("bert", {"is_decoder": True}),
    ("bert", {"hidden_act": "gelu_10"}),
    ("bert", {"pruned_heads": {"0": [1]}}),
    ("bert", {"architectures": None}),
    ("bert", {"hidden_size": "16"}),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    ("gpt2", {"add_cross_attention": True}),
    ("gpt2", {"activation_function": "tanh"}),
    ("gpt2", {"quantization_config": {"bits": 4}}),
    ("gpt2", {"tie_word_embeddings": "no"}),
    ("vit", {"patch_size": [4, 2]}),
    ("vit", {"pooler_act": "relu"}),
    ("vit", {"pooler_output_size": 8}),
    ("vit", {"image_size": [8]}),
    ("marian", {"decoder_attention_heads": 4}),
    ("marian", {"decoder_ffn_dim": 8}),
    ("marian", {"static_position_embeddings": False}),
    ("marian", {"decoder_vocab_size": 30}),
    ("bart", {"normalize_before": True}),
    ("bart", {"is_encoder_decoder": False}),
    ("t5", {"feed_forward_proj": "gated-tanh"}),
    ("t5", {"layer_norm_epsilon": "tiny"}),
    ("llama", {"rope_parameters": [1]}),
]
ROPE = [
    ({"rope_type": "longrope", "factor": 2.0}, "rope_type"),
    ({"rope_type": "linear"}, "factor"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ({"rope_type": "yarn", "factor": 2.0, "attention_factor": 2.0}, "attention_factor"),
    ({"rope_type": "yarn", "factor": 2.0, "mscale": 1.0, "mscale_all_dim": 0.5}, "mscale"),
    ({"rope_type": "yarn", "factor": 2.0, "truncate": False}, "truncate"),
]


def test_a_feature_is_refused_by_its_key(tmp_path: Path) -> None:
    for name, settings in SMALL.items():
        write_pretrained(randomised(settings), tmp_path / name)
    original = {name: json.loads((tmp_path / name / "config.json").read_text()) for name in SMALL}
    cases = [(name, changes, next(iter(changes))) for name, changes in REFUSED]
    for name, changes, key in [*cases, *(("llama", {"rope_parameters": rope}, key) for rope, key in ROPE)]:
        (tmp_path / name / "config.json").write_text(json.dumps({**original[name], **changes}))
        with pytest.raises(WeightsError, match=rf"config\.json.*: {key} \("):
            load_model(tmp_path / name)
    for changes, problem in (({"num_attention_heads": 3}, "width"), ({"hidden_dropout_prob": 2}, "dropout")):
        (tmp_path / "bert" / "config.json").write_text(json.dumps({**original["bert"], **changes}))
        with pytest.raises(WeightsError, match=rf"config\.json .*impossible model: .*{problem}"):
            load_model(tmp_path / "bert")


def test_settings_that_would_be_lost(tmp_path: Path) -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("bert", {"norm_place": "pre"}, "norm_place is pre, only post"),
        ("bert", {"segments": 0}, "segments is 0"),
        ("bert", {"heads.other": {"kind": "spans"}}, "heads are masked and next-sentence and spans"),
        ("bert", {"position": {"kind": "rotary"}}, "position.kind is rotary, only learned"),
        ("gpt2", {"attention.kv_heads": 1}, "attention.kv_heads is 1, only 2"),
        ("gpt2", {"attention.bias": False}, "attention.bias is False, only True"),
        ("gpt2", {"attention.scale": 0.7}, "attention.scale is 0.7, only"),
        ("gpt2", {"output_bias": True}, "output_bias is True, only False"),
        ("gpt2", {"embedding_scale": True}, "embedding_scale is True, only False"),
        ("vit", {"class_token": False, "heads.classification.pooling": "mean"}, "class_token is False, only True"),
        ("vit", {"layer_scale": 0.1}, "layer_scale is 0.1, only none"),
        ("marian", {"position.base": 500.0}, "position.base is 500.0, only 10000.0"),
        ("marian", {"tied": ["source", "output"]}, r"tied is \['source', 'output'\]"),
        ("bart", {"tied": ["target", "output"]}, r"tied is \['target', 'output'\]"),
        ("bart", {"position.offset": 0}, "position.offset is 0, only 2"),
        ("t5", {"output_scale": 0.5}, "output_scale is 0.5, only 0.25"),
        ("t5", {"tied": []}, r"tied is \[\]"),
        ("t5", {"ffn": {"kind": "gated", "activation": "gelu"}}, "ffn.activation is gelu, only gelu-tanh"),
        ("llama", {"position.order": "interleaved"}, "position.order is interleaved, only halves"),
        ("llama", {"layer_scale": 0.5}, "layer_scale is 0.5, only none"),
        ("llama", {"attention.sinks": True}, "attention.sinks is True, only False"),
        ("llama", {"ffn.kind": "experts"}, "ffn.kind is experts, only gated"),
    ]
    for name, changes, message in cases:
        model = regard.build(SMALL[name].changed(changes))
        with pytest.raises(WeightsError, match=rf"cannot be written as {name}: .*{message}"):
            write_pretrained(model, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_refused_config_values(tmp_path: Path) -> None:
    model = randomised(SMALL["gpt2"])
    for config, message in (
        ({"n_head": 3}, r"config\.json .*width \(16\)"),
        ({"vocab_size": 21}, "vocabulary is 20, only 21"),
    ):
        with pytest.raises(WeightsError, match=message):
            write_pretrained(model, tmp_path, config)


def test_a_config_that_describes_more_than_the_file(tmp_path: Path) -> None:
    """It is refused before anything of its size is built."""
    keys = {"gpt2": ("n_layer", "n_positions"), "marian": ("decoder_layers", "max_position_embeddings")}
    for name, (layers, positions) in keys.items():
        write_pretrained(randomised(SMALL[name]), tmp_path / name)
        for key, value in (
            (layers, 10**6),
            (layers, 900),
            (positions, 10**9),
            (positions, 10**15),
            (positions, 10**40),
        ):
            change_config(tmp_path / name, {layers: 1, positions: 9 if name == "gpt2" else 1024, key: value})
            with pytest.raises(WeightsError) as caught:
                read_pretrained(tmp_path / name)
            assert len(str(caught.value)) < 600
    save_model(regard.build(SMALL["gpt2"]), tmp_path / "run")
    for depth in (900, 50_000_000):
        table = read_config(tmp_path / "run")
        table["model"]["depth"] = depth
        write_config(tmp_path / "run", table)
        with pytest.raises((WeightsError, SettingsError), match=r"depth|layers"):
            load_model(tmp_path / "run")
    for content in (b"[" * 100_000, b'{"model_type": ' + b"9" * 5_000 + b"}", b'{"model_type": [[[[]]]]}'):
        (tmp_path / "gpt2" / "config.json").write_bytes(content)
        with pytest.raises(WeightsError, match=r"config\.json"):
            read_pretrained(tmp_path / "gpt2")
