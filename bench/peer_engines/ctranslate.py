"""faster-whisper with CTranslate2, for `peers.py`: its default and the settings that may be faster:
Intel's MKL in place of the library that CTranslate2 chooses for the processor, matrices packed when
they are loaded, and one-threaded workers that decode different windows.
"""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from peer_engines.case import Audio, Case, Peer, Run
from peer_engines.weights import drop_broken_torchaudio, save_hugging_face
from slimwhisper.checkpoint.load import Checkpoint


def save_ctranslate2(checkpoint: Checkpoint, path: Path, case: Case) -> None:
    drop_broken_torchaudio()
    from ctranslate2.converters import TransformersConverter

    with TemporaryDirectory() as folder:
        source = Path(folder) / "hugging_face"
        save_hugging_face(checkpoint, source, case)
        TransformersConverter(str(source)).convert(str(path))
        for name in ("tokenizer.json", "preprocessor_config.json"):
            shutil.copy(source / name, path)


def faster_whisper(case: Case, path: str, workers: bool = False) -> Run:
    """workers: a worker for each thread, which decodes its share of a batch."""
    from faster_whisper import BatchedInferencePipeline, WhisperModel

    count = case.threads if workers else 1
    share = max(case.batch // count, 1)  # of a batch, for a worker
    model = WhisperModel(
        path,
        device=case.device,
        compute_type=case.dtype,
        cpu_threads=case.threads // count,
        num_workers=count,
        local_files_only=True,
    )
    pipeline = BatchedInferencePipeline(model)
    options: dict[str, Any] = {"language": "en", "beam_size": case.beams, "best_of": 1}
    one_pass = {
        "temperature": 0.0,
        "without_timestamps": True,
        "suppress_tokens": [],
        "compression_ratio_threshold": None,
        "log_prob_threshold": None,
        "no_speech_threshold": None,
        "condition_on_previous_text": False,
        # CTranslate2 samples half of the sum of this and the prompt's four tokens
        "max_new_tokens": case.tokens and 2 * case.tokens - 4,
        "vad_filter": False,
    }
    if not case.job:
        options |= one_pass

    def one(recording: Any) -> tuple[str, int]:
        if case.batch == 1:
            segments = list(model.transcribe(recording, **options)[0])
        else:
            segments = list(pipeline.transcribe(recording, batch_size=case.batch, **options)[0])
        return "".join(s.text for s in segments), sum(len(s.tokens) for s in segments)

    def together(audio: list[Audio]) -> list[tuple[str, int]]:
        # its batches are clips of one recording: the files one after the other
        clips, at = [], 0.0
        for recording in audio:
            clips.append({"start": at, "end": at + len(recording) / 16_000})
            at = clips[-1]["end"]
        segments, _ = pipeline.transcribe(
            np.concatenate(audio), clip_timestamps=clips, batch_size=share, **options
        )
        return [(segment.text, len(segment.tokens)) for segment in segments]

    def run(audio: list[Any]) -> Iterator[tuple[str, int]]:
        with ThreadPoolExecutor(count) as pool:
            if case.job or case.batch == 1:
                yield from pool.map(one, audio)
            else:
                parts = [audio[i : i + share] for i in range(0, len(audio), share)]
                yield from chain.from_iterable(pool.map(together, parts))

    return run


PACKAGES = ("faster_whisper", "ctranslate2", "transformers")
DISTRIBUTIONS = ("faster-whisper", "ctranslate2")
Dtypes = dict[str, tuple[str, ...]]
CPU: Dtypes = {"cpu": ("float32", "int8")}
GPU: Dtypes = {"cuda": ("float16", "int8_float16")}


def variant(dtypes: Dtypes = CPU, **fields: Any) -> Peer:
    fields = {"jobs": {"folder": (1, 8, 16), "long": (1, 8, 16)}, **fields}
    common = (PACKAGES, DISTRIBUTIONS, "ctranslate2", save_ctranslate2, faster_whisper)
    return Peer(*common, dtypes, beams=True, by_torch=False, **fields)


# newer versions of CTranslate2 have the shorter name
PACKED = {"CT2_USE_EXPERIMENTAL_PACKED_GEMM": "1", "CT2_PACKED_GEMM": "1"}
MKL = {"CT2_USE_MKL": "1"}

PEERS = {
    "faster-whisper": variant(CPU | GPU),
    "faster-whisper-mkl": variant(environment=MKL),
    "faster-whisper-packed": variant(environment=MKL | PACKED),
    "faster-whisper-workers": variant(
        options={"workers": True}, least_batch=2, jobs={"folder": (1, 8)}
    ),
}
