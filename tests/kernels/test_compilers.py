"""kernels/cpu by the oldest GCC and clang that are installed, for x86-64 and, in an emulator, for
ARM. What all other tests call was built by `cc`.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.paths import ROOT

X86 = (
    (*(f"gcc-{n}" for n in range(9, 16)), "gcc"),
    (*(f"clang-{n}" for n in range(14, 21)), "clang"),
)
ARM = "aarch64-linux-gnu-gcc"
FLAGS = (
    "-O1",  # it is installed with -O3, which takes these compilers many times as long
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wno-psabi",
    "-Wall",
    "-Wextra",
    "-Werror",
)
SOURCES = [*sorted((ROOT / "kernels/cpu").glob("*.c")), ROOT / "tests/kernels/native_check.c"]


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def mlp(x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor) -> Tensor:
    """[rows, d], in float64."""
    hidden = F.gelu(x.double() @ up.double().T + up_bias.double())
    return hidden @ down.double().T + down_bias.double()


def normed(x: Tensor, addend: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The norm of the sum, in float64."""
    total = x.double() + addend.double()
    return F.layer_norm(total, total.shape[-1:], weight.double(), bias.double())


def compilers() -> list[str]:
    """Those of X86, and ARM's, if it can be run."""
    found = [name for names in X86 if (name := next(filter(shutil.which, names), None))]
    return [*found, *([ARM] if shutil.which(ARM) and shutil.which("qemu-aarch64") else [])]


@pytest.mark.slow
@pytest.mark.parametrize("compiler", compilers())
def test_compilers(compiler: str, tmp_path: Path) -> None:
    """No warning, and every function as in float64."""
    program = tmp_path / "check"
    static = ("-static",) if compiler == ARM else ()
    subprocess.run([compiler, *FLAGS, *static, "-o", program, *SOURCES, "-lm"], check=True)
    emulator = ("qemu-aarch64",) if compiler == ARM else ()

    def call(variant: str, numbers: tuple[int, ...], *data: Tensor) -> Tensor:
        head = torch.tensor(numbers).numpy().tobytes()
        given = head + b"".join(t.contiguous().numpy().tobytes() for t in data)
        done = subprocess.run([*emulator, program, variant], input=given, capture_output=True)
        if done.returncode == 2 and variant != "narrow":
            pytest.skip(f"the processor or the compiler cannot run {variant!r}")
        assert done.returncode == 0, done.stderr
        return torch.frombuffer(bytearray(done.stdout), dtype=torch.float32).double()

    def same(found: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(found, expected.double().flatten(), atol=1e-4, rtol=1e-5)

    def in_float32(variant: str) -> None:
        for rows in (3, 66):
            x, w, bias, addend = noise(rows, 96), noise(21, 96), noise(21), noise(rows, 21)
            expected = x.double() @ w.double().T + bias + addend
            same(call(variant, (0, rows, 21, 96, 0), x, w, bias, addend), expected)
            narrow, factors = (w * 40).round().clamp(-127, 127), noise(21) / 40
            expected = (x.double() @ narrow.double().T) * factors.double() + bias + addend
            numbers = (0, rows, 21, 96, 1)
            same(call(variant, numbers, x, narrow, bias, addend, factors), expected)
            half = w.half().float()
            expected = x.double() @ half.double().T + bias + addend
            same(call(variant, (0, rows, 21, 96, 2), x, half, bias, addend), expected)

            x, w = noise(rows, 3, 64), noise(3, 32, 64)
            expected = torch.einsum("nhd,hwd->nhw", x.double(), w.double())
            same(call(variant, (1, rows, 3, 32, 64), x, w), expected)
            transposed = w.transpose(1, 2)
            same(call(variant, (2, rows, 3, 32, 64), x, transposed), expected)
            half = w.half().float()
            expected = torch.einsum("nhd,hwd->nhw", x.double(), half.double())
            same(call(variant, (11, rows, 3, 32, 64), x, half), expected)
            same(call(variant, (12, rows, 3, 32, 64), x, half.transpose(1, 2)), expected)

            queries, keys, values = noise(3, rows, 64), noise(9, 3, 16, 64), noise(9, 3, 16, 64) + 1
            kept = [t.flip(0).transpose(0, 1).reshape(3, 144, 64)[:, :141] for t in (keys, values)]
            expected = torch.nn.functional.scaled_dot_product_attention(
                queries.double(), kept[0].double(), kept[1].double(), scale=0.125
            )
            same(call(variant, (3, 3, rows, 9, 64), queries, keys, values), expected)

            x, weights = (
                noise(rows, 96),
                (noise(64, 96) / 9, noise(64), noise(96, 64) / 9, noise(96)),
            )
            same(call(variant, (6, rows, 64, 96, 0), x, *weights), mlp(x, *weights))
            halves = [t.half().float() for t in weights]
            same(call(variant, (6, rows, 64, 96, 2), x, *halves), mlp(x, *halves))
            addend, weight, bias = noise(rows, 96) + 1, noise(96), noise(96) + 1
            expected = normed(x, addend, weight, bias)
            same(call(variant, (7, rows, 96, 0, 0), x, addend, weight, bias), expected)
            logits = 3 * noise(rows, 2051)
            logprobs, tokens = logits.double().log_softmax(-1).max(-1)
            expected = torch.stack([tokens.double(), logprobs], dim=1)
            same(call(variant, (8, rows, 2051, 0, 0), logits), expected)

    def encoder_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        operands = (t.double().transpose(1, 2) for t in (q, k, v))
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(*operands, scale=0.125).transpose(1, 2)

    def on_x86(variant: str) -> None:
        q, k, v = (noise(2, 66, 3, 64 + n)[..., :64] for n in range(3))
        same(call(variant, (4, 2, 66, 3, 64), q, k, v), encoder_attention(q, k, v))

        for planes, off in ((1, 0.1), (2, 1e-3)):
            x, narrow = noise(14, 96), (noise(32, 96) * 40).round().clamp(-127, 127)
            factors, bias, addend = noise(32).abs() / 40, noise(32), noise(14, 32)
            expected = x.double() @ narrow.double().T * factors.double() + bias + addend
            data = x, narrow, factors, bias, addend
            found = call(variant, (5, 14, 32, 96, planes), *data).view(14, 32)
            assert 0 < float((found - expected).norm() / expected.norm()) < off

        x, attended, norms = noise(70, 96), noise(71, 96)[1:], noise(4, 96)
        shapes = (96, 96), (128, 96), (96, 128)
        matrices = [(noise(*shape) * 40).round().clamp(-127, 127) for shape in shapes]
        factors, biases = ([noise(n).abs() / 200 for n, _ in shapes], [noise(n) for n, _ in shapes])
        scaled = [w * f[:, None] for w, f in zip(matrices, factors, strict=True)]
        middle = x.double() + attended.double() @ scaled[0].double().T + biases[0].double()
        hidden = normed(middle, torch.zeros(96), *norms[:2])
        middle += mlp(hidden, scaled[1], biases[1], scaled[2], biases[2])
        expected, numbers = normed(middle, torch.zeros(96), *norms[2:]), (70, 128, 96, 0)
        pairs = (t for pair in zip(scaled, biases, strict=True) for t in pair)
        same(call(variant, (9, *numbers), x, attended, norms, *pairs), expected)
        triples = (t for three in zip(matrices, factors, biases, strict=True) for t in three)
        found = call(variant, (10, *numbers), x, attended, norms, *triples).view(70, 96)
        assert 0 < float((found - expected).norm() / expected.norm()) < 0.02

    in_float32("narrow")
    if compiler == ARM:
        return
    on_x86("narrow")
    in_float32("wide")
    on_x86("wide")

    def near(found: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(found, expected.double().flatten(), atol=5e-3, rtol=2**-7)

    def rounded(*shape: int) -> Tensor:
        return noise(*shape).bfloat16().float()

    for rows in (3, 66):
        x, w, bias, addend = rounded(rows, 96), rounded(21, 96), rounded(21), rounded(rows, 21)
        expected = x.double() @ w.double().T + bias + addend
        near(call("bfloat16", (0, rows, 21, 96, 0), x, w, bias, addend), expected)

        x, w = rounded(rows, 3, 64), rounded(3, 32, 64)
        expected = torch.einsum("nhd,hwd->nhw", x.double(), w.double())
        near(call("bfloat16", (1, rows, 3, 32, 64), x, w), expected)
        near(call("bfloat16", (2, rows, 3, 32, 64), x, w.transpose(1, 2)), expected)

        queries, keys, values = rounded(3, rows, 64), rounded(9, 3, 16, 64), rounded(9, 3, 16, 64)
        kept = [t.flip(0).transpose(0, 1).reshape(3, 144, 64)[:, :141] for t in (keys, values)]
        expected = torch.nn.functional.scaled_dot_product_attention(
            queries.double(), kept[0].double(), kept[1].double(), scale=0.125
        )
        near(call("bfloat16", (3, 3, rows, 9, 64), queries, keys, values), expected)

        x, *weights = (rounded(*s) for s in ((rows, 96), (64, 96), (64,), (96, 64), (96,)))
        weights[0], weights[2] = weights[0] / 16, weights[2] / 16
        near(call("bfloat16", (6, rows, 64, 96, 0), x, *weights), mlp(x, *weights))
        weight, bias = noise(96), noise(96) + 1
        found = call("bfloat16", (7, rows, 96, 0, 0), x, x, weight, bias)
        near(found, normed(x, x, weight, bias))

        q, k, v = (rounded(2, rows, 3, 64 + n)[..., :64] for n in range(3))
        near(call("bfloat16", (4, 2, rows, 3, 64), q, k, v), encoder_attention(q, k, v))
