"""slimwhisper and openai-whisper, for `peers.py`."""

from collections.abc import Iterator
from typing import Any

from peer_engines.case import Audio, Case, Peer, Run, plain
from peer_engines.weights import save_openai


def openai_whisper(case: Case, path: str) -> Run:
    import whisper

    model = whisper.load_model(path, device=case.device)
    options = {**plain(case), "sample_len": case.tokens, "fp16": case.dtype == "float16"}

    def run(audio: list[Audio]) -> Iterator[tuple[str, int]]:
        for recording in audio:
            result = model.transcribe(recording, **options)
            yield result["text"], sum(len(s["tokens"]) for s in result["segments"])

    return run


def slimwhisper_slim(case: Case, path: str, **more: Any) -> Run:
    """more: options of `transcribe_many`."""
    import slimwhisper

    compute, _, cache = case.dtype.partition("-")
    model = slimwhisper.load_model(
        path, device=case.device, dtype=compute, cache_dtype=cache or None
    )
    options = {**plain(case), "sample_len": case.tokens, **more}
    if case.job == "long":
        options["parallel"] = case.batch > 1

    def run(audio: list[Audio]) -> Iterator[tuple[str, int]]:
        outputs = {}  # results come in the order in which they finish
        # an array may stand in the list several times: each gets a view of its own
        views = [recording[:] for recording in audio]
        for source, result in model.transcribe_many(iter(views), batch_size=case.batch, **options):
            if isinstance(result, Exception):
                raise result
            outputs[id(source)] = result.text, sum(len(s.tokens) for s in result.segments)
        yield from (outputs[id(view)] for view in views)

    return run


OUR_DTYPES = {"cpu": ("float32", "bfloat16", "int8"), "cuda": ("float16", "float16-fp8")}

PEERS = {
    "openai-whisper": Peer(
        *(("whisper",), ("openai-whisper",), "openai.pt", save_openai, openai_whisper),
        {"cpu": ("float32",), "cuda": ("float16",)},
        batches=False,
        beams=True,
        jobs={"folder": (1,), "long": (1,)},
    ),
    # a variant's name begins with "slimwhisper"; its `options` are those of `transcribe_many`
    "slimwhisper": Peer(
        *(("slimwhisper",), (), "openai.pt", save_openai, slimwhisper_slim, OUR_DTYPES),
        jobs={"folder": (16,), "long": (1, 16)},
        beams=True,
    ),
    "slimwhisper-auto": Peer(
        *(("slimwhisper",), (), "openai.pt", save_openai, slimwhisper_slim, OUR_DTYPES),
        options={"audio_window": "auto"},
    ),
}
