"""Settings as TOML text and back."""

from __future__ import annotations

from typing import Any

import tomli_w

from regard.settings import Settings, parse, read_toml, to_table


def to_toml(settings: Settings) -> str:
    return tomli_w.dumps(to_table(settings))


def from_toml(kind: Any, text: str) -> Any:
    return parse(kind, read_toml(text))
