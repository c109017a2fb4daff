"""The exceptions that users see, and who gets the warnings.

Each message is one line, which says what is wrong, where, and what to do.

    SlimWhisperError
    ├── AudioError             a recording cannot be read; also a RuntimeError, as in `whisper`
    │   ├── StorageError       its store, or the disk for its samples, may work later
    │   └── ReaderKilledError  the system killed the process that was to read it
    ├── CheckpointError        a model cannot be found, downloaded or loaded; also a RuntimeError
    ├── CacheError             a cache form is not exact, or a cache file does not fit
    ├── DependencyError        a package that a feature needs is not installed
    ├── OptionError            an option has a value that cannot work; also a ValueError
    └── OutputError            a result cannot be written
"""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache


class SlimWhisperError(Exception):
    """The base class of all errors that this package raises deliberately."""


class AudioError(SlimWhisperError, RuntimeError):
    """A recording cannot be read.

    It is missing, has no audio, ends early, or is not audio. This is also a RuntimeError, as in
    `whisper`.
    """


class StorageError(AudioError):
    """A store or a folder does not deliver a recording, or there is no room for its samples.

    The recording itself may be fine, and a later try may work.
    """


class ReaderKilledError(AudioError):
    """Something else killed the processes that were to read a recording.

    The recording itself may be fine.
    """


class CheckpointError(SlimWhisperError, RuntimeError):
    """A model cannot be found, downloaded or loaded. This is also a RuntimeError."""


class CacheError(SlimWhisperError):
    """A form of the decoder's cache cannot be used.

    It is not exact for this checkpoint in this dtype, and `strict_cache` was set; or its file is
    damaged or for another checkpoint.
    """


class DependencyError(SlimWhisperError):
    """A package that a feature needs is not installed.

    The message has the command that installs it.
    """


class OptionError(SlimWhisperError, ValueError):
    """An option has a value that cannot work. This is also a ValueError."""


class OutputError(SlimWhisperError):
    """A result cannot be written."""


_log_once = cache(logging.getLogger("slimwhisper").warning)
# Whom the warnings of this context are for, that is, of this thread or this task. By default, if
# the caller has no other, the log gets each of them once.
warnings_to: ContextVar[Callable[[str], object]] = ContextVar("warnings_to", default=_log_once)


def wrap_unexpected(error: Exception, prefix: str = "") -> SlimWhisperError:
    """Make an error that reports an unexpected one.

    Args:
        error: The error.
        prefix: What the message begins with.

    Returns:
        The error itself if it is a `SlimWhisperError`; otherwise one that names it as its cause.
    """
    if isinstance(error, SlimWhisperError):
        return error
    wrapped = SlimWhisperError(f"{prefix}unexpected {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


@contextmanager
def memory_errors(kind: type[SlimWhisperError], message: str) -> Iterator[None]:
    """Turn the error of any library that there is not enough memory into one of this kind."""
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        says_so = re.search(r"(out of|enough|allocate) memory", str(error))
        if isinstance(error, SlimWhisperError) or not (says_so or isinstance(error, MemoryError)):
            raise
        raise kind(message) from error


def plain_error(error: BaseException) -> Exception:
    """Make an error for other threads than the one that was interrupted.

    Args:
        error: The error that was raised, for example a KeyboardInterrupt.

    Returns:
        The error itself, or a `SlimWhisperError` in place of an interrupt.
    """
    if isinstance(error, Exception):
        return error
    return SlimWhisperError("interrupted by another call of this model; try again")
