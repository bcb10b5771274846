"""Starts training from the weights of another model.

The other model may have another vocabulary, other heads, another number of learned positions, or another image size.
All other settings that change tensors or results must be equal.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from regard.blocks.positions import LearnedGridPosition
from regard.blocks.recording import network_of
from regard.blocks.settings import Learned, Rotary
from regard.data.settings import directions_of
from regard.errors import InputError, WeightsError
from regard.models.settings import (
    AnyVision,
    Elmo,
    Encoder,
    Masked,
    ModelSettings,
    Seq2Seq,
    TwoDirections,
    Vision,
    differences,
)
from regard.text.tokenizer import FILE, Tokenizer, TokenizerPair
from regard.weights.directory import CONFIG, load_model, read_config
from regard.weights.huggingface.directory import find_tokenizers
from regard.weights.location import find_model
from regard.weights.tensors import listed

FITTED = ("vocabulary", "target_vocabulary", "heads", "image", "position.length", "position.offset")
"""Settings that may differ, because their tensors are adapted."""
TRAINING = ("dropout", "attention.dropout", "ffn.dropout", "stochastic_depth", "initial")
"""Settings that do not change a trained model."""
LEARNABLE = ("attention.window", "attention.pattern", "position.scaling", "position.window_base")
"""Settings that change results and no tensor, and that models adapt to; rotary positions add their base."""
NOISE = 0.02
"""Deviation of new rows around the mean of the old rows, relative to the deviation of the old rows."""

Side = Literal["source", "target"]


@dataclass(frozen=True)
class Start:
    """A model to start from."""

    settings: ModelSettings
    tensors: Mapping[str, Tensor]
    tokenizer: TokenizerPair | None
    """None if there is none, or if it is not known."""
    source: str
    """The name for messages."""
    tagged: bool = False
    """Whether sources begin with a tag of the target language."""
    direction: tuple[str, str] | None = None
    """The direction that the name of a shipped model stands for."""

    @property
    def scale(self) -> float:
        """The root mean square of a weight in the matrices of the layers."""
        named = {name: value for name, value in self.tensors.items() if value.dim() > 1}
        layers = [value for name, value in named.items() if any(part.isdigit() for part in name.split("."))]
        squares = [float(value.square().mean()) for value in layers or named.values()]
        return math.sqrt(sum(squares) / len(squares))


def read_start(name: Path | str) -> Start:
    """Read the model, and the tokenizers if there are any, of a shipped name, a run or a Hugging Face directory."""
    path, direction = find_model(str(name))
    model = load_model(path)
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    _, tagged = directions_of(read_config(path) if (path / CONFIG).is_file() else {})
    return Start(model.settings, tensors, find_tokenizers(path), str(name), tagged, direction)


@torch.no_grad()
def warm_start(model: nn.Module, start: Start, tokenizers: TokenizerPair | None = None, seed: int = 0) -> list[str]:
    """Copy the fitting weights of `start` into `model`, and return a report. Nothing changes if an error is raised.

    - Tensors of the same name and shape are copied.
    - Rows over a vocabulary follow their tokens if both tokenizers are known (`tokenizers` are the model's own);
      otherwise the sizes must be equal. New rows start near the mean of the old ones, drawn from `seed`.
    - Learned positions are copied as far as both reach; those of images are resized.
    - Heads are copied by name if their kinds are equal; tensors of another shape (classes) keep their initial values.
    """
    network = network_of(model)
    settings, own = network.settings, dict(network.named_parameters())
    notes = _require_equal(settings, start)
    here, there = (getattr(each, "heads", {}) for each in (settings, start.settings))
    heads = {name for name in here if name in there and here[name].kind == there[name].kind}
    rows = _vocabulary_rows(settings, start, tokenizers)
    generator = torch.Generator().manual_seed(seed)
    values: dict[str, tuple[Tensor, str]] = {}
    for name, parameter in own.items():
        old = start.tensors.get(name)
        if old is None or (name.startswith("heads.") and name.split(".")[1] not in heads):
            continue
        if side := _side(name, settings):
            values[name] = _moved(old, *rows[side], generator)
        elif name.startswith(("embedding.", "source.", "target.")) and name.endswith("position.weight"):
            values[name] = _positions(old, parameter, settings, start.settings)
        elif old.shape == parameter.shape:
            values[name] = old, ""
    for name, (value, _) in values.items():
        own[name].copy_(value)
    fitted = [f"{name}: {how}" for name, (_, how) in values.items() if how]
    report = [f"{len(values) - len(fitted)} tensors copied from {start.source}", *fitted]
    for title, names in (("new", own), ("not used", start.tensors)):
        if modules := dict.fromkeys(name.rpartition(".")[0] for name in names if name not in values):
            report.append(f"{title}: {listed(list(modules))}")
    if not isinstance(settings, AnyVision) and (tokenizers is None or start.tokenizer is None):
        notes.append("token ids are assumed to be the same: without both tokenizers they cannot be compared")
    return report + notes


def _require_equal(settings: ModelSettings, start: Start) -> list[str]:
    """Refuse settings that cannot be adapted. Return a note for each that training must adapt to."""
    rotary = isinstance(settings.position, Rotary) and isinstance(start.settings.position, Rotary)
    learnable = (*LEARNABLE, "position.base") if rotary else LEARNABLE
    wrong, remedy, notes = [], [], []
    for key, values in differences(settings, start.settings).items():
        ours, theirs = (each if isinstance(each, str) else json.dumps(each).replace("null", "none") for each in values)
        if _is_among(key, FITTED + TRAINING) or (key == "layer_scale" and None not in values):
            continue
        if _is_among(key, learnable):
            notes.append(f"{key} is {ours} and was {theirs}: training must adapt to it")
        else:
            wrong.append(f"{key} is {ours} here and {theirs} there")
            remedy.append(f"model.{key}={theirs}")
    if wrong:
        problem = f"the model cannot start from {start.source}: {listed(wrong)}"
        raise WeightsError(f"{problem}; set {listed(remedy)}, or choose another train.start")
    return notes


def _is_among(key: str, keys: Collection[str]) -> bool:
    return any(key == known or key.startswith(f"{known}.") for known in keys)


def _positions(old: Tensor, parameter: Tensor, here: ModelSettings, there: ModelSettings) -> tuple[Tensor, str]:
    if isinstance(here, Vision):
        assert isinstance(there, Vision)
        if here.grid == there.grid:
            return old, ""
        table = LearnedGridPosition(there.grid, there.width, class_token=False)
        table.weight = nn.Parameter(old.to(torch.promote_types(old.dtype, torch.float32)))
        sizes = " to ".join(f"{rows} × {columns}" for rows, columns in (there.grid, here.grid))
        return table.embed(here.grid, old.device, old.dtype), f"resized from {sizes} patches"
    assert isinstance(here.position, Learned) and isinstance(there.position, Learned)
    new, given = here.position, there.position
    if new == given:
        return old, ""
    # Rows before position 0 (the offset) are copied if both have the same number.
    common = min(new.length, given.length)
    result = parameter.detach().to(device=old.device, dtype=torch.promote_types(parameter.dtype, old.dtype), copy=True)
    result[new.offset : new.offset + common] = old[given.offset : given.offset + common].to(result.dtype)
    if new.offset == given.offset:
        result[: new.offset] = old[: given.offset].to(result.dtype)
    return result, f"{common:,} of {given.length:,} positions copied, {new.length - common:,} new"


def _side(name: str, settings: ModelSettings) -> Side | None:
    """Return the side whose vocabulary a tensor has rows for, or None."""
    if name in ("embedding.tokens.weight", "source.tokens.weight"):
        return "source"
    if name in ("target.tokens.weight", "output.weight", "output.bias"):
        return "target"
    if isinstance(settings, Encoder | Elmo) and name.startswith("heads.") and ".output." in name:
        return "source" if isinstance(settings.heads[name.split(".")[1]], Masked | TwoDirections) else None
    return None


Rows: TypeAlias = tuple[Tensor, int]
"""For each new row the old row that it takes, −1 for a new token; and the number of old rows that have a token."""


def _moved(old: Tensor, index: Tensor, known: int, generator: torch.Generator) -> tuple[Tensor, str]:
    """Return `[V, D]` or `[V]` (biases), with a text: old rows at their new positions, new rows near the mean.

    At the mean of the old rows, a new token's logit is the mean of theirs, so that it gets at most an average token's
    probability. A row of random noise often gets nearly all of it (Hewitt 2021: Initializing New Word Embeddings for
    Pretrained Language Models).
    """
    if torch.equal(index, torch.arange(len(old))):
        return old, ""
    new = index < 0
    count = int(new.sum())
    result = old[index.clamp(min=0)]
    if count:
        tokens = old[:known].to(torch.promote_types(old.dtype, torch.float32))
        mean = tokens.mean(0).expand(count, *old.shape[1:])
        if old.dim() > 1:
            noise = torch.randn(mean.shape, generator=generator, dtype=tokens.dtype)
            mean = mean + NOISE * tokens.std(0, correction=0) * noise.to(old.device)
        result[new] = mean.to(old.dtype)
    return result, f"{len(new) - count:,} of {len(old):,} rows copied, {count:,} new, near the mean of the old"


def _vocabulary_rows(settings: ModelSettings, start: Start, tokenizers: TokenizerPair | None) -> dict[Side, Rows]:
    """Return the rows of both sides. A model with one vocabulary has it on both."""
    old = start.settings
    if isinstance(settings, AnyVision) or isinstance(old, AnyVision):
        return {}
    if isinstance(settings, Seq2Seq) and "source" in settings.tied and tokenizers and not tokenizers.joint:
        raise WeightsError(
            f"model.tied ({', '.join(settings.tied)}) needs one tokenizer for both sides, but there are two; "
            'set text.shared=true, or model.tied=["target", "output"]'
        )
    rows: dict[Side, Rows] = {}
    sides: dict[Side, str] = {"source": "vocabulary", "target": "target_vocabulary"}
    for side, key in sides.items():
        size, old_size = (
            each.target_size if side == "target" and isinstance(each, Seq2Seq) else each.vocabulary
            for each in (settings, old)
        )
        new_tokens, old_tokens = (pair and getattr(pair, side) for pair in (tokenizers, start.tokenizer))
        if new_tokens and new_tokens.size > size:
            raise WeightsError(f"model.{key} ({size:,}) is smaller than the tokenizer; set it to {new_tokens.size}")
        if new_tokens and old_tokens:
            rows[side] = _matched_rows(old_tokens, old_size, new_tokens, size)
        elif size == old_size:
            rows[side] = torch.arange(size), size
        else:
            unknown = f"{start.source} has no {FILE}" if new_tokens else "the model has no tokenizer"
            problem = f"model.{key} is {size:,} here and {old_size:,} in {start.source}, and {unknown}"
            raise WeightsError(f"{problem}, so rows cannot be matched to tokens; add the tokenizer")
    return rows


def _matched_rows(old: Tokenizer, old_size: int, new: Tokenizer, new_size: int) -> Rows:
    """Match tokens by name, and special tokens without a match by role.

    The sizes are those of the models, which may be larger than the tokenizers': rows without a token keep their place.
    """

    def find(number: int) -> int:
        token = _token(new, number)
        if token is None:
            return number if _token(old, number) is None else -1
        if (found := old.id(token)) is not None:
            return found
        for role in (role for role, own in new.roles.items() if own == number):
            with contextlib.suppress(InputError):
                return old.role(role)
        return -1

    index = [row if row < old_size else -1 for row in map(find, range(new_size))]
    return torch.tensor(index), min(old.size, old_size)


def _token(tokenizer: Tokenizer, number: int) -> str | None:
    """Return None beyond the last token, and for an id without a token."""
    try:
        return tokenizer.token(number)
    except InputError:
        return None
