"""How good translations are: figures of the whole, by length, the worst ones, and whether two systems differ.

Everything here compares texts with texts; where they come from does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeAlias

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result

from regard.data.examples import Pair, Problem
from regard.data.files import read_lines
from regard.data.settings import DataSettings, Pairs, Split
from regard.data.source import Source
from regard.errors import DataError, SettingsError
from regard.settings import Table, did_you_mean
from regard.tasks.recipe import data_settings
from regard.use.translator import Translator

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


@dataclass(frozen=True)
class Exam:
    """Texts to be translated in one direction, with their references."""

    name: str
    """The direction, such as `en-de`; empty where nobody named the languages."""
    sources: list[str] | None
    """None where translations are given, and nobody said of what."""
    references: list[str]
    to: str | None = None
    """The language to write, for a model that must be told."""

    def answers(self, model: Translator, beam: int, as_used: bool) -> list[str]:
        """The model's translations. Unless `as_used`, each text is one piece, as models are measured everywhere."""
        assert self.sources is not None
        to = self.to if model.tagged else None
        found: list[str] = model.translate(self.sources, beam=beam, to=to, split=as_used, keep=as_used)
        return found


def task_of(config: Table) -> str | None:
    """The kind of job that a run was trained for; None: its `config.toml` does not say."""
    task = config.get("task")
    kind = task.get("kind") if isinstance(task, Mapping) else task
    return kind if isinstance(kind, str) else None


def exams(
    config: Table, split: Split | None, changes: Mapping[str, Any] | None = None, limit: int | None = None
) -> tuple[Split, list[Exam]]:
    """The pairs of a run's own split, one exam for each direction, at most `limit` pairs in each."""
    data = _data(config, changes)
    if not isinstance(data, Pairs):
        raise SettingsError(f"data.kind ({data.kind}) holds no pairs to translate; give --input and --reference")
    chosen = _chosen(data, split)
    ways = max(len(data.directions), 1)
    found: dict[str | None, list[Pair]] = {}
    for pair in islice(Source(data, chosen), None if limit is None else limit * ways):
        assert isinstance(pair, Pair)
        found.setdefault(pair.to, []).append(pair)
    names = {(target if data.both else None): f"{source}-{target}" for source, target in data.directions}
    return chosen, [
        Exam(names.get(to, ""), [pair.source for pair in pairs], [pair.target for pair in pairs], to)
        for to, pairs in found.items()
    ]


def _data(config: Table, changes: Mapping[str, Any] | None) -> DataSettings:
    if "data" not in config:
        raise SettingsError("the model does not say what it was trained on; give --input and --reference")
    return data_settings(config, changes)


def _chosen(data: DataSettings, split: Split | None) -> Split:
    """The split that was asked for; else the test data, or, where there are none, the validation data."""
    if split is not None:
        return split
    return "test" if "test" in data.splits else "valid"


def read_texts(file: str) -> list[str]:
    """The lines of a file, of which none may be left out: line n belongs to line n of another file."""
    texts: list[str] = []
    for number, line in enumerate(read_lines(file), 1):
        if isinstance(line, Problem):
            raise DataError(f"{file}, line {number:,} {line.reason} ({line.detail}); correct it")
        texts.append(line)
    return texts
