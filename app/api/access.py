"""Access control, before any of a request's body is read: who may use which path, from which host
and from the pages of which sites, and how large a body may be. Forms must be in UTF-8.

http        RULES and PAGE_RULES. A path without a rule needs the key and gets 404. A new route
            needs a rule here.
websocket   refused, unless the path is in WEBSOCKETS; then it needs the key, or a client
            secret. The page of another site needs one of them even if no key is set, because
            a browser lets it connect, and sends a saved login along.
lifespan    the start and the end of the server: passed on
any other   an error

A browser sends most requests that a page makes, whatever the page's site, and with them the cookies
and passwords that it has stored for this server. It names the site in Sec-Fetch-Site (W3C, "Fetch
Metadata Request Headers"; only over HTTPS and to this machine) and in Origin.

The log keeps secrets out: readers of the log must not gain access by it.
"""

import asyncio
import base64
import ipaddress
import logging
import re
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import Enum
from typing import NamedTuple
from urllib.parse import unquote

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slimwhisper.app.api.errors import APIError, as_api_error, disk_is_full, no_room, too_large
from slimwhisper.app.service.host import ServerSettings
from slimwhisper.app.service.jobs import STOPPING, StoppingError

# -- hosts and sites -----------------------------------------------------------------------------

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
NAME_AND_PORT = re.compile(r"(\[[0-9a-f:.]+\]|[^@:/?#\[\]\s]+)(?::[0-9]*)?")
DEFAULT_PORT = re.compile(r":(80|443)\Z")  # of HTTP and HTTPS


class AllowedOrigins:
    """The hosts and the sites that may use a server."""

    def __init__(self, settings: ServerSettings) -> None:
        self._hosts = frozenset(host.lower() for host in settings.allow_hosts)
        self._origins = frozenset(settings.allow_origins)
        keyless = settings.api_key is None and settings.login is None
        self._known_hosts_only = bool(self._hosts) or (keyless and is_loopback(settings.host))

    def check_host(self, scope: Scope) -> None:
        """Raise APIError if the request is for an unknown host.

        A site may resolve its name to the address of this machine, so that the browser takes it for
        the same site as this server ("DNS rebinding").
        """
        host = _hostname(Headers(scope=scope).get("host", ""))
        if self._known_hosts_only and not (is_loopback(host) or host in self._hosts):
            message = "this server does not accept this name; start it with --allow_host NAME"
            raise APIError(403, f"Host {host[:100]!r}: {message}", "unknown_host")

    def may_call(self, scope: Scope) -> bool:
        """Whether the caller is a program, this server's page or an allowed site."""
        return Headers(scope=scope).get("origin") in self._origins or not self.is_foreign(scope)

    def is_foreign(self, scope: Scope) -> bool:
        """Whether a browser sends this for the page of another site; False for programs."""
        headers = Headers(scope=scope)
        origin, site = headers.get("origin", ""), headers.get("sec-fetch-site")
        if site is not None and scope["type"] == "http":  # websockets: browsers differ
            return site not in ("same-origin", "none")
        return bool(origin) and not self._is_this_server(origin, headers.get("host", ""))

    def _is_this_server(self, origin: str, host: str) -> bool:
        netloc = origin.partition("://")[2].lower()
        same = DEFAULT_PORT.sub("", netloc) == DEFAULT_PORT.sub("", host.lower())
        return bool(netloc) and (same or _hostname(netloc) in self._hosts)


def is_navigation(scope: Scope) -> bool:
    """Whether a user follows a link: the browser shows the response, and no page can read it."""
    headers = Headers(scope=scope)
    names = ("sec-fetch-mode", "sec-fetch-dest")
    return scope["method"] == "GET" and [*map(headers.get, names)] == ["navigate", "document"]


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _hostname(netloc: str) -> str:
    """The name without its port, in lower case; "" if there is none, or more than both."""
    found = NAME_AND_PORT.fullmatch(netloc.lower())
    return found[1].strip("[]") if found else ""


def network_of(host: str) -> str:
    """A client's address; of IPv6 the network, because a client has 2**64 addresses there."""
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    return str(ipaddress.IPv6Network((int(address), 64), strict=False))


# -- paths ---------------------------------------------------------------------------------------

LOGIN = 10**4  # bytes of a body: a user and a password
SMALL = 10**6  # bytes: forms without files, and JSON
TEXTS = 8 * 10**6  # bytes: all texts of a day of speech
UPLOAD = None  # the limit of uploads


class AllowedUsers(Enum):
    """Who may use a path, if the server has a key or a login."""

    ANYONE = "anyone"
    KEY = "requests with the key, or with user and password"
    PAGE = "users who are logged in to the page"


class PathRule(NamedTuple):
    """The rule for the paths that a pattern matches as a whole."""

    pattern: str  # lower case
    users: AllowedUsers
    max_body: int | None  # bytes; None: the limit of uploads
    page: bool = False  # whether it belongs to the page: requests of other sites are refused


UNKNOWN = PathRule("", AllowedUsers.KEY, SMALL)
RULES = (
    PathRule("/health|/status", AllowedUsers.ANYONE, SMALL),
    PathRule("(/v1|/openai/deployments/[^/]*)?/audio/.*", AllowedUsers.KEY, UPLOAD),
    PathRule("/inference|/asr|/detect-language|/v1/listen", AllowedUsers.KEY, UPLOAD),
    PathRule(r"/v1(/.*)?|/metrics|/openapi\.json", AllowedUsers.KEY, SMALL),
)
# The routes of Gradio that its page uses. Others fetch arbitrary addresses, or store files.
GRADIO = "user|login_check|token|app_id|info|startup-events|queue/(join|data|status)|cancel|reset"
ICONS = r"favicon\.ico|manifest\.json|robots\.txt|(gradio_api/)?theme\.css"
PAGE_RULES = tuple(
    PathRule(pattern, users, max_body, page=True)
    for pattern, users, max_body in (
        ("/login/?", AllowedUsers.ANYONE, LOGIN),
        (f"/|/logout/?|/({ICONS})", AllowedUsers.ANYONE, SMALL),
        ("/(assets|static|svelte|page/assets)/.*", AllowedUsers.ANYONE, SMALL),
        ("/page/(audio|results?)/.*", AllowedUsers.ANYONE, SMALL),  # their addresses are secrets
        ("/page/(edit|live)/.*", AllowedUsers.PAGE, TEXTS),
        (f"/config/?|/gradio_api/({GRADIO})/?", AllowedUsers.PAGE, SMALL),
        ("/gradio_api/(call/(?!v2/)|heartbeat/|file=(?!https?:)).*", AllowedUsers.PAGE, SMALL),
        ("/gradio_api/upload_progress", AllowedUsers.PAGE, SMALL),
        ("/gradio_api/upload", AllowedUsers.PAGE, UPLOAD),
    )
)
COMPILED = {rule: re.compile(rule.pattern, re.DOTALL) for rule in (*RULES, *PAGE_RULES)}


def rule_for(path: str, page: bool) -> PathRule:
    """The rule for a path; UNKNOWN if there is none. page: whether the server has the page.

    A path that a lenient router could take for another, such as //v1, /V1 and /%76%31, must have
    the same rule in both spellings, else UNKNOWN.
    """
    spellings = (path, re.sub("/{2,}", "/", unquote(path)).lower())
    rules = (*RULES, *PAGE_RULES) if page else RULES
    found = {next((r for r in rules if COMPILED[r].fullmatch(s)), UNKNOWN) for s in spellings}
    return found.pop() if len(found) == 1 else UNKNOWN


def route_path(scope: Scope) -> str:
    """The path without `root_path`, exactly as Starlette's router computes it."""
    path: str = scope.get("path", "")
    root: str = scope.get("root_path", "")
    rest = path.removeprefix(root)
    return rest if path.startswith(root) and rest[:1] in ("", "/") else path


# -- requests ------------------------------------------------------------------------------------

# the page's paths after their first two parts have the secret addresses of results and uploads
PATH = re.compile(r"(/+(?:page|gradio_api|v1/audio)/+[^/?=%]*)[/=%][^?]*")
# Uvicorn logs this error for a websocket that was refused with a status, which is no mistake
# (github.com/Kludex/uvicorn/pull/3138)
REFUSED = "ASGI callable returned without completing handshake."
NOT_UTF8 = "Invalid UTF-8 sequence received from client."  # with a traceback
QUERY = re.compile(r"\?.*")  # may contain a key, or the name of a session


def hide_secrets() -> None:
    """Shorten the paths that Uvicorn logs, and drop what is no error of the server."""
    for name in ("uvicorn.access", "uvicorn.error"):  # requests, and websockets
        logging.getLogger(name).addFilter(_shorten)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs the addresses of webhooks


def _shorten(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(map(_shortened, record.args))
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    return not isinstance(error, asyncio.CancelledError) and record.msg not in (REFUSED, NOT_UTF8)


def _shortened(value: object) -> object:
    if not (isinstance(value, str) and value.startswith("/")):
        return value
    return QUERY.sub("?...", PATH.sub(r"\1/...", value))


WEBSOCKETS = frozenset({"/v1/realtime", "/v1/listen"})  # paths that serve a websocket
KEY_PROTOCOL = "openai-insecure-api-key."  # before the key, in a browser's websocket subprotocol
SECRET = "ek_"  # the prefix of a client secret
POLICY_VIOLATION = 1008  # a websocket's close code; before it is accepted, HTTP's 403
HEADERS = [  # of every response: browsers do not guess types, and show no page in another site's
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"content-security-policy", b"frame-ancestors 'self'"),
]
NO_STORE = (b"cache-control", b"no-store")  # unless the response says otherwise


class Access:
    """ASGI middleware: checks keys, logins, hosts, sites, charsets, and the size of bodies."""

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        *,
        is_secret: Callable[[str], bool] = lambda _: False,
        signed_in: Callable[[Request], bool] | None = None,
    ) -> None:
        """is_secret: whether a client secret is valid now.

        signed_in: whether a request's cookies belong to a user who is logged in to the page; None:
        there is no page.
        """
        self.app, self.max_upload = app, settings.max_bytes
        self._is_secret, self._signed_in = is_secret, signed_in
        self._sites = AllowedOrigins(settings)
        self._challenge, self._remedy = "Bearer", "key as 'Authorization: Bearer KEY'"
        self._accepted = [f"bearer {settings.api_key}"] if settings.api_key else []
        if settings.login is not None:
            self._challenge, self._remedy = "Basic", "user and password by basic authentication"
            pair = base64.b64encode(":".join(settings.login).encode()).decode()
            self._accepted.append(f"basic {pair}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                return await self._serve_http(scope, receive, send)
            case "websocket":
                try:
                    self._check_websocket(scope)
                except APIError as error:
                    return await refuse(error, scope, receive, send)
            case kind if kind != "lifespan":
                raise RuntimeError(f"ASGI scopes of type {kind!r} are not served")
        await self.app(scope, receive, send)

    async def _serve_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        rule = rule_for(route_path(scope), page=self._signed_in is not None)
        private = not rule.page or rule.users is AllowedUsers.PAGE
        response = Answer(send, [*HEADERS, NO_STORE] if private else HEADERS)
        try:
            receive = self._check_http(scope, receive, rule)
            with suppress(ClientDisconnect):  # while the body was read: nobody waits for a response
                await self.app(scope, receive, response)
        except (APIError, asyncio.CancelledError) as error:
            if response.started:
                raise
            refusal = error if isinstance(error, APIError) else StoppingError(STOPPING)
            await refuse(as_api_error(refusal), scope, receive, response)

    def _check_http(self, scope: Scope, receive: Receive, rule: PathRule) -> Receive:
        """Check a request. Returns a `receive` that limits the body. Raises APIError."""
        if route_path(scope) != "/health":  # monitoring may use any host name
            self._sites.check_host(scope)
        self._check_site(scope, rule)
        if rule.users is AllowedUsers.KEY:
            self._check_key(scope)
        elif rule.users is AllowedUsers.PAGE:
            assert self._signed_in is not None
            if not self._signed_in(Request(scope)):
                raise APIError(401, "log in to the page first", "not_logged_in")
        if rule is UNKNOWN:
            raise APIError(404, f"{scope['method']} {scope['path']}: Not Found")
        check_charset(scope)
        limit = self.max_upload if rule.max_body is UPLOAD else rule.max_body
        return limit_body(scope, receive, limit, to_disk=rule.max_body is UPLOAD)

    def _check_site(self, scope: Scope, rule: PathRule) -> None:
        """Raise APIError for a request that a page of another site makes a browser send."""
        # browsers send a key only for a page that sets it, after a preflight request
        if bearer_key(scope):
            return
        if rule.page:
            is_link = is_navigation(scope) and rule.users is AllowedUsers.ANYONE
            allowed = is_link or not self._sites.is_foreign(scope)
        else:
            allowed = scope["method"] in SAFE_METHODS or self._sites.may_call(scope)
        if not allowed:
            message = "a page of another site needs the key, or a server with --allow_origin"
            raise APIError(403, message, "foreign_origin")

    def _check_websocket(self, scope: Scope) -> None:
        if route_path(scope) not in WEBSOCKETS:
            paths = " or ".join(sorted(WEBSOCKETS))
            raise APIError(403, f"this path does not serve a websocket; use {paths}")
        self._sites.check_host(scope)
        key = bearer_key(scope)
        if key.startswith(SECRET):
            if not self._is_secret(key):
                message = "the client secret is unknown or has expired; request another"
                raise APIError(401, message, "invalid_client_secret")
        elif not (key and _matches(f"bearer {key}", self._accepted)):
            if not self._sites.may_call(scope):
                raise APIError(403, "a page of another site needs a client secret, or the key")
            self._check_key(scope)

    def _check_key(self, scope: Scope) -> None:
        kind, given = _authorization(scope)
        if self._accepted and not _matches(f"{kind} {given}", self._accepted):
            headers = {"WWW-Authenticate": self._challenge}
            sent = given or bearer_key(scope)
            wrong = "what was sent is not the server's; " if sent else ""
            message = f"{wrong}send the server's {self._remedy}"
            raise APIError(401, message, "invalid_api_key", headers=headers)


class Answer:
    """Sends a response, with headers that all have, and an id, which OpenAI's clients show."""

    def __init__(self, send: Send, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """headers: with lower-case names; the response's own come first."""
        request_id = f"req_{secrets.token_hex(16)}".encode()
        self._send, self._headers = send, [*headers, (b"x-request-id", request_id)]
        self.started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            own = dict(message.get("headers", ()))
            more = [header for header in self._headers if header[0] not in own]
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        await self._send(message)


async def refuse(error: APIError, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a request, or a websocket before it is accepted: with the error's status if the server
    supports that.
    """
    if scope["type"] == "http" or "websocket.http.response" in scope.get("extensions", {}):
        await error.response(scope["path"])(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": str(error)})


def bearer_key(scope: Scope) -> str:
    """The key of `Authorization: Bearer KEY`, or of a websocket's subprotocol; "" if there is none.

    Not a key of basic authentication, which a browser sends by itself.
    """
    kind, key = _authorization(scope)
    if kind == "bearer" and key:
        return key
    offered = scope.get("subprotocols", ())
    if len(offered) == 2 and offered[0] == "token":  # Deepgram's
        return str(offered[1])
    return next((p.removeprefix(KEY_PROTOCOL) for p in offered if p.startswith(KEY_PROTOCOL)), "")


def limit_body(scope: Scope, receive: Receive, limit: int, to_disk: bool) -> Receive:
    """`receive`, but it raises APIError once more than `limit` bytes of a body have arrived, and so
    does this function if Content-Length is more.

    to_disk: the body is written to disk, so APIError is raised when the disk is full, too.

    Starlette's RequestBodyLimitMiddleware does the same, but cannot answer in OpenAI's format.
    """
    try:
        length = int(Headers(scope=scope).get("content-length", "0"))
    except ValueError:
        raise APIError(400, "Content-Length is not a number") from None
    if length > limit:
        raise too_large(limit)
    remaining = limit

    async def receive_limited() -> Message:
        nonlocal remaining
        message = await receive()
        remaining -= len(message.get("body", b""))
        if remaining < 0:
            raise too_large(limit)
        if to_disk and message.get("body") and disk_is_full():
            raise no_room()
        return message

    return receive_limited


def check_charset(scope: Scope) -> None:
    """Raise APIError if the body is in a charset other than UTF-8.

    Starlette decodes every field of a form with the codec that the request names. Some of Python's
    codecs take quadratic time (punycode: 110 s for 400 kB), others raise errors.
    """
    for header in Headers(scope=scope).getlist("content-type"):
        charset = parse_options_header(header)[1].get(b"charset", b"utf-8")
        if charset.lower() not in (b"utf-8", b"utf8"):
            name = charset.decode("latin-1")[:100]
            raise APIError(415, f"Content-Type: charset {name!r} is not accepted; send utf-8")


def _authorization(scope: Scope) -> tuple[str, str]:
    """The scheme in lower case (RFC 9110, section 11.1) and the credentials, of the last header; of
    Azure's `api-key` and Deepgram's `Authorization: Token` as of a bearer.
    """
    headers = Headers(scope=scope)
    given = headers.getlist("authorization") or [f"bearer {headers.get('api-key', '')}"]
    kind, _, credentials = given[-1].partition(" ")
    return kind.lower().replace("token", "bearer"), credentials


def _matches(credentials: str, accepted: Iterable[str]) -> bool:
    """Whether `credentials` is one of `accepted`, compared in constant time."""
    matches = [secrets.compare_digest(credentials.encode(), a.encode()) for a in accepted]
    return any(matches)
