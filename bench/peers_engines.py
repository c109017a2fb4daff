"""Whisper implementations, each as a function of recordings; for `peers.py`."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from peers_formats import drop_broken_torchaudio

Audio = np.ndarray[tuple[int], np.dtype[np.float32]]
Run = Callable[[list[Audio]], Iterator[tuple[str, int]]]  # per file: its text, number of tokens


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured."""

    model: str  # an official shape with random weights, or a trained checkpoint
    engine: str  # of `PEERS`
    dtype: str
    batch: int
    files: int
    tokens: int | None  # forced; None: the model decides
    threads: int
    audio: str | None  # a folder of recordings; None: noise
    device: str = "cpu"

    @property
    def name(self) -> str:
        """For a person: with the dtype if the engine has several on this device."""
        several = len(PEERS[self.engine].dtypes[self.device]) > 1
        return f"{self.engine} {self.dtype}" if several else self.engine


def openai_whisper(case: Case, converted: str) -> Run:
    import whisper

    model = whisper.load_model(f"{converted}/openai.pt", device=case.device)
    options = {**plain(case), "sample_len": case.tokens, "fp16": case.dtype == "float16"}

    def run(audio: list[Audio]) -> Iterator[tuple[str, int]]:
        for recording in audio:
            result = model.transcribe(recording, **options)
            yield result["text"], sum(len(s["tokens"]) for s in result["segments"])

    return run


def slimwhisper_slim(case: Case, converted: str) -> Run:
    import slimwhisper

    compute, _, cache = case.dtype.partition("-")
    model = slimwhisper.load_model(
        f"{converted}/openai.pt", device=case.device, dtype=compute, cache_dtype=cache or None
    )
    options = {**plain(case), "sample_len": case.tokens}

    def run(audio: list[Audio]) -> Iterator[tuple[str, int]]:
        outputs = {}  # results come in the order in which they finish
        for source, result in model.transcribe_many(iter(audio), batch_size=case.batch, **options):
            if isinstance(result, Exception):
                raise result
            outputs[id(source)] = result.text, sum(len(s.tokens) for s in result.segments)
        yield from (outputs[id(source)] for source in audio)

    return run


def plain(case: Case) -> dict[str, Any]:
    """Whisper's options for one greedy pass."""
    return {
        "language": "en",
        "without_timestamps": True,
        "temperature": 0.0,
        "condition_on_previous_text": False,
        "suppress_tokens": "",
        "no_speech_threshold": None,
        "logprob_threshold": None,
        "compression_ratio_threshold": None,
    }


def transformers_sdpa(case: Case, converted: str) -> Run:
    drop_broken_torchaudio()
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration
    from transformers.utils import logging

    logging.set_verbosity_error()
    folder = f"{converted}/hugging_face"
    dtype = getattr(torch, case.dtype)
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=dtype)
    model.eval().to(case.device)
    model.generation_config.suppress_tokens = None
    model.generation_config.begin_suppress_tokens = None
    extractor = WhisperFeatureExtractor.from_pretrained(folder)
    options: dict[str, Any] = {"do_sample": False, "num_beams": 1, "return_timestamps": False}
    if model.generation_config.is_multilingual:
        options |= {"language": "en", "task": "transcribe"}
    if case.tokens:
        options["max_new_tokens"] = case.tokens
    decode = tokens_decoder(folder)

    def run(audio: list[Audio]) -> Iterator[tuple[str, int]]:
        for i in range(0, len(audio), case.batch):
            batch = audio[i : i + case.batch]
            features = extractor(batch, sampling_rate=16_000, return_tensors="pt").input_features
            with torch.inference_mode():
                outputs = model.generate(features.to(case.device, dtype), **options)
            for row in outputs.tolist():
                yield decode(row)

    return run


def tokens_decoder(folder: str) -> Callable[[list[int]], tuple[str, int]]:
    """Token ids -> the text and the number of text tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    end = tokenizer.token_to_id("<|endoftext|>")
    assert end is not None

    def decode(ids: list[int]) -> tuple[str, int]:
        text = [i for i in ids if i < end]
        return tokenizer.decode(text), len(text)

    return decode


def faster_whisper(case: Case, converted: str) -> Run:
    from faster_whisper import BatchedInferencePipeline, WhisperModel

    model = WhisperModel(
        f"{converted}/ctranslate2",
        device=case.device,
        compute_type=case.dtype,
        cpu_threads=case.threads,
        local_files_only=True,
    )
    options: dict[str, Any] = {
        "language": "en",
        "beam_size": 1,
        "best_of": 1,
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

    def one_by_one(audio: list[Audio]) -> Iterator[tuple[str, int]]:
        for recording in audio:
            segments = list(model.transcribe(recording, **options)[0])
            yield "".join(s.text for s in segments), sum(len(s.tokens) for s in segments)

    def batched(audio: list[Audio]) -> Iterator[tuple[str, int]]:
        # its batches are clips of one recording: the files one after the other
        clips, at = [], 0.0
        for recording in audio:
            clips.append({"start": at, "end": at + len(recording) / 16_000})
            at = clips[-1]["end"]
        pipeline = BatchedInferencePipeline(model)
        joined = np.concatenate(audio)
        segments, _ = pipeline.transcribe(
            joined, clip_timestamps=clips, batch_size=case.batch, **options
        )
        for segment in segments:
            yield segment.text, len(segment.tokens)

    return one_by_one if case.batch == 1 else batched


def whisper_cpp(case: Case, converted: str) -> Run:
    import _pywhispercpp as inner
    from pywhispercpp.model import Model

    model = Model(
        f"{converted}/ggml.bin",
        redirect_whispercpp_logs_to=None,
        n_threads=case.threads,
        language="en",
        no_context=True,
        single_segment=True,
        no_timestamps=True,
        suppress_blank=True,
        temperature=0.0,
        temperature_inc=0.0,
        print_progress=False,
        print_realtime=False,
        **({"max_tokens": case.tokens} if case.tokens else {}),
    )
    context = model._ctx
    end = inner.whisper_token_eot(context)

    def run(audio: list[Audio]) -> Iterator[tuple[str, int]]:
        for recording in audio:
            segments = model.transcribe(recording)
            count = 0
            for i in range(inner.whisper_full_n_segments(context)):
                ids = range(inner.whisper_full_n_tokens(context, i))
                count += sum(inner.whisper_full_get_token_id(context, i, j) < end for j in ids)
            yield " ".join(s.text for s in segments), count

    return run


@dataclass(frozen=True, slots=True)
class Peer:
    """An implementation to measure."""

    package: str
    distributions: tuple[str, ...]  # whose versions are reported
    format: str  # for `converted.convert`
    load: Callable[[Case, str], Run]  # the folder of the weights in all formats
    dtypes: Mapping[str, tuple[str, ...]]  # by device
    batches: bool = True  # whether it decodes several windows together
    # whether torch allocates its memory, so that its use of a GPU's can be measured
    by_torch: bool = True


ONE = {"cpu": ("float32",), "cuda": ("float16",)}

PEERS = {
    "openai-whisper": Peer(
        "whisper", ("openai-whisper",), "openai", openai_whisper, ONE, batches=False
    ),
    "transformers": Peer("transformers", ("transformers",), "hugging_face", transformers_sdpa, ONE),
    "whisper.cpp": Peer(
        *("pywhispercpp", ("pywhispercpp",), "ggml", whisper_cpp),
        {"cpu": ("float16",)},
        batches=False,
    ),
    "faster-whisper": Peer(
        *("faster_whisper", ("faster-whisper", "ctranslate2"), "ctranslate2", faster_whisper),
        {"cpu": ("float32", "int8"), "cuda": ("float16", "int8_float16")},
        by_torch=False,
    ),
    "slimwhisper": Peer(
        *("slimwhisper", (), "openai", slimwhisper_slim),
        {"cpu": ("float32", "int8"), "cuda": ("float16", "float16-fp8")},
    ),
}
