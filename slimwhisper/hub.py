"""Hugging Face models: a folder or a hub id -> (dims, tensors under OpenAI's names).

Knows the layout that `save_pretrained` writes and the hub's cache; whether the tensors fit the
dims is `checkpoint.py`'s to say. Pickles (`pytorch_model.bin`) are never opened.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slimwhisper.errors import CheckpointError
from slimwhisper.types import Dims

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

_PICKLES = (
    "; pickled weights (pytorch_model.bin) are refused, since opening them can run code: convert"
    " them with transformers' save_pretrained(..., safe_serialization=True)"
)
_ATTENTION = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "out"}
_LAYER_PARTS = {
    **{f"self_attn.{theirs}": f"attn.{ours}" for theirs, ours in _ATTENTION.items()},
    **{f"encoder_attn.{theirs}": f"cross_attn.{ours}" for theirs, ours in _ATTENTION.items()},
    "self_attn_layer_norm": "attn_ln",
    "encoder_attn_layer_norm": "cross_attn_ln",
    "fc1": "mlp.0",
    "fc2": "mlp.2",
    "final_layer_norm": "mlp_ln",
}
_TOP_PARTS = {
    "encoder.embed_positions.weight": "encoder.positional_embedding",
    "decoder.embed_positions.weight": "decoder.positional_embedding",
    "decoder.embed_tokens.weight": "decoder.token_embedding.weight",
    "encoder.layer_norm.weight": "encoder.ln_post.weight",
    "encoder.layer_norm.bias": "encoder.ln_post.bias",
    "decoder.layer_norm.weight": "decoder.ln.weight",
    "decoder.layer_norm.bias": "decoder.ln.bias",
}
_DIMS_FROM_CONFIG = {
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


def problem(where: object, what: str) -> CheckpointError:
    """The one line that users read; library messages inside it may have held line breaks."""
    return CheckpointError(" ".join(f"{where}: {what}".split()))


def read_folder(folder: Path) -> tuple[Dims, dict[str, Tensor]]:
    """Dims and tensors of a folder with config.json and safetensors, one file or shards.

    Raises CheckpointError where a file is missing or cannot be read.
    """

    def locate(file: str) -> Path | None:
        return folder / file if (folder / file).is_file() else None

    if locate(CONFIG) is None:
        found = sorted(folder.glob("*.pt"))
        hint = f"; to load {found[0].name}, give that file" if found else ""
        raise problem(folder, f"this folder has no {CONFIG}, as Hugging Face models do{hint}")
    pickled = any(folder.glob("pytorch_model*.bin*"))
    return _read(folder, locate, no_weights=_PICKLES if pickled else "")


def read_repository(repo_id: str, *, local_files_only: bool) -> tuple[Dims, dict[str, Tensor]]:
    """Dims and tensors of a hub model, through the hub's own cache (HF_HUB_CACHE, HF_HOME).

    Raises CheckpointError where it cannot be downloaded, or is not cached and nothing may be
    downloaded (`local_files_only`, or HF_HUB_OFFLINE in the environment).
    """
    from huggingface_hub import constants, errors, hf_hub_download

    offline = local_files_only or bool(constants.HF_HUB_OFFLINE)

    def locate(file: str) -> Path | None:
        try:
            return Path(hf_hub_download(repo_id, file, local_files_only=offline))
        except errors.GatedRepoError as error:
            what = "access must be granted on huggingface.co, then `hf auth login`"
            raise problem(f"cannot download {repo_id}", what) from error
        except errors.RepositoryNotFoundError as error:
            what = "no such model on the hub (or a private one), and no such file or folder here"
            raise problem(f"cannot download {repo_id}", what) from error
        except errors.EntryNotFoundError as error:
            # Raised for a file that the model lacks, but also when the network fails.
            if offline or not isinstance(error, errors.LocalEntryNotFoundError):
                return None
            raise _no_download(repo_id, file, error.__cause__ or error) from error
        except Exception as error:  # the hub's HTTP stack has no common base class
            raise _no_download(repo_id, file, error) from error

    not_cached = (
        f" in the hub's cache, {constants.HF_HUB_CACHE}, and downloads are off"
        " (local_files_only or HF_HUB_OFFLINE); run once with them on, or give a folder"
    )
    if locate(CONFIG) is None:
        hint = not_cached if offline else ", as Hugging Face's Whisper models do"
        raise problem(repo_id, f"there is no {CONFIG}{hint}")
    return _read(repo_id, locate, no_weights=not_cached if offline else _PICKLES)


def _no_download(repo_id: str, file: str, reason: BaseException) -> CheckpointError:
    text = str(reason) or type(reason).__name__
    return problem(f"cannot download {file} of {repo_id}", f"{text}; or give a folder that has it")


def _read(
    where: object, locate: Callable[[str], Path | None], *, no_weights: str
) -> tuple[Dims, dict[str, Tensor]]:
    """`locate` gives a file's path, or None where there is none; config.json was found before."""
    config_path = locate(CONFIG)
    assert config_path is not None
    dims = dims_from_config(config_path, _read_json(config_path))
    if (single := locate(WEIGHTS)) is not None:
        return dims, to_openai(where, _read_safetensors(single))
    if (index := locate(INDEX)) is None:
        raise problem(where, f"there is no {WEIGHTS} (nor {INDEX}){no_weights}")
    weight_map = _read_json(index).get("weight_map")
    # Only plain names: an index must not reach files outside its folder.
    if not isinstance(weight_map, dict) or not all(
        isinstance(file, str) and file == Path(file).name for file in weight_map.values()
    ):
        raise problem(index, "weight_map does not map tensor names to the files beside it")
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(weight_map.values())):
        if (shard := locate(file)) is None:
            raise problem(where, f"shard {file} is missing, which {INDEX} lists; fetch it again")
        tensors |= _read_safetensors(shard)
    return dims, to_openai(where, tensors)


def dims_from_config(where: object, config: dict[str, Any]) -> Dims:
    """The ten dimensions in a config.json; `where` is its path, for messages.

    Raises CheckpointError for another model type, or a setting that Whisper does not have.
    """
    if config.get("model_type") != "whisper":
        kind = config.get("model_type")
        raise problem(where, f"model_type is {kind!r}; only 'whisper' models can be loaded")
    if config.get("activation_function", "gelu") != "gelu" or config.get("scale_embedding"):
        raise problem(where, "activation_function must be 'gelu' and scale_embedding false")
    for key in _DIMS_FROM_CONFIG.values():
        if type(config.get(key)) is not int:
            raise problem(where, f"{key} is {config.get(key)!r}; a whole number was expected")
    return Dims(**{field: config[key] for field, key in _DIMS_FROM_CONFIG.items()})


def to_openai(where: object, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under OpenAI's names; names that Whisper does not have are kept as found.

    The output matrix is dropped, being the token embedding. Raises CheckpointError where it is
    not, and where two tensors claim one name.
    """
    state: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        converted = _openai_name(name)
        if converted in state:
            raise problem(where, f"two tensors for {converted}; one of them is {name}")
        state[converted] = tensor
    output = state.pop("proj_out.weight", None)
    if output is not None:
        embedding = state.setdefault("decoder.token_embedding.weight", output)
        if not torch.equal(output, embedding):
            raise problem(
                where, "proj_out.weight differs from the token embedding; Whisper's is tied"
            )
    return state


def _openai_name(name: str) -> str:
    short = name.removeprefix("model.")
    if match := re.fullmatch(r"(encoder|decoder)\.layers\.(\d+)\.(.+)\.(weight|bias)", short):
        side, layer, part, kind = match.groups()
        if part in _LAYER_PARTS:
            return f"{side}.blocks.{layer}.{_LAYER_PARTS[part]}.{kind}"
    return _TOP_PARTS.get(short, short)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise problem(path, f"cannot be read as JSON: {error}; fetch it again") from error
    if not isinstance(content, dict):
        raise problem(path, "is no JSON object; fetch it again")
    return content


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path, device="cpu")
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        what = f"truncated or damaged safetensors file ({error}); delete it and fetch it again"
        raise problem(path, what) from error
