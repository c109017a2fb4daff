"""The `serve` command."""

import argparse
import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from slimwhisper.api import SlimWhisper
from slimwhisper.app.api.sites import is_loopback
from slimwhisper.app.page.tempdir import page_folder
from slimwhisper.app.server import Server, make_app
from slimwhisper.app.service.jobs import Limits, ModelChoice
from slimwhisper.app.service.models import Models
from slimwhisper.app.service.service import Service
from slimwhisper.app.service.settings import Settings
from slimwhisper.cache.forms import PRESETS, choose_forms
from slimwhisper.devices import choose_device, choose_dtype
from slimwhisper.flags import load_chosen
from slimwhisper.live.setup import live_options
from slimwhisper.text import shown

logger = logging.getLogger("slimwhisper.serve")

OVERRIDES = ("cross_cache", "self_cache", "cache_dtype")  # flags that change a preset's caches


def run_serve(a: argparse.Namespace) -> int:
    """Serve until a signal arrives. Returns the exit status: 1 if the server did not start."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    if a.threads:
        torch.set_num_threads(a.threads)
    # report mistakes before loading anything
    choose_dtype(a.dtype, choose_device(a.device))
    choose_forms(a.cache, *(getattr(a, name) for name in OVERRIDES))
    with exit_on_sigterm(), page_folder() if a.page else nullcontext() as folder:
        settings = make_settings(a, folder)
        if not (settings.api_key or settings.login or is_loopback(settings.host)):
            logger.warning(
                "%s: anyone who can reach this address can use the server; set --auth "
                "user:password or --api_key KEY, or listen on 127.0.0.1",
                shown(settings.host),
            )
        if settings.wyoming and not is_loopback(settings.host):
            logger.warning(
                "--wyoming: anyone who can reach %s can use port %d, with or without a key",
                shown(settings.host),
                settings.wyoming,
            )
        return _serve(a, settings)


def make_settings(a: argparse.Namespace, page: Path | None) -> Settings:
    """The flags as `Settings`. page: the folder for the page's files; None: no page."""
    root_path = a.root_path.strip("/")
    return Settings(
        host=a.host,
        port=a.port,
        api_key=a.api_key,
        login=a.auth,
        root_path=f"/{root_path}" if root_path else "",
        allow_hosts=tuple(a.allow_host),
        allow_origins=tuple(a.allow_origin),
        max_bytes=a.max_upload * 10**6,
        timeout=a.timeout,
        patience=a.patience,
        page=page,
        session_seconds=60.0 * a.session_minutes,
        idle_seconds=a.idle_seconds,
        wyoming=a.wyoming,
        live=live_options(policy=a.policy, update=a.update, window=a.live_window),
        cache=a.cache if a.cache in PRESETS and not any(getattr(a, n) for n in OVERRIDES) else None,
    )


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into an exit with status 0, so that files and folders are cleaned up.

    Uvicorn raises the signal again when it has shut down; Python's default would exit at once.
    """

    def end(*_: object) -> None:
        raise SystemExit(0)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def load_choice(a: argparse.Namespace, choice: ModelChoice) -> SlimWhisper:
    """Load a model with the server's flags; a cache form in `choice` replaces theirs.

    The adapters and the draft belong to the server's own model, and are left out for others.
    """
    changes: dict[str, Any] = {} if choice.name == a.model else {"adapter": None, "draft": None}
    if choice.cache is not None:
        changes |= {"cache": choice.cache, **dict.fromkeys(OVERRIDES)}
    return load_chosen(a, name=choice.name, **changes)


def _serve(a: argparse.Namespace, settings: Settings) -> int:
    models = Models(a.model, Path(a.model_dir) if a.model_dir else None, a.allow_download)
    service = Service(
        partial(load_choice, a),
        a.batch_size,
        Limits(queue=a.queue, seconds=60.0 * a.max_minutes, streams=a.streams),
        a.unload_after or float("inf"),
        first=ModelChoice(a.model),
    )
    server = Server(make_app(service, models, settings))

    def when_loaded() -> None:
        if service.first.exception() is not None:
            server.should_exit = True
            return
        while not (server.started or server.should_exit):  # it is not to start later for this
            time.sleep(0.1)
        if a.streams and not server.should_exit:
            service.streams.warm_up(settings.live)

    threading.Thread(target=when_loaded, daemon=True).start()
    server.run()
    service.close()
    service.first.result()
    return 0 if server.started else 1
