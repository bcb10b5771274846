"""What BART, Marian and Pegasus have in common: BART's layers, its names, and its ways of tying embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from regard.blocks.settings import Attention, Dense, LayerNorm
from regard.models.settings import EncoderDecoder
from regard.weights.huggingface.config import EVERYWHERE, Config, activation_name
from regard.weights.huggingface.equivalent import add_biases, with_biases
from regard.weights.huggingface.family import Family
from regard.weights.huggingface.keys import Rule, Table, linear, same, with_leading

Part = Literal["source", "target", "output"]

SHARED, SOURCE, TARGET = "model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
OUTPUT, BIAS = "lm_head.weight", "final_logits_bias"

ALL: tuple[Part, ...] = ("source", "target", "output")
"""The ties that are written with tie_word_embeddings, and one vocabulary."""


class Translation(Family[EncoderDecoder]):
    """The base of all three."""

    settings = EncoderDecoder
    pre: ClassVar[bool] = False
    """Whether norms stand before sublayers, and one more behind all of them."""
    prefix = "model."
    heads = ("lm_head.", "final_logits_bias")
    ignored = (r"(^|\.)(encoder|decoder)\.version$",)
    told_by_tensors = frozenset({"tied", "output_bias"})
    told_by_values = frozenset({"output_bias"})

    def equivalent(self, settings: EncoderDecoder) -> EncoderDecoder:
        return with_biases(settings)

    def rewritten(self, tensors: Mapping[str, Tensor], settings: EncoderDecoder) -> dict[str, Tensor]:
        return add_biases(tensors, with_biases(settings))

    def body_from(self, config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """The settings that all have, by name."""
        config.require(
            EVERYWHERE | {"is_encoder_decoder": True, "normalize_before": self.pre, "add_final_layer_norm": self.pre}
        )
        config.training_only({"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0})
        for encoder, decoder, default in (
            ("encoder_attention_heads", "decoder_attention_heads", 16),
            ("encoder_ffn_dim", "decoder_ffn_dim", 4096),
        ):
            if config.integer(encoder, default) != config.integer(decoder, default):
                raise config.refuse(
                    decoder,
                    f"differs from {encoder} ({config.integer(encoder, default)}), which cannot be expressed; "
                    "convert a model whose encoder and decoder have equal layers",
                )
        return {
            "vocabulary": config.integer("vocab_size", 50265),
            "width": config.integer("d_model", 1024),
            "depth": config.integer("encoder_layers", 12),
            "decoder_depth": config.integer("decoder_layers", 12),
            "attention": Attention(
                heads=config.integer("encoder_attention_heads", 16), dropout=config.number("attention_dropout", 0.0)
            ),
            "ffn": Dense(
                hidden=config.integer("encoder_ffn_dim", 4096),
                activation=config.activation("activation_function", "gelu"),
                dropout=config.number("activation_dropout", 0.0),
            ),
            "norm": LayerNorm(eps=1e-5),
            "norm_place": "pre" if self.pre else "post",
            "dropout": config.number("dropout", 0.1),
            "embedding_scale": config.flag("scale_embedding", False),
            "output_bias": BIAS in tensors and bool(tensors[BIAS].any()),
        }

    def body_config(self, settings: EncoderDecoder) -> dict[str, Any]:
        """The values of config.json that all have."""
        ffn = self.expect(settings.ffn, Dense, "ffn")
        return {
            "vocab_size": settings.vocabulary,
            "d_model": settings.width,
            "encoder_layers": settings.depth,
            "decoder_layers": settings.decoder_layers,
            "encoder_attention_heads": settings.attention.heads,
            "decoder_attention_heads": settings.attention.heads,
            "encoder_ffn_dim": settings.ffn_hidden,
            "decoder_ffn_dim": settings.ffn_hidden,
            "activation_function": activation_name(ffn.activation),
            "activation_dropout": ffn.dropout,
            "attention_dropout": settings.attention.dropout,
            "dropout": settings.dropout,
            "scale_embedding": settings.embedding_scale,
            "is_encoder_decoder": True,
            "pad_token_id": None,
            "bos_token_id": None,
            "eos_token_id": None,
            "forced_eos_token_id": None,
        }

    def ties_all(self, settings: EncoderDecoder) -> bool:
        """Whether one matrix serves all three, of those ties that a model of one vocabulary can have."""
        if set(settings.tied) not in (set(ALL), {"source", "target"}, set()):
            raise self.cannot(f"tied is {list(settings.tied)}, and only all three, source and target, or none can be")
        return set(settings.tied) == set(ALL)

    def untied_output(self, config: Config, tensors: Mapping[str, Tensor]) -> tuple[Part, ...]:
        """The ties that remain when tie_word_embeddings is false.

        Their present version then keeps every matrix apart; earlier ones shared the two embeddings all the same and
        wrote them once. So the tensors tell.
        """
        source, target = tensors.get(SOURCE), tensors.get(TARGET)
        shared = source is None or target is None or torch.equal(source, target)
        if config.architecture(self.architectures) != self.base:
            return ("source", "target") if shared else ()
        return ALL if shared else ("target", "output")

    def embedding_table(self, settings: EncoderDecoder, config: Config, shared: bool) -> Table:
        """The embeddings and the output. `shared`: whether they have a place for a matrix that both embeddings are."""
        tied = set(settings.tied)
        rules: list[Rule] = []
        copies: dict[str, str] = {}
        spares = {SHARED: SOURCE} if shared else {}
        if tied == set(ALL):
            rules.append(same("source.tokens.weight", SHARED))
            copies, spares = dict.fromkeys((SOURCE, TARGET, OUTPUT), SHARED), {}
        else:
            rules.append(same("source.tokens.weight", SOURCE))
            if "target" in tied and "source" in tied:
                spares |= {TARGET: SOURCE}
            else:
                rules.append(same("target.tokens.weight", TARGET))
            if "output" in tied:
                copies = {OUTPUT: TARGET}
            else:
                rules.append(same("output.weight", OUTPUT))
        fixed = {}
        if settings.output_bias:
            rules.append(with_leading("output.bias", BIAS, ones=1))
        elif config.architecture(self.architectures) != self.base:
            fixed[BIAS] = torch.zeros(1, settings.target_size)
        return Table([*rules, *layer_rules(settings)], copies, spares, fixed)


def layer_rules(settings: EncoderDecoder) -> list[Rule]:
    rules: list[Rule] = []
    for stack, depth in (("encoder", settings.depth), ("decoder", settings.decoder_layers)):
        for i in range(depth):
            ours, theirs = f"{stack}.{i}", f"model.{stack}.layers.{i}"
            rules += _attention(f"{ours}.attention", f"{theirs}.self_attn")
            if stack == "decoder":
                rules += _attention(f"{ours}.cross", f"{theirs}.encoder_attn")
            rules += linear(f"{ours}.ffn.up", f"{theirs}.fc1")
            rules += linear(f"{ours}.ffn.down", f"{theirs}.fc2")
            rules += linear(f"{ours}.ffn_residual.norm", f"{theirs}.final_layer_norm")
        if settings.has_final_norm:
            rules += linear(f"{stack}.norm", f"model.{stack}.layer_norm")
    return rules


def _attention(ours: str, theirs: str) -> list[Rule]:
    rules = linear(f"{ours}_residual.norm", f"{theirs}_layer_norm")
    for name in ("q", "k", "v", "out"):
        rules += linear(f"{ours}.{name}", f"{theirs}.{name}_proj")
    return rules
