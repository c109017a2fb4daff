"""A model's name or file -> its dimensions and tensors, checked: OpenAI .pt and Hugging Face.

Builds no model and moves nothing to a device. Every failure is a CheckpointError of one line.
"""

import difflib
import hashlib
import http.client
import logging
import os
import pickle
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from slimwhisper.errors import CheckpointError
from slimwhisper.hub import problem, read_folder, read_repository
from slimwhisper.types import Dims

_log = logging.getLogger("slimwhisper")

_DISTIL = {
    name: f"distil-whisper/{name}"
    for name in (
        "distil-small.en",
        "distil-medium.en",
        "distil-large-v2",
        "distil-large-v3",
        "distil-large-v3.5",
    )
}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FILE_SUFFIXES = {".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".gguf"}
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Checkpoint:
    """A model's dimensions and weights; `state` may be mapped from its file, so do not write to it."""

    name: str  # as asked for: an official name, a path or a hub id
    dims: Dims
    state: dict[str, Tensor]  # OpenAI's names; CPU, in the file's dtype


def available_models() -> list[str]:
    """The names that `load_checkpoint` knows: openai-whisper's, then the distil models."""
    return [*_official_urls(), *_DISTIL]


def default_download_root() -> Path:
    """Where OpenAI's files are kept, as in openai-whisper: ${XDG_CACHE_HOME:-~/.cache}/whisper."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "whisper"


def load_checkpoint(
    name: str | os.PathLike[str],
    *,
    download_root: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
) -> Checkpoint:
    """Load a model by official name, else from an existing path, else from the Hugging Face hub.

    name: one of `available_models()`; an OpenAI .pt file; a folder with config.json and
        safetensors; or a hub id "org/name". A PathLike is always a path.
    download_root: folder of OpenAI's files, `default_download_root()` if None. Hub models live in
        the hub's own cache.
    local_files_only: fetch nothing.

    Raises CheckpointError, in one line, when the model cannot be found, fetched, or read, or is
    not a Whisper model.
    """
    text = os.fspath(name)
    if isinstance(name, str) and name in (urls := _official_urls()):
        root = default_download_root() if download_root is None else Path(download_root)
        path = _official_file(name, urls[name], root, local_files_only)
        dims, state = _read_openai(path)
        return _checked(text, path, dims, state)
    if isinstance(name, str) and name in _DISTIL:
        dims, state = read_repository(_DISTIL[name], local_files_only=local_files_only)
        return _checked(text, _DISTIL[name], dims, state)

    try:
        path = Path(text).expanduser()
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, RuntimeError) as error:  # no permission, name too long; no home folder
        raise problem(text, f"cannot be looked up: {error}") from error
    where: object = path
    if not text or not exists:
        if not isinstance(name, str) or not _HUB_ID.fullmatch(text) or _has_file_suffix(text):
            raise _not_found(name)
        where = text
        dims, state = read_repository(text, local_files_only=local_files_only)
    elif is_folder:
        dims, state = read_folder(path)
    elif path.suffix == ".safetensors":
        what = "a .safetensors file has no dimensions beside it; give its folder, with config.json"
        raise problem(path, what)
    else:
        dims, state = _read_openai(path)
    return _checked(text, where, dims, state)


def expected_shapes(dims: Dims) -> dict[str, tuple[int, ...]]:
    """Name and shape of each tensor of a Whisper model with these dimensions."""
    shapes: dict[str, tuple[int, ...]] = {}

    def affine(name: str, *weight: int, bias: bool = True) -> None:
        shapes[f"{name}.weight"] = weight
        if bias:
            shapes[f"{name}.bias"] = weight[:1]

    def block(name: str, d: int, attentions: tuple[str, ...]) -> None:
        for attention in attentions:
            for part in ("query", "key", "value", "out"):
                affine(f"{name}.{attention}.{part}", d, d, bias=part != "key")
            affine(f"{name}.{attention}_ln", d)
        affine(f"{name}.mlp.0", 4 * d, d)
        affine(f"{name}.mlp.2", d, 4 * d)
        affine(f"{name}.mlp_ln", d)

    d = dims.n_audio_state
    shapes["encoder.positional_embedding"] = (dims.n_audio_ctx, d)
    affine("encoder.conv1", d, dims.n_mels, 3)
    affine("encoder.conv2", d, d, 3)
    for layer in range(dims.n_audio_layer):
        block(f"encoder.blocks.{layer}", d, ("attn",))
    affine("encoder.ln_post", d)

    d = dims.n_text_state
    shapes["decoder.token_embedding.weight"] = (dims.n_vocab, d)
    shapes["decoder.positional_embedding"] = (dims.n_text_ctx, d)
    for layer in range(dims.n_text_layer):
        block(f"decoder.blocks.{layer}", d, ("attn", "cross_attn"))
    affine("decoder.ln", d)
    return shapes


def _official_urls() -> dict[str, str]:
    import whisper  # slow to import

    return dict(whisper._MODELS)


def _has_file_suffix(text: str) -> bool:
    return Path(text).suffix.lower() in _FILE_SUFFIXES


def _not_found(name: str | os.PathLike[str]) -> CheckpointError:
    text = os.fspath(name)
    if not isinstance(name, str) or "/" in text or _has_file_suffix(text):
        return problem(text, "no such file or folder; give an existing one, or a model's name")
    close = difflib.get_close_matches(text.lower(), available_models(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    what = (
        f"{hint}Available: {', '.join(available_models())}; a file, a folder and a Hugging Face"
        " id (openai/whisper-tiny) work too"
    )
    return problem(f"unknown model {text!r}", what)


def _official_file(name: str, url: str, root: Path, local_files_only: bool) -> Path:
    """Path of OpenAI's file for `name`, verified; downloaded into `root` where needed."""
    path = root / url.rsplit("/", 1)[1]
    checksum = url.split("/")[-2]
    try:
        root.mkdir(parents=True, exist_ok=True)
        if path.exists():
            if not path.is_file():
                raise problem(path, f"is not a file; move it away, to make room for model {name}")
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() == checksum:
                    return path
    except OSError as error:
        raise problem(path, f"cannot be used for model {name}: {error}") from error
    if local_files_only:
        state = "has another checksum than OpenAI's file" if path.exists() else "does not exist"
        what = f"{state}, and local_files_only forbids to fetch model {name} from {url}"
        raise problem(path, what)
    if path.exists():
        _log.warning("%s has another checksum than OpenAI's file; fetching it again", path)
    try:
        # Written beside `path` and renamed once verified, so that it can be interrupted.
        torch.hub.download_url_to_file(url, str(path), hash_prefix=checksum, progress=True)
    except (OSError, http.client.HTTPException, RuntimeError, ValueError) as error:
        reason = str(error) or type(error).__name__
        if isinstance(error, RuntimeError) and "hash" in reason:
            reason = f"what arrived has another checksum than {checksum} and was deleted; try again"
        what = f"{reason}; give a file, or place it at {path}"
        raise problem(f"cannot download {url}", what) from error
    return path


def _read_openai(path: Path) -> tuple[Dims, dict[str, Tensor]]:
    """Dims and tensors of an OpenAI .pt file, mapped into memory where its format allows."""
    try:
        with path.open("rb") as file:
            is_zip = file.read(4) == b"PK\x03\x04"  # else torch.save's format before 1.6
        payload = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        if "global" in str(error).lower():
            what = "refused, since loading it would run code; save {dims, model_state_dict} alone"
            raise problem(path, what) from error
        raise problem(path, "not a PyTorch checkpoint, or a damaged one; fetch it again") from error
    except Exception as error:  # damaged files fail in torch.load in a dozen ways
        reason = str(error).split("\n")[0][:200] or type(error).__name__
        what = f"not a PyTorch checkpoint, or a truncated one ({reason}); fetch it again"
        raise problem(path, what) from error
    if not isinstance(payload, dict) or not all(
        isinstance(payload.get(key), dict) for key in ("dims", "model_state_dict")
    ):
        what = (
            "not an OpenAI Whisper checkpoint, which holds dims and model_state_dict; for a"
            " Hugging Face model give its folder"
        )
        raise problem(path, what)
    given, state = payload["dims"], payload["model_state_dict"]
    names = [field.name for field in fields(Dims)]
    if set(given) != set(names) or not all(type(value) is int for value in given.values()):
        raise problem(path, f"dims must be the ten whole numbers {', '.join(names)}")
    return Dims(**given), dict(state)


def _checked(name: str, where: object, dims: Dims, state: dict[str, Tensor]) -> Checkpoint:
    """The checkpoint, once everything that later code relies on holds. `where` is its origin."""
    _check_dims(where, dims)
    if len(state) < dims.n_audio_layer + dims.n_text_layer:  # before any list grows with the dims
        raise problem(where, f"{len(state)} tensors are too few for the layers that dims name")
    shapes = expected_shapes(dims)
    # Not in Whisper, but it cancels in the softmax, and folding drops it.
    key_biases = {
        f"{weight.removesuffix('weight')}bias": shape[:1]
        for weight, shape in shapes.items()
        if weight.endswith(".key.weight")
    }
    for what, found in (
        ("is missing", [tensor for tensor in shapes if tensor not in state]),
        ("is not Whisper's", [n for n in state if n not in shapes and n not in key_biases]),
    ):
        if found:
            more = f" ({len(found) - 1} more like it)" if len(found) > 1 else ""
            raise problem(where, f"tensor {found[0]} {what}{more}; give a whole Whisper model")
    shapes |= key_biases
    for tensor_name, tensor in state.items():
        if not isinstance(tensor, Tensor) or tensor.dtype not in _DTYPES or tensor.is_meta:
            kind = getattr(tensor, "dtype", type(tensor).__name__)
            raise problem(where, f"{tensor_name} is {kind}; float16, bfloat16 or float32 work")
        if tuple(tensor.shape) != shapes[tensor_name]:
            sizes = f"has shape {tuple(tensor.shape)}, expected {shapes[tensor_name]}"
            raise problem(where, f"{tensor_name} {sizes} from the dimensions beside it")
        if not torch.isfinite(tensor).all():
            raise problem(
                where, f"{tensor_name} has NaN or infinite weights; fetch or save it again"
            )
    return Checkpoint(name, dims, {key: tensor.detach() for key, tensor in state.items()})


def _check_dims(where: object, dims: Dims) -> None:
    for field, value in asdict(dims).items():
        if value < 1:
            raise problem(where, f"{field} is {value}; it must be positive")
    for side in ("audio", "text"):
        d, heads = getattr(dims, f"n_{side}_state"), getattr(dims, f"n_{side}_head")
        if d % heads:
            raise problem(where, f"n_{side}_state {d} is not divisible by {heads} heads")
    for field, allowed, why in (
        ("n_vocab", (51_864, 51_865, 51_866), "not Whisper's vocabulary"),
        ("n_audio_ctx", (1500,), "not Whisper's window of 30 s"),
        ("n_mels", (80, 128), "not Whisper's mel spectrogram"),
        ("n_text_ctx", range(8, 449), "not Whisper's text length"),
        ("n_text_state", (dims.n_audio_state,), "not the encoder's width"),
    ):
        if (value := getattr(dims, field)) not in allowed:
            works = "8 to 448" if isinstance(allowed, range) else ", ".join(map(str, allowed))
            raise problem(where, f"{field} is {value}, {why}; what works: {works}")
