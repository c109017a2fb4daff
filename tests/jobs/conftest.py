"""Fixtures of jobs: a model without weights, a tree of recordings, a store in this process."""

from tests.support.fake_model import fake_model
from tests.support.folder_job import run, tree
from tests.support.memory_store import store

__all__ = ["fake_model", "run", "store", "tree"]
