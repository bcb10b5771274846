"""What a text became: its tokens, and for each of them where it comes from."""

from __future__ import annotations

import tokenizers


class Encoding:
    """The tokens of a text, or of a pair of texts. Each list below has one entry for each token."""

    __slots__ = ("_inner",)

    def __init__(self, inner: tokenizers.Encoding) -> None:
        self._inner = inner

    def __len__(self) -> int:
        return len(self._inner)

    @property
    def ids(self) -> list[int]:
        return self._inner.ids

    @property
    def tokens(self) -> list[str]:
        """As the vocabulary writes them."""
        return self._inner.tokens

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """First character in the text, and the one behind the last; (0, 0) for the frame.

        They count the characters of the text as it was given, not normalised; where a character takes several tokens,
        each of them covers the whole of it, and a lone ▁ covers the first character of its word.
        """
        return self._inner.offsets

    @property
    def words(self) -> list[int | None]:
        """Number of the word in its text, for masking whole words; none for the frame."""
        return self._inner.word_ids

    @property
    def segments(self) -> list[int]:
        """0 for the first text and its frame, 1 for the second and its."""
        return self._inner.type_ids

    @property
    def special(self) -> list[bool]:
        """Whether the token belongs to the frame."""
        return [bool(flag) for flag in self._inner.special_tokens_mask]

    def __repr__(self) -> str:
        return f"Encoding({' '.join(self.tokens)})"
