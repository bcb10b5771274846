"""A model under study: one input at a time, what it gives, what changes when heads are silent, and any tensor of it.

```python
study = Study(regard.load("de-en"))
run = study.run(Input("Ein Hund läuft durch den Schnee."))
study.tensor(run.key, "decoder.1.cross.weights")
```
"""

from __future__ import annotations

import contextlib
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.blocks.edits import Edit
from regard.blocks.recording import Tap, matching, names_of, record
from regard.errors import InputError
from regard.look.addresses import mean_outputs, where_named
from regard.look.answers import Answer, answers_in
from regard.look.changes import change_named, edits_for
from regard.look.estimate import estimate
from regard.look.lens import outputs_of
from regard.look.reading import (
    Input,
    Read,
    Side,
    forward,
    read,
    require_alike,
    require_room,
    scribe_of,
)
from regard.models.settings import Decoder, EncoderDecoder
from regard.tasks.recipe import reach
from regard.use.model import Loaded
from regard.use.translator import Translator

TOKENS = 1024
"""Tokens of an input that are looked at, unless told otherwise; a model's own limit may be lower."""
BYTES = 256 * 2**20
"""What recorded tensors may take in memory."""
RUNS = 64
"""Inputs that are remembered, without their tensors."""
_LABELS = {
    ("encoder", "attention"): "Encoder self-attention",
    ("decoder", "attention"): "Masked self-attention",
    ("decoder", "cross"): "Cross-attention",
}


@dataclass(frozen=True)
class AttentionPlace:
    """Attention of one kind, in all layers of a stack."""

    stack: str
    kind: str
    label: str
    layers: int
    heads: int
    queries: str
    """The stack whose tokens ask."""
    keys: str
    """The stack whose tokens are looked at."""


@dataclass(frozen=True)
class Output:
    """What a model says of an input."""

    answers: list[Answer]
    written: str | None = None
    """What a translator writes of its own accord, with the same heads silent."""


@dataclass(frozen=True)
class Run:
    """A model's pass over one input."""

    key: str
    given: Input
    read: Read
    shapes: dict[str, list[int]]
    """What can be fetched of it."""
    work: Callable[[Run], Output]
    plain: Run | None = None
    """The same input with every head at work, where some are silent."""

    @cached_property
    def output(self) -> Output:
        """Worked out when it is first asked for: scores over a vocabulary may take longer than all layers."""
        return self.work(self)

    @property
    def answers(self) -> list[Answer]:
        return self.output.answers

    @property
    def written(self) -> str | None:
        return self.output.written

    @property
    def sides(self) -> dict[str, Side]:
        return self.read.sides


@dataclass(frozen=True)
class Picture:
    """An image that was named to be looked at."""

    name: str
    pixels: NDArray[np.uint8]
    """`[C, height, width]`, as the model reads it."""


class _Enough(Exception):  # noqa: N818
    """All that was wanted has been heard."""


def _enough(x: Tensor) -> Tensor:
    raise _Enough


class Study:
    """A model that is looked at. Not for several threads at once."""

    def __init__(self, loaded: Loaded, tokens: int = TOKENS, room: int = BYTES, beside: Loaded | None = None) -> None:
        """`tokens` bounds inputs, and `room`, in bytes, the tensors that are kept; `beside` is compared with."""
        self.loaded = loaded
        if beside is not None:
            require_alike(loaded, beside)
        self.beside = None if beside is None else Study(beside, tokens, room)
        self.network = loaded.network.eval()
        self.names: dict[str, Tap] = names_of(loaded)
        limits = [tokens, reach(loaded.settings), loaded.reach if isinstance(loaded, Translator) else None]
        self.limit = min(limit for limit in limits if limit is not None)
        self.room = room
        self.picture: Picture | None = None
        """What a model of images is shown at first, where there is something."""
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._tensors: OrderedDict[tuple[str, str], Tensor] = OrderedDict()
        self._kept = 0
        self._means: dict[str, dict[str, Tensor]] = {}

    # ----------------------------------------------------------------------------------------------------------- about

    @property
    def writes(self) -> bool:
        """Whether the model writes texts."""
        return self.loaded.settings.kind == "decoder" or isinstance(self.loaded, Translator)

    @property
    def views(self) -> list[str]:
        """The views that this model has something for."""
        sees = self.loaded.settings.kind == "vision"
        reads = self.loaded.tokenizers is not None and not sees
        image, decode = ["image"] if sees else [], ["decode"] if self.writes else []
        lens, vectors = ["lens"] if outputs_of(self.loaded) else [], ["vectors"] if reads else []
        return [*image, "heads", "walk", *decode, *lens, *vectors, "positions", "compare"]

    @property
    def attentions(self) -> list[AttentionPlace]:
        """Where the model attends."""
        found = []
        for stack in ("encoder", "decoder"):
            for kind in ("attention", "cross"):
                layers = sum(name.startswith(f"{stack}.") and name.endswith(f".{kind}.weights") for name in self.names)
                if layers:
                    keys = "encoder" if kind == "cross" else stack
                    label = _LABELS[stack, kind]
                    heads = self.loaded.settings.attention.heads
                    found.append(AttentionPlace(stack, kind, label, layers, heads, stack, keys))
        return found

    def place(self, at: str, usual: int = -1) -> tuple[AttentionPlace, int | None, int | None]:
        """The attention that an address names, and layer and head where it names a head: `decoder.1.cross.0`.

        `usual` is the number of the attention that is meant by an empty one.
        """
        if not at:
            return self.attentions[usual], None, None
        where = where_named(self.loaded, at)
        (place,) = (each for each in self.attentions if (each.stack, each.kind) == (where.stack, where.kind))
        return place, where.layer, where.head

    # ------------------------------------------------------------------------------------------------------------- run

    def run(self, given: Input) -> Run:
        """What the model makes of an input. The tensors of it are fetched one by one, with `tensor`."""
        if given.key in self._runs:
            self._runs.move_to_end(given.key)
            return self._runs[given.key]
        for word in given.ablated:
            change_named(self.loaded, word)
        plain = self.run(replace(given, ablated=())) if given.ablated else None
        found = read(self.loaded, given, self.limit) if plain is None else plain.read
        return self._remembered(Run(given.key, given, found, self._shapes(found), self._output, plain))

    def follow(self, run: Run) -> Run:
        """Another model's run: what it read, token by token, read by this one."""
        key = f"{run.key}-beside"
        if key not in self._runs:
            for side in run.sides.values():
                require_room(side, "the text", self.limit)
            # With a target of its own it writes by itself, and does not repeat what the other wrote.
            target = run.sides["decoder"].text if isinstance(self.loaded, Translator) else None
            given = replace(run.given, target=target, ablated=())
            self._remembered(Run(key, given, run.read, self._shapes(run.read), self._output))
        return self.known(key)

    def _remembered(self, run: Run) -> Run:
        self._runs[run.key] = run
        while len(self._runs) > RUNS:
            self._means.pop(self._runs.popitem(last=False)[0], None)
        return run

    def known(self, key: str) -> Run:
        """A run that was made before."""
        if key not in self._runs:
            raise InputError(f"run ({key[:20]}) is not known, or no longer; run the input again")
        return self._runs[key]

    def holding(self, key: str) -> Study:
        """The study that has made a run: this one, or that of the model beside."""
        return self.beside if self.beside is not None and key in self.beside._runs else self

    def changes(self, run: Run) -> dict[str, Edit]:
        """What makes the model work as it does in a run."""
        changes = [change_named(self.loaded, word) for word in run.given.ablated]
        return edits_for(self.loaded, changes, lambda attentions: self._means_of(run, attentions))

    def _means_of(self, run: Run, attentions: Iterable[str]) -> Mapping[str, Tensor]:
        known = self._means.setdefault(run.key, {})
        missing = [name for name in attentions if name not in known]
        if missing:
            known |= mean_outputs(self.loaded, lambda: forward(self.loaded, run.read), missing)
        return known

    @contextlib.contextmanager
    def edited(self, run: Run) -> Iterator[None]:
        """Within the block the model works as it does in a run."""
        edits = self.changes(run)
        if not edits:
            yield
            return
        with record(self.loaded, edit=edits):
            yield

    def _output(self, run: Run) -> Output:
        with self.edited(run):
            answers = answers_in(self.loaded, run.read, forward(self.loaded, run.read))
        return Output(answers, self.written(run))

    def written(self, run: Run) -> str | None:
        """What a translator writes of its own accord."""
        if not isinstance(self.loaded, Translator):
            return None
        if run.given.target is None and not run.given.ablated:
            return run.sides["decoder"].text
        scribe = scribe_of(self.loaded, run.given.to)
        with self.edited(run):
            return scribe.text(scribe.write([run.sides["encoder"].ids], [scribe.beginning], 1)[0][0].tokens)

    def _shapes(self, found: Read) -> dict[str, list[int]]:
        """The shapes of all that can be fetched, without the batch."""
        settings = self.loaded.settings
        lengths = {stack: len(side.tokens) for stack, side in found.sides.items()}
        reads, writes = lengths.get("encoder", 0), lengths.get("decoder", 0)
        sizes = {"D": settings.width, "H": settings.attention.heads, "G": settings.kv_heads, "E": settings.head_size}
        sizes |= {"V": settings.value_size, "F": settings.ffn_hidden}
        if isinstance(settings, EncoderDecoder | Decoder):
            sizes["C"] = settings.target_size if isinstance(settings, EncoderDecoder) else settings.vocabulary
        shapes = {}
        for name, tap in self.names.items():
            side = "encoder" if name.startswith(("source.", "encoder.")) else "decoder"
            time = lengths.get(side) or reads or writes
            known = sizes | {"T": time, "K": reads if ".cross." in name else time}
            wanted = [size for size in tap.sizes if size != "B"]
            if all(size in known for size in wanted):
                shapes[name] = [known[size] for size in wanted]
        return shapes

    # --------------------------------------------------------------------------------------------------------- tensors

    def tensor(self, key: str, name: str) -> Tensor:
        """What flowed by under a name, without the batch, in float32.

        Only what is asked for is recorded, and the same of as many further layers as a quarter of the room holds.
        """
        if name not in self.names:
            matching(name.replace("*", ""), self.names)  # says what is near
            raise InputError(
                f"name ({name[:80]}) is of no single tensor; regard.blocks.recording.names_of(model) lists them"
            )
        if (key, name) not in self._tensors:
            self._record(self.known(key), name)
        self._tensors.move_to_end((key, name))
        return self._tensors[key, name]

    def _record(self, run: Run, name: str) -> None:
        for found, value in self.values(run, self._together(run, name)).items():
            if (run.key, found) not in self._tensors:
                self._tensors[run.key, found] = value
                self._kept += value.nbytes
        self._tensors.move_to_end((run.key, name))
        while self._kept > self.room and len(self._tensors) > 1:
            _, dropped = self._tensors.popitem(last=False)
            self._kept -= dropped.nbytes

    def _together(self, run: Run, name: str) -> list[str]:
        pattern = re.sub(r"\.\d+\.", ".*.", name)
        lengths = [len(side.tokens) for side in run.sides.values()]
        siblings = [other for other in self.names if re.sub(r"\.\d+\.", ".*.", other) == pattern]
        size = estimate(self.network, name, length=lengths[-1], source=lengths[0])
        count = max(self.room // 4 // max(size, 1), 1)
        if len(siblings) <= count:
            return siblings
        begun = any((run.key, other) in self._tensors for other in siblings)
        # The first of many should be seen soon.
        return siblings[siblings.index(name) :][: count if begun else 1]

    def values(self, run: Run, names: list[str]) -> dict[str, Tensor]:
        """Some tensors of a run, recorded in one pass and not kept."""
        edits = self.changes(run) | self._stop(names)
        with record(self.loaded, *names, edit=edits) as seen, contextlib.suppress(_Enough):
            forward(self.loaded, run.read)
        found = {}
        for name in seen.names():
            value = seen.calls(name)[0]
            whole = "B" in self.names[name].sizes or value.dim() > len(self.names[name].sizes)
            found[name] = (value[0] if whole else value).float()
        return found

    def _stop(self, names: list[str]) -> dict[str, Edit]:
        """What ends a pass when all has been heard: what comes behind would only take time."""
        order = list(self.names)
        behind = order[max(order.index(name) for name in names) + 1 :]
        after = next((name for name in behind if name.endswith((".ffn.input", ".out"))), None)
        return {} if after is None else {after: _enough}

    @property
    def kept(self) -> int:
        """Bytes that tensors take now."""
        return self._kept
