"""Chooses for each attention of a decode step: kernels of a GPU, C on a CPU, or PyTorch on both.

    CUDA               latent attention on compute capability 9.0 (Hopper), in half precision
    Triton             with CUDA or ROCm, from the table of configurations, by dtype and width
    C                  on a CPU, where it was compiled (`kernels.cpu`): in float32, and in bfloat16
                       where the processor has AVX512-BF16
    PyTorch            everywhere else

Where a kernel of a GPU fails, the next one does its work, with one warning.

SLIMWHISPER_KERNELS=torch turns the others off. =triton turns CUDA off, and uses Triton on a CPU
too, which needs its interpreter (TRITON_INTERPRET=1) and is meant for tests.
"""

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from slimwhisper.errors import OptionError
from slimwhisper.kernels.attention import (
    HeadsByTorch,
    HeadsByTriton,
    HeadsInC,
    LatentByTorch,
    LatentByTriton,
    LatentInC,
    LatentOnHopper,
    groups_of,
)
from slimwhisper.kernels.calls import BackEnd, HeadsCall, LatentCall, multiply_heads
from slimwhisper.kernels.configurations import TritonDevice, find_triton_device
from slimwhisper.kernels.cpu.blocks import LatentBlock, add_norm_in_c
from slimwhisper.kernels.cpu.choose_token import choose_token_in_c
from slimwhisper.kernels.cpu.library import Library, library
from slimwhisper.kernels.latent import Latent
from slimwhisper.kernels.norm import CacheWrite, add_norm
from slimwhisper.kernels.reads import ALL, Reads

logger = logging.getLogger("slimwhisper.kernels")
Result = TypeVar("Result")
Call = TypeVar("Call", LatentCall, HeadsCall)

CHOICES = ("auto", "torch", "triton")
PATHS = {"cuda": "CUDA", "triton": "Triton"}  # of a GPU


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make a GPU the thread's current one: Triton launches there, wherever the tensors are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def indexed(device: torch.device) -> torch.device:
    """The device as its tensors name it: "cuda" is the current GPU, with its number, which some of
    PyTorch's functions insist on. Raises PyTorch's errors if it does not work.
    """
    return torch.empty(0, device=device).device


class Kernels:
    """The attention operations of one device and dtype."""

    def __init__(self, device: torch.device, dtype: torch.dtype, choice: str | None = None) -> None:
        """choice: one of `CHOICES`; None: the value of SLIMWHISPER_KERNELS, else auto.

        Raises `OptionError` for an unknown choice.
        """
        choice = choice or os.environ.get("SLIMWHISPER_KERNELS") or "auto"
        if choice not in CHOICES:
            known = ", ".join(CHOICES)
            raise OptionError(f"SLIMWHISPER_KERNELS: {choice!r} is not one of {known}")
        self.device, self.dtype = device, dtype
        self.used: Counter[tuple[str, str]] = Counter()  # (operation, path): calls
        self.failures: dict[tuple[str, str], str] = {}  # (operation, path): why not any more
        self.triton_device, self.why = find_triton_device(device, dtype, choice)
        self.hopper = _hopper(device, self.triton_device if choice == "auto" else None)
        compiled = choice == "auto" and device.type == "cpu"
        self.library: Library | None = library(dtype) if compiled else None
        self.latent_back_ends: Sequence[BackEnd[LatentCall]] = (
            LatentInC(self.library),
            LatentOnHopper(self.hopper),
            LatentByTriton(self.triton_device, dtype),
            LatentByTorch(self.library),
        )
        self.heads_back_ends: Sequence[BackEnd[HeadsCall]] = (
            HeadsInC(self.library),
            HeadsByTriton(self.triton_device, dtype),
            HeadsByTorch(),
        )

    def describe(self) -> str:
        """Which path is used, and why."""
        if self.library is not None:
            return f"C and PyTorch: {self.why}"
        if self.triton_device is None:
            return f"PyTorch: {self.why}"
        failed = "".join(
            f"; no {name} by {PATHS[path]}: {why}" for (name, path), why in self.failures.items()
        )
        return f"{'Triton' if self.hopper is None else 'CUDA and Triton'}: {self.why}{failed}"

    def latent(
        self,
        queries: Tensor,
        latent: Latent,
        scale: float,
        reads: Reads = ALL,
        maps: Tensor | None = None,
    ) -> Tensor:
        """softmax(Q~ Z^T * scale) Z for all heads of each row, times each head's map.

        Arguments:
            queries: [N, h, d] folded queries; the rows of one window are adjacent.
            latent: values [S, T, d]; N is a multiple of the number of windows in `reads`.
            reads: which positions, and `position_bias`; of a float8 latent, at most one length for
                each window.
            maps: [h, d_k, d], every head's B_i^T; None: the sums are returned as they are.
        Returns:
            [N, h, d_k], or [N, h, d] without maps.
        """
        call = LatentCall(queries, latent, scale, reads, maps)
        return self._attend(self.latent_back_ends, call)

    def latent_block(
        self, block: LatentBlock | None, x: Tensor, latent: Latent, reads: Reads
    ) -> Tensor | None:
        """Latent attention with all its projections: x [R, T, d] -> [R, T, d]; latent and reads as
        in `latent`. None: it has to be computed in parts.
        """
        if block is None or latent.factors is not None:
            return None
        windows, reads = groups_of(reads, reads.windows(len(latent)), x.shape[:-1].numel())
        output = block(x, latent.values, reads, windows)
        if output is not None:
            self.used["latent", "c"] += 1
        return output

    def multiply_heads(self, x: Tensor, maps: Tensor, transpose: bool = False) -> Tensor:
        """x_i M_i of every head i: x [N, h, in], maps [h, in, out] -> [N, h, out]; transpose:
        x_i M_i^T, maps [h, out, in].
        """
        return multiply_heads(self.library, x, maps, transpose)

    def heads(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        reads: Reads = ALL,
    ) -> Tensor:
        """softmax(q_i K_i^T / sqrt(d_k)) V_i for every head i of each row.

        Arguments:
            queries: [N, h, d_k]; the rows of one window are adjacent.
            keys, values: [S, h, T, d_k]; N is a multiple of the number of windows in `reads`.
            reads: which positions; no `position_bias`.
        Returns:
            [N, h, d_k].
        """
        return self._attend(self.heads_back_ends, HeadsCall(queries, keys, values, reads))

    def add_norm(
        self,
        x: Tensor,
        addend: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        write: CacheWrite | None = None,
        shift: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """x + addend and its layer norm, which `write` also stores in a cache; see `norm.add_norm`.

        x, addend: [R, d] or [B, T, d]; weight, bias, shift: [d]. Returns total and normed, like x.
        """

        def by_triton() -> tuple[Tensor, Tensor]:
            """total and normed."""
            from slimwhisper.kernels.gpu.norm import add_norm_by_triton

            return add_norm_by_triton(x, addend, weight, bias, write, shift)

        def in_c() -> tuple[Tensor, Tensor] | None:
            """total and normed."""
            assert self.library is not None
            if write is None:
                return add_norm_in_c(self.library, x, addend, weight, bias)
            if write.column_scales is not None:
                return None
            where = write.latent.values, write.ids, write.positions
            return add_norm_in_c(self.library, x, addend, weight, bias, where)

        paths: list[tuple[str, Callable[[], tuple[Tensor, Tensor] | None]]]
        paths = [("torch", lambda: add_norm(x, addend, weight, bias, write, shift))]
        if self.library is not None and shift is None:
            paths.insert(0, ("c", in_c))
        if self.triton_device is not None and weight.dtype == torch.float32:
            paths.insert(0, ("triton", by_triton))
        return self._run("add_norm", paths)

    def choose_token(
        self,
        logits: Tensor,
        state: tuple[Tensor, ...],
        boundaries: tuple[int, int, int, int] | None,
        rules: bool,
        by_torch: Callable[[], tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor]:
        """Each row's most likely token [R] int64 and its log-probability [R].

        logits [R, V], state each [R], boundaries, as in `choose_token.choose_token`; None:
        the vocabulary's text lies elsewhere. by_torch: the same in PyTorch.
        """

        def by_triton() -> tuple[Tensor, Tensor]:
            """[R] int64, [R] float32."""
            from slimwhisper.kernels.gpu.choose_token import choose_token

            assert boundaries is not None
            return choose_token(logits, state, boundaries, rules)

        def in_c() -> tuple[Tensor, Tensor] | None:
            """[R] int64, [R] float32."""
            assert self.library is not None and boundaries is not None
            return choose_token_in_c(self.library, logits, state, boundaries, rules)

        paths: list[tuple[str, Callable[[], tuple[Tensor, Tensor] | None]]]
        paths = [("torch", by_torch)]
        if self.library is not None and boundaries is not None:
            paths.insert(0, ("c", in_c))
        single = logits.dtype == torch.float32
        if self.triton_device is not None and single and boundaries is not None:
            paths.insert(0, ("triton", by_triton))
        return self._run("choose_token", paths)

    def _attend(self, back_ends: Sequence[BackEnd[Call]], call: Call) -> Tensor:
        paths = ((b.path, partial(b.run, call)) for b in back_ends if b.supports(call))
        return self._run(call.operation, paths)

    def _run(
        self, operation: str, paths: Iterable[tuple[str, Callable[[], Result | None]]]
    ) -> Result:
        """The result of the first (path, function) that gives one, which `used` counts."""
        for path, run in paths:
            result = self._run_on_gpu(operation, path, run) if path in PATHS else run()
            if result is not None:
                self.used[operation, path] += 1
                return result
        raise AssertionError(f"no back end runs {operation}")

    def _run_on_gpu(
        self, operation: str, path: str, run: Callable[[], Result | None]
    ) -> Result | None:
        """Run a kernel of a GPU; None if it fails, with one warning, or has failed before.

        Errors of the device are raised: out of memory, or one after which nothing else runs.
        """
        if (operation, path) in self.failures:
            return None
        try:
            with on_device(self.device):
                return run()
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise
        except Exception as error:  # it does not compile or load, or the launch failed
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # raises if the device has failed
            reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
            self.failures[operation, path] = reason
            logger.warning(
                "%s's kernel %r failed (%s); another does its work, more slowly; "
                "`slimwhisper doctor` has more",
                PATHS[path],
                operation,
                reason,
            )
            return None


def _hopper(device: torch.device, limits: TritonDevice | None) -> TritonDevice | None:
    """The limits of a device that runs the kernels for Hopper, or None."""
    if limits is None or device.type != "cuda" or torch.version.hip:
        return None
    from slimwhisper.kernels.gpu.driver import CAPABILITY, has_bindings

    return limits if limits.capability == CAPABILITY and has_bindings() else None
