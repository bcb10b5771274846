"""The HTTP application of `regard look`: the page's files, and what it asks of a model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from regard.look.study import Study
from regard.serving.app import place_of
from regard.serving.bodies import Refused, fields_of, read_body
from regard.serving.guard import Guard
from regard.serving.look_pages import WEB
from regard.serving.look_service import LookService, Question
from regard.serving.look_settings import Looking
from regard.serving.look_shapes import checked
from regard.serving.look_turns import Turns
from regard.serving.metrics import Metrics

KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
BODY_SECONDS = 10.0
"""That a client has to send what it announced."""


def create_look_app(study: Study, settings: Looking, say: Callable[[str], None] | None = None) -> FastAPI:
    """The application. `say` gets a line for each error of the server's own; no line holds a text."""
    turns, service = Turns(settings), LookService(study)

    def report(error: Exception) -> None:
        if say is not None:
            say(f"error: {place_of(error)}")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        turns.close()

    app = FastAPI(title="Regard", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    _questions(app, service, turns, settings)
    _files(app)
    app.add_exception_handler(HTTPException, _plain_error)
    paths = {getattr(route, "path", "") for route in app.routes}
    app.add_middleware(Guard, hosts=settings.known_hosts, paths=paths, metrics=Metrics(), report=report, log=None)
    return app


async def _plain_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, dict(error.headers or {}))


def _questions(app: FastAPI, service: LookService, turns: Turns, settings: Looking) -> None:
    about = service.about()
    limit = settings.body_bytes + 2 * _image_bytes(about)

    def ask(path: str, question: Question) -> None:
        async def asked(request: Request) -> Response:
            # A form could be sent by any web page; JSON cannot, without leave that is never given.
            if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                raise Refused(415, "Content-Type must be application/json")
            body = await read_body(request.receive, request.headers.get("content-length"), limit, BODY_SECONDS)
            wanted = checked(question.asked, fields_of(body, "application/json", b""))
            if wanted.letters > settings.characters:
                most = f"at most {settings.characters:,} may be sent"
                raise Refused(413, f"the texts have {wanted.letters:,} characters, and {most}; shorten them")
            return _json(await turns.take(lambda: question.answer(wanted), request.receive))

        app.add_api_route(f"/api/{path}", asked, methods=["POST"])

    for path, question in service.questions.items():
        ask(path, question)

    @app.get("/api/about")
    async def tell() -> Response:
        return _json(about)

    @app.get("/api/tensor")
    async def tensor(request: Request) -> Response:
        run, name = (request.query_params.get(field, "") for field in ("run", "name"))
        content, shape = await turns.take(lambda: service.tensor(run, name), request.receive)
        headers = {"X-Shape": ",".join(map(str, shape)), "Cache-Control": "no-store"}
        return Response(content, media_type="application/octet-stream", headers=headers)


def _image_bytes(about: dict[str, Any]) -> int:
    size = 1
    for part in about["image"] or [0]:
        size *= part
    return size


def _json(content: dict[str, Any]) -> Response:
    return JSONResponse(content, headers={"Cache-Control": "no-store"})


def _files(app: FastAPI) -> None:
    """Every file of the page, read once: no path that a request names reaches the disk."""
    for file in sorted(WEB.rglob("*")):
        if file.suffix in KINDS:
            path = f"/{file.relative_to(WEB).as_posix()}"
            page = _page(file.read_bytes(), KINDS[file.suffix])
            app.add_api_route(path, page)
            if path == "/index.html":
                app.add_api_route("/", page)


def _page(content: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    async def page() -> Response:
        return Response(content, media_type=f"{kind}; charset=utf-8", headers={"Cache-Control": "no-cache"})

    return page
