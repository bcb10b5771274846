"""BART (Lewis et al. 2020), Marian (Junczys-Dowmunt et al. 2018; OPUS-MT), Pegasus (Zhang et al. 2020) and T5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from regard.blocks.positions import sinusoidal
from regard.blocks.settings import Gated, LayerNorm, Sinusoidal
from regard.models.build import build
from regard.models.settings import EncoderDecoder
from regard.weights.huggingface import tables
from regard.weights.huggingface.tables import ACTIVATION, SAME, Config, Family, Names, Row, TensorMap, under

Part = Literal["source", "target", "output"]
ALL: tuple[Part, ...] = ("source", "target", "output")
SHARED, SOURCE, TARGET = "model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
OUTPUT, BIAS, T5_SHARED = "lm_head.weight", "final_logits_bias", "shared.weight"
LENGTH = 1024
"""The number of sinusoids that are written. Ours have no end."""


def _stack(name: str) -> Names:
    layer = f"model.{name}.layers.{{i}}"
    names: Names = {f"{name}.norm": (f"model.{name}.layer_norm", SAME)}
    names |= under(f"{name}.{{i}}.ffn", layer, up="fc1", down="fc2")
    names |= under(f"{name}.{{i}}.ffn_residual", layer, norm="final_layer_norm")
    for ours, theirs in (("attention", "self_attn"), ("cross", "encoder_attn")):
        names |= under(f"{name}.{{i}}.{ours}_residual", layer, norm=f"{theirs}_layer_norm")
        names |= under(f"{name}.{{i}}.{ours}", f"{layer}.{theirs}", q="q_proj", k="k_proj", v="v_proj", out="out_proj")
    return names


class Seq2Seq(Family):
    """What BART, Marian and Pegasus have in common: BART's layers, names and ties."""

    settings = EncoderDecoder
    prefix = "model."
    head_names = ("lm_head.", "final_logits_bias")
    ignored = (r"(^|\.)(encoder|decoder)\.version$",)
    from_tensors = frozenset({"tied", "output_bias"})

    pre: ClassVar[bool] = False
    """Whether it is pre-norm, with a final norm."""
    learned: ClassVar[bool] = False
    """Whether positions are learned, with a norm after the embeddings."""

    fields: ClassVar[tuple[Row, ...]] = (
        Row("vocabulary", "vocab_size", 50265),
        Row("width", "d_model", 1024),
        Row("depth", "encoder_layers", 12),
        Row("decoder_depth", "decoder_layers", 12),
        Row("attention.heads", "encoder_attention_heads", 16, also="decoder_attention_heads"),
        Row("attention.dropout", "attention_dropout", 0.0),
        Row("ffn.hidden", "encoder_ffn_dim", 4096, also="decoder_ffn_dim"),
        Row("ffn.activation", "activation_function", "gelu", ACTIVATION),
        Row("ffn.dropout", "activation_dropout", 0.0),
        Row("dropout", "dropout", 0.1),
        Row("embedding_scale", "scale_embedding", False),
        Row("initial.deviation", "init_std", 0.02),
    )
    constants: ClassVar[dict[str, Any]] = {"norm.eps": 1e-5}
    written: ClassVar = {
        "is_encoder_decoder": True,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "forced_eos_token_id")),
    }
    names: ClassVar[Names] = {
        "source.tokens.weight": (SOURCE, SAME),
        "target.tokens.weight": (TARGET, SAME),
        "output.weight": (OUTPUT, SAME),
        "output.bias": (BIAS, tables.leading(1)),
        **under("source", "model.encoder", position="embed_positions", norm="layernorm_embedding"),
        **under("target", "model.decoder", position="embed_positions", norm="layernorm_embedding"),
        **_stack("encoder"),
        **_stack("decoder"),
    }

    def read_rest(self, config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        config.require({"is_encoder_decoder": True, "normalize_before": self.pre, "add_final_layer_norm": self.pre})
        config.require({"normalize_embedding": self.learned, "static_position_embeddings": not self.learned})
        return {
            "norm_place": "pre" if self.pre else "post",
            "embedding_norm": self.learned,
            "position.kind": "learned" if self.learned else "sinusoidal",
            "output_bias": BIAS in tensors and bool(tensors[BIAS].any()),
            "tied": ALL if config.read("tie_word_embeddings", True) else self.untied_output(config, tensors),
            **({} if self.learned else {"position.order": "halves"}),
        }

    def write_rest(self, settings: EncoderDecoder) -> dict[str, Any]:
        if set(settings.tied) not in (set(ALL), {"source", "target"}, set()):
            raise self.cannot(f"tied is {list(settings.tied)}, only all, source and target, or none are supported")
        length = {} if self.learned else {"max_position_embeddings": LENGTH}
        return {"tie_word_embeddings": set(settings.tied) == set(ALL), **length}

    def untied_output(self, config: Config, tensors: Mapping[str, Tensor]) -> tuple[Part, ...]:
        """Return the ties that remain when tie_word_embeddings is false.

        The present transformers then keeps every matrix apart; earlier versions still shared the two embeddings and
        wrote them once. Only the tensors show which.
        """
        source, target = tensors.get(SOURCE), tensors.get(TARGET)
        shared = source is None or target is None or torch.equal(source, target)
        if config.architecture(self.architectures) != self.base:
            return ("source", "target") if shared else ()
        return ALL if shared else ("target", "output")

    def shares_embeddings(self, config: Config) -> bool:
        """Whether the file has a tensor for both embeddings."""
        return True

    def names_for(self, settings: EncoderDecoder) -> Names:
        return self.names | {"source.tokens.weight": (SHARED, SAME)} if set(settings.tied) == set(ALL) else self.names

    def add_ties(self, mapping: TensorMap, settings: EncoderDecoder, config: Config) -> None:
        tied = set(settings.tied)
        if tied == set(ALL):
            mapping.copies = dict.fromkeys((SOURCE, TARGET, OUTPUT), SHARED)
        else:
            if self.shares_embeddings(config):
                mapping.spares[SHARED] = SOURCE
            if {"source", "target"} <= tied:
                mapping.spares[TARGET] = SOURCE
            if "output" in tied:
                mapping.copies = {OUTPUT: TARGET}
        if not settings.output_bias and config.architecture(self.architectures) != self.base:
            shape = (1, settings.target_size)
            mapping.fixed[BIAS] = shape, lambda: torch.zeros(shape)
        if not self.learned:
            length = config.read("max_position_embeddings", LENGTH)

            def sinusoids() -> Tensor:
                return sinusoidal(torch.arange(length), settings.width, order="halves", dtype=torch.float32)

            for stack in ("encoder", "decoder"):
                mapping.fixed[f"model.{stack}.embed_positions.weight"] = (length, settings.width), sinusoids

    # The paper's models have no biases in attention, and sines and cosines in turn. Zero biases and another order of
    # the channels make them models of this type.

    def equivalent(self, settings: EncoderDecoder) -> EncoderDecoder:
        changes: dict[str, Any] = {"attention.bias": True, "attention.output_bias": None, "ffn.bias": True}
        if isinstance(settings.norm, LayerNorm):
            changes["norm.bias"] = True
        if self.must_reorder(settings):
            changes["position.order"] = "halves"
        return settings.changed(changes)

    def must_reorder(self, settings: EncoderDecoder) -> bool:
        position = settings.position
        return isinstance(position, Sinusoidal) and position.order == "interleaved" and not self.learned

    def rewritten(self, tensors: dict[str, Tensor], settings: EncoderDecoder) -> dict[str, Tensor]:
        shapes = dict(build(self.equivalent(settings), device="meta").named_parameters())
        like = next(iter(tensors.values()))
        tensors = {name: like.new_zeros(value.shape) for name, value in shapes.items()} | tensors
        if self.must_reorder(settings):
            order = torch.arange(settings.width, device=like.device)
            order = torch.cat([order[::2], order[1::2]])
            for name, tensor in tensors.items():
                *_, part, kind = name.split(".")
                if part in ("out", "down", "norm", "after"):  # they write channels, or have a value for each
                    tensors[name] = tensor[order]
                elif kind == "weight":  # all other matrices read channels
                    tensors[name] = tensor[:, order]
        return tensors


class Bart(Seq2Seq):
    """BART has learned positions, and a norm after the embeddings."""

    model_type = "bart"
    architectures = ("BartForConditionalGeneration", "BartModel")
    base = "BartModel"
    learned = True
    fields: ClassVar[tuple[Row, ...]] = (*Seq2Seq.fields, Row("position.length", "max_position_embeddings", 1024))
    # Two rows before position 0 are left over from fairseq's padding.
    constants: ClassVar = {**Seq2Seq.constants, "position.offset": 2}
    required: ClassVar = {"extra_pos_embeddings": 2}


class Marian(Seq2Seq):
    """Marian has sinusoidal positions, and may have two vocabularies."""

    model_type = "marian"
    architectures = ("MarianMTModel",)

    def read_rest(self, config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        rest = super().read_rest(config, tensors)
        source = config.read("vocab_size", 50265)
        target = config.read("decoder_vocab_size", source)
        if self.shares_embeddings(config):
            if target != source:
                problem = f"differs from vocab_size ({source}), but share_encoder_decoder_embeddings is true; fix it"
                raise config.error("decoder_vocab_size", problem)
            return rest
        tied = ("target", "output") if config.read("tie_word_embeddings", True) else ()
        return rest | {"target_vocabulary": target, "tied": tied}

    def shares_embeddings(self, config: Config) -> bool:
        return bool(config.read("share_encoder_decoder_embeddings", True))

    def write_rest(self, settings: EncoderDecoder) -> dict[str, Any]:
        tied = set(settings.tied)
        if tied == {"source", "output"}:
            raise self.cannot(f"tied is {list(settings.tied)}, source and output alone are not supported")
        return {
            "decoder_vocab_size": settings.target_size,
            "max_position_embeddings": LENGTH,
            "share_encoder_decoder_embeddings": "source" in tied,
            "tie_word_embeddings": "output" in tied,
        }


class Pegasus(Seq2Seq):
    """Pegasus is a pre-norm Marian with one vocabulary."""

    model_type = "pegasus"
    architectures = ("PegasusForConditionalGeneration",)
    pre = True


def _t5_stack(name: str, cross: bool, gated: bool) -> Names:
    """Return the names of one stack: a layer's parts are numbered, with cross-attention in between."""
    layer = f"{name}.block.{{i}}.layer"
    first = f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    names: Names = {f"{name}.position.weight": (first, SAME), f"{name}.norm": (f"{name}.final_layer_norm", SAME)}
    parts = [("attention", "SelfAttention"), ("cross", "EncDecAttention")]
    for number, (ours, theirs) in enumerate(parts if cross else parts[:1]):
        names |= under(f"{name}.{{i}}.{ours}", f"{layer}.{number}.{theirs}", q="q", k="k", v="v", out="o")
        names |= under(f"{name}.{{i}}.{ours}_residual", f"{layer}.{number}", norm="layer_norm")
    last = f"{layer}.{2 if cross else 1}"
    names |= under(f"{name}.{{i}}.ffn_residual", last, norm="layer_norm")
    up = "wi_1" if gated else "wi"
    return names | under(f"{name}.{{i}}.ffn", f"{last}.DenseReluDense", gate="wi_0", up=up, down="wo")


def _read_ffn(name: Any) -> dict[str, Any]:
    gated = str(name).startswith("gated-")
    # In transformers, the gate of "gated-gelu" is the approximate one.
    inner = "gelu_new" if name == "gated-gelu" else str(name).removeprefix("gated-")
    return {"ffn.kind": "gated" if gated else "dense", "ffn.activation": ACTIVATION.read(inner)}


class T5(Family):
    """T5 (Raffel et al. 2020), and version 1.1 with a gated feed-forward and a separate output matrix."""

    model_type = "t5"
    settings = EncoderDecoder
    architectures = ("T5ForConditionalGeneration",)
    ignored = (r"EncDecAttention\.relative_attention_bias\.weight$",)
    from_tensors = frozenset({"tied"})

    fields = (
        Row("vocabulary", "vocab_size", 32128),
        Row("width", "d_model", 512),
        Row("depth", "num_layers", 6),
        Row("decoder_depth", "num_decoder_layers", None),
        Row("attention.heads", "num_heads", 8),
        Row("attention.head_size", "d_kv", 64),
        Row("ffn.hidden", "d_ff", 2048),
        Row("norm.eps", "layer_norm_epsilon", 1e-6),
        Row("dropout", "dropout_rate", 0.1),
        Row("attention.dropout", "dropout_rate", 0.1),
        Row("ffn.dropout", "dropout_rate", 0.1),
        Row("position.buckets", "relative_attention_num_buckets", 32),
        Row("position.longest", "relative_attention_max_distance", 128),
    )
    constants: ClassVar = {
        "attention.bias": False,
        "attention.scale": 1.0,
        "ffn.bias": False,
        "norm.kind": "rms",
        "norm_place": "pre",
        "position.kind": "relative",
        "initial.kind": "xavier",
    }
    required: ClassVar = {"is_encoder_decoder": True}
    written: ClassVar = {"is_encoder_decoder": True}

    def read_rest(self, config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        # Version 1.0 scales the decoder's output, 1.1 does not. In old configs, tied weights mean version 1.0.
        scaled = config.read("scale_decoder_outputs", config.read("tie_word_embeddings", True))
        # The present configs do not state whether the output is tied: transformers looks into the file.
        output, shared = tensors.get(OUTPUT), tensors.get(T5_SHARED)
        own_output = output is not None and shared is not None and not torch.equal(output, shared)
        return {
            "output_scale": config.read("d_model", 512) ** -0.5 if scaled else None,
            "tied": ("source", "target") if own_output else ("source", "target", "output"),
            **config.read("feed_forward_proj", "relu", tables.Codec(_read_ffn)),
        }

    def write_rest(self, settings: EncoderDecoder) -> dict[str, Any]:
        if not {"source", "target"} <= set(settings.tied):
            raise self.cannot(f"tied is {list(settings.tied)}, source and target must be tied")
        activation = ACTIVATION.write(settings.ffn.activation)
        if isinstance(settings.ffn, Gated):
            activation = "gated-gelu" if activation == "gelu_new" else f"gated-{activation}"
        return {
            "feed_forward_proj": activation,
            "tie_word_embeddings": "output" in settings.tied,
            "scale_decoder_outputs": settings.output_scale is not None,
        }

    def names_for(self, settings: EncoderDecoder) -> Names:
        gated = isinstance(settings.ffn, Gated)
        ends: Names = {"source.tokens": ("shared", SAME), "output": ("lm_head", SAME)}
        return ends | _t5_stack("encoder", cross=False, gated=gated) | _t5_stack("decoder", cross=True, gated=gated)

    def add_ties(self, mapping: TensorMap, settings: EncoderDecoder, config: Config) -> None:
        mapping.copies = dict.fromkeys(("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"), T5_SHARED)
        if "output" in settings.tied:
            mapping.copies[OUTPUT] = T5_SHARED


SEQ2SEQ = (Marian(), Pegasus(), Bart(), T5())
