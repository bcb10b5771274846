"""One input of one model as a single HTML file: the page's own modules, the answers to what its views ask, and nothing
from elsewhere."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
from torch import Tensor

from regard.errors import InputError, RegardError
from regard.look.addresses import where_named
from regard.look.changes import MEAN
from regard.look.drawn import require_view
from regard.look.study import Run, Study
from regard.serving.look_held import HELD, Held, Opened
from regard.serving.look_pages import assembled
from regard.serving.look_service import LookService, told
from regard.serving.look_shapes import RunAsked
from regard.use.translator import Translator

MOST = 64 * 2**20
"""Bytes of answers in a file: browsers take long over more."""
EXACT = 8 * 2**20
"""Bytes of attention weights up to which they are kept as they are."""
STEP = 2.0**-14
"""To which the weights of longer inputs are rounded."""
DIGITS = 8
"""Of single numbers: float32 has no more than these."""


@dataclass(frozen=True)
class PageFile:
    """A page in a file."""

    html: str
    views: list[str]
    left: dict[str, int]
    """By view, how many answers there was no room for."""


def page_file(
    study: Study,
    run: Run,
    views: Sequence[str] = (),
    at: str = "",
    theme: str | None = None,
    room: int = MOST,
    say: Callable[[str], None] = lambda told: None,
) -> PageFile:
    """A run as HTML, with some views (all, unless they are named); the first is open, at a head where one is named.

    `room`, in bytes, bounds what it holds beside the page itself. `say` is told how far it has come.
    """
    names = _known(study, views)
    service = LookService(study)
    state = _state(study, run, at) | {"view": names[0]}
    opened = Opened(service, run, state)
    packing = _Packing(room, _exact(run), say)
    asked = {"run": [_run(opened)]} | {name: list(HELD[name](opened)) for name in names}
    for name, wanted in asked.items():
        packing.add(name, [held for held in wanted if held.first])
    # What a view leaves is for those behind it, and the heads, which are large, come last.
    order = sorted(asked, key=lambda name: name == "heads")
    for number, name in enumerate(order):
        share = packing.room if number == len(order) - 1 else packing.room // 2
        packing.fill(name, [held for held in asked[name] if not held.first], share)
    shown = [name for name in study.views if name in names]
    about = service.about()
    data = {
        # Where a model lies on this machine is nobody else's business.
        "about": about | {"views": shown, "name": PurePath(about["name"]).name},
        "state": state,
        "answers": packing.answers,
        "defaults": packing.defaults,
        "rounded": 0 if packing.exact else STEP / 2,
    }
    return PageFile(assembled(data, shown, theme), shown, packing.left)


def _known(study: Study, views: Sequence[str]) -> list[str]:
    """Each view once; all, unless some are named. One that this model does not have is refused."""
    for name in views:
        require_view(name, study.views)
    return list(dict.fromkeys(views or study.views))


def place_state(study: Study, at: str) -> dict[str, str]:
    """An address, `decoder.cross` or `decoder.1.cross.0`, as the page's own address has it."""
    if not at:
        return {}
    where = where_named(study.loaded, at)
    state = {"at": f"{where.stack}.{where.kind}"}
    return state if where.layer is None else state | {"layer": str(where.layer), "head": str(where.head)}


def _state(study: Study, run: Run, at: str) -> dict[str, str]:
    given, loaded = run.given, study.loaded
    # Of several languages the page names one always.
    directions = loaded.directions if isinstance(loaded, Translator) else []
    to = directions[0][1] if given.to is None and len(directions) > 1 else given.to
    mean = bool(given.ablated) and all(word.endswith(MEAN) for word in given.ablated)
    heads = [word.removesuffix(MEAN) for word in given.ablated] if mean else given.ablated
    state = {"target": given.target, "to": to, "off": ",".join(heads), "mean": "1" if mean else None}
    return {"text": given.text, **{name: value for name, value in state.items() if value}, **place_state(study, at)}


def _run(opened: Opened) -> Held:
    """What the page asks first of all. Not checked as the server would: the input has been read."""
    given, state = opened.run.given, opened.state
    image = None if given.image is None else base64.b64encode(given.image.tobytes()).decode()
    asked = RunAsked.model_construct(
        text=given.text, target=given.target or None, to=state.get("to"), image=image, ablated=list(given.ablated)
    )
    return Held("run", asked, lambda: told(opened.run))


# -------------------------------------------------------------------------------------------------------------- packing


class _Packing:
    """Answers, each packed by itself, so that a page unpacks only what it shows."""

    def __init__(self, room: int, exact: bool, say: Callable[[str], None]) -> None:
        self.room = room
        self.exact = exact
        self.say = say
        self.answers: list[dict[str, Any]] = []
        self.defaults: dict[str, dict[str, Any]] = {}
        self.left: dict[str, int] = {}
        self._held: set[str] = set()

    def add(self, view: str, needed: Iterable[Held]) -> None:
        """Takes in what a view cannot do without."""
        for held in self._new(needed):
            self.say(f"{view}: what it opens with")
            packed = self._packed(held)
            if len(packed["packed"]) > self.room:
                raise InputError(
                    f"{view}: what it shows of this input takes more than the {self.room / 2**20:,.3g} MiB that are "
                    "left in a file; give a shorter text, name fewer views, or look at it with the server"
                )
            self._take(held, packed)

    def fill(self, view: str, wanted: Sequence[Held], share: int) -> None:
        """Takes in what a view may ask later, as long as its share of the room lasts."""
        end, full = self.room - share, False
        for number, held in enumerate(self._new(wanted), 1):
            self.say(f"{view}: {number:,} of {len(wanted):,}")
            packed = {} if full else self._packed(held)
            full = full or self.room - len(packed["packed"]) < end
            if full:
                self.left[view] = self.left.get(view, 0) + 1
            else:
                self._take(held, packed)

    def _new(self, wanted: Iterable[Held]) -> Iterator[Held]:
        """What is not held yet: several views may ask the same."""
        return (held for held in wanted if _key(held) not in self._held)

    def _take(self, held: Held, packed: dict[str, Any]) -> None:
        self.room -= len(packed["packed"])
        self.answers.append(packed)
        self._held.add(_key(held))
        fields = type(held.asked).model_fields.items()
        self.defaults[held.path] = {
            name: each.get_default(call_default_factory=True) for name, each in fields if not each.is_required()
        }

    def _packed(self, held: Held) -> dict[str, Any]:
        made: dict[str, Any] = {"path": held.path, "asked": held.asked.model_dump()}
        try:
            answer = held.answer()
        except RegardError as error:
            return made | {"error": str(error), "packed": ""}  # as the server would tell it
        if isinstance(answer, Tensor):
            kept = answer.cpu().numpy().astype("<f4")
            if not self.exact:
                kept = np.rint(kept / STEP).astype("<u2")
            made |= {"shape": list(answer.shape), "size": kept.itemsize}
            # All first bytes, all second bytes, and so on: those of like numbers are alike, and pack well.
            content = kept.reshape(-1, 1).view(np.uint8).T.tobytes()
        else:
            content = json.dumps(_short(answer), allow_nan=False, separators=(",", ":")).encode("ascii")
        return made | {"packed": base64.b64encode(zlib.compress(content)).decode()}


def _key(held: Held) -> str:
    return f"{held.path} {held.asked.model_dump_json()}"


def _exact(run: Run) -> bool:
    cells = sum(int(np.prod(shape)) for name, shape in run.shapes.items() if name.endswith(".weights"))
    return 4 * cells <= EXACT


def _short(value: Any) -> Any:
    """An answer with numbers no longer than they need be."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: _short(each) for name, each in value.items()}
    return [_short(each) for each in value] if isinstance(value, list | tuple) else value
