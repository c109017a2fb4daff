"""Which positions an attention call reads: the part of its arguments that every kernel shares."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Reads:
    """For B windows over S slots of T positions; by default window b reads all of slot b."""

    slots: Tensor | None = None  # [B] int64: the slot that each window reads
    # where only the first positions are to be read, both:
    lengths: Tensor | None = None  # [B] int64, 0 to T; what stands behind is never read
    bias: Tensor | None = None  # [B, 1, T] in the queries' dtype, -inf behind
    # [B, >= T] int64: the slot that holds each position, in place of `slots`: rows that share what
    # they have in common
    sources: Tensor | None = None

    def windows(self, slots: int) -> int:
        """B, where `slots` are kept."""
        chosen = self.sources if self.slots is None else self.slots
        return slots if chosen is None else len(chosen)


ALL = Reads()
