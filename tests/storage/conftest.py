"""A store in this process."""

from tests.support.memory_store import store

__all__ = ["store"]
