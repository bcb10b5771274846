"""How what must stay as it is gets past a model that knows nothing of it, and back into what it wrote.

Two ways. A *stand-in* takes the place of a placeholder or an address: a short word that models copy, such as X1; that
it was copied, once and whole, is checked. A *point* is what was taken out of the text, as tags are: it is put back
where the words beside it went, as the alignment of words says (`regard.text.points`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from regard.text.numbers import missing
from regard.text.points import Aligned, Point, places
from regard.text.protect import Item, escape, unescape
from regard.text.sentences import Span

_PAIRED = ("open", "close")
_REPLACED = ("placeholder", "number", "address", "figure")
_CLOSING = frozenset(".,;:!?…)]}")

Writable = Callable[[str], bool]
"""Whether a model can read and write a word."""


@dataclass(frozen=True)
class Shown:
    """A sentence as a model is to read it."""

    text: str
    points: tuple[Point, ...] = ()
    stands: tuple[tuple[str, str], ...] = ()
    """Stand-ins, and what they stand for."""
    escapes: tuple[tuple[str, str], ...] = ()
    """Characters that are to be written as entities of HTML."""

    @property
    def plain(self) -> bool:
        """Whether the sentence is shown as it is, and its translation as it was written."""
        return not (self.points or self.stands or self.escapes)


# ------------------------------------------------------------------------------------------------------------ stand-ins


def _letters() -> Iterator[str]:
    return (f"{letter}{number}" for number in range(1, 100) for letter in "XYZQ")


def _figures() -> Iterator[str]:
    return (str(111 * number % 899 + 101) for number in range(1, 800))


def _small() -> Iterator[str]:
    return (str(number) for number in chain(range(3, 10), range(12, 100)))


_FAMILIES = {"words": (_letters, _figures), "number": (_figures, _letters), "figure": (_small, _small)}
"""Stand-ins by what they are for, those that are tried first first. Models copy both as they copy names and figures;
and small numbers where they do not copy others."""

LEVELS = 3
"""Ways to show a sentence: two families of stand-ins, then none."""


def show(sentence: str, items: Sequence[Item], level: int, writable: Writable) -> Shown:
    """A sentence without its tags, its placeholders and addresses replaced by stand-ins of a level, or taken out."""
    making, words = _Making(), _StandIns(sentence, level, writable)
    done = 0
    for item in _merged(items):
        making.add(sentence[done : item.start])
        done = item.end
        word = words.next_for(item)
        if word is None:
            beside = (sentence[max(item.start - 1, 0) : item.start], sentence[item.end : item.end + 1])
            making.points.append(Point(making.length, item.text, item.kind, item.name, beside))
        else:
            making.stands[word] = item.text
            making.put(word)
    making.add(sentence[done:])
    making.strip()
    return Shown(
        "".join(making.parts), tuple(making.points), tuple(making.stands.items()), tuple(making.escapes.items())
    )


def _merged(items: Sequence[Item]) -> list[Item]:
    """What touches has one stand-in: two of them side by side would make another word."""
    groups: list[list[Item]] = []
    for item in items:
        last = groups[-1][-1] if groups else None
        if last is not None and last.end == item.start and last.kind in _REPLACED and item.kind in _REPLACED:
            groups[-1].append(item)
        else:
            groups.append([item])
    return [
        replace(group[0], end=group[-1].end, text="".join(item.text for item in group)) if len(group) > 1 else group[0]
        for group in groups
    ]


class _Making:
    def __init__(self) -> None:
        self.parts: list[str] = []
        self.length = 0
        self.points: list[Point] = []
        self.stands: dict[str, str] = {}
        self.escapes: dict[str, str] = {}

    def add(self, text: str) -> None:
        """Text of the sentence; what was taken out from between two spaces leaves one."""
        text, found = unescape(text)
        self.escapes.update(found)
        last = self.parts[-1][-1] if self.parts else ""
        behind_point = bool(self.points) and self.points[-1].place == self.length
        if behind_point and text[:1].isspace() and not last.strip():
            text = text[1:]
        elif behind_point and text[:1] in _CLOSING and last.isspace() and self.points[-1].kind not in _PAIRED:
            self.strip()
        self.put(text)

    def put(self, text: str) -> None:
        if text:
            self.parts.append(text)
            self.length += len(text)

    def strip(self) -> None:
        """No space is left at the end."""
        while self.points and self.parts and self.parts[-1][-1].isspace():
            last = self.parts.pop()
            self.length -= len(last)
            self.put(last.rstrip())
        moved = len(self.points)
        while moved and self.points[moved - 1].place > self.length:
            moved -= 1
        self.points[moved:] = [replace(point, place=self.length) for point in self.points[moved:]]


class _StandIns:
    """Words of a level that are not in a sentence, each given once."""

    def __init__(self, sentence: str, level: int, writable: Writable) -> None:
        self.sentence, self.writable = sentence, writable
        self.families = {name: some[level]() for name, some in _FAMILIES.items() if level < len(some)}
        self.given: set[str] = set()

    def next_for(self, item: Item) -> str | None:
        """A word for an item; None where there is none, or none that can be written."""
        if item.kind not in _REPLACED:
            return None
        for word in self.families.get(item.kind if item.kind in _FAMILIES else "words", ()):
            if word not in self.given and word not in self.sentence:
                self.given.add(word)
                return word if self.writable(word) else None
        return None


def copied(shown: Shown, written: str) -> bool:
    """Whether every stand-in was written, once and as a word of its own."""
    found = Counter(match[0] for match in _WHOLE.finditer(written)) if shown.stands else {}
    return all(found.get(word) == 1 for word, _ in shown.stands)


def lost_numbers(shown: Shown, written: str) -> list[str]:
    """The numbers of the sentence that were not written, stand-ins aside."""
    return missing(_without(shown, shown.text), _without(shown, written))


_WHOLE = re.compile(r"(?<!\w)(?<!\d[.,])\w++(?![.,]\d)")
"""Words that are no parts of others, nor of numbers."""


def _without(shown: Shown, text: str) -> str:
    words = dict(shown.stands)
    return _WHOLE.sub(lambda match: " " if match[0] in words else match[0], text) if words else text


# ----------------------------------------------------------------------------------------------------------------- back


def put_back(
    shown: Shown, written: str, sources: Sequence[Span] = (), targets: Sequence[Span] = (), pairs: Sequence[Span] = ()
) -> str:
    """What was written, with what was taken out or replaced.

    `sources` and `targets` are the words of `shown.text` and of `written`, `pairs` which of them belong together; they
    are needed where there are points.
    """
    edits: list[tuple[int, int, str | Point]] = []
    stands = dict(shown.stands)
    for match in _WHOLE.finditer(written) if stands else ():
        if match[0] in stands:
            edits.append((*match.span(), stands.pop(match[0])))
    found = places(shown.points, Aligned(shown.text, written, sources, targets, pairs))
    edits += [(place, place, point) for point, place in zip(shown.points, found, strict=True)]
    edits.sort(key=lambda edit: edit[:2])
    result, done = "", 0
    for place, (start, end, new) in enumerate(edits):
        result += escape(written[done:start], shown.escapes)
        if isinstance(new, str):
            result += new
        else:
            result += _spaced(new, result[-1:], _right_of(new, edits[place + 1 : place + 2], written, start))
        done = max(done, end)
    return result + escape(written[done:], shown.escapes)


def _right_of(point: Point, following: Sequence[tuple[int, int, str | Point]], written: str, place: int) -> str:
    """The character that will stand behind a point; that of a word for a tag that opens before one."""
    if not following or following[0][0] != place:
        return written[place : place + 1]
    new = following[0][2]
    if isinstance(new, str):
        return new[:1]
    return "a" if new.kind == "open" and point.beside[1] != "<" else new.text[:1]


def _spaced(point: Point, left: str, right: str) -> str:
    """What was taken out, with the spaces that keep it apart from its new neighbours; a tag touches its word."""
    if point.kind in _PAIRED:
        return point.text
    before, after = point.beside
    stood_apart = not before.strip()  # behind a space, or first
    joined = left in "([{<„“«" or (left.isalnum() and before.isalnum()) or not (stood_apart or left.isalnum())
    space_before = "" if not left.strip() or joined else " "
    space_after = " " if right.isalnum() and not after.isalnum() else ""
    return space_before + point.text + space_after
