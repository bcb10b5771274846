"""How what must stay as it is gets past a model that knows nothing of it, and back into what it wrote.

Two ways. A *stand-in* takes the place of a placeholder or an address: a short word that models copy, such as X1; that
it was copied, once and whole, is checked. A *point* is what was taken out of the text, as tags are: it is put back
where the words beside it went, as the alignment of words says. Points stay in their order, so that what was nested
well still is.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from regard.text.numbers import missing
from regard.text.protect import Item, Kind, escape, unescape
from regard.text.sentences import Span

_PAIRED = ("open", "close")
_REPLACED = ("placeholder", "number", "address")
_CLOSING = frozenset(".,;:!?…)]}")

Writable = Callable[[str], bool]
"""Whether a model can read and write a word."""


@dataclass(frozen=True)
class Point:
    """Something that was taken out of a text."""

    place: int
    """In the text that is left, before this character."""
    text: str
    kind: Kind
    name: str
    beside: tuple[str, str]
    """The characters before it and behind it; nothing at the edge of the text."""


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


_FAMILIES = {"words": (_letters, _figures), "number": (_figures, _letters)}
"""Stand-ins by what they are for, those that are tried first first. Models copy both as they copy names and figures."""

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
            making.points.append(Point(len(making.text), item.text, item.kind, item.name, beside))
        else:
            making.stands[word] = item.text
            making.text += word
    making.add(sentence[done:])
    making.strip()
    return Shown(making.text, tuple(making.points), tuple(making.stands.items()), tuple(making.escapes.items()))


def _merged(items: Sequence[Item]) -> list[Item]:
    """What touches has one stand-in: two of them side by side would make another word."""
    found: list[Item] = []
    for item in items:
        last = found[-1] if found else None
        if last is not None and last.end == item.start and last.kind in _REPLACED and item.kind in _REPLACED:
            found[-1] = Item(last.start, item.end, last.text + item.text, last.kind)
        else:
            found.append(item)
    return found


class _Making:
    def __init__(self) -> None:
        self.text = ""
        self.points: list[Point] = []
        self.stands: dict[str, str] = {}
        self.escapes: dict[str, str] = {}

    def add(self, text: str) -> None:
        """Text of the sentence; what was taken out from between two spaces leaves one."""
        text, found = unescape(text)
        self.escapes.update(found)
        behind_point = bool(self.points) and self.points[-1].place == len(self.text)
        if behind_point and text[:1].isspace() and not self.text[-1:].strip():
            text = text[1:]
        elif behind_point and text[:1] in _CLOSING and self.text[-1:].isspace() and self.points[-1].kind not in _PAIRED:
            self.strip()
        self.text += text

    def strip(self) -> None:
        """No space is left at the end."""
        if self.points and self.text != self.text.rstrip():
            self.text = self.text.rstrip()
            self.points = [replace(point, place=min(point.place, len(self.text))) for point in self.points]


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
        for word in self.families.get("number" if item.kind == "number" else "words", ()):
            if word not in self.given and word not in self.sentence:
                self.given.add(word)
                return word if self.writable(word) else None
        return None


def copied(shown: Shown, written: str) -> bool:
    """Whether every stand-in was written, once and as a word of its own."""
    return all(len(_places(word, written)) == 1 for word, _ in shown.stands)


def lost_numbers(shown: Shown, written: str) -> list[str]:
    """The numbers of the sentence that were not written, stand-ins aside."""
    return missing(_without(shown, shown.text), _without(shown, written))


def _alone(word: str) -> re.Pattern[str]:
    """The word where it is no part of another one, nor of a number."""
    return re.compile(rf"(?<!\w)(?<!\d[.,]){re.escape(word)}(?!\w)(?![.,]\d)")


def _places(word: str, text: str) -> list[int]:
    return [match.start() for match in _alone(word).finditer(text)]


def _without(shown: Shown, text: str) -> str:
    for word, _ in shown.stands:
        text = _alone(word).sub(" ", text)
    return text


# ----------------------------------------------------------------------------------------------------------------- back


def put_back(
    shown: Shown, written: str, sources: Sequence[Span] = (), targets: Sequence[Span] = (), pairs: Sequence[Span] = ()
) -> str:
    """What was written, with what was taken out or replaced.

    `sources` and `targets` are the words of `shown.text` and of `written`, `pairs` which of them belong together; they
    are needed where there are points.
    """
    edits: list[tuple[int, int, str | Point]] = []
    for word, text in shown.stands:
        edits += [(place, place + len(word), text) for place in _places(word, written)[:1]]
    places = _point_places(shown, written, sources, targets, pairs)
    edits += [(place, place, point) for point, place in zip(shown.points, places, strict=True)]
    edits.sort(key=lambda edit: edit[:2])
    result, done = "", 0
    for place, (start, end, new) in enumerate(edits):
        result += escape(written[done:start], shown.escapes)
        if isinstance(new, str):
            result += new
        else:
            result += _spaced(new, result[-1:], _right_of(new, edits[place + 1 : place + 2], written, start))
        done = end
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


def _point_places(
    shown: Shown, written: str, sources: Sequence[Span], targets: Sequence[Span], pairs: Sequence[Span]
) -> list[int]:
    """Where each point goes: as near to where its words went as the order of the points allows."""
    if not shown.points:
        return []
    linked: dict[int, list[int]] = {}
    for source, target in pairs:
        linked.setdefault(source, []).append(target)
    starts, ends = [0, *(span[0] for span in targets)], [*(span[1] for span in targets), len(written)]
    wanted, options = [], []
    kinds = {"open": [*starts, len(written)], "close": [0, *ends]}
    word_ends = [end for _, end in sources]
    here = [bisect_left(word_ends, point.place + 1) for point in shown.points]
    for point, (first, last) in zip(shown.points, _covered(shown.points, here, len(sources)), strict=True):
        want = _inside_copy(shown.text, point, written, first, (sources, targets), linked)
        more = [] if want is None else [want]
        if want is None:
            want = _wanted(point, first, last, linked, targets, (len(sources), len(written)))
        wanted.append(want)
        options.append(sorted({*more, *kinds.get(point.kind, [*starts, *ends])}))
    return in_order(wanted, options)


def _inside_copy(
    text: str,
    point: Point,
    written: str,
    word: int,
    spans: tuple[Sequence[Span], Sequence[Span]],
    linked: dict[int, list[int]],
) -> int | None:
    """The same place inside a word that was copied, such as H2O with a tag around its 2."""
    sources, targets = spans
    at = next(
        (i for i in (word, word - 1) if 0 <= i < len(sources) and sources[i][0] < point.place < sources[i][1]), -1
    )
    for target in linked.get(at, ()):
        start, end = targets[target]
        if written[start:end] == text[slice(*sources[at])]:
            return start + point.place - sources[at][0]
    return None


def _covered(points: Sequence[Point], here: Sequence[int], words: int) -> list[Span]:
    """The words that each tag is about: those between it and the tag that belongs to it, or the edge; else none."""
    found = [(place, place) for place in here]
    waiting: dict[str, list[int]] = {}
    for index, point in enumerate(points):
        if point.kind == "open":
            waiting.setdefault(point.name, []).append(index)
            found[index] = (here[index], words)
        elif point.kind == "close":
            opened = waiting.get(point.name)
            first = opened.pop() if opened else None
            found[index] = (0 if first is None else here[first], here[index])
            if first is not None:
                found[first] = found[index]
    return found


def _wanted(
    point: Point, first: int, last: int, linked: dict[int, list[int]], targets: Sequence[Span], sizes: tuple[int, int]
) -> int:
    """Where a point would like to go."""
    words, length = sizes
    inside = [target for source in range(first, last) for target in linked.get(source, ())]
    if point.kind == "open" and inside:
        return targets[min(inside)][0]
    if point.kind == "close" and inside:
        return targets[max(inside)][1]
    if first >= words and point.kind != "open":
        return length
    if last == 0:
        return 0
    for source in range(first, words):
        if source in linked:
            return targets[min(linked[source])][0]
    for source in range(first - 1, -1, -1):
        if source in linked:
            return targets[max(linked[source])][1]
    return length


def in_order(wanted: Sequence[int], options: Sequence[Sequence[int]]) -> list[int]:
    """For each thing one of its places, none before that of the thing before it, nearest to the wanted ones in all.

    The options of each are in order, and the last of them all is the same.
    """
    costs: list[float] = [0.0]
    places: Sequence[int] = [0]
    came: list[list[int]] = []
    for want, next_places in zip(wanted, options, strict=True):
        next_costs, origins = [], []
        best, upto = 0, 0
        for place in next_places:
            while upto < len(places) and places[upto] <= place:
                best = upto if costs[upto] < costs[best] or upto == 0 else best
                upto += 1
            next_costs.append((costs[best] if upto else math.inf) + abs(place - want))
            origins.append(best)
        costs, places = next_costs, next_places
        came.append(origins)
    at = min(range(len(costs)), key=costs.__getitem__)
    chosen = []
    for origins, some in zip(reversed(came), reversed(options), strict=True):
        chosen.append(some[at])
        at = origins[at]
    return chosen[::-1]
