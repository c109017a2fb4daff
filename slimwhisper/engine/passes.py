"""What runs beside the steps of texts: the encoder, and prompts, with drafts that are verified.

Prompts are read into the caches several in one pass, before their texts are decoded. On a GPU they
are padded to one of a few shapes. Each shape has a CUDA graph, as a pass launches some 20 kernels a
layer. And cuDNN's attention takes 0.05 to 0.4 s to plan for a new shape.

A prompt may be followed by a draft of its text, which is verified against greedy decoding in the
same forward pass (speculative decoding: Leviathan et al., arXiv 2211.17192, for greedy decoding).
It gives the logits before every drafted token. The longest prefix that greedy decoding would have
written, by all of the window's rules, is accepted, and decoding continues after it. The cache of
the rejected tokens is overwritten.

The encoder is asynchronous on a GPU, on a stream of its own, and synchronous on a CPU. The windows
that are being encoded hold their slots; the others keep decoding. The encoder is bound by
arithmetic and a decode step by memory: while all rows decode, the encoder has half of a GPU that
can be divided. Each number of windows has a graph, as launching an encoder of 32 layers takes
milliseconds of the host's time.

For live streams, a CPU with several cores encodes in a separate thread: no decode step waits for
the encoder, and small operations do not wait for each other's threads. Recordings alone are faster
without it.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from slimwhisper.cache.base import Rows, pages_of
from slimwhisper.cache.decoder_cache import DecoderCache
from slimwhisper.cores import use_threads, usual_threads
from slimwhisper.devices import bucket_of, padded, upload
from slimwhisper.engine.filters import NEVER, Filters, Texts
from slimwhisper.engine.requests import AcceptedPrefix, Window
from slimwhisper.engine.scheduler import Ticket, TicketState
from slimwhisper.model.decoder import ScoreRecorder
from slimwhisper.model.model import Model
from slimwhisper.types import MEL_FRAMES_PER_POSITION

if TYPE_CHECKING:
    from slimwhisper.kernels.graphs import Graphs

# of padded prompts; text before a window has at most 223 tokens, and one with a draft may have the
# context's
LENGTHS = (4, 32, 64, 128, 232)
# numbers of a prompt before its pages and its tokens: row, slot, length, two positions
HEAD = 5


class PromptReader:
    """Reads the prompts of a row group."""

    def __init__(
        self,
        model: Model,
        cache: DecoderCache,
        max_batch: int,
        scratch: tuple[int, int],
        graphs: "Graphs | None",
    ) -> None:
        """max_batch: prompts together. scratch: the row and the page that padding is written to.
        graphs: None: in the shape of the longest prompt, without graphs.
        """
        self.model, self.cache, self.max_batch = model, cache, max_batch
        self.scratch, self.graphs = scratch, graphs
        context, plan = model.dims.n_text_ctx, model.plan
        self.lengths = (*(n for n in LENGTHS if n < context), context)
        self.pages = pages_of(context)
        self._buffers: tuple[Tensor, Tensor] | None = None  # of graphs: input and output
        # other forms read numbers back
        if graphs is not None and plan.exact_cross and plan.exact_self:
            width, d = HEAD + self.pages + context, model.dims.n_text_state
            numbers = torch.zeros((max_batch, width), dtype=torch.int64, device=model.device)
            hidden = torch.zeros((max_batch, context, d), dtype=model.dtype, device=model.device)
            self._buffers = numbers, hidden

    def pack(
        self,
        texts: Sequence[Sequence[int]],
        positions: ArrayLike,
        slots: ArrayLike,
        rows: ArrayLike | None = None,
        table: ArrayLike | None = None,
    ) -> NDArray[np.int64]:
        """The input of `read` for n texts, on the host: [R, HEAD + pages + T].

        positions [n, 2]: of what `read` returns. slots, rows [n], table [n, pages]: of each text;
        without rows and table, what is kept of the texts will be overwritten by the next ones.
        """
        n, count, longest = len(texts), len(texts), max(map(len, texts))
        if self.graphs is not None:
            count = bucket_of(n, self.max_batch)
            longest = next(length for length in self.lengths if length >= longest)
        row, page = self.scratch
        packed = np.zeros((count, HEAD + self.pages + longest), dtype=np.int64)
        packed[:, 0], packed[n:, 2], packed[:, HEAD : HEAD + self.pages] = row, 1, page
        packed[:n, 1], packed[:n, 2] = slots, [len(t) for t in texts]
        packed[:n, 3:HEAD] = positions
        if rows is not None and table is not None:
            packed[:n, 0], packed[:n, HEAD : HEAD + self.pages] = rows, table
        packed[:n, HEAD + self.pages :] = padded(texts, 0, longest)
        return packed

    def read(
        self, packed: Tensor, every: bool = False, recorder: ScoreRecorder | None = None
    ) -> Tensor:
        """packed: from `pack`, on the device -> hidden [R, 2, d], after the last norm, at the
        positions that were packed, or [R, T, d] of every one; the next call may overwrite it.
        recorder: of cross-attention scores, at every position.
        """
        if self.graphs is None or self._buffers is None or recorder is not None:
            return self._read(packed, every, recorder)
        count, tokens = len(packed), packed.shape[1] - HEAD - self.pages
        inputs = self._buffers[0][:count, : packed.shape[1]]
        hidden = self._buffers[1][:count, : tokens if every else 2]
        inputs.copy_(packed)

        def body() -> None:
            hidden.copy_(self._read(inputs, every))

        self.graphs.run(("prompts", count, tokens, every), body)
        return hidden

    def _read(self, packed: Tensor, every: bool, recorder: ScoreRecorder | None = None) -> Tensor:
        rows, slots, lengths = packed[:, :3].T.contiguous()
        return self.model.decoder.prefill(
            packed[:, HEAD + self.pages :],
            Rows(rows, slots, table=packed[:, HEAD : HEAD + self.pages], lengths=lengths),
            self.cache,
            recorder,
            None if every else packed[:, 3:HEAD],
        )


@dataclass(slots=True)
class _Batch:
    tickets: list[Ticket]
    features: Tensor | Future[Tensor]  # [G, q, d], valid once `done`
    done: torch.cuda.Event | None  # None: already valid, or a future


class AsyncEncoder:
    """Encodes windows, and yields those that are complete."""

    def __init__(self, model: Model, max_batch: int) -> None:
        """max_batch: windows in a call of `begin`."""
        self.model, self.max_batch, dims = model, max_batch, model.dims
        # of one window's output, which a ticket may come with
        self._output_shape = dims.n_audio_ctx, dims.n_audio_state
        self._batches: deque[_Batch] = deque()
        self._thread: ThreadPoolExecutor | None = None
        self._all_threads: int | None = None  # torch's, before they are shared
        self.stream: torch.cuda.Stream | None = None
        if model.device.type == "cuda":
            from slimwhisper.kernels.gpu import driver
            from slimwhisper.kernels.graphs import CUDAGraphs, Graphs, stream_of

            roles = ("encoder", "beside") if driver.can_divide(model.device) else ("encoder",)
            self.streams = {role: stream_of(model.device, role) for role in roles}
            self.stream = self.streams["encoder"]
            self.stream.wait_stream(torch.cuda.current_stream(model.device))  # for the weights
            # in pools of their own: a step's graph runs at the same time
            self.graphs = {role: Graphs(CUDAGraphs(model.device, role)) for role in roles}
            shape = (max_batch, dims.n_mels, 2 * dims.n_audio_ctx)
            with torch.cuda.stream(self.stream):
                self._mel = torch.zeros(shape, device=model.device)
                size = (max_batch, *self._output_shape)
                self._features = torch.zeros(size, device=model.device, dtype=model.dtype)

    def share_cores(self, share: bool) -> None:
        """On a CPU, encode in a separate thread, which takes half of torch's threads from the
        calling thread; or stop doing so. No effect with one thread, or on a GPU.
        """
        if self.model.device.type != "cpu":
            return
        if self._all_threads is None:
            self._all_threads = usual_threads()
        half = self._all_threads // 2 if share else 0
        if half and self._thread is None:
            self._thread = ThreadPoolExecutor(1, "slimwhisper-encoder", use_threads, (half,))
        elif not half and self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        if torch.get_num_threads() != self._all_threads - half:
            use_threads(self._all_threads - half)

    @property
    def shares_cores(self) -> bool:
        """Whether it encodes in a separate thread on a CPU."""
        return self._thread is not None

    @property
    def synchronous(self) -> bool:
        """Whether the windows are encoded when `begin` returns."""
        return self.stream is None and self._thread is None

    def divide(self, tickets: Sequence[Ticket]) -> Iterator[tuple[list[Ticket], list[Tensor]]]:
        """Tickets with audio, in batches of one shape for `begin`, and their mels or outputs."""
        by_shape: dict[torch.Size, list[Ticket]] = {}
        for ticket in tickets:
            assert ticket.window.mel is not None
            by_shape.setdefault(ticket.window.mel.shape, []).append(ticket)
        for shape, group in by_shape.items():
            count = self.max_batch
            if self.stream is None and shape != self._output_shape:
                # as many positions as in a batch of whole windows
                count = count * self.model.dims.window_frames // shape[1]
            for first in range(0, len(group), count):
                some = group[first : first + count]
                yield some, [t.window.mel for t in some if t.window.mel is not None]

    def begin(
        self, tickets: Sequence[Ticket], mels: Sequence[Tensor], beside: bool = False
    ) -> None:
        """Start to encode the tickets' mels, each [n_mels, 2 q]; on a GPU, returns immediately.
        Whole windows' outputs [p, d] instead of mels are complete as they are.

        beside: on half of the GPU, if it can be divided: the steps beside it have the other half.
        """
        if mels[0].shape == self._output_shape:
            features = torch.stack(tuple(mels)).to(self.model.device, self.model.dtype)
            self._batches.appendleft(_Batch(list(tickets), features, None))
            return
        if self._thread is not None:  # one by one: the first can start while the next is encoded
            for ticket, mel in zip(tickets, mels, strict=True):
                future = self._thread.submit(self.model.encoder, mel.unsqueeze(0))
                self._batches.append(_Batch([ticket], future, None))
            return
        if self.stream is None:
            features = self.model.encoder(torch.stack(tuple(mels)))
            self._batches.append(_Batch(list(tickets), features, None))
            return
        count, frames = len(mels), mels[0].shape[1]
        # pinned, else the host would wait for the stream's earlier work; torch keeps the memory
        pinned = torch.empty((count, *mels[0].shape), dtype=mels[0].dtype, pin_memory=True)
        torch.stack(tuple(mels), out=pinned)
        inputs = self._mel[:count, :, :frames]
        outputs = self._features[:count, : frames // MEL_FRAMES_PER_POSITION]

        def encode() -> None:
            outputs.copy_(self.model.encoder(inputs))

        role = "beside" if beside and "beside" in self.streams else "encoder"
        stream = self.streams[role]
        for other in self.streams.keys() - {role}:
            stream.wait_stream(self.streams[other])  # the buffers are the same
        with torch.cuda.stream(stream):
            inputs.copy_(pinned, non_blocking=True)
            self.graphs[role].run((count, frames), encode)
            features = outputs.clone()  # the next batch may come before it is read
            done = torch.cuda.Event()
            done.record(stream)
        self._batches.append(_Batch(list(tickets), features, done))

    def completed(self, wait: bool) -> Iterator[tuple[list[Ticket], Tensor]]:
        """Tickets that are encoded, and their outputs [G, q, d], ready for the caller's stream.

        wait: at least one batch, if there is one; the stream waits for it, not the host.
        """
        while self._batches and (wait or self._is_done(self._batches[0])):
            batch, wait = self._batches.popleft(), False
            features = batch.features
            if isinstance(features, Future):
                features = features.result()
            if batch.done is not None:
                current = torch.cuda.current_stream(self.model.device)
                current.wait_event(batch.done)
                features.record_stream(current)  # not reused before it has been read
            tickets = batch.tickets
            present = [i for i, t in enumerate(tickets) if t.state is not TicketState.GONE]
            if not present:
                continue
            if len(present) < len(tickets):
                features = features[upload(features.device, present)[0]]
            yield [tickets[i] for i in present], features

    @staticmethod
    def _is_done(batch: _Batch) -> bool:
        if isinstance(batch.features, Future):
            return batch.features.done()
        return batch.done is None or batch.done.query()


def usable_draft(window: Window, draft: tuple[int, ...], context: int, eot: int) -> tuple[int, ...]:
    """The part of a window's draft to verify: greedy only, up to <|endoftext|>, and one token
    less than there is room for. context: n_text_ctx.
    """
    rules = window.rules
    if not draft or rules is None or window.attempt.temperature > 0:
        return ()
    limit = min(rules.sample_len, context + 1 - len(window.prompt)) - 1
    draft = draft[: max(limit, 0)]
    return draft[: draft.index(eot)] if eot in draft else draft


def verify_hidden(
    window: Window, draft: Sequence[int], hidden: Tensor, model: Model, filters: Filters
) -> tuple[AcceptedPrefix, Tensor]:
    """The part of a draft that decoding accepts, and the logits [2, V] at the text's start and
    after that part. hidden [T, d]: of the prompt and the draft, after the last norm.
    """
    start, last, accepted = window.sot_index, len(window.prompt) - 1, AcceptedPrefix()
    needed = torch.cat((hidden[start : start + 1], hidden[last : last + len(draft) + 1]))
    logits = model.decoder.logits(needed)  # in one product, as its weights are large
    if draft:
        accepted = verify(window, draft, logits[1:-1].clone(), filters)
    return accepted, torch.stack((logits[0], logits[1 + len(accepted.tokens)]))


def verify(
    window: Window, draft: Sequence[int], logits: Tensor, filters: Filters
) -> AcceptedPrefix:
    """The prefix of a draft that greedy decoding writes itself, with one read by the host.

    logits [n, V], floating, before each of its n tokens; they are changed. filters: prepared for
    the window.
    """
    rules = window.rules
    assert rules is not None and len(logits) == len(draft)
    in_use = filters.in_use([rules])
    states = [t[:-1] for f in in_use for t in f.along(rules, draft)]
    read, first, *uploaded = upload(logits.device, draft, rules.suppress_first, *states)
    logits[0].index_fill_(0, first, NEVER)
    numbers = iter(uploaded)
    texts = Texts(
        tokens=read.expand(len(draft), -1),
        counts=torch.arange(len(draft), device=logits.device),
        states={f: tuple(next(numbers).to(t.dtype) for t in f.state) for f in in_use},
    )
    tokens, logprobs = filters.choose(in_use, logits, texts)
    chosen, sums = torch.stack([tokens.to(logprobs.dtype), logprobs]).tolist()
    count = next((i for i, t in enumerate(draft) if int(chosen[i]) != t), len(draft))
    return AcceptedPrefix(tuple(draft[:count]), tuple(sums[:count]))
