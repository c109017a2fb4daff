"""Random models and windows that are small enough for a pretend GPU."""

from dataclasses import replace
from functools import partial

import torch

from slimwhisper.guard import guarded_plan
from slimwhisper.model.model import Model
from tests.support.few_tokens import DIMS, random_checkpoint
from tests.support.reference import set_spectrum
from tests.support.windows import mel, windows

CUDA = torch.device("cuda", 1)  # not the current one, so that whatever assumes it is seen
SMALL = replace(DIMS, n_audio_ctx=24)  # few positions of a window, to be quick
requests = partial(windows, dims=SMALL)


def made(
    forms: tuple[str, str],
    device: torch.device = CUDA,
    dtype: torch.dtype = torch.float32,
    layers: int = 2,
) -> Model:
    """A random model whose guard hears a window as short as ours."""
    checkpoint = random_checkpoint(replace(SMALL, n_text_layer=layers))
    state = set_spectrum(dict(checkpoint.state), checkpoint.dims, 3.0)
    make_plan = partial(guarded_plan, mel=mel(0, SMALL))
    model = Model(replace(checkpoint, state=state), device, dtype, forms, make_plan)
    assert not model.plan.fallbacks
    return model
