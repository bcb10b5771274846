"""What a translation must not change: placeholders, addresses, tags of HTML and XML.

`find` tells where they are. What is done with them is told in `regard.text.placing`.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from regard.text.numbers import number_spans
from regard.text.sentences import Span

Kind: TypeAlias = Literal["open", "close", "empty", "block", "placeholder", "number", "address", "figure"]
"""open, close and empty: tags inside a sentence; block: what sentences do not cross; number: the placeholder of
one; figure: a number that a model does not write."""

_BLOCKS = (
    "address article aside audio blockquote body br canvas caption center col colgroup dd details dialog div dl dt "
    "fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 head header hr html iframe legend li link main meta nav "
    "noscript object ol optgroup option p section select source summary svg table tbody td template textarea tfoot th "
    "thead title tr track ul video"
)
BLOCKS = frozenset(_BLOCKS.split())
"""Tags that end a sentence, as the end of a line does."""

_VERBATIM: dict[str, Kind] = {"script": "block", "style": "block", "pre": "block", "code": "placeholder"}
"""Tags whose content is no text to translate."""

_DOMAIN = r"com|org|net|edu|gov|info|io|eu|de|at|ch|uk|fr|nl|it|es|pl"
_ITEM = re.compile(
    rf"""
    (?P<comment><!--|<!\[CDATA\[|<[!?](?=[A-Za-z]))
    | <(?P<shut>/?)(?P<name>[A-Za-z][\w:.-]*|\d+)(?P<rest>(?:[\s/][^<>]*)?)>
    | (?P<address>
        (?<![A-Za-z])(?:https?|ftp|file)://[^\s<>"“”„«»{{}}|\\^`]+
        | (?<![\w.])www\.[^\s<>"“”„«»{{}}|\\^`]+
        | (?<![\w.+%-])[\w.+%-]++@[\w-]+(?:\.[\w-]+)+
        | (?<![\w.@-])(?:[\w-]+\.)+(?:{_DOMAIN})(?![\w-])(?:/[^\s<>"“”„«»]*)?
      )
    | (?P<number>(?<![\d%])%(?:\d\$)?[-+0\#]{{0,3}}(?:\d{{1,3}}|\*)?(?:\.\d{{1,2}})?[hlz]{{0,2}}[diufeEgG](?![A-Za-z]))
    | (?P<placeholder>
        \$?\{{\{{[^{{}}\n]{{1,80}}\}}\}}
        | [$%\#]?\{{[\w.:!+\[\]-]{{0,60}}\}}
        | %\([\w.-]{{1,60}}\)[-+0\#]{{0,3}}\d{{0,3}}(?:\.\d{{1,2}})?[a-zA-Z]
        | (?<![\d%])%(?:\d\$)?-?\d{{0,3}}[sScCxXop@](?![A-Za-z])
        | (?<![\d%])(?<!\d[ \u00a0\u202f])%L?\d{{1,2}}(?!\d)
        | (?<![\w$])\$[a-z_]\w*
        | (?<!\w)__[A-Za-z]\w*__(?!\w)
      )
    """,
    re.VERBOSE,
)
_ATTRIBUTES = re.compile(r"\s*+/?\s*+\Z|\s[^=]*=")
_TRAILING = ".,;:!?…'’"
_JOINED = re.compile(r"[.,:'’\u00a0\u202f]*+\w++")
"""What goes on behind a number, or a part of it: 15:30, 3.5er."""

ESCAPES = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"))
_ENTITY = re.compile(r"&(?:[A-Za-z][A-Za-z0-9]{1,30}|#\d{1,7}|#[xX][0-9A-Fa-f]{1,6});")


@dataclass(frozen=True)
class Item:
    """Something that stays as it is."""

    start: int
    end: int
    text: str
    kind: Kind
    name: str = ""
    """Of a tag."""


def find(text: str) -> list[Item]:
    """What stays as it is, in its order; none of them overlap."""
    return list(_find(text))


def _find(text: str) -> Iterator[Item]:
    place = 0
    absent: set[str] = set()  # ends that do not come any more: looked for once, or a hostile text would take for ever
    while match := _ITEM.search(text, place):
        place = match.end()
        item = _item(text, match, absent)
        if item is not None:
            place = item.end
            yield item


def _item(text: str, match: re.Match[str], absent: set[str]) -> Item | None:
    start, end = match.span()
    if opening := match["comment"]:
        closing = {"<!--": "-->", "<![CDATA[": "]]>"}.get(opening, ">")
        return _until(text, start, end, closing, "block", absent)
    if match["name"]:
        return _tag(text, match, absent)
    for kind in ("number", "placeholder"):
        if match[kind]:
            return Item(start, end, match[0], "number" if kind == "number" else "placeholder")
    found = match[0].rstrip(_TRAILING)
    for _ in range(3):  # "(see https://…/A_(b))." ends with a bracket of its own, then one of the sentence
        if found.endswith((")", "]")) and found.count(found[-1]) > found.count("(" if found[-1] == ")" else "["):
            found = found[:-1].rstrip(_TRAILING)
    return Item(start, start + len(found), found, "address")


def _tag(text: str, match: re.Match[str], absent: set[str]) -> Item | None:
    start, end = match.span()
    name, rest = match["name"].lower(), match["rest"]
    if not _ATTRIBUTES.match(rest):  # "a <b and c> d"
        return None
    empty = rest.rstrip().endswith("/") and not match["shut"]
    if name in _VERBATIM and not match["shut"] and not empty:
        return _until(text, start, end, f"</{name}>", _VERBATIM[name], absent)
    kind: Kind = "block" if name in BLOCKS else "close" if match["shut"] else "empty" if empty else "open"
    if name in ("img", "input", "wbr"):
        kind = "empty"
    return Item(start, end, match[0], kind, name)


def _until(text: str, start: int, end: int, closing: str, kind: Kind, absent: set[str]) -> Item | None:
    """From a place to the end that belongs to it; nothing where that does not come."""
    if closing in absent:
        return None
    found = re.compile(re.escape(closing), re.IGNORECASE | re.ASCII).search(text, end)
    if found is None:
        absent.add(closing)
        return None
    return Item(start, found.end(), text[start : found.end()], kind)


def strange(text: str, unknown: Sequence[Span], kept: Sequence[Item] = ()) -> list[Item]:
    """What a model cannot read, as items: a letter with its whole word, anything else by itself; none of what is kept.

    A word of another script is written as it is; a sign, such as an emoji, is put back where the words beside it went.
    """
    found: list[Item] = []
    for first, last in unknown:
        start, end = first, last
        if any(map(str.isalpha, text[first:last])):
            while start > 0 and text[start - 1].isalnum():
                start -= 1
            while end < len(text) and text[end].isalnum():
                end += 1
        if found and start <= found[-1].end:
            start, end = found[-1].start, max(end, found[-1].end)
            found.pop()
        kind: Kind = "placeholder" if any(map(str.isalpha, text[start:end])) else "empty"
        found.append(Item(start, end, text[start:end], kind))
    return _apart(found, kept)


def figures(text: str, lost: Sequence[str], kept: Sequence[Item] = ()) -> list[Item]:
    """Numbers of a text as items, with what they are joined to: H2O, 15:30; none of what is kept anyway."""
    wanted = Counter(lost)
    joined: list[tuple[Span, list[str]]] = []
    end = 0
    for first, last in number_spans(text):
        if not joined or first >= end:
            start, end = _joined(text, end, first, last)
            joined.append(((start, end), []))
        joined[-1][1].append(text[first:last])
    found: list[Item] = []
    for (start, end), inside in joined:
        hits = Counter(inside) & wanted
        if hits:
            wanted -= hits
            found.append(Item(start, end, text[start:end], "figure"))
    return _apart(found, kept)


def _apart(found: Sequence[Item], kept: Sequence[Item]) -> list[Item]:
    """Those that overlap none of the others, which are in their order."""
    before = [bisect_left(kept, item.end, key=lambda other: other.start) - 1 for item in found]
    return [item for item, other in zip(found, before, strict=True) if other < 0 or kept[other].end <= item.start]


def _joined(text: str, done: int, first: int, last: int) -> Span:
    """A number with the letters before it, and with what it is joined to behind."""
    while first > done and (text[first - 1].isalnum() or text[first - 1] == "_"):
        first -= 1
    while more := _JOINED.match(text, last):
        last = more.end()
    return first, last


# ------------------------------------------------------------------------------------------------------------- entities


def unescape(text: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The text with the characters that entities of HTML stand for, and which of them must be written so again."""
    if "&" not in text or not _ENTITY.search(text):
        return text, ()
    return _ENTITY.sub(lambda match: html.unescape(match[0]), text), tuple(
        (character, entity) for character, entity in ESCAPES if entity in text
    )


def escape(text: str, escapes: tuple[tuple[str, str], ...]) -> str:
    """`&`, `<` and `>` as entities, those that the source had so."""
    for character, entity in escapes:
        text = text.replace(character, entity)
    return text
