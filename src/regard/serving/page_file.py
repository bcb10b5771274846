"""A page as one HTML file, also in a notebook: its modules, and the stored answers of its views for one input.

```python
regard.show("de-en", "Ein Hund läuft durch den Schnee.", at="decoder.1.cross.0")
```
"""

from __future__ import annotations

import base64
import json
import re
import tomllib
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path, PurePath
from typing import Any, Literal, TypeAlias

import numpy as np
from pydantic import Field, field_validator
from torch import Tensor

from regard.errors import InputError, RegardError
from regard.files import write_text
from regard.look.alignment import measured_in
from regard.look.heads import MEAN
from regard.look.input import Input, special_tokens, target_of
from regard.look.study import Study, StudyRun
from regard.look.views import view_named, views_of
from regard.look.views.compare import names_of_both
from regard.look.views.lens import outputs_of
from regard.look.views.vectors import samples
from regard.look.views.view import InputRequest, SavedPage, StoredAnswer, describe_run
from regard.models.settings import Vision
from regard.settings import Settings, parse, read_toml
from regard.shipped import MODELS
from regard.use.model import Loaded, load
from regard.use.translator import Translator

WEB = Path(__file__).parent / "web" / "look"
MAX_BYTES = 64 * 2**20
"""Answers in a file: browsers open larger files slowly."""
EXACT_BYTES = 8 * 2**20
"""Attention weights up to this size are stored exactly."""
STEP = 2.0**-14
"""The weights of longer inputs are rounded to multiples of this."""
DIGITS = 8
"""Significant digits of numbers: float32 has no more."""
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
LARGEST = ("words", "heads", "walk")
"""Views with many answers, which come after those of others."""
Theme: TypeAlias = Literal["system", "light", "dark"]
HEIGHTS = (100, 10_000)
ROOM = 16 * 2**20
"""Most bytes of data in a frame, since a notebook stores all frames."""
_IMPORT = re.compile(r'(from|import\()(\s*)"((?:\.\.?/)+)([^"]+)"')


@dataclass(frozen=True, repr=False)
class PageFile:
    """A page in a file, and how a notebook shows it."""

    html: str
    views: list[str]
    left: dict[str, int]
    """For each view, the number of answers that did not fit."""
    title: str
    height: int = 720
    """Of the frame in a notebook, in pixels."""

    def save(self, path: str | Path) -> None:
        """Writes the page to a file that a browser can open."""
        try:
            write_text(Path(path), self.html)
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}; choose another file") from None

    def _repr_html_(self) -> str:
        """A sandboxed frame: it cannot reach other frames, the notebook or its cookies."""
        style = f"width: 100%; height: {self.height}px; border: 1px solid #8884; border-radius: 6px;"
        return (
            f'<iframe title="{escape(self.title)}" sandbox="allow-scripts" style="{style}" '
            f'srcdoc="{escape(self.html)}"></iframe>'
        )

    def __repr__(self) -> str:
        return f"<{self.title}: {len(self.html) / 2**20:.1f} MiB>"


class Chapter(Settings):
    """A state of the page in a lecture, with one sentence."""

    title: str
    text: str
    family: str | None = None
    """The kind of model that it needs; none: any."""
    model: str | None = None
    """A shipped model that is opened if the model of the page is of another family, or if no family is named."""
    state: dict[str, str]

    @field_validator("model")
    @classmethod
    def _shipped(cls, name: str | None) -> str | None:
        if name not in (None, *MODELS):
            raise ValueError(f"{name} is not a shipped model; choose {', '.join(MODELS)}")
        return name


class Chapters(Settings):
    """A file of chapters."""

    chapter: tuple[Chapter, ...] = Field(strict=False)


def about(study: Study, chapters: str | None = None) -> dict[str, Any]:
    """What the page needs to know about the model. `chapters` is a file, by default that of the package."""
    file = Path(chapters) if chapters else WEB / "chapters.toml"
    try:
        lecture: Chapters = parse(Chapters, read_toml(file.read_text("utf-8"), str(file)))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read: {error}; give another file to --chapters") from None
    loaded, settings = study.loaded, study.loaded.settings
    translator = loaded if isinstance(loaded, Translator) else None
    look = translator.frame.look if translator else None
    picture, other = study.picture, study.against
    return _sizes(study) | {
        "name": loaded.name,
        "family": settings.kind,
        "views": list(views_of(study)),
        "directions": [list(each) for each in translator.directions] if translator else [],
        "translates": translator is not None,
        "pairs": settings.kind == "encoder" and loaded.tokenizers is not None,
        "image": [settings.channels, *settings.image] if isinstance(settings, Vision) else None,
        "patch": settings.patch if isinstance(settings, Vision) else None,
        "aligned": [list(each) for each in look.heads] if look else [],
        "align_measured": [asdict(each) for each in measured_in(loaded.config)] if translator else [],
        "picture": picture and {"name": picture[0], "pixels": base64.b64encode(picture[1].tobytes()).decode()},
        "outputs": outputs_of(loaded),
        "special": special_tokens(loaded),
        "chapters": [each.model_dump() for each in lecture.chapter],
        "texts": {
            name: {"changed": True} | each
            for name, each in tomllib.loads(WEB.joinpath("views.toml").read_text("utf-8")).items()
        },
        "samples": samples(),
        "against": other and {"name": names_of_both(loaded.name, other.loaded.name)[1], **_sizes(other)},
    }


def _sizes(study: Study) -> dict[str, Any]:
    parameters = sum(each.numel() for each in study.network.parameters())
    attentions = [asdict(each) for each in study.attentions]
    return {"width": study.loaded.settings.width, "parameters": parameters, "attentions": attentions}


def page_file(
    study: Study,
    run: StudyRun,
    views: Sequence[str] = (),
    at: str = "",
    theme: str | None = None,
    room: int = MAX_BYTES,
) -> PageFile:
    """A run as HTML with some views, by default all. The first view is open, at a head if `at` names one.

    `room` limits the bytes of the answers.
    """
    known = {name: view_named(study, name) for name in views} or views_of(study)
    state = _state(study, run, at) | {"view": next(iter(known))}
    page = SavedPage(study, run, state)
    lengths = {stack: len(side.tokens) for stack, side in run.sides.items()}
    cells = sum(each.layers * each.heads * lengths[each.stack] * lengths[each.keys] for each in study.attentions)
    packing = _Packing(room, 4 * cells <= EXACT_BYTES)
    asked = [("run", _run_answer(page)), *((name, each) for name, view in known.items() for each in view.stored(page))]
    for name, stored in sorted(asked, key=lambda pair: (not pair[1].first, pair[0] in LARGEST)):
        packing.add(name, stored)
    shown = [name for name in views_of(study) if name in known]
    model = about(study)
    name = PurePath(model["name"]).name  # the path of a model on this machine is private
    data = {
        "about": model | {"views": shown, "name": name},
        "state": state,
        "answers": packing.answers,
        "defaults": packing.defaults,
        "shared": list(packing.shared),
        "rounded": 0 if packing.exact else STEP / 2,
    }
    return PageFile(_assembled(data, theme), shown, packing.left, f"{name}, {', '.join(shown)}")


def show(
    model: str | Path | Loaded | Study,
    given: str | Input,
    view: str | Sequence[str] = "heads",
    *,
    at: str = "",
    height: int = PageFile.height,
    theme: Theme = "system",
) -> PageFile:
    """Shows one or several views of an input in a notebook; the first view is open.

    `model` is a name, a directory, or a model that is loaded already: the result of `regard.load`, or a `Study`. `at`
    selects a head, such as `decoder.1.cross.0`. `height` is in pixels.
    Example: `regard.show("de-en", "Ein Hund läuft.", ["heads", "lens"])`.
    """
    if theme not in ("system", "light", "dark"):
        raise InputError(f"theme ({theme}) must be system, light or dark")
    if not HEIGHTS[0] <= height <= HEIGHTS[1]:
        raise InputError(f"height ({height}) must be from {HEIGHTS[0]} to {HEIGHTS[1]:,} pixels")
    study = model if isinstance(model, Study) else Study(model if isinstance(model, Loaded) else load(model))
    run = study.run(Input(given) if isinstance(given, str) else given)
    views = [view] if isinstance(view, str) else list(view)
    return replace(page_file(study, run, views, at, None if theme == "system" else theme, ROOM), height=height)


def location_state(study: Study, at: str) -> dict[str, str]:
    """An address, `decoder.cross` or `decoder.1.cross.0`, as the page's state."""
    if not at:
        return {}
    group, layer, head = study.locate(at)
    state = {"at": f"{group.stack}.{group.kind}"}
    return state if layer is None else state | {"layer": str(layer), "head": str(head)}


def _state(study: Study, run: StudyRun, at: str) -> dict[str, str]:
    given, loaded = run.given, study.loaded
    to = target_of(loaded, given.to) if isinstance(loaded, Translator) else given.to
    mean = bool(given.ablated) and all(text.endswith(MEAN) for text in given.ablated)
    heads = [text.removesuffix(MEAN) for text in given.ablated] if mean else given.ablated
    state = {"target": given.target, "to": to, "off": ",".join(heads), "mean": "1" if mean else None}
    return {"text": given.text, **{name: value for name, value in state.items() if value}, **location_state(study, at)}


def _run_answer(page: SavedPage) -> StoredAnswer:
    """The page's first request. It is not validated: the input has been read already."""
    given = page.run.given
    image = None if given.image is None else base64.b64encode(given.image.tobytes()).decode()
    request = InputRequest.model_construct(
        text=given.text, target=given.target or None, to=page.state.get("to"), image=image, ablated=list(given.ablated)
    )
    return StoredAnswer("run", request, lambda: describe_run(page.run))


class _Packing:
    """Compresses answers one by one, so that a page decompresses only what it shows."""

    def __init__(self, room: int, exact: bool) -> None:
        self.room, self.exact = room, exact
        self.answers: list[dict[str, Any]] = []
        self.defaults: dict[str, dict[str, Any]] = {}
        self.left: dict[str, int] = {}
        self._held: set[str] = set()
        self.shared: dict[str, int] = {}
        """Tensors inside answers, each once: the heads of a layer share most of a walk."""

    def add(self, view: str, stored: StoredAnswer) -> None:
        """Adds an answer of a view, unless it or an earlier one has no room. The first ones must have room."""
        key = f"{stored.path} {stored.request.model_dump_json()}"
        if key in self._held:  # several views may ask the same
            return
        if view in self.left:
            self.left[view] += 1
            return
        before = len(self.shared)
        packed = self._packed(stored)
        new = list(self.shared)[before:]
        size = len(packed["packed"]) + sum(map(len, new))
        if size > self.room and stored.first:
            raise InputError(
                f"view {view} needs more than the {self.room / 2**20:,.3g} MiB that are left in a file; give a "
                "shorter text or fewer views, or use the server"
            )
        if size > self.room:
            self.left[view] = 1
            for data in new:
                del self.shared[data]
            return
        self.room -= size
        self.answers.append(packed)
        self._held.add(key)
        fields = type(stored.request).model_fields.items()
        self.defaults[stored.path] = {
            name: each.get_default(call_default_factory=True) for name, each in fields if not each.is_required()
        }

    def _packed(self, stored: StoredAnswer) -> dict[str, Any]:
        made: dict[str, Any] = {"path": stored.path, "asked": stored.request.model_dump()}
        try:
            answer = stored.answer()
        except RegardError as error:
            return made | {"error": str(error), "packed": ""}  # as the server would answer
        if isinstance(answer, Tensor):
            kept = answer.cpu().numpy().astype("<f4")
            if not self.exact:
                kept = np.rint(kept / STEP).astype("<u2")
            made |= {"shape": list(answer.shape), "size": kept.itemsize}
            # All first bytes, then all second bytes: similar bytes compress well.
            content = kept.reshape(-1, 1).view(np.uint8).T.tobytes()
        else:
            content = json.dumps(self._short(answer), allow_nan=False, separators=(",", ":")).encode("ascii")
        return made | {"packed": base64.b64encode(zlib.compress(content)).decode()}

    def _short(self, value: Any) -> Any:
        """An answer with numbers of at most `DIGITS` digits, and with the numbers of shared tensors."""
        if isinstance(value, float):
            return float(f"{value:.{DIGITS}g}")
        if isinstance(value, dict):
            if value.keys() == {"shape", "data"}:
                return value | {"data": self.shared.setdefault(value["data"], len(self.shared))}
            return {name: self._short(each) for name, each in value.items()}
        return [self._short(each) for each in value] if isinstance(value, list | tuple) else value


def _assembled(data: dict[str, Any], theme: str | None) -> str:
    """The page as one HTML file. Its policy forbids every request."""
    names = sorted(file.relative_to(WEB).as_posix() for file in WEB.rglob("*.js"))
    imports = {f"look/{name}": _module_url(name) for name in names}
    script = (
        f'<script type="importmap">{_safe_json({"imports": imports})}</script>\n'
        f'<script type="application/json" id="inlined">{_safe_json(data)}</script>\n'
        '<script type="module">import "look/main.js";</script>'
    )
    icon = base64.b64encode((WEB / "icon.svg").read_bytes()).decode()
    changes = {
        '<html lang="en">': f'<html lang="en" data-theme="{theme}">' if theme else '<html lang="en">',
        '<meta charset="utf-8">': '<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        'href="icon.svg"': f'href="data:image/svg+xml;base64,{icon}"',
        '<link rel="stylesheet" href="style.css">': f"<style>\n{_read('style.css')}</style>",
        '<script type="module" src="main.js"></script>': script,
    }
    page = _read("index.html")
    for old, new in changes.items():
        page = page.replace(old, new)
    return page


def _safe_json(data: dict[str, Any]) -> str:
    """JSON in which no text can end the script element."""
    written = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _module_url(name: str) -> str:
    """A module as a data URL. Its imports become names of the import map, since a data URL has no neighbours."""
    folder = Path(name).parent

    def named(found: re.Match[str]) -> str:
        other = (folder.parent if found[3] == "../" else folder) / found[4]
        return f'{found[1]}{found[2]}"look/{other.as_posix()}"'

    code = _IMPORT.sub(named, _read(name))
    return "data:text/javascript;base64," + base64.b64encode(code.encode()).decode()


def _read(name: str) -> str:
    return (WEB / name).read_text(encoding="utf-8")
