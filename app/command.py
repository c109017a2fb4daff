"""The `serve` command."""

import argparse
import ipaddress
import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from slimwhisper.api import SlimWhisper, choose_device, choose_dtype
from slimwhisper.app.page.tempdir import page_folder
from slimwhisper.app.server import make_app, make_server
from slimwhisper.app.service.jobs import Limits, ModelChoice
from slimwhisper.app.service.models import Models
from slimwhisper.app.service.service import Service
from slimwhisper.app.service.settings import Settings
from slimwhisper.flags import load_chosen

logger = logging.getLogger("slimwhisper.serve")

REPLACING = ("cross_cache", "self_cache", "cache_dtype")  # what makes a preset another one


def run_serve(a: argparse.Namespace) -> int:
    """Serve until a signal ends it; 1 where it could not begin."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    if a.threads:
        torch.set_num_threads(a.threads)
    choose_dtype(a.dtype, choose_device(a.device))  # mistakes come before anything is loaded
    with ended_by_sigterm(), page_folder() if a.page else nullcontext() as folder:
        settings = Settings(
            host=a.host,
            port=a.port,
            api_key=a.api_key,
            login=a.auth,
            root_path="/" + a.root_path.strip("/") if a.root_path.strip("/") else "",
            most_bytes=a.max_upload * 10**6,
            timeout=a.timeout,
            patience=a.patience,
            page=folder,
            cache=None if any(getattr(a, name) for name in REPLACING) else a.cache,
        )
        if not (settings.api_key or settings.login or is_loopback(settings.host)):
            logger.warning(
                "%s: whoever reaches this address can use the server; give --auth user:password "
                "or --api-key KEY, or listen at 127.0.0.1",
                settings.host,
            )
        return _serve(a, settings)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends it with status 0, and what is open is closed; uvicorn raises it anew at its end,
    and the default would leave files behind.
    """

    def end(*_: object) -> None:
        raise SystemExit(0)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def load_choice(a: argparse.Namespace, choice: ModelChoice) -> SlimWhisper:
    """The model chosen, with the server's flags but for its cache where one is chosen."""
    cache: dict[str, Any] = {}
    if choice.cache is not None:
        cache = {"cache": choice.cache, **dict.fromkeys(REPLACING)}
    return load_chosen(a, name=choice.name, **cache)


def _serve(a: argparse.Namespace, settings: Settings) -> int:
    models = Models(a.model, Path(a.model_dir) if a.model_dir else None, a.allow_download)
    service = Service(
        partial(load_choice, a),
        a.batch_size,
        Limits(queue=a.queue, seconds=60.0 * a.max_minutes),
        a.unload_after or float("inf"),
        first=ModelChoice(a.model),
    )
    server = make_server(make_app(service, models, settings), service, settings)

    def end_without_model() -> None:
        service.begun.wait()
        if service.load_error is not None:
            server.should_exit = True

    threading.Thread(target=end_without_model, daemon=True).start()
    server.run()
    service.close()
    if service.load_error is not None:
        raise service.load_error
    return 0 if server.started else 1


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
