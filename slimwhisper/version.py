"""Reads the installed version, on first use: `importlib.metadata` is slow to import."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("slimwhisper")
except PackageNotFoundError:  # a source tree on the path
    __version__ = "0+unknown"
