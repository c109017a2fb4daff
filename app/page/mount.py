"""Mounts the page on a server, with its login, its files and its shutdown."""

import asyncio
import time

import gradio as gr
from fastapi import FastAPI
from fastapi.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from slimwhisper.app.page.body_check import GradioBodyCheck
from slimwhisper.app.page.gradio_internals import Blocks, Gradio
from slimwhisper.app.page.handlers import Handlers
from slimwhisper.app.page.login import Check, login_check, login_message, make_login_router
from slimwhisper.app.page.page import ASSETS, asset, make_page
from slimwhisper.app.page.posts import MakeKey, make_edit_router, make_live_router
from slimwhisper.app.page.tempdir import FILES
from slimwhisper.app.page.transcripts.results import PageResults, make_results_router
from slimwhisper.app.page.uploads import Uploads, make_uploads_router
from slimwhisper.app.service.host import ServerSettings
from slimwhisper.app.service.models import Models
from slimwhisper.app.service.service import Service

STYLES = ("page.css", "player.css", "editing.css", "live.css")
SANS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif")
MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")
OFF = ("show_error", "run_history", "enable_monitoring", "ssr_mode", "mcp_server", "pwa")
TIDY_SECONDS = 600.0  # between two removals of old results
LAST_UPDATES = 5.0  # seconds for browsers to receive the end of their runs


class Page:
    """The page, from the server's side."""

    def __init__(self, handlers: Handlers, uploads: Uploads, gradio: Gradio) -> None:
        self.results, self.uploads = handlers.results, uploads
        self.signed_in = gradio.signed_in
        self._runs, self._gradio = handlers.runs, gradio

    async def tidy(self) -> None:
        """Remove old results and uploads from time to time. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            self.results.remove_old()
            self.uploads.remove_old()
            self._gradio.discard_files()

    async def shutdown(self) -> None:
        """Wait until browsers have received the end of their runs, then disconnect them."""
        deadline = time.monotonic() + LAST_UPDATES
        while self._runs and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        self._gradio.disconnect()


def mount_page(
    app: FastAPI,
    service: Service,
    models: Models,
    settings: ServerSettings,
    make_key: MakeKey | None = None,
) -> Page:
    """Mount the page on a server's app. Routes added before take precedence.

    `settings.page` is a `page_folder`. make_key: makes the key of a live stream's websocket; None:
    the server has no live streams. Must not be called in a running event loop.
    """
    assert settings.page is not None
    total = 16 * settings.max_bytes
    results = PageResults(settings.page / "results", total)
    uploads = Uploads(settings.page / FILES, total)
    check = login_check(settings)
    handlers = Handlers(service, models, results, settings)

    async def mount() -> Blocks:  # without a running loop, Gradio makes loops and leaks them
        page = make_page(handlers, settings.cache, live=make_key is not None)
        _mount_gradio(app, page, check, settings)
        return page

    functions, gradio = asyncio.run(mount()).fns, Gradio(app)
    gradio.app.add_middleware(GradioBodyCheck, functions=functions, is_stored=uploads.has)
    routers = [make_results_router(results), make_edit_router(results)]
    routers.append(make_uploads_router(uploads, settings.max_bytes))
    if check is not None:
        routers.append(make_login_router(gradio, check))
    if make_key is not None:
        routers.append(make_live_router(make_key))
    for router in routers:
        app.include_router(router)
    app.mount("/page/assets", Assets(directory=ASSETS))
    app.routes.append(gradio.route)  # last: it matches all other paths
    return Page(handlers, uploads, gradio)


class Assets(StaticFiles):
    """GET /page/assets/NAME, without a login: the assets hold no secrets."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file, which the browser must revalidate at each use."""
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response


def _mount_gradio(
    app: FastAPI, page: Blocks, check: Check | None, settings: ServerSettings
) -> None:
    gr.mount_gradio_app(
        app,
        page,
        "/",
        auth=check,
        auth_message=login_message(settings),
        root_path=settings.root_path or None,
        favicon_path=str(ASSETS / "icon.svg"),
        max_file_size=settings.max_bytes,
        footer_links=[],
        **dict.fromkeys(OFF, False),
        theme=gr.themes.Base(
            primary_hue="indigo", neutral_hue="slate", font=SANS, font_mono=MONO, radius_size="lg"
        ),
        # passed as `css`, Gradio would rewrite it and break some selectors
        head=f"<style>{''.join(map(asset, STYLES))}</style>",
    )
