"""Hugging Face checkpoints: ids and folders with config.json and safetensors."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slimwhisper.checkpoint.errors import problem
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
OPTIONAL = (  # settings and tokenizer: a file, and those that older or newer models have instead
    ("generation_config.json", ()),
    ("preprocessor_config.json", ("processor_config.json",)),
    (
        "tokenizer.json",
        ("vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json"),
    ),
)
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES_REFUSED = (
    "pickled weights, .bin, could run code and are refused; convert them "
    "with transformers: save_pretrained(folder, safe_serialization=True)"
)

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
    """Whether a name looks like "organisation/model" and not like a path."""
    part = r"[A-Za-z0-9][\w.-]*"
    is_file = name.endswith((".pt", ".pth", ".bin", ".safetensors"))
    return re.fullmatch(f"{part}/{part}", name) is not None and ".." not in name and not is_file


def openai_name(name: str) -> str:
    """Hugging Face's tensor name -> OpenAI's."""
    name = name.removeprefix("model.")
    for pattern, replacement in _RENAMED:
        name = re.sub(pattern, replacement, name)
    return name


def fetch_hub(repository: str, local_files_only: bool) -> Path:
    """The local folder of a hub model's config and weights; downloads what is not in the cache.

    All files have the revision of config.json. For a revision that is completely cached, only
    config.json is looked up on the network, and it loads without the network too.

    Raises CheckpointError if that fails, or if something is not cached and downloads are disabled
    by `local_files_only` or by HF_HUB_OFFLINE in the environment.
    """
    from huggingface_hub import constants, errors, hf_hub_download, try_to_load_from_cache

    offline = local_files_only or bool(constants.HF_HUB_OFFLINE)

    def fetch(file: str, revision: str | None = None) -> Path | None:
        """None: the model has no such file or, offline, the cache does not have it."""
        try:
            if offline:  # the download function may use the network even with local_files_only
                cached = try_to_load_from_cache(repository, file, revision=revision)
                return Path(cached) if isinstance(cached, str) else None
            return Path(hf_hub_download(repository, file, revision=revision))
        except errors.GatedRepoError as error:
            reason = "access has to be granted on huggingface.co, then `hf auth login`"
            raise _no_fetch(repository, reason) from error
        except errors.RepositoryNotFoundError as error:
            reason = "no such model there (or a private one), and no such file or folder here"
            raise _no_fetch(repository, reason) from error
        except errors.EntryNotFoundError as error:
            # Also raised if the network fails and the file is not cached; the cause says why.
            if not isinstance(error, errors.LocalEntryNotFoundError):
                return None
            raise _no_fetch(repository, f"{error.__cause__ or error}") from error
        except Exception as error:  # the hub's HTTP errors have no base class of their own
            raise _no_fetch(repository, f"{error}" or type(error).__name__) from error

    def lacks(file: str) -> CheckpointError:
        where = f"its cache ({constants.HF_HUB_CACHE}), and downloads are off"
        return _no_fetch(repository, f"no {file} in {where if offline else 'the model'}")

    if (config := fetch("config.json")) is None:
        raise lacks("config.json")
    folder, revision = config.parent, config.parent.name
    for name, others in OPTIONAL:  # without them, Whisper's own tokens and settings serve
        with suppress(CheckpointError):
            if fetch(name, revision) is None:
                for other in others:
                    fetch(other, revision)
    if (folder / WEIGHTS).is_file():
        return folder
    index = folder / INDEX
    if not index.is_file():
        if fetch(WEIGHTS, revision) is not None:
            return folder
        if fetch(INDEX, revision) is None:
            raise lacks(WEIGHTS if offline else f"{WEIGHTS} ({PICKLES_REFUSED})")
    for shard in _shards(index):
        if fetch(shard, revision) is None:
            raise lacks(shard)
    return folder


def _no_fetch(repository: str, reason: str) -> CheckpointError:
    return problem(
        f"cannot fetch {repository!r} from the Hugging Face hub: {' '.join(reason.split())} "
        "(give a local folder or .pt file instead)"
    )


def read_folder(folder: Path) -> tuple[Dims, Mapping[str, Tensor]]:
    """config.json and model.safetensors, or its shards: OpenAI's name -> tensor, memory-mapped.

    Shapes as in `validate.expected_shapes`: matrices [out, in].
    """
    config = folder / "config.json"
    if not config.is_file():
        raise problem(
            f"{folder}: no config.json; give a Hugging Face Whisper folder or an OpenAI .pt file"
        )
    dims = _read_dims(config)
    state: dict[str, Tensor] = {}
    for file in _weight_files(folder):
        for name, tensor in _read_safetensors(file).items():
            ours = openai_name(name)
            if ours in state:
                raise problem(f"{file}: has {ours} a second time, as {name}; save it again")
            state[ours] = tensor
    output = state.pop("proj_out.weight", None)
    if output is not None:  # tied weights: a file may have either or both
        embedding = state.setdefault("decoder.token_embedding.weight", output)
        if output.dtype != embedding.dtype or not torch.equal(output, embedding):
            raise problem(
                f"{folder}: proj_out.weight differs from the token embedding; Whisper has one "
                "matrix for both"
            )
    return dims, state


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except PermissionError as error:
        raise problem(f"{file}: permission denied; give this user the right") from error
    except (OSError, ValueError, RecursionError) as error:
        raise problem(f"{file}: cannot be read as JSON; copy it again") from error
    if not isinstance(content, dict):
        raise problem(f"{file}: is not a JSON object; copy it again")
    return content


def _read_dims(config: Path) -> Dims:
    content = _read_json(config)
    kind = content.get("model_type")
    if kind != "whisper":
        raise problem(
            f"{config}: model_type is {kind!r}, not 'whisper'; other models cannot be run"
        )
    for key, whispers in (("activation_function", "gelu"), ("scale_embedding", False)):
        if content.get(key, whispers) != whispers:
            raise problem(
                f"{config}: {key} is {content[key]!r}, and only Whisper's {whispers!r} can be run"
            )
    values = {ours: content.get(theirs) for ours, theirs in _DIMS.items()}
    for ours, value in values.items():
        if type(value) is not int or value < 1:
            raise problem(
                f"{config}: {_DIMS[ours]} is {value!r}, not a positive whole number; copy it again"
            )
    return Dims(**{ours: int(value) for ours, value in values.items() if value is not None})


def _weight_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    index = folder / INDEX
    if not index.is_file():
        if any(folder.glob("*.bin")):
            raise problem(f"{folder}: no {WEIGHTS}; {PICKLES_REFUSED}")
        raise problem(f"{folder}: no {WEIGHTS} and no {INDEX}; download the model again")
    files = [folder / name for name in _shards(index)]
    for file in files:
        if not file.is_file():
            raise problem(f"{file}: shard is missing; download the model again")
    return files


def _shards(index: Path) -> list[str]:
    """The file names in an index, without folders, so that no index reaches outside its own."""
    shards = _read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise problem(f"{index}: has no 'weight_map'; download the model again")
    for name in shards.values():
        if not isinstance(name, str) or not name.endswith(".safetensors") or "/" in name:
            raise problem(
                f"{index}: {name!r} is no safetensors file of its folder; download the model again"
            )
    return sorted(set(shards.values()))


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    """name -> tensor [...]."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)  # mapped, not read
    except PermissionError as error:
        raise problem(f"{file}: permission denied; give this user the right") from error
    except (SafetensorError, OSError, ValueError, KeyError, AttributeError) as error:
        raise problem(
            f"{file}: truncated, damaged or no safetensors file; copy or download it again"
        ) from error
