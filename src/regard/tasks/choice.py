"""Multiple choice: which of several options fits a text best (Radford et al. 2018, figure 1; Zellers et al. 2018).

Each option is read together with the text as a sequence of its own. A linear layer scores the sequences, and a softmax
compares the options of one text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import nn

from regard.blocks.layout import Layout, Packed, Padded
from regard.data.columns import Batch, Column, Grid, NumberColumn, PairColumn, Selection, Sequences
from regard.data.examples import Choice
from regard.data.settings import DataSettings
from regard.errors import InputError
from regard.models.build import Model
from regard.models.settings import Classification, ModelSettings
from regard.settings import Table
from regard.tasks.losses import cross_entropy
from regard.tasks.task import TaskSettings, with_head
from regard.tasks.text import TextTask
from regard.training.settings import Train
from regard.training.step import Loss


class Choosing(TaskSettings):
    """Predicts which of several options fits a text. Needs an encoder or a decoder."""

    kind: Literal["choice"] = "choice"


@dataclass(frozen=True)
class OptionsColumn(PairColumn):
    """All options of an example, one after the other, each with its text and special tokens before it. In a batch each
    option is a sequence: those of example i are the sequences i · options to (i + 1) · options − 1. The column
    `lengths` has the tokens of each option."""

    def collate(self, selected: Selection, batch: Batch) -> None:
        store, grid = selected.store, selected.grid
        stored = store.values("lengths")
        options = len(stored) // len(store)
        parts = stored.reshape(-1, options)[selected.examples].astype(np.int64)
        lengths = np.zeros((grid.layout.count, options), np.int64)
        if isinstance(grid.layout, Packed):
            lengths[:, 0] = np.diff(grid.layout.offsets_S1.numpy())
        lengths[grid.sequences] = parts
        flat = lengths.ravel()
        if isinstance(grid.layout, Packed):
            offsets = np.zeros(len(flat) + 1, np.int32)
            np.cumsum(flat, out=offsets[1:])
            whole = grid.layout
            layout: Layout = Packed(whole.tokens, torch.from_numpy(offsets), whole.longest, whole.width)
            starts = offsets[:-1].astype(np.int64)
        else:
            time = max(1, int(flat.max(initial=1)))
            layout = Padded(len(flat), time, torch.from_numpy(np.maximum(flat, 1)))
            starts = np.arange(len(flat)) * time
        given = (grid.sequences[:, None] * options + np.arange(options)).ravel()
        tokens, each = self.read(selected)[0], Grid(layout, starts[given], parts.ravel(), given)
        batch.sequences[selected.name] = Sequences(each.filled(tokens, self.pad), layout)
        batch.values[f"{selected.name}.segments"] = self.segments(tokens, each)


@dataclass(frozen=True)
class LengthsColumn(Column):
    """Some numbers for each example, which another column reads."""

    def collate(self, selected: Selection, batch: Batch) -> None:
        pass


class ChoiceTask(TextTask):
    """Texts with options."""

    settings_type = Choosing
    example = Choice
    data_kind = "choices"
    metric_names = ("loss", "accuracy")
    settings: Choosing

    def limit(self, train: Train, data: DataSettings) -> int | None:
        return train.step_tokens  # of all options; `encode` cuts each of them to the model's positions

    def columns(self) -> dict[str, Column]:
        text = replace(OptionsColumn.for_tokenizer(self.tokenizers.source), between=self.text_column.between)
        return {"text": text, "lengths": LengthsColumn(), "label": NumberColumn()}

    def encode(self, examples: Sequence[Choice]) -> Mapping[str, Any]:
        rows = [self._rows(example.text, example.options) for example in examples]
        return {
            "text": [[token for option in options for token in option] for options in rows],
            "lengths": [[len(option) for option in options] for options in rows],
            "label": [example.label for example in examples],
        }

    def _rows(self, text: str, options: Sequence[str]) -> list[list[int]]:
        return self.framed(self.joined([text] * len(options), list(options)))

    def fit(self) -> ModelSettings:
        changes: Table = {"classes": 1, "pooling": self.head_pooling(), "dropout": self.model.dropout}
        model, self.head = with_head(self.model, Classification, "choice", changes)
        return cast(ModelSettings, model)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        text, labels = batch.sequences["text"], batch.values["label"]
        scores = self.logits(model, text.tokens, text.layout, batch.values["text.segments"])
        indices = torch.where(labels.isfinite(), labels.nan_to_num(), -100.0).long()
        return cross_entropy(scores.view(len(labels), -1), indices, 0.0, model.training)

    def predict(self, model: Model, inputs: Sequence[Any]) -> list[dict[str, Any]]:
        """The index of the best option, the option, and all probabilities. An input is an object with text and options,
        or a line with tabs between the text and the options."""
        found = []
        for number, each in enumerate(inputs):
            match each:
                case {"text": text, "options": [*options]} | [text, [*options]]:
                    pass
                case str():
                    text, *options = each.split("\t")
                case _:
                    text, options = None, []
            if len(options) < 2 or not all(isinstance(part, str) and part.strip() for part in (text, *options)):
                raise InputError(f"inputs[{number}] needs a text and two options or more, with tabs between them")
            shares = torch.cat(self.outputs(model, self._rows(text, options))).softmax(0)
            best = int(shares.argmax())
            probabilities = [round(share, 6) for share in shares.tolist()]
            found.append({"option": best, "text": options[best], "probabilities": probabilities})
        return found
