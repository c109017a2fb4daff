"""Tells requests of this server's page and of programs from those of other sites' pages.

A browser sends most requests that a page makes, whatever the page's site, and with them the
cookies and passwords that it has stored for this server. It names the site in Sec-Fetch-Site (W3C,
"Fetch Metadata Request Headers"; only over HTTPS and to this machine) and in Origin.
"""

import ipaddress
import re

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import Scope

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.service.host import ServerSettings

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


def network_of(connection: HTTPConnection) -> str:
    """A client's address; of IPv6 the network, because a client has 2**64 addresses there."""
    host = connection.client.host if connection.client else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 4:
        return host
    return str(ipaddress.ip_network((int(address), 64), strict=False))
