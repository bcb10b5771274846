"""A translator whose model is a Python function, so that its inputs and outputs are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from regard.blocks.settings import Attention
from regard.decoding.settings import Ends, Hypothesis, Wish
from regard.models.build import build
from regard.models.settings import EncoderDecoder
from regard.text.settings import AnyTokenizer, Bytes
from regard.text.tokenizer import TokenizerPair, word_spans
from regard.text.train import train_tokenizer
from regard.use.model import Frame
from regard.use.translator import Translator

Script = Callable[[str, Wish], Sequence[str]]
"""From a sentence and a wish to its translations, best first."""

WORDS = {"the": "der", "dog": "Hund", "sees": "sieht", "big": "große", "cat": "Katze", "today": "heute", "no": "kein"}


def word_by_word(text: str) -> str:
    """Translates known words and copies everything else."""
    for start, end in reversed(word_spans(text)):
        word = text[start:end]
        new = WORDS.get(word.lower(), word)
        text = text[:start] + (new.capitalize() if word[0].isupper() else new) + text[end:]
    return text


class ScriptedTranslator(Translator):
    """`asked` lists the sentences that the model reads."""

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

    def _decode(
        self, inputs: Sequence[Sequence[int]], wishes: Sequence[Wish], nbest: int, request: Any
    ) -> list[list[Hypothesis]]:
        rows = []
        for tokens, wish in zip(inputs, wishes, strict=True):
            text = self.tokenizers.source.decode(tokens)
            self.asked.append(text)
            written = self.script(text, wish)[:nbest]
            rows.append(
                [
                    Hypothesis(self.tokenizers.target.ids([each])[0], -float(rank), [], True)
                    for rank, each in enumerate(written, 1)
                ]
            )
        return rows


def scripted(translate: Callable[[str], str] = word_by_word) -> ScriptedTranslator:
    return ScriptedTranslator(lambda text, wish: [translate(text)])
