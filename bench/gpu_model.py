"""What decoding costs on GPUs, computed; `gpu_tables.py` prints it.

Nothing here was timed. Every kernel is taken to run by itself:

    launch + max(shortest, bytes / (share * copy rate), operations / (share * matmul rate))

the roofline (Williams et al. 2009). "limit" is what the device allows: weights and caches read once
at a copy's rate, products at the rate of large ones, all else free. "present" is the code as it is,
by readings of compiled kernels, with the `CHANGES` that are `DONE`. Left out: L2, cuDNN's plans.
"""

from dataclasses import dataclass, replace
from math import ceil, log2
from typing import NamedTuple

from slimwhisper.kernels.configurations import choose_splits
from slimwhisper.types import CHUNK_SECONDS, Dims

STEPS = 115  # tokens sampled in a window of speech
PROMPT = 227  # the longest: the text before, <|startofprev|> and three more
CONTEXT = 224  # tokens of each text in the step that is shown
HALF, SINGLE = 2, 4  # bytes of a value
# Kernels of a decoder layer in a step, and of a step besides its layers. Kept equal to what the
# code launches by tests/engine/test_on_a_gpu.py, which counts them.
LAUNCHES, LAUNCHES_BESIDE = 16, 33
# At most GROUP windows are encoded, and prompted, together. SESSION: seconds of the host's own work
# on a window.
GROUP, SESSION = 8, 0.32e-3
# What was found to cost time, and what a change brings; those in DONE are in the code.
CHANGES = {
    "prompts": "one upload a group, prompts as graphs",
    "overlap": "the encoder beside the steps of a stream that goes first",
    "snapshots": "snapshots every 2 tokens, not 4",
    "combine": "more than 4 partial sums combined by a kernel of their own",
    "groups": "windows encoded 8 at a time, ahead, in slots of their own",
}
DONE = frozenset(CHANGES)
# Without "prompts", the host waits for the GPU and then launches a prompt kernel by kernel: the GPU
# is idle for IDLE seconds a layer, and WAIT seconds for each of 4 + 2 n copies. With it, prompts
# are padded to PADDED tokens, and their number to a power of 2.
IDLE, WAIT = 170e-6, 25e-6
PADDED = (4, 32, 64, 128, 192, 256, 448)
KEYS_FROM = 68  # tokens of a prompt from which on the audio's keys and values are computed for it
# With "overlap", the share of the time that a step's kernels leave idle, waiting for one another,
# in which the encoder works; assumed.
OVERLAPPED = 0.3
# Steps from one snapshot to the next, and that an ended text holds its slot; by "snapshots"
LOOK, LATE = {False: 4, True: 2}, {False: 6, True: 3}
SLOW_COMBINE = 14e-6  # seconds more for one of more than 4 parts, without "combine"

COPY, MATMUL = 4.3 / 4.8, 790 / 989  # of a data sheet's rates; an H200's, measured elsewhere
LAUNCH = 1.0e-6  # seconds between dependent kernels of a graph, assumed


class Device(NamedTuple):
    """Bytes a second of a copy; operations a second, dense float16; processors; cycles a second."""

    gpu: str
    copy: float
    matmul: float
    processors: int
    clock: float


DEVICES = (
    Device("NVIDIA H200", COPY * 4.8e12, MATMUL * 989e12, 132, 1.98e9),
    Device("NVIDIA H100 SXM", COPY * 3.35e12, MATMUL * 989e12, 132, 1.98e9),
    Device("NVIDIA A100 SXM 80 GB", COPY * 2.039e12, MATMUL * 312e12, 108, 1.41e9),
    Device("NVIDIA L4", COPY * 0.3e12, MATMUL * 121e12, 58, 2.04e9),
    Device("NVIDIA GeForce RTX 4090", COPY * 1.008e12, MATMUL * 165e12, 128, 2.52e9),
)


class Kind(NamedTuple):
    """How near a kind of kernel comes to the device's rates."""

    copy: float
    matmul: float
    shortest: float = 1.4e-6  # seconds: read, compute, write, drain


PRODUCT = Kind(0.6, 0.64, 5.5e-6)  # cuBLAS; with few rows, blocks along the depth follow each other
LATENT = Kind(0.6, 0.4)  # of this, 2.6 TB/s on an H200, kernels in Triton reach half elsewhere
HEADS, FLASH = Kind(0.65, 0.4), Kind(0.8, 0.4)
PASS = Kind(0.8, 1.0)  # elementwise, norms, combining parts
# Cycles of a processor for 16 positions of 1,280 columns and a block of 32 query rows, as counted
# in compiled kernels: what limits float8, and several beams or tokens in half precision.
CYCLES = {"slim fp8": 3680.0, "slim": 3700.0}


@dataclass(frozen=True)
class Decoding:
    """The seconds of one model in float16; a window is 30 s of audio, or a shorter clip."""

    dims: Dims
    form: str
    batch: int  # windows together
    device: Device = DEVICES[0]
    limit: bool = False
    beams: int = 1  # texts of each window, which share its audio
    prompt: int = PROMPT
    steps: int = STEPS
    done: frozenset[str] = DONE

    @property
    def rows(self) -> int:
        return self.batch * self.beams

    @property
    def encoded(self) -> float:
        """Windows that are encoded together at a steady rate."""
        return GROUP if "groups" in self.done and self.batch > GROUP else self.prompted

    @property
    def prompted(self) -> float:
        """Windows whose prompts are read together at a steady rate."""
        ended = max(1.0, self.ended)
        return GROUP if self.limit else ended / ceil(ended / GROUP)

    @property
    def ended(self) -> float:
        """Texts that end between two snapshots."""
        return self.batch * LOOK["snapshots" in self.done] / self.steps

    @property
    def padding(self) -> float:
        """Prompts that are read for each one that is wanted. As many texts end between two
        snapshots as a Poisson distribution says.
        """
        share, wanted, read = 1.0, 0.0, 0.0
        for ended in range(1, 200):
            share *= self.ended / ended
            whole, rest = divmod(ended, GROUP)
            wanted += share * ended
            read += share * (whole * GROUP + (2 ** ceil(log2(rest)) if rest else 0))
        return read / wanted

    def kernel(
        self, kind: Kind, kept: float, passed: float, operations: float = 0, cycles: float = 0
    ) -> float:
        """kept: bytes of weights and caches; passed: bytes that kernels write for one another."""
        device = self.device
        if self.limit:
            return max(kept / device.copy, operations / device.matmul)
        return LAUNCH + max(
            kind.shortest,
            (kept + passed) / (kind.copy * device.copy),
            operations / (kind.matmul * device.matmul),
            cycles / device.clock,
        )

    def product(self, rows: float, depth: int, columns: int, share: float = 1) -> float:
        """x W^T, x [rows, depth], W [columns, depth]; share: of a large product's rate."""
        kind = PRODUCT._replace(matmul=PRODUCT.matmul * share)
        passed = HALF * rows * (depth + columns)
        return self.kernel(kind, HALF * depth * columns, passed, 2 * rows * depth * columns)

    def layer(self, context: int = CONTEXT) -> dict[str, float]:
        """One decoder layer of a step, by part."""
        d, rows, slim = self.dims.n_text_state, self.rows, self.form != "baseline"
        cross, cross_parts = self.attention(self.dims.n_audio_ctx, self.beams)
        own, own_parts = self.attention(context, 1)
        # W_Q and W_O twice, the baseline the token's K and V; the latent's W_K and W_V per head
        products = [self.product(rows, d, d)] * (4 if slim else 6)
        products += [self.product(rows, d, 4 * d), self.product(rows, 4 * d, d)]
        combined, passed = 0.0, rows * (self.queries + HALF * d)
        for parts in (cross_parts, own_parts):
            more = parts - rows * self.queries if parts else 0
            if slim:  # W_K's product, then W_V's, which reads the parts
                for moved in (passed, passed + more):
                    products += [self.kernel(PRODUCT, HALF * d * d, moved, 2 * rows * d * d)]
            elif parts:
                combined += self.kernel(PASS, 0, parts + rows * self.queries)
        if slim and "combine" not in self.done and not self.limit:
            for parts in (cross_parts, own_parts):
                combined += SLOW_COMBINE if parts > 4 * rows * self.queries * SINGLE / HALF else 0
        other = (LAUNCHES - len(products) - 2) * self.kernel(PASS, 0, 4 * HALF * rows * d)
        rest = {"products": sum(products), "other kernels": other + combined}
        return {"cross-attention": cross, "self-attention": own, **rest}

    @property
    def queries(self) -> int:
        """Bytes of a row's queries, which slim folds, and of its result."""
        d = self.dims.n_text_state
        return HALF * d * (1 if self.form == "baseline" else self.dims.n_text_head)

    def attention(self, positions: int, sharing: int) -> tuple[float, float]:
        """To what `sharing` rows have in common; and the bytes of its parts, 0 without a split."""
        d, heads, caches = self.dims.n_text_state, self.dims.n_text_head, self.rows // sharing
        operations, cycles, kind = 4 * self.rows * positions * d, 0.0, HEADS
        if self.form == "baseline":
            programs, tiles, part = caches * heads, ceil(positions / 128), 2 * sharing / 128
            kept = 2 * HALF * caches * positions * d
        else:
            kind, tiles = LATENT, ceil(positions / 16)
            programs = caches * ceil(sharing * heads / 32)
            part = 8 * min(sharing * heads, 32) / 16 / (1 if self.form == "slim fp8" else HALF)
            kept = caches * positions * (d + SINGLE if self.form == "slim fp8" else HALF * d)
            cycles = CYCLES[self.form] * programs * tiles * d / 1280 / self.device.processors
            operations *= heads
        out = self.rows * self.queries
        splits = choose_splits(programs, tiles, self.device.processors, part)
        parts = splits * out * SINGLE / HALF if splits > 1 else 0
        return self.kernel(kind, kept, out + (parts or out), operations, cycles), parts

    def step(self, context: int = CONTEXT) -> float:
        """All layers, the logits and the choice of the tokens, for the whole batch."""
        d, rows, values = self.dims.n_text_state, self.rows, self.rows * self.dims.n_vocab
        layers = self.dims.n_text_layer * sum(self.layer(context).values())
        choice = self.kernel(PASS, 0, 6 * values) + self.kernel(PASS, 0, SINGLE * values)
        small = (LAUNCHES_BESIDE - 3) * self.kernel(PASS, 0, 4 * HALF * rows * d)
        return layers + self.product(rows, d, self.dims.n_vocab) + choice + small

    def block(self, rows: float, d: int, squares: int, group: float) -> float:
        """A layer's `squares` products [d, d], MLP, norms and GELU, of many rows."""
        # a group of one window fills the GPU half: 1,500 rows against 12,000
        share = 9 / 8 * group / (group + 1)
        inner = self.product(rows, d, 4 * d, share) + self.product(rows, 4 * d, d, share)
        small = 2 * self.kernel(PASS, 0, 8 * rows * d) + self.kernel(PASS, 0, 16 * rows * d)
        return squares * self.product(rows, d, d, share) + inner + small

    def window(self) -> dict[str, float]:
        """From spectrogram to text, by part."""
        dims, encoded, group = self.dims, self.encoded, self.prompted
        d, frames = dims.n_audio_state, dims.n_audio_ctx
        audio, tokens, prompts = encoded * frames, self.prompt, group
        if "prompts" in self.done and not self.limit:
            tokens = next(n for n in PADDED if n >= tokens)
            prompts *= 1 if group == GROUP else self.padding
        rows = prompts * tokens
        encoder = self.product(2 * audio, 3 * dims.n_mels, d) + self.product(audio, 3 * d, d)
        attention = self.kernel(FLASH, 0, 4 * HALF * audio * d, 4 * audio * frames * d)
        encoder += dims.n_audio_layer * (self.block(audio, d, 4, encoded) + attention)
        prompt = self.block(rows, d, 6, group)
        prompt += self.kernel(FLASH, 0, 4 * HALF * rows * d, 2 * rows * tokens * d)
        positions = prompts * frames
        if tokens >= KEYS_FROM:
            prompt += 2 * self.product(positions, d, d)
            read = 2 * HALF * (rows + positions) * d
            prompt += self.kernel(FLASH, 0, read, 4 * rows * frames * d)
        else:
            operations = 4 * rows * dims.n_text_head * frames * d
            prompt += self.kernel(LATENT, HALF * positions * d, 0, operations)
        if self.form == "slim fp8":  # to float32, times the factors, to float16
            prompt += sum(self.kernel(PASS, 0, each * positions * d) for each in (5, 8, 6))
        idle = SESSION
        if "prompts" not in self.done:
            idle += (IDLE * dims.n_text_layer + (4 + 2 * group) * WAIT) / group
        late = 0 if self.limit else LATE["snapshots" in self.done]
        step = self.step(self.prompt + self.steps // 2)
        decode, encoder = step * (self.steps + late) / self.batch, encoder / encoded
        busy = replace(self, limit=True).step(self.prompt + self.steps // 2)
        hidden = OVERLAPPED * (step - busy) / step * decode
        if "overlap" in self.done and not self.limit and self.batch > 1:
            encoder -= min(hidden, encoder)
        return {
            "decode": decode,
            "encoder": encoder,
            "prompt": dims.n_text_layer * prompt / group,
            "GPU idle": 0 if self.limit else idle,
        }

    @property
    def seconds(self) -> float:
        """Of a window."""
        return sum(self.window().values())

    @property
    def speed(self) -> float:
        """Seconds of audio in a second."""
        return CHUNK_SECONDS / self.seconds
