"""A model under study: an input at a time, the model's output for it, and any recorded tensor.

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
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from regard.blocks.edits import Edit
from regard.blocks.recording import Tap, matching, names_of, record
from regard.decoding.settings import TranslateOptions
from regard.errors import InputError
from regard.look import input as inputs
from regard.look.heads import change_named, edits_for, head_named, mean_outputs
from regard.models.settings import reach
from regard.use.model import Loaded
from regard.use.translator import Translator

MAX_TOKENS = 1024
"""Default limit of an input's length; the model's own limit may be lower."""
MAX_BYTES = 256 * 2**20
"""Default memory for recorded tensors."""
MAX_RUNS = 64
"""Runs that are kept, without their tensors."""
_LABELS = {
    ("encoder", "attention"): "Encoder self-attention",
    ("decoder", "attention"): "Masked self-attention",
    ("decoder", "cross"): "Cross-attention",
}


@dataclass(frozen=True)
class AttentionGroup:
    """One kind of attention in all layers of a stack."""

    stack: str
    kind: str
    label: str
    layers: int
    heads: int
    keys: str
    """The stack whose tokens are the keys; those of `stack` are the queries."""
    causal: bool = False
    windows: tuple[int | None, ...] = ()
    """For self-attention by layer: only keys fewer than this many positions away are seen; None: all."""

    def at(self, layer: int) -> str:
        """The attention of one layer: `decoder.1.cross`."""
        return f"{self.stack}.{layer}.{self.kind}"


@dataclass(frozen=True)
class StudyRun:
    """A model on one input. Outputs are computed on first use: logits may take longer than all layers."""

    study: Study
    key: str
    given: inputs.Input
    read: inputs.ReadInput
    plain: StudyRun | None = None
    """The same input without changes to heads, if there are any."""

    @property
    def sides(self) -> dict[str, inputs.InputSide]:
        return self.read.sides

    @cached_property
    def means(self) -> dict[str, Tensor]:
        """The mean outputs of all heads, without changes."""
        return mean_outputs(self.study.loaded, lambda: inputs.forward(self.study.loaded, self.read))

    @cached_property
    def answers(self) -> list[inputs.OutputAnswer]:
        with self.study.edited(self):
            return inputs.answers_in(self.study.loaded, self.read, inputs.forward(self.study.loaded, self.read))

    @cached_property
    def written(self) -> str | None:
        """A translator's own translation, with the same changes to its heads."""
        loaded = self.study.loaded
        if not isinstance(loaded, Translator):
            return None
        if self.given.target is None and not self.given.ablated:
            return self.sides["decoder"].text
        options = TranslateOptions(to=inputs.target_of(loaded, self.given.to))
        with self.study.edited(self):
            return loaded.output_text(loaded.decode(self.sides["encoder"].ids, options))


class _Recorded(Exception):  # noqa: N818
    """Ends a forward pass when everything is recorded."""


def _stop(x: Tensor) -> Tensor:
    raise _Recorded


class Study:
    """A model under study, by one thread at a time. Example: `regard.Study(regard.load("de-en")).names`."""

    def __init__(
        self, loaded: Loaded, tokens: int = MAX_TOKENS, room: int = MAX_BYTES, against: Loaded | None = None
    ) -> None:
        """`tokens` limits inputs, `room` (bytes) the tensors that are kept. `against` is a model to compare with."""
        self.loaded = loaded
        if against is not None:
            inputs.require_same_kind(loaded, against)
        self.against = None if against is None else Study(against, tokens, room)
        self.network = loaded.network.eval()
        self.names: dict[str, Tap] = names_of(loaded)
        limits = [tokens, reach(loaded.settings), loaded.reach if isinstance(loaded, Translator) else None]
        self.limit = min(limit for limit in limits if limit is not None)
        self.room = room
        self.picture = inputs.example_of(loaded)
        """The first image of a vision model's page: its name, and `[channels, height, width]`."""
        self.cache: dict[str, Any] = {}
        """Values that views compute once for a study."""
        self.kept = 0
        """Bytes of the tensors in memory."""
        self._runs: OrderedDict[str, StudyRun] = OrderedDict()
        self._tensors: OrderedDict[tuple[str, str], Tensor] = OrderedDict()

    @property
    def writes(self) -> bool:
        """True if the model writes text."""
        return self.loaded.settings.kind == "decoder" or isinstance(self.loaded, Translator)

    @cached_property
    def attentions(self) -> list[AttentionGroup]:
        """The kinds of attention in the model."""
        found = []
        for (stack, kind), label in _LABELS.items():
            layers = sum(name.startswith(f"{stack}.") and name.endswith(f".{kind}.weights") for name in self.names)
            if layers:
                keys = "encoder" if kind == "cross" else stack
                module = getattr(self.network, stack) if kind == "attention" else None
                causal, windows = getattr(module, "causal", False), tuple(getattr(module, "windows", ()))
                heads = self.loaded.settings.attention.heads
                found.append(AttentionGroup(stack, kind, label, layers, heads, keys, causal, windows))
        return found

    def locate(self, at: str) -> tuple[AttentionGroup, int | None, int | None]:
        """Parses `decoder.cross` (all heads; by default the last kind) or `decoder.1.cross.0` (one head)."""
        if not at:
            return self.attentions[-1], None, None
        groups = {f"{each.stack}.{each.kind}": each for each in self.attentions}
        if at in groups:
            return groups[at], None, None
        stack, layer, kind, number = head_named(self.loaded, at)
        return groups[f"{stack}.{kind}"], layer, number

    def run(self, given: inputs.Input) -> StudyRun:
        """Reads an input. Its tensors are fetched one by one with `tensor`."""
        if given.key in self._runs:
            self._runs.move_to_end(given.key)
            return self._runs[given.key]
        for text in given.ablated:
            change_named(self.loaded, text)
        plain = self.run(replace(given, ablated=())) if given.ablated else None
        found = inputs.read(self.loaded, given, self.limit) if plain is None else plain.read
        return self._keep(given.key, given, found, plain)

    def follow(self, run: StudyRun) -> StudyRun:
        """This model on the tokens of another model's run."""
        key = f"{run.key}-against"
        if key not in self._runs:
            for side in run.sides.values():
                inputs.require_length(side, "the text", self.limit)
            # With a target of its own, `written` decodes instead of repeating the other model's text.
            target = run.sides["decoder"].text if isinstance(self.loaded, Translator) else None
            self._keep(key, replace(run.given, target=target, ablated=()), run.read, None)
        return self.known(key)

    def _keep(self, key: str, given: inputs.Input, found: inputs.ReadInput, plain: StudyRun | None) -> StudyRun:
        self._runs[key] = StudyRun(self, key, given, found, plain)
        while len(self._runs) > MAX_RUNS:
            self._runs.popitem(last=False)
        return self._runs[key]

    def known(self, key: str) -> StudyRun:
        """A run that was made before."""
        if key not in self._runs:
            raise InputError(f"run ({key[:20]}) is unknown or no longer kept; run the input again")
        return self._runs[key]

    def holding(self, key: str) -> Study:
        """The study that made a run: this one, or that of the second model."""
        return self if self.against is None or key in self._runs else self.against

    def changes(self, run: StudyRun) -> dict[str, Edit]:
        """The edits of a run."""
        changes = [change_named(self.loaded, text) for text in run.given.ablated]
        return edits_for(self.loaded, changes, lambda: run.means)

    @contextlib.contextmanager
    def edited(self, run: StudyRun) -> Iterator[None]:
        """Within the block the model has the changes of a run."""
        edits = self.changes(run)
        with record(self.loaded, edit=edits) if edits else contextlib.nullcontext():
            yield

    def tensor(self, key: str, name: str) -> Tensor:
        """A tensor of a run by its name, without the batch dimension, in float32.

        The first of a kind is recorded alone, so that it is shown soon; with the next one, as many of the other layers
        as fit into a quarter of the room.
        """
        if name not in self.names:
            matching(name.replace("*", ""), self.names)  # raises with a suggestion
            raise InputError(f"name ({name[:80]}) must be a single tensor; names_of(model) lists the names")
        if (key, name) not in self._tensors:
            run = self.known(key)
            for found, value in self.values(run, self._siblings(key, name)).items():
                if (key, found) not in self._tensors:
                    self._tensors[key, found] = value
                    self.kept += value.nbytes
            self._tensors.move_to_end((key, name))
            while self.kept > self.room and len(self._tensors) > 1:
                _, dropped = self._tensors.popitem(last=False)
                self.kept -= dropped.nbytes
        self._tensors.move_to_end((key, name))
        return self._tensors[key, name]

    def _siblings(self, key: str, name: str) -> list[str]:
        """The tensors to record together with one: those of the same kind in the next layers."""
        pattern = re.sub(r"\.\d+\.", ".*.", name)
        siblings = [other for other in self.names if re.sub(r"\.\d+\.", ".*.", other) == pattern]
        known = next((value for other in siblings if (value := self._tensors.get((key, other))) is not None), None)
        count = 1 if known is None else max(self.room // 4 // max(known.nbytes, 1), 1)
        return siblings[siblings.index(name) :][:count]

    def values(self, run: StudyRun, names: list[str]) -> dict[str, Tensor]:
        """Some tensors of a run, recorded in one pass and not kept."""
        order = list(self.names)
        behind = order[max(order.index(name) for name in names) + 1 :]
        # What comes after the last name would only take time.
        after = next((name for name in behind if name.endswith((".ffn.input", ".out"))), None)
        stop = {} if after is None else {after: _stop}
        with record(self.loaded, *names, edit=self.changes(run) | stop) as seen, contextlib.suppress(_Recorded):
            inputs.forward(self.loaded, run.read)
        found = {}
        for name in seen.names():
            value, sizes = seen.calls(name)[0], self.names[name].sizes
            found[name] = (value[0] if "B" in sizes or value.dim() > len(sizes) else value).float()
        return found
