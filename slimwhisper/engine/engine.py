"""The decoding engine: windows of audio in slots, each refilled as soon as its window is done.

    plan = scheduler.plan()              which windows are encoded, started, stepped; their pages
    results = runner.run(plan)           tensors: the encoder, prompts, one token of every text
    answers = scheduler.update(results)  of the texts that have ended
    scheduler.reply(ticket, request)     what follows each answer, by whoever asked

The engine knows nothing about files, recordings or text: tokens are numbers, a few of which mean
something (`SpecialTokens`).
"""

from collections.abc import Container
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch

from slimwhisper.cache.base import PAGE, PagePool
from slimwhisper.cache.decoder_cache import Pages
from slimwhisper.devices import free_bytes
from slimwhisper.engine.requests import Align, Answer, Request, Search, Window
from slimwhisper.engine.runner import GroupRunner, Runner
from slimwhisper.engine.scheduler import RowGroup, Scheduler, Ticket, TicketState
from slimwhisper.errors import OptionError, memory_errors
from slimwhisper.model.model import Model

if TYPE_CHECKING:
    from slimwhisper.kernels.graphs import Recorder

# Windows encoded, or aligned, together on a GPU, and texts started together, at most: it bounds the
# activations.
ENCODE_BATCH = 12
ACTIVATIONS = 20  # times the encoder's output, with a decoder's; 15 of them in the encoder
AHEAD, AHEAD_BYTES = 64, 2**29  # of windows that a GPU encodes before they can start, at most
SHARE = 0.25  # of a GPU's free memory, for activations, and for windows encoded ahead, at most
# Of live streams, encoded ahead on a CPU. With 2, prompts are read one by one.
LIVE_PREFETCH = 4
CPU_POSITIONS = 1500  # encoded together; the activations of more do not fit a CPU's caches


def choose_encode_batch(model: Model) -> int:
    """How many windows to encode together."""
    fitting = ENCODE_BATCH
    if model.device.type == "cpu":
        fitting = CPU_POSITIONS // model.dims.n_audio_ctx
    elif model.device.type == "cuda":
        fitting = int(SHARE * free_bytes(model.device)) // activation_bytes(model)
    return min(max(fitting, 1), ENCODE_BATCH)


def activation_bytes(model: Model) -> int:
    """Bytes of activations for each window that is encoded together with others."""
    dims = model.dims
    return ACTIVATIONS * dims.n_audio_ctx * dims.n_audio_state * model.dtype.itemsize


def slots_ahead(model: Model, slots: int) -> int:
    """How many windows a GPU encodes before there are rows for them: it encodes several at a time
    much faster, and the encoder works while texts that began together are decoded.
    """
    size = model.audio_bytes(1)
    wanted = max(min(slots, AHEAD, AHEAD_BYTES // size), 2 * choose_encode_batch(model))
    spare = SHARE * (free_bytes(model.device) - slots * size)
    return max(min(wanted, int(spare) // size), 0)


class Engine:
    """Decodes windows in batches. `submit` windows, then `step` until `idle`, and `reply` to each
    answer with the next request.

    Rows are computed independently: a result depends on its neighbours only through rounding.
    """

    def __init__(
        self,
        model: Model,
        slots: int,
        search: Search | None = None,
        check_every: int | None = None,
        recorder: "Recorder | None" = None,
        pages: int | None = None,
    ) -> None:
        """slots: windows decoded together; `slots` of the engine are the windows whose audio it
        holds. search: None: greedy, one text per window. check_every: tokens; None: 1 on a CPU,
        `CHECK_EVERY` on a GPU. recorder: of the steps; None: CUDA graphs on a GPU, none on a CPU.
        pages: of the text's cache; None: enough for a text as long as the context in every slot.

        Raises `OptionError` if there are fewer pages than one window's texts may need.
        """
        gpu = model.device.type == "cuda"
        # on a GPU, the stream of all decoders: its small kernels come before the encoder's
        self._stream: torch.cuda.Stream | None = None
        if gpu:
            from slimwhisper.kernels.graphs import CUDAGraphs, stream_of

            recorder = recorder or CUDAGraphs(model.device)
            self._stream = stream_of(model.device, "decoder")
        self.model, self.batch_size, self.search = model, slots, search or Search()
        self.encode_batch = choose_encode_batch(model)
        width, context = self.search.beams or 1, model.dims.n_text_ctx
        resumable = self.search.beams is None and model.plan.may_draft
        main_group = RowGroup(width, slots, resumable)
        least, usual = self.search.least_pages(context), self.search.usual_pages(context, slots)
        pages = usual if pages is None else pages
        if pages < least:
            raise OptionError(
                f"cache_memory: too small: it holds {pages} pages of {PAGE} tokens, and one "
                f"window may need {least}; give at least {least / max(pages, 1):.1f} times as much"
            )
        self.pool = PagePool(pages)
        self.slots = slots
        if gpu and slots:  # without, as an engine that is not used has none
            self.slots += slots_ahead(model, slots)
        self.scheduler = Scheduler(self.slots, self.pool, context, self.search, main_group, gpu)
        if self._stream is not None:  # the weights come by the caller's stream
            self._stream.wait_stream(torch.cuda.current_stream(model.device))
        with self._decoding():
            self.runner = Runner(
                model, self.slots, pages, self.search, self.encode_batch, check_every, recorder
            )
            self.runner.add(main_group, self.search.beams is not None)

    @property
    def group_runners(self) -> list[GroupRunner]:
        """Of greedy texts or beams, and of samples, once one is needed."""
        return list(self.runner.group_runners.values())

    # -- requests ------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether there are no windows."""
        return self.scheduler.idle

    @property
    def room(self) -> int:
        """How many more windows would get a slot without waiting."""
        return self.scheduler.free - len(self.scheduler.waiting)

    def unencoded(self, owners: Container[object]) -> int:
        """How many windows of some owners wait for the encoder, or are in it."""
        tickets = self.scheduler.tickets(TicketState.WAITING, TicketState.ENCODING)
        return sum(ticket.owner in owners for ticket in tickets)

    @property
    def prefetch(self) -> int:
        """How many windows should wait for the encoder or be in it, so that it is never idle."""
        if self.runner.encoder.shares_cores:
            return LIVE_PREFETCH
        return self.encode_batch * (1 if self.model.device.type == "cpu" else 2)

    def share_cores(self, share: bool) -> None:
        """On a CPU, encode in parallel with the decoder, or stop doing so; for live streams."""
        self.runner.encoder.share_cores(share)

    def nbytes(self) -> int:
        """Bytes of its caches."""
        return self.runner.nbytes()

    def text_bytes(self, peak: bool = False) -> int:
        """Bytes of the pages that texts have now; peak: the most that they have had."""
        return (self.pool.peak if peak else self.pool.used) * self.runner.pages.page_bytes

    def submit(self, owner: object, window: Window) -> None:
        """Queue a window. owner: whose it is, as its ticket says when it is answered."""
        assert window.mel is not None
        self._check(window)
        self.scheduler.submit(owner, window)

    def stop(self, owners: Container[object]) -> None:
        """End the windows of some owners: texts in progress are answered at the next check, all
        other windows are dropped without an answer.
        """
        self.scheduler.stop(owners)

    # -- work ----------------------------------------------------------------------------------

    def reply(self, ticket: Ticket, request: Request | None = None) -> None:
        """Say what follows an answer, before the next step. request: the next one for the same
        audio, or another window, which waits before all others; None: the slot becomes free.
        """
        self._check(request)
        self.scheduler.reply(ticket, request)

    def _check(self, request: Request | None) -> None:
        """Raise OptionError for more tokens than the decoder reads."""
        count = len(request.prompt) if isinstance(request, Window) else 0
        if isinstance(request, Align):
            count = len(request.before) + len(request.text) + 1  # <|endoftext|>
        if count > (most := self.model.dims.n_text_ctx):
            raise OptionError(f"{count} tokens: the model reads at most {most}; give fewer")

    def _decoding(self) -> AbstractContextManager[object]:
        """On a GPU, within the stream of all decoders."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    @torch.inference_mode()
    def step(self) -> list[tuple[Ticket, Answer]]:
        """Decode one token of every text and start new ones. Returns the answers that there are
        now, in order; `reply` to each.
        """
        answers: list[tuple[Ticket, Answer]] = []
        while True:
            together = ENCODE_BATCH if self._stream is None else self.encode_batch
            plan = self.scheduler.plan(together, self.runner.encoder.synchronous)
            with self._decoding():
                results = self.runner.run(plan)
            answers += self.scheduler.update(results)
            if not (plan.idle and results.encoded):  # else the encoded windows can start
                return answers


PAGES_SHARE = 0.8  # of a GPU's free memory; the rest is for CUDA graphs


def slot_bytes(model: Model, search: Search) -> int:
    """Bytes of the caches for one more slot, with all texts of its window in the search."""
    # the row group of samples has about as many rows as there are slots
    rows = 1 if search.beams is None and search.samples == 1 else (search.beams or 1) + 1
    return model.bytes_per_window() + (rows - 1) * model.text_bytes()


def slots_within(model: Model, search: Search, most: int, memory: int) -> int:
    """The slots of an engine whose caches take at most `memory` bytes: up to `most`, and at least
    one, even if that takes more.
    """
    size, text = slot_bytes(model, search), model.text_bytes()
    for slots in range(most, 1, -1):
        spare = -slots % search.samples  # rows of the group of samples, for whole windows
        if slots * size + spare * text <= memory:
            return slots
    return 1


def choose_pages(model: Model, search: Search, slots: int) -> int | None:
    """Pages of the texts' cache: as many as texts can use, of those that fit in the model's
    `cache_memory`; without it, on a GPU, those that fit in its free memory, up to the default of
    `Engine`. None: the default.
    """
    context = model.dims.n_text_ctx
    page_bytes = Pages(model.plan, 0, torch.device("meta")).page_bytes
    if page_bytes and model.cache_memory is not None:
        return min(model.cache_memory // page_bytes, search.most_pages(context, slots))
    if not page_bytes or model.device.type != "cuda":
        return None
    free = free_bytes(model.device) - model.audio_bytes(slots + slots_ahead(model, slots))
    free -= choose_encode_batch(model) * activation_bytes(model)
    free = int(PAGES_SHARE * free) // page_bytes
    return max(min(search.usual_pages(context, slots), free), search.least_pages(context))


def make_engine(model: Model, search: Search, slots: int) -> Engine:
    """A new engine. Raises OptionError if there is too little memory."""
    need = f"{slots * model.bytes_per_window() / 1e9:.1f} GB, or more with beams"
    problem = f"batch_size {slots}: not enough memory on {model.device} for the caches, {need}"
    with memory_errors(OptionError, f"{problem}; choose a smaller batch_size"):
        return Engine(model, slots, search, pages=choose_pages(model, search, slots))
