"""docs/serving.md is true."""

from __future__ import annotations

import re
from pathlib import Path

from regard.decoding.memory import CACHES
from regard.serving.settings import Serving

PAGE = (Path(__file__).parents[3] / "docs" / "serving.md").read_text(encoding="utf-8")


def test_its_code_runs() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert "assert " in code
    exec(compile(code, "docs/serving.md", "exec"), {"__name__": "page"})


def test_its_numbers_are_the_defaults() -> None:
    defaults = Serving()
    told = re.findall(r"`(\w+)` \(([\d,.]+)", PAGE)
    assert {name for name, _ in told} == {"characters", "texts", "queue", "batch_tokens", "wait_ms", "grace"}
    for name, number in told:
        assert float(number.replace(",", "")) == getattr(defaults, name)
    assert f"`beam` wide ({defaults.beam}:" in " ".join(PAGE.split())
    for name, entries in CACHES.items():
        assert f"`{name}={entries}`" in PAGE
