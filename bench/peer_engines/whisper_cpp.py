"""whisper.cpp (pywhispercpp), and its format, for `peers.py`.

The package's own binary is made for any x86 processor. One made for this machine's, with AVX-512
where it has it, is faster: pip install --no-binary pywhispercpp pywhispercpp (needs a C++ compiler
and CMake; `_pywhispercpp.whisper_print_system_info()` says what it uses).
"""

import ctypes
import struct
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from torch import Tensor
from whisper.audio import mel_filters

from peer_engines.case import Audio, Case, Peer, Run, in_workers
from slimwhisper.checkpoint.load import Checkpoint

MAGIC = 0x67676D6C
FLOAT32, FLOAT16 = 0, 1  # ggml's types of tensors
# dtype: ggml's type of a file, and of its matrices
TYPES = {"float16": (1, FLOAT16), "q8_0": (7, 8), "q5_0": (8, 6)}
QUANTIZATION_VERSION = 2 * 1000  # added to the file's type


def whisper_cpp(case: Case, path: str) -> Run:
    load_libraries()
    import _pywhispercpp as inner
    from pywhispercpp.model import Model

    make: Any = Model
    one_pass = {
        "no_context": True,
        "single_segment": True,
        "no_timestamps": True,
        "suppress_blank": True,
        "temperature": 0.0,
        "temperature_inc": 0.0,
        # it stops after one token more
        **({"max_tokens": case.tokens - 1} if case.tokens else {}),
    }
    model = make(
        path,
        redirect_whispercpp_logs_to=None,
        n_threads=case.threads,
        language="en",
        print_progress=False,
        print_realtime=False,
        **({"greedy": {"best_of": 1}} if case.job else one_pass),
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


def load_libraries() -> None:
    """A package that was compiled here does not find the libraries that lie beside it: they are
    loaded before it.
    """
    spec = find_spec("_pywhispercpp")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent
    for name in ("ggml-base", "ggml-cpu", "ggml", "whisper"):
        for path in sorted(folder.glob(f"lib{name}.so.?"))[:1]:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def save_ggml(checkpoint: Checkpoint, path: Path, case: Case) -> None:
    """What whisper.cpp reads: a header, filters, tokens, then the weights, matrices in the case's
    dtype.
    """
    from whisper.tokenizer import get_tokenizer

    dims = checkpoint.dims
    tokenizer = get_tokenizer(dims.is_multilingual, num_languages=dims.num_languages)
    tokens = sorted(tokenizer.encoding._mergeable_ranks, key=tokenizer.encoding.encode_single_token)
    filters = mel_filters("cpu", dims.n_mels).numpy()
    file_type, matrix_type = TYPES[case.dtype]
    if matrix_type != FLOAT16:
        file_type += QUANTIZATION_VERSION
    numbers = (
        *(dims.n_vocab, dims.n_audio_ctx, dims.n_audio_state, dims.n_audio_head),
        *(dims.n_audio_layer, dims.n_text_ctx, dims.n_text_state, dims.n_text_head),
        *(dims.n_text_layer, dims.n_mels, file_type),
    )
    with path.open("wb") as file:
        file.write(struct.pack("<12i", MAGIC, *numbers))
        file.write(struct.pack("<2i", *filters.shape))
        file.write(filters.astype("<f4").tobytes())
        file.write(struct.pack("<i", len(tokens)))
        for token in tokens:
            file.write(struct.pack("<i", len(token)) + token)
        for name, tensor in checkpoint.state.items():
            if not (name.endswith("key.bias") and not tensor.any()):
                _write_weight(file, name, tensor, matrix_type)


def _write_weight(file: IO[bytes], name: str, tensor: Tensor, matrix_type: int) -> None:
    """One weight: matrices in their type, convolutions in float16, the rest in float32;
    convolution biases [n] as [n, 1].
    """
    data = tensor.squeeze().float().numpy()
    if name in ("encoder.conv1.bias", "encoder.conv2.bias"):
        data = data.reshape(-1, 1)
    if data.ndim < 2 or "positional_embedding" in name or name.endswith(".bias"):
        kind = FLOAT32
    else:
        kind = matrix_type if data.ndim == 2 else FLOAT16
    text = name.encode()
    file.write(struct.pack("<3i", data.ndim, len(text), kind))
    file.write(struct.pack(f"<{data.ndim}i", *reversed(data.shape)))
    file.write(text)
    if kind in (FLOAT32, FLOAT16):
        file.write(data.astype("<f2" if kind == FLOAT16 else "<f4").tobytes())
    else:
        from gguf import GGMLQuantizationType, quants

        file.write(quants.quantize(data, GGMLQuantizationType(kind)).tobytes())


COMMON = (("pywhispercpp", "gguf"), ("pywhispercpp",), "ggml-{dtype}.bin", save_ggml)
PEERS = {
    "whisper.cpp": Peer(
        *COMMON,
        in_workers(whisper_cpp),
        {"cpu": ("float16", "q8_0", "q5_0")},
        batches=False,
        in_workers=True,
        by_torch=False,
        jobs={"folder": (1, 8), "long": (1,)},
    )
}
