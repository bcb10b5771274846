"""BERT (Devlin et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from regard.models.settings import Classification, Encoder, Masked, NextSentence, Pooling, Spans, Tagging, TextHead
from regard.weights.huggingface.tables import ACTIVATION, SAME, Config, Family, Names, Row, TensorMap, under

HEADS = {
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
LAYER = "bert.encoder.layer.{i}"
PREDICTIONS = "cls.predictions"


class Bert(Family):
    """The type of BERT models."""

    model_type = "bert"
    settings = Encoder
    architectures = tuple(HEADS)
    base = "BertModel"
    prefix = "bert."
    head_names = ("cls.", "classifier.", "qa_outputs.")
    renamed = ((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias"))
    ignored = (r"embeddings\.(position_ids|token_type_ids)$",)
    from_tensors = frozenset({"heads"})

    fields = (
        Row("vocabulary", "vocab_size", 30522),
        Row("width", "hidden_size", 768),
        Row("depth", "num_hidden_layers", 12),
        Row("attention.heads", "num_attention_heads", 12),
        Row("attention.dropout", "attention_probs_dropout_prob", 0.1),
        Row("ffn.hidden", "intermediate_size", 3072),
        Row("ffn.activation", "hidden_act", "gelu", ACTIVATION),
        Row("norm.eps", "layer_norm_eps", 1e-12),
        Row("dropout", "hidden_dropout_prob", 0.1),
        Row("position.length", "max_position_embeddings", 512),
        Row("segments", "type_vocab_size", 2),
        Row("initial.deviation", "initializer_range", 0.02),
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
        **{f"heads.{kind}.pool": (POOLER, SAME) for kind in POOLED},
        **under("heads.masked", PREDICTIONS, dense="transform.dense", norm="transform.LayerNorm", output="decoder"),
        "heads.next-sentence.output": ("cls.seq_relationship", SAME),
        "heads.classification.output": ("classifier", SAME),
        "heads.tagging.output": ("classifier", SAME),
        "heads.spans.output": ("qa_outputs", SAME),
    }

    def names_for(self, settings: Encoder) -> Names:
        tied = any(isinstance(head, Masked) and head.tied for head in settings.heads.values())
        return self.names | {"heads.masked.output": (PREDICTIONS, SAME)} if tied else self.names

    def add_ties(self, mapping: TensorMap, settings: Encoder, config: Config) -> None:
        bias, own = f"{PREDICTIONS}.bias", f"{PREDICTIONS}.decoder.bias"
        for head in settings.heads.values():
            if isinstance(head, Masked) and head.tied:
                mapping.copies = {f"{PREDICTIONS}.decoder.weight": "bert.embeddings.word_embeddings.weight", own: bias}
            elif isinstance(head, Masked):
                mapping.spares = {bias: own}

    def read_rest(self, config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the heads of the class, and others in the file: files for masked tokens often hold the pooler."""
        kinds = HEADS[config.architecture(self.architectures)] - {"pooling"}
        if "cls.seq_relationship.weight" in tensors:
            kinds.add("next-sentence")
        if f"{POOLER}.weight" in tensors and not kinds & POOLED:
            kinds.add("pooling")
        if "spans" in kinds and config.labels() != 2:
            raise config.error("id2label", "must have two entries, for a start and an end; correct it")
        dropout = config.read("classifier_dropout", config.read("hidden_dropout_prob", 0.1))
        tied = config.read("tie_word_embeddings", True)
        heads: dict[str, TextHead] = {
            "masked": Masked(activation=config.read("hidden_act", "gelu", ACTIVATION), tied=tied),
            "next-sentence": NextSentence(),
            "classification": Classification(classes=config.labels(), dense=True, dropout=dropout),
            "tagging": Tagging(classes=config.labels(), dropout=dropout),
            "spans": Spans(),
            "pooling": Pooling(dense=True),
        }
        return {"heads": {kind: head.model_dump() for kind, head in heads.items() if kind in kinds}}

    def write_rest(self, settings: Encoder) -> dict[str, Any]:
        if not settings.segments:
            raise self.cannot("segments is 0, only 1 or more are supported")
        config: dict[str, Any] = {}
        for head in settings.heads.values():
            if isinstance(head, Classification | Tagging):
                config |= {"classifier_dropout": head.dropout}
            if isinstance(head, Masked):
                config["tie_word_embeddings"] = head.tied
        return config

    def architecture_for(self, settings: Encoder) -> str:
        kinds = sorted(head.kind for head in settings.heads.values())
        for architecture, known in HEADS.items():
            if kinds == sorted(known) or (architecture == self.base and not kinds):
                return architecture
        choices = "; ".join(" and ".join(sorted(known)) for known in HEADS.values())
        raise self.cannot(f"its heads are {' and '.join(kinds)}, and no class has these (supported: {choices})")
