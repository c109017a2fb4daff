"""The HTTP server: OpenAI's API under /v1, /inference, /health, /metrics, and the page at "/"."""

import asyncio
import logging
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, Response
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from slimwhisper.app.api.access import Access, hide_secrets
from slimwhisper.app.api.background import Background
from slimwhisper.app.api.errors import disk_is_full, error_response
from slimwhisper.app.api.metrics import ServiceCollector
from slimwhisper.app.api.request import TranscriptionForm
from slimwhisper.app.api.routes import make_routers
from slimwhisper.app.connections import Connections, Http, WebSocket, listen, log_exhaustion
from slimwhisper.app.realtime.routes import Realtime, make_realtime_router
from slimwhisper.app.realtime.stream_socket import CLOSING, MAX_MESSAGE
from slimwhisper.app.realtime.wyoming import Wyoming
from slimwhisper.app.service.host import Models, ServerHost, ServerSettings
from slimwhisper.app.service.jobs import ModelChoice
from slimwhisper.app.service.service import Service
from slimwhisper.errors import OptionError, SlimWhisperError
from slimwhisper.version import __version__

if TYPE_CHECKING:
    from slimwhisper.app.page.page import Page

SWEEP = 10  # ticks, of a tenth of a second, between checks of the connections
# Seconds for which a thread keeps Python's lock while another waits for it. The engine releases it
# hundreds of times in a step: with Python's own 5 ms, it is slower beside many streams.
SWITCH_INTERVAL = 0.0005
# Seconds that a connection may be idle between two requests: longer than clients and proxies keep
# theirs, most 60 at most. Who closes first never finds that a request was sent to a closed one.
KEEP_ALIVE = 75
PAGE_KEY = 60.0  # seconds for which a key for a stream of the page is valid

logger = logging.getLogger("slimwhisper.serve")


def make_app(service: Service, models: Models, settings: ServerSettings) -> FastAPI:
    """All routes, error responses and access control.

    `state.realtime` has the realtime sessions; `state.page` is the page and `state.background` the
    jobs in the background, or None.
    """

    host = ServerHost(service, models, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        page: Page | None = app.state.page
        tidying = asyncio.create_task(page.tidy()) if page else None
        if background:
            await background.start()
        yield
        if background:
            await background.stop()
        if tidying:
            tidying.cancel()
        service.close()

    app = FastAPI(
        title="slimwhisper",
        lifespan=lifespan,
        openapi_url=None,  # FastAPI's documentation pages load scripts from other servers
    )
    # mounted, so that unknown paths and methods under /v1 do not fall through to the page
    openai, others, background = make_routers(host)
    realtime = app.state.realtime = Realtime(host)
    openai.include_router(make_realtime_router(realtime))
    app.state.wyoming = Wyoming(host) if settings.wyoming else None
    app.mount("/v1", openai)
    app.include_router(others)
    _add_status_routes(app, service)
    _add_schema(app, openai, f"{settings.root_path}/v1")
    add_error_handlers(app)
    app.state.host, app.state.page, app.state.background = host, None, background
    if settings.page is not None:
        from slimwhisper.app.page.page import mount_page  # Gradio takes seconds to import

        def make_key() -> str:
            """A key for a stream of the page. Opening a stream first makes errors visible here: a
            browser would hide the reason why a websocket is refused.
            """
            choice = ModelChoice(models.default)
            service.open_stream(choice, settings.live, lambda _: None).close()
            return realtime.client_secrets.issue(seconds=PAGE_KEY)[0]

        live = make_key if service.limits.streams else None
        app.state.page = mount_page(app, host, live)
    signed_in = app.state.page and app.state.page.signed_in
    app.add_middleware(Access, settings, is_secret=realtime.is_secret, signed_in=signed_in)
    app.add_middleware(  # without it, Gradio would let pages of all sites read responses
        CORSMiddleware,
        allow_origins=settings.allow_origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        expose_headers=(
            *("Location", "Retry-After", "X-Request-Id"),
            *("X-Slimwhisper-Model", "X-Slimwhisper-Warning"),
        ),
        allow_private_network=bool(settings.allow_origins),
    )
    return app


def _add_status_routes(app: FastAPI, service: Service) -> None:
    @app.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> Response:
        """Say whether the server is ready to transcribe."""
        state = "disk_full" if disk_is_full() else service.health()
        return JSONResponse({"status": state}, 200 if state == "ready" else 503)

    @app.get("/status")
    async def status() -> dict[str, str]:
        """Return the version of the server."""
        return {"version": f"slimwhisper {__version__}"}  # Bazarr looks here, without its login

    @app.get("/metrics")
    def metrics() -> Response:
        """Return the metrics of the server in the text format of Prometheus."""
        text = generate_latest(ServiceCollector(service))
        return Response(text, media_type="text/plain; version=0.0.4")


def _add_schema(app: FastAPI, openai: APIRouter, url: str) -> None:
    """Describe the API for programs that make clients. url: of its routes."""
    schema = get_openapi(
        title="slimwhisper", version=__version__, routes=openai.routes, servers=[{"url": url}]
    )
    reference = "#/components/schemas/{model}"
    form = TranscriptionForm.model_json_schema(ref_template=reference)
    form["properties"]["file"] = {"type": "string", "format": "binary"}
    schemas = schema.setdefault("components", {}).setdefault("schemas", {})
    schemas |= {**form.pop("$defs", {}), "TranscriptionForm": form}
    content = {"multipart/form-data": {"schema": {"$ref": f"{reference[:-7]}TranscriptionForm"}}}
    for name in ("transcriptions", "translations"):
        schema["paths"][f"/audio/{name}"]["post"]["requestBody"] = {"content": content}

    @app.get("/openapi.json")
    def openapi() -> dict[str, Any]:
        """Return the OpenAPI schema of the routes under /v1."""
        return schema


def add_error_handlers(app: FastAPI) -> None:
    """Give every error OpenAI's format."""
    for kind in (HTTPException, SlimWhisperError, OSError, Exception):
        app.add_exception_handler(kind, error_response)


class Server(uvicorn.Server):
    """Uvicorn's server, but it passes signals to the service and limits connections."""

    def __init__(self, app: FastAPI) -> None:
        """app: returned by `make_app`."""
        state = app.state
        self._service: Service = state.host.service
        self._realtime: Realtime = state.realtime
        self._wyoming: Wyoming | None = state.wyoming
        self._background: Background | None = state.background
        self._page: Page | None = state.page
        settings: ServerSettings = state.host.settings
        self._patience = settings.patience
        cert, key = settings.tls or (None, None)
        config = uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            ssl_certfile=cert,
            ssl_keyfile=key,
            root_path=settings.root_path,
            timeout_keep_alive=KEEP_ALIVE,
            server_header=False,
            backlog=1,  # see `listen`
            http=Http,
            ws=WebSocket,
            ws_max_size=2 * MAX_MESSAGE,  # a character may have several bytes
            ws_ping_timeout=None,  # a session that waits for the engine does not read pongs
            ws_per_message_deflate=False,
        )
        super().__init__(config)
        sys.setswitchinterval(SWITCH_INTERVAL)
        hide_secrets()
        self.server_state = self._connections = Connections(config)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Handle a signal: refuse new requests, then shut down; at a second SIGINT, at once."""
        first = not self.should_exit
        super().handle_exit(sig, frame)
        if first or self.force_exit:
            self._service.stop(0.0 if self.force_exit else self._patience)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening."""
        log_exhaustion(asyncio.get_running_loop())
        if self._wyoming is not None:
            try:
                await self._wyoming.start()
            except OptionError as error:
                logger.error("%s", error)
                self.should_exit = True
                return
        await super().startup(sockets)
        for server in self.servers:
            listen(server)

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; returns whether to end."""
        if counter % SWEEP == 0:
            self._connections.sweep()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for running requests, then close all connections, including those of open pages."""
        until = time.monotonic() + self._patience
        others = [each.stop() for each in (self._wyoming, self._background) if each is not None]
        closing = asyncio.gather(self._realtime.shutdown(), *others)
        while not (closing.done() or self.force_exit):
            await asyncio.sleep(0.05)
        while self._service.finishing and not self.force_exit:
            await asyncio.sleep(0.1)
        if self.force_exit:
            for task in self.server_state.tasks:
                task.cancel()
        elif self._page is not None:
            await self._page.shutdown()
        # for answers, and for uploads that do not end
        self.config.timeout_graceful_shutdown = round(max(until - time.monotonic(), 0) + CLOSING)
        await super().shutdown(sockets)
        if self.force_exit:
            await self.lifespan.shutdown()  # which Uvicorn leaves out
