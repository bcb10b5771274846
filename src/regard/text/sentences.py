"""A text cut into sentences, and put together again with the white space that stood between them.

Nothing is lost: sentences and what lies between them make the text. In doubt a text is not cut, since two sentences
together are translated well, and half a sentence is not.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]
"""First character, and the one behind the last."""

CLOSING = "\"'”’“‘»«›‹)]}）」』】》〉"
"""What may stand between the end of a sentence and the space behind it; German closes with what English opens with."""

_LINE_ENDS = "\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
_MARKS = ".!?…‼⁇⁈⁉؟۔।॥։"
_END = re.compile(
    rf"""
    (?P<wide>[。！？｡]+[{re.escape(CLOSING)}]*)      # needs no space behind it
    | (?<![{_MARKS}])(?P<mark>[{_MARKS}]++)[{re.escape(CLOSING)}]*+(?=\s)
    | (?=[{_LINE_ENDS}])                              # the end of a line ends a sentence
    """,
    re.VERBOSE,
)
_OPENING = re.compile(r"[\"'“”„‚‘’«»‹›(\[{（「『【《〈¿¡*_#<>-]+|[–—•·]\s*")
_BEFORE = re.compile(r"[^\s(\[{\"'“”„‚‘’«»‹›/–—]*\Z")
_ROMAN = re.compile(r"[IVXLCDM]{1,6}\Z")
_DOTTED = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}\Z")

_GERMAN = (
    "abb abs abt abk allg anl anm aufl bd bde bearb bes betr bez bhf bsp bspw bzgl bzw ca chr co dergl desgl dgl dipl "
    "dr dres ebd eigtl einschl entspr erg etc ev evtl exkl fa fam ff fol forts fr frl geb gebr gegr gem ges gez ggf "
    "ggfs hbf hg hr hrn hrsg hss inc inkl ing insb inv jg jh jhd jmd kap kath kfm kgl komm lfd lt ltd med mia mio mrd "
    "mtl mwst nr nrn orig phil pkt prof prot psych rd resp röm schr sek sog spez st std stk str tägl tel tsd uff ugs "
    "urspr usf usw verf verh versch vgl vll vol vorm vors wg wiss zb zit zt ztr zus zuz zw zzgl jan feb mär apr jun "
    "jul aug sep sept okt nov dez"
)
_ENGLISH = (
    "mr mrs ms messrs mme mlle rev hon gen col maj capt sgt cpl adm cmdr gov sen rep pres supt insp jr sr esq ave blvd "
    "mt ft dept univ assn bros corp est approx appt apt dist vs eg ie al cf viz ed eds trans nos vols chap figs eq "
    "refs pp para oct dec mon tue tues wed thu thur thurs fri ph.d"
)
_OTHERS = "sra srta dra ud uds ee.uu av avda núm pág págs mgr dott sig sigg sigra avv dhr mevr drs bijv enz jhr exmo"

ABBREVIATIONS = frozenset(f"{_GERMAN} {_ENGLISH} {_OTHERS}".split())
"""Words that a full stop shortens and does not end, in small letters and without the stop."""

BEFORE_NUMBERS = frozenset(
    ("art", "ch", "fig", "max", "min", "no", "op", "par", "pl", "pos", "ref", "sec", "tab", "vers")
)
"""Words that are such only before a number: "no. 5", but "he said no. Then"."""


# ------------------------------------------------------------------------------------------------------------ splitting


def split(text: str) -> tuple[list[str], list[str]]:
    """Sentences, and what lies before, between and behind them: one more of these than of sentences."""
    found = spans(text)
    edges = [0, *(edge for span in found for edge in span), len(text)]
    between = [text[edges[i] : edges[i + 1]] for i in range(0, len(edges), 2)]
    return [text[start:end] for start, end in found], between


def join(sentences: Sequence[str], between: Sequence[str]) -> str:
    """The text again, or that of other sentences in their place."""
    parts = [between[0]]
    for sentence, space in zip(sentences, between[1:], strict=True):
        parts += [sentence, space]
    return "".join(parts)


def spans(text: str, whole: Sequence[Span] = ()) -> list[Span]:
    """Where each sentence is, without the white space around it. Nothing is cut inside the spans of `whole`."""
    found: list[Span] = []
    start = 0
    for end in (*_ends(text), len(text)):
        if _within(end, whole):
            continue
        inner = text[start:end].strip()
        if inner:
            first = start + len(text[start:end]) - len(text[start:end].lstrip())
            found.append((first, first + len(inner)))
        start = end
    return found


def _ends(text: str) -> Iterator[int]:
    for match in _END.finditer(text):
        mark = match["mark"]
        if mark is None or (_begins(text, match.end()) and not _goes_on(text, match.start(), mark)):
            yield match.end()


def _begins(text: str, place: int) -> bool:
    """Whether what follows the space at a place can begin a sentence: no small letter and no comma does."""
    rest = text[place : place + 80].lstrip()
    opening = _OPENING.match(rest)
    first = rest[opening.end() :].lstrip()[:1] if opening else rest[:1]
    return not first or not (first.islower() or first in ",;:.!?)]}%&=+/")


def _goes_on(text: str, place: int, mark: str) -> bool:
    """Whether the full stop at a place belongs to the word before it, or three of them stand for left-out words."""
    if mark not in (".", "...", "…"):
        return False
    word = _BEFORE.search(text, max(place - 40, 0), place)
    before = word[0] if word else ""
    if mark != ".":
        return not before  # "he is ... Somebody": the dots stand alone, as a word
    if before.isdigit():
        return len(before) <= 2  # 3. Mai, 19. Jahrhundert, 1. a list; but "in 2010."
    lower = before.lower().rstrip(".")
    single = len(before) == 1 and before.isalpha()  # z. B., J. Smith
    if lower in BEFORE_NUMBERS:
        return text[place + 1 : place + 21].lstrip()[:1].isdigit()
    return single or lower in ABBREVIATIONS or bool(_ROMAN.match(before)) or bool(_DOTTED.match(before))


# -------------------------------------------------------------------------------------------------------------- cutting

_CUTS = (
    re.compile(r"(?<=[;:。！？])\s*|(?<!\s)\s++(?=[–—]\s)"),
    re.compile(r"(?<=[,，、،])\s*"),
    re.compile(r"\s+"),
)
"""Where a long sentence is cut, the best places first; the last resort is anywhere."""


def cut(text: str, fits: Callable[[str], bool], whole: Sequence[Span] = ()) -> list[Span]:
    """A sentence in parts that fit, each cut near its middle: behind a semicolon, a comma, a word, or anywhere."""
    return _cut(text, 0, len(text), fits, whole)


def _cut(text: str, start: int, end: int, fits: Callable[[str], bool], whole: Sequence[Span]) -> list[Span]:
    start += len(text[start:end]) - len(text[start:end].lstrip())
    end -= len(text[start:end]) - len(text[start:end].rstrip())
    if start >= end:
        return []
    if fits(text[start:end]) or end - start == 1:
        return [(start, end)]
    middle = _middle(text, start, end, whole)
    if middle is None:
        return [(start, end)]
    return _cut(text, start, middle, fits, whole) + _cut(text, middle, end, fits, whole)


def _middle(text: str, start: int, end: int, whole: Sequence[Span]) -> int | None:
    """The best place near the middle, outside the first and last quarter where there is one; None: all is whole."""
    half, quarter = (start + end) // 2, (end - start) // 4
    for pattern in _CUTS:
        places = [match.start() for match in pattern.finditer(text, start, end)]
        inside = [place for place in places if start + quarter < place < end - quarter and not _within(place, whole)]
        if inside:
            return min(inside, key=lambda place: abs(place - half))
    words = [match.start() for match in _CUTS[-1].finditer(text, start + 1, end)]
    free = [place for place in words if not _within(place, whole)]
    free = free or [place for place in range(start + 1, end) if not _within(place, whole)]
    return min(free, key=lambda place: abs(place - half), default=None)


def _within(place: int, whole: Sequence[Span]) -> bool:
    """Whether a place is inside one of the spans, which are in order."""
    before = bisect_left(whole, place, key=lambda span: span[0]) - 1
    return before >= 0 and place < whole[before][1]
