"""How encoder-decoders of transformers and of Regard are held against each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from huggingface_cases import (
    SINGLE,
    difference,
    ragged,
    saved_and_read,
    stepwise,
    stepwise_theirs,
    tokens,
    written_and_loaded,
)
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from regard.blocks.layout import Padded

Batch = tuple[Tensor, Tensor, Padded, Padded, Tensor, Tensor, Tensor]


def batch_for(model: PreTrainedModel, seed: int, times: tuple[int, int] = (13, 11)) -> Batch:
    """Ragged source and target, their layouts, their masks, and the target's real cells."""
    config = model.config
    source_layout, source_mask, _ = ragged(3, times[0], seed)
    target_layout, target_mask, real = ragged(3, times[1], seed + 1)
    source = tokens(config, 3, times[0], seed)
    target = tokens(config, 3, times[1], seed + 1, getattr(config, "decoder_vocab_size", None))
    return source, target, source_layout, target_layout, source_mask, target_mask, real


def theirs_of(model: PreTrainedModel, batch: Batch) -> Tensor:
    source, target, _, _, source_mask, target_mask, real = batch
    logits: Tensor = model(
        input_ids=source, attention_mask=source_mask, decoder_input_ids=target, decoder_attention_mask=target_mask
    ).logits
    return logits[real]


def ours_of(model: nn.Module, batch: Batch) -> Tensor:
    source, target, source_layout, target_layout, _, _, real = batch
    logits: Tensor = model(source, target, source_layout, target_layout)
    return logits[real]


def assert_same(model: PreTrainedModel, directory: Path, seed: int, config: dict[str, int] | None = None) -> None:
    """Float32 both ways: their file read by us; that written by us and read by them."""
    batch = batch_for(model, seed)
    expected = theirs_of(model, batch)
    ours = saved_and_read(model, directory / "theirs")
    assert difference(ours_of(ours, batch), expected) < SINGLE
    back = written_and_loaded(ours, model, directory / "ours", config=config)
    assert difference(theirs_of(back, batch), expected) < SINGLE


def assert_same_stepwise(
    model: PreTrainedModel, ours: nn.Module, limit: float, encode: Callable[..., BaseModelOutput]
) -> None:
    """Decoding with a cache, from sources of different lengths."""
    source, target, layout, _, mask, _, _ = batch_for(model, 0)
    encoded = encode(input_ids=source, attention_mask=mask)
    expected = stepwise_theirs(model, target, 4, encoder_outputs=encoded, attention_mask=mask)
    memory = ours.encode(source, layout)
    assert difference(stepwise(ours, target, 4, (memory, layout)), expected) < limit
    whole = ours.output(ours.states(target, memory, layout))
    assert difference(whole, expected) < limit
