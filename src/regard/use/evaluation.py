"""Evaluation of translations: BLEU, chrF and TER by sacreBLEU (Post 2018), and significance tests.

Other tasks are evaluated by their own metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result

from regard.data.examples import Pair
from regard.data.settings import Pairs, Split
from regard.data.source import Source
from regard.errors import DataError, SettingsError
from regard.settings import Table, did_you_mean
from regard.tasks.metrics import bracket_f1
from regard.tasks.recipe import data_settings

TOKENIZERS = ("13a", "none", "intl", "zh", "char")
"""Tokenizers of sacreBLEU without further dependencies; `none` is for text that is already tokenized."""
METRICS = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER"}
"""Our names and those of sacreBLEU. TER counts edits, so less is better."""
_LENGTHS = (10, 20, 30, 40, 50)
"""Limits of the rows of the report by length, in source words."""


@dataclass(frozen=True)
class CorpusMetric:
    """The value of one metric for a corpus."""

    score: float
    signature: str
    """Version and settings of the metric. Values with different signatures cannot be compared."""


@dataclass(frozen=True)
class LengthBucket:
    """Metrics of the sentences with a source length from `first` to `last` words."""

    first: int
    last: int | None
    """None: no limit."""
    sentences: int
    bleu: float
    chrf: float
    ratio: float
    """Words in translations per word in references."""


@dataclass(frozen=True)
class ScoredSentence:
    """One translation and its reference."""

    place: int
    """Line number, from 1."""
    chrf: float
    source: str | None
    hypothesis: str
    reference: str


@dataclass(frozen=True)
class Compared:
    """One metric of two systems."""

    score: float
    against: float
    p: float
    """Probability of a difference this large if both systems are equally good."""
    interval: float | None
    """Half the width of the 95 % confidence interval of the score."""
    signature: str


@dataclass(frozen=True)
class Report:
    """The evaluation of a corpus."""

    sentences: int
    metrics: dict[str, CorpusMetric]
    exact: float
    """Share of translations that equal their references."""
    lengths: list[LengthBucket]
    worst: list[ScoredSentence]
    """The translations with the lowest chrF, worst first."""


def evaluate_texts(
    hypotheses: Sequence[str],
    references: Sequence[str],
    sources: Sequence[str] | None = None,
    *,
    lowercase: bool = False,
    tokenize: str = "13a",
    worst: int = 5,
) -> Report:
    """Compares translations with references. Lengths are those of the sources, or of the references without sources.

    `tokenize` is the tokenizer of BLEU, one of `TOKENIZERS`.
    """
    metrics = corpus_metrics(hypotheses, references, lowercase=lowercase, tokenize=tokenize)
    if sources is not None and len(sources) != len(references):
        raise DataError(f"{len(sources):,} sources do not match {len(references):,} references; give one for each")
    if all(text.startswith("(") for text in references):  # trees: parsing as translation
        found = 100 * bracket_f1(references, hypotheses)
        metrics["brackets"] = CorpusMetric(found, "labelled brackets, as EVALB")
    exact = sum(one == other for one, other in zip(hypotheses, references, strict=True))
    return Report(
        len(references),
        metrics,
        exact / len(references),
        _by_length(hypotheses, references, sources or references, lowercase, tokenize),
        _worst(hypotheses, references, sources, worst),
    )


def corpus_metrics(
    hypotheses: Sequence[str],
    references: Sequence[str],
    names: Sequence[str] = tuple(METRICS),
    *,
    lowercase: bool = False,
    tokenize: str = "13a",
) -> dict[str, CorpusMetric]:
    _check_lengths(hypotheses, references)
    found = {}
    for name, metric in _metrics(names, lowercase, tokenize).items():
        score = metric.corpus_score(list(hypotheses), [list(references)]).score
        found[name] = CorpusMetric(float(score), str(metric.get_signature()))
    return found


def compare(
    hypotheses: Sequence[str],
    against: Sequence[str],
    references: Sequence[str],
    *,
    lowercase: bool = False,
    tokenize: str = "13a",
    samples: int = 1000,
) -> dict[str, Compared]:
    """Tests whether two systems differ, for each metric, by paired bootstrap resampling (Koehn 2004)."""
    _check_lengths(hypotheses, references)
    _check_lengths(against, references)
    metrics = {METRICS[name]: metric for name, metric in _metrics(tuple(METRICS), lowercase, tokenize).items()}
    systems: list[tuple[str, Sequence[str]]] = [("against", list(against)), ("ours", list(hypotheses))]
    signatures, found = PairedTest(systems, metrics, [list(references)], "bs", samples)()
    compared = {}
    for name, key in METRICS.items():
        column = next(column for column in found if column.lower().startswith(key.lower()))  # such as chrF2
        baseline, ours = found[column]
        assert isinstance(baseline, Result)
        assert isinstance(ours, Result)
        assert ours.p_value is not None
        p = 1.0 if ours.score == baseline.score else float(ours.p_value)  # sacreBLEU returns a small p for equal scores
        interval = None if ours.ci is None else float(ours.ci)
        compared[name] = Compared(float(ours.score), float(baseline.score), p, interval, str(signatures[column]))
    return compared


def _metrics(names: Sequence[str], lowercase: bool, tokenize: str) -> dict[str, Metric]:
    if tokenize not in TOKENIZERS:
        raise SettingsError(
            f"tokenize ({tokenize}) is unknown{did_you_mean(tokenize, TOKENIZERS)}; choose {', '.join(TOKENIZERS)}"
        )
    made: dict[str, Metric] = {
        "bleu": BLEU(lowercase=lowercase, tokenize=tokenize, force=True),  # force: no warning about tokenized texts
        "chrf": CHRF(lowercase=lowercase),
        "ter": TER(case_sensitive=not lowercase),  # its default is False, unlike the others
    }
    return {name: made[name] for name in names}


def _check_lengths(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references):
        raise DataError(
            f"{len(hypotheses):,} translations do not match {len(references):,} references; give one for each"
        )
    if not references:
        raise DataError("there are no references; give a file or a split that is not empty")


def _by_length(
    hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str], lowercase: bool, tokenize: str
) -> list[LengthBucket]:
    rows: dict[int, list[int]] = {}
    for place, source in enumerate(sources):
        words = len(source.split())
        rows.setdefault(sum(words > limit for limit in _LENGTHS), []).append(place)
    buckets = []
    for row, places in sorted(rows.items()):
        ours, theirs = [hypotheses[place] for place in places], [references[place] for place in places]
        metrics = corpus_metrics(ours, theirs, ("bleu", "chrf"), lowercase=lowercase, tokenize=tokenize)
        written, wanted = (sum(len(text.split()) for text in texts) for texts in (ours, theirs))
        first = _LENGTHS[row - 1] + 1 if row else 0
        last = _LENGTHS[row] if row < len(_LENGTHS) else None
        scores = (metrics["bleu"].score, metrics["chrf"].score)
        buckets.append(LengthBucket(first, last, len(places), *scores, written / max(wanted, 1)))
    return buckets


def _worst(
    hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None, count: int
) -> list[ScoredSentence]:
    """By chrF, which unlike BLEU is meaningful for one sentence."""
    if not count:
        return []
    metric = CHRF()
    pairs = zip(hypotheses, references, strict=True)
    scores = [metric.sentence_score(hypothesis, [reference]).score for hypothesis, reference in pairs]
    return [
        ScoredSentence(i + 1, scores[i], sources[i] if sources else None, hypotheses[i], references[i])
        for i in sorted(range(len(scores)), key=scores.__getitem__)[:count]
    ]


@dataclass(frozen=True)
class EvaluationSet:
    """Texts of one direction with their references."""

    name: str
    """The direction, such as `en-de`; empty if the languages are unknown."""
    sources: list[str] | None
    """None if translations are given without their sources."""
    references: list[str]
    to: str | None = None
    """The target language, for models with several."""


def evaluation_sets(
    config: Table, split: Split | None, changes: Mapping[str, Any] | None = None, limit: int | None = None
) -> tuple[Split, list[EvaluationSet]]:
    """The pairs of a split of a run, by default of its test data, or of its validation data if there is none.

    There is one test set for each direction, with at most `limit` pairs.
    """
    if "data" not in config:
        raise SettingsError("the model does not name its data; give --input and --reference")
    data = data_settings(config, changes)
    if not isinstance(data, Pairs):
        raise SettingsError(f"data.kind ({data.kind}) has no pairs of texts; give --input and --reference")
    chosen: Split = split or ("test" if "test" in data.splits else "valid")
    found: dict[str | None, list[Pair]] = {}
    for pair in islice(Source(data, chosen), None if limit is None else limit * max(len(data.directions), 1)):
        assert isinstance(pair, Pair)
        found.setdefault(pair.to, []).append(pair)
    names = {(target if data.both or data.tagged else None): f"{source}-{target}" for source, target in data.directions}
    return chosen, [
        EvaluationSet(names.get(to, ""), [pair.source for pair in pairs], [pair.target for pair in pairs], to)
        for to, pairs in found.items()
    ]
