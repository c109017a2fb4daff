"""Mounts the page on a server, with its login, its files and its shutdown."""

import asyncio
import secrets
import time
from collections.abc import Callable

import gradio as gr
from fastapi import FastAPI, Request
from gradio.routes import App
from starlette.routing import Mount

from slimwhisper.app.page.assets_route import ASSETS, STYLES, asset, make_assets_router
from slimwhisper.app.page.edit_route import make_edit_router
from slimwhisper.app.page.live_route import MakeKey, make_live_router
from slimwhisper.app.page.page import make_page
from slimwhisper.app.page.results import Results, make_results_router
from slimwhisper.app.page.run import Runs
from slimwhisper.app.service.models import Models
from slimwhisper.app.service.service import Service
from slimwhisper.app.service.settings import Settings

SANS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif")
MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")
TIDY_SECONDS = 600.0  # between two removals of old results
LAST_UPDATES = 5.0  # seconds for browsers to receive the end of their runs


class Page:
    """The page, as its server uses it."""

    def __init__(self, results: Results, runs: Runs, stopped: asyncio.Event) -> None:
        """stopped: set to close the connections that open pages keep."""
        self.results, self.runs, self._stopped = results, runs, stopped

    async def tidy(self) -> None:
        """Remove old results from time to time. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            self.results.forget()

    async def leave(self) -> None:
        """Wait until browsers have received the end of their runs, then disconnect them."""
        deadline = time.monotonic() + LAST_UPDATES
        while self.runs and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        self._stopped.set()


class Visitors:
    """Who is logged in to the page; nobody before it is mounted."""

    def __init__(self) -> None:
        self.app: App | None = None

    def signed_in(self, request: Request) -> bool:
        """Whether a request comes from somebody who may use the page."""
        app = self.app
        if app is None or app.auth is None:
            return app is not None
        names = (f"access-token-{app.cookie_id}", f"access-token-unsecure-{app.cookie_id}")
        return any(request.cookies.get(name) in app.tokens for name in names)


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
    results = Results(settings.page / "results", max_bytes=16 * settings.max_bytes)
    for router in (make_results_router(results), make_edit_router(results), make_assets_router()):
        app.include_router(router)
    visitors = Visitors()
    if make_key is not None:
        app.include_router(make_live_router(make_key, visitors.signed_in))
    runs = Runs()
    blocks = make_page(service, models, results, runs, settings, live=make_key is not None)
    gr.mount_gradio_app(
        app,
        blocks,
        "/",
        auth=_login(settings),
        auth_message=_login_message(settings),
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
    visitors.app = mounted.app
    return Page(results, runs, mounted.app.stop_event)


def _login(settings: Settings) -> Callable[[str, str], bool] | None:
    """Checks a user and a password; None: no login is needed."""
    key, login = settings.api_key, settings.login
    if key is None and login is None:
        return None

    def same(one: str, other: str) -> bool:
        return secrets.compare_digest(one.encode(), other.encode())

    def allowed(user: str, password: str) -> bool:
        by_login = login is not None and same(f"{user}:{password}", ":".join(login))
        by_key = login is None and key is not None and same(password, key)
        return by_login or by_key

    return allowed


def _login_message(settings: Settings) -> str | None:
    if settings.login is None and settings.api_key is not None:
        return "Use any user name, with the server's API key as the password."
    return None


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
