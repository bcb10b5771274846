"""Models with random weights on the disk, one of each family beside the translator, for those who look into them."""

from __future__ import annotations

from pathlib import Path

import torch
from tiny_translator import TEXTS, write_translator

import regard
from regard.blocks.settings import Attention
from regard.models.settings import Classification, Decoder, Encoder, Masked, Vision
from regard.text.settings import ByteBpe
from regard.text.tokenizer import TokenizerPair
from regard.text.train import train_tokenizer
from regard.weights.directory import save_model


def write_decoder(directory: Path) -> Path:
    """Continues texts."""
    tokenizer = train_tokenizer(ByteBpe(size=400), TEXTS)
    torch.manual_seed(2)
    save_model(
        regard.build(Decoder(vocabulary=tokenizer.size, width=16, depth=2, attention=Attention(heads=2))), directory
    )
    TokenizerPair.of(tokenizer).save(directory)
    return directory


def write_encoder(directory: Path) -> Path:
    """Fills gaps, and tells three classes of texts apart."""
    tokenizer = train_tokenizer(ByteBpe(size=400), TEXTS)
    torch.manual_seed(3)
    heads = {"masked": Masked(), "label": Classification(classes=3)}
    settings = Encoder(vocabulary=tokenizer.size, width=16, depth=2, attention=Attention(heads=2), heads=heads)
    save_model(regard.build(settings), directory)
    TokenizerPair.of(tokenizer).save(directory)
    return directory


def write_vision(directory: Path) -> Path:
    """Tells three classes of small grey images apart."""
    torch.manual_seed(4)
    heads = {"label": Classification(classes=3)}
    settings = Vision(image=(8, 8), patch=4, channels=1, width=16, depth=1, attention=Attention(heads=2), heads=heads)
    save_model(regard.build(settings), directory)
    return directory


WRITERS = {"translator": write_translator, "decoder": write_decoder, "encoder": write_encoder, "vision": write_vision}
