"""Recognises URIs, hides their credentials in messages, and opens their file systems."""

import re
from typing import Any

from slimwhisper.errors import DependencyError, OptionError
from slimwhisper.text import error_line, escape_line

URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
URI_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")
LOCAL = ("", "file", "local")  # protocols of local files
# fsspec's extra that has the package for a protocol, where their names differ
EXTRAS = {"s3a": "s3", "gs": "gcs", "az": "abfs", "https": "http"}
LISTED = ("s3", "gcs", "abfs", "http", "hf")  # extras whose file systems cache listings
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


def redact_uri(uri: str) -> str:
    """A URI without `user:password@`, and without the parameters that sign it."""
    protocol, _, remainder = uri.partition("://")
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


def redact(location: str) -> str:
    """A URI without credentials; a path unchanged."""
    return redact_uri(location) if is_uri(location) else location


def redact_text(text: str) -> str:
    """A message without the credentials of the URIs in it."""
    return URI_IN_TEXT.sub(lambda match: redact_uri(match[0]), text)


def reason_of(error: BaseException) -> str:
    """An error of a library in one line, without credentials."""
    text = redact_text(error_line(error))[:200]
    return escape_line(text) or type(error).__name__


def _is_secret(name: str) -> bool:
    low = name.lower()
    return low in SAS or low.startswith(SECRET_STARTS) or SECRET_PARTS.search(low) is not None


def open_filesystem(uri: str) -> tuple[Any, str]:
    """fsspec's file system of a URI, or of a path, and the path in it.

    Credentials and endpoints come from each library's own environment variables and files, and from
    fsspec's configuration (`FSSPEC_S3_ENDPOINT_URL` and the like). Listings are not cached, because
    a bucket may have any number of names.

    Raises OptionError for an unknown protocol, DependencyError if its package is missing.
    """
    import fsspec
    from fsspec.registry import available_protocols

    protocol = protocol_of(uri) or "file"
    if protocol not in available_protocols() or "::" in uri:
        known = "give a path, or s3://, gs://, az:// or hf://"
        raise OptionError(f"{redact_uri(uri)}: unknown protocol; {known}")
    extra = EXTRAS.get(protocol, protocol)
    options = {"use_listings_cache": False} if extra in LISTED else {}
    try:
        filesystem, path = fsspec.core.url_to_fs(uri, **options)
    except ImportError as error:
        package = f"pip install 'fsspec[{extra}]'"
        raise DependencyError(f"{protocol}:// needs another package: {package}") from error
    except Exception as error:  # each library has its own for missing credentials
        what = f"{redact_uri(uri)}: cannot be opened ({reason_of(error)})"
        raise OptionError(f"{what}; check the address and the credentials") from error
    return filesystem, path
