"""Tags of languages: special tokens that tell a model of several directions which language to write.

A tag stands first in the source (Johnson et al. 2017), so that nothing else of a model has to know of it.
"""

from __future__ import annotations


def tag(language: str) -> str:
    """The token that asks for a language."""
    return f"<2{language}>"
