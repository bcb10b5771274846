"""T5 (Raffel et al. 2020), also in its version 1.1 with a gated feed-forward and an output of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard.blocks.settings import Attention, Dense, FeedForward, Gated, Relative, RmsNorm
from regard.models.settings import EncoderDecoder
from regard.weights.huggingface.config import EVERYWHERE, Config, activation_name
from regard.weights.huggingface.family import Family
from regard.weights.huggingface.keys import Rule, Table, linear, same

SHARED, OUTPUT = "shared.weight", "lm_head.weight"
COPIES = dict.fromkeys(("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"), SHARED)


class T5(Family[EncoderDecoder]):
    """`model_type` t5."""

    model_type = "t5"
    settings = EncoderDecoder
    architectures = ("T5ForConditionalGeneration",)
    ignored = (r"EncDecAttention\.relative_attention_bias\.weight$",)
    told_by_tensors = frozenset({"tied"})

    def settings_from(self, config: Config, tensors: Mapping[str, Tensor]) -> EncoderDecoder:
        config.require(EVERYWHERE | {"is_encoder_decoder": True})
        config.architecture(self.architectures)
        width = config.integer("d_model", 512)
        depth = config.integer("num_layers", 6)
        dropout = config.number("dropout_rate", 0.1)
        # Version 1.0 scales the decoder's output and 1.1 does not; old files say so only by whether weights are tied.
        scaled = config.flag("scale_decoder_outputs", config.flag("tie_word_embeddings", True))
        return EncoderDecoder(
            vocabulary=config.integer("vocab_size", 32128),
            width=width,
            depth=depth,
            decoder_depth=config.integer("num_decoder_layers", depth),
            attention=Attention(
                heads=config.integer("num_heads", 8),
                head_size=config.integer("d_kv", 64),
                bias=False,
                scale=1.0,
                dropout=dropout,
            ),
            ffn=self._ffn(config, dropout),
            norm=RmsNorm(eps=config.number("layer_norm_epsilon", 1e-6)),
            norm_place="pre",
            dropout=dropout,
            position=Relative(
                buckets=config.integer("relative_attention_num_buckets", 32),
                longest=config.integer("relative_attention_max_distance", 128),
            ),
            tied=("source", "target") if _own_output(tensors) else ("source", "target", "output"),
            output_scale=width**-0.5 if scaled else None,
        )

    def _ffn(self, config: Config, dropout: float) -> FeedForward:
        key = "feed_forward_proj"
        name = str(config.values.get(key) or "relu")
        hidden = config.integer("d_ff", 2048)
        if not name.startswith("gated-"):
            activation = config.activation_named(name, key)
            return Dense(hidden=hidden, activation=activation, bias=False, dropout=dropout)
        # By their word, the gate of "gated-gelu" is the approximate one.
        inner = "gelu_new" if name == "gated-gelu" else name.removeprefix("gated-")
        return Gated(hidden=hidden, activation=config.activation_named(inner, key), dropout=dropout)

    def config_from(self, settings: EncoderDecoder, architecture: str) -> dict[str, Any]:
        norm = self.expect(settings.norm, RmsNorm, "norm")
        position = self.expect(settings.position, Relative, "position")
        if not {"source", "target"} <= set(settings.tied):
            raise self.cannot(f"tied is {list(settings.tied)}, and source and target must be")
        ffn = settings.ffn
        if isinstance(ffn, Gated):
            activation = "gelu" if ffn.activation == "gelu-tanh" else activation_name(ffn.activation)
            projection = f"gated-{activation}"
        else:
            projection = activation_name(ffn.activation)
        return {
            "vocab_size": settings.vocabulary,
            "d_model": settings.width,
            "d_kv": settings.head_size,
            "d_ff": settings.ffn_hidden,
            "num_layers": settings.depth,
            "num_decoder_layers": settings.decoder_layers,
            "num_heads": settings.attention.heads,
            "relative_attention_num_buckets": position.buckets,
            "relative_attention_max_distance": position.longest,
            "dropout_rate": settings.dropout,
            "layer_norm_epsilon": norm.eps,
            "feed_forward_proj": projection,
            "is_encoder_decoder": True,
            "tie_word_embeddings": "output" in settings.tied,
            "scale_decoder_outputs": settings.output_scale is not None,
        }

    def architecture_for(self, settings: EncoderDecoder) -> str:
        return "T5ForConditionalGeneration"

    def table(self, settings: EncoderDecoder, config: Config) -> Table:
        rules = [same("source.tokens.weight", SHARED)]
        for stack, depth in (("encoder", settings.depth), ("decoder", settings.decoder_layers)):
            first = f"{stack}.block.0.layer.0.SelfAttention"
            rules.append(same(f"{stack}.position.weight", f"{first}.relative_attention_bias.weight"))
            rules.append(same(f"{stack}.norm.weight", f"{stack}.final_layer_norm.weight"))
            for i in range(depth):
                rules += _layer(f"{stack}.{i}", f"{stack}.block.{i}.layer", stack == "decoder", settings.ffn)
        if "output" in settings.tied:
            return Table(rules, COPIES | {OUTPUT: SHARED})
        return Table([*rules, same("output.weight", OUTPUT)], COPIES)


def _own_output(tensors: Mapping[str, Tensor]) -> bool:
    """Whether the output is a matrix of its own. Their present configs never say so; their code looks at the file."""
    output, shared = tensors.get(OUTPUT), tensors.get(SHARED)
    return output is not None and shared is not None and not torch.equal(output, shared)


def _layer(ours: str, theirs: str, cross: bool, ffn: FeedForward) -> list[Rule]:
    rules: list[Rule] = []
    attentions = [("attention", "SelfAttention")] + ([("cross", "EncDecAttention")] if cross else [])
    for place, (name, attention) in enumerate(attentions):
        for x, y in (("q", "q"), ("k", "k"), ("v", "v"), ("out", "o")):
            rules.append(same(f"{ours}.{name}.{x}.weight", f"{theirs}.{place}.{attention}.{y}.weight"))
        rules += linear(f"{ours}.{name}_residual.norm", f"{theirs}.{place}.layer_norm", bias=False)
    last = f"{theirs}.{len(attentions)}"
    rules += linear(f"{ours}.ffn_residual.norm", f"{last}.layer_norm", bias=False)
    if isinstance(ffn, Gated):
        rules += linear(f"{ours}.ffn.gate", f"{last}.DenseReluDense.wi_0", bias=False)
        rules += linear(f"{ours}.ffn.up", f"{last}.DenseReluDense.wi_1", bias=False)
    else:
        rules += linear(f"{ours}.ffn.up", f"{last}.DenseReluDense.wi", bias=False)
    rules += linear(f"{ours}.ffn.down", f"{last}.DenseReluDense.wo", bias=False)
    return rules
