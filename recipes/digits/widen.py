"""Makes a trained checkpoint wider: python -m recipes.digits.widen CHECKPOINT FOLDER --width 384

The wider model computes what the checkpoint does (Net2WiderNet; Chen et al., arXiv 1511.05641):
every unit has copies, which share among them, unevenly, what it gave. A little noise then makes the
copies differ. The folder gets states for `train ... --start wide`, which trains it on.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from recipes.audio_window.match import save
from recipes.digits.model import Student, dimensions
from recipes.digits.sequences import TOKEN_IDS

NAME = "wide"
NONE = -1  # a unit that copies no other


class Widening:
    """From `old` weights, by OpenAI's names, to those of a `Student` of another width."""

    def __init__(
        self, old: dict[str, Tensor], width: int, heads: dict[str, int], seed: int = 0
    ) -> None:
        """heads: of the old model: "encoder" and "decoder"."""
        self._old = {name: tensor.float() for name, tensor in old.items()}
        self._layers = tuple(
            1 + max(int(n.split(".")[2]) for n in old if n.startswith(f"{half}.blocks."))
            for half in ("encoder", "decoder")
        )
        self._width, self._heads = width, heads
        self._random = torch.Generator().manual_seed(seed)
        self._from = self._old["encoder.ln_post.weight"].shape[0]

    def student(self, noise: float) -> Student:
        """noise: its standard deviation, as a share of each matrix's."""
        encoder_layers, decoder_layers = self._layers
        torch.manual_seed(0)
        student = Student(dimensions(self._width, (encoder_layers, decoder_layers)))
        state = student.state_dict()
        for name in state:
            if name.startswith(("encoder.", "decoder.")):
                state[name] = self._widened(name, student)
        rows = self._old["decoder.token_embedding.weight"][list(TOKEN_IDS)]
        state["rows"] = rows[:, self._stream()]
        for name, tensor in state.items():
            if tensor.ndim > 1 and not name.startswith(("digit_heads", "edge_head")):
                spread = noise * tensor.std()
                state[name] = tensor + spread * torch.randn(tensor.shape, generator=self._random)
        student.load_state_dict(state)
        return student

    def _widened(self, name: str, student: Student) -> Tensor:
        tensor, stream = self._old[name], self._stream()
        half, part = name.split(".")[0], name.rsplit(".", 2)[-2]
        new_heads = {"encoder": student.dims.n_audio_head, "decoder": student.dims.n_text_head}
        heads = self._head_units(self._heads[half], new_heads[half])
        hidden = _copies(4 * self._from, 4 * self._width)
        if name.endswith("positional_embedding"):
            return tensor[:, stream]
        if name.startswith("decoder.ln."):  # a product with an embedding is a sum over the copies
            return tensor[stream] * self._from / self._width
        match part:
            case "query":
                size = self._from // self._heads[half], self._width // new_heads[half]
                scale = (size[1] / size[0]) ** 0.5  # Whisper divides by the root of the size
                rows, columns = heads, stream
                tensor = tensor * scale
            case "key" | "value":
                rows, columns = heads, stream
            case "out":
                rows, columns = stream, heads
            case "0":
                rows, columns = hidden, stream
            case "2":
                rows, columns = stream, hidden
            case "conv1":
                rows, columns = stream, torch.arange(tensor.shape[1] if tensor.ndim > 1 else 0)
            case _:  # conv2, norms
                rows, columns = stream, stream
        wider = _taken(tensor, rows)
        return wider if wider.ndim == 1 else self._shared(wider, columns)

    def _stream(self) -> Tensor:
        """The units of the residual stream."""
        return _copies(self._from, self._width)

    def _head_units(self, old: int, new: int) -> Tensor:
        """For each unit of the new heads, the old one: heads are copied in turn; what a larger head
        has more is free.
        """
        sizes = self._from // old, self._width // new
        units = torch.full((new, sizes[1]), NONE)
        for head in range(new):
            units[head, : sizes[0]] = head % old * sizes[0] + torch.arange(sizes[0])
        return units.flatten()

    def _shared(self, tensor: Tensor, columns: Tensor) -> Tensor:
        """tensor [n, old, ...] -> [n, new, ...], whose copies of a column add up to it."""
        size = (len(tensor), len(columns), *tensor.shape[2:])
        shares = torch.rand(size, generator=self._random) + 0.5
        index = columns.clamp(min=0)
        shares[:, columns == NONE] = 0
        sums = torch.zeros(size[0], tensor.shape[1], *size[2:]).index_add_(1, index, shares)
        return tensor[:, index] * shares / sums[:, index]


def _copies(old: int, new: int) -> Tensor:
    """For each of the new units, the old one it copies."""
    return torch.arange(new) % old


def _taken(tensor: Tensor, rows: Tensor) -> Tensor:
    """tensor [old, ...] -> [new, ...]; free units are zero."""
    taken = tensor[rows.clamp(min=0)].clone()
    taken[rows == NONE] = 0
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", type=Path, help="of this recipe, in OpenAI's format")
    parser.add_argument("folder", type=Path, help="where the states are written")
    parser.add_argument("--width", type=int, default=384, help="a multiple of the old one [384]")
    parser.add_argument("--noise", type=float, default=0.3, help="share of the weights' own [0.3]")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    checkpoint_file = torch.load(args.checkpoint, weights_only=True)
    dims = checkpoint_file["dims"]
    heads = {"encoder": dims["n_audio_head"], "decoder": dims["n_text_head"]}
    student = Widening(checkpoint_file["model_state_dict"], args.width, heads, args.seed).student(
        args.noise
    )
    args.folder.mkdir(parents=True, exist_ok=True)
    for suffix in ("-encoder.state", ".state"):
        save({"average": student.state_dict()}, args.folder / f"{NAME}{suffix}")


if __name__ == "__main__":
    main()
