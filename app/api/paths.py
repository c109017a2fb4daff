"""Every path of the server: who may use it, and how large a body may be.

A path that no rule names needs the key and is not found. A new route needs a rule here.
"""

import re
from enum import Enum
from typing import NamedTuple
from urllib.parse import unquote

from starlette.types import Scope

SMALL = 10**6  # bytes of a body: forms without files, and JSON
TEXTS = 8 * 10**6  # bytes: all texts of a day of speech
UPLOAD = None  # as many as an upload may have


class Users(Enum):
    """Who may use a path, if the server has a key or a login."""

    ANYONE = "anyone"
    KEY = "who sends the key, or user and password"
    PAGE = "who is logged in to the page"


class Rule(NamedTuple):
    """For the paths that a pattern matches as a whole."""

    pattern: str  # lower case
    users: Users
    max_body: int | None  # bytes; None: the limit of uploads
    page: bool = False  # whether it is the page's: requests for other sites are refused


UNKNOWN = Rule("", Users.KEY, SMALL)
RULES = (
    Rule("/health", Users.ANYONE, SMALL),
    Rule("/v1/audio/.*|/inference", Users.KEY, UPLOAD),
    Rule("/v1(/.*)?|/metrics", Users.KEY, SMALL),
)
# Of Gradio's routes those that its page asks for. Others fetch any address, or keep files.
GRADIO = "user|login_check|token|app_id|info|startup-events|queue/(join|data|status)|cancel|reset"
ICONS = r"favicon\.ico|manifest\.json|robots\.txt|(gradio_api/)?theme\.css"
PAGE_RULES = tuple(
    Rule(pattern, users, max_body, page=True)
    for pattern, users, max_body in (
        (f"/|/log(in|out)/?|/({ICONS})", Users.ANYONE, SMALL),
        ("/(assets|static|svelte|page/assets)/.*", Users.ANYONE, SMALL),
        ("/page/(audio|results?)/.*", Users.ANYONE, SMALL),  # their addresses are secrets
        ("/page/(edit|live)/.*", Users.PAGE, TEXTS),
        (f"/config/?|/gradio_api/({GRADIO})/?", Users.PAGE, SMALL),
        ("/gradio_api/(call/(?!v2/)|heartbeat/|file=(?!https?:)).*", Users.PAGE, SMALL),
        ("/gradio_api/upload_progress", Users.PAGE, SMALL),
        ("/gradio_api/upload", Users.PAGE, UPLOAD),
    )
)
COMPILED = {rule: re.compile(rule.pattern, re.DOTALL) for rule in (*RULES, *PAGE_RULES)}


def rule_for(path: str, page: bool) -> Rule:
    """The rule for a path; UNKNOWN if there is none. page: whether the server has the page.

    A path that a lenient router could take for another one, such as //v1, /V1 and /%76%31, has the
    rule that both have.
    """
    found = {_first(spelling, page) for spelling in (path, _folded(path))}
    return found.pop() if len(found) == 1 else UNKNOWN


def route_path(scope: Scope) -> str:
    """The path without `root_path`, exactly as Starlette's router takes it."""
    path: str = scope.get("path", "")
    root: str = scope.get("root_path", "")
    rest = path.removeprefix(root)
    return rest if path.startswith(root) and rest[:1] in ("", "/") else path


def _first(path: str, page: bool) -> Rule:
    rules = (*RULES, *PAGE_RULES) if page else RULES
    return next((rule for rule in rules if COMPILED[rule].fullmatch(path)), UNKNOWN)


def _folded(path: str) -> str:
    """One spelling of paths that differ in case, in doubled slashes, or in quoting."""
    return re.sub("/{2,}", "/", unquote(path)).lower()
