"""BERT (Devlin et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from regard.blocks.settings import Attention, Dense, LayerNorm, Learned
from regard.models.settings import (
    Classification,
    Encoder,
    Masked,
    NextSentence,
    Normal,
    Pooling,
    Spans,
    Tagging,
    TextHead,
)
from regard.weights.huggingface.config import EVERYWHERE, Config, activation_name, labels
from regard.weights.huggingface.family import Family
from regard.weights.huggingface.keys import Rule, Table, linear, same

ARCHITECTURES = {
    "BertModel": {"pooling"},
    "BertForMaskedLM": {"masked"},
    "BertForPreTraining": {"masked", "next-sentence"},
    "BertForNextSentencePrediction": {"next-sentence"},
    "BertForSequenceClassification": {"classification"},
    "BertForTokenClassification": {"tagging"},
    "BertForQuestionAnswering": {"spans"},
}
"""The heads of each class, by kind."""

POOLER = "bert.pooler.dense"
POOLED = {"pooling", "next-sentence", "classification"}
"""Heads that read their pooler."""


class Bert(Family[Encoder]):
    """`model_type` bert, with any of its usual heads."""

    model_type = "bert"
    settings = Encoder
    architectures = tuple(ARCHITECTURES)
    base = "BertModel"
    prefix = "bert."
    heads = ("cls.", "classifier.", "qa_outputs.")
    renamed = ((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias"))
    ignored = (r"embeddings\.(position_ids|token_type_ids)$",)
    told_by_tensors = frozenset({"heads"})

    def settings_from(self, config: Config, tensors: Mapping[str, Tensor]) -> Encoder:
        config.require(EVERYWHERE | {"position_embedding_type": "absolute"})
        return Encoder(
            vocabulary=config.integer("vocab_size", 30522),
            width=config.integer("hidden_size", 768),
            depth=config.integer("num_hidden_layers", 12),
            attention=Attention(
                heads=config.integer("num_attention_heads", 12),
                dropout=config.number("attention_probs_dropout_prob", 0.1),
            ),
            ffn=Dense(
                hidden=config.integer("intermediate_size", 3072), activation=config.activation("hidden_act", "gelu")
            ),
            norm=LayerNorm(eps=config.number("layer_norm_eps", 1e-12)),
            norm_place="post",
            dropout=config.number("hidden_dropout_prob", 0.1),
            position=Learned(length=config.integer("max_position_embeddings", 512)),
            embedding_norm=True,
            segments=config.integer("type_vocab_size", 2),
            heads=self._heads(config, tensors),
            initial=Normal(deviation=config.number("initializer_range", 0.02)),
        )

    def _heads(self, config: Config, tensors: Mapping[str, Tensor]) -> dict[str, TextHead]:
        """The heads of the class, and any other that the file holds (files for masked words often hold the pooler)."""
        kinds = set(ARCHITECTURES[config.architecture(self.architectures)])
        kinds.discard("pooling")
        if "cls.seq_relationship.weight" in tensors:
            kinds.add("next-sentence")
        if f"{POOLER}.weight" in tensors and not kinds & POOLED:
            kinds.add("pooling")
        if "spans" in kinds and config.labels() != 2:
            raise config.refuse("id2label", "must have two entries for a start and an end; correct it")
        dropout = config.number("classifier_dropout", config.number("hidden_dropout_prob", 0.1))
        heads: dict[str, TextHead] = {
            "masked": Masked(
                activation=config.activation("hidden_act", "gelu"), tied=config.flag("tie_word_embeddings", True)
            ),
            "next-sentence": NextSentence(),
            "classification": Classification(classes=config.labels(), dense=True, dropout=dropout),
            "tagging": Tagging(classes=config.labels(), dropout=dropout),
            "spans": Spans(),
            "pooling": Pooling(dense=True),
        }
        return {kind: head for kind, head in heads.items() if kind in kinds}

    def config_from(self, settings: Encoder, architecture: str) -> dict[str, Any]:
        ffn, norm = self.expect(settings.ffn, Dense, "ffn"), self.expect(settings.norm, LayerNorm, "norm")
        position = self.expect(settings.position, Learned, "position")
        if not settings.segments:
            raise self.cannot("segments is 0 and only 1 or more can be expressed")
        config: dict[str, Any] = {
            "vocab_size": settings.vocabulary,
            "hidden_size": settings.width,
            "num_hidden_layers": settings.depth,
            "num_attention_heads": settings.attention.heads,
            "intermediate_size": settings.ffn_hidden,
            "hidden_act": activation_name(ffn.activation),
            "hidden_dropout_prob": settings.dropout,
            "attention_probs_dropout_prob": settings.attention.dropout,
            "max_position_embeddings": position.length,
            "type_vocab_size": settings.segments,
            "layer_norm_eps": norm.eps,
            "pad_token_id": None,
        }
        for head in settings.heads.values():
            if isinstance(head, Classification | Tagging):
                config |= {"classifier_dropout": head.dropout} | labels(head.classes)
            if isinstance(head, Masked):
                config["tie_word_embeddings"] = head.tied
        return config

    def architecture_for(self, settings: Encoder) -> str:
        kinds = [head.kind for head in settings.heads.values()]
        for architecture, known in ARCHITECTURES.items():
            if sorted(kinds) == sorted(known) or (architecture == self.base and not kinds):
                return architecture
        choices = "; ".join(" and ".join(sorted(known)) for known in ARCHITECTURES.values())
        raise self.cannot(f"its heads are {' and '.join(sorted(kinds))}, and no class has those (known: {choices})")

    def table(self, settings: Encoder, config: Config) -> Table:
        rules = [
            same("embedding.tokens.weight", "bert.embeddings.word_embeddings.weight"),
            same("embedding.position.weight", "bert.embeddings.position_embeddings.weight"),
            same("embedding.segments.weight", "bert.embeddings.token_type_embeddings.weight"),
            *linear("embedding.norm", "bert.embeddings.LayerNorm"),
        ]
        for i in range(settings.depth):
            ours, theirs = f"encoder.{i}", f"bert.encoder.layer.{i}"
            rules += linear(f"{ours}.attention.q", f"{theirs}.attention.self.query")
            rules += linear(f"{ours}.attention.k", f"{theirs}.attention.self.key")
            rules += linear(f"{ours}.attention.v", f"{theirs}.attention.self.value")
            rules += linear(f"{ours}.attention.out", f"{theirs}.attention.output.dense")
            rules += linear(f"{ours}.attention_residual.norm", f"{theirs}.attention.output.LayerNorm")
            rules += linear(f"{ours}.ffn.up", f"{theirs}.intermediate.dense")
            rules += linear(f"{ours}.ffn.down", f"{theirs}.output.dense")
            rules += linear(f"{ours}.ffn_residual.norm", f"{theirs}.output.LayerNorm")
        copies: dict[str, str] = {}
        spares: dict[str, str] = {}
        for name, head in settings.heads.items():
            rules += _head_rules(f"heads.{name}", head)
            if isinstance(head, Masked):
                bias, own = "cls.predictions.bias", "cls.predictions.decoder.bias"
                if head.tied:
                    copies = {"cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight", own: bias}
                else:
                    spares = {bias: own}
        return Table(rules, copies, spares)


def _head_rules(ours: str, head: TextHead) -> list[Rule]:
    rules: list[Rule] = []
    if head.kind in POOLED:
        rules += linear(f"{ours}.pool", POOLER)
    if isinstance(head, Masked):
        rules += linear(f"{ours}.dense", "cls.predictions.transform.dense")
        rules += linear(f"{ours}.norm", "cls.predictions.transform.LayerNorm")
        if head.tied:
            rules.append(same(f"{ours}.output.bias", "cls.predictions.bias"))
        else:
            rules += linear(f"{ours}.output", "cls.predictions.decoder")
    elif isinstance(head, NextSentence):
        rules += linear(f"{ours}.output", "cls.seq_relationship")
    elif isinstance(head, Classification | Tagging):
        rules += linear(f"{ours}.output", "classifier")
    elif isinstance(head, Spans):
        rules += linear(f"{ours}.output", "qa_outputs")
    return rules
