"""The translation server: requests and answers in LibreTranslate's shapes, translated in batches by one worker."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Hashable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Any, Literal, NamedTuple, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse, StreamingResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

import regard
from regard.decoding.settings import TranslateOptions
from regard.errors import InputError, RegardError
from regard.look.views.view import Text
from regard.models.cpu import fixed
from regard.serving import http
from regard.serving.languages import NAMES, Detected, detect_language
from regard.serving.queue import RequestQueue, StreamJob
from regard.serving.settings import Serving, body_limit
from regard.use.documents import sections
from regard.use.model import load
from regard.use.translator import Translator

CLOSE_SECONDS = 5.0
"""Time for the last batch at shutdown; requests had their `grace` before."""
EVENTS = "text/event-stream"
LINES = "application/x-ndjson"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
PART = 400
"""Characters of a part of a long text. Parts are translated on their own, so that other requests get their turn."""
SHOWN = 40
"""Characters of a wrong value that an error repeats."""
UNNAMED = ("source", "target")
"""The languages of a model that names none, such as one for summaries."""
_TAG = re.compile(r"<[^<>]*>")


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
        """The translation in pieces."""
        return self._by_direction[route[:2]].stream(text, self._options(route).changed({"beam": 1}))

    def _options(self, route: Route) -> TranslateOptions:
        source, to = (None, None) if route[:2] == UNNAMED else route[:2]
        count = route.alternatives + 1
        return TranslateOptions(source=source, to=to, beam=max(self._beam, count), nbest=count)


def load_translators(names: Sequence[str], settings: Serving) -> Translators:
    """Loads models and translates one text in each direction, so that the first request is not slower than others."""
    models = []
    for name in names:
        loaded = load(name, settings.device)
        if not isinstance(loaded, Translator):
            raise InputError(
                f"model ({name}) is of kind {loaded.settings.kind} and cannot be served; choose a translation model"
            )
        loaded.network = fixed(loaded.network)
        models.append(loaded)
    translators = Translators(models, settings.beam)
    for source, target in translators.directions:
        translators.translate(["."], Route(source, target))
    return translators


class DetectRequest(BaseModel):
    """Texts whose language is to be detected."""

    model_config = ConfigDict(use_attribute_docstrings=True, frozen=True)
    q: Text | list[Text]
    """A text, or a list of texts."""
    api_key: Text = ""
    """An API key, if the server requires one; the header `Authorization: Bearer KEY` works as well."""

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


class Metrics:
    """Prometheus metrics of one server."""

    def __init__(self) -> None:
        made = self.registry = CollectorRegistry()
        sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256)
        self._requests = Counter("regard_requests", "Answers.", ("method", "path", "status"), registry=made)
        self._seconds = Histogram("regard_request_seconds", "Time of a request.", buckets=SECONDS, registry=made)
        self.batch_texts = Histogram("regard_batch_texts", "Texts or parts in a batch.", buckets=sizes, registry=made)
        self.batch_seconds = Histogram("regard_batch_seconds", "Time of a batch.", buckets=SECONDS, registry=made)
        self.read = Counter("regard_tokens_read", "Source tokens that were translated.", registry=made)
        self.written = Counter("regard_tokens_written", "Target tokens that were written.", registry=made)
        self.failed = Counter("regard_texts_failed", "Texts that could not be translated.", registry=made)
        self._left = Counter("regard_clients_left", "Clients that closed the connection early.", registry=made)
        self.queue = Gauge("regard_queue_tokens", "Source tokens in the queue.", registry=made)
        self.streams = Gauge("regard_open_streams", "Open streams.", registry=made)

    def count(self, method: str, path: str, status: int, seconds: float) -> None:
        self._requests.labels(method, path, str(status)).inc()
        self._seconds.observe(seconds)
        if status == http.CLIENT_GONE:
            self._left.inc()


class TranslationService:
    """Answers requests. It lives in the event loop; the model runs on the worker thread of the queue."""

    def __init__(self, model: Translators, settings: Serving, say: http.Say) -> None:
        self.model = model
        self.settings = settings
        self.say = say
        self.metrics = Metrics()
        wait_seconds = settings.wait_ms / 1000
        self.queue = RequestQueue(self._run, settings.queue, settings.batch_tokens, wait_seconds, settings.streams)
        self.metrics.queue.set_function(lambda: self.queue.size)
        self.metrics.streams.set_function(lambda: self.queue.streams)
        self.directions = tuple(model.directions)
        self.codes = tuple(dict.fromkeys(code for direction in self.directions for code in direction))

    def _run(self, route: Route, texts: list[str]) -> Sequence[Translated]:
        started = time.monotonic()
        try:
            found = self.model.translate(texts, route)
        except Exception:
            if len(texts) == 1:  # a larger batch is tried again text by text
                self.metrics.failed.inc()
            raise
        self.metrics.batch_texts.observe(len(texts))
        self.metrics.batch_seconds.observe(time.monotonic() - started)
        return found

    def check_length(self, texts: Sequence[str]) -> None:
        for status, count, limit, name in (
            (400, len(texts), self.settings.texts, "texts"),
            (413, sum(map(len, texts)), self.settings.characters, "characters"),
        ):
            if count > limit:
                raise HTTPException(status, f"Invalid request: {count:,} {name}, at most {limit:,} are allowed")

    def _route(self, asked: TranslateRequest) -> tuple[Route, Detected | None]:
        """The route of a request, and the detected language if the source is "auto"."""
        self.check_length(asked.texts)
        if asked.alternatives > self.settings.alternatives:
            raise HTTPException(400, f"Invalid request: alternatives must be at most {self.settings.alternatives}")
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

    def _client(self, asked: TranslateRequest, request: Request) -> Hashable:
        """Whose share of the queue a request takes: that of an API key, or of an address."""
        if self.settings.api_keys:
            return asked.api_key or request.headers.get("authorization")
        return request.client and request.client.host

    async def translate(self, asked: TranslateRequest, request: Request) -> dict[str, Any]:
        """The answer to a request. Empty texts, and texts already in the target language, are returned unchanged."""
        route, detected = self._route(asked)
        found = [Translated([text]) for text in asked.texts]
        indices = [i for i, text in enumerate(asked.texts) if text.strip() and route.source != route.target]
        if indices:
            parts = [(i, part) for i in indices for part in sections(asked.texts[i], PART)]
            texts = [part for _, part in parts]
            sizes = self.model.sizes(texts, route)
            job = self.queue.submit(route, texts, sizes, self._client(asked, request))
            translated = await self.queue.result(job, request)
            self.metrics.read.inc(sum(sizes))
            self.metrics.written.inc(sum(each.tokens for each in translated))
            for i, group in groupby(zip(parts, translated, strict=True), key=lambda pair: pair[0][0]):
                found[i] = _joined([each for _, each in group])
        return _answer(asked, found, detected)

    def stream(self, asked: TranslateRequest, request: Request) -> AsyncIterator[dict[str, Any]]:
        """The translation in pieces: `{"piece": …}` for each, then the whole text or an error."""
        if asked.format != "text" or not isinstance(asked.q, str) or asked.alternatives:
            raise HTTPException(400, "Invalid request: a stream takes one text, of format text, without alternatives")
        route, detected = self._route(asked)
        received: asyncio.Queue[str | Exception | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def send(piece: str | Exception | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(received.put_nowait, piece)

        same = route.source == route.target or not asked.q.strip()

        def pieces(text: str) -> Iterator[str]:  # a generator, so that the model is called on the worker thread
            yield from [text] if same else self.model.stream(text, route)

        size = 1 if same else sum(self.model.sizes([asked.q], route))
        job = StreamJob(pieces(asked.q), send, size, self._client(asked, request))
        self.queue.stream(job)

        async def answers() -> AsyncIterator[dict[str, Any]]:
            whole = ""
            try:
                while isinstance(piece := await received.get(), str):
                    whole += piece
                    yield {"piece": piece}
                if piece is None:
                    yield {"done": True, **_answer(asked, [Translated([whole])], detected)}
                else:
                    self.metrics.failed.inc()
                    if not isinstance(piece, RegardError):
                        self.say(f"error: {http.error_location(piece)}")
                    yield {"error": http.http_error(piece).detail}
            finally:
                self.queue.cancel(job)

        return answers()


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


R = TypeVar("R", bound=DetectRequest)


def create_app(model: Translators, settings: Serving, say: http.Say = http.silent, verbose: bool = False) -> FastAPI:
    """The application. `say` gets a line for each internal error and, if `verbose`, for each request."""
    service = TranslationService(model, settings, say)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.queue.start()
        yield
        service.queue.close(CLOSE_SECONDS)

    about = "Translation over HTTP with LibreTranslate's API."
    app = FastAPI(
        title="Regard", version=regard.__version__, description=about, docs_url=None, redoc_url=None, lifespan=lifespan
    )
    _add_translation(app, service)
    _add_information(app, service)
    http.handle_errors(app)
    checks = {"hosts": settings.known_hosts, "origins": settings.origins}
    app.add_middleware(http.Guard, say=say, verbose=verbose, count=service.metrics.count, **checks)
    if settings.origins:  # the outermost middleware, so that scripts can read errors, too
        app.add_middleware(
            CORSMiddleware, allow_origins=list(settings.origins), allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    return app


def _add_translation(app: FastAPI, service: TranslationService) -> None:
    settings = service.settings

    async def read(request: Request, kind: type[R]) -> R:
        if request.headers.get("content-encoding", "identity") != "identity":
            raise HTTPException(415, "the body must not be compressed; leave Content-Encoding out")
        body = await http.read_body(request, body_limit(settings.characters), settings.patience)
        fields = http.request_fields(request, body)
        given = {name: value for name, value in fields.items() if value is not None and (name, value) != ("format", "")}
        asked = http.validated(kind, given)
        http.check_key(settings.api_keys, asked.api_key, request.headers.get("authorization", ""))
        return asked

    @app.post("/translate", **_shape(TranslateRequest, "Translate a text, or a list of texts."))
    async def translate(request: Request) -> Response:
        return JSONResponse(await service.translate(await read(request, TranslateRequest), request))

    description = (
        'One JSON object on each line: {"piece": "…"} for each piece, then {"done": true, "translatedText": "…"} or '
        f'{{"error": "…"}}. With `Accept: {EVENTS}` the answer consists of server-sent events.'
    )
    shape = _shape(TranslateRequest, "Translate one text and send it in pieces.")

    @app.post("/translate/stream", **shape, description=description)
    async def stream(request: Request) -> Response:
        answers = service.stream(await read(request, TranslateRequest), request)
        kind = EVENTS if EVENTS in request.headers.get("accept", "") else LINES

        async def lines() -> AsyncIterator[str]:
            async for answer in answers:
                line = json.dumps(answer, ensure_ascii=False)
                yield f"data: {line}\n\n" if kind == EVENTS else f"{line}\n"

        return StreamingResponse(lines(), media_type=kind, headers={"Cache-Control": "no-store"})

    @app.post("/detect", **_shape(DetectRequest, "Detect the language of a text."))
    async def detect(request: Request) -> Response:
        texts = (await read(request, DetectRequest)).texts
        service.check_length(texts)
        return JSONResponse([each._asdict() for each in detect_language(texts, service.codes)])


def _shape(request: type[BaseModel], summary: str) -> dict[str, Any]:
    """The description of an address in /openapi.json; FastAPI cannot derive it, since bodies are JSON or forms."""
    kinds = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")
    schema = request.model_json_schema()
    statuses = {
        400: "The request is invalid",
        401: "An API key is required",
        403: "The API key is unknown",
        413: "The request has too much text",
        503: "The queue is full; the Retry-After header contains the seconds to wait",
    }
    return {
        "summary": summary,
        "responses": {status: {"description": text} for status, text in statuses.items()},
        "openapi_extra": {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}},
    }


def _add_information(app: FastAPI, service: TranslationService) -> None:
    @app.get("/languages", summary="List the languages and their targets.")
    async def languages() -> Response:
        listed = []
        for code in service.codes:  # each language is its own target, too, as in LibreTranslate
            targets = {code, *(target for source, target in service.directions if source == code)}
            listed.append({"code": code, "name": NAMES.get(code, code), "targets": sorted(targets)})
        return JSONResponse(listed)

    @app.get("/frontend/settings", summary="Settings for LibreTranslate's web page.")
    async def frontend() -> Response:
        target, keys = service.directions[0][1], bool(service.settings.api_keys)
        languages = {
            "source": {"code": "auto", "name": "Auto Detect"},
            "target": {"code": target, "name": NAMES.get(target, target)},
        }
        settings = {"apiKeys": keys, "keyRequired": keys, "charLimit": service.settings.characters}
        return JSONResponse(settings | {"language": languages, "filesTranslation": False, "suggestions": False})

    @app.get("/health", summary="Report whether the server accepts requests.")
    async def health() -> Response:
        alive = service.queue.alive
        return JSONResponse({"status": "ok" if alive else "stopping"}, 200 if alive else 503)

    @app.get("/metrics", summary="Metrics in Prometheus' text format.")
    async def metrics() -> Response:
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    for name in ("docs.js", "docs.css"):
        http.add_file(app, f"/{name}", http.WEB / name)
    http.add_file(app, "/docs", http.WEB / "docs.html")
    app.add_api_route("/", lambda: RedirectResponse("/docs"), include_in_schema=False)
