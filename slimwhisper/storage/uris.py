"""URIs: which ones are known, what messages show of them, and the file system behind each."""

import re
from typing import Any

from slimwhisper.errors import DependencyError, OptionError
from slimwhisper.text import one_line, shown

URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
URI_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")
LOCAL = ("", "file", "local")  # protocols of files of this machine
# what is not fsspec's extra of the same name, which brings the package for a protocol
EXTRAS = {"s3a": "s3", "gs": "gcs", "az": "abfs", "https": "http"}
LISTED = ("s3", "gcs", "abfs", "http", "hf")  # extras whose file systems keep listings
# parameters of a query that hold a credential: parts of their names, beginnings, and those of
# Azure's shared access signatures (learn.microsoft.com, "Create a service SAS")
SECRET_PARTS = re.compile(r"sig|token|key|secret|pass|cred|auth|policy|expire|access", re.I)
SECRET_STARTS = ("x-amz-", "x-goog-", "x-oss-", "x-ms-")
SAS = frozenset(
    "sv ss srt sr se st sp spr sip si sdd skoid sktid skt ske sks skv saoid suoid scid ses".split()
)


def is_uri(text: str) -> bool:
    """Whether a text names a place by protocol, such as `s3://bucket/key`."""
    return URI.match(text) is not None


def protocol_of(place: str) -> str:
    """A URI's protocol; of a path, ""."""
    return place.partition("://")[0].lower() if is_uri(place) else ""


def hide(uri: str) -> str:
    """A URI without `user:password@`, and without the parameters that sign it."""
    protocol, _, rest = uri.partition("://")
    host, slash, path = rest.partition("/")
    host = host.rpartition("@")[2]
    path, mark, query = (host + slash + path).partition("?")
    if mark and "=" in query:
        query, hash_sign, fragment = query.partition("#")
        kept = [part for part in query.split("&") if not _is_secret(part.partition("=")[0])]
        path += ("?" + "&".join(kept) if kept else "") + hash_sign + fragment
    else:
        path += mark + query
    return f"{protocol}://{path}"


def shown_uri(place: str) -> str:
    """A URI without credentials; a path as it is."""
    return hide(place) if is_uri(place) else place


def hide_in(text: str) -> str:
    """A message with the credentials of all URIs in it left out."""
    return URI_IN_TEXT.sub(lambda found: hide(found[0]), text)


def reason(error: BaseException) -> str:
    """An error of a library in one line, without credentials."""
    text = hide_in(one_line(error))[:200]
    return shown(text) or type(error).__name__


def _is_secret(name: str) -> bool:
    low = name.lower()
    return low in SAS or low.startswith(SECRET_STARTS) or SECRET_PARTS.search(low) is not None


def open_filesystem(uri: str) -> tuple[Any, str]:
    """fsspec's file system of a URI, or of a path, and the path in it.

    Credentials and end points come from where each library takes them: its environment variables
    and files, and fsspec's own configuration (`FSSPEC_S3_ENDPOINT_URL` and the like). Listings are
    not cached: a bucket may hold any number of names.

    Raises OptionError for an unknown protocol, DependencyError where its package is missing.
    """
    import fsspec
    from fsspec.registry import available_protocols

    protocol = protocol_of(uri) or "file"
    if protocol not in available_protocols() or "::" in uri:
        raise OptionError(
            f"{hide(uri)}: unknown kind of address; s3://, gs://, az://, hf:// and paths work"
        )
    extra = EXTRAS.get(protocol, protocol)
    options = {"use_listings_cache": False} if extra in LISTED else {}
    try:
        filesystem, path = fsspec.core.url_to_fs(uri, **options)
    except ImportError as error:
        raise DependencyError(
            f"{protocol}:// needs another package: pip install 'fsspec[{extra}]'"
        ) from error
    except Exception as error:  # each library has its own for missing credentials
        raise OptionError(f"{hide(uri)}: cannot be opened ({reason(error)})") from error
    return filesystem, path
