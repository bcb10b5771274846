"""What a page in a file can be asked, view by view: first what the view asks when it is opened.

A view joins with a line in `HELD`: what it asks follows from the run and from the state in the page's address. What
several ask is kept once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import product
from typing import Any, TypeAlias

from torch import Tensor

from regard.look.compare import compare, usual_changes
from regard.look.lens import outputs_of
from regard.look.run_rollout import rollouts_of
from regard.look.samples import sample_for
from regard.look.study import AttentionPlace, Run, Study
from regard.look.walk import Place, walks
from regard.serving.look_service import LookService
from regard.serving.look_shapes import (
    Asked,
    CompareAsked,
    LensAsked,
    NotesAsked,
    PatchesAsked,
    PositionsAsked,
    RunNamed,
    StepsAsked,
    TensorNamed,
    TreeAsked,
    VectorsAsked,
    WalkAsked,
)
from regard.use.translator import Translator


@dataclass(frozen=True)
class Held:
    """A request, and its answer: the same as the server's."""

    path: str
    asked: Asked
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

    def held(self, path: str, asked: Asked, first: bool = True) -> Held:
        """A request that the service answers."""
        answer = self.service.questions[path].answer
        return Held(path, asked, lambda: answer(asked), first)

    def tensor(self, name: str, first: bool = True, run: str | None = None) -> Held:
        """A request for a tensor of the run, or of another."""
        asked = TensorNamed(run=run or self.run.key, name=name)
        return Held("tensor", asked, lambda: self.service.found(asked.run, name), first)

    def place(self, usual: int) -> tuple[AttentionPlace, int, int]:
        """The attention, layer and head that the state names; `usual` is the number of the attention if it does not."""
        places = self.study.attentions
        named = [each for each in places if f"{each.stack}.{each.kind}" == self.state.get("at")]
        place = named[0] if named else places[usual]
        layer, head = (int(self.state.get(name, "0")) for name in ("layer", "head"))
        return place, min(layer, place.layers - 1), min(head, place.heads - 1)


def _heads(opened: Opened) -> Iterator[Held]:
    yield opened.held("output", RunNamed(run=opened.run.key))
    for number, (place, layer) in enumerate(_attentions(opened, -1)):
        at = f"{place.stack}.{layer}.{place.kind}"
        yield opened.tensor(f"{at}.weights", number == 0)
        yield opened.held("notes", NotesAsked(run=opened.run.key, at=at), False)
    for name in rollouts_of(opened.study):
        yield opened.tensor(name, False)


def _image(opened: Opened) -> Iterator[Held]:
    yield from _heads(opened)
    _, layer, head = opened.place(0)
    # The class token asks, or, where there is none, all patches do.
    query = -1 if opened.run.sides["encoder"].tokens[0].id < 0 else None
    for rollout in (False, True):
        asked = PatchesAsked(run=opened.run.key, query=query, layer=layer, head=head, rollout=rollout)
        yield opened.held("patches", asked)


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
            yield Held("walk", asked, partial(path, asked), (place, layer, head) == chosen)


def _decode(opened: Opened) -> Iterator[Held]:
    yield opened.held("steps", StepsAsked(run=opened.run.key))
    yield opened.held("tree", TreeAsked(run=opened.run.key))


def _lens(opened: Opened) -> Iterator[Held]:
    for number, output in enumerate(outputs_of(opened.study.loaded)):
        yield opened.held("lens", LensAsked(run=opened.run.key, output=output), number == 0)


def _vectors(opened: Opened) -> Iterator[Held]:
    to = opened.state.get("to")
    lines = sample_for(opened.study.loaded, to).lines
    yield opened.held("vectors", VectorsAsked(texts=lines, to=to))


def _positions(opened: Opened) -> Iterator[Held]:
    yield opened.held("positions", PositionsAsked())
    if isinstance(opened.study.loaded, Translator):
        for asked in (PositionsAsked(part="encoder"), PositionsAsked(part="decoder")):
            yield opened.held("positions", asked, False)


def _compare(opened: Opened) -> Iterator[Held]:
    study, run = opened.study, opened.run.plain or opened.run
    place, _, head = opened.place(-1)
    changes = usual_changes(study, opened.run, place, head)
    asked, found = CompareAsked(run=run.key, changes=changes), compare(study, run, changes)
    yield Held("compare", asked, lambda: asdict(found))
    yield opened.held("control", asked)
    if found.same:
        layer = int(opened.state.get("layer", place.layers - 1))
        name = f"{place.stack}.{min(layer, place.layers - 1)}.{place.kind}.weights"
        yield opened.tensor(name, run=run.key)
        yield opened.tensor(name, run=found.other)


Asking: TypeAlias = Callable[[Opened], Iterable[Held]]
HELD: dict[str, Asking] = {
    "image": _image,
    "heads": _heads,
    "walk": _walk,
    "decode": _decode,
    "lens": _lens,
    "vectors": _vectors,
    "positions": _positions,
    "compare": _compare,
}
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
