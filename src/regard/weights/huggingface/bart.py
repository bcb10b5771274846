"""BART (Lewis et al. 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from regard.blocks.settings import Learned
from regard.models.settings import EncoderDecoder, Normal
from regard.weights.huggingface.config import Config
from regard.weights.huggingface.keys import Table, linear, same
from regard.weights.huggingface.translation import ALL, Translation

OFFSET = 2
"""Rows of the position table before place 0, left over from fairseq's padding."""


class Bart(Translation):
    """`model_type` bart: learned positions, and a norm after the embeddings."""

    model_type = "bart"
    architectures = ("BartForConditionalGeneration", "BartModel")
    base = "BartModel"

    def settings_from(self, config: Config, tensors: Mapping[str, Tensor]) -> EncoderDecoder:
        config.require(
            {"normalize_embedding": True, "static_position_embeddings": False, "extra_pos_embeddings": OFFSET}
        )
        return EncoderDecoder(
            **self.body_from(config, tensors),
            position=Learned(length=config.integer("max_position_embeddings", 1024), offset=OFFSET),
            embedding_norm=True,
            tied=ALL if config.flag("tie_word_embeddings", True) else self.untied_output(config, tensors),
            initial=Normal(deviation=config.number("init_std", 0.02)),
        )

    def config_from(self, settings: EncoderDecoder, architecture: str) -> dict[str, Any]:
        position = self.expect(settings.position, Learned, "position")
        if architecture == self.base and settings.output_bias:
            raise self.cannot(f"output_bias is True, and {self.base} has no output of its own")
        return self.body_config(settings) | {
            "max_position_embeddings": position.length,
            "tie_word_embeddings": self.ties_all(settings),
        }

    def architecture_for(self, settings: EncoderDecoder) -> str:
        return "BartForConditionalGeneration"

    def table(self, settings: EncoderDecoder, config: Config) -> Table:
        table = self.embedding_table(settings, config, shared=True)
        for ours, stack in (("source", "encoder"), ("target", "decoder")):
            table.rules.append(same(f"{ours}.position.weight", f"model.{stack}.embed_positions.weight"))
            table.rules.extend(linear(f"{ours}.norm", f"model.{stack}.layernorm_embedding"))
        return table
