"""Encoder outputs, kept for later requests with the same audio: with another task, prompt, language
or temperature, or for a recording that is sent again.
"""

from collections.abc import Sequence
from hashlib import blake2b

from torch import Tensor


class EncoderOutputs:
    """Encoder outputs [p, d] by the digest of their spectrogram, up to a number of bytes. The least
    recently used are dropped first.

    The digest is of all that an output depends on, apart from the model: equal windows of two
    recordings, or of two uploads of one file, have the same. One thread calls at a time.
    """

    def __init__(self, limit: int) -> None:
        """limit: bytes; 0: only windows that are in the encoder at the same time are shared."""
        self.limit = limit
        self.nbytes = 0  # of the outputs kept now
        self.hits = 0  # windows that did not need the encoder
        self._outputs: dict[bytes, Tensor] = {}  # the most recently used last

    @staticmethod
    def key_of(mel: Tensor) -> bytes:
        """The digest of a window [n_mels, 2 p]: its shape, dtype and values."""
        digest = blake2b(repr((tuple(mel.shape), mel.dtype)).encode(), digest_size=16)
        digest.update(mel.numpy(force=True).tobytes())
        return digest.digest()

    def find(self, key: bytes) -> Tensor | None:
        """The output [p, d] of a window, if it is kept."""
        output = self._outputs.pop(key, None)
        if output is not None:
            self._outputs[key] = output
            self.hits += 1
        return output

    def put(self, keys: Sequence[bytes | None], outputs: Tensor) -> None:
        """Keep copies of outputs [G, p, d], of those windows that have a key."""
        for key, output in zip(keys, outputs, strict=False):
            if key is None or key in self._outputs or output.nbytes > self.limit:
                continue
            self._drop_down_to(self.limit - output.nbytes)
            self._outputs[key] = output.clone()
            self.nbytes += output.nbytes

    def resize(self, limit: int) -> None:
        """Change the limit, in bytes."""
        self.limit = limit
        self._drop_down_to(limit)

    def clear(self) -> None:
        """Drop all outputs: another model's are not the same."""
        self._drop_down_to(0)

    def _drop_down_to(self, nbytes: int) -> None:
        while self.nbytes > nbytes:
            self.nbytes -= self._outputs.pop(next(iter(self._outputs))).nbytes
