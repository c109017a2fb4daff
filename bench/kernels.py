"""Times the attention of a decode step: python bench/kernels.py [--device cuda] [--shapes ...]

For every official shape and number of windows, in one run: latent attention to E, with this
package's kernels and with torch's SDPA; the same in float8; the baseline's attention to K and V,
again with both. Bytes are those of E, or of K and V, read once. Cold: inputs rotate through more
memory than any cache holds. In layer order, as in a step: all layers one after the other, which
share E but each have their own K and V. On a GPU each call is replayed as a CUDA graph. Prints a
table, writes kernels-SHAPE.png, and ends in one line of JSON.
"""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from timing import FLUSHED, copy_rate, graphed, machine, plot, seconds_of
from torch import Tensor

from slimwhisper.commands.costs import OFFICIAL_DIMS
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.kernels.latent import EIGHT, Latent

SHAPES = ("tiny", "base", "small", "medium", "large-v3")
Call = Callable[[], object]


class Case:
    """One shape, number of windows, and rows per window (`group`)."""

    def __init__(self, shape: str, windows: int, group: int, kernels: Kernels) -> None:
        dims = OFFICIAL_DIMS[shape]
        self.shape, self.windows, self.group, self.kernels = shape, windows, group, kernels
        self.width, self.heads = dims.n_text_state, dims.n_text_head
        self.positions, self.layers = dims.n_audio_ctx, dims.n_text_layer
        self.scale = (self.width // self.heads) ** -0.5

    def random(self, *shape: int) -> Tensor:
        """[*shape], normal."""
        kernels = self.kernels
        return torch.randn(shape, device=kernels.device, dtype=kernels.dtype)

    def queries(self) -> Tensor:
        """[windows * group, h, d]."""
        return self.random(self.windows * self.group, self.heads, self.width) * 0.1

    def latent(self) -> Tensor:
        """[windows, p, d]."""
        return self.random(self.windows, self.positions, self.width)

    def ours(self, latent: Tensor) -> Call:
        """Our attention to a latent [windows, p, d]."""
        queries, kept = self.queries(), Latent(latent)
        return lambda: self.kernels.latent(queries, kept, self.scale)

    def ours_float8(self, latent: Tensor) -> Call:
        """The same in float8; latent [windows, p, d] in the model's dtype."""
        queries = self.queries()
        factors = torch.ones(latent.shape[:2], device=latent.device)
        kept = Latent(latent.to(EIGHT), factors)
        return lambda: self.kernels.latent(queries, kept, self.scale)

    def sdpa(self, latent: Tensor) -> Call:
        """torch's attention to a latent [windows, p, d]."""
        together = self.queries().reshape(self.windows, 1, -1, self.width)
        z = latent.unsqueeze(1)
        return lambda: F.scaled_dot_product_attention(together, z, z, scale=self.scale)

    def heads_inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [windows * group, h, d_k]; keys and values [windows, h, p, d_k]."""
        size = self.width // self.heads
        keys, values = (self.random(self.windows, self.heads, self.positions, size) for _ in "kv")
        return self.random(self.windows * self.group, self.heads, size), keys, values

    def our_heads(self) -> Call:
        inputs = self.heads_inputs()
        return lambda: self.kernels.heads(*inputs)

    def sdpa_heads(self) -> Call:
        queries, keys, values = self.heads_inputs()
        together = queries.unflatten(0, (self.windows, self.group)).transpose(1, 2)
        return lambda: F.scaled_dot_product_attention(together, keys, values)

    def bytes_of(self, name: str) -> int:
        values = self.windows * self.positions * self.width
        if "float8" in name:
            return values + 4 * self.windows * self.positions
        return values * self.kernels.dtype.itemsize * (2 if "K, V" in name else 1)

    def measure(self, repeats: int) -> dict[str, dict[str, float]]:
        """Seconds per layer: {operation: {"cold", "layers"}}."""
        device = self.kernels.device
        makers: dict[str, Callable[[Tensor], Call]] = {
            "E": self.ours,
            "E, float8": self.ours_float8,
            "E, SDPA": self.sdpa,
            "K, V": lambda _: self.our_heads(),
            "K, V, SDPA": lambda _: self.sdpa_heads(),
        }
        found: dict[str, dict[str, float]] = {}
        for name, make in makers.items():
            copies = max(math.ceil(FLUSHED / self.bytes_of(name)), 2)
            cold = [graphed(make(self.latent()), device) for _ in range(copies)]
            times = {"cold": seconds_of(cold, device, repeats)}
            del cold
            if "K" in name:  # each layer has its own
                times["layers"] = times["cold"]
            else:
                one = self.latent()
                layers = [graphed(make(one), device) for _ in range(self.layers)]
                times["layers"] = seconds_of(layers, device, repeats)
            found[name] = times
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    gpu = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if gpu else "cpu")
    parser.add_argument("--dtype", default="float16" if gpu else "float32")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES if gpu else ["tiny"])
    sizes = [1, 4, 16, 64, 128, 256] if gpu else [1, 4]
    parser.add_argument("--windows", type=int, nargs="+", default=sizes)
    parser.add_argument("--rows", type=int, default=1, help="of a window: beams")
    parser.add_argument("--repeats", type=int, default=20 if gpu else 3)
    parser.add_argument("--output_dir", type=Path, default=Path())
    asked = parser.parse_args()

    device = torch.device(asked.device)
    torch.manual_seed(0)
    kernels = Kernels(device, getattr(torch, asked.dtype))
    rate = copy_rate(device)
    print(f"{kernels.describe()}; copy {rate / 1e12:.2f} TB/s")
    results = []
    for shape in asked.shapes:
        for windows in asked.windows:
            case = Case(shape, windows, asked.rows, kernels)
            found = case.measure(asked.repeats)
            best = min(found["K, V"]["cold"], found["K, V, SDPA"]["cold"])
            for name, times in found.items():
                size = case.bytes_of(name)
                row = {
                    "shape": shape,
                    "windows": windows,
                    "operation": name,
                    "cold_us": round(times["cold"] * 1e6, 1),
                    "layers_us": round(times["layers"] * 1e6, 1),
                    "tb_s": round(size / times["cold"] / 1e12, 4),
                    "of_copy": round(size / times["cold"] / rate, 3),
                    "to_baseline": round(best / times["layers"], 2),
                }
                results.append(row)
                print(
                    f"{shape:9} {windows:4} {name:11} cold {row['cold_us']:9} us, in layer order "
                    f"{row['layers_us']:9} us; {row['tb_s']:6} TB/s, {row['of_copy']:.0%} of a "
                    f"copy; {row['to_baseline']:.2f}x the baseline's speed",
                    flush=True,
                )
    for shape in asked.shapes:
        curves: dict[str, dict[float, float]] = {}
        for row in results:
            if row["shape"] == shape:
                curves.setdefault(row["operation"], {})[row["windows"]] = row["tb_s"]
        curves["copy"] = dict.fromkeys(asked.windows, rate / 1e12)
        plot(asked.output_dir / f"kernels-{shape}.png", f"{shape}, cold", "TB/s", curves)
    used = {" ".join(key): count for key, count in kernels.used.items()}
    summary = {"machine": machine(device), "dtype": asked.dtype, "rows": asked.rows, "used": used}
    print(json.dumps({**summary, "copy_tb_s": round(rate / 1e12, 3), "results": results}))


if __name__ == "__main__":
    main()
