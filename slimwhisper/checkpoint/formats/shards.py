"""Finds and reads the weights of a Hugging Face folder, in one file or in shards."""

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from slimwhisper.checkpoint.errors import load_error
from slimwhisper.checkpoint.files import inside, read_json, read_tensors

WHOLE = ("model.safetensors", "pytorch_model.bin")  # the first that exists is read
_AGAIN = "download the model again"


def index_of(weights: str) -> str:
    """The name of the index that a folder has where these weights are in shards."""
    return f"{weights}.index.json"


def shards(index: Path) -> dict[str, str]:
    """Tensor's name -> file's name, from an index; all files are in the index's folder."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise load_error(f"{index}: has no 'weight_map'; {_AGAIN}")
    suffix = Path(index.name.removesuffix(index_of(""))).suffix
    for name in weight_map.values():
        if not isinstance(name, str) or not name.endswith(suffix) or "/" in name or "\\" in name:
            raise load_error(f"{index}: {name!r} is not a {suffix} file in its folder; {_AGAIN}")
    return weight_map


def read_weights(folder: Path) -> Iterator[tuple[Path, str, Tensor]]:
    """(file, name, tensor [...]) of every tensor in a folder's weights, names as in the files.

    Raises CheckpointError for files that are missing, damaged or elsewhere, for a shard without a
    tensor that the index lists, and for a tensor in two shards.
    """
    for weights in WHOLE:
        if inside(folder, weights).is_file():
            file = folder / weights
            for name, tensor in read_tensors(file).items():
                yield file, name, tensor
            return
        index = inside(folder, index_of(weights))
        if index.is_file():
            yield from _read_shards(folder, index)
            return
    expected = " or ".join([WHOLE[0], index_of(WHOLE[0]), WHOLE[1]])
    raise load_error(f"{folder}: has no weights ({expected}); {_AGAIN}")


def _read_shards(folder: Path, index: Path) -> Iterator[tuple[Path, str, Tensor]]:
    weight_map = shards(index)
    read_from: dict[str, str] = {}  # tensor's name: its file's
    for shard in sorted(set(weight_map.values())):
        file = inside(folder, shard)
        if not file.is_file():
            raise load_error(f"{file}: this shard is missing; {_AGAIN}")
        for name, tensor in read_tensors(file).items():
            if name in read_from:
                other = read_from[name]
                raise load_error(f"{file}: has {name}, which is also in {other}; save it again")
            read_from[name] = shard
            yield file, name, tensor
    for name, shard in weight_map.items():
        if read_from.get(name) != shard:
            listed = f"although {index.name} lists it"
            raise load_error(f"{folder / shard}: tensor {name} is missing, {listed}; {_AGAIN}")
