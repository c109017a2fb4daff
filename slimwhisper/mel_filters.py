"""The frequencies that each row of a log-mel spectrogram sums."""

from importlib.resources import as_file, files

import numpy as np
import torch
from torch import Tensor


def mel_filters(device: str | torch.device, n_mels: int) -> Tensor:
    """openai-whisper's table (MIT licence: THIRD_PARTY.md), [n_mels, 201] float32, for 80 or 128
    rows.
    """
    with as_file(files(__package__).joinpath("mel_filters.npz")) as path, np.load(path) as data:
        return torch.from_numpy(data[f"mel_{n_mels}"]).to(device)
