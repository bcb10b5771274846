"""GPT-2 (Radford et al. 2019). Its weights lie as [in, out], and query, key and value as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from regard.blocks.settings import Attention, Dense, LayerNorm, Learned
from regard.models.settings import Decoder, Normal
from regard.weights.huggingface.config import EVERYWHERE, Config, activation_name
from regard.weights.huggingface.family import Family
from regard.weights.huggingface.keys import Rule, Table, joined, linear, same, transposed


class Gpt2(Family[Decoder]):
    """`model_type` gpt2."""

    model_type = "gpt2"
    settings = Decoder
    architectures = ("GPT2LMHeadModel", "GPT2Model")
    base = "GPT2Model"
    prefix = "transformer."
    heads = ("lm_head.",)
    ignored = (r"\.attn\.(masked_)?bias$",)

    def settings_from(self, config: Config, tensors: Mapping[str, Tensor]) -> Decoder:
        config.require(EVERYWHERE | {"scale_attn_by_inverse_layer_idx": False})
        dropout = config.number("resid_pdrop", 0.1)
        config.training_only({"embd_pdrop": dropout})
        base = config.architecture(self.architectures) == self.base
        return Decoder(
            vocabulary=config.integer("vocab_size", 50257),
            width=config.integer("n_embd", 768),
            depth=config.integer("n_layer", 12),
            attention=Attention(
                heads=config.integer("n_head", 12),
                scale=None if config.flag("scale_attn_weights", True) else 1.0,
                dropout=config.number("attn_pdrop", 0.1),
            ),
            ffn=Dense(
                hidden=config.optional_integer("n_inner"),
                activation=config.activation("activation_function", "gelu_new"),
            ),
            norm=LayerNorm(eps=config.number("layer_norm_epsilon", 1e-5)),
            norm_place="pre",
            dropout=dropout,
            position=Learned(length=config.integer("n_positions", 1024)),
            tied=base or config.flag("tie_word_embeddings", True),
            initial=Normal(deviation=config.number("initializer_range", 0.02), scaled_residual=True),
        )

    def config_from(self, settings: Decoder, architecture: str) -> dict[str, Any]:
        ffn, norm = self.expect(settings.ffn, Dense, "ffn"), self.expect(settings.norm, LayerNorm, "norm")
        position = self.expect(settings.position, Learned, "position")
        return {
            "vocab_size": settings.vocabulary,
            "n_embd": settings.width,
            "n_layer": settings.depth,
            "n_head": settings.attention.heads,
            "n_inner": settings.ffn_hidden,
            "n_positions": position.length,
            "activation_function": activation_name(ffn.activation),
            "layer_norm_epsilon": norm.eps,
            "scale_attn_weights": settings.attention.scale != 1.0,
            "resid_pdrop": settings.dropout,
            "embd_pdrop": settings.dropout,
            "attn_pdrop": settings.attention.dropout,
            "tie_word_embeddings": settings.tied,
            "bos_token_id": None,
            "eos_token_id": None,
        }

    def architecture_for(self, settings: Decoder) -> str:
        return "GPT2LMHeadModel"

    def table(self, settings: Decoder, config: Config) -> Table:
        tokens = "transformer.wte.weight"
        rules = [
            same("embedding.tokens.weight", tokens),
            same("embedding.position.weight", "transformer.wpe.weight"),
            *linear("decoder.norm", "transformer.ln_f"),
        ]
        for i in range(settings.depth):
            rules += _layer(f"decoder.{i}", f"transformer.h.{i}")
        if settings.tied:
            return Table(rules, copies={"lm_head.weight": tokens})
        return Table([*rules, same("output.weight", "lm_head.weight")])


def _layer(ours: str, theirs: str) -> list[Rule]:
    rules = [
        joined(tuple(f"{ours}.attention.{x}.weight" for x in "qkv"), f"{theirs}.attn.c_attn.weight", transpose=True),
        joined(tuple(f"{ours}.attention.{x}.bias" for x in "qkv"), f"{theirs}.attn.c_attn.bias"),
    ]
    for name, place in (("attention.out", "attn.c_proj"), ("ffn.up", "mlp.c_fc"), ("ffn.down", "mlp.c_proj")):
        rules.append(transposed(f"{ours}.{name}.weight", f"{theirs}.{place}.weight"))
        rules.append(same(f"{ours}.{name}.bias", f"{theirs}.{place}.bias"))
    rules += linear(f"{ours}.attention_residual.norm", f"{theirs}.ln_1")
    rules += linear(f"{ours}.ffn_residual.norm", f"{theirs}.ln_2")
    return rules
