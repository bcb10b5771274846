"""The recorder behind `regard.record`: hears the taps of one model, edits what it was told to, keeps what is wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from regard.blocks.tap import Attended
from regard.blocks.tap import Recorder as Listener
from regard.errors import InputError
from regard.look.derive import derived, mixed_by, softmax
from regard.look.seen import Seen

Change: TypeAlias = Callable[[Tensor], Tensor]


class Recorder:
    """What it does not know is another's: recorders of different models may be nested."""

    def __init__(
        self, model: nn.Module, seen: Seen, edits: Mapping[str, Sequence[Change]], outer: Listener | None = None
    ) -> None:
        self.paths = {module: path for path, module in model.named_modules()}
        """Modules do not know their names; here they are found."""
        self.seen = seen
        self.edits = edits
        self.outer = outer
        self.wanted = frozenset(seen.wanted)
        self.step: int | None = None
        self._passes: WeakKeyDictionary[object, int] = WeakKeyDictionary()

    def hears(self, module: nn.Module) -> bool:
        """Whether the module is part of what is recorded."""
        return module in self.paths or (self.outer is not None and self.outer.hears(module))

    def tap(self, module: nn.Module, name: str, x: Tensor) -> Tensor:
        """Edits and keeps a value."""
        path = self.paths.get(module)
        if path is None:
            return x if self.outer is None else self.outer.tap(module, name, x)
        return self._heard(f"{path}.{name}", x)

    def tap_attention(self, module: nn.Module, attended: Attended, mixed: Tensor) -> Tensor:
        """Works out scores and weights, if anyone wants them; edited ones are mixed with the values plainly.

        So are all where gradients are wanted, which reach weights only on that way.
        """
        path = self.paths.get(module)
        if path is None:
            return mixed if self.outer is None else self.outer.tap_attention(module, attended, mixed)
        names = [name for name in (f"{path}.scores", f"{path}.weights") if name in self.wanted or name in self.edits]
        if not names:
            return mixed
        self._require_room(names, attended)
        scores, weights = derived(names[-1], attended, mixed)
        asked = self._heard(f"{path}.scores", scores)
        if asked is not scores or self.seen.grad:
            weights = softmax(asked)
        used = self._heard(f"{path}.weights", weights)
        changed = asked is not scores or used is not weights or self.seen.grad
        return mixed_by(used, attended) if changed else mixed

    def tap_pass(self, module: nn.Module, cache: object | None) -> None:
        """Counts the passes of each cache."""
        if module in self.paths:
            self.step = None if cache is None else self._passes.get(cache, 0)
            if cache is not None and self.step is not None:
                self._passes[cache] = self.step + 1
        elif self.outer is not None:
            self.outer.tap_pass(module, cache)

    def _heard(self, name: str, x: Tensor) -> Tensor:
        for edit in self.edits.get(name, ()):
            x = _edited(name, edit, x)
        if name in self.wanted:
            self.seen.keep(name, x, self.step)
        return x

    def _require_room(self, names: Sequence[str], attended: Attended) -> None:
        """Before scores are made, which may be far larger than anything else in the model."""
        visibility, heads = attended.visibility, attended.q.shape[-2]
        queries, keys = (visibility.grid(x).shape[1] for x in (attended.q, attended.k))
        size = visibility.rows * heads * queries * keys * max(attended.q.element_size(), 4)
        kept = sum(name in self.wanted for name in names)
        self.seen.require_room(names[-1], size * kept)


def _edited(name: str, edit: Change, x: Tensor) -> Tensor:
    # A copy, since what flows here may be read elsewhere, and an edit may write into what it is given.
    changed: object = edit(x.clone())
    if not isinstance(changed, Tensor) or changed.shape != x.shape:
        got = list(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
        raise InputError(f"the edit of {name} gave {got}; it must give a tensor of shape {list(x.shape)}")
    return changed.to(x.device, x.dtype)
