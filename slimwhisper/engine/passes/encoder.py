"""The encoder: asynchronous on a GPU, on a stream of its own; synchronous on a CPU.

The windows that are being encoded hold their slots; the others keep decoding. The encoder is bound
by arithmetic and a decode step by memory: while all rows decode, the encoder has half of a GPU that
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

import torch
from torch import Tensor

from slimwhisper.audio.threads import use_threads, usual_threads
from slimwhisper.engine.tickets import Ticket, TicketState
from slimwhisper.engine.uploads import upload
from slimwhisper.kernels.gpu import driver
from slimwhisper.kernels.graphs import CUDAGraphs, Graphs, stream_of
from slimwhisper.model.model import Model
from slimwhisper.types import MEL_FRAMES_PER_POSITION


@dataclass(slots=True)
class _Batch:
    tickets: list[Ticket]
    features: Tensor | Future[Tensor]  # [G, q, d], valid once `done`
    done: torch.cuda.Event | None  # None: already valid, or a future


class AsyncEncoder:
    """Encodes windows, and yields those that are complete."""

    def __init__(self, model: Model, max_batch: int) -> None:
        """max_batch: windows in a call of `begin`."""
        self.model, self.max_batch = model, max_batch
        self._batches: deque[_Batch] = deque()
        self._thread: ThreadPoolExecutor | None = None
        self._all_threads: int | None = None  # torch's, before they are shared
        self.stream: torch.cuda.Stream | None = None
        if model.device.type == "cuda":
            self.stream = stream_of(model.device, "encoder")
            self.stream.wait_stream(torch.cuda.current_stream(model.device))  # for the weights
            roles = ("encoder", "beside") if driver.can_divide(model.device) else ("encoder",)
            # in pools of their own: a step's graph runs at the same time
            self.graphs = {role: Graphs(CUDAGraphs(model.device, role)) for role in roles}
            dims = model.dims
            shape = (max_batch, dims.n_mels, 2 * dims.n_audio_ctx)
            with torch.cuda.stream(self.stream):
                self._mel = torch.zeros(shape, device=model.device)
                self._features = torch.zeros(
                    (max_batch, dims.n_audio_ctx, dims.n_audio_state),
                    device=model.device,
                    dtype=model.dtype,
                )

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

    @torch.inference_mode()
    def _encode(self, mel: Tensor) -> Tensor:
        """mel [G, n_mels, 2 q] -> [G, q, d]."""
        return self.model.encoder(mel)

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

    @property
    def _output_shape(self) -> tuple[int, int]:
        """Of one window's output, which a ticket may come with."""
        return self.model.dims.n_audio_ctx, self.model.dims.n_audio_state

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
                future = self._thread.submit(self._encode, mel.unsqueeze(0))
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

        device = self.model.device
        role = "beside" if beside and "beside" in self.graphs else "encoder"
        stream = stream_of(device, role)
        for other in self.graphs.keys() - {role}:
            stream.wait_stream(stream_of(device, other))  # the buffers are the same
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
