"""Instruction tuning: a language model learns to answer; only the tokens of answers count (Ouyang et al. 2022)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from torch import nn

from regard.data.columns import IGNORED, Batch, Column, Selection, Sequences, TokenColumn
from regard.data.examples import Chat, Example, Pair
from regard.decoding.decode import decode
from regard.decoding.settings import Absolute, Ends, Rules
from regard.models.build import Model
from regard.models.families import Decoder
from regard.models.settings import Decoder as DecoderSettings
from regard.tasks.language import SmoothedSettings
from regard.tasks.losses import cross_entropy
from regard.tasks.recipe import TrainingJob
from regard.tasks.task import Task, TaskSettings
from regard.tasks.text import check_inputs
from regard.text.chat import chat_parts, chat_template, render_chat
from regard.training.step import Loss
from regard.weights.directory import CONFIG, read_config
from regard.weights.location import find_model
from regard.weights.warm_start import Start

TEMPLATE = (
    "{% for message in messages %}{{ message.role | capitalize }}:\n{{ message.content }}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{{ '\\n' }}{% endif %}"
)
"""The template of a model that has none."""
ANSWER_TOKENS = 256


class Instruct(SmoothedSettings):
    """Learns to answer from prompts and responses, or from conversations. Needs a decoder."""

    kind: Literal["instruct"] = "instruct"
    template: str | None = None
    """Jinja template that writes a conversation as a text, as Hugging Face's tokenizers have it; none: that of
    `train.start`, or a line "User:" or "Assistant:" before each message."""


@dataclass(frozen=True)
class AnswerColumn(TokenColumn):
    """A conversation. A token of an answer is stored as its id plus the size of the vocabulary; only these are
    predicted."""

    @property
    def size(self) -> int:
        return 2 * self.vocabulary

    def collate(self, selected: Selection, batch: Batch) -> None:
        grid = selected.grid
        tokens, following = self.read(selected)
        labels = np.where(following < self.vocabulary, IGNORED, following.astype(np.int64) - self.vocabulary)
        batch.sequences[selected.name] = Sequences(grid.filled(tokens % self.vocabulary, self.pad), grid.layout)
        batch.values[f"{selected.name}.next"] = grid.filled(labels, IGNORED)


class InstructTask(Task):
    """Conversations, or pairs of a prompt and a response."""

    settings_type: ClassVar[type[TaskSettings]] = Instruct
    family = DecoderSettings
    example: ClassVar[type[Example] | tuple[type[Example], ...]] = (Chat, Pair)
    data_kind = "chat"
    text_kind = "byte-bpe"
    usage = "chat {}"
    encoded_by = ("template",)
    version = 2
    settings: Any

    @classmethod
    def complete(cls, job: TrainingJob) -> TrainingJob:
        # Without a model to start from; `started` does it with one.
        return job if job.train.start is not None else _with_template(job, None)

    @classmethod
    def started(cls, job: TrainingJob, start: Start) -> TrainingJob:
        directory, _ = find_model(start.source)
        config = read_config(directory) if (directory / CONFIG).is_file() else {}
        return _with_template(job, chat_template(directory, config))

    def columns(self) -> dict[str, Column]:
        return {"text": replace(AnswerColumn.for_tokenizer(self.tokenizers.source), predict=True)}

    def encode(self, examples: Sequence[Chat | Pair]) -> Mapping[str, Any]:
        size, end = self.tokenizers.source.size, self.tokenizers.source.roles.get("end")
        rows = []
        for example in examples:
            if isinstance(example, Chat):
                pairs = example.messages
            else:
                pairs = (("user", example.source), ("assistant", example.target))
            messages = [{"role": role, "content": content} for role, content in pairs]
            parts = chat_parts(self._template, messages, self.tokenizers.source)
            row = self._started([id + size * answer for text, answer in parts for id in self._ids(text)])
            # A template that ends turns with another token, as Gemma's does, would never end the answer.
            rows.append(row if end is None or size + end in row else [*row, size + end])
        return {"text": rows}

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        text = batch.sequences["text"]
        logits = model(text.tokens, text.layout)
        return cross_entropy(logits, batch.values["text.next"], self.settings.smoothing, model.training)

    def prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of messages of a user, up to where the answer begins."""
        tokenizer, template = self.tokenizers.source, self._template
        asked = ([{"role": "user", "content": text}] for text in texts)
        return [self._started(self._ids(render_chat(template, each, tokenizer, "task.template"))) for each in asked]

    def predict(self, model: Model, inputs: Sequence[str]) -> list[str]:
        """The most likely answer to each message."""
        assert isinstance(model, Decoder)
        check_inputs(inputs, pair=False)
        tokenizer, rules = self.tokenizers.source, Rules(longest=Absolute(tokens=ANSWER_TOKENS))
        found = decode(model, self.prompts(inputs), Ends(None, tokenizer.role("end")), rules=rules)
        return [text.strip() for text in tokenizer.decode_batch([best[0].tokens for best in found])]

    @property
    def _template(self) -> str:
        return self.settings.template or TEMPLATE

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizers.source.encode(text, framed=False, special=True).ids)

    def _started(self, ids: list[int]) -> list[int]:
        """With the start token before it, if the tokenizer has one and the template did not write it."""
        start = self.tokenizers.source.roles.get("start")
        return ids if start is None or ids[:1] == [start] else [start, *ids]


def _with_template(job: TrainingJob, found: str | None) -> TrainingJob:
    """The job with a template, which the run directory then has too, for `regard chat`."""
    template = getattr(job.task, "template", None) or found or TEMPLATE
    return replace(job, task=job.task.changed({"template": template}))
