"""What decoding costs on a GPU, computed: bytes, operations, launches and time.

Every kernel is taken to run by itself, after the one before it. It takes

    launch + max(shortest, bytes / (share * copy rate), operations / (share * matmul rate))

the roofline (Williams et al. 2009) with an efficiency for each kind of kernel. Rates are the
device's (`devices`), efficiencies and numbers of kernels the scenario's (`scenarios`).
What is left out: a cache that fits in L2, work that runs beside other work, and how beams are
chosen.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil

from slimwhisper.commands.gpu.devices import Device
from slimwhisper.commands.gpu.scenarios import (
    FLASH,
    HEADS,
    LATENT,
    LATENT_CYCLES,
    PASS,
    PRODUCT,
    TILE,
    Efficiency,
    Scenario,
)
from slimwhisper.kernels.configurations import choose_splits
from slimwhisper.types import CHUNK_SECONDS, Dims

FORMS = ("slim", "slim fp8", "baseline")
STEPS = 115  # tokens sampled in a window of speech
HALF, SINGLE = 2, 4  # bytes of a value
BLOCK_T = 16  # positions of a tile, for the number of parts


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel, or several in a row that are alike."""

    kind: Efficiency
    kept: float = 0.0  # bytes of weights and caches
    passed: float = 0.0  # bytes that kernels write for one another, or read
    operations: float = 0.0
    cycles: float = 0.0  # of every processor, where instructions are the limit
    use: float = 1.0  # share of the processors that have work, over all waves
    count: int = 1


@dataclass(frozen=True, slots=True)
class Cost:
    """What some kernels take together."""

    seconds: float = 0.0
    bytes: float = 0.0
    operations: float = 0.0
    launches: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.seconds + other.seconds,
            self.bytes + other.bytes,
            self.operations + other.operations,
            self.launches + other.launches,
        )

    def __mul__(self, times: float) -> "Cost":
        return Cost(
            self.seconds * times, self.bytes * times, self.operations * times, self.launches * times
        )


@dataclass(frozen=True, slots=True)
class Costs:
    """What one model costs in one form and scenario."""

    layer: Mapping[str, Cost]  # of a step, by part: cross, self, combine, products, other
    step: Cost  # all layers, logits and the choice of the tokens, for the whole batch
    encoder: Cost  # of a window, as are the rest
    prompt: Cost
    decode: Cost  # `STEPS` steps, shared by the batch
    host: float  # seconds with the GPU idle

    @property
    def window(self) -> Cost:
        """30 s of audio from spectrogram to text, one part after the other."""
        return self.encoder + self.prompt + self.decode + Cost(self.host)

    @property
    def speed(self) -> float:
        """Seconds of audio in a second."""
        return CHUNK_SECONDS / self.window.seconds


@dataclass(frozen=True, slots=True)
class Decoding:
    """Counts the kernels of one model in float16 or bfloat16 on one device."""

    dims: Dims
    form: str  # one of `FORMS`
    batch: int  # windows that are decoded together
    device: Device
    scenario: Scenario
    beams: int = 1  # texts of each window, which share its audio
    tokens: int = 1  # of each text in a step, which share its cache too

    @property
    def rows(self) -> int:
        """Tokens that are decoded together."""
        return self.batch * self.beams * self.tokens

    def costs(self) -> Costs:
        """All of it; a step has half of the context, the steps of a window what they reach."""
        half = self.dims.n_text_ctx // 2
        prompt = half + 3  # the longest: the text before, <|startofprev|> and three more
        step = self.step(half)
        steps = self.step(prompt + STEPS // 2) * STEPS * (1 / self.batch)
        together = min(self.scenario.together, self.batch)
        encoder = self.cost(self.encoder_kernels(together)) * (1 / together)
        slow = Cost(encoder.seconds * (self.scenario.encoder - 1))
        prompted = self.cost(self.prompt_kernels(together, prompt)) * (1 / together)
        parts = {name: self.cost(kernels) for name, kernels in self.layer_kernels(half).items()}
        return Costs(parts, step, encoder + slow, prompted, steps, self.scenario.host)

    def step(self, context: int) -> Cost:
        """All layers and the rest; a text has `context` tokens, those of the step included."""
        layer = self.cost(k for kernels in self.layer_kernels(context).values() for k in kernels)
        return layer * self.dims.n_text_layer + self.cost(self._beside())

    def cost(self, kernels: Iterable[Kernel]) -> Cost:
        """Kernels one after the other; in the limit, what they must read and compute."""
        total, device = Cost(), self.device
        for k in kernels:
            if self.scenario.limit:
                seconds = max(k.kept / device.copy, k.operations / device.matmul)
                total += Cost(seconds, k.kept, k.operations) * k.count
                continue
            moved = k.kept + k.passed
            seconds = device.launch + max(
                k.kind.shortest,
                moved / (k.kind.copy * device.copy),
                k.operations / (k.kind.matmul * device.matmul * k.use),
                k.cycles / device.clock,
            )
            total += Cost(seconds, moved, k.operations, 1) * k.count
        return total

    # -- a step --------------------------------------------------------------------------------

    def layer_kernels(self, context: int) -> dict[str, list[Kernel]]:
        """The kernels of one decoder layer, by part."""
        d, rows, slim = self.dims.n_text_state, self.rows, self.form != "baseline"
        attend = self._latent if slim else self._heads
        cross, cross_parts = attend(self.dims.n_audio_ctx, self.beams * self.tokens)
        own, own_parts = attend(context, self.tokens)
        combine = [
            Kernel(PASS, passed=parts + rows * self._queries)
            for parts in (cross_parts, own_parts)
            if parts and (self.scenario.combines or not slim)
        ]
        square = self._product(rows, d, d)
        # W_Q and W_O twice; the baseline has the token's K and V
        products = [square] * (4 if slim else 6)
        products += [self._product(rows, d, 4 * d), self._product(rows, 4 * d, d)]
        for parts in (cross_parts, own_parts) if slim else ():
            products.append(self._maps())
            whole = not parts or self.scenario.combines  # else it reads the parts themselves
            products.append(self._maps(0 if whole else parts - rows * self._queries))
        small = self.scenario.launches[self.form] - len(products) - 2
        return {
            "cross": [cross],
            "self": [own],
            "combine": combine,
            "products": products,
            "other": [self._small(small)],
        }

    @property
    def _queries(self) -> int:
        """Bytes of one row's queries as attention reads them, and of its result: folded in slim."""
        d = self.dims.n_text_state
        return HALF * d * (1 if self.form == "baseline" else self.dims.n_text_head)

    def _latent(self, positions: int, sharing: int) -> tuple[Kernel, float]:
        """Attention to a latent that `sharing` rows each have in common, and the bytes of its
        parts: 0 without a split.
        """
        d, heads, latents = self.dims.n_text_state, self.dims.n_text_head, self.rows // sharing
        eight = self.form == "slim fp8"
        blocks = ceil(sharing * heads / (self.scenario.rows8 if eight else 32))
        parts = self._parts(latents * blocks, ceil(positions / BLOCK_T))
        passed = self.rows * self._queries + (parts or self.rows * self._queries)
        kept = latents * positions * (d + SINGLE if eight else HALF * d)
        tiles = latents * blocks * ceil(positions / 16) * d / 1280
        each = self.scenario.cycles8 if eight else LATENT_CYCLES
        operations = 4 * self.rows * heads * positions * d
        cycles = each * tiles / self.device.processors
        return Kernel(LATENT, kept, passed, operations, cycles), parts

    def _heads(self, positions: int, sharing: int) -> tuple[Kernel, float]:
        """Attention to K and V, the same way."""
        d, shared = self.dims.n_text_state, self.rows // sharing
        parts = self._parts(shared * self.dims.n_text_head, ceil(positions / 128))
        passed = self.rows * self._queries + (parts or self.rows * self._queries)
        kept = 2 * HALF * shared * positions * d
        return Kernel(HEADS, kept, passed, 4 * self.rows * positions * d), parts

    def _parts(self, programs: int, tiles: int) -> float:
        """Bytes of the sums of a split attention, for all rows; 0 without a split."""
        splits = choose_splits(programs, tiles, self.device.processors)
        return splits * self.rows * self._queries * SINGLE / HALF if splits > 1 else 0

    def _product(self, rows: int, depth: int, columns: int, large: bool = False) -> Kernel:
        """x W^T, x [rows, depth], W [columns, depth]. large: whole tiles, in waves."""
        use, processors = 1.0, self.device.processors
        if large:
            tiles = ceil(rows / TILE) * ceil(columns / TILE)
            use = tiles / (ceil(tiles / processors) * processors)
        return Kernel(
            PRODUCT,
            kept=HALF * depth * columns,
            passed=HALF * rows * (depth + columns),
            operations=2 * rows * depth * columns,
            use=use,
        )

    def _maps(self, more: float = 0) -> Kernel:
        """W_K per head on the queries, or W_V per head on the mix, which is `more` bytes wider."""
        d, rows = self.dims.n_text_state, self.rows
        passed = rows * (self._queries + HALF * d) + more
        return Kernel(PRODUCT, HALF * d * d, passed, 2 * rows * d * d)

    def _beside(self) -> Iterator[Kernel]:
        """The logits, in float32 the choice, and small kernels."""
        d, values = self.dims.n_text_state, self.rows * self.dims.n_vocab
        yield self._product(self.rows, d, self.dims.n_vocab)
        yield Kernel(PASS, passed=(HALF + SINGLE) * values)
        yield Kernel(PASS, passed=SINGLE * values)
        yield self._small(self.scenario.beside - 3)

    def _small(self, count: int) -> Kernel:
        """Kernels that read two rows for each text and write two, as a sum with its norm does."""
        return Kernel(PASS, passed=4 * HALF * self.rows * self.dims.n_text_state, count=count)

    # -- a window ------------------------------------------------------------------------------

    def encoder_kernels(self, windows: int) -> Iterator[Kernel]:
        """Two convolutions and the layers, for several windows together."""
        d, frames = self.dims.n_audio_state, self.dims.n_audio_ctx
        rows = windows * frames
        yield self._product(2 * rows, 3 * self.dims.n_mels, d, large=True)
        yield self._product(rows, 3 * d, d, large=True)
        yield Kernel(PASS, passed=2 * HALF * 2 * rows * d)  # GELU, and once more
        yield Kernel(PASS, passed=2 * HALF * rows * d)
        for _ in range(self.dims.n_audio_layer):
            for _ in range(4):
                yield self._product(rows, d, d, large=True)
            yield self._product(rows, d, 4 * d, large=True)
            yield self._product(rows, 4 * d, d, large=True)
            yield Kernel(FLASH, 0, 4 * HALF * rows * d, 4 * rows * frames * d)
            yield from self._norms(rows, d, 2)
            yield Kernel(PASS, passed=2 * HALF * rows * 4 * d)  # GELU

    def _norms(self, rows: int, d: int, count: int) -> Iterator[Kernel]:
        """Sum and norm, `count` times."""
        values = rows * d
        if self.scenario.fused:
            yield Kernel(PASS, passed=4 * HALF * values, count=count)
            return
        yield Kernel(PASS, passed=3 * HALF * values, count=count)  # the sum
        yield Kernel(PASS, passed=(HALF + SINGLE) * values, count=2 * count)  # to float32 and back
        yield Kernel(PASS, passed=2 * SINGLE * values, count=count)

    def prompt_kernels(self, windows: int, tokens: int) -> Iterator[Kernel]:
        """The prompts of several windows together, with the audio's K and V made on the way.

        The baseline makes the same K and V once, when it fills its cache.
        """
        d, frames = self.dims.n_text_state, self.dims.n_audio_ctx
        rows, audio = windows * tokens, windows * frames
        for _ in range(self.dims.n_text_layer):
            for _ in range(6):  # Q, K, V, O of the text, Q and O for the audio
                yield self._product(rows, d, d, large=True)
            yield self._product(rows, d, 4 * d, large=True)
            yield self._product(rows, 4 * d, d, large=True)
            yield self._product(audio, d, d, large=True)
            yield self._product(audio, d, d, large=True)
            yield Kernel(FLASH, 0, 4 * HALF * rows * d, 2 * rows * tokens * d)  # causal: half
            yield Kernel(FLASH, 0, 2 * HALF * (rows + audio) * d, 4 * rows * frames * d)
            yield from self._norms(rows, d, 3)
            yield Kernel(PASS, passed=2 * HALF * rows * 4 * d)  # GELU
            if self.form == "slim fp8":  # to float32, times the factors, to float16
                yield Kernel(PASS, passed=(1 + SINGLE) * audio * d)
                yield Kernel(PASS, passed=2 * SINGLE * audio * d)
                yield Kernel(PASS, passed=(HALF + SINGLE) * audio * d)
