"""Random models of transformers, saved and read by Regard, and the measure of how far two answers are apart."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from regard.blocks.layout import Padded
from regard.weights.huggingface.directory import read_pretrained, write_pretrained

logging.getLogger("transformers").setLevel(logging.ERROR)
transformers.utils.logging.disable_progress_bar()

SINGLE, DOUBLE = 1e-5, 1e-10
"""How far answers may be apart, as a share of the largest, in float32 and in float64."""

NOISE = 1_000_003
"""Random values that are drawn once and then repeated, which is much faster; a prime, so that no two rows are equal."""


def random_model(
    kind: type[PreTrainedModel], config: PreTrainedConfig, seed: int = 0, attention: str = "eager"
) -> PreTrainedModel:
    """A model in which every parameter matters: nothing is zero or one, no row of an embedding is empty.

    Matrices keep the size of what they multiply, so that a deep model's numbers stay moderate and attention is neither
    flat nor a single spike.
    """
    config._attn_implementation = attention
    with torch.device("meta"):
        model = kind(config)
    model = model.to_empty(device="cpu")
    for parameter in model.parameters():
        parameter._is_hf_initialized = parameter.requires_grad
    model.init_weights()  # what is computed: buffers and fixed tables
    largest = max(tensor.numel() for tensor in model.parameters())
    noise = torch.randn(NOISE, generator=torch.Generator().manual_seed(seed)).repeat(2 + largest // NOISE)
    start = 0
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if tensor.requires_grad:
                values = noise[start : start + tensor.numel()]
                tensor.copy_(_suited(name, values.view_as(tensor), config))
                start = (start + tensor.numel()) % NOISE
        for name, tensor in model.named_buffers():
            if name == "final_logits_bias":
                tensor.copy_(noise[: tensor.numel()])
    model.tie_weights()
    return model.eval()


def _suited(name: str, values: Tensor, config: PreTrainedConfig) -> Tensor:
    """Standard normal values made fit for their place in the model."""
    if "norm" in name.lower() or ".ln_" in name:
        return 0.2 * values + (1 if name.endswith("weight") else 0)
    if values.dim() == 1 or "position" in name or "relative_attention_bias" in name or "cls_token" in name:
        return 0.3 * values
    inputs = len(values) if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")) else values[0].numel()
    if name.endswith(("SelfAttention.q.weight", "EncDecAttention.q.weight")):
        inputs *= config.d_kv  # T5 does not divide by √head_size, and starts with small queries instead
    return values * inputs**-0.5


def saved_and_read(model: PreTrainedModel, directory: Path, dtype: torch.dtype | None = None) -> nn.Module:
    """The same model in Regard, by way of a file."""
    model.save_pretrained(directory)
    return read_pretrained(directory, dtype=dtype)


def written_and_loaded(ours: nn.Module, model: PreTrainedModel, directory: Path, **options: Any) -> PreTrainedModel:
    """Our model written, and read back by transformers, which must find every tensor and no other, to the last bit."""
    write_pretrained(ours, directory, **options)
    attention = model.config._attn_implementation
    loaded, report = type(model).from_pretrained(directory, output_loading_info=True, attn_implementation=attention)
    assert not any(report.values()), report
    used = model.state_dict().keys() - _unused(model)
    assert loaded.state_dict().keys() - _unused(model) == used
    for name in used:
        assert torch.equal(loaded.state_dict()[name], model.state_dict()[name]), name
    return loaded.eval()


def _unused(model: PreTrainedModel) -> set[str]:
    """Tensors that a model without tied weights holds and never looks at."""
    if getattr(model.config, "tie_word_embeddings", False):
        return set()
    return {"model.shared.weight", "shared.weight", "cls.predictions.bias"}


def difference(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference as a share of the largest value."""
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    assert torch.isfinite(ours).all()
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def tokens(config: PreTrainedConfig, batch: int, time: int, seed: int = 0, vocabulary: int | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary or config.vocab_size, (batch, time), generator=generator)


def ragged(batch: int, time: int, seed: int = 0) -> tuple[Padded, Tensor, Tensor]:
    """A layout whose rows differ in length, the same as their attention mask, and which cells are real."""
    lengths = torch.tensor([time, *(random.Random(seed).randint(1, time - 1) for _ in range(batch - 1))])
    real = torch.arange(time) < lengths[:, None]
    return Padded.of(lengths, time), real.long(), real


# ------------------------------------------------------------------------------------------------------- with a cache


def stepwise(ours: nn.Module, ids: Tensor, first: int, memory: tuple[Tensor, Padded] | None = None) -> Tensor:
    """Our logits `[B, T, V]`: the first tokens at once, then one at a time."""
    cache = ours.new_cache(len(ids))
    parts = []
    for chunk in (ids[:, :first], *ids[:, first:].split(1, dim=1)):
        parts.append(
            ours(chunk, cache=cache) if memory is None else ours.output(ours.states(chunk, *memory, cache=cache))
        )
    return torch.cat(parts, dim=1)


def stepwise_theirs(model: PreTrainedModel, ids: Tensor, first: int, **inputs: Any) -> Tensor:
    """Their logits, likewise; `inputs` are the encoder's output and mask, where there is one."""
    past, parts = None, []
    name = "decoder_input_ids" if inputs else "input_ids"
    for chunk in (ids[:, :first], *ids[:, first:].split(1, dim=1)):
        out = model(**{name: chunk}, **inputs, past_key_values=past, use_cache=True)
        past = out.past_key_values
        parts.append(out.logits)
    return torch.cat(parts, dim=1)


def stepwise_ragged(ours: nn.Module, ids: Tensor, layout: Padded, more: Tensor) -> list[Tensor]:
    """Our logits of each row: prompts of different lengths at once, then `more` tokens one at a time."""
    cache = ours.new_cache(len(ids))
    prompt = ours(ids, layout, cache=cache)
    steps = torch.cat([ours(chunk, cache=cache) for chunk in more.split(1, dim=1)], dim=1)
    lengths = layout.lengths_B.tolist()
    return [torch.cat([prompt[row, :length], steps[row]]) for row, length in enumerate(lengths)]
