"""Inputs in stores, listed by tasks of Ray: each takes a part of them and sends it page by page."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from slimwhisper.errors import SlimWhisperError, StorageError
from slimwhisper.storage.containers import Member
from slimwhisper.storage.inputs import Shard
from slimwhisper.storage.uris import shown_uri
from slimwhisper.text import one_line

TASKS = 8  # that list at the same time
PAGE = 256  # recordings that a task sends at once, at most
PAGE_BYTES = 4 << 20  # of recordings that bring their bytes; the last one may exceed it
PAGES = 2  # that a task is ahead of the driver
TRIES = 3  # of one part whose tasks die

Found = Member | SlimWhisperError


def list_shards(shards: Iterator[Shard]) -> Iterator[Found]:
    """The recordings of all parts, in no order, and an error for each that cannot be listed.

    Ray has to be running. If a task dies, its part is listed anew, and recordings that have been
    yielded are yielded again. Raises SlimWhisperError if Ray fails.
    """
    try:
        yield from _list_shards(shards)
    except RayTaskError as error:  # a defect, and no death
        raise SlimWhisperError(f"the inputs cannot be listed: {one_line(error.cause)}") from error
    except RayError as error:
        raise SlimWhisperError(
            f"Ray has died ({one_line(error)}); run the same command again to resume"
        ) from error


def _list_shards(shards: Iterator[Shard]) -> Iterator[Found]:
    task = ray.remote(pages_of).options(
        num_cpus=0,  # the workers have them all
        max_retries=0,
        scheduling_strategy="SPREAD",
        _generator_backpressure_num_objects=PAGES,
    )
    again: list[tuple[Shard, int]] = []
    running: dict[Any, tuple[Shard, int]] = {}  # a generator of references -> its part
    while True:
        while again and len(running) < TASKS:
            shard, tries = again.pop()
            running[task.remote(shard)] = (shard, tries)
        for shard in islice(shards, TASKS - len(running)):
            running[task.remote(shard)] = (shard, 1)
        if not running:
            return
        (pages, *_), _ = ray.wait(list(running), num_returns=1)
        try:
            page: list[Found] = ray.get(next(pages))
        except StopIteration:
            del running[pages]
        except RayTaskError:
            raise
        except RayError as error:
            shard, tries = running.pop(pages)
            if tries < TRIES:
                again.append((shard, tries + 1))
                continue
            yield StorageError(
                f"{shown_uri(shard.uri)}: {TRIES} processes that listed it have died "
                f"({one_line(error)}); run the job again"
            )
        else:
            yield from page


def pages_of(shard: Shard) -> Iterator[list[Found]]:
    """A part's recordings, page by page."""
    page: list[Found] = []
    size = 0
    for found in shard.recordings():
        page.append(found)
        if not isinstance(found, SlimWhisperError):
            size += len(found[0].data or b"")
        if len(page) >= PAGE or size >= PAGE_BYTES:
            yield page
            page, size = [], 0
    if page:
        yield page
