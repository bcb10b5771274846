"""The HTTP application: addresses, and what stands between them and the service."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

import regard
from regard.serving import metrics as exposition
from regard.serving.bodies import Refused, fields_of, read_body
from regard.serving.guard import Guard
from regard.serving.keys import check_key
from regard.serving.languages import name_of
from regard.serving.metrics import Metrics
from regard.serving.service import Answer, Service
from regard.serving.settings import Serving
from regard.serving.shapes import (
    Asked,
    DetectAsked,
    DetectedAnswer,
    ErrorAnswer,
    LanguageAnswer,
    TranslateAnswer,
    TranslateAsked,
    asked,
)
from regard.serving.translating import Translating
from regard.serving.worker import Worker

WEB = Path(__file__).parent / "web"
PAGES = {
    "/docs": ("docs.html", "text/html"),
    "/docs.js": ("docs.js", "text/javascript"),
    "/docs.css": ("docs.css", "text/css"),
}
"""The page about the server; it needs nothing from elsewhere."""
LAST_SECONDS = 5.0
"""For a batch that nobody waits for any more; requests had their `grace` before."""
EVENTS = "text/event-stream"
LINES = "application/x-ndjson"

A = TypeVar("A", bound=Asked)


def create_app(
    translating: Translating, settings: Serving, say: Callable[[str], None] | None = None, verbose: bool = False
) -> FastAPI:
    """The application. `say` gets a line for each error of the server's own, and, if `verbose`, for each request.

    No line holds a text, the address of a client, or a key.
    """
    metrics = Metrics()
    log = say if verbose else None

    def report(error: Exception) -> None:
        if say is not None:
            say(f"error: {place_of(error)}")

    worker = Worker(translating, settings, metrics, report)
    service = Service(translating, worker, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker.start()
        yield
        worker.close(LAST_SECONDS)

    app = FastAPI(
        title="Regard",
        version=regard.__version__,
        description="Translation over HTTP, in the shapes of LibreTranslate.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    _translation(app, service, settings)
    _about(app, worker, service, settings, metrics)
    _pages(app)
    app.add_exception_handler(HTTPException, _plain_error)
    paths = {getattr(route, "path", "") for route in app.routes}
    app.add_middleware(Guard, hosts=settings.known_hosts, paths=paths, metrics=metrics, report=report, log=log)
    if settings.origins:  # outermost, so that a page's script can read errors too
        app.add_middleware(
            CORSMiddleware, allow_origins=list(settings.origins), allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    return app


def place_of(error: Exception) -> str:
    """What an error is and where it came from; not what it says, since that may repeat a text."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" in {Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno}" if trace else ""
    return f"{type(error).__name__}{where}"


async def _plain_error(request: Request, error: Exception) -> Response:
    """404 and 405 in the shape of the other errors."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, dict(error.headers or {}))


# -------------------------------------------------------------------------------------------------------- translation


def _translation(app: FastAPI, service: Service, settings: Serving) -> None:
    async def read(request: Request, kind: type[A]) -> A:
        if request.headers.get("content-encoding", "identity") != "identity":
            raise Refused(415, "a body must not be compressed; leave Content-Encoding out")
        body = await read_body(
            request.receive, request.headers.get("content-length"), settings.body_bytes, settings.patience
        )
        found = fields_of(body, request.headers.get("content-type", ""), request.scope["query_string"])
        read = asked(kind, found)
        check_key(settings.api_keys, read.api_key, request.headers.get("authorization", ""))
        return read

    @app.post("/translate", **_shape(TranslateAsked, TranslateAnswer, "Translate a text, or a list of texts."))
    async def translate(request: Request) -> Response:
        return JSONResponse(await service.translate(await read(request, TranslateAsked), request.receive))

    @app.post("/translate/stream", **_stream_shape())
    async def stream(request: Request) -> Response:
        pieces = service.stream(await read(request, TranslateAsked))
        wanted = EVENTS if EVENTS in request.headers.get("accept", "") else LINES
        return StreamingResponse(_written(pieces, wanted), media_type=wanted, headers={"Cache-Control": "no-store"})

    @app.post("/detect", **_shape(DetectAsked, list[DetectedAnswer], "Find the language of a text."))
    async def detect(request: Request) -> Response:
        return JSONResponse(service.detect(await read(request, DetectAsked)))


async def _written(pieces: AsyncIterator[Answer], kind: str) -> AsyncIterator[str]:
    """Lines of JSON, or server-sent events for those who asked for them."""
    async for piece in pieces:
        line = json.dumps(piece, ensure_ascii=False)
        yield f"data: {line}\n\n" if kind == EVENTS else f"{line}\n"


def _shape(request: type[Asked], answer: Any, summary: str) -> dict[str, Any]:
    """What /openapi.json tells of an address; bodies are read by hand, since they may be JSON or a form."""
    schema = request.model_json_schema()
    kinds = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")
    body = {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}
    statuses = {
        400: "Something in the request is wrong",
        401: "An API key is wanted",
        403: "The API key is not known",
        413: "Too much text for one request",
        503: "Too many texts wait; Retry-After says how many seconds to stay away",
    }
    errors = {status: {"model": ErrorAnswer, "description": told} for status, told in statuses.items()}
    return {"summary": summary, "response_model": answer, "responses": errors, "openapi_extra": {"requestBody": body}}


def _stream_shape() -> dict[str, Any]:
    shape = _shape(TranslateAsked, None, "Translate one text, and send it in pieces as they are written.")
    shape["response_model"] = None
    shape["description"] = (
        'A line of JSON for each piece, {"piece": "…"}, and a last one with the whole, {"done": true, '
        f'"translatedText": "…"}}, or {{"error": "…"}}. With `Accept: {EVENTS}` they come as server-sent events.'
    )
    return shape


# --------------------------------------------------------------------------------------------------- about the server


def _about(app: FastAPI, worker: Worker, service: Service, settings: Serving, metrics: Metrics) -> None:
    @app.get("/languages", response_model=list[LanguageAnswer], summary="Languages, and what each can be turned into.")
    async def languages() -> Response:
        return JSONResponse(service.languages())

    @app.get("/frontend/settings", summary="What LibreTranslate's own page asks for.")
    async def frontend() -> Response:
        target = service.directions[0][1]
        return JSONResponse(
            {
                "apiKeys": bool(settings.api_keys),
                "charLimit": settings.characters,
                "filesTranslation": False,
                "frontendTimeout": 500,
                "keyRequired": bool(settings.api_keys),
                "language": {
                    "source": {"code": "auto", "name": "Auto Detect"},
                    "target": {"code": target, "name": name_of(target)},
                },
                "suggestions": False,
                "supportedFilesFormat": [],
            }
        )

    @app.get("/health", summary="Whether the server takes requests.")
    async def health() -> Response:
        return JSONResponse({"status": "ok" if worker.alive else "stopping"}, 200 if worker.alive else 503)

    @app.get("/metrics", summary="Figures for Prometheus.")
    async def figures() -> Response:
        return Response(metrics.text(), media_type=exposition.CONTENT_TYPE)


def _pages(app: FastAPI) -> None:
    for path, (name, kind) in PAGES.items():
        app.add_api_route(path, _page((WEB / name).read_bytes(), kind), include_in_schema=False)

    @app.get("/", include_in_schema=False)
    async def home() -> Response:
        return RedirectResponse("/docs")


def _page(content: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    async def page() -> Response:
        return Response(content, media_type=f"{kind}; charset=utf-8")

    return page
