"""Voice activity: silero-vad's network on frames of 32 ms, block by block."""

import warnings
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from slimwhisper.audio.options import SpeechOptions
from slimwhisper.audio.samples import Samples
from slimwhisper.cores import one_thread, use_threads
from slimwhisper.errors import DependencyError
from slimwhisper.types import HOP_SAMPLES, SAMPLE_RATE

Region = tuple[int, int]  # samples [start, stop)

FRAME = 512  # samples per probability
_CONTEXT = 64  # samples before a frame that are also its input
BLOCK_FRAMES = 938  # 30 s
_MAYBE_SPEECH = 0.3  # lowest probability
_PEAK, _INAUDIBLE = 0.5, 1e-4  # of the samples of a block, scaled; a lower peak is silence
NEAR = 40  # mel frames from a stretch's ends where speech still counts as inside
FAINT_RUN, FAINT_SHARE = 0.3, 0.1  # most seconds of speech in one go, most of the audio
DROP = 0.15  # speech ends at a probability below the threshold less this, as in silero


# faster-whisper's defaults, where they are not the package's
DEFAULTS = {"min_speech_duration_ms": 0, "min_silence_duration_ms": 2000, "speech_pad_ms": 400}


def speech_regions(samples: Samples, **options: float) -> list[Region]:
    """The regions with speech, in order and without overlap.

    Speech starts where a frame's probability reaches `threshold`, and ends where it stays below
    `neg_threshold`, lower by `DROP` if it is not given, for `min_silence_duration_ms`;
    `speech_pad_ms` are added on both sides. Speech of more than `max_speech_duration_s` is cut at
    its longest pauses, and that of less than `min_speech_duration_ms` is dropped. Raises
    DependencyError without silero-vad.
    """
    probabilities, make_regions = speech_probabilities(samples)
    audio = {"sampling_rate": SAMPLE_RATE, "audio_length_samples": len(samples)}
    regions = make_regions(probabilities, **audio, **DEFAULTS | options)
    return [(int(region["start"]), int(region["end"])) for region in regions]


def find_speech(samples: Samples, options: SpeechOptions) -> list[Region]:
    """The regions with speech; with `parallel`, cut at short pauses, later joined up to 30 s."""
    names = [r.name for r in fields(SpeechOptions) if r.name.startswith("vad_")]
    names.remove("vad_filter")  # whether to look for speech at all
    defaults = {"min_silence_duration_ms": 300, "speech_pad_ms": 200} if options.parallel else {}
    values = {name.removeprefix("vad_"): getattr(options, name) for name in names}
    return speech_regions(samples, **defaults | {k: v for k, v in values.items() if v is not None})


def speech_probabilities(
    samples: Samples,
    prepare: Callable[[NDArray[np.float32]], NDArray[np.float32]] = lambda block: block,
) -> "tuple[array[float], Callable[..., list[dict[str, int]]]]":
    """The speech probabilities [frames], and silero-vad's function from them to regions. prepare:
    changes a block of samples before the network reads it.
    """
    probabilities = array("f")
    # In a separate thread, because torch sets its number of threads per calling thread: with more
    # than one, the network's small steps are up to a thousand times slower on a busy machine.
    with ThreadPoolExecutor(1, initializer=use_threads) as pool:
        run = pool.submit
        make_regions, network = run(_shared_network).result()
        state = network.begin()
        for start in range(0, len(samples), BLOCK_FRAMES * FRAME):
            block = samples.read(start, min(start + BLOCK_FRAMES * FRAME, len(samples)))
            probabilities.frombytes(run(network.next, state, prepare(block)).result().tobytes())
    return probabilities, make_regions


class SpeechFrames:
    """Where a recording may have speech, also quiet speech: more sensitive than `speech_regions`.

    Positions are mel frames of 10 ms.
    """

    def __init__(self, samples: Samples) -> None:
        """Reads all samples. Raises DependencyError without silero-vad."""

        def scaled(block: NDArray[np.float32]) -> NDArray[np.float32]:
            # the network hardly hears speech below -40 dB, which Whisper reads as any other
            return block * (_PEAK / max(float(np.abs(block).max(initial=0)), _INAUDIBLE))

        probabilities, _ = speech_probabilities(samples, prepare=scaled)
        #: whether each frame of `FRAME` samples may be speech: bool [frames]
        self.frames = np.frombuffer(probabilities, np.float32) >= _MAYBE_SPEECH

    def seconds(self, start: int, stop: int) -> float:
        """Seconds of speech between two positions."""
        return float(self._between(start, stop, 0).sum()) * FRAME / SAMPLE_RATE

    def heard(self, start: int, stop: int) -> bool:
        """Whether there is speech between two positions, or near them."""
        return bool(self._between(start, stop, NEAR).any())

    def is_faint(self, start: int, stop: int) -> bool:
        """Whether what may be speech is as short and rare as in laughter, music and cries: never as
        long as a short word, and little of the audio.
        """
        frames = self._between(start, stop, NEAR)
        edges = np.flatnonzero(np.diff(frames.astype(np.int8), prepend=0, append=0))
        longest = int(np.diff(edges)[::2].max(initial=0)) * FRAME / SAMPLE_RATE
        return longest < FAINT_RUN and bool(frames.sum() < FAINT_SHARE * len(frames))

    def _between(self, start: int, stop: int, near: int) -> NDArray[np.bool_]:
        first = max((start - near) * HOP_SAMPLES, 0) // FRAME
        return self.frames[first : -(-(stop + near) * HOP_SAMPLES // FRAME)]


class SpeechStream:
    """Speech probabilities of one live stream.

    All streams share one network, and one thread for it, in which torch uses one thread. Raises
    DependencyError without silero-vad.
    """

    def __init__(self) -> None:
        _, self.network = _shared_thread().submit(_shared_network).result()
        self.state = self.network.begin()

    def probabilities(self, block: NDArray[np.float32]) -> NDArray[np.float32]:
        """The next samples, float32 [n] -> [frames], as by `VadNetwork.next`."""
        return _shared_thread().submit(self.network.next, self.state, block).result()

    @staticmethod
    def next_batch(
        streams: "Sequence[SpeechStream]", blocks: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """The same for S streams in one call, in hardly more time than for one: float32 [S, n],
        whole frames -> [S, frames].
        """
        states = [stream.state for stream in streams]
        return _shared_thread().submit(streams[0].network.next_batch, states, blocks).result()


@cache
def _shared_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "slimwhisper-vad", use_threads)


@cache
def _shared_network() -> tuple[Callable[..., list[dict[str, int]]], "VadNetwork"]:
    """silero-vad's function from probabilities to regions, and its network, for all threads."""
    with one_thread(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit.load`")  # torch 2.15 deprecates it
        try:
            import silero_vad  # sets one thread globally
        except ImportError as error:
            raise DependencyError(
                f"finding speech needs the package silero-vad ({error}): pip install silero-vad"
            ) from None
        model = silero_vad.load_silero_vad()
    return silero_vad.get_speech_timestamps_from_probs, VadNetwork(model)


@dataclass(slots=True)
class VadState:
    """The network's state within a recording."""

    lstm: tuple[torch.Tensor, torch.Tensor]  # [1, 1, width] each
    context: NDArray[np.float32]  # the last samples of the block before


class VadNetwork:
    """silero-vad's network on recordings, each from its first block to its last.

    Frames depend on each other only through the LSTM. Everything else is computed for a whole
    block, which is about ten times faster than frame by frame, as in the package.
    """

    def __init__(self, model: Any) -> None:
        # a private name, as only the parts allow blocks; for 16 kHz
        network = model._model
        self.spectrum, self.encoder = network.run_extractors, network.encoder
        self.output = network.decoder.decoder
        weights = {f"{name}_l0": p for name, p in network.decoder.rnn.named_parameters()}
        self.lstm = nn.LSTM(weights["weight_ih_l0"].shape[1], weights["weight_hh_l0"].shape[1])
        self.lstm.load_state_dict(weights)

    def begin(self) -> VadState:
        """The state at the start of a recording."""
        zeros = torch.zeros(1, 1, self.lstm.hidden_size)
        return VadState((zeros, zeros), np.zeros(_CONTEXT, np.float32))

    def next(self, state: VadState, block: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32 [n] samples -> speech probabilities [frames]; only the last block may end within
        a frame.
        """
        padded = np.pad(block, (0, -len(block) % FRAME))
        return self.next_batch([state], padded[None])[0]

    @torch.inference_mode()
    def next_batch(
        self, states: Sequence[VadState], blocks: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """The next blocks of S recordings, whole frames: float32 [S, n] -> [S, frames]."""
        count = len(states)
        audio = np.concatenate([np.stack([s.context for s in states]), blocks], axis=1)
        frames = torch.from_numpy(audio).unfold(1, _CONTEXT + FRAME, FRAME)  # [S, frames, 576]
        features = self.encoder(self.spectrum(frames.flatten(0, 1)))  # [S frames, 128, 1]
        steps = features.view(count, -1, features.shape[1]).transpose(0, 1)
        hidden, cell = (torch.cat([s.lstm[i] for s in states], dim=1) for i in (0, 1))
        outputs, (hidden, cell) = self.lstm(steps.contiguous(), (hidden, cell))
        for i, state in enumerate(states):
            state.context = audio[i, -_CONTEXT:]
            state.lstm = hidden[:, i : i + 1], cell[:, i : i + 1]
        speech = self.output(outputs.flatten(0, 1).unsqueeze(2))
        return speech.view(-1, count).T.numpy()
