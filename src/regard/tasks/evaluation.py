"""How good translations are: figures of the whole, by length, the worst ones, and whether two systems differ.

Everything here compares texts with texts; where they come from does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest, Result

from regard.errors import DataError
from regard.tasks.scoring import METRICS, USUAL, Counting, Figure, figures, make_metrics, require_same

Test: TypeAlias = Literal["bootstrap", "randomization"]

TENS = (10, 20, 30, 40, 50)
"""Words of a source at which a new row of the report by lengths begins."""


class Bucket(NamedTuple):
    """Sentences of about one length."""

    first: int
    last: int | None
    """Words of the source; None: any number from the first on."""
    sentences: int
    bleu: float
    chrf: float
    ratio: float
    """Words of the translations for each of the references'."""


class Sentence(NamedTuple):
    """One translation beside its reference."""

    place: int
    """Its number among the sentences, counted from 1, as editors count lines."""
    chrf: float
    source: str | None
    hypothesis: str
    reference: str


class Compared(NamedTuple):
    """One figure of two systems."""

    score: float
    against: float
    p: float
    """How likely such a difference is if the systems are equally good."""
    interval: float | None
    """The true score lies this far from the mean of the resamples at the most, with 95 % certainty."""
    signature: str


@dataclass(frozen=True)
class Report:
    """All that is told of the translations of one text."""

    sentences: int
    figures: dict[str, Figure]
    exact: float
    """Share of sentences that are the reference to the letter."""
    lengths: list[Bucket]
    worst: list[Sentence]
    """By chrF, the worst first."""

    def as_table(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **asdict(self),
            "figures": {name: figure._asdict() for name, figure in self.figures.items()},
            "lengths": [bucket._asdict() for bucket in self.lengths],
            "worst": [sentence._asdict() for sentence in self.worst],
        }


def evaluate_texts(
    hypotheses: Sequence[str],
    references: Sequence[str],
    sources: Sequence[str] | None = None,
    *,
    counting: Counting = USUAL,
    tokenized: bool = False,
    worst: int = 5,
) -> Report:
    """The report of translations, line by line beside their references.

    `tokenized` adds BLEU as older papers print it: of texts that are tokenised already (and only of those), in lower
    case. Lengths are those of the sources, or of the references where there are none.
    """
    require_same(hypotheses, references)
    if sources is not None and len(sources) != len(references):
        raise DataError(f"there are {len(sources):,} sources and {len(references):,} references; give as many of both")
    found = figures(hypotheses, references, counting=counting)
    if tokenized:
        found |= {"bleu-tokenized": figures(hypotheses, references, ("bleu",), counting=Counting(True, "none"))["bleu"]}
    right = sum(hypothesis == reference for hypothesis, reference in zip(hypotheses, references, strict=True))
    return Report(
        len(references),
        found,
        right / len(references),
        by_length(hypotheses, references, sources or references, counting),
        worst_sentences(hypotheses, references, sources, worst),
    )


def scores(hypotheses: Sequence[str], references: Sequence[str], counting: Counting = USUAL) -> dict[str, float]:
    """BLEU, chrF and TER from 0 to 100, and the share of exact matches, as plain numbers."""
    found = figures(hypotheses, references, counting=counting)
    right = sum(hypothesis == reference for hypothesis, reference in zip(hypotheses, references, strict=True))
    return {**{name: figure.score for name, figure in found.items()}, "exact": right / len(references)}


def by_length(
    hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str], counting: Counting = USUAL
) -> list[Bucket]:
    """The report of each range of lengths that occurs."""
    places: dict[int, list[int]] = {}
    for place, source in enumerate(sources):
        words = len(source.split())
        places.setdefault(sum(words > limit for limit in TENS), []).append(place)
    buckets = []
    for row, here in sorted(places.items()):
        ours, theirs = [hypotheses[place] for place in here], [references[place] for place in here]
        found = figures(ours, theirs, ("bleu", "chrf"), counting=counting)
        length, wanted = (sum(len(text.split()) for text in texts) for texts in (ours, theirs))
        buckets.append(
            Bucket(
                TENS[row - 1] + 1 if row else 0,
                TENS[row] if row < len(TENS) else None,
                len(here),
                found["bleu"].score,
                found["chrf"].score,
                length / max(wanted, 1),
            )
        )
    return buckets


def worst_sentences(
    hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None, count: int
) -> list[Sentence]:
    """Those with the least chrF, which unlike BLEU means something for one sentence."""
    if not count:
        return []
    metric = CHRF()
    each = [
        metric.sentence_score(hypothesis, [reference]).score
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]
    worst = sorted(range(len(each)), key=each.__getitem__)[:count]
    return [
        Sentence(place + 1, each[place], sources[place] if sources else None, hypotheses[place], references[place])
        for place in worst
    ]


def compare(
    hypotheses: Sequence[str],
    against: Sequence[str],
    references: Sequence[str],
    *,
    counting: Counting = USUAL,
    test: Test = "bootstrap",
    samples: int = 0,
) -> dict[str, Compared]:
    """Whether translations differ from those of another system by more than chance, in each metric.

    bootstrap: paired bootstrap resampling (Koehn 2004), 1,000 samples; randomization: paired approximate randomisation
    (Riezler and Maxwell 2005), 10,000 trials. `samples` asks for another number. Both draw the same numbers each time.
    """
    require_same(hypotheses, references)
    require_same(against, references)
    kind = {"bootstrap": "bs", "randomization": "ar"}[test]
    metrics = {METRICS[name]: metric for name, metric in make_metrics(tuple(METRICS), counting).items()}
    paired = PairedTest(
        [("against", list(against)), ("ours", list(hypotheses))], metrics, [list(references)], kind, samples
    )
    signatures, found = paired()
    compared = {}
    for name, key in METRICS.items():
        # Their name of a metric tells its settings too: chrF2.
        theirs = next(column for column in found if column.lower().startswith(key.lower()))
        baseline, ours = found[theirs]
        assert isinstance(baseline, Result)
        assert isinstance(ours, Result)
        assert ours.p_value is not None
        # Of equal scores they say that chance did not make them differ, which reads as if something had.
        p = 1.0 if ours.score == baseline.score else ours.p_value
        interval = None if ours.ci is None else float(ours.ci)
        compared[name] = Compared(float(ours.score), float(baseline.score), float(p), interval, str(signatures[theirs]))
    return compared
