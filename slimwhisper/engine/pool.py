"""Makes a model's engines, and says how large they are."""

import logging
from functools import cache, partial

import torch

from slimwhisper.cache.decoder_cache import Pages, SelfCache
from slimwhisper.devices import free_bytes
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Search
from slimwhisper.engine.runner import MakeDrafter
from slimwhisper.errors import OptionError
from slimwhisper.model.model import Model

logger = logging.getLogger("slimwhisper")

MOST_DRAFTED = 7  # slots; drafts for more do not pay: docs/drafts.md#how-many-tokens
PAGES_SHARE = 0.8  # of a GPU's free memory; the rest is for activations and CUDA graphs


def slot_bytes(model: Model, search: Search) -> int:
    """Bytes of the caches for one more slot, with all texts of its window in the search; without
    those of a draft, which few slots have.
    """
    # the row group of samples has about as many rows as there are slots
    rows = 1 if search.beams is None and search.samples == 1 else (search.beams or 1) + 1
    return model.bytes_per_window() + (rows - 1) * _text_bytes(model)


def slots_within(model: Model, search: Search, most: int, memory: int) -> int:
    """The slots of an engine whose caches take at most `memory` bytes: up to `most`, and at least
    one, even if that takes more.
    """
    size, text = slot_bytes(model, search), _text_bytes(model)
    for slots in range(most, 1, -1):
        spare = -slots % search.samples  # rows of the group of samples, for whole windows
        if slots * size + spare * text <= memory:
            return slots
    return 1


def _text_bytes(model: Model) -> int:
    """Bytes of the cache for one text."""
    return SelfCache(model.plan, 1, model.dims.n_text_ctx, torch.device("meta")).nbytes()


def choose_pages(model: Model, search: Search, slots: int) -> int | None:
    """Pages of the texts' cache: as many as texts can use, of those that fit in the model's
    `cache_memory`; without it, on a GPU, those that fit in its free memory, up to the default of
    `Engine`. None: the default.
    """
    page_bytes, context = _page_bytes(model), model.dims.n_text_ctx
    if page_bytes and model.cache_memory is not None:
        return min(model.cache_memory // page_bytes, search.most_pages(context, slots))
    if not page_bytes or model.device.type != "cuda":
        return None
    free = free_bytes(model.device) - model.audio_bytes(slots)
    free = int(PAGES_SHARE * free) // page_bytes
    return max(min(search.usual_pages(context, slots), free), search.least_pages(context))


def _page_bytes(model: Model) -> int:
    return Pages(model.plan, 0, torch.device("meta")).page_bytes


def make_engine(model: Model, search: Search, slots: int) -> Engine:
    """A new engine. Raises OptionError if there is too little memory, or for beams with a draft."""
    try:
        draft, pages = _drafter(model, search, slots), choose_pages(model, search, slots)
        return Engine(model, model.vocabulary, slots, search, draft=draft, pages=pages)
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if "memory" not in str(error):
            raise
        need = slots * model.bytes_per_window() / 1e9
        raise OptionError(
            f"batch_size {slots}: not enough memory on {model.device} for the caches, {need:.1f} "
            "GB, or more with beams; choose a smaller batch_size"
        ) from error


def _drafter(model: Model, search: Search, slots: int) -> MakeDrafter | None:
    """The drafter of the texts, if there is one for so many. Raises OptionError."""
    if model.draft is None:
        return None
    if search.beams is not None:
        raise OptionError(
            f"beams: {model.draft.name} drafts for {model.name}, which needs greedy decoding; "
            "leave out the beam size, or the draft"
        )
    if slots > MOST_DRAFTED:
        _warn_of_unused(model.draft.name, slots)
        return None
    from slimwhisper.engine.drafting.draft_model import DraftModel

    return partial(DraftModel, model.draft, model)


@cache
def _warn_of_unused(draft: str, slots: int) -> None:
    """Once, however many engines are made."""
    what = f"{draft} drafts for up to {MOST_DRAFTED} windows, as more would not be faster"
    logger.warning("batch_size %d: %s; choose fewer, or leave out the draft", slots, what)
