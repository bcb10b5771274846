"""Language modelling: each token is predicted from the tokens before it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.blocks.layout import Layout, Padded
from regard.blocks.settings import Positive
from regard.data.columns import IGNORED, Batch, Column, TokenColumn
from regard.data.examples import Text
from regard.data.settings import DataSettings, Split
from regard.data.source import Source
from regard.decoding.decode import decode
from regard.decoding.model import padded
from regard.decoding.settings import Ends
from regard.errors import InputError, SettingsError
from regard.models.build import Model
from regard.models.families import Decoder, Encoder
from regard.models.settings import Decoder as DecoderSettings
from regard.models.settings import Elmo, ModelSettings, TwoDirections, reach
from regard.tasks.losses import cross_entropy, cross_entropy_metrics
from regard.tasks.task import Task, TaskSettings, with_head
from regard.training.settings import Train
from regard.training.step import Loss


class SmoothedSettings(TaskSettings):
    """Settings of tasks with label smoothing."""

    smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Label smoothing: the share of each label's probability that is spread evenly over all classes, including the
    right one (Szegedy et al. 2016; as PyTorch's cross_entropy)."""


class Language(SmoothedSettings):
    """Predicts the next token of raw text. Needs a decoder; or elmo, which also predicts the token before."""

    kind: Literal["language"] = "language"
    context: Positive = 256
    """Most tokens in one sequence: longer documents are split, and a window has this many."""
    across: bool = True
    """Whether a window can hold several documents, each seeing those before it (GPT-2); otherwise each is alone."""
    stride: Positive | None = None
    """In an evaluation, windows begin this many tokens apart, and each counts only tokens that no window before it
    contains, so that they see at least context − stride tokens; none: windows do not overlap."""
    noise: float = Field(default=0.0, ge=0, lt=1)
    """Share of the tokens that a decoder reads in training that are replaced by other tokens of the batch, against
    overfitting on little text (Xie et al. 2017: unigram noise)."""

    @model_validator(mode="after")
    def _check_stride(self) -> Self:
        if self.stride is not None and (self.stride > self.context or not self.across):
            raise ValueError(
                f"stride ({self.stride}) needs across = true and must be at most context ({self.context}); lower it"
            )
        return self


class RawTextTask(Task):
    """Base of tasks on raw text, in windows across documents or document by document."""

    example = Text
    data_kind = "text"
    settings: Any

    def limit(self, train: Train, data: DataSettings) -> int | None:
        context, limit = self.settings.context, reach(self.model)
        if limit is not None and context > limit:
            raise SettingsError(
                f"task.context ({context:,}) exceeds the model's positions ({limit:,}); lower it, or set "
                f"model.position.length={context}"
            )
        held = min(train.step_tokens, train.micro or train.step_tokens)
        if context > held:
            name = "train.micro" if train.micro else "train.tokens"
            raise SettingsError(f"task.context ({context:,}) exceeds {name} ({held:,}); lower it, or raise {name}")
        return None if self.settings.across else context

    def encode(self, examples: Sequence[Text]) -> Mapping[str, Any]:
        return {"text": self.tokenizers.source.ids([example.text for example in examples])}


class LanguageTask(RawTextTask):
    """Each token is predicted from those before it."""

    settings_type = Language
    family = (DecoderSettings, Elmo)
    text_kind = "byte-bpe"
    settings: Language
    usage = 'generate {} "TEXT"'
    metric_names = (*Task.metric_names, "word_perplexity", "bits_per_byte", "bits_per_character")
    _rates: tuple[float, float, float] | None = None
    """Tokens for each word, byte and character of the split that is evaluated."""

    @cached_property
    def _known(self) -> dict[Split, tuple[float, float, float]]:
        return {}

    def columns(self) -> dict[str, Column]:
        tokenizer, across = self.tokenizers.source, self.settings.across
        text = TokenColumn.for_tokenizer(tokenizer, None if across else tokenizer.role("start"), tokenizer.role("end"))
        return {"text": replace(text, predict=True, window=self.settings.context if across else None)}

    def fit(self) -> ModelSettings:
        if not isinstance(self.model, Elmo):
            return self.model
        self.usage = "evaluate {} --suite glue DIR"  # its heads are trained by other tasks
        model, self.head = with_head(self.model, TwoDirections, "language", {})
        return model

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        text = batch.sequences["text"]
        if isinstance(model, Encoder):
            logits = model.heads[str(self.head)](model.directions(text.tokens, text.layout))
            labels = both_labels(text.tokens, batch.values["text.next"], text.layout)
            return cross_entropy(logits, labels, self.settings.smoothing, model.training)
        tokens = text.tokens
        if self.settings.noise and model.training:
            others = tokens.flatten()[torch.randint(tokens.numel(), tokens.shape, device=tokens.device)]
            tokens = torch.where(torch.rand(tokens.shape, device=tokens.device) < self.settings.noise, others, tokens)
        logits = model(tokens, text.layout)
        return cross_entropy(logits, batch.values["text.next"], self.settings.smoothing, model.training)

    def metrics(self, total: float, weight: float, sums: Mapping[str, float]) -> dict[str, float]:
        found = super().metrics(total, weight, sums)
        return found | self._by_unit(found["loss"]) if "right" in sums else found

    def extra_metrics(self, model: nn.Module, split: Split, stride: int = 1) -> dict[str, float]:
        """With `task.stride`, and on a whole split, the metrics by overlapping windows."""
        if not isinstance(model, Decoder):
            return {}
        self._rates = self._counted(split) if split in self.data.settings.splits else None
        if self.settings.stride is None or stride > 1:
            return {}
        total, right, count = self._slide(model, split)
        metrics = cross_entropy_metrics(total, count, {"right": right})
        return metrics | self._by_unit(metrics["loss"])

    def _by_unit(self, loss: float) -> dict[str, float]:
        """Metrics that models with different tokens share, from the loss of a token."""
        if self._rates is None:
            return {}
        word, byte, character = (loss * rate for rate in self._rates)
        bits = {"bits_per_byte": byte / math.log(2), "bits_per_character": character / math.log(2)}
        return {"word_perplexity": math.exp(min(word, 700.0)), **bits}

    def _counted(self, split: Split) -> tuple[float, float, float]:
        """Predicted tokens of a split for each of its words, bytes and characters.

        The end of a line is a word, as in WikiText, a byte and a character; so is the end of a document.
        """
        if split not in self._known:
            words = size = characters = 0
            for example in Source(self.data.settings, split):
                assert isinstance(example, Text)
                text = example.text if example.text.endswith("\n") or not example.ends else f"{example.text}\n"
                words += len(text.split()) + text.count("\n")
                size += len(text.encode())
                characters += len(text)
            examples = self.data.examples[split]
            tokens = examples.tokens - (0 if self.settings.across else len(examples.store))
            self._known[split] = tokens / max(words, 1), tokens / size, tokens / characters
        return self._known[split]

    def _slide(self, model: Decoder, split: Split) -> tuple[float, float, int]:
        """The loss of all tokens of a split but the first, how many are predicted right, and their number."""
        assert self.settings.stride is not None
        context, stride = self.settings.context, self.settings.stride
        stored = self.data.examples[split].store.values("text")
        device = model.embedding.tokens.weight.device
        starts = [0, *range(stride, max(len(stored) - 1 - context, 0) + stride, stride)]
        rows = max(self.data.train.step_tokens // context, 1)
        total = right = torch.zeros((), dtype=torch.float64, device=device)
        for first in range(0, len(starts), rows):
            some = starts[first : first + rows]
            windows = [stored[start : start + context + 1].tolist() for start in some]
            lengths = torch.tensor([len(each) - 1 for each in windows])
            tokens, _ = padded(windows, device)
            layout = Padded.of(lengths.to(device), tokens.shape[1] - 1)
            place = torch.arange(layout.time)
            counted = (place < lengths[:, None]) & ((place >= context - stride) | (torch.tensor(some)[:, None] == 0))
            labels = torch.where(counted.to(device), tokens[:, 1:], IGNORED)
            loss = cross_entropy(model(tokens[:, :-1], layout), labels, 0.0, training=False)
            total, right = total + loss.total.double(), right + loss.sums["right"]
        return float(total), float(right), len(stored) - 1

    def predict(self, model: Model, inputs: Sequence[str]) -> list[str]:
        """The most likely continuation of each text."""
        if not isinstance(model, Decoder):
            raise InputError("elmo cannot continue a text; fine-tune it: set train.start to its directory")
        tokenizer = self.tokenizers.source
        start = [] if self.settings.across else [tokenizer.role("start")]
        prompts = [[*start, *ids] for ids in tokenizer.ids(list(inputs))]
        if [] in prompts:
            raise InputError(f"inputs[{prompts.index([])}] is empty; give at least one word to continue")
        found = decode(model, prompts, Ends(None, tokenizer.role("end")))
        return tokenizer.decode_batch([best[0].tokens for best in found])


def both_labels(tokens: Tensor, following: Tensor, layout: Layout) -> Tensor:
    """`[..., 2]`: the token after each token and the one before it in its sequence, as far as they count."""
    lacks = (layout.places(tokens.device) <= 0) | (following == IGNORED)
    return torch.stack([following, torch.where(lacks, IGNORED, tokens.roll(1, -1))], dim=-1)
