"""What the settings of two models differ in."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from regard.models.settings import EncoderDecoder, ModelSettings
from regard.settings import Table, to_table


def differences(ours: ModelSettings, theirs: ModelSettings) -> dict[str, tuple[Any, Any]]:
    """The settings that differ, by their dotted keys, each with our value and theirs; None: not set.

    Values that follow from others count as if they were written out. Of a table of another kind, only `kind` is told.
    """
    here, there = filled(ours), filled(theirs)
    other_kinds = {key for key in here.keys() & there.keys() if key.endswith("kind") and here[key] != there[key]}
    hidden = tuple(key.removesuffix("kind") for key in other_kinds)
    return {
        key: (here.get(key), there.get(key))
        for key in [*here, *(key for key in there if key not in here)]
        if not equal(here.get(key), there.get(key)) and (key in other_kinds or not key.startswith(hidden))
    }


def filled(settings: ModelSettings) -> dict[str, Any]:
    """The complete settings as a flat table of dotted keys."""
    return dict(flat(complete(settings)))


def complete(settings: ModelSettings) -> Table:
    """The settings with every value filled in that follows from others."""
    table = to_table(settings)
    output_bias = settings.attention.output_bias
    table["attention"] |= {
        "head_size": settings.head_size,
        "value_size": settings.value_size,
        "kv_heads": settings.kv_heads,
        "output_bias": settings.attention.bias if output_bias is None else output_bias,
        "scale": settings.attention.scale or settings.head_size**-0.5,
    }
    table["ffn"]["hidden"] = settings.ffn_hidden
    table["final_norm"] = settings.has_final_norm
    if isinstance(settings, EncoderDecoder):
        table["tied"] = sorted(settings.tied)
        table["target_vocabulary"] = settings.target_size
        table["decoder_depth"] = settings.decoder_layers
    return table


def flat(table: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its dotted key."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", value


def equal(ours: Any, theirs: Any) -> bool:
    """Numbers that were worked out in two ways (1 / √width) may differ in their last bit."""
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=1e-12)
    return bool(ours == theirs)


def said(value: Any) -> str:
    """A value as an override writes it."""
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)
