"""The predictions of slim attention (arXiv 2503.05840, Whisper table).

They are in VALUES: they do not depend on the dtype, and nothing was timed. The paper's count of E
differs from any real engine's: it assumes that E stays in on-chip memory and leaves it out. Both
counts are given. Its `large` has 51,865 tokens and 80 mels, which is now called `large-v2`; here,
as in `whisper`, `large` means large-v3, which has one token more. At the table's precision the two
are equal.
"""

from dataclasses import dataclass

from slimwhisper.types import Dims


@dataclass(frozen=True, slots=True)
class PaperOption:
    """One of the paper's options; values, not bytes."""

    option: str  # "baseline", "option1" or "option2"
    cache: int  # per window, without E
    cache_with_e: int  # per window, with E if the option reads it
    parameters: int  # of the decoder, read for every token
    reads: float  # per token: parameters / batch + cache
    reads_with_e: float  # the same if every layer reads E, as where no on-chip memory holds it
    cross_phase: int  # multiplications and additions to make a window's cache, without the encoder


def predict(dims: Dims, batch: int) -> tuple[PaperOption, ...]:
    """The paper's numbers for baseline, option 1 and option 2 at a batch of windows.

    Matrices that decoding reads in each layer, in units of d^2: 8 in the MLP, 4 in self-attention,
    and in cross-attention W_Q and W_O (baseline), plus W_KV (option 1), or W_K and W_V (option 2).
    Biases, positions and norms are not counted. The cross-phase makes K and V of E in every layer,
    4 p d^2 operations (baseline), or K alone (option 1); option 2 keeps E as it is.
    """
    d, layers = dims.n_text_state, dims.n_text_layer
    e, self_ = dims.n_audio_ctx * d, 2 * dims.n_text_ctx * d * layers
    whole = 2 * e * layers + self_

    def option(name: str, cache: int, copies: int, matrices: int, projections: int) -> PaperOption:
        """copies: of E in the cache. projections: of E, in each layer."""
        parameters = dims.n_vocab * d + matrices * d * d * layers
        reads = parameters / batch + cache
        with_e, phase = reads + copies * layers * e, 2 * e * d * projections * layers
        return PaperOption(name, cache, cache + copies * e, parameters, reads, with_e, phase)

    return (
        option("baseline", whole, 0, 14, 2),
        option("option1", whole // 2, 0, 15, 1),
        option("option2", self_ // 2, 1, 16, 0),
    )
