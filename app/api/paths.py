"""The rules of every path of the server: who may use it, and how large a body may be.

A path without a rule needs the key and gets 404. A new route needs a rule here.
"""

import re
from enum import Enum
from typing import NamedTuple
from urllib.parse import unquote

from starlette.types import Scope

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
