"""Recorded attention and residual streams against those that transformers gives (eager attention, its own code)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_cases import ragged, tokens
from huggingface_directories import SMALL, randomised
from torch import Tensor
from torch.testing import assert_close
from transformers import PreTrainedModel

import regard
from regard.blocks.recording import Recording
from regard.weights.huggingface.directory import write_pretrained

LAYERS = 3
KINDS = {
    "bert": transformers.BertModel,
    "gpt2": transformers.GPT2LMHeadModel,
    "llama": transformers.LlamaForCausalLM,
    "vit": transformers.ViTModel,
    "marian": transformers.MarianMTModel,
    "t5": transformers.T5ForConditionalGeneration,
}


def both(name: str, directory: Path) -> tuple[Any, PreTrainedModel]:
    """One model, here and there."""
    changes = {"depth": LAYERS, "norm.eps": 1e-5, "heads": {}} if name in ("bert", "vit") else {"depth": LAYERS}
    settings = SMALL[name].model_copy(update={"heads": {}}) if "heads" in changes else SMALL[name]
    changes.pop("heads", None)
    ours = randomised(settings.changed(changes)).eval()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.mul_(0.3)
    write_pretrained(ours, directory)
    return ours, KINDS[name].from_pretrained(directory, attn_implementation="eager").eval()


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


@torch.no_grad()
def test_one_stack(tmp_path: Path) -> None:
    for name in ("bert", "gpt2", "llama", "vit"):
        ours, model = both(name, tmp_path / name)
        options = {"output_attentions": True, "output_hidden_states": True}
        if name == "vit":
            images = torch.randn(2, 3, 8, 12)
            theirs, real = model(images, **options), torch.ones(2, 7, dtype=torch.bool)
        else:
            layout, mask, real = ragged(3, 8)
            ids = tokens(model.config, 3, 8)
            theirs = model(ids, attention_mask=mask, **options)
        with regard.record(ours, "*") as seen:
            ours(images) if name == "vit" else ours(ids, layout)
        stack = "encoder" if name in ("bert", "vit") else "decoder"
        assert_weights(seen, stack, "attention", theirs.attentions, real)
        if name != "vit":
            assert_streams(seen, stack, theirs.hidden_states, real)


@torch.no_grad()
def test_steps_of_gpt2(tmp_path: Path) -> None:
    """With a cache on both sides."""
    ours, model = both("gpt2", tmp_path)
    ids = tokens(model.config, 2, 8)
    past, theirs, cache = None, [], ours.new_cache(2)
    with regard.record(ours, "*.weights") as seen:
        for chunk in (ids[:, :4], *ids[:, 4:].split(1, dim=1)):
            out = model(chunk, past_key_values=past, use_cache=True, output_attentions=True)
            past = out.past_key_values
            theirs.append(out.attentions)
            ours(chunk, cache=cache)
    for layer in range(LAYERS):
        events = seen.events_of(f"decoder.{layer}.attention.weights")
        assert [event.step for event in events] == [0, 1, 2, 3, 4]
        for event, wanted in zip(events, theirs, strict=True):
            assert_close(event.value, wanted[layer], rtol=0, atol=1e-5)


@torch.no_grad()
def test_encoder_decoders(tmp_path: Path) -> None:
    for name in ("marian", "t5"):
        ours, model = both(name, tmp_path / name)
        source_layout, source_mask, source_real = ragged(3, 9)
        target_layout, target_mask, real = ragged(3, 7, 1)
        source, target = tokens(model.config, 3, 9), tokens(model.config, 3, 7, 1)
        theirs = model(
            input_ids=source,
            attention_mask=source_mask,
            decoder_input_ids=target,
            decoder_attention_mask=target_mask,
            output_attentions=True,
        )
        with regard.record(ours, "*.weights") as seen:
            ours(source, target, source_layout, target_layout)
        assert_weights(seen, "encoder", "attention", theirs.encoder_attentions, source_real)
        assert_weights(seen, "decoder", "attention", theirs.decoder_attentions, real)
        assert_weights(seen, "decoder", "cross", theirs.cross_attentions, real)
