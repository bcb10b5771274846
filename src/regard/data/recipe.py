"""From a recipe to its data: the `[data]` table, whose `kind` may be left out where the task has a usual one.

```toml
task = "translate"

[data]
train = ["train.en.gz", "train.de.gz"]
valid = ["val.en.gz", "val.de.gz"]
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.data.settings import AnyData, DataSettings
from regard.errors import SettingsError
from regard.settings import merge, parse, variants

USUAL_KINDS = {
    "translate": "parallel",
    "language": "text",
    "masked": "text",
    "tag": "columns",
    "answer": "squad",
}
"""How each task's data are written unless `data.kind` says otherwise; tasks that are not here have no usual way."""


def data_settings(recipe: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> DataSettings:
    """The data of a recipe, with `changes` (a table like `[data]`: a command line's overrides) laid over it."""
    table = recipe.get("data", {})
    if not isinstance(table, Mapping):
        raise SettingsError(f'data ({table!r}) must be a table; write [data] and, below it, train = ["FILE"]')
    changes = changes or {}
    task = recipe.get("task")
    task = task.get("kind") if isinstance(task, Mapping) else task
    usual = USUAL_KINDS.get(task) if isinstance(task, str) else None
    # A recipe that names no kind has none that a change could replace: its files stay.
    kind = table.get("kind", changes.get("kind", usual))
    merged = merge({**table, "kind": kind}, changes)
    if kind is None:
        known = ", ".join(variants(AnyData))
        raise SettingsError(f"data needs a kind, which says how its files are written; choose one of {known}")
    settings: DataSettings = parse(AnyData, merged, "data")
    return settings
