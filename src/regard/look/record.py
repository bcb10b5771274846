"""record(model, ...): what flows through a model, seen and changed.

```python
with regard.record(model, "decoder.*.cross.weights") as seen:
    model.translate("Ein Hund läuft.")
seen["decoder.3.cross.weights"]
```
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import nn

from regard.blocks.tap import current_recorder, recorded_by
from regard.errors import InputError
from regard.look.edits import Edit, bound
from regard.look.names import Tap, matching, names_of
from regard.look.network import network_of
from regard.look.recorder import Change, Recorder
from regard.look.seen import Seen
from regard.look.uncompiled import uncompiled
from regard.models.build import Model
from regard.use.model import Loaded

LIMIT = 2 * 2**30
"""Bytes that a recording may take, unless another limit is given."""


@contextmanager
def record(
    model: nn.Module | Loaded,
    *patterns: str,
    edit: Mapping[str, Edit] | None = None,
    grad: bool = False,
    limit: int = LIMIT,
) -> Iterator[Seen]:
    """Records, within the block, what flows through the model by the names that the patterns stand for.

    The model is a network of this library, compiled or not, or what `regard.load` gives. In patterns `*` is any text
    (`decoder.*.cross.weights`). `edit` maps patterns to changes (`regard.edits`, or a function of the tensor), which
    are made before a value is kept. Values are copies on the CPU in float32; with `grad` they are the tensors
    themselves, through which gradients flow. More than `limit` bytes are refused before they are taken.
    """
    network = network_of(model)
    known = names_of(network)
    found = {name for pattern in patterns for name in matching(pattern, known)}
    edits = _edits(edit or {}, known, network)
    if not found and not edits:
        raise InputError('nothing is to be recorded or edited; name it: regard.record(model, "*.weights")')
    outer = current_recorder()
    if outer is not None and outer.hears(network):
        raise InputError("this model is being recorded already; give all patterns and edits to one regard.record")
    seen = Seen([name for name in known if name in found], grad, limit)
    with uncompiled(), recorded_by(Recorder(network, seen, edits, outer)):
        yield seen


def _edits(edit: Mapping[str, Edit], known: Mapping[str, Tap], network: Model) -> dict[str, list[Change]]:
    """The changes of each name, in the order in which they were given."""
    found: dict[str, list[Change]] = {}
    for pattern, change in edit.items():
        for name in matching(pattern, known):
            found.setdefault(name, []).append(bound(change, name, known[name], network.settings.attention.heads))
    return found
