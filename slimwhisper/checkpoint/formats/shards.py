"""Which files of a Hugging Face folder hold the weights, whole or in shards, and their tensors."""

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from slimwhisper.checkpoint.errors import problem
from slimwhisper.checkpoint.files import inside, read_json, read_tensors

WHOLE = ("model.safetensors", "pytorch_model.bin")  # the first that is there is read


def index_of(weights: str) -> str:
    """The name of the index that a folder has where these weights are in shards."""
    return f"{weights}.index.json"


def shards(index: Path) -> dict[str, str]:
    """Tensor's name -> file's name, of an index; no file outside the index's folder."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise problem(f"{index}: has no 'weight_map'; download the model again")
    suffix = Path(index.name.removesuffix(index_of(""))).suffix
    for name in weight_map.values():
        if not isinstance(name, str) or not name.endswith(suffix) or "/" in name or "\\" in name:
            raise problem(
                f"{index}: {name!r} is no {suffix} file of its folder; download the model again"
            )
    return weight_map


def read_weights(folder: Path) -> Iterator[tuple[Path, str, Tensor]]:
    """(file, name, tensor [...]) of every tensor in a folder's weights, names as in the files.

    Raises CheckpointError for files that are missing, damaged or elsewhere, for a shard that lacks
    what the index says it has, and for a tensor in two shards.
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
    raise problem(f"{folder}: no weights: no {expected}; download the model again")


def _read_shards(folder: Path, index: Path) -> Iterator[tuple[Path, str, Tensor]]:
    placed = shards(index)
    read: dict[str, str] = {}  # tensor's name: its file's
    for shard in sorted(set(placed.values())):
        file = inside(folder, shard)
        if not file.is_file():
            raise problem(f"{file}: shard is missing; download the model again")
        for name, tensor in read_tensors(file).items():
            if name in read:
                raise problem(
                    f"{file}: has {name} a second time, {read[name]} has it too; save it again"
                )
            read[name] = shard
            yield file, name, tensor
    for name, shard in placed.items():
        if read.get(name) != shard:
            raise problem(
                f"{folder / shard}: lacks tensor {name}, which {index.name} promises; "
                "download the model again"
            )
