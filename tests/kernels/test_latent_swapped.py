"""The kernel with swapped operands: on a GPU that has wgmma, else its source run on the CPU."""

import json
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton.experimental.gluon")

from slimwhisper.errors import OptionError
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.kernels.gpu import latent_gluon, latent_swapped
from slimwhisper.kernels.gpu.compilation import SHARED
from slimwhisper.kernels.gpu.latent import split_latent_reference
from slimwhisper.kernels.gpu.latent_swapped import SHAPES, serves, swapped_latent
from slimwhisper.kernels.latent import Latent
from slimwhisper.kernels.reads import ALL, Reads
from tests.support.gluon_on_cpu import OnCPU

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
NAN = float("nan")
HALVES = [torch.float16, torch.bfloat16]

if GPU and torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("the kernel is for compute capability 9.0", allow_module_level=True)


@pytest.fixture(autouse=True)
def on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory is NaN; without a GPU, the kernel's source runs as Python."""
    plain = torch.empty

    def filled(*args: object, **kwargs: object) -> Tensor:
        return plain(*args, **kwargs).fill_(NAN)

    monkeypatch.setattr(torch, "empty", filled)
    if not GPU:
        kernel = latent_gluon.swapped_latent_kernel
        monkeypatch.setattr(latent_gluon, "swapped_latent_kernel", OnCPU(kernel))


def normal(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to(DEVICE, dtype)


def queries_of(windows: int, width: int, dtype: torch.dtype) -> Tensor:
    """[B, h, d], laid out head by head, as the product before leaves them."""
    return normal(SHAPES[width][0], windows, width, seed=0, dtype=dtype).transpose(0, 1)


def assert_close(found: Tensor, queries: Tensor, z: Tensor, scale: float, reads: Reads) -> None:
    """At most twice the error of plain PyTorch in the dtype, of float64 as the truth."""
    true = split_latent_reference(queries.double(), Latent(z.double()), scale, reads)
    plain = torch.zeros_like(queries)
    for b in range(len(queries)):
        slot = b if reads.slots is None else int(reads.slots[b])
        kept = z[slot] if reads.lengths is None else z[slot, : int(reads.lengths[b])]
        weights = (queries[b] @ kept.T * scale).float().softmax(dim=-1).to(z.dtype)
        plain[b] = weights @ kept
    assert torch.isfinite(found).all()
    error, allowed = (found - true).abs().max(), 2 * (plain - true).abs().max()
    assert error <= allowed + 1e-6, (error, allowed)


CASES = [  # windows, positions, splits: odd tails, one tile, an empty split, whole tiles, Whisper's
    (1, 1, 1),
    (2, 37, 3),
    (1, 64, 1),
    (2, 200, 2),
    pytest.param((1, 1500, 2), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("width", SHAPES)
def test_swapped_latent(width: int, case: tuple[int, int, int]) -> None:
    windows, positions, splits = case
    queries = queries_of(windows, width, torch.float16)
    z = normal(windows, positions, width, seed=1, dtype=torch.float16)
    scale = 2 * width**-0.5
    found = swapped_latent(queries, Latent(z), scale, splits)
    assert_close(found, queries, z, scale, ALL)


@pytest.mark.parametrize("width", SHAPES)
def test_swapped_latent_in_bfloat16(width: int) -> None:
    """In one split: `combine` is Triton's, whose interpreter computes bfloat16 wrongly."""
    queries = queries_of(2, width, torch.bfloat16)
    z = normal(2, 150, width, seed=1, dtype=torch.bfloat16)
    assert_close(swapped_latent(queries, Latent(z), 0.05, 1), queries, z, 0.05, ALL)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("width", SHAPES)
def test_it_reads_only_what_it_may(width: int, splits: int) -> None:
    """Slots in any order, lengths from 0 on, strides, and NaN everywhere else."""
    dtype = torch.float16
    lengths = torch.tensor([0, 1, 29, 64, 150, 200], device=DEVICE)
    slots = torch.tensor([4, 0, 6, 2, 1, 5], device=DEVICE)
    z = torch.full((7, 200, 2 * width), NAN, device=DEVICE, dtype=dtype)[:, :, :width]
    for slot, length in zip(slots.tolist(), lengths.tolist(), strict=True):
        z[slot, :length] = normal(length, width, seed=slot, dtype=dtype)
    queries, reads = queries_of(6, width, dtype), Reads(slots, lengths)
    found = swapped_latent(queries, Latent(z), 0.06, splits, reads)
    assert (found[0] == 0).all()  # nothing to read
    assert_close(found, queries, z.nan_to_num(), 0.06, reads)


@pytest.mark.parametrize("width", SHAPES)
def test_rows_of_a_window_read_its_latent(width: int) -> None:
    """Three rows each, two splits, slots and lengths of the windows."""
    z = normal(3, 100, width, seed=1, dtype=torch.float16)
    queries = queries_of(6, width, torch.float16)
    reads = Reads(torch.tensor([2, 0], device=DEVICE), torch.tensor([90, 64], device=DEVICE))
    found = swapped_latent(queries, Latent(z), 0.06, 2, reads)
    alone = Reads(*(t.repeat_interleave(3) for t in (reads.slots, reads.lengths) if t is not None))
    assert_close(found, queries, z, 0.06, alone)


@pytest.mark.parametrize("width", SHAPES)
def test_it_survives_extreme_scores(width: int) -> None:
    queries = queries_of(1, width, torch.float16) * 20
    z = normal(1, 100, width, seed=1, dtype=torch.float16) * 10
    assert_close(swapped_latent(queries, Latent(z), 1.0, 2), queries, z, 1.0, ALL)


def test_what_it_serves() -> None:
    def asked(
        width: int = 1280, heads: int = 20, rows: int = 2, dtype: torch.dtype = torch.float16
    ) -> Tensor:
        return torch.zeros(rows, heads, width, dtype=dtype)

    def kept(width: int = 1280, dtype: torch.dtype = torch.float16) -> Latent:
        return Latent(torch.zeros(2, 9, width, dtype=dtype))

    for width, (heads, _) in SHAPES.items():
        for dtype in HALVES:
            assert serves(asked(width, heads, dtype=dtype), kept(width, dtype), ALL)
    assert not serves(asked(768, 12), kept(768), ALL)  # narrower
    assert not serves(asked(heads=16), kept(), ALL)
    assert serves(asked(rows=4), kept(), ALL)  # two rows of one window
    lengths = Reads(lengths=torch.tensor([3, 4, 8, 9]))
    assert not serves(asked(rows=4), kept(), lengths)  # that end one after the other
    assert not serves(asked(dtype=torch.float32), kept(dtype=torch.float32), ALL)
    assert not serves(asked(), kept(dtype=torch.bfloat16), ALL)
    assert not serves(asked(), Latent.allocate((2, 9, 1280), DEVICE, torch.float16, True), ALL)
    sources = Reads(sources=torch.zeros(2, 9, dtype=torch.int64))
    assert not serves(asked(), kept(), sources)
    assert not serves(asked(), kept(), Reads(position_bias=torch.zeros(2, 9)))
    odd = torch.zeros(2, 9, 1281, dtype=torch.float16)
    assert not serves(asked(), Latent(odd[:, :, 1:]), ALL)  # rows not aligned to 16 bytes


def kernels_with(monkeypatch: pytest.MonkeyPatch, latent: str) -> Kernels:
    monkeypatch.setenv("SLIMWHISPER_LATENT", latent)
    kernels = Kernels(DEVICE, torch.float16, None if GPU else "triton")
    if not GPU:
        assert not kernels.swapped  # the interpreter does not run Gluon
        kernels.swapped = latent == "swapped"
    return kernels


def attend(kernels: Kernels, width: int, heads: int) -> Tensor:
    queries = normal(2, heads, width, seed=0, dtype=torch.float16)
    z = normal(2, 70, width, seed=1, dtype=torch.float16)
    return kernels.latent(queries, Latent(z), width**-0.5)


@pytest.mark.parametrize("latent", ["", "split", "swapped"])
def test_the_switch(latent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where the kernel can run; the other one otherwise, and without the switch."""
    kernels = kernels_with(monkeypatch, latent)
    found = attend(kernels, 1280, 20)
    attend(kernels, 64, 1)
    swapped = latent == "swapped"
    assert kernels.used["latent_swapped", "triton"] == swapped
    assert kernels.used["latent", "triton"] == 2 - swapped
    assert kernels.used["latent", "torch"] == 0
    assert ("SLIMWHISPER_LATENT=swapped" in kernels.describe()) == swapped
    plain = attend(Kernels(DEVICE, torch.float16, "torch"), 1280, 20)
    torch.testing.assert_close(found, plain, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("fault", ["compiler", "import"])
def test_where_it_fails_the_other_kernel_takes_over(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> Tensor:
        raise RuntimeError("no such instruction")

    kernels = kernels_with(monkeypatch, "swapped")
    if fault == "compiler":
        monkeypatch.setattr(latent_swapped, "swapped_latent", fails)
    else:  # Gluon is experimental: another Triton may lack a name
        monkeypatch.setitem(sys.modules, "slimwhisper.kernels.gpu.latent_gluon", None)
    for _ in range(2):
        attend(kernels, 1280, 20)
    assert kernels.used["latent", "triton"] == 2
    (warning,) = caplog.messages
    assert "'latent_swapped' failed" in warning and "the other latent kernel" in warning
    assert "; latent_swapped by latent: " in kernels.describe()


def test_an_unknown_latent_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="SLIMWHISPER_LATENT: 'fast' is not one of split, swap"):
        kernels_with(monkeypatch, "fast")


@pytest.mark.slow
def test_it_compiles_without_spills() -> None:
    """In another process: here Triton interprets."""
    done = subprocess.run(
        [sys.executable, "-m", "slimwhisper.kernels.gpu.compilation", "latent_swapped", "--some"],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "0"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    made = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(made) == 2 * len(SHAPES)
    for one in made:
        assert one["stack"] == 0, one
        assert one["shared"] <= SHARED[90], one
