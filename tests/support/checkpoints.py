"""Shapes for random checkpoints, writers of both file formats, and what every loading test asks."""

import json
import re
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from slimwhisper.checkpoint.files import OUTPUT
from slimwhisper.checkpoint.load import GenerationSettings
from slimwhisper.commands.random_weights import random_state as random_state
from slimwhisper.errors import CheckpointError
from slimwhisper.formats.load import load_checkpoint
from slimwhisper.option_group import ModelFacts
from slimwhisper.tokens.vocabulary import get_vocabulary
from slimwhisper.types import Dims

State = dict[str, Tensor]
COMMIT = "0123456789abcdef0123456789abcdef01234567"  # on the hub
HUGGING_FACE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


def tiny_dims(
    *,
    multilingual: bool = True,
    width: int = 64,
    heads: int = 1,
    audio_layers: int = 1,
    text_layers: int = 2,
    n_mels: int = 80,
    n_text_ctx: int = 448,
) -> Dims:
    """Dimensions of a small model with Whisper's vocabulary; its head width is width / heads."""
    return Dims(
        n_mels=n_mels,
        n_audio_ctx=1500,
        n_audio_state=width,
        n_audio_head=heads,
        n_audio_layer=audio_layers,
        n_vocab=(51_866 if n_mels == 128 else 51_865) if multilingual else 51_864,
        n_text_ctx=n_text_ctx,
        n_text_state=width,
        n_text_head=heads,
        n_text_layer=text_layers,
    )


# Eight wide: the vocabulary alone would make wider files large.
DIMS = tiny_dims(width=8, audio_layers=1, text_layers=1)


def save_openai(path: Path, dims: Dims, state: dict[str, Tensor]) -> Path:
    """Write an OpenAI checkpoint."""
    torch.save({"dims": asdict(dims), "model_state_dict": state}, path)
    return path


def save_hf(
    folder: Path, dims: Dims, state: dict[str, Tensor], shards: int = 1, pickled: bool = False
) -> Path:
    """Write a folder as `save_pretrained` does: config.json and one or more files of weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf_config(dims), indent=2))
    tensors = {hf_name(name): tensor.contiguous() for name, tensor in state.items()}

    def save(part: State, file: str) -> None:
        if pickled:
            torch.save(part, folder / file)
        else:
            save_file(part, folder / file, metadata={"format": "pt"})

    stem, suffix = ("pytorch_model", "bin") if pickled else ("model", "safetensors")
    if shards == 1:
        save(tensors, f"{stem}.{suffix}")
        return folder
    files = {
        name: f"{stem}-{1 + i % shards:05}-of-{shards:05}.{suffix}"
        for i, name in enumerate(tensors)
    }
    for file in set(files.values()):
        save({name: tensors[name] for name in files if files[name] == file}, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": files}
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index, indent=2))
    return folder


def hf_config(dims: Dims) -> dict[str, Any]:
    """The part of Hugging Face's config.json that gives the dimensions."""
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "num_mel_bins": dims.n_mels,
        "max_source_positions": dims.n_audio_ctx,
        "d_model": dims.n_text_state,
        "encoder_attention_heads": dims.n_audio_head,
        "encoder_layers": dims.n_audio_layer,
        "vocab_size": dims.n_vocab,
        "max_target_positions": dims.n_text_ctx,
        "decoder_attention_heads": dims.n_text_head,
        "decoder_layers": dims.n_text_layer,
    }


def hf_name(name: str) -> str:
    """Hugging Face's name of the tensor that OpenAI calls `name`."""
    if match := re.fullmatch(r"(\w+)\.blocks\.(\d+)\.(.+)\.(weight[12]?|bias)", name):
        side, layer, part, kind = match.groups()
        return f"model.{side}.layers.{layer}.{HUGGING_FACE['parts'][part]}.{kind}"
    return name if name == OUTPUT else f"model.{HUGGING_FACE['top'].get(name, name)}"


def fill_cache(cache: Path, repo_id: str, source: Path) -> Path:
    """A folder's files in the hub's cache, as its download lays them: links to blobs."""
    repository = cache / f"models--{repo_id.replace('/', '--')}"
    snapshot, blobs = repository / "snapshots" / COMMIT, repository / "blobs"
    for folder in (repository / "refs", snapshot, blobs):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    for file in source.iterdir():
        shutil.copy(file, blobs / f"{file.name}-hash")
        (snapshot / file.name).symlink_to(Path("../../blobs") / f"{file.name}-hash")
    return snapshot


def refusal(name: str | Path, **arguments: Any) -> str:
    """The message of the CheckpointError that loading raises: one line."""
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(name, **arguments)
    message = str(caught.value)
    assert "\n" not in message, message
    assert 0 < len(message) < 700, message
    return message


def assert_equal(
    found: Mapping[str, Tensor], expected: State, dtype: torch.dtype = torch.float32
) -> None:
    """The same names and values, as plain CPU tensors of this dtype."""
    assert set(found) == set(expected), set(found) ^ set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == dtype, name
        assert found[name].device.type == "cpu", name
        assert not found[name].requires_grad, name
        assert torch.equal(found[name], tensor.to(dtype)), name


def mapped(file: Path) -> list[range]:
    """The addresses at which this process has mapped a file."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    edges = [line.split()[0].split("-") for line in lines if line.endswith(str(file))]
    return [range(int(start, 16), int(stop, 16)) for start, stop in edges]


def facts_of(
    dims: Dims, name: str = "small-model", settings: GenerationSettings | None = None
) -> ModelFacts:
    """What options depend on, of a model with Whisper's vocabulary."""
    return ModelFacts(name, dims, get_vocabulary(dims), settings)
