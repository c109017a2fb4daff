"""What stands between the users and Gradio, and all that the page uses of its undocumented parts.

Gradio has no documented way to limit the total size of uploads, to restrict a login's cookie to one
site, to refuse addresses, to keep tracebacks out of the log, and to end open pages at shutdown.
"""

import asyncio
import json
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import gradio as gr
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from gradio import processing_utils
from gradio.route_utils import FnIndexInferError, upload_fn
from gradio.routes import App, file_upload_statuses
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.routing import Match, Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slimwhisper.app.api.access import network_of, route_path, rule_for
from slimwhisper.app.api.errors import APIError
from slimwhisper.app.api.fields import check_size
from slimwhisper.app.page.files import Store, TempFiles
from slimwhisper.app.service.host import ServerSettings

MAX_USERS = 10_000  # logged-in users
MAX_SESSIONS = 250  # open pages whose state is kept, of 0.1 MB; Gradio makes that of others anew
FETCH_FUNCTIONS = ("async_ssrf_protected_get", "async_ssrf_protected_download")


class Blocks(gr.Blocks):
    """Gradio's Blocks, without tracebacks in the log for invalid arguments."""

    async def preprocess_data(self, *args: Any, **options: Any) -> Any:
        """The arguments for the handlers. Raises gr.Error."""
        try:
            return await super().preprocess_data(*args, **options)
        except Exception as error:
            text = error.message if isinstance(error, gr.Error) else "they do not fit the function"
            raise gr.Error(f"The arguments: {text[:300]}", print_exception=False) from None


class PageMount(Mount):
    """Gradio's app at the page's paths only: the APIs' errors are not Gradio's."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """As in Starlette's router."""
        rule = rule_for(route_path(scope), page=True)
        return super().matches(scope) if rule.page else (Match.NONE, {})


class Gradio:
    """Gradio's app, which is removed from a server's routes, where it must be the last."""

    def __init__(self, server: FastAPI) -> None:
        mount = server.routes.pop()
        assert isinstance(mount, Mount) and isinstance(mount.app, App)
        self.route, self.app = PageMount(mount.path, mount.app), mount.app
        self.app.state_holder.capacity = MAX_SESSIONS
        self.app.get_blocks().has_launched = True  # else it accepts files that were not uploaded
        refuse_addresses()

    def signed_in(self, request: Request) -> bool:
        """Whether a request comes from a user of the page. Reads its headers only."""
        names = [request.cookies.get(self._cookie(https)) for https in (True, False)]
        return self.app.auth is None or any(name in self.app.tokens for name in names)

    def sign_in(self, user: str, request: Request, response: Response) -> None:
        """Set a user's cookie, for this site only; over HTTPS, for HTTPS only."""
        users = self.app.tokens
        while len(users) >= MAX_USERS:
            del users[next(iter(users))]  # the oldest
        token = secrets.token_urlsafe(16)
        users[token] = user
        # behind a proxy, only the browser's Origin may show HTTPS
        https = "https" in (request.url.scheme, request.headers.get("origin", "").split(":")[0])
        response.set_cookie(self._cookie(https), token, secure=https, httponly=True, samesite="lax")

    def _cookie(self, https: bool) -> str:
        """The name of the cookie with the token."""
        return f"access-token-{'' if https else 'unsecure-'}{self.app.cookie_id}"

    def discard_files(self) -> None:
        """Empty Gradio's lists of the files it has seen, which only grow."""
        for names in self.app.get_blocks().temp_file_sets:
            names.clear()

    def disconnect(self) -> None:
        """End the streams of all open pages."""
        self.app.stop_event.set()


def refuse_addresses() -> None:
    """Make Gradio's functions that fetch addresses refuse them all, in this process."""

    async def refuse(*_: object, **__: object) -> Any:
        raise gr.Error("Send a file, not an address.", print_exception=False)

    for name in FETCH_FUNCTIONS:
        assert hasattr(processing_utils, name), f"Gradio {gr.__version__} has no {name}"
        setattr(processing_utils, name, refuse)


# -- bodies that are posted ----------------------------------------------------------------------

# Gradio fetches the address in any argument that looks like a file, whatever its purpose, and fails
# with a traceback for a function that does not exist.
FILE_ROUTE = "/gradio_api/file="  # then a path: the address of a file that was sent to the page
MAX_TEXT = 200_000  # characters: of a text to align, some four hours of speech
MAX_VALUES = 50_000  # in a body: a thousand files have 10,000
MAX_DEPTH = 10  # of values in values; a file has 6


class GradioBodyCheck:
    """ASGI middleware for Gradio's app: refuses bodies that `check_body` refuses."""

    def __init__(
        self, app: ASGIApp, *, functions: Container[int], is_stored: Callable[[str], bool]
    ) -> None:
        """functions: the indices that a call may have. is_stored: whether a path is an upload's."""
        self.app, self._functions, self._is_stored = app, functions, is_stored

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            return await self._post(scope, receive, send)
        try:
            await self.app(scope, receive, send)
        except RuntimeError as error:
            if not isinstance(error.__cause__, HTTPException):
                raise
            # the event stream of a call that does not exist: the error has been sent already
            await send({"type": "http.response.body"})

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await Request(scope, receive).body()
            check_body(body, self._functions, self._is_stored)
        except APIError as error:  # too large
            return await error.response()(scope, receive, send)
        except ValueError as error:
            return await JSONResponse({"detail": str(error)}, 400)(scope, receive, send)
        unread = [{"type": "http.request", "body": body}]

        async def replay() -> Message:
            return unread.pop() if unread else await receive()

        try:
            await self.app(scope, replay, send)
        except FnIndexInferError as error:
            await JSONResponse({"detail": str(error)}, 404)(scope, receive, send)


def check_body(body: bytes, functions: Container[int], is_stored: Callable[[str], bool]) -> None:
    """Raise ValueError, with a message for the user, if a body must not reach Gradio.

    A dictionary with a path or an address must be a file that was sent to the page. Texts must be
    valid Unicode of limited length.
    """
    try:
        check_size(body)
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON") from None
    if not isinstance(content, dict):
        raise ValueError("the body must be a JSON object")
    index = content.get("fn_index")
    if index is not None and not (type(index) is int and index in functions):
        raise ValueError("unknown function; reload the page")
    level: list[Any] = [content]
    count = depth = 0
    while level:
        count, depth = count + len(level), depth + 1
        if count > MAX_VALUES or depth > MAX_DEPTH:
            raise ValueError("the body has too many values")
        for value in level:
            if isinstance(value, str):
                _check_text(value)
            elif isinstance(value, dict):
                _check_file(value, is_stored)
        level = [inner for value in level for inner in _children(value)]


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return value if isinstance(value, list) else []


def _check_text(text: str) -> None:
    if len(text) > MAX_TEXT:
        raise ValueError(f"a text has {len(text)} characters; send at most {MAX_TEXT}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("a text is not valid Unicode") from None


def _check_file(value: dict[str, Any], is_stored: Callable[[str], bool]) -> None:
    path, url = value.get("path"), value.get("url")
    if isinstance(url, str):  # the page's own address of the file
        url = unquote(url.partition(FILE_ROUTE)[2])
    for address in (path, url):
        if address is not None and not (isinstance(address, str) and is_stored(address)):
            raise ValueError("A file is no longer on the server. Add it again.")


# -- login ---------------------------------------------------------------------------------------

# Browsers send the cookie of Gradio's login with the requests of other sites, too (SameSite=None),
# and Gradio does not limit how fast a program may try passwords.
MAX_TRIES, WITHIN = 10, 60.0  # wrong passwords of an address, and the seconds in which they count
MAX_ADDRESSES = 10_000  # whose attempts are counted
MAX_FIELD = 1000  # bytes of a field of the form

Check = Callable[[str, str], bool]  # whether a user and a password are right


class LoginAttempts:
    """Wrong passwords, by the address that sent them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds."""
        self._clock = clock
        self._by_address: dict[str, deque[float]] = {}  # in the order of their last failures

    def wait(self, address: str) -> float:
        """Seconds until an address may try again; 0: it may now."""
        failed = self._by_address.get(address)
        if failed is None or len(failed) < MAX_TRIES:
            return 0.0
        return max(0.0, failed[0] + WITHIN - self._clock())

    def fail(self, address: str) -> None:
        """Count a wrong password."""
        failed = self._by_address.pop(address, deque(maxlen=MAX_TRIES))
        failed.append(self._clock())
        self._by_address[address] = failed
        if len(self._by_address) > MAX_ADDRESSES:
            del self._by_address[next(iter(self._by_address))]


def make_login_router(gradio: Gradio, check: Check) -> APIRouter:
    """POST /login with a form's `username` and `password` -> a cookie; 400 if they are wrong.

    Gradio's login page expects this path and these responses.
    """
    router = APIRouter()
    tries = LoginAttempts()

    @router.post("/login")
    @router.post("/login/")
    async def login(request: Request) -> Response:
        form = await request.form(max_files=0, max_fields=10, max_part_size=MAX_FIELD)
        user, password = str(form.get("username", "")).strip(), str(form.get("password", ""))
        address = network_of(request.client.host if request.client else "")
        if wait := tries.wait(address):
            headers = {"Retry-After": str(round(wait) + 1)}
            raise APIError(429, "too many wrong passwords; try again in a minute", headers=headers)
        if not check(user, password):
            tries.fail(address)
            raise APIError(400, "wrong user name or password")
        response = JSONResponse({"success": True})
        gradio.sign_in(user, request, response)
        return response

    return router


def login_check(settings: ServerSettings) -> Check | None:
    """The function that checks a user and a password; None: no login is needed."""
    login = settings.login
    secret = settings.api_key if login is None else ":".join(login)
    if secret is None:
        return None

    def allowed(user: str, password: str) -> bool:
        credentials = password if login is None else f"{user}:{password}"
        return secrets.compare_digest(credentials.encode(), secret.encode())

    return allowed


def login_message(settings: ServerSettings) -> str:
    """The text of the login page."""
    wait = f"After {MAX_TRIES} wrong passwords, wait a minute."
    if settings.login is None and settings.api_key is not None:
        return f"Use any user name, with the server's API key as the password. {wait}"
    return wait


# -- uploads -------------------------------------------------------------------------------------

# Gradio's route has no limit on the total size and leaves the parts of aborted uploads on disk. Its
# functions still read the form, and report the progress to the page.
PROGRESS_SECONDS = 10.0  # after an upload, during which its page may request the progress


class Uploads(Store[TempFiles]):
    """All uploads, each in a folder."""

    def begin(self) -> TempFiles:
        """A new upload, in a new folder. Raises OSError."""
        upload = TempFiles(self.folder / secrets.token_hex(16))
        upload.path.mkdir(mode=0o700)
        self.entries[upload.path.name] = upload
        return upload

    def grow(self, upload: TempFiles, size: int) -> None:
        """Make room for `size` more bytes. Raises APIError if there is none."""
        upload.size += size
        self.remove_old()
        if self.size > self.room():
            message = "the server has no room for this file; try again later, or send a smaller one"
            raise APIError(507, message, "disk_full", headers={"Retry-After": "60"})

    def end(self, upload: TempFiles, files: int) -> None:
        """Complete an upload. files: their number; an upload without files counts as one."""
        upload.files = max(1, files)
        upload.since = time.monotonic()
        self.remove_old()

    def has(self, path: str) -> bool:
        """Whether a path is that of an uploaded file, which may have been removed since."""
        return Path(os.path.normpath(path)).is_relative_to(self.folder) and "\0" not in path


def make_uploads_router(uploads: Uploads, max_bytes: int) -> APIRouter:
    """POST /gradio_api/upload: a form's `files` -> their paths. max_bytes: of a file."""
    router = APIRouter(prefix="/gradio_api")

    @router.post("/upload")
    async def upload(request: Request, upload_id: str | None = None) -> Response:
        stored = uploads.begin()

        async def receive_counted() -> Message:
            message = await request.receive()
            uploads.grow(stored, len(message.get("body", b"")))
            return message

        progress = file_upload_statuses if upload_id else None
        form = Request(request.scope, receive_counted)
        try:
            paths, _, _ = await upload_fn(
                form, stored.path, max_bytes, upload_id, upload_progress=progress
            )
            uploads.end(stored, len(paths))
        except MultiPartException as error:
            too_large = "maximum allowed size" in error.message
            return PlainTextResponse(error.message, 413 if too_large else 400)
        finally:
            if upload_id:
                loop = asyncio.get_running_loop()
                loop.call_later(PROGRESS_SECONDS, file_upload_statuses.stop_tracking, upload_id)
            if stored.since is None:  # no room, say, or the client disconnected
                uploads.drop(stored)
        return JSONResponse(paths)

    return router
