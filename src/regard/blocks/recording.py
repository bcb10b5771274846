"""Recording: `tap(module, name, x)` in the blocks, and `record(model, ...)`, which reads and edits tapped values.

```python
with regard.record(model, "decoder.*.cross.weights") as recording:
    model.translate("Ein Hund läuft.")
recording["decoder.3.cross.weights"]
```

`tap` returns x at once unless a recorder is active in the current context (a `ContextVar`, so threads and tasks do not
affect each other). In compiled code it always returns x. Attention weights, which fused kernels do not return, are
derived from queries, keys and visibility, and checked against the kernel's output.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from regard.blocks.kernels import Scoring, attention_scores, masked_softmax, mix
from regard.blocks.visibility import Visibility
from regard.errors import InputError, RecordError
from regard.settings import Settings, did_you_mean

if TYPE_CHECKING:
    from regard.blocks.edits import Edit

LIMIT = 2 * 2**30
"""Bytes that a recording may take by default."""
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""Largest difference between derived weights · values and the kernel's output, relative to the largest value.

In 16 bits a kernel also rounds the weights and its result, so a few roundings more are allowed.
"""

Change: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Tap:
    """A value that can be recorded. See `Tapped`."""

    name: str
    shape: str
    """Of a padded batch. In a packed batch `B T` is one dimension; scores and weights keep one row per batch row."""
    meaning: str

    @property
    def sizes(self) -> tuple[str, ...]:
        return tuple(self.shape.split())


EMBEDDING_TAPS = (
    Tap("tokens", "B T D", "embeddings of tokens (after scaling) or of patches, before positions"),
    Tap("positions", "T D", "position encoding added to the embeddings, if any (with a leading B if rows differ)"),
)
STACK_INPUT = Tap("residual", "B T D", "residual stream before the first layer: embeddings and positions")
STACK_OUTPUT = Tap("out", "B T D", "output of the stack: the residual stream after the final norm, if there is one")
ATTENTION_TAPS = (
    Tap("input", "B T D", "input of attention: the residual stream, after the norm in pre-norm models"),
    Tap("q", "B T H E", "queries, after norm and rotation, if any"),
    Tap(
        "k",
        "B K G E",
        "keys, likewise; with a cache, of the new tokens (latent: of all; `cross`: in the first step only)",
    ),
    Tap("v", "B K G V", "values; with a cache, as keys"),
    Tap("scores", "B H T K", "input of the softmax: q·k × scale, soft cap, position bias; −∞ where hidden"),
    Tap(
        "weights",
        "B H T K",
        "attention weights of each query over the keys; derived and checked (the rest of 1 is that of a sink)",
    ),
    Tap("heads", "B T H V", "output of each head: weights · values"),
    Tap("out", "B T D", "heads joined and projected: added to the residual stream (before dropout and scale)"),
    Tap("residual", "B T D", "residual stream after attention (and after the norm in post-norm models)"),
)
FFN_TAPS = (
    Tap("input", "B T D", "input of the feed-forward"),
    Tap("hidden", "B T F", "hidden layer, after the activation (and the gate)"),
    Tap("out", "B T D", "output, added to the residual stream"),
)
EXPERTS_TAPS = (
    FFN_TAPS[0],
    Tap("router", "B T X", "score of each expert"),
    FFN_TAPS[2],
)
LAYER_TAP = Tap("residual", "B T D", "residual stream after the layer")
VOCABULARY_TAP = Tap("logits", "B T C", "logits over the vocabulary")
POOLED_TAP = Tap("pooled", "B D", "one vector for each sequence")
SEQUENCE_TAP = Tap("logits", "B C", "logits of each sequence")
TOKEN_TAP = Tap("logits", "B T C", "logits of each token")


class Tapped(nn.Module):
    """A module with taps. It returns a tensor."""

    first_taps: tuple[Tap, ...] = ()
    """Taps before those of its submodules."""
    taps: tuple[Tap, ...] = ()
    """Taps after those of its submodules."""
    __call__: Callable[..., Tensor]


class TappedStack(Tapped):
    """A sequence of layers. Layer i is `stack[i]`, and its parameters are named `i.…`."""

    first_taps = (STACK_INPUT,)
    taps = (STACK_OUTPUT,)

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.depth = 0
        for layer in layers:
            self.add_module(str(self.depth), layer)
            self.depth += 1

    def __getitem__(self, index: int) -> Any:
        return self._modules[str(index)]

    def __len__(self) -> int:
        return self.depth

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(self.depth))


_PARTS = ("source", "embedding", "encoder", "target", "decoder", "output", "heads")
"""Parts of a model, in the order of computation."""


def network_of(model: object) -> Any:
    """The network of a loaded model, or the model inside a compiled module or another wrapper, or the model itself."""
    model = getattr(model, "network", model)
    parts = model.modules() if isinstance(model, nn.Module) else ()
    # Not getattr: wrappers pass attributes of the model on.
    found = [part for part in parts if isinstance(vars(part).get("settings"), Settings)]
    if len(found) != 1:
        problem = f"a {type(model).__name__} cannot be used: it contains {len(found)} models of Regard"
        raise InputError(f"{problem}; give one model, or the result of regard.load")
    return found[0]


def names_of(model: object) -> dict[str, Tap]:
    """Every name that can be recorded in this model, in the order of computation."""
    parts = sorted(network_of(model).named_children(), key=lambda part: _PARTS.index(part[0]))
    return {name: tap for path, part in parts for name, tap in _taps_of(part, path)}


def _taps_of(module: nn.Module, path: str) -> Iterator[tuple[str, Tap]]:
    yield from ((f"{path}.{tap.name}", tap) for tap in getattr(module, "first_taps", ()))
    for name, child in module.named_children():
        yield from _taps_of(child, f"{path}.{name}")
    yield from ((f"{path}.{tap.name}", tap) for tap in getattr(module, "taps", ()))


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that match a pattern, in which `*` matches any text, dots included."""
    known = list(names)
    form = re.compile(".*".join(map(re.escape, pattern.split("*"))))
    found = [name for name in known if form.fullmatch(name)]
    if not found:
        near = did_you_mean(pattern, [*dict.fromkeys(re.sub(r"\d+", "*", name) for name in known), *known])
        raise InputError(f"nothing in this model is called {pattern}{near}; regard.blocks.recording.names_of lists all")
    return found


class Attended(NamedTuple):
    """The arguments of one attention call."""

    q: Tensor
    k: Tensor
    v: Tensor
    visibility: Visibility
    scoring: Scoring


_recorders: ContextVar[tuple[Recorder, ...]] = ContextVar("regard_recorders", default=())


def current_recorders() -> tuple[Recorder, ...]:
    """The recorders of this context, the outer ones first; none in compiled code."""
    return () if is_compiling() else _recorders.get()


def tap(module: nn.Module, name: str, x: Tensor) -> Tensor:
    """x, or its replacement by a recorder. The full name is the module's path in its model, a dot, and `name`."""
    for recorder in current_recorders():
        x = recorder.tap(module, name, x)
    return x


def tap_attention(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, scoring: Scoring, mixed: Tensor
) -> Tensor:
    """`mixed`, the output of the heads, or its replacement by a recorder."""
    result = mixed
    for recorder in current_recorders():
        result = recorder.tap_attention(module, Attended(q, k, v, visibility, scoring), mixed, result)
    return result


def tap_pass(module: nn.Module, cache: object | None = None) -> None:
    """Announces a forward pass of a model and its cache, so that recorders can count decoding steps."""
    for recorder in current_recorders():
        recorder.tap_pass(module, cache)


def is_recorded(module: nn.Module) -> bool:
    """Whether a recorder listens to this module, so that its forward must not be bypassed."""
    return any(module in recorder.paths for recorder in current_recorders())


@contextmanager
def recorded_by(recorder: Recorder) -> Iterator[None]:
    """Activates a recorder within the block, in this context only."""
    token = _recorders.set((*_recorders.get(), recorder))
    try:
        yield
    finally:
        _recorders.reset(token)


class Event(NamedTuple):
    """A recorded value."""

    name: str
    step: int | None
    """In cached decoding, the number of earlier passes with this cache: step t predicts token t. None: no cache."""
    value: Tensor


class Recording(Mapping[str, Any]):
    """The result of `regard.record`: a mapping from recorded names to their values."""

    def __init__(self, names: Iterable[str], grad: bool = False, limit: int | None = LIMIT, copy: bool = True) -> None:
        """`copy`: store copies on the CPU; otherwise the tensors as they are. `limit` is in bytes; None: no limit."""
        self.wanted = list(names)
        """The names to record, in the order of computation."""
        self.grad = grad
        self.limit = limit
        self.copy = copy and not grad
        self.bytes = 0
        self.events: list[Event] = []

    def names(self) -> list[str]:
        """The names that have values, in the order of computation."""
        found = {event.name for event in self.events}
        return [name for name in self.wanted if name in found]

    def calls(self, name: str) -> list[Tensor]:
        return [event.value for event in self.events_of(name)]

    def events_of(self, name: str) -> list[Event]:
        if name not in self.wanted:
            near = did_you_mean(name, self.wanted)
            raise InputError(f"{name} was not recorded{near}; name it in regard.record(model, ...)")
        return [event for event in self.events if event.name == name]

    def __getitem__(self, name: str) -> Any:
        """The tensor of the only call; a list of tensors if there were several calls or decoding steps."""
        events = self.events_of(name)
        if not events:
            raise InputError(f"{name} has no value yet: the model did not compute it; run the model inside the block")
        if len(events) == 1 and events[0].step is None:
            return events[0].value
        return [event.value for event in events]

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def keep(self, name: str, x: Tensor, step: int | None) -> None:
        """Stores a copy on the CPU in float32 (float64 stays), or without `copy` the tensor itself."""
        dtype = torch.float32 if self.copy and x.dtype != torch.float64 else x.dtype
        self.require_room(name, x.numel() * dtype.itemsize)
        self.bytes += x.numel() * dtype.itemsize
        if self.copy:
            with torch.inference_mode(False), torch.no_grad():  # an ordinary tensor in every mode
                x = x.detach().to("cpu", dtype, copy=True)
        self.events.append(Event(name, step, x))

    def clear(self) -> list[Event]:
        events, self.events, self.bytes = self.events, [], 0
        return events

    def require_room(self, name: str, more: int) -> None:
        """Raises before memory beyond the limit is allocated."""
        if self.limit is not None and self.bytes + more > self.limit:
            needs = f"{name} needs {more / 2**20:,.1f} MiB in addition to {self.bytes / 2**20:,.1f} MiB"
            raise RecordError(
                f"limit ({self.limit / 2**30:.3g} GiB) exceeded: {needs}; record fewer names, or raise limit (in bytes)"
            )


class Recorder:
    """Records and edits the taps of one model."""

    def __init__(
        self, model: nn.Module, recording: Recording, edits: Mapping[str, Sequence[Change]] | None = None
    ) -> None:
        self.paths = {module: path for path, module in model.named_modules()}
        self.recording = recording
        self.edits = edits or {}
        self.wanted = frozenset(recording.wanted)
        self.step: int | None = None
        self._passes: WeakKeyDictionary[object, int] = WeakKeyDictionary()

    def tap(self, module: nn.Module, name: str, x: Tensor) -> Tensor:
        path = self.paths.get(module)
        return x if path is None else self._take(f"{path}.{name}", x)

    def tap_attention(self, module: nn.Module, attended: Attended, mixed: Tensor, result: Tensor) -> Tensor:
        """Derives scores and weights if they are needed. `result` is `mixed`, or what outer recorders made of it.

        With edited weights, or with gradients (which reach weights only this way), the heads are computed from the
        derived weights.
        """
        path = self.paths.get(module)
        names = [name for name in (f"{path}.scores", f"{path}.weights") if name in self.wanted or name in self.edits]
        if path is None or not names:
            return result
        # The limit comes first: scores may be far larger than anything else in the model.
        queries, keys = (attended.visibility.grid(x).shape[1] for x in (attended.q, attended.k))
        size = attended.visibility.rows * attended.q.shape[-2] * queries * keys * max(attended.q.element_size(), 4)
        self.recording.require_room(names[-1], size * sum(name in self.wanted for name in names))
        scores, weights = derive(names[-1], attended, mixed)
        new_scores = self._take(f"{path}.scores", scores)
        if new_scores is not scores or self.recording.grad:
            weights = masked_softmax(new_scores, new_scores != -torch.inf, attended.scoring.sinks)
        new_weights = self._take(f"{path}.weights", weights)
        if new_scores is scores and new_weights is weights and not self.recording.grad:
            return result
        with torch.autocast(weights.device.type, enabled=False):
            v = attended.v
            return mix(new_weights, v.to(new_weights.dtype), attended.visibility).to(v.dtype)

    def tap_pass(self, module: nn.Module, cache: object | None) -> None:
        if module in self.paths:
            self.step = None if cache is None else self._passes.get(cache, 0)
            if cache is not None and self.step is not None:
                self._passes[cache] = self.step + 1

    def _take(self, name: str, x: Tensor) -> Tensor:
        for edit in self.edits.get(name, ()):
            changed: object = edit(x.clone())  # a copy: an edit may write into its argument
            if not isinstance(changed, Tensor) or changed.shape != x.shape:
                got = list(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
                raise InputError(f"the edit of {name} returned {got}; return a tensor of shape {list(x.shape)}")
            x = changed.to(x.device, x.dtype)
        if name in self.wanted:
            self.recording.keep(name, x, self.step)
        return x


def derive(name: str, attended: Attended, mixed: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (−∞ where hidden) and weights, both `[R, H, Q, K]` in float32 (float64 if q is float64).

    Raises if the weights do not reproduce `mixed`: wrong weights are worse than none.
    """
    scoring, visibility = attended.scoring, attended.visibility
    if scoring.dropout > 0:
        raise RecordError(f"{name} is random while dropout ({scoring.dropout}) is on; call model.eval() first")
    with torch.autocast(mixed.device.type, enabled=False):
        q, k, v = (x if x.dtype == torch.float64 else x.float() for x in (attended.q, attended.k, attended.v.detach()))
        scores_RHQK = attention_scores(q, k, visibility, scoring)
        visible = visibility.visible(q.device)[:, None]
        weights_RHQK = masked_softmax(scores_RHQK, visible, scoring.sinks)
        if mixed.numel():
            known, share = weights_RHQK.detach(), TOLERANCE[mixed.dtype]
            difference = (mix(known, v, visibility) - mixed.detach()).abs().amax()
            largest = mix(known, v.abs(), visibility).amax()
            if not bool(difference <= share * largest):  # also raises for NaN
                raise RecordError(
                    f"{name} cannot be derived: the weights computed from queries, keys and visibility differ from "
                    f"the kernel's output by {float(difference):.1e} (allowed: {share:.0e} × {float(largest):.1e}); "
                    'compare with regard.blocks.kernels.use_backend("reference")'
                )
        return scores_RHQK.masked_fill(~visible, -torch.inf), weights_RHQK


@contextmanager
def record(
    model: object, *patterns: str, edit: Mapping[str, Edit] | None = None, grad: bool = False, limit: int = LIMIT
) -> Iterator[Recording]:
    """Records, within the block, the values of the model whose names match the patterns.

    The model is a network of this library, compiled or not, or the result of `regard.load`. In patterns `*` matches
    any text (`decoder.*.cross.weights`). `edit` maps patterns to changes (`regard.edits`, or a function of the
    tensor), which are applied before a value is stored. Values are copies on the CPU in float32; with `grad` they are
    the tensors themselves, with gradients. Recordings above `limit` bytes raise before memory is allocated.

    >>> with regard.record(network, "decoder.*.attention.weights") as recording:
    ...     logits = network(tokens)
    >>> recording["decoder.0.attention.weights"].shape  # batch, heads, queries, keys
    torch.Size([1, 8, 3, 3])
    """
    from regard.blocks.edits import bound

    network = network_of(model)
    known = names_of(network)
    found = {name for pattern in patterns for name in matching(pattern, known)}
    edits: dict[str, list[Change]] = {}
    for pattern, change in (edit or {}).items():
        for name in matching(pattern, known):
            edits.setdefault(name, []).append(bound(change, name, known[name], network.settings.attention.heads))
    if not found and not edits:
        raise InputError('record needs a pattern or an edit, such as regard.record(model, "*.weights")')
    if is_recorded(network):
        raise InputError("this model is already being recorded; give all patterns and edits to one regard.record")
    recording = Recording([name for name in known if name in found], grad, limit)
    with _uncompiled(), recorded_by(Recorder(network, recording, edits)):
        yield recording


_lock, _running, _stance = Lock(), [0], ExitStack()
"""The number of running recordings: the compiler's stance belongs to the process, so threads share it."""


@contextmanager
def _uncompiled() -> Iterator[None]:
    """Runs compiled models uncompiled within the block, since taps do nothing in compiled code."""
    if "torch._dynamo" not in sys.modules:  # it takes a second to import, and without it nothing is compiled
        yield
        return
    with _lock:
        if _running[0] == 0:
            _stance.enter_context(torch.compiler.set_stance("force_eager"))
        _running[0] += 1
    try:
        yield
    finally:
        with _lock:
            _running[0] -= 1
            if _running[0] == 0:
                _stance.close()
