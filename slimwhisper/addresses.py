"""Recognises URIs, and hides their credentials in messages."""

import re

from slimwhisper.text import error_line, escape_line

URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
URI_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")
LOCAL = ("", "file", "local")  # protocols of local files
# query parameters that contain a credential: parts of their names, prefixes, and those of Azure's
# shared access signatures (learn.microsoft.com, "Create a service SAS")
SECRET_PARTS = re.compile(r"sig|token|key|secret|pass|cred|auth|policy|expire|access", re.I)
SECRET_STARTS = ("x-amz-", "x-goog-", "x-oss-", "x-ms-")
SAS = frozenset(
    "sv ss srt sr se st sp spr sip si sdd skoid sktid skt ske sks skv saoid suoid scid ses".split()
)


def is_uri(text: str) -> bool:
    """Whether a text starts with a protocol, such as `s3://bucket/key`."""
    return URI.match(text) is not None


def protocol_of(location: str) -> str:
    """A URI's protocol; of a path, ""."""
    return location.partition("://")[0].lower() if is_uri(location) else ""


def redact(location: str) -> str:
    """A URI without `user:password@`, and without the parameters that sign it; a path unchanged."""
    if not is_uri(location):
        return location
    protocol, _, remainder = location.partition("://")
    host, slash, path = remainder.partition("/")
    host = host.rpartition("@")[2]
    path, question_mark, query = (host + slash + path).partition("?")
    if question_mark and "=" in query:
        query, hash_sign, fragment = query.partition("#")
        public = [part for part in query.split("&") if not _is_secret(part.partition("=")[0])]
        path += ("?" + "&".join(public) if public else "") + hash_sign + fragment
    else:
        path += question_mark + query
    return f"{protocol}://{path}"


def redact_text(text: str) -> str:
    """A message without the credentials of the URIs in it."""
    return URI_IN_TEXT.sub(lambda match: redact(match[0]), text)


def reason_of(error: BaseException) -> str:
    """An error of a library in one line, without credentials."""
    text = redact_text(error_line(error))[:200]
    return escape_line(text) or type(error).__name__


def _is_secret(name: str) -> bool:
    low = name.lower()
    return low in SAS or low.startswith(SECRET_STARTS) or SECRET_PARTS.search(low) is not None
