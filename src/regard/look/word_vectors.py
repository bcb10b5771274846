"""Static word vectors: one vector for each word, wherever it stands, with neighbours and analogies.

```python
vectors = regard.WordVectors.train(lines)                    # skip-gram on your own text
vectors = regard.WordVectors.of_model(regard.load("de-en"))  # the token embeddings of a model
vectors.nearest("king")
vectors.analogy("man", "king", "woman")                      # king − man + woman
```

N: words, D: width, Q: questions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from regard.errors import DataError, InputError
from regard.files import write_beside, write_text
from regard.models.families import Decoder, Encoder, EncoderDecoder
from regard.settings import did_you_mean
from regard.use.model import Loaded

VECTORS, WORDS = "vectors.safetensors", "words.txt"
NOISE_POWER = 0.75
"""Negative samples are drawn by count to this power (Mikolov et al. 2013, section 2.2)."""
WORD = re.compile(r"\w+(?:['’.,-]\w+)*")


class Neighbour(NamedTuple):
    """A word and its score: the cosine or, for an analogy, the score of the method."""

    word: str
    score: float


class AnalogyAccuracy(NamedTuple):
    """Accuracy on a list of analogies. Shares are of the analogies whose four words are all known.

    An answer is `right` if the fourth word has the single highest score. The baseline (Linzen 2016) answers with the
    nearest neighbour of the third word.
    """

    right: int
    by_neighbour: int
    known: int
    unknown: int

    @property
    def share(self) -> float:
        return self.right / self.known if self.known else 0.0

    @property
    def baseline(self) -> float:
        return self.by_neighbour / self.known if self.known else 0.0


class WordVectors:
    """Words with one vector each. Example: `regard.WordVectors(["one", "two"], torch.eye(2)).nearest("one")`."""

    def __init__(self, words: Sequence[str], vectors: Tensor) -> None:
        """`vectors` is `[N, D]`."""
        if vectors.dim() != 2 or len(vectors) != len(words):
            raise InputError(f"vectors have shape {list(vectors.shape)}, expected [{len(words)}, width]")
        self.words = tuple(words)
        self.vectors = vectors
        self._rows = {word: row for row, word in enumerate(self.words)}
        if len(self._rows) != len(self.words):
            word, count = Counter(self.words).most_common(1)[0]
            raise InputError(f"word {word!r} occurs {count} times; give each word once")

    @classmethod
    def of(cls, vectors: Mapping[str, Sequence[float] | Tensor]) -> WordVectors:
        """From a mapping of words to vectors of equal length."""
        rows = [torch.as_tensor(vector) for vector in vectors.values()]
        if len({row.shape for row in rows}) != 1:
            raise InputError("vectors must all have the same length, and there must be at least one")
        doubles = any(row.dtype == torch.float64 for row in rows)
        return cls(list(vectors), torch.stack(rows).to(torch.float64 if doubles else torch.float32))

    @classmethod
    def one_hot(cls, words: Sequence[str]) -> WordVectors:
        """1-of-N encoding: the cosine of any two different words is 0."""
        return cls(words, torch.eye(len(words)))

    @classmethod
    def of_model(cls, model: Loaded, words: Iterable[str] | None = None) -> WordVectors:
        """The (source) token embeddings of a model: its whole vocabulary, or the given words.

        A word of several tokens gets the mean of their vectors.
        """
        network = model.network
        if model.tokenizers is None or not isinstance(network, Encoder | Decoder | EncoderDecoder):
            raise InputError(f"model {model.name} reads no text; give a text model with its tokenizer.json")
        tokenizer = model.tokenizers.source
        embedding = network.source if isinstance(network, EncoderDecoder) else network.embedding
        table_VD = embedding.tokens.weight.detach().float().cpu()
        if words is None:
            named = {}
            for number in range(min(tokenizer.size, len(table_VD))):
                with suppress(InputError):  # vocabularies from elsewhere may have holes
                    named[tokenizer.token(number)] = number
            return cls(list(named), table_VD[list(named.values())])
        vectors, unknown = {}, tokenizer.roles.get("unknown")
        for word in words:  # inside a sentence, or at its start where the tokens are fewer
            found = [ids for ids in tokenizer.ids([f" {word}", word]) if ids and unknown not in ids]
            if not word.strip() or not found:
                raise InputError(f"word {word!r} is unknown to the tokenizer, so it has no vector; leave it out")
            vectors[word] = table_VD[min(found, key=len)].mean(0)
        if not vectors:
            raise InputError("words is empty; leave it out for the whole vocabulary")
        return cls(list(vectors), torch.stack(list(vectors.values())))

    @classmethod
    def train(  # noqa: PLR0913
        cls,
        lines: Iterable[str],
        width: int = 100,
        window: int = 5,
        negatives: int = 5,
        min_count: int = 5,
        epochs: int = 5,
        rate: float = 0.1,
        batch: int = 1024,
        seed: int = 0,
    ) -> WordVectors:
        """Trains skip-gram vectors with negative sampling (Mikolov et al. 2013) on lower-cased lines.

        A word's vector learns to tell the words around it, up to `window` positions away in the same line, from
        `negatives` random words. Words that occur fewer than `min_count` times are left out. The same seed gives the
        same vectors.
        """
        texts = [WORD.findall(line.lower()) for line in lines]
        counts = Counter(word for text in texts for word in text)
        words = [word for word in sorted(counts, key=lambda word: (-counts[word], word)) if counts[word] >= min_count]
        if len(words) < 2:
            raise DataError(f"min_count ({min_count}) leaves {len(words)} words, expected at least 2; give more text")
        pairs_P2 = _window_pairs(texts, {word: row for row, word in enumerate(words)}, window)
        noise = torch.tensor([counts[word] ** NOISE_POWER for word in words])
        generator = torch.Generator().manual_seed(seed)
        centres, contexts = (nn.Embedding(len(words), width, sparse=True) for _ in range(2))
        nn.init.uniform_(centres.weight, -0.5 / width, 0.5 / width, generator=generator)
        nn.init.zeros_(contexts.weight)
        optimizer = torch.optim.Adagrad([*centres.parameters(), *contexts.parameters()], lr=rate)
        steps = epochs * -(-len(pairs_P2) // batch)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1e-3, steps)
        quiet = torch.sparse.check_sparse_tensor_invariants(False)  # type: ignore[no-untyped-call]
        with quiet:  # without it, Adagrad warns about sparse gradients
            for _ in range(epochs):
                order = torch.randperm(len(pairs_P2), generator=generator)
                for chosen in torch.split(order, batch):
                    centre_BD1 = centres(pairs_P2[chosen, 0])[..., None]
                    drawn = torch.multinomial(noise, len(chosen) * negatives, replacement=True, generator=generator)
                    near_B1 = contexts(pairs_P2[chosen, 1:]) @ centre_BD1
                    far_BN1 = contexts(drawn.view(len(chosen), negatives)) @ centre_BD1
                    loss = -functional.logsigmoid(near_B1).sum() - functional.logsigmoid(-far_BN1).sum()
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    schedule.step()
        return cls(words, centres.weight.detach())

    @cached_property
    def units(self) -> Tensor:
        """`[N, D]`: the vectors divided by their length; a zero vector stays zero."""
        wide = self.vectors if self.vectors.dtype == torch.float64 else self.vectors.float()
        return functional.normalize(wide, dim=1, eps=1e-30)

    def row(self, word: str) -> int:
        """The row of a word in `vectors`."""
        if word not in self._rows:
            near = did_you_mean(word, self.words)
            raise InputError(f"word {word!r} is not among these {len(self):,} words{near}; choose another")
        return self._rows[word]

    def __getitem__(self, word: str) -> Tensor:
        return self.vectors[self.row(word)]

    def __contains__(self, word: object) -> bool:
        return word in self._rows

    def __len__(self) -> int:
        return len(self.words)

    def similarity(self, first: str, second: str) -> float:
        """The cosine of two words."""
        return float((self.units[self.row(first)] @ self.units[self.row(second)]).clamp(-1, 1))

    def nearest(self, word: str | Tensor, count: int = 10) -> list[Neighbour]:
        """The words nearest to a word, itself left out, or to any vector, by cosine."""
        if isinstance(word, str):
            return self._best(self.units @ self.units[self.row(word)], [word], count)
        if word.shape != self.units.shape[1:]:
            raise InputError(f"the vector has shape {list(word.shape)}, expected {list(self.units.shape[1:])}")
        return self._best(self.units @ functional.normalize(word.to(self.units), dim=0, eps=1e-30), [], count)

    def analogy(self, a: str, b: str, c: str, count: int = 10) -> list[Neighbour]:
        """Answers "a is to b as c is to …?" with 3CosAdd, b − a + c. The three given words are never an answer."""
        rows_Q3 = torch.tensor([[self.row(word) for word in (a, b, c)]])
        return self._best(self._scores(rows_Q3)[0], [a, b, c], count)

    def accuracy(self, analogies: Iterable[Sequence[str]]) -> AnalogyAccuracy:
        """Accuracy on analogies of four words each: (man, king, woman, queen). A tie does not count as right."""
        given = [tuple(each) for each in analogies]
        wrong = next((each for each in given if len(each) != 4), None)
        if wrong is not None:
            raise InputError(f"analogy {wrong!r} has {len(wrong)} words, expected 4: (man, king, woman, queen)")
        known = [[self.row(word) for word in each] for each in given if all(word in self for word in each)]
        right = by_neighbour = 0
        rows_A4 = torch.tensor(known, dtype=torch.long).view(len(known), 4)
        for rows_Q4 in torch.split(rows_A4, 256):
            right += _count_right(self._scores(rows_Q4[:, :3]), rows_Q4)
            by_neighbour += _count_right(self.units[rows_Q4[:, 2]] @ self.units.mT, rows_Q4)
        return AnalogyAccuracy(right, by_neighbour, len(known), len(given) - len(known))

    def _scores(self, rows_Q3: Tensor) -> Tensor:
        """`[Q, N]`: the score of each word as an answer to each analogy."""
        a_QD, b_QD, c_QD = (self.units[rows_Q3[:, column]] for column in range(3))
        return (b_QD - a_QD + c_QD) @ self.units.mT

    def _best(self, scores_N: Tensor, left_out: Sequence[str], count: int) -> list[Neighbour]:
        if count < 1:
            raise InputError(f"count ({count}) must be at least 1")
        order = scores_N.argsort(descending=True, stable=True)[: count + len(left_out)].tolist()
        found = [Neighbour(self.words[row], float(scores_N[row])) for row in order if self.words[row] not in left_out]
        return found[:count]

    def save(self, directory: Path | str) -> None:
        """Writes vectors.safetensors and words.txt, one word a line."""
        place = Path(directory)
        broken = next((word for word in self.words if "\n" in word or "\r" in word), None)
        if broken is not None:
            raise InputError(f"word {broken!r} contains a line break, which {WORDS} cannot hold; leave it out")
        place.mkdir(parents=True, exist_ok=True)
        write_beside(place / VECTORS, lambda partial: save_file({"vectors": self.vectors.contiguous()}, partial))
        write_text(place / WORDS, "".join(f"{word}\n" for word in self.words))

    @classmethod
    def load(cls, directory: Path | str) -> WordVectors:
        """Reads what `save` wrote."""
        place = Path(directory)
        try:
            words = (place / WORDS).read_bytes().decode().split("\n")[:-1]
            vectors = load_file(place / VECTORS)["vectors"]
        except (OSError, UnicodeDecodeError, SafetensorError, KeyError) as error:
            raise DataError(f"{place} holds no word vectors ({error}); expected {VECTORS} and {WORDS}") from None
        if len(words) != len(vectors):
            raise DataError(
                f"{place / WORDS} has {len(words):,} words, expected {len(vectors):,}; copy both files again"
            )
        return cls(words, vectors)


def _count_right(scores_QN: Tensor, rows_Q4: Tensor) -> int:
    scores_QN = scores_QN.scatter(1, rows_Q4[:, :3], -torch.inf)
    wanted_Q1 = scores_QN.gather(1, rows_Q4[:, 3:])
    others_QN = scores_QN.scatter(1, rows_Q4[:, 3:], -torch.inf)
    return int((wanted_Q1[:, 0] > others_QN.amax(1)).sum())


def _window_pairs(texts: Sequence[Sequence[str]], rows: Mapping[str, int], window: int) -> Tensor:
    """`[P, 2]`: rows of centre and context, for each two words of a line at most `window` apart, both ways."""
    known = [[rows[word] for word in text if word in rows] for text in texts]
    tokens = np.array([row for text in known for row in text], dtype=np.int64)
    line = np.repeat(np.arange(len(known)), [len(text) for text in known])
    pairs = [np.zeros((0, 2), np.int64)]
    for distance in range(1, min(window, len(tokens) - 1) + 1):
        same = line[:-distance] == line[distance:]
        first, second = tokens[:-distance][same], tokens[distance:][same]
        pairs += [np.stack([first, second], 1), np.stack([second, first], 1)]
    return torch.from_numpy(np.concatenate(pairs))
