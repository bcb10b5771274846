"""Splits texts into sentences, and protects parts that a translation must not change.

Placeholders, addresses and tags are replaced by *stand-ins*: short words such as X1 that models copy. Unknown signs,
such as emoji, are left out. `restore` puts the originals back, or reports that the model lost one.
"""

from __future__ import annotations

import functools
import html
import re
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from regard.text.tokenizer import Span, word_spans

# Sentences

_CLOSING = re.escape("\"'”’“‘»«›‹)]}）」』】》〉")
_LINE_ENDS = "\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
_MARKS = ".!?…‼⁇⁈⁉؟۔।॥։"
_END = re.compile(
    rf"""
    (?P<wide>[。！？｡]+[{_CLOSING}]*)      # no space follows
    | (?<![{_MARKS}])(?P<mark>[{_MARKS}]++)[{_CLOSING}]*+(?=\s)
    | (?=[{_LINE_ENDS}])                    # a line end is the end of a sentence
    """,
    re.VERBOSE,
)
_OPENING = re.compile(r"[\"'“”„‚‘’«»‹›(\[{（「『【《〈¿¡*_#<>-]+|[–—•·]\s*")
_WORD_BEFORE = re.compile(r"[^\s(\[{\"'“”„‚‘’«»‹›/–—]*\Z")
_ROMAN = re.compile(r"[IVXLCDM]{1,6}\Z")
_DOTTED = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}\Z")

_BEFORE_NUMBERS = ("art", "ch", "fig", "max", "min", "no", "op", "par", "pl", "pos", "ref", "sec", "tab", "vers")
"""Abbreviations only before a number: "no. 5", but "he said no. Then"."""


@functools.cache
def _abbreviations() -> frozenset[str]:
    """German ones, English ones, and those of other languages."""
    return frozenset(Path(__file__).with_name("abbreviations.txt").read_text(encoding="utf-8").split())


def sentence_spans(text: str) -> list[Span]:
    """The sentences of a text, without the white space around them.

    In doubt a text is not split: two sentences together are translated well, half a sentence is not.
    """
    ends = [
        match.end()
        for match in _END.finditer(text)
        if match["mark"] is None or (_can_start(text, match.end()) and not _is_abbreviation(text, match))
    ]
    return _stripped(text, pairwise((0, *ends, len(text))))


def line_spans(text: str) -> list[Span]:
    """The lines of a text that are not blank, without the white space around them."""
    ends = accumulate(map(len, text.splitlines(keepends=True)), initial=0)
    return _stripped(text, pairwise(ends))


def _stripped(text: str, spans: Iterable[Span]) -> list[Span]:
    """Spans without the white space at their edges; blank ones are left out."""
    found = []
    for start, end in spans:
        if inner := text[start:end].strip():
            first = text.index(inner, start)
            found.append((first, first + len(inner)))
    return found


def _can_start(text: str, place: int) -> bool:
    """Whether a sentence can start after the space at `place`: not with a lower-case letter or a comma."""
    rest = text[place : place + 80].lstrip()
    opening = _OPENING.match(rest)
    first = rest[opening.end() :].lstrip()[:1] if opening else rest[:1]
    return not first or not (first.islower() or first in ",;:.!?)]}%&=+/")


def _is_abbreviation(text: str, match: re.Match[str]) -> bool:
    """Whether a full stop belongs to the word before it, or an ellipsis replaces words."""
    mark, place = match["mark"], match.start()
    if mark not in (".", "...", "…"):
        return False
    word = _WORD_BEFORE.search(text, max(place - 40, 0), place)
    before = word[0] if word else ""
    if mark != ".":
        return not before  # "he is ... Somebody"
    if before.isdigit():
        return len(before) <= 2  # 3. Mai, 19. Jahrhundert, 1. Item; but "in 2010."
    lower = before.lower().rstrip(".")
    if lower in _BEFORE_NUMBERS:
        return text[place + 1 : place + 21].lstrip()[:1].isdigit()
    initial = len(before) == 1 and before.isalpha()  # z. B., J. Smith
    return initial or lower in _abbreviations() or bool(_ROMAN.match(before)) or bool(_DOTTED.match(before))


_CUTS = (re.compile(r"(?<=[;:。！？])\s*|(?<!\s)\s++(?=[–—]\s)"), re.compile(r"(?<=[,，、،])\s*"), re.compile(r"\s+"))
"""Where a long sentence is cut, the best places first."""


def cut_spans(text: str, span: Span, fits: Callable[[Span], bool]) -> list[Span]:
    """Parts of a long sentence that fit, each cut near its middle: after a semicolon, a comma, a word, or anywhere."""
    if not (inner := _stripped(text, [span])):
        return []
    start, end = inner[0]
    if fits((start, end)) or end - start == 1:
        return [(start, end)]
    middle, quarter = (start + end) // 2, (end - start) // 4
    for pattern in _CUTS:
        places = [match.start() for match in pattern.finditer(text, start, end)]
        if inside := [place for place in places if start + quarter < place < end - quarter]:
            break
    else:
        inside = [match.start() for match in _CUTS[-1].finditer(text, start + 1, end)] or [middle]
    place = min(inside, key=lambda place: abs(place - middle))
    return cut_spans(text, (start, place), fits) + cut_spans(text, (place, end), fits)


def gap_after(sentence: str) -> str:
    """What separates a sentence from the next one: a space, except in scripts without spaces."""
    return "" if not sentence or unicodedata.east_asian_width(sentence[-1]) in ("W", "F") else " "


def sections(text: str, characters: int) -> list[str]:
    """Parts of about this length, of whole sentences, whose translations are joined to the translation of the text."""
    cuts = [0]
    if len(text) > characters:
        for start, _ in pieces_of(text, find_items(text), split=True):
            if start - cuts[-1] >= characters and text[start - 1].isspace():
                cuts.append(start)
    return [text[start:end] for start, end in pairwise((*cuts, len(text)))]


# Items

Kind: TypeAlias = Literal["block", "open", "close", "empty", "other", "number", "sign"]
"""block: a tag or comment that ends a sentence; open, close, empty: tags inside a sentence; sign: an unknown character
that is not a letter, such as an emoji."""

TAGS = ("open", "close", "empty")
_BLOCK_NAMES = (
    "address article aside audio blockquote body br canvas caption center col colgroup dd details dialog div dl dt "
    "fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 head header hr html iframe legend li link main meta nav "
    "noscript object ol optgroup option p section select source summary svg table tbody td template textarea tfoot th "
    "thead title tr track ul video"
)
_BLOCKS = frozenset(_BLOCK_NAMES.split())
_VERBATIM: dict[str, Kind] = {"script": "block", "style": "block", "pre": "block", "code": "other"}
"""Elements whose content is not translated."""
_ENTITY = re.compile(
    r"""
    & (?:
        (?:amp;)+ \#? \w{1,31};                 # &amp;lt;, encoded twice
        | [A-Za-z][A-Za-z0-9]{1,30};            # &eacute;
        | (?:lt|gt|amp|quot|LT|GT|AMP|QUOT);?   # these need no semicolon
        | \#\d{1,20};?                          # &#233;
        | \#[xX][0-9A-Fa-f]{1,20};?             # &#xE9;
    )
    """,
    re.VERBOSE,
)
_ESCAPED = "&\"'"
"""Characters that a model reads decoded, and that are encoded again."""
_LESS, _GREATER = (
    rf"&(?: {name};? | {name.upper()};? | \#0*{number}(?!\d);? | \#[xX]0*{number:x}(?![0-9A-Fa-f]);? )"
    for name, number in (("lt", 60), ("gt", 62))
)
"""Spellings of < and > as entities."""

_NAME = r"[A-Za-z][\w:.-]* | \d+"
_UNQUOTED = r"""[^<>"']{0,300}+"""
_QUOTED = r"""(?: "[^"]{0,300}" | '[^']{0,300}' )"""
"""A quoted value may contain < and >. Its length is bounded, as is the number of values, so that the search is fast."""
_REST = rf"[\s/] (?: (?:{_UNQUOTED}{_QUOTED}){{1,16}}+ {_UNQUOTED}(?=>) | [^<>]* )"
_ESCAPED_REST = rf"[\s/] (?: (?!{_LESS}|{_GREATER}) [^<>] )*"
_URL_CHARACTERS = r"""[^\s<>"“”„«»{}|\\^`]+"""
_DOMAINS = "com|org|net|edu|gov|info|io|eu|de|at|ch|uk|fr|nl|it|es|pl"
_ADDRESSES = (
    rf"(?<![A-Za-z]) (?:https?|ftp|file):// {_URL_CHARACTERS}",
    rf"(?<![\w.]) www\. {_URL_CHARACTERS}",
    r"(?<![\w.+%-]) [\w.+%-]++ @ [\w-]+ (?:\.[\w-]+)+",
    rf"(?<![\w.@-]) (?:[\w-]+\.)+ (?:{_DOMAINS}) (?![\w-]) (?: / [^\s<>\"“”„«»]* )?",
)
_PLACEHOLDERS = (
    r"(?<![\d%]) % (?:\d\$)? [-+0\#]{0,3} (?:\d{1,3}|\*)? (?:\.\d{1,2})? [hlz]{0,2} [diufeEgG] (?![A-Za-z])",  # %5.2f
    r"\$? \{\{ [^{}\n]{1,80} \}\}",  # {{name}}
    r"[$%\#]? \{ [\w.:!+\[\]-]{0,60} \}",  # {name}, ${name}, %{name}, #{name}
    r"%\( [\w.-]{1,60} \) [-+0\#]{0,3} \d{0,3} (?:\.\d{1,2})? [a-zA-Z]",  # %(name)s
    r"(?<![\d%]) % (?:\d\$)? -? \d{0,3} [sScCxXop@] (?![A-Za-z])",  # %s, %1$s, %@
    r"(?<![\d%]) (?<!\d[ \u00a0\u202f]) %L?\d{1,2} (?!\d)",  # %1, but not "50 %1"
    r"(?<![\w$]) \$[a-z_]\w*",  # $name
    r"(?<!\w) __[A-Za-z]\w*__ (?!\w)",  # __NAME__
)
_PATTERNS = {
    "comment": r"<!-- | <!\[CDATA\[ | <[!?](?=[A-Za-z])",
    "tag": rf"< (?P<shut>/?) (?P<name>{_NAME}) (?P<rest>(?:{_REST})?) >",
    "escaped": rf"(?P<less>{_LESS}) (?P<shut_>/?) (?P<name_>{_NAME}) (?P<rest_>(?:{_ESCAPED_REST})?) (?:{_GREATER}|>)",
    "part": r"<[A-Za-z/!?] [^\s>]* >?",  # a tag that is not complete
    "entity": _ENTITY.pattern,
    "address": "|".join(_ADDRESSES),
    "placeholder": "|".join(_PLACEHOLDERS),
}
_ITEM = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _PATTERNS.items()), re.VERBOSE)
"""The first pattern that matches is the type of an item (`lastgroup`)."""
_ATTRIBUTES = re.compile(r"\s*+/?\s*+\Z|\s[^=]*=")
_TRAILING = ".,;:!?…'’"


class Item(NamedTuple):
    """A part of a text that a translation must not change."""

    start: int
    end: int
    text: str
    kind: Kind


def find_items(text: str) -> list[Item]:
    """Placeholders, addresses, tags and comments, in order and without overlap."""
    found: list[Item] = []
    place = 0
    absent: set[str] = set()  # closing tags that do not follow; searched once, or hostile texts take quadratic time
    while match := _ITEM.search(text, place):
        end, kind = _extent(text, match, absent)
        if kind is not None:
            found.append(Item(match.start(), end, text[match.start() : end], kind))
        place = end
    if any(map(_is_incomplete, found)):  # a > that moves would end this tag
        return without_overlap(found, [Item(*match.span(), ">", "empty") for match in re.finditer(">", text)])
    return found


def _is_incomplete(item: Item) -> bool:
    return item.kind == "empty" and item.text[-1] != ">"


def _extent(text: str, found: re.Match[str], absent: set[str]) -> tuple[int, Kind | None]:
    """The end and kind of an item; no kind: the match is ordinary text."""
    end = found.end()
    match found.lastgroup:
        case "tag" | "escaped":
            return _tag_extent(text, found, absent)
        case "comment":
            closing = {"<!--": "-->", "<![CDATA[": "]]>"}.get(found[0], ">")
            return _closing(text, end, closing, absent) or end, "block"
        case "address":
            return found.start() + len(_address(found[0])), "other"
        case "entity":
            return end, None if _readable(found[0]) else "other"
        case "part":
            return end, "empty"
    return end, "other"


def _tag_extent(text: str, match: re.Match[str], absent: set[str]) -> tuple[int, Kind | None]:
    """The extent of a tag; with some names, of the whole element."""
    escaped = match.lastgroup == "escaped"
    shut, name, rest = match.group("shut_", "name_", "rest_") if escaped else match.group("shut", "name", "rest")
    name, end = name.lower(), match.end()
    block: Kind | None = "block" if name in _BLOCKS else None
    if not _ATTRIBUTES.match(rest):  # in "a <b and c> d" only <b is an item
        if escaped:
            return match.end("less"), "other"
        return match.end("name"), None if name.isdigit() else "empty"
    if shut:
        return end, block or "close"
    if rest.rstrip().endswith("/") or name in ("img", "input", "wbr"):
        return end, block or "empty"
    if name not in _VERBATIM:
        return end, block or "open"
    kind = _VERBATIM[name]
    if last := _closing(text, end, f"</{name}>", absent):
        return last, kind
    return end, "block" if kind == "block" else "open"


def _closing(text: str, place: int, closing: str, absent: set[str]) -> int | None:
    """The end of the closing tag of an element or comment; None if it does not follow."""
    if closing not in absent:
        if found := re.compile(re.escape(closing), re.IGNORECASE | re.ASCII).search(text, place):
            return found.end()
        absent.add(closing)
    return None


def _readable(entity: str) -> bool:
    """Whether a model reads the character of an entity; markup and control characters stay encoded."""
    found = html.unescape(entity)
    return found == entity or all(
        each in _ESCAPED or each.isalnum() or (not each.isascii() and each not in "\x85\u2028\u2029") for each in found
    )


def _address(found: str) -> str:
    """An address without the punctuation of its sentence: "(see https://a.org/A_(b))." ends with two of its own."""
    found = found.rstrip(_TRAILING)
    for _ in range(3):
        if found.endswith((")", "]")) and found.count(found[-1]) > found.count("(" if found[-1] == ")" else "["):
            found = found[:-1].rstrip(_TRAILING)
    return found


def unknown_items(text: str, unknown: Sequence[Span]) -> list[Item]:
    """The spans that a tokenizer does not know, as items; a letter together with its word."""
    found: list[Item] = []
    for start, end in unknown:
        kind: Kind = "other" if any(map(str.isalpha, text[start:end])) else "sign"
        if kind == "other":
            while start > 0 and text[start - 1].isalnum():
                start -= 1
            while end < len(text) and text[end].isalnum():
                end += 1
        if found and start <= found[-1].end:
            kind = kind if found[-1].kind == "sign" else "other"
            start, end = found[-1].start, max(end, found.pop().end)
        found.append(Item(start, end, text[start:end], kind))
    return found


def without_overlap(items: Sequence[Item], more: Sequence[Item]) -> list[Item]:
    """`items`, and those of `more` that do not overlap them, in order."""
    starts = [item.start for item in items]
    free = []
    for item in more:
        next_one = bisect_left(starts, item.end)  # the first item that starts after it
        if next_one == 0 or items[next_one - 1].end <= item.start:
            free.append(item)
    return sorted([*items, *free])


def mask_items(text: str, items: Sequence[Item]) -> str:
    """A text of the same length in which no sentence ends inside an item, and tags look like brackets."""
    parts, done = [], 0
    for item in items:
        if item.kind in TAGS:
            hidden = (")" if item.kind == "close" else "(") * len(item.text)
        else:
            hidden = re.sub(r"\W", "x", item.text)
        parts += [text[done : item.start], hidden]
        done = item.end
    return "".join((*parts, text[done:]))


def spans_between(text: str, items: Sequence[Item]) -> list[Span]:
    edges = [0, *(edge for item in items for edge in (item.start, item.end)), len(text)]
    return _stripped(text, zip(edges[::2], edges[1::2], strict=True))


def pieces_of(text: str, items: Sequence[Item], split: bool) -> list[Span]:
    """The sentences (or the lines) of a text, without blocks, and without tags at their edges."""
    masked = mask_items(text, items)
    found: list[Span] = []
    start = 0
    for block in (*(item for item in items if item.kind == "block"), Item(len(text), len(text), "", "block")):
        part = masked[start : block.start]
        found += [(start + first, start + last) for first, last in (sentence_spans if split else line_spans)(part)]
        start = block.end
    starts = {item.start: item.end for item in items if item.kind in TAGS}
    ends = {item.end: item.start for item in items if item.kind in TAGS}
    inner: list[Span] = []
    for start, end in found:
        while start in starts or (start < end and text[start].isspace()):
            start = starts.get(start, start + 1)
        while start < end and (end in ends or text[end - 1].isspace()):
            end = ends.get(end, end - 1)
        if start < end:
            inner.append((start, end))
    return inner


# Stand-ins

MOST_STAND_INS = 8
"""A sentence with more items is translated in the parts between them."""

_TAG_START = "<(?=[A-Za-z/!?])"
_WHOLE_WORD = re.compile(r"(?<!\w)(?<!\d[.,])\w++(?![.,]\d)")


class StandIn(NamedTuple):
    """A word that replaces an item; `left` and `right`: whether a space was added there."""

    word: str
    item: Item
    left: bool
    right: bool


@dataclass(frozen=True)
class Protected:
    """A sentence with stand-ins, as a model reads it."""

    text: str
    stand_ins: tuple[StandIn, ...] = ()
    escapes: tuple[tuple[str, str], ...] = ()
    """Characters to write as HTML entities, as the source does; & is the first."""
    signs: tuple[tuple[float, str], ...] = ()
    """Signs that were left out, each with the share of words before it."""
    tags: bool = False
    """Whether tags are ordinary text (without `keep`); otherwise a < of the model never starts a tag."""

    @property
    def plain(self) -> bool:
        return not (self.stand_ins or self.escapes or self.signs or "<" in self.text)

    def restore(self, written: str) -> str | None:
        """The translation with the items; None unless each stand-in occurs once, and tags are in their order."""
        if self.plain and "<" not in written:
            return written
        found: dict[str, list[Span]] = {}
        for match in _WHOLE_WORD.finditer(written):
            found.setdefault(match[0], []).append(match.span())
        if any(len(found.get(stand_in.word, ())) != 1 for stand_in in self.stand_ins):
            return None
        tags = [found[stand_in.word][0] for stand_in in self.stand_ins if stand_in.item.kind in TAGS]
        if tags != sorted(tags):
            return None
        edits: list[tuple[int, int, str, bool]] = []
        for stand_in in self.stand_ins:
            start, end = found[stand_in.word][0]
            start -= stand_in.left and written[:start].endswith(" ")
            end += stand_in.right and written[end:].startswith(" ")
            edits.append((start, end, stand_in.item.text, True))
        ends = [0, *(end for _, end in word_spans(written))]
        for share, sign in self.signs:
            end = ends[round(share * (len(ends) - 1))]
            edits.append((end, end, f" {sign}" if end else f"{sign} ", False))
        result, done = "", 0
        kept: set[int] = set()  # positions in the result that belong to items
        for start, end, text, is_item in sorted(edits, key=lambda edit: edit[0]):
            result += self._escape(written[done:start]) + text
            kept.update(range(len(result) - len(text), len(result)) if is_item else ())
            done = max(done, end)
        result += self._escape(written[done:])
        if self.tags:
            return result
        open_tag = any(_is_incomplete(stand_in.item) for stand_in in self.stand_ins)  # a further > would end it
        pattern = rf"{_TAG_START}|>" if open_tag else _TAG_START
        new = {"<": "< ", ">": ""}
        return re.sub(pattern, lambda match: match[0] if match.start() in kept else new[match[0]], result)

    def lost_numbers(self, written: str) -> list[str]:
        """The numbers of the sentence that are not in the translation."""
        words = {stand_in.word for stand_in in self.stand_ins}

        def rest(text: str) -> str:
            return _WHOLE_WORD.sub(lambda match: " " if match[0] in words else match[0], text) if words else text

        return missing_numbers(rest(self.text), rest(written))

    def _escape(self, text: str) -> str:
        for character, entity in self.escapes:
            text = text.replace(character, entity)
        return text


def protect(sentence: str, items: Sequence[Item], level: int, writable: Callable[[str], bool]) -> Protected | None:
    """The sentence with stand-ins of the first or second choice (`level` 0 or 1), without signs.

    None if there are too many items, or the vocabulary (`writable`) has no stand-ins.
    """
    items = _merged(items)
    if sum(item.kind != "sign" for item in items) > MOST_STAND_INS:
        return None
    others = (f"{letter}{n}" for n in range(1, 100) for letter in "XYZQ")
    if level:
        others = (str(111 * n % 899 + 101) for n in range(1, 800))
    numbers = (str(n) for n in chain(range(3, 10), range(12, 100)))
    parts: list[str] = []
    stand_ins: list[StandIn] = []
    signs: list[tuple[int, str]] = []
    outside, done = "", 0
    for item in items:
        if item.kind == "sign":
            before = sentence[done : item.start]
            parts.append(_unescape(before if sentence[item.end : item.end + 1].isalnum() else before.rstrip()))
            signs.append((len(word_spans("".join(parts))), item.text))
            outside, done = f"{outside}{before} {item.text}", item.end
            continue
        words = numbers if item.kind == "number" else others
        word = next((word for word in words if word not in sentence), None)
        if word is None or not writable(word):
            return None
        left, right = sentence[item.start - 1 : item.start].isalnum(), sentence[item.end : item.end + 1].isalnum()
        stand_ins.append(StandIn(word, item, left, right))
        parts += [_unescape(sentence[done : item.start]), " " * left, word, " " * right]
        outside, done = f"{outside}{sentence[done : item.start]} ", item.end
    outside += sentence[done:]
    escapes = {html.unescape(entity): f"{entity.rstrip(';')};" for entity in reversed(_ENTITY.findall(outside))}
    text = "".join((*parts, _unescape(sentence[done:]))).strip()
    total = max(len(word_spans(text)), 1)
    return Protected(
        text,
        tuple(stand_ins),
        tuple((character, escapes[character]) for character in _ESCAPED if character in escapes),
        tuple((count / total, sign) for count, sign in signs),
        re.search(_TAG_START, outside) is not None,
    )


def _merged(items: Sequence[Item]) -> list[Item]:
    found: list[Item] = []
    for item in items:
        if found and found[-1].end == item.start:
            kind: Kind = "empty" if found[-1].kind in TAGS or item.kind in TAGS else "other"
            found[-1] = Item(found[-1].start, item.end, found[-1].text + item.text, kind)
        else:
            found.append(item)
    return found


def _unescape(text: str) -> str:
    return _ENTITY.sub(lambda match: html.unescape(match[0]) if _readable(match[0]) else match[0], text)


# Numbers

_NUMBER = re.compile(r"\d{1,3}(?:[ \u00a0\u202f]\d{3})+(?!\d)|\d+(?:[.,'’\u00a0\u202f٫٬]\d+)*")
_JOINED = re.compile(r"[.,:'’\u00a0\u202f]*+\w++")
"""What continues a number: 15:30, 3.5er."""


def missing_numbers(source: str, target: str) -> list[str]:
    """The numbers of one text that are not in the other, however each language writes them."""
    available = [_readings(match[0]) for match in _NUMBER.finditer(target)]
    lost = []
    for match in _NUMBER.finditer(source):
        wanted = _readings(match[0])
        place = next((place for place, known in enumerate(available) if known & wanted), None)
        if place is None:
            lost.append(match[0])
        else:
            del available[place]
    return lost


def _readings(number: str) -> set[str]:
    """The values of a number, with a decimal point: 3.500 is 3500 or 3.5. A date or a version is its digit groups."""
    ascii_digits = "".join(str(unicodedata.digit(each)) if each.isdigit() else each for each in number)
    groups = re.split(r"\D", ascii_digits)
    separators = re.sub(r"\d", "", number)
    if len(groups) == 1:
        return {groups[0]}
    thousands = [len(group) == 3 for group in groups[1:]]
    if len(set(separators)) == 1:
        found = {"".join(groups)} if all(thousands) and len(groups[0]) <= 3 else set()
        if len(groups) == 2:
            found.add(".".join(groups))
        return found or {"/".join(groups)}
    if len(set(separators[:-1])) == 1 and all(thousands[:-1]):
        return {"".join(groups[:-1]) + "." + groups[-1]}
    return {"/".join(groups)}


def number_items(text: str, lost: Sequence[str]) -> list[Item]:
    """The lost numbers in a text as items, each with the characters that it is joined to: H2O, 15:30."""
    wanted = Counter(lost)
    joined: list[tuple[Span, Counter[str]]] = []
    end = 0
    for match in _NUMBER.finditer(text):
        if not joined or match.start() >= end:
            start, done, end = match.start(), end, match.end()
            while start > done and (text[start - 1].isalnum() or text[start - 1] == "_"):
                start -= 1
            while more := _JOINED.match(text, end):
                end = more.end()
            joined.append(((start, end), Counter()))
        joined[-1][1][match[0]] += 1
    found: list[Item] = []
    for (start, end), inside in joined:
        if hits := inside & wanted:
            wanted -= hits
            found.append(Item(start, end, text[start:end], "number"))
    return found
