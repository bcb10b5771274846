"""An atlas: the words of several sentences on planes, a map for each layer, and how alike each two of them are.

```python
found = atlas(regard.load("de-en"), ["Er sitzt auf der Bank.", "Die Bank verleiht Geld."])
found.chart("Bank").maps[-1].share  # how much of the variance is seen in the last layer
found.cosines[-1]
```

L: layers, with that before the first; N: words.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from regard.errors import InputError
from regard.look.vectors import (
    Anisotropy,
    Contextual,
    Map,
    Similarity,
    chance_among,
    contextual,
    cosines,
    map_of,
    words_in,
)
from regard.use.model import Loaded
from regard.use.translator import Translator

SENTENCES = 24
WORDS = 160
"""Of all sentences together: each two of them are compared, in every layer."""


class Chart(NamedTuple):
    """Some of the words by themselves, on a map for each layer."""

    word: str | None
    """The word that all of them are, large and small letters alike; none: these are all words."""
    places: tuple[int, ...]
    """Their numbers among the words of the atlas."""
    maps: tuple[Map, ...]
    chance: Anisotropy | None
    """How alike random other words of the sentences are; none: there are too few."""


class Atlas(NamedTuple):
    """The words of some sentences."""

    texts: tuple[str, ...]
    vectors: Contextual
    cosines: Tensor
    """`[L, N, N]`: of each two words in each layer."""
    static: Tensor
    """`[N, N]`: the same without context."""
    charts: tuple[Chart, ...]
    """First of all words; then of each that stands more than once, long ones before short."""

    def chart(self, word: str | None = None) -> Chart:
        """Of one word; none: of all."""
        wanted = None if word is None else word.lower()
        for chart in self.charts:
            if (chart.word and chart.word.lower()) == wanted:
                return chart
        raise InputError(
            f"word ({word}) does not stand more than once in these {len(self.texts)} sentences; write it into two"
        )

    def similarity(self, word: str | None = None) -> Similarity:
        """Each two places of a word, layer by layer, beside the baselines; none: each two words."""
        chart = self.chart(word)
        if chart.chance is None:
            raise InputError(f"beside {word or 'these words'} there is nothing to compare with; give longer sentences")
        first, second = (list(side) for side in zip(*itertools.combinations(chart.places, 2), strict=True))
        places = tuple(self.vectors.places[number] for number in chart.places)
        pairs = tuple(itertools.combinations(range(len(places)), 2))
        by_layer, static = self.cosines[:, first, second], self.static[first, second]
        return Similarity(places, pairs, by_layer, static, chart.chance)


def atlas(model: Loaded, texts: Sequence[str], to: str | None = None, tokens: int | None = None) -> Atlas:
    """The words of the sentences in an encoder, a decoder, or the encoder of an encoder-decoder.

    `tokens` bounds each sentence. A translator into several languages writes the first, unless one is named.
    """
    kept = tuple(dict.fromkeys(text.strip() for text in texts if text.strip()))
    if not kept or len(kept) > SENTENCES:
        raise InputError(f"texts are {len(kept)} sentences and must be 1 to {SENTENCES}; write one a line")
    if to is None and isinstance(model, Translator) and len(model.directions) > 1:
        to = model.directions[0][1]
    places = words_in(model, kept, to, tokens)
    if not 2 <= len(places) <= WORDS:
        raise InputError(f"the sentences have {len(places)} words and must have 2 to {WORDS}; change them")
    found = contextual(model, places, to)
    counts = Counter(place.word.lower() for place in places)
    often = sorted((word for word, count in counts.items() if count > 1), key=lambda word: (-len(word), -counts[word]))
    charts = tuple(_chart(found, word) for word in (None, *often))
    return Atlas(kept, found, cosines(found.layers), cosines(found.static), charts)


def _chart(found: Contextual, word: str | None) -> Chart:
    numbers = [number for number, place in enumerate(found.places) if word in (None, place.word.lower())]
    left_out = set() if word is None else {word}
    enough = len({place.word.lower() for place in found.places} - left_out) > 1
    chance = chance_among(found, tuple(left_out)) if enough else None
    name = None if word is None else found.places[numbers[0]].word
    maps = tuple(map_of(layer_ND[numbers]) for layer_ND in found.layers)
    return Chart(name, tuple(numbers), maps, chance)
