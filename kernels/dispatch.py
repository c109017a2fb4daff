"""Chooses for each attention of a decode step: Triton on a GPU, C on a CPU, or PyTorch on both.

    Triton             on CUDA devices, from the table of configurations, by dtype and width
    C                  on a CPU, in float32, where it was compiled (`kernels.cpu`)
    PyTorch            everywhere else, and where a Triton kernel fails: one warning, then PyTorch

SLIMWHISPER_KERNELS=torch turns the others off; =triton uses it on a CPU too, which needs Triton's
interpreter (TRITON_INTERPRET=1) and is meant for tests. SLIMWHISPER_LATENT=swapped chooses the
kernel with swapped operands, where it can run, until it has been timed.
"""

import logging
import os
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

from slimwhisper.errors import OptionError
from slimwhisper.kernels.configurations import Configuration, Processor, choose_splits, find
from slimwhisper.kernels.cpu.library import Library, library
from slimwhisper.kernels.gpu.latent_swapped import serves
from slimwhisper.kernels.heads import head_attention
from slimwhisper.kernels.latent import Latent, latent_attention
from slimwhisper.kernels.norm import Place, add_norm
from slimwhisper.kernels.reads import ALL, Reads

logger = logging.getLogger("slimwhisper.kernels")
Result = TypeVar("Result")

CHOICES = ("auto", "torch", "triton")
LATENT_KERNELS = ("split", "swapped")
LEAST_CAPABILITY = (8, 0)  # tensor cores for bfloat16, asynchronous copies
MOST_ROWS = 32  # of a window in one call by heads; more, as in a prompt, go to flash-attention


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make a GPU the thread's current one: Triton launches there, wherever the tensors are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class Kernels:
    """The attention operations of one device and dtype."""

    def __init__(self, device: torch.device, dtype: torch.dtype, choice: str | None = None) -> None:
        """choice: one of `CHOICES`; None: the value of SLIMWHISPER_KERNELS, else auto.

        Raises `OptionError` for an unknown choice, or value of SLIMWHISPER_LATENT.
        """
        choice = choice or os.environ.get("SLIMWHISPER_KERNELS") or "auto"
        latent = os.environ.get("SLIMWHISPER_LATENT") or "split"
        for name, value, known in (
            ("SLIMWHISPER_KERNELS", choice, CHOICES),
            ("SLIMWHISPER_LATENT", latent, LATENT_KERNELS),
        ):
            if value not in known:
                raise OptionError(f"{name}: {value!r} is not one of {', '.join(known)}")
        self.device, self.dtype = device, dtype
        self.used: Counter[tuple[str, str]] = Counter()  # (operation, path): calls
        self.failures: dict[str, str] = {}  # kernel: why it is no longer used
        self.processor, self.why = _processor(device, dtype, choice)
        compiled = choice == "auto" and device.type == "cpu" and dtype == torch.float32
        self.library: Library | None = library() if compiled else None
        hopper = self.processor is not None and self.processor.capability == 90  # has wgmma
        self.swapped = latent == "swapped" and hopper and device.type == "cuda"

    def describe(self) -> str:
        """Which path is used, and why."""
        if self.library is not None:
            return f"C and PyTorch: {self.why}"
        if self.processor is None:
            return f"PyTorch: {self.why}"
        instead = {"latent_swapped": "latent"}
        failed = "".join(
            f"; {name} by {instead.get(name, 'PyTorch')}: {why}"
            for name, why in self.failures.items()
        )
        swapped = "; SLIMWHISPER_LATENT=swapped" if self.swapped else ""
        return f"Triton: {self.why}{swapped}{failed}"

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
            reads: which positions, and `position_bias`; no `sources` with a float8 latent.
            maps: [h, d_k, d], every head's B_i^T; None: the sums are returned as they are.
        Returns:
            [N, h, d_k], or [N, h, d] without maps.
        """
        count, windows = len(queries), reads.windows(len(latent))
        width, each = queries.shape[-1], count // windows * queries.shape[1]
        kernel = "latent" if latent.factors is None else "latent8"

        def by_triton(c: Configuration, p: Processor) -> Tensor:
            """[N, h, d_k] or [N, h, d]."""
            splits = _splits(c, p, windows * -(-each // c.block_q), latent.values.shape[1])
            if latent.factors is None:
                from slimwhisper.kernels.gpu.latent import split_latent

                return split_latent(queries, latent.values, scale, c, splits, reads, maps)
            from slimwhisper.kernels.gpu.latent8 import split_latent8

            # the kernel turns float8 into float16, whatever the model's dtype
            half, kind = queries.half(), queries.dtype
            return split_latent8(half, latent, scale, c, splits, reads, maps).to(kind)

        def mapped(mix: Tensor) -> Tensor:
            """[N, h, d] -> [N, h, d_k] or [N, h, d]."""
            return mix if maps is None else self.by_head(mix, maps, turned=True)

        def by_torch() -> Tensor:
            """[N, h, d_k] or [N, h, d]."""
            kept = latent if reads.slots is None else latent[reads.slots]
            if reads.sources is not None:
                places = torch.arange(latent.values.shape[1], device=queries.device)
                kept = latent[reads.sources, places]
            together = queries.reshape(windows, each, width)
            plain = kept.plain(queries.dtype)
            bias = None if reads.bias is None else reads.bias().view(windows, -1, plain.shape[1])
            if bias is not None and bias.shape[1] > 1:  # of each row: for all its heads
                bias = bias.repeat_interleave(each // bias.shape[1], dim=1)
            if reads.position_bias is not None:
                slots = slice(None) if reads.slots is None else reads.slots
                added = reads.position_bias[slots].unsqueeze(1).to(queries.dtype)
                bias = added if bias is None else bias + added
            mix = latent_attention(together, plain, scale, bias).view(queries.shape)
            return mapped(mix)

        def in_c() -> Tensor | None:
            """[N, h, d_k] or [N, h, d]."""
            if self.library is None or latent.factors is not None or reads.sources is not None:
                return None
            slots, groups = _groups(reads, windows, count)
            together = queries.reshape(groups, -1, width)
            bias = reads.position_bias
            mix = self.library.latent(together, latent.values, scale, slots, reads.lengths, bias)
            if mix is None:
                return None
            self.used[kernel, "c"] += 1
            return mapped(mix.reshape(queries.shape))

        found = in_c()
        if found is not None:
            return found

        def by_shape() -> Tensor:
            """[N, h, d_k] or [N, h, d]."""
            return self._shaped(kernel, width, each, by_triton, by_torch)

        processor = self.processor
        if processor is None or not self.swapped or not serves(queries, latent, reads):
            return by_shape()

        def by_swapped() -> Tensor:
            """[N, h, d_k] or [N, h, d]."""
            from slimwhisper.kernels.gpu.latent_gluon import TILE
            from slimwhisper.kernels.gpu.latent_swapped import swapped_latent

            tiles = -(-latent.values.shape[1] // TILE.value)
            splits = choose_splits(count, tiles, processor.count)
            return swapped_latent(queries, latent, scale, splits, reads, maps)

        return self._run("latent_swapped", by_swapped, by_shape, "the other latent kernel")

    def by_head(self, x: Tensor, maps: Tensor, turned: bool = False) -> Tensor:
        """x_i M_i of every head i: x [N, h, in], maps [h, in, out] -> [N, h, out]; turned:
        x_i M_i^T, maps [h, out, in].
        """
        if self.library is not None:
            found = self.library.by_head(x, maps, turned)
            if found is not None:
                return found
        return torch.bmm(x.transpose(0, 1), maps.mT if turned else maps).transpose(0, 1)

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
        (count, h, width), windows = queries.shape, reads.windows(len(keys))
        group = count // windows

        def in_c() -> Tensor | None:
            """[N, h, d_k]."""
            if self.library is None or reads.sources is not None or group > MOST_ROWS:
                return None
            slots, groups = _groups(reads, windows, count)
            together = queries.unflatten(0, (groups, -1)).transpose(1, 2)
            found = self.library.heads(together, keys, values, width**-0.5, slots, reads.lengths)
            if found is None:
                return None
            self.used["heads", "c"] += 1
            return found.transpose(1, 2).reshape(queries.shape)

        def by_triton(c: Configuration, p: Processor) -> Tensor:
            """[N, h, d_k]."""
            from slimwhisper.kernels.gpu.heads import split_heads

            splits = _splits(c, p, windows * h * -(-group // c.block_q), keys.shape[2])
            return split_heads(queries, keys, values, c, splits, reads)

        def by_torch() -> Tensor:
            """[N, h, d_k]."""
            slots, sources = reads.slots, reads.sources
            k, v = (keys, values) if slots is None else (keys[slots], values[slots])
            if sources is not None:
                places = torch.arange(keys.shape[2], device=queries.device)
                k, v = (t[sources, :, places].transpose(1, 2) for t in (keys, values))
            together = queries.unflatten(0, (windows, group)).transpose(1, 2)
            mask = None
            if reads.bias is not None:
                mask = reads.bias().view(windows, 1, -1, keys.shape[2])
            return head_attention(together, k, v, mask).transpose(1, 2).reshape(queries.shape)

        found = in_c()
        if found is not None:
            return found
        if group > MOST_ROWS:
            return self._run("heads", None, by_torch)
        return self._shaped("heads", width, group, by_triton, by_torch)

    def add_norm(
        self,
        x: Tensor,
        addend: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        place: Place | None = None,
    ) -> tuple[Tensor, Tensor]:
        """x + addend and its layer norm, which is kept in `place`; see `norm.add_norm`.

        x, addend: [R, d] or [B, T, d]; weight, bias: [d]. Returns total and normed, like x.
        """

        def by_triton() -> tuple[Tensor, Tensor]:
            """Like x, both."""
            from slimwhisper.kernels.gpu.norm import add_norm_by_triton

            return add_norm_by_triton(x, addend, weight, bias, place)

        usable = self.processor is not None and weight.dtype == torch.float32
        return self._run(
            "add_norm",
            by_triton if usable else None,
            lambda: add_norm(x, addend, weight, bias, place),
        )

    def choose_token(
        self,
        logits: Tensor,
        state: tuple[Tensor, ...],
        boundaries: tuple[int, int, int, int] | None,
        rules: bool,
        by_torch: Callable[[], tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor]:
        """Each row's most likely token [R] int64 and its log-probability [R].

        logits [R, V], state each [R], boundaries, as in `choose_token.choose_token`; None: of a
        vocabulary whose text lies elsewhere. by_torch: does the same in PyTorch.
        """

        def by_triton() -> tuple[Tensor, Tensor]:
            """[R] int64, [R] float32."""
            from slimwhisper.kernels.gpu.choose_token import choose_token

            assert boundaries is not None
            return choose_token(logits, state, boundaries, rules)

        usable = (
            self.processor is not None and logits.dtype == torch.float32 and boundaries is not None
        )
        return self._run("choose_token", by_triton if usable else None, by_torch)

    def _shaped(
        self,
        kernel: str,
        width: int,
        queries: int,
        by_triton: Callable[[Configuration, Processor], Tensor],
        by_torch: Callable[[], Tensor],
    ) -> Tensor:
        """Run a kernel in the configuration that the table has for it, else in PyTorch.

        `width` d or d_k; `queries` per window. Returns what either callable returns.
        """
        processor, shape = self.processor, None
        if processor is not None:
            shape = find(kernel, str(self.dtype)[6:], width, queries, processor)
        if processor is None or shape is None:
            return self._run(kernel, None, by_torch)
        return self._run(kernel, lambda: by_triton(shape, processor), by_torch)

    def _run(
        self,
        operation: str,
        by_triton: Callable[[], Result] | None,
        by_torch: Callable[[], Result],
        instead: str = "PyTorch",
    ) -> Result:
        if by_triton is not None and operation not in self.failures:
            try:
                with on_device(self.device):
                    result = by_triton()
            except torch.OutOfMemoryError:  # PyTorch's way needs more memory, not less
                raise
            except Exception as error:  # whatever a compiler or driver raises, PyTorch still works
                why = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
                self.failures[operation] = why
                logger.warning(
                    "the Triton kernel %r failed (%s); %s does its work, more slowly; "
                    "`slimwhisper doctor` has more",
                    operation,
                    why,
                    instead,
                )
            else:
                self.used[operation, "triton"] += 1
                return result
        self.used[operation, "torch"] += 1
        return by_torch()


def _groups(reads: Reads, windows: int, count: int) -> tuple[Tensor | None, int]:
    """The slots that groups of `count` rows read, each of one length, and how many groups: the
    windows, or, where the tokens of a text have lengths of their own, the rows.
    """
    slots = reads.slots
    if reads.lengths_each(windows) <= 1:
        return slots, windows
    slots = torch.arange(windows) if slots is None else slots
    return slots.repeat_interleave(count // windows), count


def _splits(c: Configuration, p: Processor, programs: int, positions: int) -> int:
    return choose_splits(programs, -(-positions // c.block_t), p.count * p.programs(c))


def _processor(
    device: torch.device, dtype: torch.dtype, choice: str
) -> tuple[Processor | None, str]:
    """What Triton runs on, or None if it is not used; and why."""
    if choice == "torch":
        return None, "SLIMWHISPER_KERNELS=torch"
    if device.type == "cpu":
        return _interpreter(dtype) if choice == "triton" else (None, "the device is a CPU")
    if device.type != "cuda" or torch.version.hip:
        return None, "the configurations are for NVIDIA's GPUs"
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        return None, f"compute capability {capability[0]}.{capability[1]} is below 8.0"
    try:
        import triton  # absent on some platforms
    except ImportError as error:
        return None, f"triton does not load ({error})"
    properties = torch.cuda.get_device_properties(device)
    shared: int = properties.shared_memory_per_block_optin  # type: ignore[attr-defined]
    major, minor = capability
    found = Processor(shared, properties.multi_processor_count, 10 * major + minor)
    return found, f"triton {triton.__version__} on {properties.name}"


def _interpreter(dtype: torch.dtype) -> tuple[Processor | None, str]:
    if os.environ.get("TRITON_INTERPRET") != "1":
        return None, "the device is a CPU, and TRITON_INTERPRET is not 1"
    if dtype == torch.bfloat16:
        return None, "Triton's interpreter computes bfloat16 wrongly"
    return Processor(shared=232_448, count=4, capability=90), "interpreted on the CPU"
