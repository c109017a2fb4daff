"""The back end `pyannote`: the pretrained pipelines of pyannote.audio, versions 3 and 4.

They are downloaded from Hugging Face with your token: HF_TOKEN, or that of `hf auth login`.
"""

import threading
import warnings
from functools import cache
from typing import Any

import torch

from slimwhisper.audio.samples import Samples
from slimwhisper.errors import DependencyError
from slimwhisper.speakers.choice import require
from slimwhisper.speakers.turns import Between, Turn, by_first_speech
from slimwhisper.text import error_line
from slimwhisper.types import SAMPLE_RATE

PIPELINES = {3: "pyannote/speaker-diarization-3.1", 4: "pyannote/speaker-diarization-community-1"}

_pipeline_lock = threading.Lock()  # a pipeline has state while it runs


def find_turns(samples: Samples, between: Between) -> list[Turn]:
    """See `FindTurns`. Holds all samples in memory, 230 MB an hour, as the pipeline needs them."""
    if not len(samples):
        return []
    least, most = between
    waveform = torch.from_numpy(samples.read(0, len(samples))).unsqueeze(0)  # [1, n]
    audio = {"waveform": waveform, "sample_rate": SAMPLE_RATE}
    with _pipeline_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = load_pipeline()(audio, min_speakers=least, max_speakers=most)
    # version 4 also has turns that do not overlap, made for transcripts
    annotation = getattr(result, "exclusive_speaker_diarization", result)
    tracks = annotation.itertracks(yield_label=True)
    return by_first_speech(Turn(float(s.start), float(s.end), str(name)) for s, _, name in tracks)


@cache
def load_pipeline() -> Any:
    """The pipeline for the installed version, on a GPU if there is one.

    Raises DependencyError if the package is not installed, or the download is refused.
    """
    require("pyannote")
    try:
        import pyannote.audio
    except Exception as error:  # such as a torch that it does not support
        what = f"pyannote.audio does not import ({error_line(error, kind=True)})"
        raise DependencyError(f"{what}; pip install --upgrade pyannote.audio") from None
    major = int(pyannote.audio.__version__.partition(".")[0])
    name = PIPELINES[min(max(major, min(PIPELINES)), max(PIPELINES))]
    reason = "refused"
    try:
        pipeline = pyannote.audio.Pipeline.from_pretrained(name)
    except Exception as error:
        pipeline, reason = None, error_line(error)
    if pipeline is None:
        what = f"{name} cannot be downloaded ({reason})"
        remedy = f"accept its conditions at https://hf.co/{name}, then set HF_TOKEN"
        raise DependencyError(f"{what}: {remedy}, or run hf auth login")
    if torch.cuda.is_available():
        pipeline.to(torch.device("cuda"))
    return pipeline
