"""The HTTP application of `regard look`: the files of the page and its requests to the model."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from regard.look.study import Study
from regard.serving.http import (
    CONTENT_TYPES,
    Guard,
    Say,
    add_file,
    handle_errors,
    json_object,
    media_type,
    read_body,
    validated,
)
from regard.serving.look_pages import WEB
from regard.serving.look_service import LookService, Question
from regard.serving.look_settings import Looking
from regard.serving.queue import RequestQueue

BODY_SECONDS = 10.0
"""Time for a client to send a request."""

R = TypeVar("R")


def create_look_app(study: Study, settings: Looking, say: Say | None = None) -> FastAPI:
    """The application. `say` gets a line for each internal error; no line contains a text."""
    service = LookService(study)
    queue = RequestQueue(lambda _, work: [each() for each in work], settings.queue)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        queue.start()
        yield
        queue.close(0)

    async def run(work: Callable[[], R], request: Request) -> R:
        found: R = (await queue.result(queue.submit(None, [work]), request, settings.patience))[0]
        return found

    app = FastAPI(title="Regard", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    about = service.about()
    limit = settings.body_bytes + 2 * math.prod(about["image"] or [0])

    def add_question(path: str, question: Question) -> None:
        async def answer(request: Request) -> Response:
            # Any web page could send a form; it cannot send JSON without a permission that is never given (CORS).
            if media_type(request) != "application/json":
                raise HTTPException(415, "Content-Type must be application/json")
            asked = validated(question.asked, json_object(await read_body(request, limit, BODY_SECONDS)))
            if asked.letters > settings.characters:
                raise HTTPException(
                    413, f"the texts have {asked.letters:,} characters, at most {settings.characters:,} are allowed"
                )
            return _json(await run(lambda: question.answer(asked), request))

        app.add_api_route(f"/api/{path}", answer, methods=["POST"])

    for path, question in service.questions.items():
        add_question(path, question)

    @app.get("/api/about")
    async def get_about() -> Response:
        return _json(about)

    @app.get("/api/tensor")
    async def get_tensor(request: Request) -> Response:
        key, name = (request.query_params.get(field, "") for field in ("run", "name"))
        content, shape = await run(lambda: service.tensor(key, name), request)
        headers = {"X-Shape": ",".join(map(str, shape)), "Cache-Control": "no-store"}
        return Response(content, media_type="application/octet-stream", headers=headers)

    for file in sorted(WEB.rglob("*")):
        if file.suffix in CONTENT_TYPES:
            add_file(app, f"/{file.relative_to(WEB).as_posix()}", file)
    add_file(app, "/", WEB / "index.html")
    handle_errors(app)
    app.add_middleware(Guard, hosts=settings.known_hosts, say=say)
    return app


def _json(content: dict[str, Any]) -> Response:
    return JSONResponse(content, headers={"Cache-Control": "no-store"})
