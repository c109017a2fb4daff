"""The encoder: on a GPU beside the decoder, on a stream of its own; on a CPU at once.

On a GPU the encoder is bound by arithmetic and a decode step by memory, so that they share a GPU
well. The windows that are being encoded hold their slots; all others go on meanwhile. Each number
of windows has a graph: to launch an encoder of 32 layers anew takes milliseconds of the host.

For live streams, a CPU with several cores encodes beside the decoder, too, in a thread of its own:
no step waits for the encoder, and small operations do not wait for each other's threads.
Recordings alone are faster without.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from slimwhisper.audio.threads import use_threads, usual_threads
from slimwhisper.engine.tickets import State, Ticket
from slimwhisper.kernels.graphs import CUDAGraphs, Graphs
from slimwhisper.model.model import Model


@dataclass(slots=True)
class _Batch:
    tickets: list[Ticket]
    features: Tensor | Future[Tensor]  # [G, p, d], once `done`
    done: torch.cuda.Event | None  # None: it is, or the future knows


class EncoderBeside:
    """Encodes windows, and knows which are done."""

    def __init__(self, model: Model, most: int) -> None:
        """most: windows in a call of `begin`."""
        self.model, self.most = model, most
        self._batches: deque[_Batch] = deque()
        self._thread: ThreadPoolExecutor | None = None
        self._usual: int | None = None  # torch's threads, all of them
        self.stream: torch.cuda.Stream | None = None
        if model.device.type == "cuda":
            self.stream = torch.cuda.Stream(model.device)
            self.stream.wait_stream(torch.cuda.current_stream(model.device))  # for the weights
            # in a pool of its own: a step's graph runs at the same time
            self.graphs = Graphs(CUDAGraphs(model.device))
            dims = model.dims
            shape = (most, dims.n_mels, 2 * dims.n_audio_ctx)
            with torch.cuda.stream(self.stream):
                self._mel = torch.zeros(shape, device=model.device)
                self._features = torch.zeros(
                    (most, dims.n_audio_ctx, dims.n_audio_state),
                    device=model.device,
                    dtype=model.dtype,
                )

    def share_cores(self, share: bool) -> None:
        """On a CPU, encode in a thread of its own from now on, which takes half of torch's threads
        from the thread that calls; or no longer. No effect with one thread, or on a GPU.
        """
        if self.stream is not None:
            return
        if self._usual is None:
            self._usual = usual_threads()
        half = self._usual // 2 if share else 0
        if half and self._thread is None:
            self._thread = ThreadPoolExecutor(1, "slimwhisper-encoder", use_threads, (half,))
        elif not half and self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        if torch.get_num_threads() != self._usual - half:
            use_threads(self._usual - half)

    @property
    def shares_cores(self) -> bool:
        """Whether it encodes in a thread of its own on a CPU."""
        return self._thread is not None

    @property
    def at_once(self) -> bool:
        """Whether what `begin` was given has arrived when it returns."""
        return self.stream is None and self._thread is None

    @torch.inference_mode()
    def _encode(self, mel: Tensor) -> Tensor:
        """mel [G, n_mels, 2 p] -> [G, p, d]."""
        return self.model.encoder(mel)

    def begin(self, tickets: Sequence[Ticket], mel: Tensor) -> None:
        """Start on mel [G, n_mels, 2 p] of the tickets; on a GPU, returns at once."""
        if self._thread is not None:  # one by one: the first can start while the next is encoded
            for i, ticket in enumerate(tickets):
                future = self._thread.submit(self._encode, mel[i : i + 1])
                self._batches.append(_Batch([ticket], future, None))
            return
        if self.stream is None:
            self._batches.append(_Batch(list(tickets), self.model.encoder(mel), None))
            return
        pinned = mel.pin_memory()  # else the host would wait for what the stream does before
        count = len(mel)

        def encode() -> None:
            self._features[:count] = self.model.encoder(self._mel[:count])

        with torch.cuda.stream(self.stream):
            self._mel[:count].copy_(pinned, non_blocking=True)
            self.graphs.run(count, encode)
            features = self._features[:count].clone()  # the next batch may come before it is read
            done = torch.cuda.Event()
            done.record(self.stream)
        self._batches.append(_Batch(list(tickets), features, done))

    def arrived(self, wait: bool) -> Iterator[tuple[list[Ticket], Tensor]]:
        """The tickets that are encoded, and their outputs [G, p, d], ready for the caller's stream.

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
            kept = [i for i, ticket in enumerate(batch.tickets) if ticket.state is not State.GONE]
            tickets = [batch.tickets[i] for i in kept]
            if tickets:
                whole = len(kept) == len(batch.tickets)
                yield tickets, features if whole else features[kept]

    @staticmethod
    def _is_done(batch: _Batch) -> bool:
        if isinstance(batch.features, Future):
            return batch.features.done()
        return batch.done is None or batch.done.query()
