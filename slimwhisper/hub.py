"""Hugging Face checkpoints: ids and folders with config.json and safetensors."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from slimwhisper.errors import CheckpointError
from slimwhisper.types import Dims

DISTIL_IDS = {
    name: f"distil-whisper/{name}"
    for name in (
        "distil-small.en",
        "distil-medium.en",
        "distil-large-v2",
        "distil-large-v3",
        "distil-large-v3.5",
    )
}
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

_DIMS = {
    "n_mels": "num_mel_bins",
    "n_audio_ctx": "max_source_positions",
    "n_audio_state": "d_model",
    "n_audio_head": "encoder_attention_heads",
    "n_audio_layer": "encoder_layers",
    "n_vocab": "vocab_size",
    "n_text_ctx": "max_target_positions",
    "n_text_state": "d_model",
    "n_text_head": "decoder_attention_heads",
    "n_text_layer": "decoder_layers",
}
_RENAMED = (  # Hugging Face's part of a tensor's name, OpenAI's
    (r"\.layers\.", ".blocks."),
    (r"\.self_attn_layer_norm\.", ".attn_ln."),
    (r"\.encoder_attn_layer_norm\.", ".cross_attn_ln."),
    (r"\.final_layer_norm\.", ".mlp_ln."),
    (r"\.self_attn\.", ".attn."),
    (r"\.encoder_attn\.", ".cross_attn."),
    (r"\.q_proj\.", ".query."),
    (r"\.k_proj\.", ".key."),
    (r"\.v_proj\.", ".value."),
    (r"\.out_proj\.", ".out."),
    (r"\.fc1\.", ".mlp.0."),
    (r"\.fc2\.", ".mlp.2."),
    (r"^encoder\.layer_norm\.", "encoder.ln_post."),
    (r"^decoder\.layer_norm\.", "decoder.ln."),
    (r"\.embed_tokens\.", ".token_embedding."),
    (r"\.embed_positions\.weight$", ".positional_embedding"),
)


def looks_like_hub_id(name: str) -> bool:
    """Whether a name has the form "organisation/model"."""
    return re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None and ".." not in name


def openai_name(name: str) -> str:
    """Hugging Face's tensor name -> OpenAI's."""
    name = name.removeprefix("model.")
    for pattern, replacement in _RENAMED:
        name = re.sub(pattern, replacement, name)
    return name


def fetch_hub(repository: str, local_files_only: bool) -> Path:
    """The local folder of a hub model's config and weights; downloads what is not in the cache."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

    def fetch(file: str) -> Path:
        return Path(hf_hub_download(repository, file, local_files_only=local_files_only))

    try:
        config = fetch("config.json")
        try:
            fetch(WEIGHTS)
        except LocalEntryNotFoundError:
            if not local_files_only:
                raise
            _fetch_shards(fetch)
        except EntryNotFoundError:
            _fetch_shards(fetch)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"cannot fetch {repository!r} from the Hugging Face hub: {reason} "
            "(give a local folder or .pt file instead)"
        ) from error
    return config.parent


def _fetch_shards(fetch: Any) -> None:
    index = fetch(INDEX)
    for shard in sorted(set(_read_json(index)["weight_map"].values())):
        fetch(shard)


def read_folder(folder: Path) -> tuple[Dims, Mapping[str, Tensor]]:
    """config.json and model.safetensors, or its shards, under OpenAI's names; memory-mapped."""
    config = folder / "config.json"
    if not config.is_file():
        raise CheckpointError(
            f"{folder}: no config.json; give a Hugging Face Whisper folder or an OpenAI .pt file"
        )
    dims = _read_dims(config)
    state: dict[str, Tensor] = {}
    for file in _weight_files(folder):
        for name, tensor in _read_safetensors(file).items():
            state[openai_name(name)] = tensor
    state.pop("proj_out.weight", None)  # tied to the token embedding
    return dims, state


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: cannot be read as JSON; copy it again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file}: is not a JSON object; copy it again")
    return content


def _read_dims(config: Path) -> Dims:
    content = _read_json(config)
    kind = content.get("model_type")
    if kind != "whisper":
        raise CheckpointError(f"{config}: model_type is {kind!r}, not 'whisper'")
    values = {ours: content.get(theirs) for ours, theirs in _DIMS.items()}
    for ours, value in values.items():
        if type(value) is not int or value < 1:
            raise CheckpointError(f"{config}: {_DIMS[ours]} is {value!r}, not a positive number")
    return Dims(**{ours: int(value) for ours, value in values.items() if value is not None})


def _weight_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    index = folder / INDEX
    if not index.is_file():
        if any(folder.glob("*.bin")):
            raise CheckpointError(
                f"{folder}: has pickled weights (.bin) alone, which could run code; convert them "
                "with transformers: save_pretrained(folder, safe_serialization=True)"
            )
        raise CheckpointError(f"{folder}: no {WEIGHTS} and no {INDEX}; download the model again")
    shards = _read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise CheckpointError(f"{index}: has no 'weight_map'; download the model again")
    files = [folder / str(name) for name in sorted(set(map(str, shards.values())))]
    for file in files:
        if file.parent != folder:
            raise CheckpointError(f"{index}: names a shard outside its folder: {file.name}")
        if not file.is_file():
            raise CheckpointError(f"{file}: shard is missing; download the model again")
    return files


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{file}: truncated, damaged or no safetensors file; copy or download it again"
        ) from error
