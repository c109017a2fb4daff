"""kernels/cpu by the oldest GCC and clang that are installed, for x86-64 and, in an emulator, for
ARM. What all other tests call was built by `cc`.
"""

import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
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
# it is installed with -O3, which takes these compilers many times as long
FLAGS = "-O1 -fno-math-errno -fno-trapping-math -Wno-psabi -Wall -Wextra -Werror".split()
NEAR = {"atol": 1e-4, "rtol": 1e-5}
SOURCES = [*sorted((ROOT / "kernels/cpu").glob("*.c")), ROOT / "tests/kernels/native_check.c"]


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def mlp(x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor) -> Tensor:
    """[rows, d], in float64."""
    return F.gelu(x.double() @ up.double().T + up_bias) @ down.double().T + down_bias


def normed(x: Tensor, addend: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The norm of the sum, in float64."""
    return F.layer_norm(x + addend, x.shape[-1:], weight.double(), bias.double())


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q.double(), k.double(), v.double(), scale=0.125)


def whole(*shape: int) -> Tensor:
    """Integers of 8 bits."""
    return (noise(*shape) * 40).round().clamp(-127, 127)


@dataclass
class Case:
    """A function of native_check.c: its number and sizes, its arguments, and what it returns."""

    numbers: tuple[int, ...]
    data: tuple[Tensor, ...]
    expected: Tensor  # float64
    off: float = 0.0  # how much of it, instead of rounding


def everywhere(rows: int, narrow: bool) -> Iterator[Case]:
    """narrow: in numbers of bfloat16, which has not all functions."""

    def drawn(*shape: int) -> Tensor:
        return noise(*shape).bfloat16().float() if narrow else noise(*shape)

    x, w, bias, addend = drawn(rows, 96), drawn(21, 96), drawn(21), drawn(rows, 21)
    y, m = drawn(rows, 3, 64), drawn(3, 32, 64)
    q, k, v = drawn(3, rows, 64), drawn(9, 3, 16, 64), drawn(9, 3, 16, 64) + 0.5
    weights = drawn(64, 96) / 16, drawn(64), drawn(96, 64) / 16, drawn(96)
    for halves in (False,) if narrow else (False, True):  # of what C reads
        kind, more = (2, 10) if halves else (0, 0)
        w, m, k, v, *some = (t.half().float() if halves else t for t in (w, m, k, v, *weights))
        exact = x.double() @ w.double().T + bias + addend
        yield Case((0, rows, 21, 96, kind), (x, w, bias, addend), exact)
        exact = torch.einsum("nhd,hwd->nhw", y.double(), m.double())
        yield Case((1 + more, rows, 3, 32, 64), (y, m), exact)
        yield Case((2 + more, rows, 3, 32, 64), (y, m.transpose(1, 2)), exact)
        read = (t.flip(0).transpose(0, 1).reshape(3, 144, 64)[:, :141] for t in (k, v))
        yield Case((3 + more, 3, rows, 9, 64), (q, k, v), attended(q, *read))
        yield Case((6, rows, 64, 96, kind), (x, *some), mlp(x, *some))
    weight, shift = noise(96), noise(96) + 1
    yield Case((7, rows, 96, 0, 0), (x, x, weight, shift), normed(x.double(), x, weight, shift))
    if narrow:
        return
    integers, factors = whole(21, 96), noise(21) / 40
    exact = x.double() @ integers.double().T * factors + bias + addend
    yield Case((0, rows, 21, 96, 1), (x, integers, bias, addend, factors), exact)
    logits = 3 * noise(rows, 2051)
    logprobs, tokens = logits.double().log_softmax(-1).max(-1)
    yield Case((8, rows, 2051, 0, 0), (logits,), torch.stack([tokens.double(), logprobs], dim=1))


def encoders(rows: int, narrow: bool) -> Case:
    q, k, v = (noise(2, rows, 3, 64 + n)[..., :64] for n in range(3))
    q, k, v = (t.bfloat16().float() if narrow else t for t in (q, k, v))
    exact = attended(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)
    return Case((4, 2, rows, 3, 64), (q, k, v), exact)


def on_x86() -> Iterator[Case]:
    """An encoder's functions, and those of whole numbers."""
    yield encoders(66, False)
    q, z, steps = noise(5, 64), whole(141, 64), noise(141).abs() / 400
    read = z * steps[:, None]
    yield Case((23, 1, 5, 141, 64), (q, z, steps), attended(q, read, read), 1e-3)
    y, m, steps = noise(14, 3, 64), whole(3, 32, 64), noise(3, 32).abs() / 40
    exact = torch.einsum("nhd,hwd->nhw", y.double(), m.double()) * steps
    yield Case((15, 14, 3, 32, 64), (y, m, steps, noise(96)), exact, 1e-3)
    x, integers, factors = noise(14, 96), whole(32, 96), noise(32).abs() / 40
    bias, addend = noise(32), noise(14, 32)
    exact = x.double() @ integers.double().T * factors + bias + addend
    for planes, off in ((1, 0.1), (2, 1e-3)):
        data = x, integers, factors, bias, addend
        yield Case((5, 14, 32, 96, planes), data, exact, off)
    x, added, norms = noise(70, 96), noise(71, 96)[1:], noise(4, 96)
    shapes = (96, 96), (128, 96), (96, 128)
    matrices, biases = [whole(*shape) for shape in shapes], [noise(n) for n, _ in shapes]
    scales = [noise(n).abs() / 200 for n, _ in shapes]
    scaled = [w * f[:, None] for w, f in zip(matrices, scales, strict=True)]
    middle = x.double() + added.double() @ scaled[0].double().T + biases[0]
    hidden = normed(middle, torch.zeros(96), *norms[:2])
    middle += mlp(hidden, scaled[1], biases[1], scaled[2], biases[2])
    exact = normed(middle, torch.zeros(96), *norms[2:])
    pairs = chain.from_iterable(zip(scaled, biases, strict=True))
    yield Case((9, 70, 128, 96, 0), (x, added, norms, *pairs), exact)
    triples = chain.from_iterable(zip(matrices, scales, biases, strict=True))
    yield Case((10, 70, 128, 96, 0), (x, added, norms, *triples), exact, 0.02)


def compilers() -> list[str]:
    """Those of X86, and ARM's, if it can be run."""
    found = [name for names in X86 if (name := next(filter(shutil.which, names), None))]
    return [*found, *([ARM] if shutil.which(ARM) and shutil.which("qemu-aarch64") else [])]


@pytest.mark.slow
@pytest.mark.parametrize("compiler", compilers())
def test_compilers(compiler: str, tmp_path: Path) -> None:
    """No warning, and every function as in float64."""
    program, arm = tmp_path / "check", compiler == ARM
    static, emulator = (("-static",), ("qemu-aarch64",)) if arm else ((), ())
    subprocess.run([compiler, *FLAGS, *static, "-o", program, *SOURCES, "-lm"], check=True)

    def check(variant: str, cases: Iterable[Case]) -> None:
        for case in cases:
            given = torch.tensor(case.numbers).numpy().tobytes()
            given += b"".join(t.contiguous().numpy().tobytes() for t in case.data)
            done = subprocess.run([*emulator, program, variant], input=given, capture_output=True)
            if done.returncode == 2 and variant != "narrow":
                pytest.skip(f"the processor or the compiler cannot run {variant!r}")
            assert done.returncode == 0, done.stderr
            found = torch.frombuffer(bytearray(done.stdout), dtype=torch.float32).double()
            expected = case.expected.flatten()
            if case.off:
                assert 0 < float((found - expected).norm() / expected.norm()) < case.off
            else:
                near = {"atol": 5e-3, "rtol": 2**-7} if variant == "bfloat16" else NEAR
                torch.testing.assert_close(found, expected, **near)

    for variant in ("narrow",) if arm else ("narrow", "wide"):
        for rows in (3, 66):
            check(variant, everywhere(rows, False))
        check(variant, () if arm else on_x86())
    for rows in () if arm else (3, 66):
        check("bfloat16", (*everywhere(rows, True), encoders(rows, True)))
