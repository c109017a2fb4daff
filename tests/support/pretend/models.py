"""Random models and windows that are small enough for a pretend GPU."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from slimwhisper.engine.requests import Window
from slimwhisper.guard import guarded_plan
from slimwhisper.model.model import Model
from tests.support.few_tokens import DIMS, random_checkpoint
from tests.support.reference import set_spectrum
from tests.support.windows import windows

CUDA = torch.device("cuda", 1)  # not the current one, so that whatever assumes it is seen
FRAMES = 24  # positions of a window: few, to be quick


def made(
    forms: tuple[str, str],
    device: torch.device = CUDA,
    dtype: torch.dtype = torch.float32,
    layers: int = 2,
) -> Model:
    """A random model whose guard hears a window as short as ours."""
    checkpoint = random_checkpoint(replace(DIMS, n_text_layer=layers, n_audio_ctx=FRAMES))
    state = set_spectrum(dict(checkpoint.state), checkpoint.dims, 3.0)
    make_plan = partial(guarded_plan, mel=requests(1)[0].mel)
    model = Model(replace(checkpoint, state=state), device, dtype, forms, make_plan)
    assert not model.plan.fallbacks
    return model


def requests(
    count: int, temperatures: Sequence[float] = (0.0,), sample_len: int | None = None
) -> list[Window]:
    made = windows(count, sample_len, temperatures)
    return [replace(w, mel=w.mel[:, : 2 * FRAMES]) for w in made if w.mel is not None]
