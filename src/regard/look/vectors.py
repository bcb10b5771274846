"""Contextual vectors: what a word means here. The bank of a river, and money in the bank.

A word's vector after a layer is the mean of its tokens' residual streams there. How alike the vectors of two
occurrences are says little by itself: in many models any two words are alike in the upper layers. So beside the cosines
stand those of the static vectors, which no context touches, and the mean of random other words in the same layer
(Ethayarajh 2019).

L: layers, with that before the first; N: places; P: pairs; T: tokens; D: width.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from regard.blocks.recording import record
from regard.errors import InputError
from regard.models.families import Decoder, Encoder, EncoderDecoder
from regard.text.tokenizer import Span, word_spans
from regard.use.model import Loaded
from regard.use.translation import TranslateOptions
from regard.use.translator import Translator

MOST = 1000
"""Words that the baseline looks at, at most."""


class Place(NamedTuple):
    """A word in a sentence: its characters, from the first to the one behind the last."""

    text: str
    span: Span

    @property
    def word(self) -> str:
        return self.text[slice(*self.span)]


def find(text: str, word: str, number: int = 0) -> Place:
    """The first place of a word in a text, or a later one (`number`, from 0); large and small letters are alike."""
    spans = [span for span in word_spans(text) if text[slice(*span)].lower() == word.lower()]
    if not 0 <= number < len(spans):
        raise InputError(
            f"word ({word}), number {number}, is not in {text[:60]!r}, where it stands {len(spans)} times; give its "
            "characters instead: Place(text, (first, behind_last))"
        )
    return Place(text, spans[number])


def nth_word(text: str, number: int) -> Place:
    """The n-th word of a text, from 0; signs count as words."""
    spans = word_spans(text)
    if not 0 <= number < len(spans):
        raise InputError(
            f"word {number} is not in {text[:60]!r}, which has {len(spans)}, from 0; give a smaller number"
        )
    return Place(text, spans[number])


def words_in(model: Loaded, texts: Sequence[str], to: str | None = None, most: int | None = None) -> list[Place]:
    """Every word of the texts that the model's tokenizer keeps, signs aside; a text of more than `most` tokens is
    refused."""
    reader = _Reader(model, to)
    found = []
    for text in dict.fromkeys(texts):
        ids, spans = reader.tokens(text)
        if most is not None and len(ids) > most:
            raise InputError(
                f"{text[:60]!r} has {len(ids):,} tokens, and at most {most:,} of a text are looked at; shorten it"
            )
        kept = [Place(text, span) for span in word_spans(text) if _inside(spans, span)]
        found += [place for place in kept if place.word[0].isalnum()]
    return found


class Contextual(NamedTuple):
    """The vectors of words where they stand."""

    places: tuple[Place, ...]
    tokens: tuple[tuple[str, ...], ...]
    """The tokens of each word, whose vectors were averaged."""
    layers: Tensor
    """`[L, N, D]`: before the first layer (with positions), then after each."""
    static: Tensor
    """`[N, D]`: the token embeddings alone, the same wherever the word stands."""


class Anisotropy(NamedTuple):
    """How alike random different words are: what a cosine must be compared with."""

    layers: Tensor
    """`[L]`: the mean cosine in each layer."""
    static: float
    pairs: int
    """Pairs of words that it is the mean of."""


class Similarity(NamedTuple):
    """How alike the words at several places are, layer by layer."""

    places: tuple[Place, ...]
    pairs: tuple[tuple[int, int], ...]
    """Numbers of two places each."""
    layers: Tensor
    """`[L, P]`: cosines."""
    static: Tensor
    """`[P]`: the same without context."""
    chance: Anisotropy
    """The same of random other words."""

    @property
    def adjusted(self) -> Tensor:
        """`[L, P]`: by how much they are more alike than random words of the layer."""
        return self.layers - self.chance.layers[:, None].to(self.layers)


def contextual(model: Loaded, places: Sequence[Place], to: str | None = None) -> Contextual:
    """The vectors of words in an encoder, a decoder, or the encoder of an encoder-decoder, which may need `to`: the
    language it is to write."""
    if not places:
        raise InputError("places () must name at least one word; find(text, word) makes one")
    reader = _Reader(model, to)
    tokens: dict[int, tuple[str, ...]] = {}
    layers: dict[int, Tensor] = {}
    static: dict[int, Tensor] = {}
    for text in dict.fromkeys(place.text for place in places):
        streams = reader.read(text)
        for number, place in enumerate(places):
            if place.text == text:
                chosen = streams.tokens_of(place)
                tokens[number] = tuple(streams.tokens[token] for token in chosen)
                layers[number] = streams.layers[:, chosen].mean(1)
                static[number] = streams.static[chosen].mean(0)
    every = range(len(places))
    return Contextual(
        tuple(places),
        tuple(tokens[number] for number in every),
        torch.stack([layers[number] for number in every], 1),
        torch.stack([static[number] for number in every]),
    )


def cosines(vectors: Tensor) -> Tensor:
    """`[..., N, N]` from `[..., N, D]`: the cosine of each two vectors; with a vector of zeros it is 0."""
    units = functional.normalize(vectors, dim=-1, eps=1e-30)
    return (units @ units.mT).clamp(-1, 1)


def similarity_by_layer(
    model: Loaded, places: Sequence[Place], texts: Sequence[str] | None = None, seed: int = 0, to: str | None = None
) -> Similarity:
    """How alike the words at these places are, two by two, beside the baselines.

    The random words are those of `texts` (the more, the surer), or the other words of the same sentences.
    """
    found = contextual(model, places, to)
    if len(places) < 2:
        raise InputError(f"{len(places)} place cannot be compared; give two or more")
    pairs = tuple(itertools.combinations(range(len(places)), 2))
    first, second = (list(side) for side in zip(*pairs, strict=True))
    without = [place.word for place in places]
    others = list(dict.fromkeys(place.text for place in places)) if texts is None else texts
    chance = anisotropy(model, others, without, seed, to)
    by_layer, static = cosines(found.layers), cosines(found.static)
    return Similarity(found.places, pairs, by_layer[:, first, second], static[first, second], chance)


def anisotropy(
    model: Loaded, texts: Sequence[str], without: Sequence[str] = (), seed: int = 0, to: str | None = None
) -> Anisotropy:
    """The mean cosine of different words in each layer, over all pairs of at most 1,000 words drawn from the texts."""
    left_out = {word.lower() for word in without}
    every = [Place(text, span) for text in dict.fromkeys(texts) for span in word_spans(text)]
    words = [place for place in every if place.word[0].isalnum() and place.word.lower() not in left_out]
    if len({place.word.lower() for place in words}) < 2:
        raise InputError(
            f"{len(texts)} texts have fewer than two different words to compare with; give more texts for the baseline"
        )
    drawn = sorted(random.Random(seed).sample(range(len(words)), min(len(words), MOST)))
    return chance_among(contextual(model, [words[number] for number in drawn], to))


def chance_among(found: Contextual, without: Sequence[str] = ()) -> Anisotropy:
    """The same over words whose vectors are at hand; signs, and the words of `without`, do not count."""
    left_out = {word.lower() for word in without}
    words = [place.word.lower() for place in found.places]
    counted = [number for number, word in enumerate(words) if word[0].isalnum() and word not in left_out]
    number_of = {word: number for number, word in enumerate(dict.fromkeys(words))}
    form = torch.tensor([number_of[words[number]] for number in counted])
    pairs = (form[:, None] != form).triu(1)
    count = int(pairs.sum())
    if not count:
        raise InputError("the words to compare with are all the same; give more texts for the baseline")
    layers = torch.stack([cosines(layer_ND[counted])[pairs].mean() for layer_ND in found.layers])
    return Anisotropy(layers, float(cosines(found.static[counted])[pairs].mean()), count)


# ----------------------------------------------------------------------------------------------------------------- maps


class Map(NamedTuple):
    """Vectors on a plane."""

    points: Tensor
    """`[N, 2]`."""
    share: Tensor
    """`[2]`: how much of the variance each axis shows. What is not shown may matter: distances here are never larger
    than they are."""


def map_of(vectors: Tensor) -> Map:
    """Principal components of `[N, D]`, the same each time: the largest entry of each axis is positive."""
    centred = (vectors if vectors.dtype == torch.float64 else vectors.float()) - vectors.mean(0).to(vectors)
    _, sizes, axes = torch.linalg.svd(centred, full_matrices=False)
    shown = min(2, len(axes))
    largest = axes[:shown].abs().argmax(1, keepdim=True)
    signs = axes[:shown].gather(1, largest).sign()
    points = functional.pad(centred @ (axes[:shown] * signs).mT, (0, 2 - shown))
    total = sizes.square().sum()
    share = functional.pad(sizes[:2].square(), (0, 2 - shown)) / (total if total > 0 else 1)
    return Map(points, share)


def maps(found: Contextual) -> list[Map]:
    """A map of each layer."""
    return [map_of(layer_ND) for layer_ND in found.layers]


# -------------------------------------------------------------------------------------------------------------- reading


class _Streams(NamedTuple):
    """What a model makes of one text."""

    text: str
    tokens: list[str]
    spans: list[Span]
    layers: Tensor
    """`[L, T, D]`."""
    static: Tensor
    """`[T, D]`."""

    def tokens_of(self, place: Place) -> list[int]:
        """The numbers of the tokens that hold a character of the word."""
        first, last = place.span
        found = _inside(self.spans, place.span)
        if not 0 <= first < last <= len(self.text) or not found:
            raise InputError(
                f"span {place.span} of {self.text[:60]!r}, which has {len(self.text)} characters, holds no token; give "
                "the first character of a word and the one behind its last"
            )
        return found


def _inside(spans: Sequence[Span], span: Span) -> list[int]:
    """The numbers of the tokens that hold a character of a span."""
    return [number for number, (begin, end) in enumerate(spans) if begin < span[1] and end > span[0]]


class _Reader:
    """Runs texts through a model one by one, so that none is padded, and listens."""

    def __init__(self, model: Loaded, to: str | None) -> None:
        network = model.network
        if model.tokenizers is None or not isinstance(network, Encoder | Decoder | EncoderDecoder):
            raise InputError(
                f"model ({model.name}), of kind {model.settings.kind}, reads no texts; give one of text with its "
                "tokenizer.json"
            )
        if to is not None and not isinstance(model, Translator):
            raise InputError(f"to ({to}) is for translators, and model ({model.name}) is none; leave it out")
        self.network = network
        self.tokenizer = model.tokenizers.source
        self.scribe = model.scribe(TranslateOptions(to=to)) if isinstance(model, Translator) else None
        self.embedding = "source" if isinstance(network, EncoderDecoder) else "embedding"
        self.stack = "decoder" if isinstance(network, Decoder) else "encoder"
        depth = len(network.decoder if isinstance(network, Decoder) else network.encoder)
        self.names = [f"{self.stack}.residual", *(f"{self.stack}.{layer}.residual" for layer in range(depth))]

    def read(self, text: str) -> _Streams:
        ids, spans = self.tokens(text)
        network = self.network
        tokens = torch.tensor([ids], device=next(network.parameters()).device)
        training = network.training
        network.eval()
        try:
            with torch.no_grad(), record(network, f"{self.embedding}.tokens", *self.names) as seen:
                network.encode(tokens) if isinstance(network, EncoderDecoder) else network(tokens)
        finally:
            network.train(training)
        static, *layers = (seen.calls(name)[0][0] for name in (f"{self.embedding}.tokens", *self.names))
        return _Streams(text, [self.tokenizer.token(number) for number in ids], spans, torch.stack(layers), static)

    def tokens(self, text: str) -> tuple[list[int], list[Span]]:
        """Numbers and places of the tokens, framed as the model knows them."""
        if self.scribe is not None:
            return self.scribe.read([text])[0], self.scribe.read_spans(text)
        encoding = self.tokenizer.encode(text)
        return encoding.ids, encoding.offsets
