"""Training that starts from other weights: a model takes what it has a place for, and the rest is said.

The other model may have another vocabulary, other heads, more or fewer learned positions, another size of images. In
all else that tells what tensors there are and what is computed with them, the two must be alike.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from regard.blocks.image_positions import LearnedGridPosition
from regard.blocks.settings import Learned, Learned2d, Rotary
from regard.errors import WeightsError
from regard.models.build import build
from regard.models.settings import Encoder, EncoderDecoder, Masked, ModelSettings, Vision
from regard.settings import did_you_mean
from regard.text.tokenizer import FILE, SOURCE_FILE, TARGET_FILE, TokenizerPair
from regard.weights.compare import differences, said
from regard.weights.directory import load_model, settings_of, uncompiled
from regard.weights.rows import Rows, matched_rows, move_rows, same_rows
from regard.weights.tensors import check, common_dtype, listed

FITTED = ("vocabulary", "target_vocabulary", "heads", "image", "position.length", "position.offset")
"""Settings that may differ, because their tensors are fitted."""
TRAINING = ("dropout", "attention.dropout", "ffn.dropout", "stochastic_depth", "initial")
"""Settings that a trained model does not show."""
LEARNABLE = ("attention.window", "position.scaling")
"""Settings that change what is computed and no tensor, and that models are known to get used to in training: narrower
or wider views, stretched positions. The base of rotary positions is one of them too."""


# --------------------------------------------------------------------------------------------------------- where from


@dataclass(frozen=True)
class Start:
    """A model to start from."""

    settings: ModelSettings
    tensors: Mapping[str, Tensor]
    """Its parameters by their names."""
    tokenizer: TokenizerPair | None
    """None: it has none, or it is not known."""
    source: str
    """What messages call it."""


def read_start(path: Path | str) -> Start:
    """The model, and the tokenizers if there are any, of a run directory or of a Hugging Face directory."""
    place = Path(path)
    model = load_model(place)
    with_tokenizer = any((place / name).is_file() for name in (FILE, SOURCE_FILE, TARGET_FILE))
    return Start(
        model.settings,
        {name: parameter.detach() for name, parameter in model.named_parameters()},
        TokenizerPair.load(place) if with_tokenizer else None,
        str(place),
    )


# ----------------------------------------------------------------------------------------------------------- what came


@dataclass(frozen=True)
class Adopted:
    """What a model has taken from its start."""

    source: str
    copied: int
    """Tensors that were taken as they are."""
    fitted: Mapping[str, str]
    """Tensors that were taken in part, or in another order or size, and how."""
    fresh: tuple[str, ...]
    """Tensors that keep the values they had, because the start has none for them."""
    dropped: tuple[str, ...]
    """Tensors of the start that have no place in the model."""
    notes: tuple[str, ...]
    """What else should be known."""

    def text(self) -> str:
        """A few lines for the log."""
        lines = [f"{self.copied} tensors taken from {self.source} as they are"]
        lines += [f"{name}: {how}" for name, how in self.fitted.items()]
        if self.fresh:
            lines.append(f"new: {listed(_modules(self.fresh))}")
        if self.dropped:
            lines.append(f"left behind: {listed(_modules(self.dropped))}")
        return "\n".join([*lines, *self.notes])


def _modules(names: Collection[str]) -> list[str]:
    """The modules that tensors belong to, each once."""
    return list(dict.fromkeys(name.rpartition(".")[0] for name in names))


# -------------------------------------------------------------------------------------------------------------- taking


@torch.no_grad()
def adopt(
    model: nn.Module,
    start: Start,
    tokenizers: TokenizerPair | None = None,
    *,
    same_ids: bool = False,
    anew: Collection[str] = (),
    seed: int = 0,
) -> Adopted:
    """Put into `model` what fits of `start`; nothing is changed where it refuses.

    - Tensors of the same name and shape are copied.
    - Those over a vocabulary go token by token, where the start's tokenizer and the model's own (`tokenizers`) are
      known; if not, row by row where sizes agree or `same_ids` says that ids do. New rows begin near the mean of the
      old ones, drawn from `seed`.
    - Learned positions are taken as far as both reach; those of images are resized.
    - Heads are taken by name; those of another kind, those named in `anew`, and tensors of another shape (classes)
      keep the values they have.
    """
    model = uncompiled(model)
    settings, own = settings_of(model), dict(model.named_parameters())
    if any(parameter.is_meta for parameter in own.values()):
        raise WeightsError("the model has no memory (device meta), so it can take no weights; build it on a device")
    common_dtype(start.tensors, start.source)  # refuses quantised ones
    shapes = {name: tuple(value.shape) for name, value in build(start.settings, "meta").named_parameters()}
    check(shapes, start.tensors, start.source)
    notes = _require_alike(settings, start)
    heads = _heads_alike(settings, start.settings, anew)
    fitting = _Fitting(settings, start, _vocabularies(settings, start, tokenizers, same_ids), seed)
    values, how = {}, {}
    for name, parameter in own.items():
        if name.startswith("heads.") and name.split(".")[1] not in heads:
            continue
        found = fitting.fit(name, parameter)
        if found is not None:
            values[name], how[name] = found
    for name, value in values.items():
        own[name].copy_(value)
    if not isinstance(settings, Vision) and not same_ids and (tokenizers is None or start.tokenizer is None):
        notes = (*notes, "tokens are taken to have the ids they had: without both tokenizers, they were not compared")
    fitted = {name: text for name, text in how.items() if text}
    return Adopted(
        start.source,
        len(values) - len(fitted),
        fitted,
        tuple(name for name in own if name not in values),
        tuple(name for name in start.tensors if name not in values),
        notes,
    )


def _require_alike(settings: ModelSettings, start: Start) -> tuple[str, ...]:
    """Refuses settings that no fitting makes up for; returns a note for each that training has to get used to."""
    learnable = (*LEARNABLE, "position.base") if _rotary(settings) and _rotary(start.settings) else LEARNABLE
    wrong: dict[str, tuple[str, str]] = {}
    notes = []
    for key, (ours, theirs) in differences(settings, start.settings).items():
        if _among(key, FITTED + TRAINING) or (key == "layer_scale" and None not in (ours, theirs)):
            continue
        if _among(key, learnable):
            notes.append(f"{key} is {said(ours)} and was {said(theirs)}: training has to get used to it")
        else:
            wrong[key] = said(ours), said(theirs)
    if wrong:
        both = [f"{key} is {ours} here and {theirs} there" for key, (ours, theirs) in wrong.items()]
        remedy = [f"model.{key}={theirs}" for key, (_, theirs) in wrong.items()]
        raise WeightsError(
            f"the model cannot start from {start.source}: {listed(both)}; "
            f"set {listed(remedy)}, or choose another train.start"
        )
    return tuple(notes)


def _rotary(settings: ModelSettings) -> bool:
    return isinstance(settings.position, Rotary)


def _among(key: str, keys: tuple[str, ...]) -> bool:
    return any(key == known or key.startswith(f"{known}.") for known in keys)


def _heads_alike(settings: ModelSettings, theirs: ModelSettings, anew: Collection[str]) -> set[str]:
    """The heads that both have, of the same kind."""
    here, there = (getattr(each, "heads", {}) for each in (settings, theirs))
    for name in anew:
        if name not in here:
            raise WeightsError(
                f"anew ({name}) is no head of the model{did_you_mean(name, here)}; "
                f"it has {', '.join(here) or 'none'}: name one of them, or leave it out"
            )
    return {name for name in here if name in there and name not in anew and here[name].kind == there[name].kind}


# --------------------------------------------------------------------------------------------------- tensor by tensor

Side = Literal["source", "target"]


class _Fitting:
    """Makes the values of one tensor after the other."""

    def __init__(self, settings: ModelSettings, start: Start, rows: Mapping[Side, Rows], seed: int) -> None:
        self.settings, self.start, self.rows = settings, start, rows
        self.generator = torch.Generator().manual_seed(seed)

    def fit(self, name: str, parameter: Tensor) -> tuple[Tensor, str] | None:
        """What the model takes for a tensor, and how it was fitted, if it was; None: there is nothing to take."""
        old = self.start.tensors.get(name)
        if old is None:
            return None
        side = _side(name, self.settings)
        if side is not None:
            rows = self.rows[side]
            return (old, "") if rows.as_they_are(len(old)) else (move_rows(old, rows, self.generator), rows.text())
        if name.startswith(("embedding.", "source.", "target.")) and name.endswith("position.weight"):
            return self._positions(old, parameter)
        return (old, "") if old.shape == parameter.shape else None

    def _positions(self, old: Tensor, parameter: Tensor) -> tuple[Tensor, str]:
        here, there = self.settings, self.start.settings
        if isinstance(here, Vision) and isinstance(there, Vision):
            return (old, "") if here.grid == there.grid else _resized(old, here, there)
        assert isinstance(here.position, Learned) and isinstance(there.position, Learned)  # compared before
        return _places(old, parameter, here.position, there.position)


def _side(name: str, settings: ModelSettings) -> Side | None:
    """Whose vocabulary a tensor has a row for each token of; None: it has no such rows."""
    if name in ("embedding.tokens.weight", "source.tokens.weight"):
        return "source"
    if name in ("target.tokens.weight", "output.weight", "output.bias"):
        return "target" if isinstance(settings, EncoderDecoder) else "source"
    if isinstance(settings, Encoder) and name.startswith("heads.") and ".output." in name:
        return "source" if isinstance(settings.heads[name.split(".")[1]], Masked) else None
    return None


def _places(old: Tensor, parameter: Tensor, here: Learned, there: Learned) -> tuple[Tensor, str]:
    """Learned positions, as far as both reach. Rows before place 0 are taken where both have as many."""
    if here == there:
        return old, ""
    taken = min(here.length, there.length)
    result = parameter.detach().to(device=old.device, dtype=torch.promote_types(parameter.dtype, old.dtype), copy=True)
    result[here.offset : here.offset + taken] = old[there.offset : there.offset + taken].to(result.dtype)
    if here.offset == there.offset:
        result[: here.offset] = old[: there.offset].to(result.dtype)
    text = f"{taken:,} places taken"
    if here.length > taken:
        text += f", {here.length - taken:,} new"
    if there.length > taken:
        text += f", {there.length - taken:,} left behind"
    return result, text


def _resized(old: Tensor, here: Vision, there: Vision) -> tuple[Tensor, str]:
    """Positions of patches as the model itself resizes them for images of another size."""
    assert isinstance(there.position, Learned2d)  # no other kind has a table
    position = LearnedGridPosition(there.grid, there.width, class_token=False)
    position.weight = nn.Parameter(old.to(torch.promote_types(old.dtype, torch.float32)))
    resized = position.embed(here.grid, old.device, old.dtype)
    (rows, columns), (old_rows, old_columns) = here.grid, there.grid
    return resized, f"resized from {old_rows} × {old_columns} to {rows} × {columns} patches"


# ------------------------------------------------------------------------------------------------------- vocabularies


def _vocabularies(
    settings: ModelSettings, start: Start, tokenizers: TokenizerPair | None, same_ids: bool
) -> dict[Side, Rows]:
    """How the rows of each side's vocabulary move."""
    theirs = start.settings
    if isinstance(settings, Vision) or isinstance(theirs, Vision):
        return {}
    if not isinstance(settings, EncoderDecoder) or not isinstance(theirs, EncoderDecoder):
        return {"source": _rows("source", (settings.vocabulary, theirs.vocabulary), start, tokenizers, same_ids)}
    if "source" in settings.tied and tokenizers is not None and not tokenizers.shared:
        raise WeightsError(
            f"model.tied ({', '.join(settings.tied)}) needs one tokenizer for source and target, and there are two; "
            'set text.shared=true, or model.tied=["target", "output"]'
        )
    return {
        "source": _rows("source", (settings.vocabulary, theirs.vocabulary), start, tokenizers, same_ids),
        "target": _rows("target", (settings.target_size, theirs.target_size), start, tokenizers, same_ids),
    }


def _rows(side: Side, sizes: tuple[int, int], start: Start, tokenizers: TokenizerPair | None, same_ids: bool) -> Rows:
    key = "target_vocabulary" if side == "target" else "vocabulary"
    size, old_size = sizes
    if tokenizers is not None and getattr(tokenizers, side).size > size:
        needed = getattr(tokenizers, side).size
        raise WeightsError(
            f"model.{key} ({size:,}) has no row for each of the tokenizer's {needed:,}; set it to {needed}"
        )
    if tokenizers is not None and start.tokenizer is not None:
        return matched_rows(getattr(start.tokenizer, side), old_size, getattr(tokenizers, side), size)
    if same_ids or size == old_size:
        return same_rows(old_size, size)
    unknown = "no tokenizer was given for the model" if tokenizers is None else f"{start.source} holds no {FILE}"
    raise WeightsError(
        f"model.{key} is {size:,} here and {old_size:,} in {start.source}, and {unknown}, so that rows cannot be "
        "matched to tokens; give the tokenizer, or say same_ids=True if tokens of both have the same ids"
    )
