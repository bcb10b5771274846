"""Corpus BLEU, chrF and TER by sacreBLEU (Post 2018), each with the signature that tells how it was counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from regard.errors import DataError, SettingsError
from regard.settings import did_you_mean

TOKENIZERS = ("13a", "none", "intl", "zh", "char")
"""sacreBLEU's that need nothing that is not installed with it; `none` is for texts that are tokenised already."""


METRICS = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER"}
"""By our names, with sacreBLEU's. More is better but for TER, the edits that a translation needs."""


class Counting(NamedTuple):
    """How sacreBLEU counts."""

    lowercase: bool = False
    """Whether upper and lower case count as the same."""
    tokenize: str = "13a"
    """How BLEU cuts words, by its name of it; none: the texts are cut already."""


USUAL = Counting()
"""sacreBLEU's own way, which figures should be told in unless a published one asks for another."""


class Figure(NamedTuple):
    """One figure of a whole corpus."""

    score: float
    signature: str
    """How it was counted, and by which version: figures with other signatures cannot be compared with it."""


def corpus_bleu(
    hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False, tokenize: str = "13a"
) -> float:
    """BLEU of 0 to 100."""
    return figures(hypotheses, references, ("bleu",), counting=Counting(lowercase, tokenize))["bleu"].score


def figures(
    hypotheses: Sequence[str],
    references: Sequence[str],
    metrics: Sequence[str] = tuple(METRICS),
    *,
    counting: Counting = USUAL,
) -> dict[str, Figure]:
    """Each metric of all sentences together, with its signature."""
    require_same(hypotheses, references)
    found = {}
    for name, metric in make_metrics(metrics, counting).items():
        score = metric.corpus_score(list(hypotheses), [list(references)]).score
        found[name] = Figure(float(score), str(metric.get_signature()))
    return found


def make_metrics(names: Sequence[str], counting: Counting) -> dict[str, Metric]:
    """sacreBLEU's own metrics. TER, unlike the others, does not tell cases apart unless it is asked to."""
    lowercase, tokenize = counting
    if tokenize not in TOKENIZERS:
        raise SettingsError(
            f"tokenize ({tokenize}) is not known{did_you_mean(tokenize, TOKENIZERS)}; choose {', '.join(TOKENIZERS)}"
        )
    made: dict[str, Metric] = {
        # Without force, it warns of texts that are tokenised, which is what "none" says they are.
        "bleu": BLEU(lowercase=lowercase, tokenize=tokenize, force=True),
        "chrf": CHRF(lowercase=lowercase),
        "ter": TER(case_sensitive=not lowercase),
    }
    return {name: made[name] for name in names}


def require_same(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Refuse what cannot be compared line by line."""
    if len(hypotheses) != len(references):
        raise DataError(
            f"there are {len(hypotheses):,} translations and {len(references):,} references; "
            "give one reference for each, in the same order"
        )
    if not references:
        raise DataError("there is nothing to score: no references; give a file, or a split, that is not empty")
