"""Times the attention of a decode step: python bench/kernels.py [--device cuda] [--shapes ...]

For every official shape and number of windows, in one run, with this package's kernels: latent
attention to E, the same in float8, and the baseline's attention to K and V; and the same on the
text so far, X or K and V. Bytes are those of what is read, once. Cold: inputs rotate through more
memory than any cache holds. In layer order, as in a step: all layers one after the other, which
share E but each have their own X, K and V. On a GPU the calls are replayed as one CUDA graph.
Prints a table; with --results, appends each measurement to a file at once.
"""

import math
from collections.abc import Callable
from itertools import product

import torch
from engines import make_parser
from rows import Rows, preset_of
from timing import FLUSHED, copy_rate, graphed, seconds_of
from torch import Tensor

from slimwhisper.commands.costs import OFFICIAL_DIMS
from slimwhisper.kernels.attention import ALL, FP8, Latent, Reads
from slimwhisper.kernels.dispatch import Kernels

SHAPES = ("tiny", "base", "small", "medium", "large-v3")
TEXT, ROOM = 224, 256  # tokens: half of the context, and what a graph for that many reads
# operation: the form of cache whose attention it is
FORMS = {
    "E": "slim",
    "E8": "slim-fp8",
    "KV": "baseline",
    "X": "slim",
    "X8": "slim-fp8",
    "text-KV": "baseline",
}
OF_TEXT = ("X", "X8", "text-KV")
Call = Callable[[], object]


class Operation:
    """Attention of a shape's decoder, over windows with so many rows (`beams`) each."""

    def __init__(self, name: str, shape: str, windows: int, beams: int, kernels: Kernels) -> None:
        dims = OFFICIAL_DIMS[shape]
        self.name, self.windows, self.rows, self.kernels = name, windows, windows * beams, kernels
        self.width, self.heads = dims.n_text_state, dims.n_text_head
        self.layers = dims.n_text_layer
        self.positions = self.room = dims.n_audio_ctx
        self.reads = ALL
        if name in OF_TEXT:
            self.positions, self.room = TEXT, ROOM
            bias = torch.zeros(windows, 1, ROOM, device=kernels.device, dtype=kernels.dtype)
            bias[..., TEXT:] = -torch.inf
            lengths = torch.full((windows,), TEXT, device=kernels.device)
            self.reads = Reads(lengths=lengths, bias=lambda: bias)

    def random(self, *shape: int) -> Tensor:
        """[*shape], normal."""
        return torch.randn(shape, device=self.kernels.device, dtype=self.kernels.dtype)

    def latent(self) -> Tensor:
        """[windows, room, d]."""
        return self.random(self.windows, self.room, self.width)

    def to_latent(self, latent: Tensor) -> Call:
        """Attention to a latent [windows, room, d], as it is or in float8."""
        queries = self.random(self.rows, self.heads, self.width) * 0.1
        stored, scale = Latent(latent), (self.width // self.heads) ** -0.5
        if "8" in self.name:
            stored = Latent(latent.to(FP8), torch.ones(latent.shape[:2], device=latent.device))
        return lambda: self.kernels.latent(queries, stored, scale, self.reads)

    def to_heads(self) -> Call:
        """Attention to keys and values [windows, h, room, d_k]."""
        size = self.width // self.heads
        keys, values = (self.random(self.windows, self.heads, self.room, size) for _ in "kv")
        queries = self.random(self.rows, self.heads, size)
        return lambda: self.kernels.heads(queries, keys, values, self.reads)

    def bytes(self) -> int:
        """What is read."""
        values = self.windows * self.positions * self.width
        if "8" in self.name:
            return values + 4 * self.windows * self.positions
        return values * self.kernels.dtype.itemsize * (2 if "KV" in self.name else 1)

    def measure(self, repeats: int, flushed: int) -> tuple[float, float]:
        """Seconds of a layer, cold and in the order of layers. flushed: bytes that cold inputs
        rotate through.
        """
        copies = range(max(math.ceil(flushed / self.bytes()), 2 if flushed else 1))
        if "KV" in self.name:
            cold = self._seconds([self.to_heads() for _ in copies], repeats)
        else:
            cold = self._seconds([self.to_latent(self.latent()) for _ in copies], repeats)
        if not self.name.startswith("E"):  # each layer has its own
            return cold, cold
        one = self.latent()
        return cold, self._seconds([self.to_latent(one) for _ in range(self.layers)], repeats)

    def _seconds(self, calls: list[Call], repeats: int) -> float:
        """The median time of a call; the calls take turns, in one graph."""
        device = self.kernels.device
        replay = graphed(lambda: [call() for call in calls], device)
        return seconds_of([replay], device, repeats) / len(calls)


def main() -> None:
    gpu = torch.cuda.is_available()
    parser = make_parser(__doc__, SHAPES if gpu else ["tiny"])
    sizes = [1, 4, 16, 64, 128, 256] if gpu else [1, 4]
    parser.add_argument("--windows", type=int, nargs="+", default=sizes)
    parser.add_argument("--operations", nargs="+", choices=list(FORMS), default=list(FORMS))
    parser.add_argument("--rows", type=int, default=1, help="of a window: beams")
    parser.add_argument("--repeats", type=int, default=20 if gpu else 3)
    parser.add_argument("--cold_mb", type=float, default=FLUSHED / 2**20)
    args = parser.parse_args()

    device = torch.device(args.device)
    torch.manual_seed(0)
    kernels = Kernels(device, getattr(torch, args.dtype))
    rate = copy_rate(device)
    print(f"{kernels.describe()}; copy {rate / 1e12:.2f} TB/s")
    rows = Rows(args.results, "kernels", device)
    for shape, windows, name in product(args.shapes, args.windows, args.operations):
        operation = Operation(name, shape, windows, args.rows, kernels)
        cold, layers = operation.measure(args.repeats, int(args.cold_mb * 2**20))
        speed = operation.bytes() / cold
        row = {
            "operation": name,
            "cold_us": round(cold * 1e6, 1),
            "layers_us": round(layers * 1e6, 1),
            "tb_s": round(speed / 1e12, 4),
            "of_copy": round(speed / rate, 3),
        }
        rows.add(
            **{**row, "model": shape, "batch": windows, "beams": args.rows},
            **preset_of(FORMS[name]),
            what="self" if name in OF_TEXT else "cross",
            dtype=args.dtype,
            milliseconds=layers * 1000,
        )
        print(f"{shape:9} {windows:4} windows {row}", flush=True)
    print(f"calls by operation and path: {dict(kernels.used)}")


if __name__ == "__main__":
    main()
