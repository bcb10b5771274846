"""What settings cannot express of their configs, and their configs of our settings."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from huggingface_directories import SMALL, change_config, randomised

import regard
from regard.errors import WeightsError
from regard.weights import huggingface
from regard.weights.directory import load_model


@pytest.fixture
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory of the family that the test names."""
    huggingface.write(randomised(SMALL[request.param]), tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("directory", "changes", "message"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, r"position_embedding_type \('relative_key'\) cannot be"),
        ("bert", {"is_decoder": True}, r"is_decoder \(True\) cannot be expressed: only False can"),
        ("bert", {"hidden_act": "quick_gelu"}, r"hidden_act \('quick_gelu'\) is an activation .* known: relu, gelu"),
        ("bert", {"pruned_heads": {"0": [1]}}, r"pruned_heads .* cannot be expressed"),
        ("bert", {"architectures": ["BertForMultipleChoice"]}, r"architectures .* known: BertModel, BertForMaskedLM"),
        ("bert", {"architectures": None}, r"architectures \(None\) must name one known class"),
        ("bert", {"hidden_size": "16"}, r"hidden_size \('16'\) must be a whole number above 0"),
        ("bert", {"num_attention_heads": 3}, r"describes no possible model: width \(16\) must be a multiple of heads"),
        ("bert", {"hidden_dropout_prob": 2}, r"describes no possible model: .* less than 1"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, r"scale_attn_by_inverse_layer_idx \(True\) cannot be"),
        ("gpt2", {"add_cross_attention": True}, r"add_cross_attention \(True\) cannot be"),
        ("gpt2", {"activation_function": "tanh"}, r"activation_function \('tanh'\) is an activation"),
        ("gpt2", {"quantization_config": {"bits": 4}}, r"quantization_config .* cannot be expressed"),
        ("gpt2", {"tie_word_embeddings": "no"}, r"tie_word_embeddings \('no'\) must be true or false"),
        ("vit", {"patch_size": [4, 2]}, r"patch_size \(\[4, 2\]\) cannot be expressed: patches must be squares"),
        ("vit", {"pooler_act": "relu"}, r"pooler_act \('relu'\) cannot be"),
        ("vit", {"pooler_output_size": 8}, r"pooler_output_size \(8\) cannot be"),
        ("vit", {"image_size": [8]}, r"image_size \(\[8\]\) must be a whole number or two"),
        ("marian", {"decoder_attention_heads": 4}, r"decoder_attention_heads \(4\) differs from encoder_attention_h"),
        ("marian", {"decoder_ffn_dim": 8}, r"decoder_ffn_dim \(8\) differs from encoder_ffn_dim \(64\)"),
        ("marian", {"static_position_embeddings": False}, r"static_position_embeddings \(False\) cannot be"),
        ("marian", {"decoder_vocab_size": 30}, r"decoder_vocab_size \(30\) differs from vocab_size \(20\)"),
        ("bart", {"normalize_before": True}, r"normalize_before \(True\) cannot be"),
        ("bart", {"is_encoder_decoder": False}, r"is_encoder_decoder \(False\) cannot be"),
        ("t5", {"feed_forward_proj": "gated-tanh"}, r"feed_forward_proj \('gated-tanh'\) is an activation"),
        ("t5", {"layer_norm_epsilon": "tiny"}, r"layer_norm_epsilon \('tiny'\) must be a number"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, r"rope_type \('dynamic'\) cannot be"),
        ("llama", {"rope_parameters": {"rope_type": "linear"}}, r"factor \(None\) is needed by rope_type linear"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, r"partial_rotary_factor \(0\.5\) cannot be"),
        ("llama", {"rope_parameters": [1]}, r"rope_parameters \(\[1\]\) must be an object"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "attention_factor": 2.0}},
            r"attention_factor \(2\.0\) cannot be expressed: with factor 2\.0 it must be 1\.06",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0, "mscale_all_dim": 0.5}},
            r"mscale \(1\.0\) with mscale_all_dim cannot be",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "truncate": False}},
            r"truncate \(False\) cannot be",
        ),
    ],
    indirect=["directory"],
)
def test_a_feature_is_refused_by_name(directory: Path, changes: dict[str, Any], message: str) -> None:
    change_config(directory, changes)
    with pytest.raises(WeightsError, match=rf"config\.json.* {message}"):
        load_model(directory)


@pytest.mark.parametrize("directory", ["gpt2"], indirect=True)
def test_what_matters_to_training_alone_is_said_in_the_log(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    change_config(directory, {"embd_pdrop": 0.3})
    with caplog.at_level(logging.WARNING):
        load_model(directory)
    assert "embd_pdrop (0.3) is not kept; training takes it to be 0.1" in caplog.text


# --------------------------------------------------------------------------------- settings that configs cannot express


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("bert", {"norm_place": "pre"}, "norm_place is pre and only post can be expressed"),
        ("bert", {"segments": 0}, "segments is 0 and only 1 or more can be expressed"),
        (
            "bert",
            {"heads.other": {"kind": "pooling"}},
            "its heads are masked and next-sentence and pooling, and no class",
        ),
        ("bert", {"position": {"kind": "rotary"}}, "position.kind is rotary and only learned can be expressed"),
        ("gpt2", {"attention.kv_heads": 1}, "attention.kv_heads is 1 and only 2 can be expressed"),
        ("gpt2", {"attention.bias": False}, "attention.bias is False and only True can be expressed"),
        ("gpt2", {"attention.scale": 0.7}, "attention.scale is 0.7 and only"),
        ("gpt2", {"output_bias": True}, "output_bias is True and only False"),
        ("gpt2", {"embedding_scale": True}, "embedding_scale is True and only False"),
        ("vit", {"class_token": False, "heads.classification.pooling": "mean"}, "class_token is False and only True"),
        ("vit", {"layer_scale": 0.1}, "layer_scale is 0.1 and only none"),
        ("marian", {"position.base": 500.0}, "position.base is 500.0 and only 10000.0"),
        ("marian", {"tied": ["source", "output"]}, r"tied is \['source', 'output'\], and source and output alone"),
        ("bart", {"tied": ["target", "output"]}, r"tied is \['target', 'output'\], and only all three"),
        ("bart", {"position.offset": 0}, "position.offset is 0 and only 2"),
        ("t5", {"output_scale": 0.5}, "output_scale is 0.5 and only 0.25"),
        ("t5", {"tied": []}, r"tied is \[\], and source and target must be"),
        ("t5", {"ffn": {"kind": "gated", "activation": "gelu"}}, "ffn.activation is gelu and only gelu-tanh"),
        ("llama", {"position.order": "interleaved"}, "position.order is interleaved and only halves"),
        ("llama", {"attention.window": 8}, "attention.window is 8 and only none"),
        ("llama", {"position.scaling": {"kind": "ntk", "factor": 2.0}}, "position.scaling.factor is 2.0 and only none"),
    ],
)
def test_settings_that_would_be_lost(name: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = regard.build(SMALL[name].changed(changes))
    with pytest.raises(WeightsError, match=rf"cannot be expressed as {name}: .*{message}"):
        huggingface.write(model, tmp_path / "out")
    with pytest.raises(WeightsError, match=rf"cannot be expressed as {name}: .*{message}"):
        huggingface.write(model, tmp_path / "out", model_type=name)
    assert not (tmp_path / "out").exists()


def test_a_family_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="it is of kind decoder, and bert is of kind encoder"):
        huggingface.write(regard.build(SMALL["gpt2"]), tmp_path, model_type="bert")


def test_an_unknown_class(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"architecture \(GPT2LMHead\) is not known for gpt2 \(did you mean GPT2LMH"):
        huggingface.write(regard.build(SMALL["gpt2"]), tmp_path, architecture="GPT2LMHead")


def test_a_class_without_the_output(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="tied is False and only True can be expressed"):
        huggingface.write(regard.build(SMALL["gpt2"]), tmp_path, architecture="GPT2Model")
    with pytest.raises(WeightsError, match="tied is False, and LlamaModel has no output of its own"):
        huggingface.write(regard.build(SMALL["llama"]), tmp_path, architecture="LlamaModel")
    with pytest.raises(WeightsError, match="output_bias is True, and BartModel has no output of its own"):
        huggingface.write(randomised(SMALL["bart"]), tmp_path, architecture="BartModel")


def test_added_values_may_not_contradict(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"config\.json describes no possible model: width \(16\) must"):
        huggingface.write(regard.build(SMALL["gpt2"]), tmp_path, config={"n_head": 3})
    with pytest.raises(WeightsError, match="vocabulary is 20 and only 21 can be expressed"):
        huggingface.write(regard.build(SMALL["gpt2"]), tmp_path, config={"vocab_size": 21})
