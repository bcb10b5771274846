"""Vectors view: contextual vectors of words, layer by layer. The bank of a river, and money in the bank.

A word's vector after a layer is the mean of its tokens' residual streams. A cosine says little by itself: in many
models any two words are similar in the upper layers. So it is compared with the cosine of the static vectors (the
token embeddings), and with the mean cosine of different words in the same layer (Ethayarajh 2019).

```python
found = atlas(Study(regard.load("de-en")), ["Er sitzt auf der Bank.", "Die Bank verleiht Geld."])
first, second = found.chart("Bank").places
found.cosines[:, first, second]  # by layer, to be compared with found.chart("Bank").chance.layers
```

L: layers, with the embeddings first; N: words; P: pairs; T: tokens; D: width.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from regard.blocks.recording import record
from regard.errors import InputError
from regard.look.input import Input, read, target_of
from regard.look.study import Study
from regard.look.views.lens import streams_of
from regard.look.views.view import Answer, PageQuestion, PageRequest, PageView, SavedPage, StoredAnswer, Text, packed
from regard.look.word_vectors import WORD, Neighbour, WordVectors
from regard.models.families import Decoder, EncoderDecoder, Vision
from regard.text.tokenizer import Span
from regard.use.generator import Generator
from regard.use.translator import Translator

MAX_SENTENCES = 24
MAX_WORDS = 160
"""Words of all sentences on the page: each two of them are compared, in every layer."""


@cache
def samples() -> dict[str, dict[str, Any]]:
    """Sentences in which a word has two meanings, by language: what the page shows first."""
    return tomllib.loads(Path(__file__).with_name("samples.toml").read_text("utf-8"))


class Occurrence(NamedTuple):
    """A word in a text, with the tokens whose vectors are averaged."""

    text: str
    span: Span
    """First character, and the one after the last."""
    tokens: tuple[str, ...]

    @property
    def word(self) -> str:
        return self.text[slice(*self.span)]


class Baseline(NamedTuple):
    """The mean cosine of different words, in each layer and static."""

    layers: Tensor
    static: float
    pairs: int


class Chart(NamedTuple):
    """Some words on a plane, for each layer: the occurrences of `word`, ignoring case, or all words.

    `places` are indices among the words of the atlas, `points`, `[L, N, 2]`, their positions on the plane, and `share`,
    `[L, 2]`, the share of the variance that each axis shows. Distances on the plane are never too large. `chance` is
    the baseline of the other words; None if there are too few. `arrows`, `[L, 2N, 2]`, is a plane of their static
    vectors followed by those of the layer, all divided by their length, and `arrow_share` its share of the variance.
    """

    word: str | None
    places: tuple[int, ...]
    points: Tensor
    share: Tensor
    chance: Baseline | None
    arrows: Tensor
    arrow_share: Tensor


class Atlas(NamedTuple):
    """The words of some sentences, with vectors `[L, N, D]` and cosines `[L, N, N]`.

    `static`, `[N, N]`, are the cosines of the token embeddings, which are equal in every context. `charts` has all
    words first, then each word that occurs more than once, long ones first.
    """

    texts: tuple[str, ...]
    words: tuple[Occurrence, ...]
    vectors: Tensor
    cosines: Tensor
    static: Tensor
    charts: tuple[Chart, ...]

    def chart(self, word: str | None = None) -> Chart:
        wanted = None if word is None else word.lower()
        for chart in self.charts:
            if (chart.word and chart.word.lower()) == wanted:
                return chart
        raise InputError(f"word {word!r} occurs at most once in these {len(self.texts)} texts; give two texts with it")


def atlas(study: Study, texts: Sequence[str], to: str | None = None) -> Atlas:
    """All words of some texts, in an encoder, a decoder, or the encoder of a translator.

    `to` is a translator's target language, by default its first.
    """
    kept = tuple(dict.fromkeys(text.strip() for text in texts if text.strip()))
    words, layers, static = [], [], []
    for text in kept:
        tokens, spans, streams_LTD, static_TD = _read(study, text, to)
        for match in WORD.finditer(text):
            first, end = match.span()
            chosen = [i for i, span in enumerate(spans) if span[0] < end and span[1] > first]
            if chosen and match[0][0].isalnum():
                words.append(Occurrence(text, (first, end), tuple(tokens[i] for i in chosen)))
                layers.append(streams_LTD[:, chosen].mean(1))
                static.append(static_TD[chosen].mean(0))
    if len(words) < 2:
        raise InputError(f"texts have {len(words)} words, expected at least 2")
    vectors_LND, static_ND = torch.stack(layers, 1), torch.stack(static)
    forms = [place.word.lower() for place in words]
    counts = Counter(forms)
    often = sorted((word for word, count in counts.items() if count > 1), key=lambda word: (-len(word), -counts[word]))
    charts = []
    for word in (None, *often):
        chosen = [i for i, form in enumerate(forms) if word in (None, form)]
        own_LND = vectors_LND[:, chosen]
        units = functional.normalize(torch.cat([static_ND[chosen].expand_as(own_LND), own_LND], 1), dim=-1)
        (points, share), arrows = (map(torch.stack, zip(*map(plane_map, x), strict=True)) for x in (own_LND, units))
        name, chance = words[chosen[0]].word if word else None, _baseline(vectors_LND, static_ND, forms, word)
        charts.append(Chart(name, tuple(chosen), points, share, chance, *arrows))
    return Atlas(kept, tuple(words), vectors_LND, cosines(vectors_LND), cosines(static_ND), tuple(charts))


def cosines(vectors: Tensor) -> Tensor:
    """`[..., N, N]` from `[..., N, D]`: 0 for a zero vector."""
    units = functional.normalize(vectors, dim=-1, eps=1e-30)
    return (units @ units.mT).clamp(-1, 1)


def plane_map(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """`[N, 2]`, the first two principal components of `[N, D]`, and `[2]`, the share of the variance of each.

    The largest entry of each axis is positive.
    """
    wide = vectors if vectors.dtype == torch.float64 else vectors.float()
    centred = wide - wide.mean(0)
    _, sizes, axes = torch.linalg.svd(centred, full_matrices=False)
    shown = min(2, len(axes))
    signs = axes[:shown].gather(1, axes[:shown].abs().argmax(1, keepdim=True)).sign()
    points = functional.pad(centred @ (axes[:shown] * signs).mT, (0, 2 - shown))
    total = sizes.square().sum()
    return points, functional.pad(sizes[:2].square(), (0, 2 - shown)) / (total if total > 0 else 1)


def _baseline(vectors_LND: Tensor, static_ND: Tensor, forms: list[str], without: str | None) -> Baseline | None:
    """The mean cosine of different words, except one; None if there are fewer than two."""
    counted = [i for i, form in enumerate(forms) if form != without]
    number_of = {form: number for number, form in enumerate(dict.fromkeys(forms))}
    form_N = torch.tensor([number_of[forms[i]] for i in counted], dtype=torch.long)
    pairs_NN = (form_N[:, None] != form_N).triu(1)
    if not bool(pairs_NN.any()):
        return None
    layers = torch.stack([cosines(layer_ND[counted])[pairs_NN].mean() for layer_ND in vectors_LND])
    return Baseline(layers, float(cosines(static_ND[counted])[pairs_NN].mean()), int(pairs_NN.sum()))


def _read(study: Study, text: str, to: str | None) -> tuple[list[str], Sequence[Span], Tensor, Tensor]:
    """The tokens of a text, their spans, their residual streams `[L, T, D]`, and their embeddings `[T, D]`."""
    loaded, network = study.loaded, study.network
    if loaded.tokenizers is None or isinstance(network, Vision):
        raise InputError(f"model {loaded.name} reads no text; give a text model with its tokenizer.json")
    tokenizer = loaded.tokenizers.source
    if isinstance(loaded, Translator):
        ids, spans = loaded.inputs([text], target_of(loaded, to))[0], loaded.input_spans(text)
    elif isinstance(loaded, Generator):
        side = read(loaded, Input(text), study.limit).sides["decoder"]
        ids, spans = side.ids, [token.span for token in side.tokens]
    else:
        encoding = tokenizer.encode(text)
        ids, spans = encoding.ids, encoding.offsets
    if len(ids) > study.limit:
        raise InputError(f"{text[:60]!r} has {len(ids):,} tokens, and the limit is {study.limit:,}; shorten it")
    embedding = "source.tokens" if isinstance(network, EncoderDecoder) else "embedding.tokens"
    names = streams_of(network, "decoder" if isinstance(network, Decoder) else "encoder")
    tokens = torch.tensor([ids], device=next(network.parameters()).device)
    with torch.no_grad(), record(network, embedding, *names) as seen:
        network.encode(tokens) if isinstance(network, EncoderDecoder) else network(tokens)
    streams_LTD = torch.stack([seen.calls(name)[0][0] for name in names])
    static_TE = seen.calls(embedding)[0][0]
    # A narrower embedding is repeated, as ELMo's layers read it.
    static_TD = static_TE[:, torch.arange(streams_LTD.shape[-1]) % static_TE.shape[-1]]
    return [tokenizer.token(id_) for id_ in ids], spans, streams_LTD, static_TD


class VectorsRequest(PageRequest):
    """Sentences whose words are shown."""

    texts: list[Text] = Field(max_length=64)
    to: Text | None = None

    @property
    def characters(self) -> int:
        return sum(map(len, self.texts))


def _answer(study: Study, request: VectorsRequest) -> Answer:
    texts = {text.strip() for text in request.texts} - {""}
    if not 1 <= len(texts) <= MAX_SENTENCES:
        raise InputError(f"there are {len(texts)} sentences, expected 1 to {MAX_SENTENCES}; write one a line")
    words = sum(len(WORD.findall(text)) for text in texts)
    if words > MAX_WORDS:
        raise InputError(f"the sentences have {words} words, and the limit is {MAX_WORDS}; shorten them")
    found = atlas(study, request.texts, request.to)
    number_of = {text: number for number, text in enumerate(found.texts)}
    return {
        "texts": list(found.texts),
        "words": [
            {"text": each.word, "sentence": number_of[each.text], "span": list(each.span), "tokens": list(each.tokens)}
            for each in found.words
        ],
        "cosines": packed(found.cosines),
        "static": packed(found.static),
        "charts": [
            chart._asdict()
            | {"points": packed(chart.points), "share": chart.share.tolist()}
            | {"arrows": packed(chart.arrows), "arrow_share": chart.arrow_share.tolist()}
            | {"chance": chart.chance and chart.chance._asdict() | {"layers": chart.chance.layers.tolist()}}
            for chart in found.charts
        ],
    }


QUESTION = PageQuestion("vectors", VectorsRequest, _answer)


class AnalogyRequest(PageRequest):
    """`a` is to `b` as `c` is to …: the static vector b − a + c."""

    a: Text
    b: Text
    c: Text


def analogy(study: Study, asked: AnalogyRequest) -> Answer:
    """The tokens of the vocabulary nearest to b − a + c (`analogy`), and to c alone (`neighbours`), with cosines.

    `plane` has the coordinates of a, b, c and of the first answer, in the plane along which they differ most.

    As in `WordVectors.analogy`, vectors have length 1, and the three words and their parts are no answers. A word of
    several tokens has the mean of their vectors.
    """
    given = [each.strip() for each in (asked.a, asked.b, asked.c)]
    known = WordVectors.of_model(study.loaded)
    a_D, b_D, c_D = (WordVectors.of_model(study.loaded, [each]).units[0] for each in given)
    tokenizer = study.loaded.tokenizers.source  # type: ignore[union-attr]
    pieces = {tokenizer.token(i) for each in given for ids in tokenizer.ids([each, f" {each}"]) for i in ids}
    left = {each.lstrip("▁Ġ ").casefold() for each in (*given, *pieces)}

    def nearest(point_D: Tensor) -> list[Neighbour]:
        return [each for each in known.nearest(point_D, 40) if _bare(each.word).casefold() not in left][:8]

    answers, alone = nearest(b_D - a_D + c_D), nearest(c_D)
    points_ND = torch.stack([a_D, b_D, c_D, *(known.units[known.row(each.word)] for each in answers[:1])])
    return {
        "analogy": [[_bare(word), score] for word, score in answers],
        "neighbours": [[_bare(word), score] for word, score in alone],
        "plane": plane_map(points_ND)[0].tolist(),
    }


def _bare(word: str) -> str:
    return word.lstrip("▁Ġ ") or word


ANALOGY = PageQuestion("analogy", AnalogyRequest, analogy)


def _stored(page: SavedPage) -> Iterator[StoredAnswer]:
    to, loaded = page.state.get("to"), page.study.loaded
    directions = loaded.directions if isinstance(loaded, Translator) else []
    sources = [source for source, target in directions if target == to] or [source for source, _ in directions]
    sample = samples().get(sources[0] if sources else "en", samples()["en"])
    yield page.ask(QUESTION, VectorsRequest(texts=sample["lines"], to=to))


VECTORS = PageView("vectors", (QUESTION, ANALOGY), _stored, lambda study: study.loaded.tokenizers is not None)
