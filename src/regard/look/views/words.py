"""Words view: lines from a word to the words that it attends to. The page draws it from attention weights."""

from __future__ import annotations

from regard.look.views.heads import stored_heads
from regard.look.views.view import PageView

WORDS = PageView(
    "words", (), stored_heads, lambda study: bool(study.attentions) and study.loaded.tokenizers is not None
)
