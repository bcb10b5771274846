"""A translator with random weights, on the disk: it writes nonsense, but always the same."""

from __future__ import annotations

from pathlib import Path

import torch

import regard
from regard.blocks.settings import Attention
from regard.models.settings import EncoderDecoder
from regard.text.settings import ByteBpe, ByteSpecialTokens
from regard.text.tokenizer import TokenizerPair, tag
from regard.text.train import train_tokenizer
from regard.weights.directory import save_model

TEXTS = ["ein Hund läuft durch den Schnee", "the dog is running through the snow", "und eine Katze", "and a cat too"]


def write_translator(directory: Path, both: bool = True, named: bool = True) -> Path:
    """From German to English and, if `both`, back; or, if not `named`, from something to something."""
    tags = (tag("en"), tag("de")) if both else ()
    tokenizer = train_tokenizer(ByteBpe(size=400, special=ByteSpecialTokens(extra=tags)), TEXTS)
    torch.manual_seed(1)
    settings = EncoderDecoder(vocabulary=tokenizer.size, width=16, depth=1, attention=Attention(heads=2))
    languages = {"languages": ["de", "en"], "both": both} if named else {}
    tables = {"task": "translate", "data": {"kind": "parallel", **languages}}
    save_model(regard.build(settings), directory, tables=tables)
    TokenizerPair.of(tokenizer).save(directory)
    return directory
