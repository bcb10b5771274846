"""Marian (Junczys-Dowmunt et al. 2018), the translation models of OPUS-MT; and Pegasus, its pre-norm relative."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.blocks.positions import sinusoidal
from regard.blocks.settings import Sinusoidal
from regard.models.settings import EncoderDecoder, Normal
from regard.weights.huggingface.config import Config
from regard.weights.huggingface.equivalent import to_halves, with_halves
from regard.weights.huggingface.keys import Table
from regard.weights.huggingface.translation import ALL, Translation

LENGTH = 1024
"""Rows that are written of the sinusoids, which have no end with us."""


class Marian(Translation):
    """`model_type` marian: sinusoidal positions, perhaps two vocabularies."""

    model_type = "marian"
    architectures = ("MarianMTModel",)

    def equivalent(self, settings: EncoderDecoder) -> EncoderDecoder:
        return with_halves(super().equivalent(settings))

    def rewritten(self, tensors: Mapping[str, Tensor], settings: EncoderDecoder) -> dict[str, Tensor]:
        return to_halves(super().rewritten(tensors, settings), settings)

    def settings_from(self, config: Config, tensors: Mapping[str, Tensor]) -> EncoderDecoder:
        config.require({"normalize_embedding": False, "static_position_embeddings": True})
        body = self.body_from(config, tensors)
        target = config.integer("decoder_vocab_size", body["vocabulary"])
        shared = config.flag("share_encoder_decoder_embeddings", True)
        if shared and target != body["vocabulary"]:
            raise config.refuse(
                "decoder_vocab_size",
                f"differs from vocab_size ({body['vocabulary']}) although share_encoder_decoder_embeddings is true; "
                "set one of them right",
            )
        if config.flag("tie_word_embeddings", True):
            tied = ALL if shared else ALL[1:]
        else:
            tied = self.untied_output(config, tensors) if shared else ()
        return EncoderDecoder(
            **body,
            target_vocabulary=None if shared else target,
            position=Sinusoidal(order="halves"),
            tied=tied,
            initial=Normal(deviation=config.number("init_std", 0.02)),
        )

    def config_from(self, settings: EncoderDecoder, architecture: str) -> dict[str, Any]:
        self.expect(settings.position, Sinusoidal, "position")
        tied = set(settings.tied)
        if tied == {"source", "output"}:
            raise self.cannot(f"tied is {list(settings.tied)}, and source and output alone cannot be")
        return self.body_config(settings) | {
            "decoder_vocab_size": settings.target_size,
            "max_position_embeddings": LENGTH,
            "share_encoder_decoder_embeddings": "source" in tied,
            "tie_word_embeddings": "output" in tied,
        }

    def architecture_for(self, settings: EncoderDecoder) -> str:
        return "MarianMTModel"

    def table(self, settings: EncoderDecoder, config: Config) -> Table:
        table = self.embedding_table(settings, config, config.flag("share_encoder_decoder_embeddings", True))
        return with_sinusoids(table, settings, config)


class Pegasus(Marian):
    """`model_type` pegasus (Zhang et al. 2020): the same with norms before sublayers, and one vocabulary."""

    model_type = "pegasus"
    architectures = ("PegasusForConditionalGeneration",)
    pre = True

    def settings_from(self, config: Config, tensors: Mapping[str, Tensor]) -> EncoderDecoder:
        config.require({"normalize_embedding": False, "static_position_embeddings": True})
        return EncoderDecoder(
            **self.body_from(config, tensors),
            position=Sinusoidal(order="halves"),
            tied=ALL if config.flag("tie_word_embeddings", True) else self.untied_output(config, tensors),
            initial=Normal(deviation=config.number("init_std", 0.02)),
        )

    def config_from(self, settings: EncoderDecoder, architecture: str) -> dict[str, Any]:
        self.expect(settings.position, Sinusoidal, "position")
        return self.body_config(settings) | {
            "max_position_embeddings": LENGTH,
            "tie_word_embeddings": self.ties_all(settings),
        }

    def architecture_for(self, settings: EncoderDecoder) -> str:
        return self.architectures[0]

    def table(self, settings: EncoderDecoder, config: Config) -> Table:
        return with_sinusoids(self.embedding_table(settings, config, shared=True), settings, config)


def with_sinusoids(table: Table, settings: EncoderDecoder, config: Config) -> Table:
    """The table with both stacks' positions, which are written but not learnt."""
    places = torch.arange(config.integer("max_position_embeddings", LENGTH))
    sinusoids = sinusoidal(places, settings.width, order="halves", dtype=torch.float32)
    tables = {f"model.{stack}.embed_positions.weight": sinusoids for stack in ("encoder", "decoder")}
    return replace(table, fixed={**table.fixed, **tables})
