"""A model of ours, written in shards, read by transformers' Auto classes, written by them in shards, read by us."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from huggingface_cases import SINGLE, difference
from huggingface_directories import SMALL, randomised
from torch import Tensor, nn
from transformers import PreTrainedModel

from regard.weights.huggingface.directory import read_pretrained, write_pretrained

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


@pytest.mark.parametrize("name", SMALL)
@torch.no_grad()
def test_from_us_to_them_and_back(name: str, tmp_path: Path) -> None:
    ours = randomised(SMALL[name]).eval()
    write_pretrained(ours, tmp_path / "ours", shard_bytes=5000)
    assert len(list((tmp_path / "ours").glob("*.safetensors"))) > 1
    theirs, report = AUTO[name].from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    assert difference(*answers(name, ours, theirs.eval())) < SINGLE

    theirs.save_pretrained(tmp_path / "theirs", max_shard_size=5000)
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1
    back = read_pretrained(tmp_path / "theirs")
    parameters = dict(ours.named_parameters())
    assert list(parameters) == [key for key, _ in back.named_parameters()]
    for key, parameter in back.named_parameters():
        assert torch.equal(parameter, parameters[key]), key
    assert difference(*answers(name, back, theirs)) < SINGLE
