"""One server: OpenAI's API under /v1, /health and /metrics."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from slimwhisper.app.access import Access
from slimwhisper.app.api import APIError, make_router
from slimwhisper.app.metrics import metrics_text
from slimwhisper.app.models import Models
from slimwhisper.app.service import Service

logger = logging.getLogger("slimwhisper.serve")


@dataclass(frozen=True, slots=True)
class Settings:
    """How a server is reached, and what it takes."""

    host: str = "127.0.0.1"
    port: int = 7860
    api_key: str | None = None
    login: tuple[str, str] | None = None
    root_path: str = ""
    most_bytes: int = 1 << 30  # of an upload
    timeout: float = 3600.0  # seconds that a request may take
    patience: float = 30.0  # seconds that running requests get at the end


def make_app(service: Service, models: Models, settings: Settings) -> FastAPI:
    """All routes, and what is told when one fails."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="slimwhisper",
        lifespan=lifespan,
        root_path=settings.root_path,
        openapi_url=None,  # its pages load scripts from elsewhere
    )
    app.include_router(make_router(service, models, settings.timeout))

    @app.get("/health")
    async def health() -> Response:
        state = service.health()
        return JSONResponse({"status": state}, 200 if state == "ready" else 503)

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(metrics_text(service), media_type="text/plain; version=0.0.4")

    async def told(_: Request, error: Exception) -> Response:
        assert isinstance(error, APIError)
        return error.response()

    async def by_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = f"{request.method} {request.url.path}: {error.detail}"
        return APIError(error.status_code, message).response()

    async def unexpected(_: Request, error: Exception) -> Response:
        logger.error("a request failed", exc_info=error)
        return APIError(500, "the server failed; its log has more", "internal_error").response()

    handlers: dict[Any, Any] = {APIError: told, HTTPException: by_http, Exception: unexpected}
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)
    app.add_middleware(
        Access,
        api_key=settings.api_key,
        login=settings.login,
        most_bytes=settings.most_bytes,
    )
    return app


class Server(uvicorn.Server):
    """Uvicorn's, which tells the service at once that it is to end."""

    def __init__(self, config: uvicorn.Config, service: Service, patience: float) -> None:
        super().__init__(config)
        self._service, self._patience = service, patience

    def handle_exit(self, sig: int, frame: Any) -> None:
        self._service.stop(self._patience)
        super().handle_exit(sig, frame)


def make_server(app: FastAPI, service: Service, settings: Settings) -> Server:
    """A server ready to `run`."""
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        root_path=settings.root_path,
        timeout_graceful_shutdown=round(settings.patience) + 5,
        server_header=False,
    )
    return Server(config, service, settings.patience)
