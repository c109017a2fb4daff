"""transformers, for `peers.py`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from peer_engines.case import Audio, Case, Peer, Run, tokens_decoder
from peer_engines.weights import drop_broken_torchaudio, save_hugging_face


def transformers(case: Case, path: str) -> Run:
    drop_broken_torchaudio()
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration
    from transformers.utils import logging

    logging.set_verbosity_error()
    dtype = getattr(torch, case.dtype)
    model = WhisperForConditionalGeneration.from_pretrained(path, dtype=dtype)
    model.eval().to(case.device)
    model.generation_config.suppress_tokens = None
    model.generation_config.begin_suppress_tokens = None
    extractor = WhisperFeatureExtractor.from_pretrained(path)
    options: dict[str, Any] = {"do_sample": False, "num_beams": 1, "return_timestamps": False}
    if model.generation_config.is_multilingual:
        options |= {"language": "en", "task": "transcribe"}
    if case.tokens:
        options["max_new_tokens"] = case.tokens
    decode = tokens_decoder(Path(path) / "tokenizer.json")

    def run(audio: list[Audio]) -> Iterator[tuple[str, int]]:
        for i in range(0, len(audio), case.batch):
            batch = audio[i : i + case.batch]
            features = extractor(
                batch, sampling_rate=16_000, return_tensors="pt", device=case.device
            ).input_features
            with torch.inference_mode():
                outputs = model.generate(features.to(case.device, dtype), **options)
            for row in outputs.tolist():
                yield decode(row)

    return run


PEERS = {
    "transformers": Peer(
        *(("transformers",), ("transformers",), "hugging_face", save_hugging_face, transformers),
        {"cpu": ("float32", "bfloat16"), "cuda": ("float16",)},
    )
}
