"""The server of `regard look`: the files of the page, and the answers of its views."""

from __future__ import annotations

import asyncio
import math
import socket
import webbrowser
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import torch
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

import regard
from regard.look.study import Study
from regard.look.views import VIEWS
from regard.look.views.heads import fetch
from regard.look.views.view import OUTPUT, RUN
from regard.serving import http
from regard.serving.page_file import WEB, about
from regard.serving.queue import RequestQueue
from regard.serving.settings import LOCAL, PageSettings, body_limit

BODY_SECONDS = 10.0
"""Time for a client to send a request."""
GRACE = 2
"""Seconds to finish running requests when the server stops."""
NOT_STORED = {"Cache-Control": "no-store"}
QUESTIONS = {each.path: each for each in (RUN, OUTPUT, *(question for view in VIEWS for question in view.questions))}


def serve_page(
    study: Study, settings: PageSettings, listening: socket.socket, address: str | None, say: http.Say
) -> None:
    """Serves until the process is stopped. Opens a browser at `address`, if given."""
    app = create_page_app(study, settings, say)
    server = http.make_server(app, settings.connections, BODY_SECONDS, GRACE, say)
    if address is not None:
        webbrowser.open(address)  # the socket listens already, so the browser waits
    http.run_server(server, listening)


def create_page_app(
    study: Study, settings: PageSettings, say: http.Say = http.silent, main: tuple[str, RequestQueue] | None = None
) -> FastAPI:
    """The application. `say` receives a line for each internal error; no line contains a text.

    Chapters of a lecture can name another shipped model. Its page is below the address of the main one; it has the
    same queue, and gets the family of the main model.
    """
    family, queue = main or ("", RequestQueue(lambda _, work: [each() for each in work], settings.queue))
    model = about(study, settings.chapters) | {"main": family}
    limit = body_limit(settings.characters) + 2 * math.prod(model["image"] or [0])

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        queue.start()
        yield
        queue.close(GRACE)

    async def run(work: Callable[[], Any], request: Request) -> Any:
        return (await queue.result(queue.submit(None, [work]), request, settings.patience))[0]

    app = FastAPI(title="Regard", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)

    async def ask(request: Request) -> Response:
        question = QUESTIONS[request.url.path.rpartition("/")[2]]
        # Any web page can send a form to this server, but not JSON: CORS forbids it.
        if http.media_type(request) != "application/json":
            raise HTTPException(415, "Content-Type must be application/json")
        asked = http.validated(question.request, http.json_object(await http.read_body(request, limit, BODY_SECONDS)))
        if asked.characters > settings.characters:
            raise HTTPException(
                413, f"the texts have {asked.characters:,} characters, at most {settings.characters:,} are allowed"
            )
        return JSONResponse(await run(lambda: question.answer(study, asked), request), headers=NOT_STORED)

    for path in QUESTIONS:
        app.add_api_route(f"/api/{path}", ask, methods=["POST"])

    app.add_api_route("/api/about", lambda: JSONResponse(model, headers=NOT_STORED))

    @app.get("/api/tensor")
    async def get_tensor(request: Request) -> Response:
        key, name = (request.query_params.get(field, "") for field in ("run", "name"))
        found = await run(lambda: fetch(study, key, name), request)
        content = found.contiguous().numpy().astype("<f4", copy=False).tobytes()
        headers = {"X-Shape": ",".join(map(str, found.shape)), **NOT_STORED}
        return Response(content, media_type="application/octet-stream", headers=headers)

    for file in sorted(WEB.rglob("*")):
        if file.suffix in http.CONTENT_TYPES:
            http.add_file(app, f"/{file.relative_to(WEB).as_posix()}", file)
    http.add_file(app, "/", WEB / "index.html")
    if main is None:
        for name in {each["model"] for each in model["chapters"] if each["model"]}:
            device = next(study.network.parameters()).device
            app.mount(f"/{name}", _page_of(name, device, settings, say, (model["family"], queue)))
    http.handle_errors(app)
    app.add_middleware(http.Guard, hosts=LOCAL, say=say)
    return app


def _page_of(
    name: str, device: torch.device, settings: PageSettings, say: http.Say, main: tuple[str, RequestQueue]
) -> Any:
    """The application of another model, which is loaded at the first request."""
    lock, made = asyncio.Lock(), list[FastAPI]()

    def load() -> FastAPI:
        study = Study(regard.load(name, device), settings.tokens, settings.tensor_bytes)
        return create_page_app(study, settings, say, main)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async with lock:
            if not made:
                made.append(await run_in_threadpool(load))
        await made[0](scope, receive, send)

    return answer
