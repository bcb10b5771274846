"""Translation: from one text to another, every target token predicted from the source and the tokens before it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

import torch
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor, nn

from regard.data.batch import PairBatch
from regard.data.examples import Example, Pair
from regard.decoding.decode import decode
from regard.decoding.request import Ends
from regard.decoding.settings import Beam, Greedy
from regard.models.families import EncoderDecoder
from regard.tasks.batching import Batching
from regard.tasks.losses import cross_entropy, divergence
from regard.tasks.plain import PlainTask
from regard.tasks.settings import Bleu, SimCut, Translate
from regard.text.tokenizer import TokenizerPair
from regard.training.task import Loss


class TranslateTask(PlainTask):
    """Teacher forcing: the decoder reads the right target, whatever it would have said itself."""

    def __init__(self, settings: Translate, batching: Batching, trial: Trial | None = None) -> None:
        super().__init__(batching)
        self.settings = settings
        self.trial = trial
        if trial is not None:
            self.scores = (*self.scores, "bleu")

    def loss(self, model: nn.Module, batch: PairBatch) -> Loss:
        assert isinstance(model, EncoderDecoder)
        way, smoothing = self.settings.consistency, self.settings.smoothing
        if way is None or not model.training:
            return cross_entropy(_logits(model, batch), batch.labels, smoothing, model.training)
        cut = way.cut if isinstance(way, SimCut) else 0.0
        logits, others = _logits_twice(model, batch, cut)
        loss = cross_entropy(logits, batch.labels, smoothing, training=True)
        apart = divergence(logits, others, batch.labels)
        if isinstance(way, SimCut):
            return Loss(loss.total + way.weight * apart, loss.weight, loss.sums)
        other = cross_entropy(others, batch.labels, smoothing, training=True)
        apart = apart + divergence(others, logits, batch.labels)
        return Loss((loss.total + other.total + way.weight * apart) / 2, loss.weight, loss.sums)

    def extra_metrics(self, model: nn.Module) -> dict[str, float]:
        assert isinstance(model, EncoderDecoder)
        return {} if self.trial is None else {"bleu": self.trial.bleu(model)}


def _logits(model: EncoderDecoder, batch: PairBatch) -> Tensor:
    source, target = batch.source, batch.target
    logits: Tensor = model(source.tokens, target.tokens, source.layout, target.layout)
    return logits


def _logits_twice(model: EncoderDecoder, batch: PairBatch, cut: float) -> tuple[Tensor, Tensor]:
    """Of the batch as it is, and once more, each token hidden with the chance `cut`; both in one pass, each with a
    dropout of its own."""
    source, target = batch.source.twice(), batch.target.twice()
    seen = (_half_seen(source.tokens, cut), _half_seen(target.tokens, cut)) if cut else None
    logits: Tensor = model(source.tokens, target.tokens, source.layout, target.layout, seen)
    first, second = logits.chunk(2)
    return first, second


def _half_seen(tokens: Tensor, cut: float) -> Tensor:
    """True in the first half, and at random in the second."""
    half = tokens.shape[0] // 2
    seen = torch.rand(tokens.shape, device=tokens.device) >= cut
    return torch.cat([torch.ones_like(seen[:half]), seen[half:]])


@dataclass(frozen=True)
class Trial:
    """Some validation pairs to be translated, and how that is scored."""

    settings: Bleu
    tokenizers: TokenizerPair
    inputs: list[list[int]]
    references: list[str]

    @classmethod
    def of(cls, settings: Bleu, examples: Iterable[Example], tokenizers: TokenizerPair, longest: int | None) -> Trial:
        """Some of the pairs, at random but always the same, as far as the model can read them (`longest` tokens)."""
        pairs = [example for example in examples if isinstance(example, Pair)]
        if len(pairs) > settings.sentences:
            pairs = Random(0).sample(pairs, settings.sentences)
        inputs = tokenizers.inputs([pair.source for pair in pairs], [pair.to for pair in pairs])
        fits = [number for number, ids in enumerate(inputs) if longest is None or len(ids) <= longest]
        return cls(settings, tokenizers, [inputs[number] for number in fits], [pairs[number].target for number in fits])

    def bleu(self, model: EncoderDecoder) -> float:
        target, settings = self.tokenizers.target, self.settings
        search = Greedy() if settings.beam == 1 else Beam(size=settings.beam)
        found = decode(model, self.inputs, Ends(target.role("start"), target.role("end")), search)
        texts = target.decode_batch([best[0].tokens for best in found])
        # Without force sacreBLEU warns about tokenized texts, which tokenize="none" asks for.
        metric = BLEU(lowercase=settings.lowercase, tokenize=settings.tokenize, force=True)
        return float(metric.corpus_score(texts, [self.references]).score)
