"""A translator whose model is a function: what it reads and writes is known, and so is which words belong together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from regard.blocks.settings import Attention
from regard.decoding.request import Ends, Hypothesis, Wish
from regard.models.build import build
from regard.models.settings import EncoderDecoder
from regard.text.settings import AnyTokenizer, Bytes
from regard.text.tokenizer import TokenizerPair, word_spans
from regard.text.train import train_tokenizer
from regard.use.scribe import Frame, Scribe
from regard.use.translation import TranslateOptions
from regard.use.translator import Translator

Script = Callable[[str, Wish], Sequence[str]]
"""From a sentence, and what is wished for, to its translations, the best first."""

WORDS = {"the": "der", "dog": "Hund", "sees": "sieht", "big": "große", "cat": "Katze", "today": "heute", "no": "kein"}


def word_by_word(text: str) -> str:
    """Every known word translated, all else copied."""
    for start, end in reversed(word_spans(text)):
        word = text[start:end]
        new = WORDS.get(word.lower(), word)
        text = text[:start] + (new.capitalize() if word[0].isupper() else new) + text[end:]
    return text


def back(word: str) -> str:
    return next((english for english, german in WORDS.items() if german.lower() == word.lower()), word.lower())


class ScriptedScribe(Scribe):
    def __init__(self, translator: ScriptedTranslator, options: TranslateOptions) -> None:
        super().__init__(translator.network, translator.tokenizers, translator.frame, None, options)
        self.script, self.asked = translator.script, translator.asked

    def write(self, inputs: Sequence[Sequence[int]], wishes: Sequence[Wish], nbest: int) -> list[list[Hypothesis]]:
        rows = []
        for tokens, wish in zip(inputs, wishes, strict=True):
            text = self.tokenizers.source.decode(tokens)
            self.asked.append(text)
            written = self.script(text, wish)[:nbest]
            rows.append(
                [
                    Hypothesis(self.tokenizers.target.ids([each])[0], -float(rank), [], True, False)
                    for rank, each in enumerate(written, 1)
                ]
            )
        return rows

    def looks(self, texts: Sequence[str], outputs: Sequence[Sequence[int]]) -> list[np.ndarray]:
        return [self._look(text, tokens) for text, tokens in zip(texts, outputs, strict=True)]

    def _look(self, text: str, tokens: Sequence[int]) -> np.ndarray:
        """Each token of a word looks at every token of the word that it translates."""
        written = self.text(tokens)
        read = self.read_spans(text)
        weights = np.zeros((len(tokens), len(read)), np.float32)
        for row, (start, end) in enumerate(self.written_spans(tokens)):
            word = next((written[a:b] for a, b in word_spans(written) if a < end and start < b), None)
            for a, b in word_spans(text):
                if word is not None and text[a:b].lower() == back(word):
                    weights[row, [first < b and last > a for first, last in read]] = 1
        return weights


class ScriptedTranslator(Translator):
    """`asked` is what the model was given to read."""

    def __init__(self, script: Script, text: AnyTokenizer | None = None, texts: Sequence[str] = ()) -> None:
        tokenizers = TokenizerPair.of(train_tokenizer(text or Bytes(), texts))
        torch.manual_seed(0)
        network = build(
            EncoderDecoder(vocabulary=tokenizers.source.size, width=4, depth=1, attention=Attention(heads=1))
        ).eval()
        frame = Frame(Ends(tokenizers.target.role("start"), tokenizers.target.role("end")))
        super().__init__("scripted", Path("scripted"), network, tokenizers, {}, frame)
        self.script = script
        self.asked: list[str] = []

    def scribe(self, options: TranslateOptions | None = None) -> Scribe:
        return ScriptedScribe(self, options or TranslateOptions())


def scripted(translate: Callable[[str], str] = word_by_word) -> ScriptedTranslator:
    return ScriptedTranslator(lambda text, wish: [translate(text)])
