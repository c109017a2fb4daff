"""Times the attention of a decode step: python bench/kernels.py [--device cuda] [--shapes ...]

For every official shape and number of windows, in one run: latent attention to E, with this
package's kernels and with torch's SDPA; the same in float8; the baseline's attention to K and V,
again with both; and the same kernels on the text so far, X or K and V. Bytes are those of what is
read, once. Cold: inputs rotate through more memory than any cache holds. In layer order, as in a
step: all layers one after the other, which share E but each have their own X, K and V. On a GPU the
calls are replayed as one CUDA graph. Prints a table; with --results, appends each measurement to a
file at once.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from engines import make_parser
from rows import Rows, preset_of
from timing import FLUSHED, copy_rate, graphed, seconds_of
from torch import Tensor

from slimwhisper.commands.costs import OFFICIAL_DIMS
from slimwhisper.kernels.attention import ALL, FP8, Latent, Reads
from slimwhisper.kernels.dispatch import Kernels

SHAPES = ("tiny", "base", "small", "medium", "large-v3")
TEXT, ROOM = 224, 256  # tokens: half of the context, and what a graph for that many reads
# operation: the form of cache whose attention it is, if the engine would run it
FORMS = {
    "E": "slim",
    "E8": "slim-fp8",
    "E-SDPA": None,
    "KV": "baseline",
    "KV-SDPA": None,
    "X": "slim",
    "X8": "slim-fp8",
    "text-KV": "baseline",
}
OF_TEXT = ("X", "X8", "text-KV")
Call = Callable[[], object]


class Case:
    """One shape, number of windows, and rows per window (`group`)."""

    def __init__(self, shape: str, windows: int, group: int, kernels: Kernels) -> None:
        dims = OFFICIAL_DIMS[shape]
        self.shape, self.windows, self.group, self.kernels = shape, windows, group, kernels
        self.width, self.heads = dims.n_text_state, dims.n_text_head
        self.layers = dims.n_text_layer
        self.positions = self.room = dims.n_audio_ctx
        self.reads = ALL
        self.scale = (self.width // self.heads) ** -0.5

    def random(self, *shape: int) -> Tensor:
        """[*shape], normal."""
        kernels = self.kernels
        return torch.randn(shape, device=kernels.device, dtype=kernels.dtype)

    def of_text(self) -> "Case":
        """The same case, reading the text so far."""
        text = Case(self.shape, self.windows, self.group, self.kernels)
        device, dtype = self.kernels.device, self.kernels.dtype
        text.positions, text.room = TEXT, ROOM
        lengths = torch.full((self.windows,), TEXT, device=device)
        bias = torch.zeros(self.windows, 1, ROOM, device=device, dtype=dtype)
        bias[..., TEXT:] = -torch.inf
        text.reads = Reads(lengths=lengths, bias=lambda: bias)
        return text

    def queries(self) -> Tensor:
        """[windows * group, h, d]."""
        return self.random(self.windows * self.group, self.heads, self.width) * 0.1

    def latent(self) -> Tensor:
        """[windows, room, d]."""
        return self.random(self.windows, self.room, self.width)

    def ours(self, latent: Tensor, float8: bool = False) -> Call:
        """Our attention to a latent [windows, room, d], as it is or in float8."""
        queries, stored = self.queries(), Latent(latent)
        if float8:
            stored = Latent(latent.to(FP8), torch.ones(latent.shape[:2], device=latent.device))
        return lambda: self.kernels.latent(queries, stored, self.scale, self.reads)

    def sdpa(self, latent: Tensor) -> Call:
        """torch's attention to a latent [windows, room, d]."""
        grouped = self.queries().reshape(self.windows, 1, -1, self.width)
        z = latent.unsqueeze(1)
        return lambda: F.scaled_dot_product_attention(grouped, z, z, scale=self.scale)

    def heads_inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [windows * group, h, d_k]; keys and values [windows, h, room, d_k]."""
        size = self.width // self.heads
        keys, values = (self.random(self.windows, self.heads, self.room, size) for _ in "kv")
        return self.random(self.windows * self.group, self.heads, size), keys, values

    def our_heads(self) -> Call:
        inputs = self.heads_inputs()
        return lambda: self.kernels.heads(*inputs, self.reads)

    def sdpa_heads(self) -> Call:
        queries, keys, values = self.heads_inputs()
        grouped = queries.unflatten(0, (self.windows, self.group)).transpose(1, 2)
        return lambda: F.scaled_dot_product_attention(grouped, keys, values)

    def bytes_of(self, name: str) -> int:
        values = self.windows * self.positions * self.width
        if "8" in name:
            return values + 4 * self.windows * self.positions
        return values * self.kernels.dtype.itemsize * (2 if "KV" in name else 1)

    def measure(self, name: str, repeats: int, flushed: int, most: int) -> dict[str, float]:
        """Seconds of an operation, "cold" and in the order of "layers", each of one layer.

        flushed: bytes that cold inputs rotate through. most: layers.
        """
        make: Callable[[Tensor], Call] = partial(self.ours, float8="8" in name)
        if "KV" in name:
            heads = self.sdpa_heads if "SDPA" in name else self.our_heads
            make = lambda _: heads()  # noqa: E731
        elif "SDPA" in name:
            make = self.sdpa
        copies = max(math.ceil(flushed / self.bytes_of(name)), 2 if flushed else 1)
        cold = self._seconds([make(self.latent()) for _ in range(copies)], repeats)
        if not name.startswith("E"):  # each layer has its own
            return {"cold": cold, "layers": cold}
        one = self.latent()
        layers = self._seconds([make(one) for _ in range(min(self.layers, most))], repeats)
        return {"cold": cold, "layers": layers}

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
    parser.add_argument("--layers", type=int, default=32, help="at most, in layer order")
    parser.add_argument("--cold_mb", type=float, default=FLUSHED / 2**20)
    args = parser.parse_args()

    device = torch.device(args.device)
    torch.manual_seed(0)
    kernels = Kernels(device, getattr(torch, args.dtype))
    rate = copy_rate(device)
    print(f"{kernels.describe()}; copy {rate / 1e12:.2f} TB/s")
    rows = Rows(args.results, "kernels", device)
    for shape in args.shapes:
        for windows in args.windows:
            cross = Case(shape, windows, args.rows, kernels)
            text = cross.of_text()
            for name in args.operations:
                case = text if name in OF_TEXT else cross
                times = case.measure(name, args.repeats, int(args.cold_mb * 2**20), args.layers)
                size = case.bytes_of(name)
                row = {
                    "operation": name,
                    "cold_us": round(times["cold"] * 1e6, 1),
                    "layers_us": round(times["layers"] * 1e6, 1),
                    "tb_s": round(size / times["cold"] / 1e12, 4),
                    "of_copy": round(size / times["cold"] / rate, 3),
                }
                rows.add(
                    **{**row, "model": shape, "batch": windows, "beams": args.rows},
                    **preset_of(FORMS[name]),
                    what="self" if case is text else "cross",
                    dtype=args.dtype,
                    milliseconds=times["layers"] * 1000,
                )
                print(f"{shape:9} {windows:4} windows {row}", flush=True)
    print(f"calls by operation and path: {dict(kernels.used)}")


if __name__ == "__main__":
    main()
