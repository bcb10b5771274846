"""The translation server: requests and answers in LibreTranslate's shapes, translated in batches by one worker."""

from __future__ import annotations

import functools
import json
import re
import tomllib
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field
from starlette.exceptions import HTTPException

from regard.decoding.settings import TranslateOptions
from regard.look.views.view import Text
from regard.models.cpu import fixed
from regard.serving import http
from regard.serving.service import Service, ServiceRequest
from regard.serving.settings import Serving
from regard.use.documents import sections
from regard.use.model import Loaded
from regard.use.translator import Translator

LINES = "application/x-ndjson"
PART = 400
"""Characters of a part of a long text. Parts are translated on their own, so that other requests get their turn."""
SHOWN = 40
"""Characters of a wrong value that an error repeats."""
UNNAMED = ("source", "target")
"""The languages of a model that names none, such as one for summaries."""
DOUBT = 0.5
"""Weight of the words that a text does not contain: a single function word is not certain evidence."""
_TAG = re.compile(r"<[^<>]*>")
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?'?")


class Detected(NamedTuple):
    """A language that a text may be in, and the confidence from 0 to 100."""

    language: str
    confidence: float


@functools.cache
def known_languages() -> tuple[dict[str, str], dict[str, list[str]]]:
    """English names by code, and the languages of each function word and special letter."""
    table = tomllib.loads(Path(__file__).with_name("languages.toml").read_text(encoding="utf-8"))
    found: dict[str, list[str]] = defaultdict(list)
    for code, words in table["words"].items():
        for word in dict.fromkeys(words.split()):
            found[word].append(code)
    return table["names"], dict(found)


def detect_language(texts: Iterable[str], languages: Sequence[str]) -> list[Detected]:
    """The languages, of those given, that the texts may be in, most likely first; without evidence the first with 0.

    Evidence for other languages lowers the confidence: a French text is neither German nor English.
    """
    found: dict[str, float] = defaultdict(float)
    _, by_word = known_languages()
    for text in texts:
        lower = text.lower().replace("’", "'")
        letters = {letter for letter in lower if not letter.isascii()}
        for token in [*_WORD.findall(lower), *letters]:
            codes = by_word.get(token) or by_word.get(token[: token.find("'") + 1], [])  # l'homme, c'est
            for code in codes:
                found[code] += 1 / len(codes)
    total = sum(found.values()) + DOUBT
    scored = [Detected(code, round(100 * found[code] / total, 1)) for code in languages if code in found]
    return sorted(scored, key=lambda each: -each.confidence) or [Detected(code, 0.0) for code in languages[:1]]


class Route(NamedTuple):
    """Texts of one route may share a batch."""

    source: str
    target: str
    alternatives: int = 0


class Translated(NamedTuple):
    """The translation of a text, then its alternatives, and the target tokens of the first."""

    versions: Sequence[str]
    tokens: int = 0


class Translators:
    """Loaded models, one for each direction; if several have the same direction, the first one serves it.

    Only `sizes` is called from more than one thread.
    """

    def __init__(self, models: Sequence[Translator], beam: int) -> None:
        self._beam = beam
        self._by_direction: dict[tuple[str, str], Translator] = {}
        for model in models:
            for direction in model.directions or [UNNAMED]:
                self._by_direction.setdefault(direction, model)
        self.directions = list(self._by_direction)

    def sizes(self, texts: Sequence[str], route: Route) -> list[int]:
        """The number of source tokens of each text."""
        return self._by_direction[route[:2]].sizes(texts)

    def translate(self, texts: Sequence[str], route: Route) -> list[Translated]:
        found = self._by_direction[route[:2]].translations(texts, self._options(route))
        return [Translated([each.text for each in row], len(row[0].tokens)) for row in found]

    def stream(self, text: str, route: Route) -> Iterator[str]:
        return self._by_direction[route[:2]].stream(text, self._options(route).changed({"beam": 1}))

    def _options(self, route: Route) -> TranslateOptions:
        source, to = (None, None) if route[:2] == UNNAMED else route[:2]
        count = route.alternatives + 1
        return TranslateOptions(source=source, to=to, beam=max(self._beam, count), nbest=count)


class DetectRequest(ServiceRequest):
    """Texts whose language is to be detected."""

    q: Text | list[Text]
    """A text, or a list of texts."""

    @property
    def texts(self) -> list[str]:
        return [self.q] if isinstance(self.q, str) else self.q


class TranslateRequest(DetectRequest):
    """Texts to translate."""

    source: Text
    """Language code of the texts, or "auto" to detect it."""
    target: Text
    """Language code of the translation."""
    format: Literal["text", "html"] = "text"
    """Tags and entities are kept in both formats; in "html" the language detection ignores tags."""
    alternatives: int = Field(default=0, ge=0)
    """Number of alternative translations."""


class TranslationService(Service):
    """Answers requests for translations with LibreTranslate's API."""

    about = "Translation with LibreTranslate's API."

    def __init__(self, model: Translators, names: Sequence[str] = ()) -> None:
        self.model = model
        self.names = names
        self.directions = tuple(model.directions)
        self.codes = tuple(dict.fromkeys(code for direction in self.directions for code in direction))

    @classmethod
    def choose(cls, models: Mapping[str, Loaded], settings: Serving) -> Self | None:
        """Translates one text in each direction, so that the first request is not slower than others."""
        chosen = {name: model for name, model in models.items() if isinstance(model, Translator)}
        if not chosen:
            return None
        for model in chosen.values():
            model.network = fixed(model.network)
        translators = Translators(list(chosen.values()), settings.beam)
        for source, target in translators.directions:
            translators.translate(["."], Route(source, target))
        return cls(translators, list(chosen))

    @property
    def summary(self) -> str:
        return f"translating {', '.join(f'{source} to {target}' for source, target in self.directions)}"

    def run(self, key: Route, items: list[str]) -> Sequence[Translated]:
        return self.model.translate(items, key)

    def _route(self, asked: TranslateRequest) -> tuple[Route, Detected | None]:
        """The route of a request, and the detected language if the source is "auto"."""
        self.common.check_length(asked.texts)
        most = self.common.settings.alternatives
        if asked.alternatives > most:
            raise HTTPException(400, f"Invalid request: alternatives must be at most {most}")
        found = self._detected(asked) if asked.source == "auto" else None
        source, target = found.language if found else asked.source, asked.target
        for code in (source, target):
            if code not in self.codes:
                shown = ascii(code[:SHOWN])[1:-1] + ("…" if len(code) > SHOWN else "")
                raise HTTPException(400, f"{shown} is not supported; choose one of {', '.join(self.codes)}")
        if source != target and (source, target) not in self.directions:
            known = ", ".join(f"{a} to {b}" for a, b in self.directions)
            raise HTTPException(400, f"{source} to {target} is not supported; choose one of {known}")
        return Route(source, target, asked.alternatives), found

    def _detected(self, asked: TranslateRequest) -> Detected:
        """The most likely language; of equally likely ones, one that can be translated into the target."""
        texts = [_TAG.sub(" ", text) for text in asked.texts] if asked.format == "html" else asked.texts
        found = detect_language(texts, self.codes)
        best = found[0].confidence
        usable = [code for code in self.codes if (code, asked.target) in self.directions]
        if best == 0 and usable:
            return Detected(usable[0], 0.0)
        return next((each for each in found if each.confidence == best and each.language in usable), found[0])

    async def translate(self, asked: TranslateRequest, request: Request) -> dict[str, Any]:
        """The answer to a request. Empty texts, and texts already in the target language, are returned unchanged."""
        route, detected = self._route(asked)
        found = [Translated([text]) for text in asked.texts]
        indices = [i for i, text in enumerate(asked.texts) if text.strip() and route.source != route.target]
        if indices:
            parts = [(i, part) for i in indices for part in sections(asked.texts[i], PART)]
            texts = [part for _, part in parts]
            sizes = self.model.sizes(texts, route)
            translated: list[Translated] = await self.common.results(self, route, texts, sizes, asked, request)
            self.common.metrics.written.inc(sum(each.tokens for each in translated))
            for i, group in groupby(zip(parts, translated, strict=True), key=lambda pair: pair[0][0]):
                found[i] = _joined([each for _, each in group])
        return _answer(asked, found, detected)

    def stream(self, asked: TranslateRequest, request: Request) -> AsyncIterator[dict[str, Any]]:
        """The translation in pieces: `{"piece": …}` for each, then the whole text or an error."""
        if asked.format != "text" or not isinstance(asked.q, str) or asked.alternatives:
            raise HTTPException(400, "Invalid request: a stream takes one text, of format text, without alternatives")
        route, detected = self._route(asked)
        same = route.source == route.target or not asked.q.strip()

        def pieces(text: str) -> Iterator[str]:  # a generator, so that the model is called on the worker thread
            yield from [text] if same else self.model.stream(text, route)

        size = 1 if same else sum(self.model.sizes([asked.q], route))
        received = self.common.stream([pieces(asked.q)], [size], asked, request, self.common.iterators)

        async def answers() -> AsyncIterator[dict[str, Any]]:
            whole = ""
            try:
                async for _, piece in received:
                    whole += piece
                    yield {"piece": piece}
            except Exception as error:
                yield {"error": http.http_error(error).detail}
                return
            yield {"done": True, **_answer(asked, [Translated([whole])], detected)}

        return answers()

    async def detect(self, asked: DetectRequest, request: Request) -> list[dict[str, Any]]:
        self.common.check_length(asked.texts)
        return [each._asdict() for each in detect_language(asked.texts, self.codes)]

    def add_routes(self, app: FastAPI) -> None:
        async def stream(asked: TranslateRequest, request: Request) -> Response:
            answers = self.stream(asked, request)
            if http.EVENTS in request.headers.get("accept", ""):
                return http.streamed(http.event(answer) async for answer in answers)
            return http.streamed((f"{json.dumps(answer, ensure_ascii=False)}\n" async for answer in answers), LINES)

        summary = "Translate one text and send it in pieces."
        description = (
            'One JSON object on each line: {"piece": "…"} for each piece, then {"done": true, "translatedText": "…"} '
            f'or {{"error": "…"}}. With `Accept: {http.EVENTS}` the answer consists of server-sent events.'
        )
        self.post(app, "/translate", TranslateRequest, self.translate, "Translate a text, or a list of texts.")
        self.post(app, "/translate/stream", TranslateRequest, stream, summary, description)
        self.post(app, "/detect", DetectRequest, self.detect, "Detect the language of a text.")

        @app.get("/languages", summary="List the languages and their targets.")
        async def languages() -> Response:
            listed, (names, _) = [], known_languages()
            for code in self.codes:  # each language is its own target, too, as in LibreTranslate
                targets = {code, *(target for source, target in self.directions if source == code)}
                listed.append({"code": code, "name": names.get(code, code), "targets": sorted(targets)})
            return JSONResponse(listed)

        @app.get("/frontend/settings", summary="Settings for LibreTranslate's web page.")
        async def frontend() -> Response:
            target, keys = self.directions[0][1], bool(self.common.settings.api_keys)
            languages = {
                "source": {"code": "auto", "name": "Auto Detect"},
                "target": {"code": target, "name": known_languages()[0].get(target, target)},
            }
            settings = {"apiKeys": keys, "keyRequired": keys, "charLimit": self.common.settings.characters}
            return JSONResponse(settings | {"language": languages, "filesTranslation": False, "suggestions": False})


def _joined(parts: Sequence[Translated]) -> Translated:
    """The translation of a text from those of its parts; the last alternative of a part stands for further ones."""
    count = max(len(part.versions) for part in parts)
    versions = ["".join(part.versions[min(rank, len(part.versions) - 1)] for part in parts) for rank in range(count)]
    return Translated(versions, sum(part.tokens for part in parts))


def _answer(asked: TranslateRequest, found: Sequence[Translated], detected: Detected | None) -> dict[str, Any]:
    listed: dict[str, list[Any]] = {"translatedText": [each.versions[0] for each in found]}
    if detected is not None:
        listed["detectedLanguage"] = [detected._asdict()] * len(found)
    if asked.alternatives:
        listed["alternatives"] = [list(dict.fromkeys(each.versions))[1 : asked.alternatives + 1] for each in found]
    return listed if isinstance(asked.q, list) else {name: values[0] for name, values in listed.items()}
