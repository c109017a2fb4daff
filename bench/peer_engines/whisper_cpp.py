"""whisper.cpp (pywhispercpp), and its format, for `peers.py`.

The package's own binary is made for any x86 processor. One made for this machine's, with AVX-512
where it has it, is faster: pip install --no-binary pywhispercpp pywhispercpp (needs a C++ compiler
and CMake; `_pywhispercpp.whisper_print_system_info()` says what it uses).
"""

import ctypes
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from peer_engines.case import Audio, Case, Peer, Run, in_workers
from slimwhisper.checkpoint.load import Checkpoint

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.support.foreign import ggml_bytes, ggml_tensor, raw

FLOAT16 = 1  # ggml's type of such a matrix
# dtype: ggml's type of a file, with the version of quantization, and of its matrices
TYPES = {"float16": (1, FLOAT16), "q8_0": (2007, 8), "q5_0": (2008, 6)}


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
    """What whisper.cpp reads: matrices in the case's dtype, convolutions in float16, the rest in
    float32.
    """
    file_type, matrix_type = TYPES[case.dtype]
    with path.open("wb") as file:
        file.write(ggml_bytes(checkpoint.dims, {}, file_type=file_type))  # all but the weights
        for name, tensor in checkpoint.state.items():
            if name.endswith("key.bias") and not tensor.any():
                continue
            if tensor.ndim == 1 or "positional_embedding" in name:
                file.write(ggml_tensor(name, tensor.float()))
            elif tensor.ndim == 3 or matrix_type == FLOAT16:
                file.write(ggml_tensor(name, tensor.half()))
            else:
                from gguf import GGMLQuantizationType, quants

                numbers = quants.quantize(tensor.float().numpy(), GGMLQuantizationType(matrix_type))
                file.write(ggml_tensor(name, tensor, matrix_type).removesuffix(raw(tensor)))
                file.write(numbers.tobytes())


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
