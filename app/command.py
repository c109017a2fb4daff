"""The `serve` command."""

import argparse
import logging
import os
import signal
import socket
import ssl
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from slimwhisper.api import SlimWhisper
from slimwhisper.app.api.access import is_loopback
from slimwhisper.app.page.files import page_folder
from slimwhisper.app.server import Server, make_app
from slimwhisper.app.service.host import Models, ServerSettings
from slimwhisper.app.service.jobs import Limits, ModelChoice
from slimwhisper.app.service.service import Service
from slimwhisper.cache.forms import OVERRIDES, PRESETS, choose_forms
from slimwhisper.cores import set_threads
from slimwhisper.devices import choose_device, choose_dtype
from slimwhisper.disk import open_locked
from slimwhisper.errors import DependencyError, OptionError
from slimwhisper.files import check_folder, output_errors
from slimwhisper.flags import load_chosen
from slimwhisper.live.setup import live_options
from slimwhisper.text import escape_line
from slimwhisper.trust import check_flags

logger = logging.getLogger("slimwhisper.serve")

OPEN_FILES = Path("/proc/self/fd")  # reader processes open uploads there: `references.open_path`


def run_serve(a: argparse.Namespace) -> int:
    """Serve until a signal arrives. Returns the exit status: 1 if the server did not start."""
    if not OPEN_FILES.exists():
        raise DependencyError("serve needs Linux; on other systems, run it in a container")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    set_threads(a.threads)
    # report mistakes before loading anything
    choose_dtype(a.dtype, choose_device(a.device))
    check_flags(a.drop)
    choose_forms(a.cache, *(getattr(a, name) for name in OVERRIDES))
    check_ports(a.host, port=a.port, wyoming=a.wyoming)
    with output_errors("no temporary folder", "TMPDIR"):
        tempfile.gettempdir()
    if a.results:
        claim_results(Path(a.results))
    with ExitStack() as stack:
        stack.push(end_at_once)
        # an exit with status 0, so that files and folders are cleaned up; uvicorn raises the signal
        # again after its shutdown, and Python's default would skip the cleanup
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        stack.callback(signal.signal, signal.SIGTERM, before)
        settings = make_settings(a, stack.enter_context(page_folder()) if a.page else None)
        host, is_open = escape_line(settings.host), not is_loopback(settings.host)
        if is_open and not (settings.api_key or settings.login):
            who = "anyone who can reach this address can use the server"
            remedy = "set --auth user:password or --api_key KEY, or use --host 127.0.0.1"
            logger.warning("%s: %s; %s", host, who, remedy)
        if is_open and settings.wyoming:
            who = f"anyone who can reach {host} can use port {settings.wyoming} without a key"
            logger.warning("--wyoming: %s", who)
        return _serve(a, settings)


def end_at_once(_: object, error: BaseException | None, __: object) -> None:
    """Leave out Python's own end if it was asked for: a thread that still loads would abort."""
    if isinstance(error, SystemExit):
        os._exit(int(error.code or 0))


def make_settings(a: argparse.Namespace, page: Path | None) -> ServerSettings:
    """The flags as `ServerSettings`. page: the folder for the page's files; None: no page."""
    root_path = a.root_path.strip("/")
    if "*" in a.allow_origin and not a.api_key:
        raise OptionError("--allow_origin *: any site could use this server; give --api_key, too")
    if a.allow_webhook and not (a.api_key and a.results):
        raise OptionError("--allow_webhook: calls are signed; give --api_key and --results, too")
    same = "host port api_key timeout patience idle_seconds wyoming keep_results".split()
    plain = a.cache in PRESETS and not any(getattr(a, name) for name in OVERRIDES)
    return ServerSettings(
        **{name: getattr(a, name) for name in same},
        login=a.auth,
        tls=tls_files(a.tls_cert, a.tls_key),
        root_path=f"/{root_path}" if root_path else "",
        allow_hosts=tuple(a.allow_host),
        allow_webhooks=tuple(a.allow_webhook),
        results=a.results and Path(a.results),
        allow_origins=tuple(a.allow_origin),
        max_bytes=a.max_upload * 10**6,
        page=page,
        session_seconds=60.0 * a.session_minutes,
        live=live_options(update=a.update, window=a.live_window),
        cache=a.cache if plain else None,
    )


def claim_results(folder: Path) -> None:
    """Make and lock the folder of jobs in the background, until this process ends. Raises
    OutputError; OptionError if another server uses it.
    """
    with suppress(OSError):  # which the check reports
        folder.mkdir(mode=0o700, parents=True)  # the names of jobs are secrets, too
    check_folder(folder, "--results")
    try:
        open_locked(folder / "lock")
    except BlockingIOError:
        message = f"--results {folder}: another server uses it; choose another folder"
        raise OptionError(message) from None


def job_defaults(a: argparse.Namespace) -> dict[str, Any]:
    """The flags that are options of every job, as fields of `slimwhisper.Options`."""
    return {"speech_only": a.speech_only, "drop": a.drop, "known_speakers": a.voices}


def tls_files(cert: str | None, key: str | None) -> tuple[str, str] | None:
    """The flags' two files, or None. Raises OptionError if one is missing or of no use."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise OptionError("TLS needs two files; give --tls_cert and --tls_key")
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, key, "")
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        files = f"--tls_cert {cert} --tls_key {key}"
        reason = error.strerror or error if isinstance(error, OSError) else error
        raise OptionError(f"{files}: {reason}; give two PEM files, without a password") from error
    return cert, key


def check_ports(host: str, **ports: int | None) -> None:
    """Raises OptionError if the server could not listen at a host's ports, which have flags."""
    with ExitStack() as held:
        for flag, port in ports.items():
            if port is None:
                continue
            try:
                if not 0 <= port < 1 << 16:
                    raise OSError(0, "ports are numbers up to 65535")
                for family, *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                    held.enter_context(socket.create_server(address, family=family))
            except OSError as error:
                reason = str(error.strerror).partition(" (")[0]  # without the address
                message = f"--host {escape_line(host)} --{flag} {port}: {reason}; choose another"
                raise OptionError(message) from error


def load_choice(a: argparse.Namespace, choice: ModelChoice) -> SlimWhisper:
    """Load a model with the server's flags; a cache form in `choice` replaces that of the flags.

    The adapter belongs to the server's own model; other models load without it.
    """
    changes: dict[str, Any] = {} if choice.name == a.model else {"adapter": None}
    if choice.cache is not None:
        changes |= {"cache": choice.cache, **dict.fromkeys(OVERRIDES)}
    return load_chosen(a, name=choice.name, **changes)


def _serve(a: argparse.Namespace, settings: ServerSettings) -> int:
    models = Models(a.model, a.model_dir and Path(a.model_dir), a.allow_download, a.strict_models)
    service = Service(
        partial(load_choice, a),
        a.batch_size,
        Limits(queue=a.queue, seconds=60.0 * a.max_minutes, streams=a.streams),
        a.unload_after or float("inf"),
        first=ModelChoice(a.model),
        defaults=job_defaults(a),
    )
    server = Server(make_app(service, models, settings))

    def warm_up_when_loaded() -> None:
        if service.first.exception() is not None:
            server.should_exit = True
            return
        while not (server.started or server.should_exit):  # warming up must not delay the start
            time.sleep(0.1)
        if a.streams and not server.should_exit:
            service.streams.warm_up(settings.live)

    threading.Thread(target=warm_up_when_loaded, daemon=True).start()
    server.run()
    service.close()
    service.first.result()
    return 0 if server.started else 1
