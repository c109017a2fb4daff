"""The page put on a server, with its login, its files and its end."""

import asyncio
import secrets
import time
from collections.abc import Callable

import gradio as gr
from fastapi import FastAPI
from gradio.routes import App
from starlette.routing import Mount

from slimwhisper.app.page.page import ASSETS, make_page
from slimwhisper.app.page.results import Results, make_results_router
from slimwhisper.app.page.run import Runs
from slimwhisper.app.service.models import Models
from slimwhisper.app.service.service import Service
from slimwhisper.app.service.settings import Settings

SANS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif")
MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")
TIDY_SECONDS = 600.0
LAST_WORDS = 5.0  # seconds


class Page:
    """What the server must know of its page."""

    def __init__(self, results: Results, runs: Runs, stopped: asyncio.Event) -> None:
        """stopped: ends the connections that browsers keep open."""
        self.results, self.runs, self._stopped = results, runs, stopped

    async def tidy(self) -> None:
        """Give up what is too old, for ever."""
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            self.results.forget()

    async def leave(self) -> None:
        """Let browsers hear of the end of what they asked for, then let go of them."""
        deadline = time.monotonic() + LAST_WORDS
        while self.runs and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        self._stopped.set()


def mount_page(app: FastAPI, service: Service, models: Models, settings: Settings) -> Page:
    """Put the page on a server's app, below all routes that are there already.

    `settings.page` is the folder that `page_folder` gave. Not for a running event loop.
    """

    async def mount() -> Page:  # outside of a loop Gradio makes some, and leaves them open
        return _mount(app, service, models, settings)

    return asyncio.run(mount())


def _mount(app: FastAPI, service: Service, models: Models, settings: Settings) -> Page:
    assert settings.page is not None
    results = Results(settings.page / "results", most_bytes=16 * settings.most_bytes)
    app.include_router(make_results_router(results))
    runs = Runs()
    blocks = make_page(service, models, results, runs, settings)
    gr.mount_gradio_app(
        app,
        blocks,
        "/",
        auth=_login(settings),
        auth_message=_login_message(settings),
        root_path=settings.root_path or None,
        favicon_path=str(ASSETS / "icon.svg"),
        max_file_size=settings.most_bytes,
        show_error=False,
        footer_links=[],
        run_history=False,
        enable_monitoring=False,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        theme=_theme(),
        # as `css` it would be rewritten, and some selectors broken
        head=f"<style>{(ASSETS / 'page.css').read_text(encoding='utf-8')}</style>",
    )
    blocks.has_launched = True  # else files that were not uploaded would be taken too
    mounted = app.routes[-1]
    assert isinstance(mounted, Mount) and isinstance(mounted.app, App)
    return Page(results, runs, mounted.app.stop_event)


def _login(settings: Settings) -> Callable[[str, str], bool] | None:
    """Who may see the page; None: all."""
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
        return "Any user name, and the server's key as the password."
    return None


def _theme() -> gr.themes.Base:
    """Calm, and with the fonts of the reader's system."""
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
