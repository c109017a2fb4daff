"""Windows in, answers out: slots of audio, each refilled as soon as its window is done.

    plan = scheduler.plan()              which windows are encoded, started, stepped; their pages
    results = runner.run(plan)           tensors: the encoder, prompts, one token of every text
    answers = scheduler.update(results)  whose texts have ended

The engine knows nothing about files, text or tokenization.
"""

from collections.abc import Container, Sequence

import torch

from slimwhisper.cache.pool import PAGE, PagePool
from slimwhisper.engine.agreement import may_draft
from slimwhisper.engine.drafting.pace import LENGTHS
from slimwhisper.engine.lane_runner import LaneRunner
from slimwhisper.engine.requests import Answer, OneAnswer, Owner, Search, Window
from slimwhisper.engine.runner import MakeDrafter, Runner
from slimwhisper.engine.scheduler import Scheduler
from slimwhisper.engine.tickets import Lane, State, Ticket
from slimwhisper.errors import OptionError
from slimwhisper.kernels.graphs import CUDAGraphs, Recorder
from slimwhisper.model.model import Model
from slimwhisper.tokens.vocabulary import Vocabulary

ENCODE_BATCH = 8  # windows encoded, or aligned, together on a GPU; bounds the activations
CPU_POSITIONS = 1500  # encoded together: their activations fit a CPU's caches, others' do not


class Engine:
    """Decodes windows side by side. `submit` windows, then `step` until `idle`; their owners are
    told the answers, and say what to do next.

    Rows are computed independently: a result depends on its neighbours only through rounding.
    """

    def __init__(
        self,
        model: Model,
        vocabulary: Vocabulary,
        slots: int,
        search: Search | None = None,
        check_every: int | None = None,
        recorder: Recorder | None = None,
        draft: MakeDrafter | None = None,
        pages: int | None = None,
    ) -> None:
        """search: None: greedy, one text per window. check_every: tokens; None: 1 on a CPU,
        `CHECK_EVERY` on a GPU. recorder: of the steps; None: CUDA graphs on a GPU, none on a CPU.
        draft: makes what drafts the texts; not with beams. pages: of the text's cache; None: enough
        for texts of all of the context in every slot, once.

        Raises `OptionError` if there are fewer pages than one window's texts may need.
        """
        if recorder is None and model.device.type == "cuda":
            recorder = CUDAGraphs(model.device)
        self.model, self.slots, self.search = model, slots, search or Search()
        self.encode_batch = ENCODE_BATCH
        if model.device.type == "cpu":
            self.encode_batch = min(max(CPU_POSITIONS // model.dims.n_audio_ctx, 1), ENCODE_BATCH)
        width, context = self.search.beams or 1, model.dims.n_text_ctx
        ahead = max(LENGTHS) if draft is not None else 0
        resumes = self.search.beams is None and may_draft(model.plan)
        first = Lane(width, slots, ahead, resumes)
        least, usual = self.search.least_pages(context), self.search.usual_pages(context, slots)
        pages = usual if pages is None else pages
        if pages < least:
            raise OptionError(
                f"cache_memory: it holds {pages} pages of {PAGE} tokens, and the texts of one "
                f"window may need {least}; give {least / max(pages, 1):.1f} times as much"
            )
        self.pool = PagePool(pages)
        self.scheduler = Scheduler(slots, self.pool, context, self.search, first)
        self.runner = Runner(
            model,
            vocabulary,
            slots,
            self.pool.count,
            self.search,
            self.encode_batch,
            check_every,
            recorder,
        )
        drafter = None
        if draft is not None:
            assert self.search.beams is None
            drafter = draft(self.runner.cross, slots, self.pool.count)
        self.runner.add(first, self.search.beams is not None, drafter)

    @property
    def lanes(self) -> list[LaneRunner]:
        """Those in use: of greedy texts or beams; of samples, once there are some."""
        return list(self.runner.lanes.values())

    # -- requests ------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no window is here."""
        return self.scheduler.idle

    @property
    def room(self) -> int:
        """How many more windows would get a slot without waiting."""
        return self.free - len(self.scheduler.waiting)

    @property
    def free(self) -> int:
        """Free slots."""
        return self.scheduler.free

    def unencoded(self, owners: Container[Owner]) -> int:
        """How many windows of some owners wait for the encoder, or are in it."""
        found = self.scheduler.tickets(State.WAITING, State.ENCODING)
        return sum(ticket.owner in owners for ticket in found)

    @property
    def ahead(self) -> int:
        """How many windows to have at the encoder, so that it is never idle."""
        if self.runner.encoder.shares_cores:
            return 2
        return self.encode_batch * (1 if self.model.device.type == "cpu" else 2)

    def share_cores(self, share: bool) -> None:
        """On a CPU, encode beside the decoder, as on a GPU, or no longer; for live streams."""
        self.runner.encoder.share_cores(share)

    def nbytes(self) -> int:
        """Bytes of its caches."""
        return self.runner.nbytes()

    @property
    def preemptions(self) -> int:
        """How often a text has given its pages back for an older one."""
        return self.scheduler.preemptions

    def text_bytes(self, peak: bool = False) -> int:
        """Bytes of the pages that texts have now; peak: that they have had at most."""
        return (self.pool.peak if peak else self.pool.used) * self.runner.pages.page_bytes

    def submit(self, owner: Owner, window: Window) -> None:
        """Queue a window, whose answers its owner gets."""
        assert window.mel is not None
        self.scheduler.submit(owner, window)

    def stop(self, owners: Container[Owner]) -> None:
        """End the windows of some owners: those that are decoding are answered at the next check,
        all others are dropped without an answer.
        """
        self.scheduler.stop(owners)

    # -- work ----------------------------------------------------------------------------------

    def ask(self, windows: Sequence[Window]) -> list[Answer]:
        """One answer to each window, in their order; nothing else may be here."""
        owners = [OneAnswer() for _ in windows]
        for owner, window in zip(owners, windows, strict=True):
            self.submit(owner, window)
        while not self.idle:
            self.step()
        return [owner.answer for owner in owners if owner.answer is not None]

    def step(self) -> None:
        """Decode one token of every text, start what can be started, and tell the answers."""
        for ticket, answer in self._step():
            self.scheduler.reply(ticket, ticket.owner.accept(answer))

    @torch.inference_mode()
    def _step(self) -> list[tuple[Ticket, Answer]]:
        answers: list[tuple[Ticket, Answer]] = []
        while True:
            plan = self.scheduler.plan(self.encode_batch, self.runner.encoder.at_once)
            results = self.runner.run(plan)
            answers += self.scheduler.update(results)
            if not (plan.idle and results.encoded):  # else what was waited for can start
                return answers
