"""Words as people count them: runs of letters and digits, and every other sign by itself."""

from __future__ import annotations

import re

from regard.text.sentences import Span

_WORD = re.compile(r"\w+(?:['’.,-]\w+)*|[^\w\s]")


def word_spans(text: str) -> list[Span]:
    """First character of each word, and the one behind its last. What's, 3.5 and well-known are single words."""
    return [match.span() for match in _WORD.finditer(text)]
