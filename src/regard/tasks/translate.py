"""Translation: each target token is predicted from the source and the target tokens before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from random import Random
from typing import Any, Literal

import torch
from pydantic import Field
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor, nn

from regard.blocks.settings import Positive
from regard.data.columns import Batch, Column, TokenColumn
from regard.data.examples import Pair
from regard.data.settings import Pairs, Split
from regard.data.source import Source
from regard.decoding.decode import decode
from regard.decoding.settings import Beam, Ends, Greedy, Wish
from regard.errors import SettingsError
from regard.models.build import Model
from regard.models.families import EncoderDecoder
from regard.models.settings import Convolutional, Recurrent, reach
from regard.models.settings import EncoderDecoder as EncoderDecoderSettings
from regard.settings import Settings, Table
from regard.tasks.language import SmoothedSettings
from regard.tasks.losses import cross_entropy, divergence
from regard.tasks.recipe import TokenizerFile, TrainingJob
from regard.tasks.task import Task, TaskSettings
from regard.text.tokenizer import tag
from regard.training.step import Loss
from regard.weights.warm_start import Start


class SimCut(Settings):
    """A second pass over each batch with some tokens hidden; the loss adds `weight` times the divergence of the first
    pass's predictions from the second's, with gradients through both (Gao et al. 2022)."""

    kind: Literal["simcut"] = "simcut"
    weight: float = Field(default=3.0, gt=0)
    """Factor on the divergence (alpha)."""
    cut: float = Field(default=0.05, gt=0, lt=1)
    """Share of the tokens, on both sides, whose vectors are set to zero."""


class Bleu(Settings):
    """Each evaluation also translates validation data and reports the metric `bleu` (sacreBLEU)."""

    sentences: Positive = 500
    """Most sentences that are translated; the same ones each time."""
    beam: Positive = 1
    """Size of the beam; 1: greedy search."""
    lowercase: bool = False
    """Whether upper and lower case are treated as equal."""
    tokenize: Literal["13a", "intl", "char", "none"] = "13a"
    """sacreBLEU's tokenization; none: the texts are tokenized already."""


class Translate(SmoothedSettings):
    """From one text to another: translation, summarization, normalization. Needs an encoder-decoder."""

    kind: Literal["translate"] = "translate"
    smoothing: float = Field(default=0.1, ge=0, lt=1)
    consistency: SimCut | None = None
    """A second pass over each batch that must agree with the first; none: one pass."""
    bleu: Bleu | None = None
    """Validation by translating, for `train.select = "bleu"`; none: by loss only."""


class TranslateTask(Task):
    """Trained by teacher forcing: the decoder reads the reference, whatever it would have predicted itself."""

    settings_type = Translate
    family = (EncoderDecoderSettings, Recurrent, Convolutional)
    example = Pair
    data_kind = "parallel"
    text_kind = "bpe"
    translates = True
    usage = 'translate {} "TEXT"'
    settings: Translate

    def __init__(self, settings: TaskSettings, *details: Any) -> None:
        super().__init__(settings, *details)
        if self.settings.bleu is not None:
            self.metric_names = (*self.metric_names, "bleu")

    @classmethod
    def complete(cls, job: TrainingJob) -> TrainingJob:
        assert isinstance(job.task, Translate)
        if job.train.shard and job.task.bleu is not None:
            raise SettingsError("task.bleu needs the whole weights in each process, but train.shard is set; drop one")
        if job.text is None or isinstance(job.text, TokenizerFile):
            return job
        if not isinstance(job.data, Pairs) or not job.data.both:
            return job
        if not job.text.shared:
            raise SettingsError("data.both needs one vocabulary for both sides; set text.shared = true")
        # A new tokenizer has a token for each language that the model writes.
        tags = tuple(tag(target) for _, target in job.data.directions)
        extra = tuple(dict.fromkeys((*job.text.special.extra, *tags)))
        return replace(job, text=job.text.changed({"special.extra": extra}))

    @classmethod
    def started(cls, job: TrainingJob, start: Start) -> TrainingJob:
        """The sources keep the tags of the model, unless there is a new tokenizer."""
        data = job.data
        if not isinstance(data, Pairs) or data.both or data.tagged or job.text is not None or start.tokenizer is None:
            return job
        known = data.directions[0] if data.directions else start.direction
        tagged = start.tagged or (known is not None and start.tokenizer.source.tag(known[1]) is not None)
        if tagged and known is None:
            raise SettingsError(
                f"train.start ({start.source}) needs the target language of each source; set data.languages, such as "
                '["de", "en"]'
            )
        changes: Table = {"tagged": True} if data.directions else {"tagged": True, "languages": list(known or ())}
        return replace(job, data=data.changed(changes)) if tagged else job

    def columns(self) -> dict[str, Column]:
        source, target = self.tokenizers.source, self.tokenizers.target
        opening = source.opening[0] if source.opening else None
        written = TokenColumn.for_tokenizer(target, target.role("start"), target.role("end"))
        read = TokenColumn.for_tokenizer(source, opening, source.role("end"))
        return {"source": read, "target": replace(written, predict=True)}

    def encode(self, examples: Sequence[Pair]) -> Mapping[str, Any]:
        """Sources begin with the tag of the target language if a model learns several."""
        source, target = self.tokenizers.source, self.tokenizers.target
        sources = source.ids([example.source for example in examples])
        sources = source.tagged(sources, [example.to for example in examples])
        targets = target.ids([example.target for example in examples])
        return {"source": sources, "target": [[*target.opening, *ids] for ids in targets]}

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        assert isinstance(model, EncoderDecoder)
        consistency, smoothing, labels = self.settings.consistency, self.settings.smoothing, batch.values["target.next"]
        source, target = batch.sequences["source"], batch.sequences["target"]
        if consistency is None or not model.training:
            logits = model(source.tokens, target.tokens, source.layout, target.layout)
            return cross_entropy(logits, labels, smoothing, model.training)
        source, target = source.twice(), target.twice()  # both passes in one
        seen = (_half_seen(source.tokens, consistency.cut), _half_seen(target.tokens, consistency.cut))
        logits, others = model(source.tokens, target.tokens, source.layout, target.layout, seen).chunk(2)
        loss = cross_entropy(logits, labels, smoothing, training=True)
        return Loss(loss.total + consistency.weight * divergence(logits, others, labels), loss.weight, loss.sums)

    def extra_metrics(self, model: nn.Module, split: Split, stride: int = 1) -> dict[str, float]:
        bleu = self.settings.bleu
        if bleu is None or split != "valid":
            return {}
        assert isinstance(model, EncoderDecoder)
        inputs, references = self._validation
        texts = self._translate(model, inputs, bleu.beam)
        metric = BLEU(lowercase=bleu.lowercase, tokenize=bleu.tokenize, force=True)
        return {"bleu": float(metric.corpus_score(texts, [references]).score)}

    def predict(self, model: Model, inputs: Sequence[str]) -> list[str]:
        """The translation of each text, by beam search. `regard.load` returns a `Translator`, which can do more."""
        assert isinstance(model, EncoderDecoder)
        return self._translate(model, self.tokenizers.inputs(list(inputs)), 5)

    def _translate(self, model: EncoderDecoder, inputs: list[list[int]], beam: int) -> list[str]:
        target = self.tokenizers.target
        search = Greedy() if beam == 1 else Beam(size=beam)
        wishes = [Wish(prefix=target.opening)] * len(inputs)
        found = decode(model, inputs, Ends(target.role("start"), target.role("end")), search, wishes=wishes)
        return target.decode_batch([target.known(best[0].tokens) for best in found])

    @cached_property
    def _validation(self) -> tuple[list[list[int]], list[str]]:
        """The source ids and references of some validation pairs, drawn at random but always the same."""
        assert self.settings.bleu is not None
        pairs = [example for example in Source(self.data.settings, "valid") if isinstance(example, Pair)]
        if len(pairs) > self.settings.bleu.sentences:
            pairs = Random(0).sample(pairs, self.settings.bleu.sentences)
        inputs = self.tokenizers.inputs([pair.source for pair in pairs], [pair.to for pair in pairs])
        longest = reach(self.model)
        fits = [number for number, ids in enumerate(inputs) if longest is None or len(ids) <= longest]
        return [inputs[number] for number in fits], [pairs[number].target for number in fits]


def _half_seen(tokens: Tensor, cut: float) -> Tensor:
    """True in the first half; in the second, false with probability `cut`."""
    half = tokens.shape[0] // 2
    seen = torch.rand(tokens.shape, device=tokens.device) >= cut
    return torch.cat([torch.ones_like(seen[:half]), seen[half:]])
