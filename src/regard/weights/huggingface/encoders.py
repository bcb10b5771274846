"""Encoders: BERT (Devlin et al. 2019), RoBERTa, MPNet, DistilBERT, ELECTRA, ALBERT and ModernBERT.

They differ in the names of their tensors, in their heads, and in how positions and embeddings are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from regard.blocks.settings import Rotary
from regard.models.settings import Classification, Encoder, Masked, NextSentence, Pooling, Spans, Tagging, TextHead
from regard.weights.huggingface import tables
from regard.weights.huggingface.tables import ACTIVATION, SAME, Config, Family, Form, Names, Row, moved, under, varied

POOLED = {"pooling", "next-sentence", "classification"}
LAYER = "bert.encoder.layer.{i}"
DISTIL = "distilbert.transformer.layer.{i}"
PREDICTIONS = "cls.predictions"
MODERN = "model.layers.{i}"
BEHIND_PADDING = tables.Codec(lambda length: tables.codec_for(512).read(length) - 2, lambda length: length + 2)
"""The number of positions of RoBERTa: theirs has rows up to the id of the padding token, which is 1."""
LENGTH = 8192
"""The maximum length that is written. Rotary positions have none."""


def classes_of(name: str, *heads: str) -> dict[str, set[str]]:
    """The classes of a type and their heads. `heads` are those of the base class."""
    kinds = {"MaskedLM": "masked", "SequenceClassification": "classification", "TokenClassification": "tagging"}
    kinds["QuestionAnswering"] = "spans"
    return {f"{name}Model": {*heads}} | {f"{name}For{suffix}": {kind} for suffix, kind in kinds.items()}


HEADS = classes_of("Bert", "pooling") | {
    "BertForPreTraining": {"masked", "next-sentence"},
    "BertForNextSentencePrediction": {"next-sentence"},
}


class Bert(Family):
    """The type of BERT models, and base of similar types."""

    model_type = "bert"
    settings = Encoder
    architectures = tuple(HEADS)
    base = "BertModel"
    prefix = "bert."
    head_names: ClassVar[tuple[str, ...]] = ("cls.", "classifier.", "qa_outputs.")
    renamed = ((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias"))
    ignored: ClassVar[tuple[str, ...]] = (r"embeddings\.(position_ids|token_type_ids)$",)
    from_tensors = frozenset({"heads"})
    heads: ClassVar[Mapping[str, set[str]]] = HEADS
    head_dropout: ClassVar[tuple[str, float | None]] = ("classifier_dropout", None)
    """The key of the dropout of heads, and its default; none: that of the model."""
    pooled: ClassVar[Literal["tanh", "gelu", "relu"]] = "tanh"
    """The activation after the layer of a classification."""
    activation: ClassVar[str | None] = "hidden_act"
    """The key of the activation of a head for masked tokens; none: it is always GELU."""
    masked: ClassVar[str] = PREDICTIONS
    """Where the bias of the output over the vocabulary is."""

    fields: ClassVar[tuple[Row, ...]] = (
        *tables.USUAL,
        Row("attention.dropout", "attention_probs_dropout_prob", 0.1),
        Row("norm.eps", "layer_norm_eps", 1e-12),
        Row("dropout", "hidden_dropout_prob", 0.1),
        Row("position.length", "max_position_embeddings", 512),
        Row("segments", "type_vocab_size", 2),
    )
    constants: ClassVar = {"norm_place": "post", "position.kind": "learned", "embedding_norm": True}
    required: ClassVar = {"position_embedding_type": "absolute"}
    written: ClassVar = {"pad_token_id": None}
    names: ClassVar[Names] = {
        **under("embedding", "bert.embeddings", tokens="word_embeddings", position="position_embeddings"),
        **under("embedding", "bert.embeddings", segments="token_type_embeddings", norm="LayerNorm"),
        **under("encoder.{i}.attention", f"{LAYER}.attention.self", q="query", k="key", v="value"),
        **under("encoder.{i}.attention", f"{LAYER}.attention.output", out="dense"),
        **under("encoder.{i}.attention_residual", f"{LAYER}.attention.output", norm="LayerNorm"),
        **under("encoder.{i}.ffn", LAYER, up="intermediate.dense", down="output.dense"),
        **under("encoder.{i}.ffn_residual", LAYER, norm="output.LayerNorm"),
        **{f"heads.{kind}.pool": ("bert.pooler.dense", SAME) for kind in POOLED},
        **under("heads.masked", PREDICTIONS, dense="transform.dense", norm="transform.LayerNorm", output="decoder"),
        "heads.next-sentence.output": ("cls.seq_relationship", SAME),
        "heads.classification.output": ("classifier", SAME),
        "heads.tagging.output": ("classifier", SAME),
        "heads.spans.output": ("qa_outputs", SAME),
    }

    def __init_subclass__(cls) -> None:
        cls.architectures = tuple(cls.heads)
        cls.base = cls.architectures[0]

    def names_for(self, settings: Encoder) -> Names:
        tied = any(isinstance(head, Masked) and head.tied for head in settings.heads.values())
        return self.names | {"heads.masked.output": (self.masked, SAME)} if tied else self.names

    def add_ties(self, mapping: tables.TensorMap, settings: Encoder, config: Config) -> None:
        output = self.names["heads.masked.output"][0]
        bias, own = f"{self.masked}.bias", f"{output}.bias"
        for head in settings.heads.values():
            if isinstance(head, Masked) and head.tied:
                words = f"{self.names_for(settings)['embedding.tokens'][0]}.weight"
                mapping.copies = {f"{output}.weight": words} | ({own: bias} if own != bias else {})
            elif isinstance(head, Masked) and own != bias:
                mapping.spares = {bias: own}

    def read_rest(self, config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the heads of the class, and others in the file: files for masked tokens often hold the pooler."""
        kinds = self.heads[config.architecture(self.architectures)] - {"pooling"}
        if "cls.seq_relationship.weight" in tensors:
            kinds.add("next-sentence")
        pooler = self.names.get("heads.pooling.pool")  # that heads share
        if pooler and f"{pooler[0]}.weight" in tensors and not kinds & POOLED:
            kinds.add("pooling")
        if "spans" in kinds and config.labels() != 2:
            raise config.error("id2label", "must have two entries, for a start and an end; correct it")
        key, usual = self.head_dropout
        dropout = config.read(key, config.read("hidden_dropout_prob", 0.1) if usual is None else usual)
        tied, classes = config.read("tie_word_embeddings", True), config.labels()
        usual_activation = next(row.default for row in self.fields if row.ours == "ffn.activation")
        activation: Any = "gelu"
        if self.activation is not None:
            activation = config.read(self.activation, usual_activation, ACTIVATION)
        heads: dict[str, TextHead] = {
            "masked": Masked(activation=activation, tied=tied),
            "next-sentence": NextSentence(),
            "classification": Classification(classes=classes, dense=True, activation=self.pooled, dropout=dropout),
            "tagging": Tagging(classes=classes, dropout=dropout),
            "spans": Spans(),
            "pooling": Pooling(dense=True),
        }
        return {"heads": {kind: head.model_dump() for kind, head in heads.items() if kind in kinds}}

    def write_rest(self, settings: Encoder) -> dict[str, Any]:
        if not settings.segments and "segments" not in self.constants:
            raise self.cannot("segments is 0, only 1 or more are supported")
        config: dict[str, Any] = {}
        for head in settings.heads.values():
            wanted: str = self.pooled
            if isinstance(head, Masked):
                wanted = "gelu" if self.activation is None else settings.ffn.activation
            if isinstance(head, Classification | Masked) and head.activation != wanted:
                raise self.cannot(
                    f"the {head.kind} head has the activation {head.activation}, only {wanted} is supported"
                )
            if isinstance(head, Classification | Tagging) and self.head_dropout[0] != "hidden_dropout_prob":
                config[self.head_dropout[0]] = head.dropout
            if isinstance(head, Masked):
                config["tie_word_embeddings"] = head.tied
        return config

    def architecture_for(self, settings: Encoder) -> str:
        kinds = sorted(head.kind for head in settings.heads.values())
        for architecture, known in self.heads.items():
            if kinds == sorted(known) or (architecture == self.base and not kinds):
                return architecture
        choices = "; ".join(" and ".join(sorted(known)) for known in self.heads.values())
        raise self.cannot(f"its heads are {' and '.join(kinds)}, and no class has these (supported: {choices})")


BODY: Names = {ours: found for ours, found in Bert.names.items() if ours.startswith(("embedding", "encoder"))}
"""BERT's embeddings and layers."""
HEAD_NAMES: Names = {"heads.tagging.output": ("classifier", SAME), "heads.spans.output": ("qa_outputs", SAME)}
DENSE_CLASSIFIER: Names = under("heads.classification", "classifier", pool="dense", output="out_proj")


class Roberta(Bert):
    """RoBERTa (Liu et al. 2019): positions begin after the padding token, whose rows are not used."""

    model_type = "roberta"
    heads = classes_of("Roberta", "pooling")
    prefix = "roberta."
    head_names = ("lm_head.", "classifier.", "qa_outputs.")
    masked, activation = "lm_head", None
    fields = tuple(
        replace(row, codec=BEHIND_PADDING) if row.ours == "position.length" else row
        for row in varied(Bert.fields, vocab_size=50265)
    )
    required: ClassVar = {"position_embedding_type": "absolute", "pad_token_id": 1}
    written: ClassVar = {"pad_token_id": 1}
    names: ClassVar[Names] = {
        **moved(BODY, "bert.", "roberta."),
        **HEAD_NAMES,
        **DENSE_CLASSIFIER,
        "embedding.position.weight": (
            "roberta.embeddings.position_embeddings.weight",
            Form(lambda own: functional.pad(own[0], (0, 0, 2, 0)), lambda table: (table[2:],)),
        ),
        "heads.pooling.pool": ("roberta.pooler.dense", SAME),
        **under("heads.masked", "lm_head", dense="dense", norm="layer_norm", output="decoder"),
    }


class MPNet(Roberta):
    """MPNet (Song et al. 2020): learned positions, and T5's scores of distances with buckets that cannot be changed."""

    model_type = "mpnet"
    heads = classes_of("MPNet", "pooling")
    prefix, head_dropout = "mpnet.", ("hidden_dropout_prob", 0.1)
    fields = tuple(row for row in varied(Roberta.fields, vocab_size=30527) if row.ours != "segments")
    constants: ClassVar = {**Bert.constants, "segments": 0, "position.relative": {"buckets": 32, "longest": 128}}
    required: ClassVar = {"pad_token_id": 1, "relative_attention_num_buckets": 32}
    names: ClassVar[Names] = {
        **moved(Roberta.names, "roberta.", "mpnet."),
        **under("encoder.{i}.attention", "mpnet.encoder.layer.{i}.attention.attn", q="q", k="k", v="v", out="o"),
        "encoder.{i}.attention_residual.norm": ("mpnet.encoder.layer.{i}.attention.LayerNorm", SAME),
        "encoder.position.weight": ("mpnet.encoder.relative_attention_bias.weight", SAME),
    }


class DistilBert(Bert):
    """DistilBERT (Sanh et al. 2019): no segments, and other names."""

    model_type = "distilbert"
    heads = classes_of("DistilBert")
    prefix, pooled, head_dropout = "distilbert.", "relu", ("seq_classif_dropout", 0.2)
    head_names = ("vocab_", "classifier.", "pre_classifier.", "qa_outputs.")
    masked, activation = "vocab_projector", "activation"
    fields = (
        Row("vocabulary", "vocab_size", 30522),
        Row("width", "dim", 768),
        Row("depth", "n_layers", 6),
        Row("attention.heads", "n_heads", 12),
        Row("attention.dropout", "attention_dropout", 0.1),
        Row("ffn.hidden", "hidden_dim", 3072),
        Row("ffn.activation", "activation", "gelu", ACTIVATION),
        Row("dropout", "dropout", 0.1),
        Row("position.length", "max_position_embeddings", 512),
        Row("initial.deviation", "initializer_range", 0.02),
    )
    constants: ClassVar = {**Bert.constants, "norm.eps": 1e-12, "segments": 0}
    required: ClassVar = {"sinusoidal_pos_embds": False}
    names: ClassVar[Names] = {
        **under("embedding", "distilbert.embeddings", tokens="word_embeddings", position="position_embeddings"),
        "embedding.norm": ("distilbert.embeddings.LayerNorm", SAME),
        **under("encoder.{i}.attention", f"{DISTIL}.attention", q="q_lin", k="k_lin", v="v_lin", out="out_lin"),
        "encoder.{i}.attention_residual.norm": (f"{DISTIL}.sa_layer_norm", SAME),
        **under("encoder.{i}.ffn", f"{DISTIL}.ffn", up="lin1", down="lin2"),
        "encoder.{i}.ffn_residual.norm": (f"{DISTIL}.output_layer_norm", SAME),
        **HEAD_NAMES,
        "heads.classification.pool": ("pre_classifier", SAME),
        "heads.classification.output": ("classifier", SAME),
        "heads.masked.dense": ("vocab_transform", SAME),
        "heads.masked.norm": ("vocab_layer_norm", SAME),
        "heads.masked.output": ("vocab_projector", SAME),
    }


class Electra(Bert):
    """ELECTRA (Clark et al. 2020). Of a model for pre-training, the detector's head is not read."""

    model_type = "electra"
    heads = classes_of("Electra") | {"ElectraForPreTraining": set[str]()}
    prefix, pooled = "electra.", "gelu"
    head_names = ("generator_", "discriminator_", "classifier.", "qa_outputs.")
    ignored = (*Bert.ignored, r"^discriminator_predictions\.")
    masked, activation = "generator_lm_head", None
    fields = varied(Bert.fields, hidden_size=256, num_attention_heads=4, intermediate_size=1024)
    names: ClassVar[Names] = {
        **moved(BODY, "bert.", "electra."),
        **HEAD_NAMES,
        **DENSE_CLASSIFIER,
        "embedding.project": ("electra.embeddings_project", SAME),
        **under("heads.masked", "generator_predictions", dense="dense", norm="LayerNorm"),
        "heads.masked.output": ("generator_lm_head", SAME),
    }

    def read_rest(self, config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        size, width = config.read("embedding_size", 128), config.read("hidden_size", 256)
        return super().read_rest(config, tensors) | {"embedding_width": None if size == width else size}

    def write_rest(self, settings: Encoder) -> dict[str, Any]:
        return super().write_rest(settings) | {"embedding_size": settings.embedding_width or settings.width}


class Albert(Bert):
    """ALBERT (Lan et al. 2020). Its one layer is read as many equal ones; a model whose layers differ is refused."""

    model_type = "albert"
    heads = classes_of("Albert", "pooling")
    prefix, head_dropout = "albert.", ("classifier_dropout_prob", 0.1)
    head_names = ("predictions.", "classifier.", "qa_outputs.", "sop_classifier.")
    masked = "predictions"
    fields = varied(
        Bert.fields,
        vocab_size=30000,
        hidden_size=4096,
        num_attention_heads=64,
        intermediate_size=16384,
        hidden_act="gelu_new",
    )
    required: ClassVar = {"position_embedding_type": "absolute", "num_hidden_groups": 1, "inner_group_num": 1}

    names: ClassVar[Names] = {
        **{ours: found for ours, found in moved(BODY, "bert.", "albert.").items() if ours.startswith("embedding")},
        **HEAD_NAMES,
        "embedding.project": ("albert.encoder.embedding_hidden_mapping_in", SAME),
        **{f"heads.{kind}.pool": ("albert.pooler", SAME) for kind in ("pooling", "classification")},
        "heads.classification.output": ("classifier", SAME),
        **under("heads.masked", "predictions", dense="dense", norm="LayerNorm", output="decoder"),
    }

    def names_for(self, settings: Encoder) -> Names:
        copies = Form(self._same, lambda tensor: (tensor,) * settings.depth)
        layer = "albert.encoder.albert_layer_groups.0.albert_layers.0"
        return {
            **super().names_for(settings),
            **under("encoder.{i}.attention", f"{layer}.attention", copies, q="query", k="key", v="value", out="dense"),
            **under("encoder.{i}.attention_residual", f"{layer}.attention", copies, norm="LayerNorm"),
            **under("encoder.{i}.ffn", layer, copies, up="ffn", down="ffn_output"),
            **under("encoder.{i}.ffn_residual", layer, copies, norm="full_layer_layer_norm"),
        }

    def _same(self, layers: tuple[Tensor, ...]) -> Tensor:
        if layers[0].device.type != "meta" and not all(torch.equal(layers[0], each) for each in layers[1:]):
            raise self.cannot("its layers differ, only equal ones are supported")
        return layers[0]

    def read_rest(self, config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        return super().read_rest(config, tensors) | {"embedding_width": config.read("embedding_size", 128)}

    def write_rest(self, settings: Encoder) -> dict[str, Any]:
        if settings.embedding_width is None:
            raise self.cannot("embedding_width is none, only a number is supported")
        return super().write_rest(settings) | {"embedding_size": settings.embedding_width}


class ModernBert(Bert):
    """ModernBERT (Warner et al. 2024): rotary positions, gated feed-forward, windows in two of three layers.

    Its heads for tags and answers have a layer of their own, which ours have not.
    """

    model_type = "modernbert"
    heads: ClassVar[Mapping[str, set[str]]] = {
        "ModernBertModel": set(),
        "ModernBertForMaskedLM": {"masked"},
        "ModernBertForSequenceClassification": {"classification"},
    }
    prefix, pooled, head_dropout = "model.", "gelu", ("classifier_dropout", 0.0)
    head_names = ("head.", "decoder.", "classifier.")
    masked, activation = "decoder", None
    fields = (
        *varied(tables.USUAL, ("hidden_act",), vocab_size=50368, num_hidden_layers=22, intermediate_size=1152),
        Row("attention.bias", "attention_bias", False),
        Row("attention.dropout", "attention_dropout", 0.0),
        Row("ffn.activation", "hidden_activation", "gelu", ACTIVATION),
        Row("ffn.bias", "mlp_bias", False),
        Row("ffn.dropout", "mlp_dropout", 0.0),
        Row("norm.eps", "norm_eps", 1e-5),
        Row("norm.bias", "norm_bias", False),
        Row("dropout", "embedding_dropout", 0.0),
    )
    constants: ClassVar = {
        "ffn.kind": "gated",
        "norm_place": "pre",
        "embedding_norm": True,
        "first_norm": False,
        "position.kind": "rotary",
        "segments": 0,
    }
    required: ClassVar = {"classifier_bias": False, "decoder_bias": True, "classifier_activation": "gelu"}
    written: ClassVar = {
        "max_position_embeddings": LENGTH,
        **{f"{name}_token_id": None for name in ("pad", "bos", "eos", "cls", "sep")},
    }
    names: ClassVar[Names] = {
        **under("embedding", "model.embeddings", tokens="tok_embeddings", norm="norm"),
        **under("encoder.{i}.attention", f"{MODERN}.attn", tables.equal_parts(3), q="Wqkv", k="Wqkv", v="Wqkv"),
        "encoder.{i}.attention.out": (f"{MODERN}.attn.Wo", SAME),
        "encoder.{i}.attention_residual.norm": (f"{MODERN}.attn_norm", SAME),
        **under("encoder.{i}.ffn", f"{MODERN}.mlp", tables.equal_parts(2), gate="Wi", up="Wi"),
        "encoder.{i}.ffn.down": (f"{MODERN}.mlp.Wo", SAME),
        "encoder.{i}.ffn_residual.norm": (f"{MODERN}.mlp_norm", SAME),
        "encoder.norm": ("model.final_norm", SAME),
        **under("heads.masked", "head", dense="dense", norm="norm"),
        "heads.masked.output": ("decoder", SAME),
        **under("heads.classification", "head", pool="dense", norm="norm"),
        "heads.classification.output": ("classifier", SAME),
    }

    def read_rest(self, config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        base = tables.rotation_base(config, tables.FULL, "global_rope_theta", 160_000.0)
        window_base = tables.rotation_base(config, tables.WINDOW, "local_rope_theta", 10_000.0)
        rest = super().read_rest(config, tensors) | {
            "attention.window": config.read("local_attention", 128) // 2 + 1,
            "position.base": base,
            "position.window_base": None if window_base == base else window_base,
            **tables.window_settings(config, self.usual_kinds),
        }
        pooling = "mean" if config.values.get("classifier_pooling") == "mean" else "class"
        for kind, more in {"masked": {"bias": False}, "classification": {"norm": True, "pooling": pooling}}.items():
            if kind in rest["heads"]:
                rest["heads"][kind] |= more
        return rest

    def usual_kinds(self, config: Config) -> list[str]:
        every = config.read("global_attn_every_n_layers", 3)
        return [tables.WINDOW if i % every else tables.FULL for i in range(config.read("num_hidden_layers", 22))]

    def write_rest(self, settings: Encoder) -> dict[str, Any]:
        if not isinstance(settings.position, Rotary):
            raise self.cannot(f"position is {settings.position.kind}, only rotary is supported")
        config = super().write_rest(settings) | {
            "local_attention": max(2 * (settings.attention.window or 1) - 2, 1),
            "layer_types": tables.layer_types(settings),
            "rope_parameters": tables.rotation_bases(settings.position),
        }
        for head in settings.heads.values():
            if isinstance(head, Classification):
                config["classifier_pooling"] = "mean" if head.pooling == "mean" else "cls"
        return config


ENCODERS = (Bert(), Roberta(), MPNet(), DistilBert(), Electra(), Albert(), ModernBert())
