"""The application of `regard serve`: the services that the models allow, and the addresses that all servers have."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import time

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse, RedirectResponse
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.middleware.cors import CORSMiddleware

import regard
from regard.errors import InputError
from regard.serving import http
from regard.serving.completion import CompletionService
from regard.serving.prediction import PredictionService
from regard.serving.service import Common, Service
from regard.serving.settings import Serving
from regard.serving.translation import TranslationService
from regard.use.model import load

CLOSE_SECONDS = 5.0
"""Time for the last batch at shutdown; requests had their `grace` before."""
SERVICES: tuple[type[Service], ...] = (TranslationService, PredictionService, CompletionService)
"""All services. A new one is a file, and a name here."""


def load_services(names: Sequence[str], settings: Serving) -> list[Service]:
    """Loads models, and makes the services that they allow. A model is named after its directory."""
    short = [Path(name).name for name in names]
    models = {
        key: load(name, settings.device)
        for key, name in zip(short if len({*short}) == len({*names}) else names, names, strict=True)
    }
    services = [made for kind in SERVICES if (made := kind.choose(models, settings)) is not None]
    for name, model in models.items():
        if not any(name in service.names for service in services):
            raise InputError(
                f"model ({name}) is of kind {model.settings.kind} and cannot be served; choose one that translates, "
                "predicts, fills, embeds or writes texts"
            )
    return services


def create_app(
    services: Sequence[Service], settings: Serving, say: http.Say = http.silent, verbose: bool = False
) -> FastAPI:
    """The application. `say` gets a line for each internal error and, if `verbose`, for each request."""
    common = Common(settings, say)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        common.queue.start()
        yield
        common.queue.close(CLOSE_SECONDS)

    about = " ".join(service.about for service in services)
    app = FastAPI(
        title="Regard", version=regard.__version__, description=about, docs_url=None, redoc_url=None, lifespan=lifespan
    )
    for service in services:
        service.common = common
        service.add_routes(app)
    _add_information(app, common, list(dict.fromkeys(name for service in services for name in service.names)))
    http.handle_errors(app)
    checks = {"hosts": settings.known_hosts, "origins": settings.origins}
    app.add_middleware(http.Guard, say=say, verbose=verbose, count=common.metrics.count, **checks)
    if settings.origins:  # the outermost middleware, so that scripts can read errors, too
        app.add_middleware(
            CORSMiddleware, allow_origins=list(settings.origins), allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    return app


def _add_information(app: FastAPI, common: Common, models: Sequence[str]) -> None:
    started = int(time())

    @app.get("/v1/models", summary="List the models, in OpenAI's shape.")
    async def listed() -> Response:
        entries = [{"id": name, "object": "model", "created": started, "owned_by": "regard"} for name in models]
        return JSONResponse({"object": "list", "data": entries})

    @app.get("/health", summary="Report whether the server accepts requests.")
    async def health() -> Response:
        alive = common.queue.alive
        return JSONResponse({"status": "ok" if alive else "stopping"}, 200 if alive else 503)

    @app.get("/metrics", summary="Metrics in Prometheus' text format.")
    async def metrics() -> Response:
        return Response(generate_latest(common.metrics.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    for name in ("docs.js", "docs.css"):
        http.add_file(app, f"/{name}", http.WEB / name)
    http.add_file(app, "/docs", http.WEB / "docs.html")
    app.add_api_route("/", lambda: RedirectResponse("/docs"), include_in_schema=False)
