"""Language modelling: each token is predicted from the tokens before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.blocks.layout import Layout
from regard.blocks.settings import Positive
from regard.data.columns import IGNORED, Batch, Column, TokenColumn
from regard.data.examples import Text
from regard.data.settings import DataSettings
from regard.decoding.decode import decode
from regard.decoding.settings import Ends
from regard.errors import InputError, SettingsError
from regard.models.build import Model
from regard.models.families import Decoder, Encoder
from regard.models.settings import Decoder as DecoderSettings
from regard.models.settings import Elmo, ModelSettings, TwoDirections, reach
from regard.tasks.losses import cross_entropy
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

    kind = "language"
    settings_type = Language
    family = (DecoderSettings, Elmo)
    text_kind = "byte-bpe"
    settings: Language

    def columns(self) -> dict[str, Column]:
        tokenizer, across = self.tokenizers.source, self.settings.across
        return {
            "text": TokenColumn(
                tokenizer.size,
                tokenizer.roles.get("pad", 0),
                None if across else tokenizer.role("start"),
                tokenizer.role("end"),
                tokenizer.roles.get("unknown"),
                predict=True,
                window=self.settings.context if across else None,
            )
        }

    def fit(self) -> ModelSettings:
        if not isinstance(self.model, Elmo):
            return self.model
        model, self.head = with_head(self.model, TwoDirections, "language", {})
        return model

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        text = batch.sequences["text"]
        if isinstance(model, Encoder):
            logits = model.heads[str(self.head)](model.directions(text.tokens, text.layout))
            labels = both_labels(text.tokens, batch.values["text.next"], text.layout)
            return cross_entropy(logits, labels, self.settings.smoothing, model.training)
        logits = model(text.tokens, text.layout)
        return cross_entropy(logits, batch.values["text.next"], self.settings.smoothing, model.training)

    def predict(self, model: Model, inputs: Sequence[str]) -> list[str]:
        """The most likely continuation of each text."""
        if not isinstance(model, Decoder):
            raise InputError("elmo cannot continue a text; fine-tune it: set train.start to its directory")
        for number, each in enumerate(inputs):
            if not isinstance(each, str):
                raise InputError(f"inputs[{number}] is a {type(each).__name__}, expected a text")
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
