"""Whether a request comes for this server's own page, or for the page of another site.

A browser sends most requests that a page asks for, whatever the page's site, and with them the
cookies and passwords that it keeps for this server. What it says about the site is in
Sec-Fetch-Site (W3C, "Fetch Metadata Request Headers"; over HTTPS and to this machine) and Origin.
"""

import ipaddress
import re
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import Scope

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.service.settings import Settings

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
DEFAULT_PORT = re.compile(r":(80|443)\Z")  # of HTTP and HTTPS


class Sites:
    """The hosts and the sites that may use a server."""

    def __init__(self, settings: Settings) -> None:
        self._hosts = frozenset(host.lower() for host in settings.allow_hosts)
        self._origins = frozenset(settings.allow_origins)
        keyless = settings.api_key is None and settings.login is None
        self._known_hosts_only = bool(self._hosts) or (keyless and is_loopback(settings.host))

    def check_host(self, scope: Scope) -> None:
        """Raise APIError if the request is for a host that is not known.

        A site may give its own name the address of this machine, and so be taken by the browser for
        the same site as this server ("DNS rebinding").
        """
        host = _hostname(Headers(scope=scope).get("host", ""))
        if self._known_hosts_only and not (is_loopback(host) or host in self._hosts):
            message = "this server is not known by this name; start it with --allow_host NAME"
            raise APIError(403, f"Host {host[:100]!r}: {message}", "unknown_host")

    def may_call(self, scope: Scope) -> bool:
        """Whether a program, this server's page or a site that is allowed calls the API."""
        return Headers(scope=scope).get("origin") in self._origins or not self.is_foreign(scope)

    def is_foreign(self, scope: Scope) -> bool:
        """Whether a browser asks for the page of another site. Programs do not say so."""
        headers = Headers(scope=scope)
        origin, site = headers.get("origin", ""), headers.get("sec-fetch-site")
        if site is not None and scope["type"] == "http":  # websockets: browsers differ
            return site not in ("same-origin", "none")
        return bool(origin) and not self._is_own(origin, headers.get("host", ""))

    def _is_own(self, origin: str, host: str) -> bool:
        netloc = origin.partition("://")[2].lower()
        return bool(netloc) and (
            DEFAULT_PORT.sub("", netloc) == DEFAULT_PORT.sub("", host.lower())
            or _hostname(netloc) in self._hosts
        )


def is_navigation(scope: Scope) -> bool:
    """Whether somebody follows a link: the answer is shown, and no page can read it."""
    headers = Headers(scope=scope)
    return (
        scope["method"] == "GET"
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _hostname(netloc: str) -> str:
    """The name without its port, in lower case; "" if there is none."""
    try:
        return urlsplit(f"//{netloc}").hostname or ""
    except ValueError:
        return ""


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
