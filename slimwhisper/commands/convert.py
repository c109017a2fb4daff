"""Runs the `convert` command: writes a model as a .pt file or as a Hugging Face folder.

The new file or folder is read back and compared before it gets its name, so OUT is always complete.
`transformers` loads the folder, with tokenizer and settings: the settings follow from the constants
of Whisper's own code, the tokenizer from OpenAI's files.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.resources import files
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from tokenizers import processors
from torch import Tensor

from slimwhisper.checkpoint.files import OUTPUT, inside, load_error, read_json
from slimwhisper.checkpoint.hugging_face import DIMENSIONS, hugging_face_name
from slimwhisper.checkpoint.load import Checkpoint, head_pairs
from slimwhisper.errors import OptionError, OutputError
from slimwhisper.formats.folders import FFT_SAMPLES, byte_level_tokenizer
from slimwhisper.formats.load import load_checkpoint
from slimwhisper.option_group import TASKS, ModelFacts
from slimwhisper.options import changed_settings
from slimwhisper.text import error_line
from slimwhisper.tokens.encoding import Tokenizer
from slimwhisper.tokens.vocabulary import openai_tokenizer, spelled, suppressed, text_tokens
from slimwhisper.types import HOP_SAMPLES, POSITIONS_PER_SECOND, SAMPLE_RATE, Dims

FOLDER_FILES = (  # settings and tokenizer, beside config.json and the weights
    *("generation_config.json", "preprocessor_config.json", "processor_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "normalizer.json"),
    *("vocab.json", "merges.txt", "added_tokens.json"),
)
# what --overwrite may delete with an old folder, weights aside
MODEL_FILES = (*FOLDER_FILES, "config.json", "model.safetensors.index.json")


class Conversion(NamedTuple):
    """The result of a conversion."""

    path: Path
    dropped: tuple[str, ...]  # settings that slimwhisper reads in it, and openai-whisper does not


def run_convert(arguments: argparse.Namespace) -> int:
    """The `convert` command: `input`, `output`, `dtype`, `overwrite`, `model_dir`, `adapter`."""
    a = arguments
    how = {"overwrite": a.overwrite, "adapter": a.adapter, "download_root": a.model_dir}
    conversion = convert(a.input, a.output, dtype=a.dtype, **how)
    if conversion.dropped:
        unread = f"openai-whisper does not read its {', '.join(conversion.dropped)}"
        remedy = "for the same times of words there, call set_alignment_heads"
        hint = f"; {remedy}" if "alignment_heads" in conversion.dropped else ""
        print(f"slimwhisper: {conversion.path}: {unread}{hint}", file=sys.stderr)
    print(f"{conversion.path}: written, and verified by reading it back")
    return 0


def convert(
    name: str,
    out: str | PathLike[str],
    *,
    dtype: str | None = None,
    overwrite: bool = False,
    adapter: str | PathLike[str] | None = None,
    download_root: str | PathLike[str] | None = None,
) -> Conversion:
    """Write a model as an OpenAI .pt file or as a Hugging Face folder with tokenizer and settings.

    Arguments:
        name: as for `load_checkpoint`.
        out: ends in .pt, or is a folder.
        dtype: "float32", "float16" or "bfloat16"; None: each tensor keeps its own.
        overwrite: replace an existing file, or a folder that has only a model's files.
        adapter: as for `load_checkpoint`; it is merged into the written weights.
        download_root: folder for downloaded models.
    Raises:
        CheckpointError: the model cannot be loaded, or the format cannot store it.
        OptionError: `out` is neither a .pt file nor a folder, or is the model itself.
        OutputError: `out` exists, or cannot be written.
    """
    target = Path(out).expanduser()
    is_file = target.suffix == ".pt"
    if not is_file and target.suffix in (".pth", ".bin", ".safetensors", ".gguf", ".ggml", ".onnx"):
        raise OptionError(f"{target}: {target.suffix} cannot be written; give NAME.pt or a folder")
    _check_target(target, is_file, overwrite)
    if target.exists() and Path(name).exists() and target.samefile(name):
        raise OptionError(f"{target}: is the model itself; choose another output")
    checkpoint = load_checkpoint(name, download_root=download_root, adapter=adapter)
    if is_file:
        _check_format(checkpoint)
    own = own_settings(checkpoint) if is_file else {}
    ready = replace(checkpoint, state=_tensors_to_write(checkpoint, dtype))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".slimwhisper-") as folder:
            new = Path(folder) / target.name
            if is_file:
                content = {"dims": asdict(ready.dims), "model_state_dict": dict(ready.state)}
                torch.save(content | ({"generation_config": own} if own else {}), new)
            else:
                new.mkdir()
                write_folder(ready, new)
            _check_equal(ready, new, is_file)
            _check_target(target, is_file, overwrite)  # hours may have passed
            _move_into_place(new, target, Path(folder))
    except (OSError, RuntimeError, SafetensorError) as error:  # the last two: on a full disk
        reason = f"cannot be written: {error_line(error)}"
        raise OutputError(f"{target}: {reason}; free some space, or choose another") from error
    dropped = tuple(name for name in own if name != "audio_window")
    return Conversion(target, dropped)


def _check_format(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError if a .pt file cannot store something without which the words would
    differ.
    """
    name = checkpoint.name
    if OUTPUT in checkpoint.state:
        what = f"its output matrix, {OUTPUT}, is not the token embedding"
        raise load_error(f"{name}: {what}, and a .pt file has one for both; keep the folder")
    if not checkpoint.tokens.is_whispers:
        what = "its tokenizer is not OpenAI's, and a .pt file cannot store one"
        raise load_error(f"{name}: {what}; keep the folder")


def _tensors_to_write(checkpoint: Checkpoint, dtype: str | None) -> dict[str, Tensor]:
    """The tensors to write, in their dtype, each with storage of its own.

    Biases of keys are left out: neither format has them, and they cancel in the softmax.
    """
    number = None if dtype is None else getattr(torch, dtype)
    state: dict[str, Tensor] = {}
    for name, tensor in checkpoint.state.items():
        if name.endswith(".key.bias"):
            continue
        converted = tensor.contiguous() if number is None else tensor.to(number).contiguous()
        if not bool(torch.isfinite(converted).all()):
            what = f"{name} has numbers beyond the range of {dtype}"
            raise load_error(f"{checkpoint.name}: {what}; choose --dtype bfloat16 or float32")
        whole = converted.untyped_storage().nbytes() == converted.nbytes
        state[name] = converted if whole else converted.clone()
    return state


def _check_target(target: Path, is_file: bool, overwrite: bool) -> None:
    """Raise OutputError unless `target` is free or may be replaced."""
    if not target.exists() and not target.is_symlink():
        return
    empty = not is_file and target.is_dir() and not any(target.iterdir())
    if not (overwrite or empty):
        raise OutputError(f"{target}: already exists; choose another output, or add --overwrite")
    if target.is_symlink():
        raise OutputError(f"{target}: is a link; give the path that it points to")
    if not (target.is_file() if is_file else target.is_dir()):
        kind = "file" if is_file else "folder"
        raise OutputError(f"{target}: is not a {kind} and is not replaced; choose another output")
    for file in () if is_file else target.iterdir():
        deletable = file.name in MODEL_FILES or file.suffix == ".safetensors"
        if not (deletable and file.is_file()):
            what = f"also contains {file.name}, which --overwrite would delete"
            raise OutputError(f"{target}: {what}; choose another output, or move that file")


def _check_equal(ready: Checkpoint, written: Path, is_file: bool) -> None:
    """Raise OutputError unless the written model reads back as the same."""
    checkpoint = load_checkpoint(written)
    same = checkpoint.dims == ready.dims and set(checkpoint.state) == set(ready.state)
    same = same and checkpoint.alignment_heads == ready.alignment_heads
    if not same or not all(_equal(t, checkpoint.state[name]) for name, t in ready.state.items()):
        what = f"does not read back as {ready.name} and was deleted"
        raise OutputError(f"{written.name}: the written file {what}; check the disk")


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)


def _move_into_place(new: Path, target: Path, folder: Path) -> None:
    """Give `new` its name. A folder in its place goes to `place`, and back if that fails."""
    if not target.is_dir():
        new.replace(target)
        return
    old = folder / "old"
    target.replace(old)
    try:
        new.replace(target)
    except OSError:
        old.replace(target)
        raise


END, START = "<|endoftext|>", "<|startoftranscript|>"
NO_TIMESTAMPS, FIRST_TIMESTAMP = "<|notimestamps|>", "<|0.00|>"
PLAIN = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
ENDS = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), END)


def merge_of(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes] | None:
    """The two tokens whose merge makes this one; None for a single byte, or if none does.

    Byte-pair encoding merges the neighbours of lowest rank first, so the last merge that leads to
    the token is found by encoding it with the tokens of lower rank.
    """
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pair_ranks = [ranks.get(a + b, len(ranks)) for a, b in pairwise(parts)]
        lowest = min(pair_ranks)
        if lowest >= ranks[token]:
            return None
        i = pair_ranks.index(lowest)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return (parts[0], parts[1]) if len(parts) == 2 else None


def tokenizer_files(tokenizer: Tokenizer, n_text_ctx: int) -> dict[str, str]:
    """File name -> content: the tables, in the formats that old and new `transformers` read."""
    texts = text_tokens(tokenizer)
    ranks = {token: i for i, token in enumerate(texts)}
    pairs = (merge_of(token, ranks) for token in texts)
    merges = [(spelled(a), spelled(b)) for a, b in filter(None, pairs)]
    special = tokenizer.special_tokens  # in the order of their ids
    vocabulary = {spelled(token): i for i, token in enumerate(texts)} | {END: special[END]}
    controls = [token for token, i in special.items() if i < special[FIRST_TIMESTAMP]]
    fast = byte_level_tokenizer(vocabulary, merges, {t: t in controls for t in special})
    fast.post_processor = processors.TemplateProcessing(
        single=f"{START} {NO_TIMESTAMPS} $A {END}",
        pair=f"{START} {NO_TIMESTAMPS} $A $B:1 {END}",
        special_tokens=[(token, special[token]) for token in (START, NO_TIMESTAMPS, END)],
    )
    added = {i: PLAIN | {"content": t, "special": t in controls} for t, i in special.items()}
    configuration = ENDS | {
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": controls,
        "clean_up_tokenization_spaces": False,  # whisper's texts are not cleaned up
        "errors": "replace",
        "model_max_length": n_text_ctx,
        "processor_class": "WhisperProcessor",
        "return_attention_mask": False,
        "tokenizer_class": "WhisperTokenizer",
    }
    written = {
        "vocab.json": json.dumps(vocabulary, ensure_ascii=False),
        "merges.txt": "\n".join(["#version: 0.2", *(" ".join(pair) for pair in merges), ""]),
        "added_tokens.json": _pretty({t: i for t, i in special.items() if t != END}),
        "special_tokens_map.json": _pretty(ENDS | {"additional_special_tokens": controls}),
        "tokenizer_config.json": _pretty(configuration),
        "tokenizer.json": fast.to_str(),
    }
    with suppress(ModuleNotFoundError):  # openai-whisper's spellings, for scores of texts alone
        spellings = files("whisper.normalizers").joinpath("english.json")
        written["normalizer.json"] = spellings.read_text(encoding="utf-8")
    return written


def _pretty(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"


def model_settings(dims: Dims, tokenizer: Tokenizer, dtype: str, tied: bool) -> dict[str, Any]:
    """config.json. dtype: such as "float16"."""
    sizes = {key: getattr(dims, field) for field, key in DIMENSIONS.items()}
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), tokenizer.eot)
    return {
        **sizes,
        **ends,
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "activation_function": "gelu",
        "decoder_ffn_dim": 4 * dims.n_text_state,
        "decoder_start_token_id": tokenizer.sot,
        "encoder_ffn_dim": 4 * dims.n_audio_state,
        "is_encoder_decoder": True,
        "num_hidden_layers": dims.n_audio_layer,
        "scale_embedding": False,
        "tie_word_embeddings": tied,
        "torch_dtype": dtype,  # new versions of transformers know this older name too
        "use_cache": True,
    }


def own_settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """What a model's generation_config.json has that Whisper's own has not."""
    settings, heads = checkpoint.settings, checkpoint.alignment_heads
    own: dict[str, Any] = {} if heads is None else {"alignment_heads": head_pairs(heads)}
    facts = ModelFacts(checkpoint.name, checkpoint.dims, checkpoint.tokens, settings)
    for row in changed_settings(facts):
        value = getattr(settings, row.name, row.value)
        own[row.name] = list(value) if isinstance(value, tuple) else value
    own.pop("forced_decoder_ids", None)  # what is followed of them is the language and the task
    return own


def generation_settings(dims: Dims, tokenizer: Tokenizer) -> dict[str, Any]:
    """generation_config.json: the rules of `whisper.decode` with its defaults."""
    special = tokenizer.special_tokens
    multilingual = tokenizer.language is not None
    never, never_first = suppressed(tokenizer)
    settings: dict[str, Any] = {
        "begin_suppress_tokens": list(never_first),
        "bos_token_id": tokenizer.eot,
        "decoder_start_token_id": tokenizer.sot,
        "eos_token_id": tokenizer.eot,
        "is_multilingual": multilingual,
        "max_initial_timestamp_index": 50,  # 1 s, in steps of 20 ms
        "max_length": dims.n_text_ctx,
        "no_timestamps_token_id": special[NO_TIMESTAMPS],
        "pad_token_id": tokenizer.eot,
        "prev_sot_token_id": tokenizer.sot_prev,
        "return_timestamps": False,
        "suppress_tokens": list(never),
    }
    if multilingual:
        codes = tokenizer.all_language_codes
        settings["lang_to_id"] = {f"<|{code}|>": special[f"<|{code}|>"] for code in codes}
        settings["task_to_id"] = {task: getattr(tokenizer, task) for task in TASKS}
    assert special[FIRST_TIMESTAMP] == special[NO_TIMESTAMPS] + 1  # transformers relies on it
    return settings


def feature_settings(dims: Dims) -> dict[str, Any]:
    """preprocessor_config.json: Whisper's spectrogram."""
    frames = 2 * dims.n_audio_ctx  # the encoder halves them
    samples = frames * HOP_SAMPLES
    return {
        "chunk_length": samples // SAMPLE_RATE,  # seconds
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": dims.n_mels,
        "hop_length": HOP_SAMPLES,
        "n_fft": FFT_SAMPLES,
        "n_samples": samples,
        "nb_max_frames": frames,
        "padding_side": "right",
        "padding_value": 0.0,
        "processor_class": "WhisperProcessor",
        "return_attention_mask": False,
        "sampling_rate": SAMPLE_RATE,
    }


SHARD_BYTES = 5_000_000_000  # of weights, at most, in one file


def write_folder(checkpoint: Checkpoint, folder: Path) -> None:
    """Write the checkpoint's weights, settings and tokenizer to an empty folder.

    Settings and tokenizer are copied from the Hugging Face folder that it was read from; of other
    formats they are Whisper's own. Weights beyond SHARD_BYTES go to several files and an index.
    Raises CheckpointError for a model whose tokens, or whose window, a folder cannot name.
    """
    from huggingface_hub import save_torch_state_dict

    state = checkpoint.state
    source = checkpoint.folder
    contents = _openai_contents(checkpoint) if source is None else _copied(checkpoint, source)
    named = {hugging_face_name(name): tensor.contiguous() for name, tensor in state.items()}
    save_torch_state_dict(named, folder, max_shard_size=SHARD_BYTES, metadata={"format": "pt"})
    for name, text in contents.items():
        (folder / name).write_text(text, encoding="utf-8")
    mode = (folder / "config.json").stat().st_mode  # safetensors hides its files from others
    for file in folder.glob("*.safetensors"):
        file.chmod(mode)


def _openai_contents(checkpoint: Checkpoint) -> dict[str, str]:
    """File name -> content: OpenAI's tokenizer, and Whisper's settings."""
    dims = checkpoint.dims
    tokenizer = openai_tokenizer(dims)
    if tokenizer is None:
        what = f"a vocabulary of {dims.n_vocab} tokens is not OpenAI's, and a file has no tokenizer"
        raise load_error(f"{checkpoint.name}: {what}; give the folder that it was made from")
    if dims.n_audio_ctx % POSITIONS_PER_SECOND:
        what = f"its window of {dims.n_audio_ctx} frames of 20 ms is not a whole number of seconds"
        raise load_error(f"{checkpoint.name}: {what}; write a .pt file")
    dtype, tied = _dtype(checkpoint.state), OUTPUT not in checkpoint.state
    settings = {
        "config.json": model_settings(dims, tokenizer, dtype, tied),
        "generation_config.json": generation_settings(dims, tokenizer) | own_settings(checkpoint),
        "preprocessor_config.json": feature_settings(dims),
    }
    contents = {name: json.dumps(content, indent=2) + "\n" for name, content in settings.items()}
    return contents | tokenizer_files(tokenizer, dims.n_text_ctx)


def _copied(checkpoint: Checkpoint, source: Path) -> dict[str, str]:
    """File name -> content: the source's, with config.json adapted to the weights.

    If its tokens are OpenAI's, missing tokenizer files, as in some downloads, are added.
    """
    config = read_json(inside(source, "config.json"))
    config["dtype" if "dtype" in config else "torch_dtype"] = _dtype(checkpoint.state)
    config["tie_word_embeddings"] = OUTPUT not in checkpoint.state
    config["vocab_size"] = checkpoint.dims.n_vocab
    files = [inside(source, name) for name in FOLDER_FILES]
    contents = {file.name: file.read_text(encoding="utf-8") for file in files if file.is_file()}
    dims = checkpoint.dims
    tokenizer = openai_tokenizer(dims)
    if tokenizer is not None and checkpoint.tokens.is_whispers:
        contents = tokenizer_files(tokenizer, dims.n_text_ctx) | contents
    return contents | {"config.json": json.dumps(config, indent=2) + "\n"}


def _dtype(state: Mapping[str, Tensor]) -> str:
    """The dtype that can store every weight; float32 for both float16 and bfloat16."""
    kinds = {tensor.dtype for tensor in state.values()}
    if kinds >= {torch.float16, torch.bfloat16}:
        kinds.add(torch.float32)
    return str(max(kinds, key=lambda kind: kind.itemsize)).removeprefix("torch.")
