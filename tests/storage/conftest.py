"""A store in this process."""

from tests.support.memory_store import store as store
