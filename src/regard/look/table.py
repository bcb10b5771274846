"""Tables of word vectors: given ones, 1-of-N, those of a model's embedding; kept as safetensors and a list of words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from regard.errors import DataError, InputError
from regard.files import write_beside, write_text
from regard.models.families import Decoder, Encoder, EncoderDecoder
from regard.settings import did_you_mean
from regard.text.tokenizer import Tokenizer
from regard.use.model import Loaded

WEIGHTS = "vectors.safetensors"
WORDS = "words.txt"
MOST = 10_000
"""Words of a 1-of-N table at most, since it has as many numbers as the square of that."""

Side = Literal["source", "target"]


@dataclass(frozen=True, eq=False)
class VectorTable:
    """Words and a vector for each."""

    words: tuple[str, ...]
    vectors: Tensor
    """`[N, D]`."""
    kind: str = "given"
    """Where they come from: `given`, `1-of-n`, `embedding` or `skip-gram`."""
    pieces: Mapping[str, int] = field(default_factory=dict)
    """Words whose vector is the mean of several tokens' vectors, and of how many."""

    def __post_init__(self) -> None:
        if self.vectors.dim() != 2 or len(self.vectors) != len(self.words):
            raise InputError(
                f"vectors of shape {list(self.vectors.shape)} do not fit {len(self.words):,} words; give "
                f"[{len(self.words)}, width]"
            )
        if len(self.number) != len(self.words):
            twice = next(word for number, word in enumerate(self.words) if self.number[word] != number)
            raise InputError(f"word ({twice}) stands in the table twice; give each word once")

    @classmethod
    def of(cls, vectors: Mapping[str, Sequence[float] | Tensor]) -> VectorTable:
        """A table of given vectors."""
        rows = [torch.as_tensor(vector) for vector in vectors.values()]
        if len({row.shape for row in rows}) != 1:
            raise InputError(
                f"vectors of {len({row.shape for row in rows})} shapes make no table; give some, all equally long"
            )
        dtype = torch.float64 if any(row.dtype == torch.float64 for row in rows) else torch.float32
        return cls(tuple(vectors), torch.stack([row.to(dtype) for row in rows]))

    @cached_property
    def number(self) -> Mapping[str, int]:
        """The row of each word."""
        return {word: number for number, word in enumerate(self.words)}

    @cached_property
    def units(self) -> Tensor:
        """`[N, D]`: the vectors, each divided by its length; one of nothing but zeros stays as it is."""
        wide = self.vectors if self.vectors.dtype == torch.float64 else self.vectors.float()
        return functional.normalize(wide, dim=1, eps=1e-30)

    def row(self, word: str) -> int:
        """The row of a word; an unknown one is refused with the nearest known."""
        found = self.number.get(word)
        if found is None:
            raise InputError(
                f"word ({word}) is not among the {len(self.words):,} of this table{did_you_mean(word, self.words)}; "
                "choose another, or make a table that has it"
            )
        return found

    def __getitem__(self, word: str) -> Tensor:
        return self.vectors[self.row(word)]

    def __contains__(self, word: object) -> bool:
        return word in self.number

    def __len__(self) -> int:
        return len(self.words)

    def chosen(self, words: Sequence[str]) -> VectorTable:
        """A table of these words alone."""
        rows = [self.row(word) for word in words]
        pieces = {word: self.pieces[word] for word in words if word in self.pieces}
        return VectorTable(tuple(words), self.vectors[rows], self.kind, pieces)

    def __repr__(self) -> str:
        return f"VectorTable({self.kind}, {len(self):,} × {self.vectors.shape[1]})"


def one_of_n(words: Iterable[str]) -> VectorTable:
    """1-of-N: word i is 1 at place i and 0 elsewhere, so any two words are equally far apart (cosine 0)."""
    known = tuple(words)
    if len(known) > MOST:
        raise InputError(
            f"a 1-of-N table of {len(known):,} words would have {len(known) ** 2:,} numbers; give {MOST:,} at most"
        )
    return VectorTable(known, torch.eye(len(known)), "1-of-n")


# ------------------------------------------------------------------------------------------------------ of an embedding


def embedding_table(model: Loaded, words: Iterable[str] | None = None, side: Side = "source") -> VectorTable:
    """The token vectors of a model, before positions: of its vocabulary, or of given words.

    A word of several tokens has the mean of their vectors, and `pieces` says so. Vocabulary entries are named as the
    vocabulary writes them. `side` matters in an encoder-decoder alone.
    """
    tokenizer = _tokenizer(model, side)
    embedding = _embedding(model, side)
    rows = embedding.num_embeddings
    if words is None:
        numbers = [number for number in range(min(tokenizer.size, rows)) if _is_there(tokenizer, number)]
        with torch.no_grad():
            vectors = embedding(torch.tensor(numbers, device=embedding.weight.device)).float().cpu()
        return VectorTable(tuple(tokenizer.token(number) for number in numbers), vectors, "embedding")
    known = tuple(dict.fromkeys(words))
    ids = {word: tokens_of(tokenizer, word) for word in known}
    with torch.no_grad():
        means = [embedding(torch.tensor(ids[word], device=embedding.weight.device)).float().mean(0) for word in known]
    if not means:
        raise InputError("words () must name at least one; leave it out for the whole vocabulary")
    pieces = {word: len(tokens) for word, tokens in ids.items() if len(tokens) > 1}
    return VectorTable(known, torch.stack(means).cpu(), "embedding", pieces)


def tokens_of(tokenizer: Tokenizer, word: str) -> list[int]:
    """The tokens of a word as it stands inside a sentence; as it opens one, where those are fewer."""
    unknown = tokenizer.roles.get("unknown")
    found = [ids for ids in tokenizer.ids([f" {word}", word]) if ids and unknown not in ids]
    if not word.strip() or not found:
        raise InputError(f"word ({word!r}) is unknown to this tokenizer, so it has no vector; leave it out")
    return min(found, key=len)


def _is_there(tokenizer: Tokenizer, number: int) -> bool:
    """Vocabularies from elsewhere may have holes."""
    try:
        tokenizer.token(number)
    except InputError:
        return False
    return True


def _tokenizer(model: Loaded, side: Side) -> Tokenizer:
    if model.tokenizers is None:
        raise InputError(f"model ({model.name}) has no tokenizer.json, so it knows no words; put one beside it")
    return model.tokenizers.source if side == "source" else model.tokenizers.target


def _embedding(model: Loaded, side: Side) -> torch.nn.Embedding:
    network = model.network
    if isinstance(network, EncoderDecoder):
        return network.source.tokens if side == "source" else network.target.tokens
    if isinstance(network, Encoder | Decoder):
        return network.embedding.tokens
    raise InputError(f"model ({model.name}) is of kind {model.settings.kind} and reads no words; choose one of text")


# ---------------------------------------------------------------------------------------------------------------- files


def save(table: VectorTable, directory: Path | str) -> None:
    """The vectors as safetensors and, beside them, the words as text, one a line."""
    place = Path(directory)
    broken = next((word for word in table.words if "\n" in word or "\r" in word), None)
    if broken is not None:
        raise InputError(f"word ({broken!r}) holds the end of a line, which {WORDS} cannot keep; leave it out")
    place.mkdir(parents=True, exist_ok=True)
    pieces = torch.tensor([table.pieces.get(word, 1) for word in table.words], dtype=torch.int32)
    tensors = {"vectors": table.vectors.contiguous(), "pieces": pieces}
    write_beside(place / WEIGHTS, lambda partial: save_file(tensors, partial, metadata={"kind": table.kind}))
    write_text(place / WORDS, "".join(f"{word}\n" for word in table.words))


def load(directory: Path | str) -> VectorTable:
    """What `save` wrote."""
    place = Path(directory)
    try:
        text = (place / WORDS).read_bytes().decode()
        with safe_open(place / WEIGHTS, "pt") as file:
            kind = (file.metadata() or {}).get("kind", "given")
            vectors, counts = file.get_tensor("vectors"), file.get_tensor("pieces").tolist()
    except (OSError, UnicodeDecodeError, SafetensorError) as error:
        raise DataError(
            f"{place} holds no vectors ({error}); it needs {WEIGHTS} and {WORDS} as save wrote them"
        ) from None
    words = tuple(text.split("\n")[:-1])
    if not len(words) == len(vectors) == len(counts):
        raise DataError(f"{place / WORDS} has {len(words):,} words for {len(vectors):,} vectors; copy both files again")
    return VectorTable(words, vectors, kind, {word: n for word, n in zip(words, counts, strict=True) if n > 1})
