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
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from slimwhisper.errors import OptionError
from slimwhisper.kernels.attention import ALL, CacheWrite, Latent, Reads, add_norm, head_attention
from slimwhisper.kernels.blocks import LatentBlock
from slimwhisper.kernels.cpu.library import Library, library, multiply_heads

if TYPE_CHECKING:  # of a GPU
    from slimwhisper.kernels.configurations import TritonDevice

logger = logging.getLogger("slimwhisper.kernels")

OPERATIONS = ("latent", "heads", "add_norm", "choose_token")
CHOICES = ("auto", "torch", "triton")
PATHS = {"cuda": "CUDA", "triton": "Triton"}  # of a GPU


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make a GPU the thread's current one: Triton launches there, wherever the tensors are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def indexed(device: torch.device) -> torch.device:
    """The device as its tensors name it: "cuda" is the current GPU, with its number, which some of
    PyTorch's functions insist on. Raises PyTorch's errors if it does not work: it runs a kernel, as
    a GPU may be too old for those of this PyTorch.
    """
    return torch.ones(1, device=device).device


class ByTorch:
    """The operations as `Kernels` describes them, without kernels of our own."""

    path = "torch"
    add_norm = staticmethod(add_norm)

    def __init__(self, library: Library | None) -> None:
        self.library = library  # for the maps of the heads

    def latent(
        self, queries: Tensor, latent: Latent, scale: float, reads: Reads, maps: Tensor | None
    ) -> Tensor:
        """As `Kernels.latent`. The queries go through `scaled_dot_product_attention` as the queries
        of one head, so that the latent is read once; per-head products would read it h times.
        """
        windows = reads.windows(len(latent))
        if reads.block_table is not None:
            latent = Latent(*(reads.gathered(t, 1) for t in latent.tensors()))
        elif reads.slots is not None:
            latent = latent[reads.slots]
        values = latent.dequantized(queries.dtype)[:, None]
        grouped = queries.reshape(windows, 1, -1, queries.shape[-1])
        bias = None if reads.bias is None else reads.bias().unsqueeze(1)
        if reads.position_bias is not None:
            slots = slice(None) if reads.slots is None else reads.slots
            position_bias = reads.position_bias[slots][:, None, None].to(queries.dtype)
            bias = position_bias if bias is None else bias + position_bias
        output = head_attention(grouped, values, values, bias, scale=scale).view(queries.shape)
        return output if maps is None else multiply_heads(self.library, output, maps, True)

    def heads(self, queries: Tensor, keys: Tensor, values: Tensor, reads: Reads) -> Tensor:
        """As `Kernels.heads`."""
        windows = reads.windows(len(keys))
        if reads.slots is not None:
            keys, values = keys[reads.slots], values[reads.slots]
        if reads.block_table is not None:
            keys, values = reads.gathered(keys, 2), reads.gathered(values, 2)
        mask = None if reads.bias is None else reads.bias().unsqueeze(1)
        grouped = queries.unflatten(0, (windows, -1)).transpose(1, 2)
        output = head_attention(grouped, keys, values, mask)
        return output.transpose(1, 2).reshape(queries.shape)


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
        self.triton_device: TritonDevice | None = None
        self.why = "the device is a CPU" if choice == "auto" else "SLIMWHISPER_KERNELS=torch"
        if choice == "triton" or (choice == "auto" and device.type != "cpu"):
            from slimwhisper.kernels.configurations import find_triton_device

            self.triton_device, self.why = find_triton_device(device, dtype)
        self.hopper: TritonDevice | None = None  # the same, if it runs the kernel for Hopper
        self.library = library(dtype) if choice == "auto" and device.type == "cpu" else None
        back_ends: list[Any] = [] if self.library is None else [self.library]
        if self.triton_device is not None:
            from slimwhisper.kernels.gpu import driver
            from slimwhisper.kernels.gpu.back_ends import ByTriton, OnHopper

            is_hopper = self.triton_device.capability == driver.CAPABILITY
            if choice == "auto" and is_hopper and driver.has_bindings():
                self.hopper = self.triton_device
                back_ends.append(OnHopper(self.hopper))
            back_ends.append(ByTriton(self.triton_device, dtype))
        back_ends.append(ByTorch(self.library))
        # of each operation, paths in the order in which they are tried; a function returns None for
        # what it cannot run
        self._table: dict[str, list[tuple[str, Callable[..., Any]]]] = {
            name: [(b.path, getattr(b, name)) for b in back_ends if hasattr(b, name)]
            for name in OPERATIONS
        }

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
            reads: which positions, and `position_bias`.
            maps: [h, d_k, d], every head's B_i^T; None: the sums are returned as they are.
        Returns:
            [N, h, d_k], or [N, h, d] without maps.
        """
        return self._run("latent", queries, latent, scale, reads, maps)

    def latent_block(
        self, block: LatentBlock | None, x: Tensor, latent: Latent, reads: Reads
    ) -> Tensor | None:
        """Latent attention with all its projections: x [R, T, d] -> [R, T, d]; latent and reads as
        in `latent`. None: it has to be computed in parts.
        """
        if block is None:
            return None
        output = block(x, latent, reads)
        if output is not None:
            self.used["latent", "c"] += 1
        return output

    def multiply_heads(self, x: Tensor, maps: Tensor, transpose: bool = False) -> Tensor:
        """x_i M_i of every head i: x [N, h, in], maps [h, in, out] -> [N, h, out]; transpose:
        x_i M_i^T, maps [h, out, in].
        """
        return multiply_heads(self.library, x, maps, transpose)

    def heads(self, queries: Tensor, keys: Tensor, values: Tensor, reads: Reads = ALL) -> Tensor:
        """softmax(q_i K_i^T / sqrt(d_k)) V_i for every head i of each row.

        Arguments:
            queries: [N, h, d_k]; the rows of one window are adjacent.
            keys, values: [S, h, T, d_k]; N is a multiple of the number of windows in `reads`.
            reads: which positions; no `position_bias`.
        Returns:
            [N, h, d_k].
        """
        return self._run("heads", queries, keys, values, reads)

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
        return self._run("add_norm", x, addend, weight, bias, write, shift)

    def choose_token(
        self,
        logits: Tensor,
        state: tuple[Tensor, ...],
        boundaries: tuple[int, int, int, int] | None,
        rules: bool,
        by_torch: Callable[[], tuple[Tensor, Tensor]],
        count: int = 1,
        draws: Sequence[Tensor] = (),
        ranking: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Each row's most likely tokens [R, count] int64, the best first, or a random one, and
        their log-probabilities [R, count].

        logits [R, V], state each [R], boundaries, as in `choose_token.choose_token`; None:
        the vocabulary's text lies elsewhere. by_torch: the same in PyTorch. draws: of one token,
        the rows' temperatures [R] float32, and keys [R] int64: above 0, it is a random one.
        ranking: of several, what decides instead of the logits, [R, V].
        """
        chosen: tuple[Tensor, Tensor] | None = None
        if boundaries is not None:
            chosen = self._run(
                "choose_token", logits, state, boundaries, rules, count, draws, ranking
            )
        if chosen is None:
            self.used["choose_token", ByTorch.path] += 1
            return by_torch()
        return chosen

    def _run(self, operation: str, *arguments: Any) -> Any:
        """The result of the first back end that gives one, which `used` counts."""
        for path, run in self._table[operation]:
            if path in PATHS:
                result = self._run_on_gpu(operation, path, run, *arguments)
            else:
                result = run(*arguments)
            if result is not None:
                self.used[operation, path] += 1
                return result
        return None

    def _run_on_gpu(
        self, operation: str, path: str, run: Callable[..., Any], *arguments: Any
    ) -> Any:
        """Run a kernel of a GPU; None if it fails, with one warning, or has failed before.

        Errors of the device are raised: out of memory, or one after which nothing else runs.
        """
        if (operation, path) in self.failures:
            return None
        try:
            with on_device(self.device):
                return run(*arguments)
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise
        except Exception as error:  # it does not compile or load, or the launch failed
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # raises if the device has failed
            reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
            self.failures[operation, path] = reason
            text = "%s's kernel %r failed (%s); another does its work, more slowly; %s has more"
            logger.warning(text, PATHS[path], operation, reason, "`slimwhisper doctor`")
            return None
