"""A small model of each family that Hugging Face directories can hold, and ways to spoil such a directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

import regard
from regard.blocks.settings import Attention, Dense, Gated, Learned, Relative, RmsNorm, Rotary, Sinusoidal
from regard.models.settings import (
    Classification,
    Decoder,
    Encoder,
    EncoderDecoder,
    Masked,
    ModelSettings,
    NextSentence,
    Vision,
)

BODY: dict[str, Any] = {"width": 16, "depth": 1, "attention": Attention(heads=2)}
TEXT = BODY | {"vocabulary": 20}
RMS = TEXT | {"norm": RmsNorm(), "norm_place": "pre"}
HALVES = Sinusoidal(order="halves")
SMALL: dict[str, ModelSettings] = {
    "bert": Encoder(
        **TEXT,
        ffn=Dense(activation="gelu"),
        position=Learned(length=9),
        embedding_norm=True,
        segments=2,
        heads={"masked": Masked(), "next-sentence": NextSentence()},
    ),
    "gpt2": Decoder(**TEXT, norm_place="pre", position=Learned(length=9), tied=False),
    "vit": Vision(
        **BODY, image=(8, 12), patch=4, norm_place="pre", heads={"classification": Classification(classes=5)}
    ),
    "marian": EncoderDecoder(**TEXT, position=HALVES, output_bias=True),
    "pegasus": EncoderDecoder(**TEXT, norm_place="pre", position=HALVES, output_bias=True),
    "bart": EncoderDecoder(**TEXT, position=Learned(length=9, offset=2), embedding_norm=True, output_bias=True),
    "t5": EncoderDecoder(
        **RMS | {"attention": Attention(heads=2, bias=False, scale=1.0)},
        ffn=Dense(bias=False),
        position=Relative(),
        output_scale=0.25,
    ),
    "llama": Decoder(**RMS | {"attention": Attention(heads=2, bias=False)}, ffn=Gated(), position=Rotary(), tied=False),
}


def randomised(settings: ModelSettings) -> nn.Module:
    model = regard.build(settings)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model


def change_config(directory: Path, changes: dict[str, Any]) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_tensors(directory: Path, changes: dict[str, torch.Tensor | None]) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path) | changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)
