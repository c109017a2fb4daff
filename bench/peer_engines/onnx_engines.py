"""onnxruntime and sherpa-onnx, for `peers.py`.

onnxruntime runs this project's own export (`onnx_export.py`). The one in the onnxruntime package
(`onnxruntime.transformers.models.whisper`) is deprecated, fails with transformers 5, and the int8
model that it makes with transformers 4 does not load.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from peer_engines.case import Audio, Case, Peer, Run, in_workers, prompt, tokens_decoder
from peer_engines.onnx_export import DECODER_NAMES, save_onnx
from peer_engines.weights import save_hugging_face
from slimwhisper.checkpoint.load import Checkpoint

LONGEST = 224  # tokens of a text, unless they are forced


def save_with_tokenizer(checkpoint: Checkpoint, path: Path, case: Case) -> None:
    """The models, and a Hugging Face folder with the tokenizer."""
    save_onnx(checkpoint, path, case)
    save_hugging_face(checkpoint, path / "hugging_face", case)
    (path / "hugging_face" / "model.safetensors").unlink()


def onnxruntime(case: Case, path: str) -> Run:
    import onnxruntime as ort
    import torch
    from tokenizers import Tokenizer
    from whisper.audio import N_SAMPLES, log_mel_spectrogram, pad_or_trim

    settings = ort.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = case.threads, 1
    encoder, decoder = (
        ort.InferenceSession(f"{path}/{name}.onnx", settings, providers=["CPUExecutionProvider"])
        for name in ("encoder", "decoder")
    )
    facts = encoder.get_modelmeta().custom_metadata_map
    mels, end = int(facts["n_mels"]), int(facts["eot"])
    empty_shape = int(facts["n_text_layer"]), case.batch, 0, int(facts["n_text_state"])
    tokenizer = Tokenizer.from_file(f"{path}/hugging_face/tokenizer.json")
    first = [tokenizer.token_to_id(t) for t in prompt(facts["is_multilingual"] == "1")]
    decode = tokens_decoder(Path(path) / "hugging_face" / "tokenizer.json")

    def texts(batch: list[Audio]) -> list[list[int]]:
        padded = torch.stack([torch.from_numpy(pad_or_trim(a, N_SAMPLES)) for a in batch])
        cross = encoder.run(None, {"mel": log_mel_spectrogram(padded, mels).numpy()})
        shape = (empty_shape[0], len(batch), *empty_shape[2:])
        caches = [np.zeros(shape, np.float32)] * 2
        tokens, at = np.array([first] * len(batch)), 0
        found = np.empty((len(batch), 0), np.int64)
        while found.shape[1] < (case.tokens or LONGEST):
            values = [tokens, *caches, *cross, np.array([at])]
            inputs = dict(zip(DECODER_NAMES[0], values, strict=True))
            logits, *caches = decoder.run(None, inputs)
            at += tokens.shape[1]
            tokens = logits[:, -1:].argmax(-1)
            found = np.concatenate([found, tokens], axis=1)
            if (found == end).any(1).all():
                break
        return [row[: row.index(end)] if end in row else row for row in found.tolist()]

    def run(audio: list[Audio]) -> Iterator[tuple[str, int]]:
        for i in range(0, len(audio), case.batch):
            yield from map(decode, texts(audio[i : i + case.batch]))

    return run


def sherpa_onnx(case: Case, path: str, tail: int = -1) -> Run:
    """tail: frames of 10 ms that it adds to a recording, up to 30 s; -1: its default of 10 s."""
    from sherpa_onnx import OfflineRecognizer

    recognizer = OfflineRecognizer.from_whisper(
        encoder=f"{path}/encoder.onnx",
        decoder=f"{path}/decoder.onnx",
        tokens=f"{path}/tokens.txt",
        language="en",
        task="transcribe",
        num_threads=case.threads,
        tail_paddings=tail,
    )

    def run(audio: list[Audio]) -> Iterator[tuple[str, int]]:
        for recording in audio:
            stream = recognizer.create_stream()
            stream.accept_waveform(16_000, recording)
            recognizer.decode_stream(stream)
            yield stream.result.text, len(stream.result.tokens)

    return run


def sherpa(**fields: Any) -> Peer:
    return Peer(
        ("sherpa_onnx", "onnx", "onnxruntime"),
        ("sherpa-onnx", "onnxruntime"),
        "sherpa-{dtype}-{tokens}",
        partial(save_onnx, sherpa=True),
        in_workers(sherpa_onnx),
        {"cpu": ("float32", "int8")},
        batches=False,
        in_workers=True,
        by_torch=False,
        **fields,
    )


PEERS = {
    "onnxruntime": Peer(
        ("onnxruntime", "onnx"),
        ("onnxruntime",),
        "onnx-{dtype}",
        save_with_tokenizer,
        onnxruntime,
        {"cpu": ("float32", "int8")},
        by_torch=False,
    ),
    "sherpa-onnx": sherpa(short_window=True),
    "sherpa-onnx-30s": sherpa(options={"tail": 3000}),
}
