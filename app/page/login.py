"""The page's login, in place of Gradio's.

Browsers send Gradio's cookie with the requests of other sites, too (SameSite=None), and Gradio does
not limit how fast a program may try passwords.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.api.origins import network_of
from slimwhisper.app.page.gradio_internals import Gradio
from slimwhisper.app.service.host import ServerSettings

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
        address = network_of(request)
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
