"""What a page in a file can be asked, view by view: first what the view asks when it is opened.

A view joins with a line in `HELD`: what it asks follows from the run and from the state in the page's address. What
several ask is kept once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import product
from typing import Any, TypeAlias, TypeVar

from pydantic import BaseModel
from torch import Tensor

from regard.look.study import AttentionPlace, Run, Study
from regard.look.walk import Place, walks
from regard.serving.look_service import LookService
from regard.serving.look_shapes import RunNamed, StepsAsked, TensorNamed, TreeAsked, WalkAsked

W = TypeVar("W", bound=BaseModel)


@dataclass(frozen=True)
class Held:
    """A request, and its answer: the same as the server's."""

    path: str
    asked: BaseModel
    answer: Callable[[], dict[str, Any] | Tensor]
    first: bool = True
    """Whether the view asks it when it is opened, so that it cannot be shown without."""


@dataclass(frozen=True)
class Opened:
    """A page that is opened: for one run, with a state as its address holds it."""

    service: LookService
    run: Run
    state: Mapping[str, str]

    @property
    def study(self) -> Study:
        return self.service.study

    def held(self, path: str, asked: W, answer: Callable[[W], dict[str, Any]], first: bool = True) -> Held:
        """A request that the service answers."""
        return Held(path, asked, lambda: answer(asked), first)

    def tensor(self, name: str, first: bool = True) -> Held:
        """A request for a tensor of the run."""
        asked = TensorNamed(run=self.run.key, name=name)
        return Held("tensor", asked, lambda: self.study.tensor(self.run.key, name), first)

    def place(self, usual: int) -> tuple[AttentionPlace, int, int]:
        """The attention, layer and head that the state names; `usual` is the number of the attention if it does not."""
        places = self.study.attentions
        named = [each for each in places if f"{each.stack}.{each.kind}" == self.state.get("at")]
        place = named[0] if named else places[usual]
        layer, head = (int(self.state.get(name, "0")) for name in ("layer", "head"))
        return place, min(layer, place.layers - 1), min(head, place.heads - 1)


def _heads(opened: Opened) -> Iterator[Held]:
    yield opened.held("output", RunNamed(run=opened.run.key), opened.service.output)
    for number, (place, layer) in enumerate(_attentions(opened, -1)):
        yield opened.tensor(f"{place.stack}.{layer}.{place.kind}.weights", number == 0)


def _walk(opened: Opened) -> Iterator[Held]:
    @lru_cache(maxsize=1)  # the heads of a layer come one after the other, and one pass is enough for them
    def paths(stack: str, layer: int, kind: str) -> list[dict[str, Any]]:
        heads = range(opened.study.loaded.settings.attention.heads)
        found = walks(opened.study, opened.run, Place(stack, layer, kind), heads)
        return [{"steps": [asdict(step) for step in steps]} for steps in found]

    def path(asked: WalkAsked) -> dict[str, Any]:
        return paths(asked.stack, asked.layer, asked.kind)[asked.head]

    chosen = opened.place(0)
    for place, layer in _attentions(opened, 0):
        for head in _from(chosen[2], place.heads):
            asked = WalkAsked(run=opened.run.key, stack=place.stack, layer=layer, kind=place.kind, head=head)
            yield opened.held("walk", asked, path, (place, layer, head) == chosen)


def _decode(opened: Opened) -> Iterator[Held]:
    yield opened.held("steps", StepsAsked(run=opened.run.key), opened.service.steps)
    yield opened.held("tree", TreeAsked(run=opened.run.key), opened.service.tree)


Asking: TypeAlias = Callable[[Opened], Iterable[Held]]
HELD: dict[str, Asking] = {"heads": _heads, "walk": _walk, "decode": _decode}
"""By the name of a view, what it asks, the most important first. Answers are only worked out while there is room."""


def _attentions(opened: Opened, usual: int) -> Iterator[tuple[AttentionPlace, int]]:
    """Every attention of the model, beginning with the one that is opened, then with others of its kind."""
    chosen, first, _ = opened.place(usual)
    others = [each for each in opened.study.attentions if each != chosen]
    yield from product([chosen], _from(first, chosen.layers))
    for place in others:
        yield from product([place], range(place.layers))


def _from(first: int, count: int) -> list[int]:
    return [first, *(number for number in range(count) if number != first)]
