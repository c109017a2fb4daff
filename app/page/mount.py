"""Mounts the page on a server, with its login, its files and its shutdown."""

import asyncio
import time

import gradio as gr
from fastapi import FastAPI
from gradio.routes import App
from starlette.routing import Mount

from slimwhisper.app.page.assets_route import ASSETS, STYLES, asset, make_assets_router
from slimwhisper.app.page.calls import Calls, refuse_addresses
from slimwhisper.app.page.edit_route import make_edit_router
from slimwhisper.app.page.live_route import MakeKey, make_live_router
from slimwhisper.app.page.login import Visitors, login_check, login_message, make_login_router
from slimwhisper.app.page.page import make_page
from slimwhisper.app.page.results import Results, make_results_router
from slimwhisper.app.page.run import Runs
from slimwhisper.app.page.tempdir import FILES
from slimwhisper.app.page.uploads import Uploads, make_uploads_router
from slimwhisper.app.service.models import Models
from slimwhisper.app.service.service import Service
from slimwhisper.app.service.settings import Settings

SANS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif")
MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")
TIDY_SECONDS = 600.0  # between two removals of old results
LAST_UPDATES = 5.0  # seconds for browsers to receive the end of their runs


class Page:
    """The page, as its server uses it."""

    def __init__(self, results: Results, uploads: Uploads, runs: Runs, visitors: Visitors) -> None:
        self.results, self.uploads, self.runs = results, uploads, runs
        self.signed_in = visitors.signed_in
        assert visitors.app is not None
        self._gradio = visitors.app

    async def tidy(self) -> None:
        """Remove old results and uploads from time to time. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            self.results.forget()
            self.uploads.forget()
            for names in self._gradio.get_blocks().temp_file_sets:
                names.clear()  # Gradio notes every file that it has seen

    async def leave(self) -> None:
        """Wait until browsers have received the end of their runs, then disconnect them."""
        deadline = time.monotonic() + LAST_UPDATES
        while self.runs and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        self._gradio.stop_event.set()


def mount_page(
    app: FastAPI,
    service: Service,
    models: Models,
    settings: Settings,
    make_key: MakeKey | None = None,
) -> Page:
    """Mount the page on a server's app. Routes added before take precedence.

    `settings.page` is a `page_folder`. make_key: of a live stream's websocket; None: the server
    takes no live streams. Not to be called in a running event loop.
    """

    async def mount() -> Page:  # without a running loop, Gradio makes some and never closes them
        return _mount(app, service, models, settings, make_key)

    return asyncio.run(mount())


def _mount(
    app: FastAPI,
    service: Service,
    models: Models,
    settings: Settings,
    make_key: MakeKey | None,
) -> Page:
    assert settings.page is not None
    total = 16 * settings.max_bytes
    results = Results(settings.page / "results", total)
    uploads = Uploads(settings.page / FILES, total)
    visitors = Visitors()
    check = login_check(settings)
    for router in (make_results_router(results), make_edit_router(results), make_assets_router()):
        app.include_router(router)
    app.include_router(make_uploads_router(uploads, settings.max_bytes))
    if check is not None:
        app.include_router(make_login_router(visitors, check))
    if make_key is not None:
        app.include_router(make_live_router(make_key))
    runs = Runs()
    blocks = make_page(service, models, results, runs, settings, live=make_key is not None)
    gr.mount_gradio_app(
        app,
        blocks,
        "/",
        auth=check,
        auth_message=login_message(settings),
        root_path=settings.root_path or None,
        favicon_path=str(ASSETS / "icon.svg"),
        max_file_size=settings.max_bytes,
        show_error=False,
        footer_links=[],
        run_history=False,
        enable_monitoring=False,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        theme=_theme(),
        # passed as `css`, Gradio would rewrite it and break some selectors
        head=f"<style>{''.join(map(asset, STYLES))}</style>",
    )
    blocks.has_launched = True  # else Gradio would accept files that were not uploaded
    mounted = app.routes[-1]
    assert isinstance(mounted, Mount) and isinstance(mounted.app, App)
    mounted.app.add_middleware(Calls, functions=blocks.fns, is_stored=uploads.has)
    refuse_addresses()
    visitors.app = mounted.app
    return Page(results, uploads, runs, visitors)


def _theme() -> gr.themes.Base:
    """Plain, with the fonts of the user's system."""
    return gr.themes.Base(
        primary_hue="indigo", neutral_hue="slate", font=SANS, font_mono=MONO, radius_size="lg"
    ).set(
        body_background_fill="*neutral_50",
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_400",
        block_shadow="none",
        input_placeholder_color="*neutral_500",
        input_placeholder_color_dark="*neutral_400",
        checkbox_border_color_dark="*neutral_400",
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_hover="*primary_700",
        button_primary_background_fill_dark="*primary_600",
        button_primary_background_fill_hover_dark="*primary_700",
    )
