"""Audio as it arrives: G.711 against FFmpeg's decoders, and pieces against the whole."""

import av
import numpy as np
import pytest
import soxr

from slimwhisper.app.realtime.audio_input import SoundDecoder, SoundFormat
from slimwhisper.errors import AudioError


@pytest.mark.parametrize(("coding", "theirs"), [("ULAW", "pcm_mulaw"), ("ALAW", "pcm_alaw")])
def test_g711_is_ffmpegs(coding: str, theirs: str) -> None:
    codec = av.CodecContext.create(theirs, "r")
    codec.sample_rate, codec.layout = 8000, "mono"
    every_byte = bytes(range(256))
    (frame,) = codec.decode(av.Packet(every_byte))
    found = SoundDecoder(SoundFormat(coding, 16_000)).decode(every_byte)
    assert frame.format.name == "s16" and found.dtype == np.float32
    np.testing.assert_array_equal(found, frame.to_ndarray()[0] / np.float32(32768))


@pytest.mark.parametrize("rate", [8_000, 24_000, 44_100])
def test_pieces_give_what_the_whole_gives(rate: int) -> None:
    speech = np.random.default_rng(0).normal(0, 3000, rate).astype("<i2")
    whole = soxr.resample(speech.astype(np.float32) / 32768, rate, 16_000, quality="HQ")
    decoder = SoundDecoder(SoundFormat("PCM_16", rate))
    step = rate // 50
    pieces = [decoder.decode(speech[i : i + step].tobytes()) for i in range(0, rate, step)]
    found = np.concatenate([*pieces, decoder.flush()])
    assert len(found) == 16_000 and len(decoder.flush()) == 0
    np.testing.assert_allclose(found, whole, atol=1e-4)


def test_after_a_flush_the_next_piece_starts_anew() -> None:
    decoder = SoundDecoder(SoundFormat("PCM_16", 24_000))
    loud, quiet = np.full(2400, 8000, "<i2"), np.zeros(2400, "<i2")
    assert abs(decoder.decode(loud.tobytes())).max() > 0.2
    decoder.flush()
    found = np.concatenate([decoder.decode(quiet.tobytes()), decoder.flush()])
    assert len(found) == 1600 and not found.any()


def test_sixteen_kilohertz_are_taken_as_they_are() -> None:
    samples = np.arange(-50, 50, dtype="<i2")
    decoder = SoundDecoder(SoundFormat("PCM_16", 16_000))
    np.testing.assert_array_equal(decoder.decode(samples.tobytes()), samples / np.float32(32768))
    assert len(decoder.flush()) == 0


def test_channels_and_wide_samples() -> None:
    wide = np.array([[1 << 30, -(1 << 30)], [1 << 30, 1 << 30]], "<i4")
    found = SoundDecoder(SoundFormat("PCM_32", 16_000, 2)).decode(wide.tobytes())
    np.testing.assert_array_equal(found, np.float32([0, 0.5]))


@pytest.mark.parametrize(
    ("format", "size"),
    [(SoundFormat(), 3), (SoundFormat(channels=2), 6), (SoundFormat("PCM_32"), 6)],
)
def test_half_a_sample_is_refused(format: SoundFormat, size: int) -> None:
    with pytest.raises(AudioError, match=f"{size} bytes are not a whole number of samples"):
        SoundDecoder(format).decode(b"\0" * size)
