"""Windows as long as their audio: decoded as by a model whose windows all have that length."""

from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import pytest

from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Search, Window
from slimwhisper.model.model import Model
from slimwhisper.types import MEL_FRAMES_PER_POSITION
from tests.support.windows import (
    SEARCHES,
    SHORT,
    assert_same,
    decode,
    run,
    short_model,
    short_windows,
)

FRAMES = (100, 500, 300, 100, 200, 500)  # of the windows; 500 are whole


def cut(windows: Sequence[Window], frames: Sequence[int] = FRAMES) -> list[Window]:
    """The windows with so many mel frames."""
    pairs = zip(windows, frames, strict=True)
    return [replace(w, mel=w.mel[:, :n]) for w, n in pairs if w.mel is not None]


@pytest.mark.parametrize(
    ("forms", "search", "temperatures"),
    [(("e", "x"), *SEARCHES[-1]), (("kv", "kv"), *SEARCHES[0])],
    ids=str,
)
def test_a_window_of_its_own_length(
    forms: tuple[str, str], search: Search | None, temperatures: Sequence[float]
) -> None:
    model = short_model(forms=forms)
    assert not model.plan.fallbacks
    for window in cut(short_windows(6, temperatures=temperatures)):
        assert window.mel is not None
        shorter = model.shortened(window.mel.shape[1] // MEL_FRAMES_PER_POSITION)
        assert_same(*(decode(m, [window], 1, search) for m in (model, shorter)))


def test_whole_windows_alone_read_without_lengths(model: Model) -> None:
    engine = Engine(model, 3)
    run(engine, dict(enumerate(short_windows(4))))
    cross = engine.runner.cross
    assert cross.all_whole
    run(engine, dict(enumerate(cut(short_windows(6)))))
    assert not cross.all_whole
    assert set(cross.lengths.tolist()) <= {f // MEL_FRAMES_PER_POSITION for f in FRAMES}


def test_encoder_gets_windows_of_one_length(model: Model) -> None:
    """On a CPU as many as have the positions of a whole window."""
    windows = cut(short_windows(8), (100, 200, 100, 500, 100, 200, 100, 100))
    with patch.object(model, "encoder", wraps=model.encoder) as encoder:
        engine = Engine(model, 8)
        run(engine, dict(enumerate(windows)))
    budget = engine.encode_batch * SHORT.window_frames
    shapes = [call.args[0].shape[::2] for call in encoder.call_args_list]
    assert sum(count for count, _ in shapes) == 8
    assert {frames for _, frames in shapes} == {100, 200, 500}
    assert max(count * frames for count, frames in shapes) <= budget
    assert len(shapes) == 3 + (budget < 5 * 100) + (budget < 2 * 200)
