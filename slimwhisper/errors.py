"""The exceptions that users see. Each message is one line: what is wrong, where, and what to do.

SlimWhisperError
├── AudioError        a recording cannot be read (missing, no audio, truncated, not audio; also a
│   │                 RuntimeError, as in `whisper`)
│   ├── StorageError  the store that has it does not answer, but may do so later
│   └── ReaderKilledError  the system killed the process that was to read it
├── CheckpointError   a model cannot be found, downloaded or loaded (also a RuntimeError)
├── CacheError        a cache form is not exact for this checkpoint (`strict_cache`), or a cache
│                     file is damaged or for another checkpoint
├── DependencyError   a package that a feature needs is not installed
├── OptionError       an option has a value that cannot work (also a ValueError)
└── OutputError       a result cannot be written
"""


class SlimWhisperError(Exception):
    """Base of all errors that this package raises deliberately."""


class AudioError(SlimWhisperError, RuntimeError):
    """A recording cannot be read."""


class StorageError(AudioError):
    """A store does not deliver a recording; the recording itself may be fine."""


class ReaderKilledError(AudioError):
    """Something else killed the processes that were to read a recording; it may be fine."""


class CheckpointError(SlimWhisperError, RuntimeError):
    """A model cannot be found, downloaded or loaded."""


class CacheError(SlimWhisperError):
    """A cache form is not exact for this checkpoint in this dtype, or its file does not fit."""


class DependencyError(SlimWhisperError):
    """A package that a feature needs is not installed."""


class OptionError(SlimWhisperError, ValueError):
    """An option has a value that cannot work."""


class OutputError(SlimWhisperError):
    """A result cannot be written."""


def wrap_unexpected(error: Exception, prefix: str = "") -> SlimWhisperError:
    """The error itself if it is a SlimWhisperError, else one that reports it as unexpected."""
    if isinstance(error, SlimWhisperError):
        return error
    wrapped = SlimWhisperError(f"{prefix}unexpected {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def plain_error(error: BaseException) -> Exception:
    """An error for others than the thread that it interrupts."""
    if isinstance(error, Exception):
        return error
    return SlimWhisperError("interrupted by another call of this model; try again")
