"""What a view of the page consists of: its requests and answers, what a saved file holds of it, and its picture."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from torch import Tensor

from regard.blocks.settings import Body
from regard.errors import InputError
from regard.look.input import Input, token_name
from regard.look.study import AttentionGroup, Study, StudyRun
from regard.models.settings import Vision

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_HEADS = 4096
"""Changed heads in one request."""


def valid_text(text: str) -> str:
    """The text, if JSON, tokenizers and files can hold it; otherwise a `ValueError`."""
    if "\0" in text:
        raise ValueError("a text must not contain NUL characters")
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can express
        raise ValueError("a text must be valid Unicode") from None
    return text


Text: TypeAlias = Annotated[str, AfterValidator(valid_text)]
Count: TypeAlias = Annotated[int, Field(ge=0, le=2**31)]
Answer: TypeAlias = dict[str, Any]


class PageRequest(BaseModel):
    """A request of the page."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @property
    def characters(self) -> int:
        """Characters that the model has to read."""
        return 0


class RunRequest(PageRequest):
    """A request about a run."""

    run: Text


@dataclass(frozen=True)
class PageQuestion:
    """Something the page can ask: `/api/PATH`."""

    path: str
    request: type[PageRequest]
    answer: Callable[[Study, Any], Answer]
    """Takes a request of that type."""


@dataclass(frozen=True)
class StoredAnswer:
    """A request with its answer, as a saved file holds it."""

    path: str
    request: PageRequest
    answer: Callable[[], Answer | Tensor]
    first: bool = True
    """True if the view cannot be shown without it."""


@dataclass(frozen=True)
class SavedPage:
    """A page that is saved to a file: one run, and the state in the page's address."""

    study: Study
    run: StudyRun
    state: Mapping[str, str]

    def ask(self, question: PageQuestion, request: PageRequest, first: bool = True) -> StoredAnswer:
        return StoredAnswer(question.path, request, lambda: question.answer(self.study, request), first)

    def location(self, default: int) -> tuple[AttentionGroup, int, int]:
        """Attention, layer and head of the state. `default` is the index of the attention if it names none."""
        groups = self.study.attentions
        named = [each for each in groups if f"{each.stack}.{each.kind}" == self.state.get("at")]
        group = named[0] if named else groups[default]
        layer, head = (int(self.state.get(name, "0")) for name in ("layer", "head"))
        return group, min(layer, group.layers - 1), min(head, group.heads - 1)

    def layers(self, default: int) -> Iterator[tuple[AttentionGroup, int]]:
        """Every attention of the model: the one that is open, the others of its kind, the rest."""
        chosen, first, _ = self.location(default)
        yield from product([chosen], first_of(first, chosen.layers))
        for group in self.study.attentions:
            if group != chosen:
                yield from product([group], range(group.layers))


@dataclass(frozen=True)
class PageView:
    """A view of the page. `VIEWS` in `look/views/__init__.py` lists all."""

    name: str
    questions: tuple[PageQuestion, ...]
    stored: Callable[[SavedPage], Iterable[StoredAnswer]]
    """What a saved file holds, the most important first. Answers are computed only while there is room."""
    fits: Callable[[Study], bool] = lambda study: True
    """True for models that the view can show."""
    draw: Callable[[Study, StudyRun, str], Figure] | None = None
    """Draws the view at an address (`decoder.1.cross.0`; may be empty) with matplotlib."""


def for_run(*questions: PageQuestion) -> Callable[[SavedPage], Iterable[StoredAnswer]]:
    """What a saved file holds: the answers to these questions about its run, with default settings."""
    return lambda page: (page.ask(each, each.request.model_validate({"run": page.run.key})) for each in questions)


def is_transformer(study: Study) -> bool:
    return isinstance(study.loaded.settings, Body)


def first_of(first: int, count: int) -> list[int]:
    return sorted(range(count), key=lambda number: number != first)


def packed(values: Tensor) -> Answer:
    """A tensor inside an answer: base64 of little-endian float32."""
    raw = values.detach().to("cpu", torch.float32).contiguous().numpy().astype("<f4", copy=False).tobytes()
    return {"shape": list(values.shape), "data": base64.b64encode(raw).decode()}


class InputRequest(PageRequest):
    """An input to look at."""

    text: Text = ""
    target: Text | None = None
    to: Text | None = None
    image: Text | None = None
    """Base64 of the bytes of an image: channels, height, width."""
    ablated: list[Text] = Field(default=[], max_length=MAX_HEADS)

    @property
    def characters(self) -> int:
        return len(self.text) + len(self.target or "")


def _run(study: Study, request: InputRequest) -> Answer:
    image = None if request.image is None else _pixels(study, request.image)
    heads = tuple(dict.fromkeys(request.ablated))
    return describe_run(study.run(Input(request.text, request.target, request.to, image, heads)))


def describe_run(run: StudyRun) -> Answer:
    return {
        "image": None if run.given.image is None else base64.b64encode(run.given.image.tobytes()).decode(),
        "run": run.key,
        "sides": {
            stack: {
                "text": side.text,
                "tokens": [asdict(token) for token in side.tokens],
                # What a stack writes after each token; None: unknown.
                "writes": [None if token is None else token_name(run.study.loaded, token) for token in run.read.follows]
                if stack == "decoder"
                else [],
            }
            for stack, side in run.sides.items()
        },
        "plain": None if run.plain is None else run.plain.key,
    }


def _pixels(study: Study, image: str) -> NDArray[np.uint8]:
    settings = study.loaded.settings
    shape = (settings.channels, *settings.image) if isinstance(settings, Vision) else (-1,)  # `read` refuses others
    try:
        return np.frombuffer(base64.b64decode(image, validate=True), np.uint8).reshape(shape)
    except ValueError:
        raise InputError(f"image must be base64 of bytes of shape {list(shape)}") from None


def _output(study: Study, request: RunRequest) -> Answer:
    run = study.known(request.run)
    return {
        name: each and {"answers": [asdict(answer) for answer in each.answers], "written": each.written}
        for name, each in (("output", run), ("plain", run.plain))
    }


RUN = PageQuestion("run", InputRequest, _run)
OUTPUT = PageQuestion("output", RunRequest, _output)
