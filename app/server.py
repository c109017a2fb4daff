"""One server: OpenAI's API under /v1, /health, /metrics, and the page at "/"."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from slimwhisper.app.api.access import Access
from slimwhisper.app.api.errors import APIError
from slimwhisper.app.api.metrics import metrics_text
from slimwhisper.app.api.routes import make_router
from slimwhisper.app.service.models import Models
from slimwhisper.app.service.service import Service
from slimwhisper.app.service.settings import Settings

if TYPE_CHECKING:
    from slimwhisper.app.page.mount import Page

logger = logging.getLogger("slimwhisper.serve")


def make_app(service: Service, models: Models, settings: Settings) -> FastAPI:
    """All routes, and what is told when one fails. `state.page` is the page, or None."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        page: Page | None = app.state.page
        tidying = asyncio.create_task(page.tidy()) if page else None
        yield
        if tidying:
            tidying.cancel()
        service.close()

    app = FastAPI(
        title="slimwhisper",
        lifespan=lifespan,
        openapi_url=None,  # its pages load scripts from elsewhere
    )
    # mounted, so that a path or method it does not know is not looked for on the page
    app.mount("/v1", make_router(service, models, settings.timeout))

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
    app.state.page = None
    if settings.page is not None:
        from slimwhisper.app.page.mount import mount_page  # Gradio takes seconds to import

        app.state.page = mount_page(app, service, models, settings)
    app.add_middleware(
        Access,
        api_key=settings.api_key,
        login=settings.login,
        max_bytes=settings.most_bytes,
        page=settings.page is not None,
    )
    return app


class Server(uvicorn.Server):
    """Uvicorn's, which tells the service at once that it is to end."""

    def __init__(
        self, config: uvicorn.Config, service: Service, page: "Page | None", patience: float
    ) -> None:
        super().__init__(config)
        self._service, self._page, self._patience = service, page, patience

    def handle_exit(self, sig: int, frame: Any) -> None:
        self._service.stop(self._patience)
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for what runs, then for connections; browsers keep theirs until they are told."""
        while self._service.finishing and not self.force_exit:
            await asyncio.sleep(0.1)
        if self._page is not None:
            await self._page.leave()
        await super().shutdown(sockets)


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
    return Server(config, service, app.state.page, settings.patience)
