"""EnginePool for calls: how large they are, and the one that a model keeps between calls."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from slimwhisper.cache.plan import CrossCache, Pages, SelfCache
from slimwhisper.devices import check_batch_size, choose_batch_size, free_bytes
from slimwhisper.engine.agreement import may_draft
from slimwhisper.engine.drafting.draft_model import DraftModel
from slimwhisper.engine.drafting.lookup import Lookup
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Search
from slimwhisper.engine.runner import MakeDrafter
from slimwhisper.errors import OptionError
from slimwhisper.model.model import Model
from slimwhisper.types import Options

PAGES_SHARE = 0.8  # of a GPU's free memory; the rest is for activations and recorded steps


def search_of(options: Options) -> Search:
    """How an engine searches for texts, as the options say."""
    return Search(
        beams=options.beam_size,
        patience=options.patience or 1.0,
        samples=options.best_of or 1,
        length_penalty=options.length_penalty,
        expected=options.expected is not None,
    )


def slot_bytes(model: Model, search: Search) -> int:
    """Bytes of the caches for one more slot, with all texts that the search keeps of a window."""
    meta, dims = torch.device("meta"), model.dims
    # the second lane, where samples are drawn, has about as many rows as there are slots
    rows = 1 if search.beams is None and search.samples == 1 else (search.beams or 1) + 1
    drafted = 0
    if model.draft is not None:
        drafted = _text_bytes(model.draft)
        audio = CrossCache(model.plan, 1, dims.n_audio_ctx, meta)
        drafted += audio.read_by(model.draft.plan).nbytes()  # 0 where the model's store serves both
    return model.bytes_per_window() + (rows - 1) * _text_bytes(model) + drafted


def slots_within(model: Model, search: Search, most: int, room: int) -> int:
    """The slots of an engine whose caches take at most `room` bytes: up to `most`, and at least
    one, even if that takes more.
    """
    size, text = slot_bytes(model, search), _text_bytes(model)
    for slots in range(most, 1, -1):
        spare = -slots % search.samples  # rows of the second lane, for whole windows
        if slots * size + spare * text <= room:
            return slots
    return 1


def _text_bytes(model: Model) -> int:
    """Bytes of the cache for one text."""
    return SelfCache(model.plan, 1, model.dims.n_text_ctx, torch.device("meta")).nbytes()


def choose_pages(model: Model, search: Search, slots: int) -> int | None:
    """Pages of the texts' cache: what the model's `cache_memory` holds; on a GPU, else, what it
    has free, if that is less than the default of `Engine`, which is None.
    """
    each = Pages(model.plan, 0, torch.device("meta")).page_bytes
    if each and model.cache_memory is not None:
        return model.cache_memory // each
    if not each or model.device.type != "cuda":
        return None
    context = model.dims.n_text_ctx
    audio = CrossCache(model.plan, slots, model.dims.n_audio_ctx, torch.device("meta")).nbytes()
    free = int(PAGES_SHARE * (free_bytes(model.device) - audio)) // each
    return max(min(search.usual_pages(context, slots), free), search.least_pages(context))


def make_engine(model: Model, search: Search, slots: int) -> Engine:
    """An engine of this size. OptionError if memory is too small, or for beams with a draft."""
    try:
        draft, pages = _drafter(model, search), choose_pages(model, search, slots)
        return Engine(model, model.vocabulary, slots, search, draft=draft, pages=pages)
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if "memory" not in str(error):
            raise
        need = slots * model.bytes_per_window() / 1e9
        raise OptionError(
            f"batch_size {slots}: no room on {model.device} for the caches, {need:.1f} GB and more "
            "with beams; choose a smaller one"
        ) from error


def _drafter(model: Model, search: Search) -> MakeDrafter | None:
    """What drafts the texts, if anything does. Raises OptionError."""
    if search.expected and model.draft is not None:
        raise OptionError("expected: a model drafts already; leave out one of the two")
    if search.expected and may_draft(model.plan):

        def lookup(_: CrossCache, rows: int, pages: int) -> Lookup:
            return Lookup(rows, model.vocabulary.eot, model.device)

        return lookup
    if model.draft is None:
        return None
    if search.beams is not None:
        raise OptionError(
            f"beams: {model.draft.name} drafts for {model.name}, which needs greedy decoding; "
            "leave out the beam size, or the draft"
        )
    return partial(DraftModel, model.draft, model)


@dataclass(frozen=True, slots=True)
class TextMemory:
    """What an engine's texts have needed since it was made."""

    peak_bytes: int  # of the pages of all of them at once
    preemptions: int  # times that one has given its pages back for an older one


class EnginePool:
    """A model's engines, of which one is kept between calls: its caches, and on a GPU its graphs.

    The kept engine serves a call of the same search and size. It also serves every call that
    decodes one window at a time. In both cases the results are those of a new engine, to the last
    bit. For any other call it is dropped first, so an idle engine never takes the memory that
    another needs. Calls at the same time have an engine each. Any thread may call.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._kept: Engine | None = None
        self._defaults: dict[Search, int] = {}  # chosen so far: free memory varies
        self._lock = threading.Lock()

    def slots(self, asked: int | None, options: Options) -> int:
        """How many windows to decode together; asked None: the default, which stays the same for
        one search. Raises OptionError.
        """
        if asked is not None:
            return check_batch_size(asked)
        search = search_of(options)
        if search not in self._defaults:
            size = slot_bytes(self.model, search)
            self._defaults[search] = choose_batch_size(self.model.device, size, self.nbytes())
        return self._defaults[search]

    @contextmanager
    def lend(self, search: Search | None, slots: int) -> Iterator[Engine]:
        """An idle engine of `slots` slots, or more if that is 1. It is kept if it is idle again
        at the end. search None: any, for windows that only ask for the language.

        Raises OptionError if memory is too small.
        """
        with self._lock:
            engine, self._kept = self._kept, None
        if engine is None or search not in (None, engine.search) or slots not in (1, engine.slots):
            engine = None  # frees its memory
            engine = make_engine(self.model, search or Search(), slots)
        sound = False
        try:
            yield engine
            sound = True
        except GeneratorExit:  # the caller wants no more results
            sound = True
            raise
        finally:
            with self._lock:
                largest = self._kept is None or self._kept.slots < engine.slots
                if sound and engine.idle and largest:
                    self._kept = engine

    def nbytes(self) -> int:
        """Bytes of the kept engine's caches."""
        kept = self._kept
        return 0 if kept is None else kept.nbytes()

    def text_memory(self) -> TextMemory:
        """Of the kept engine."""
        kept = self._kept
        return (
            TextMemory(0, 0)
            if kept is None
            else TextMemory(kept.text_bytes(True), kept.preemptions)
        )

    def release(self) -> None:
        """Drop the kept engine, and what `slots` chose. An engine in use is kept when its call
        ends.
        """
        with self._lock:
            self._kept = None
        self._defaults.clear()
