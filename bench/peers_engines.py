"""Whisper implementations, each as a function of recordings, and their formats; for `peers.py`."""

import shutil
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor
from whisper.audio import mel_filters

from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.commands.conversion.hf_folder import write_folder

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
        found = {}  # results come in the order in which they finish
        for source, result in model.transcribe_many(iter(audio), batch_size=case.batch, **options):
            if isinstance(result, Exception):
                raise result
            found[id(source)] = result.text, sum(len(s.tokens) for s in result.segments)
        yield from (found[id(source)] for source in audio)

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
            some = audio[i : i + case.batch]
            features = extractor(some, sampling_rate=16_000, return_tensors="pt").input_features
            with torch.inference_mode():
                found = model.generate(features.to(case.device, dtype), **options)
            for row in found.tolist():
                yield decode(row)

    return run


def tokens_decoder(folder: str) -> Callable[[list[int]], tuple[str, int]]:
    """Token ids -> the text and the number of text tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    end = tokenizer.token_to_id("<|endoftext|>")

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
    distributions: tuple[str, ...]  # whose versions are told
    format: str  # for `converted.convert`
    load: Callable[[Case, str], Run]  # the folder of the weights in all formats
    dtypes: Mapping[str, tuple[str, ...]]  # by device
    batches: bool = True  # whether it decodes several windows together
    # whether torch allocates its memory, so that its use of a GPU's can be told
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

# -- formats ---------------------------------------------------------------------------------------

GGML_MAGIC = 0x67676D6C
FLOAT32, FLOAT16 = 0, 1  # ggml's types


def convert(checkpoint: Checkpoint, folder: Path, kind: str, dtype: torch.dtype) -> None:
    """Write "openai" (openai.pt), "hugging_face", "ctranslate2" (folders) or "ggml" (ggml.bin).

    dtype: of all weights but ggml's.
    """
    state = {name: tensor.to(dtype) for name, tensor in checkpoint.state.items()}
    hugging_face = folder / "hugging_face"
    if kind == "openai":
        content = {"dims": asdict(checkpoint.dims), "model_state_dict": state}
        torch.save(content, folder / "openai.pt")
    elif kind == "ggml":
        save_ggml(checkpoint, folder / "ggml.bin")
    elif not hugging_face.exists():  # CTranslate2 converts it
        hugging_face.mkdir()
        write_folder(replace(checkpoint, state=state), hugging_face)
    if kind == "ctranslate2":
        drop_broken_torchaudio()
        from ctranslate2.converters import TransformersConverter

        TransformersConverter(str(hugging_face)).convert(str(folder / kind), force=True)
        for name in ("tokenizer.json", "preprocessor_config.json"):
            shutil.copy(hugging_face / name, folder / kind)


def drop_broken_torchaudio() -> None:
    """Make transformers take a torchaudio that does not fit this torch for missing; it needs none
    here, and fails to import with one that does not load.
    """
    try:
        import torchaudio  # noqa: F401
    except (ImportError, OSError):
        sys.modules["torchaudio"] = None  # type: ignore[assignment]


def save_ggml(checkpoint: Checkpoint, path: Path) -> Path:
    """What whisper.cpp reads: a header, filters, tokens, then the weights in float16."""
    from whisper.tokenizer import get_tokenizer

    dims = checkpoint.dims
    tokenizer = get_tokenizer(dims.is_multilingual, num_languages=dims.num_languages)
    tokens = sorted(tokenizer.encoding._mergeable_ranks, key=tokenizer.encoding.encode_single_token)
    filters = mel_filters("cpu", dims.n_mels).numpy()
    numbers = (
        *(dims.n_vocab, dims.n_audio_ctx, dims.n_audio_state, dims.n_audio_head),
        *(dims.n_audio_layer, dims.n_text_ctx, dims.n_text_state, dims.n_text_head),
        *(dims.n_text_layer, dims.n_mels, FLOAT16),
    )
    with path.open("wb") as file:
        file.write(struct.pack("<12i", GGML_MAGIC, *numbers))
        file.write(struct.pack("<2i", *filters.shape))
        file.write(filters.astype("<f4").tobytes())
        file.write(struct.pack("<i", len(tokens)))
        for token in tokens:
            file.write(struct.pack("<i", len(token)) + token)
        for name, tensor in checkpoint.state.items():
            if not (name.endswith("key.bias") and not tensor.any()):
                _write_ggml(file, name, tensor)
    return path


def _write_ggml(file: IO[bytes], name: str, tensor: Tensor) -> None:
    """One weight: matrices in float16, the rest in float32; convolution biases [n] as [n, 1]."""
    data = tensor.squeeze().numpy().astype(np.float32)
    if name in ("encoder.conv1.bias", "encoder.conv2.bias"):
        data = data.reshape(-1, 1)
    plain = data.ndim < 2 or "positional_embedding" in name or name.endswith("conv1.bias")
    kind = FLOAT32 if plain or name.endswith("conv2.bias") else FLOAT16
    text = name.encode()
    file.write(struct.pack("<3i", data.ndim, len(text), kind))
    file.write(struct.pack(f"<{data.ndim}i", *reversed(data.shape)))
    file.write(text)
    file.write(data.astype("<f2" if kind == FLOAT16 else "<f4").tobytes())
