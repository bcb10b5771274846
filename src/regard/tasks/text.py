"""Base of the tasks that read texts and put a head on the hidden states: classification, tagging, answers, embeddings.

They train encoders, decoders (whose last token stands for the text, as in GPT) and, where the task allows it,
encoder-decoders (whose decoder reads the start token alone).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from regard.blocks.layout import Layout, Packed, Padded
from regard.data.columns import PairColumn
from regard.data.examples import Example, Tally, with_known_labels
from regard.data.settings import Split, UnseenLabels
from regard.data.source import Source
from regard.data.store import Ragged
from regard.decoding.decode import pair_batches
from regard.decoding.model import padded
from regard.errors import InputError
from regard.models.families import Decoder, Encoder, EncoderDecoder
from regard.models.settings import Decoder as DecoderSettings
from regard.models.settings import Elmo, ModelSettings, reach
from regard.models.settings import Encoder as EncoderSettings
from regard.tasks.losses import classification_metrics
from regard.tasks.task import Task

TOKENS = {"cpu": 2_048, "cuda": 65_536}
"""Tokens of a batch of predictions, by device."""


class TextTask(Task):
    """A task on single texts or pairs of texts."""

    family: ClassVar[tuple[type[ModelSettings], ...]] = (EncoderSettings, DecoderSettings, Elmo)
    text_kind = "wordpiece"
    pooling: ClassVar[str | None] = None
    """The default pooling of the head; none: the class token of an encoder, the last token of a decoder."""
    model: Any

    @cached_property
    def text_column(self) -> PairColumn:
        """The column of one text, or of two, with the special tokens of the tokenizer's template."""
        tokenizer = self.tokenizers.source
        before, between, after = tokenizer.frame
        first = before[0] if before else None
        return replace(PairColumn.for_tokenizer(tokenizer, first, after[-1]), between=tuple(between))

    def head_pooling(self) -> str:
        if self.pooling is not None:
            return self.pooling
        if isinstance(self.model, Elmo):  # no token has read the whole text in both directions
            return "mean"
        return "last" if isinstance(self.model, DecoderSettings) else "class"

    def joined(self, texts: Sequence[str], seconds: Sequence[str | None] | None = None) -> list[list[int]]:
        """The token ids of each text, or of each pair of texts, without the outer special tokens."""
        tokenizer = self.tokenizers.source
        before, between, after = tokenizer.frame
        rows = [[*before[1:], *ids] for ids in tokenizer.ids(texts)]
        if seconds is not None:
            others = tokenizer.ids([text or "" for text in seconds])
            rows = [
                row if text is None else [*row, *between, *ids]
                for row, ids, text in zip(rows, others, seconds, strict=True)
            ]
        return [[*row, *after[:-1]] for row in rows] if len(after) > 1 else rows

    def framed(self, rows: list[list[int]]) -> list[list[int]]:
        """What `joined` returns as a model reads it: shortened to its positions, with the outer special tokens."""
        column, limit = self.text_column, reach(self.model)
        ragged = Ragged.of(rows)
        if limit is not None:
            ragged = column.cut(ragged, limit - column.added)
        return [row.tolist() for row in ragged.framed(column.first, column.last).parts()]

    def states(
        self, model: nn.Module, tokens: Tensor, layout: Layout, segments: Tensor | None
    ) -> tuple[Tensor, Layout]:
        """The hidden states that a head reads, and their layout."""
        if isinstance(model, Encoder):
            return model(tokens, layout, segments if model.settings.segments > 1 else None), layout
        if isinstance(model, Decoder):
            return model.states(tokens, layout), layout
        assert isinstance(model, EncoderDecoder)
        # One query for each text: the state of the start token, which attends to the whole text.
        start = tokens.new_full((layout.count,), self.tokenizers.target.role("start"))
        if isinstance(layout, Packed):
            one: Layout = Packed(layout.count, torch.arange(layout.count + 1, device=tokens.device), 1)
        else:
            start, one = start[:, None], Padded(layout.count, 1)
        return model.states(start, model.encode(tokens, layout), layout, one), one

    def logits(
        self, model: nn.Module, tokens: Tensor, layout: Layout, segments: Tensor | None, head: str | None = None
    ) -> Tensor:
        """The output of a head, by default of the task's."""
        hidden, layout = self.states(model, tokens, layout, segments)
        output: Tensor = cast(Any, model).heads[head or str(self.head)](hidden, layout)
        return output

    def outputs(self, model: nn.Module, rows: list[list[int]], head: str | None = None) -> list[Tensor]:
        """The output of a head for each framed row, on the CPU. Rows of similar lengths are computed together."""
        device = next(model.parameters()).device
        found: dict[int, Tensor] = {}
        for batch in pair_batches(rows, rows, TOKENS.get(device.type, 2_048)):
            tokens, layout = padded([rows[number] for number in batch], device)
            separators = tokens == self.text_column.between[0]
            segments = (separators.cumsum(1) - separators.long() > 0).long()
            with torch.inference_mode():
                result = self.logits(model, tokens, layout, segments, head).float().cpu()
            for number, output in zip(batch, result, strict=True):  # [B, T, C] for tokens, [B, C] for sequences
                found[number] = output[: len(rows[number])] if result.dim() == 3 else output
        return [found[number] for number in range(len(rows))]

    def metrics(self, total: float, weight: float, sums: Mapping[str, float]) -> dict[str, float]:
        return classification_metrics(total, weight, sums)

    def examples(self, split: Split) -> list[Any]:
        """The examples of a split, as they were read; without those that `data.unseen` skips."""
        if split not in self._read:
            found = Source(self.data.settings, split).located()
            if isinstance(self.data.settings, UnseenLabels) and split != "train":
                found = with_known_labels(found, self.labels, self.data.settings.unseen, Tally())
            self._read[split] = [located.example for located in found]
        return self._read[split]

    @cached_property
    def _read(self) -> dict[Split, list[Example]]:
        return {}


def check_inputs(inputs: Sequence[Any], pair: bool | None) -> tuple[list[str], list[str | None]]:
    """The first and second texts of inputs: texts, or pairs as tuples, objects or lines with a tab between them.

    If `pair` is None, some inputs may be pairs.
    """
    texts: list[str] = []
    seconds: list[str | None] = []
    for number, each in enumerate(inputs):
        parts = each
        if isinstance(each, dict):
            parts = [each.get("text"), each["second"]] if "second" in each else [each.get("text")]
        elif isinstance(each, str):
            parts = [each] if pair is False else each.split("\t")
        if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
            raise InputError(f"inputs[{number}] is a {type(each).__name__}, expected a text or a pair of texts")
        if len(parts) not in ((1, 2) if pair is None else (1 + pair,)):
            expected = "one text" if pair is False else "two texts, with a tab between them"
            raise InputError(f"inputs[{number}] has {len(parts)} texts, but the model was trained on {expected}")
        if not all(part.strip() for part in parts):
            raise InputError(f"inputs[{number}] has an empty text; give at least one word")
        texts.append(parts[0])
        seconds.append(parts[1] if len(parts) == 2 else None)
    return texts, seconds
