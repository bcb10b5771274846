"""Temporary: the old interface of `Translator`, until look uses `inputs`, `input_spans`, `decode`, `output_text`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from regard.decoding.request import Hypothesis, Wish
from regard.text.tokenizer import Span
from regard.use.model import Frame

if TYPE_CHECKING:
    from regard.use.translation import TranslateOptions
    from regard.use.translator import Translator

__all__ = ["Frame", "Scribe"]


class Scribe:
    """See above."""

    def __init__(self, model: Translator, options: TranslateOptions) -> None:
        self.model, self.request = model, model._request(options)
        self.frame, self.special = model.frame, model.special
        self.beginning = Wish(prefix=self.request.prefix)

    def read(self, texts: Sequence[str]) -> list[list[int]]:
        return self.model.inputs(texts, self.request.to)

    def read_spans(self, text: str) -> list[Span]:
        return self.model.input_spans(text, self.request.to)

    def write(self, inputs: Sequence[Sequence[int]], wishes: Sequence[Wish], nbest: int) -> list[list[Hypothesis]]:
        return self.model._search(inputs, wishes, nbest, self.request)

    def text(self, tokens: Sequence[int]) -> str:
        return self.model.output_text(tokens)

    def written_spans(self, tokens: Sequence[int]) -> list[Span]:
        return self.model.output_spans(tokens)

    def word(self, word: str) -> list[int]:
        return self.model._tokens_of("must", word, inside=True)
