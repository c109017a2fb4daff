"""OpenVINO GenAI, for `peers.py`: a model that optimum-intel exports, its weights in int8 or as
they are. It computes in the precision that it chooses for the processor, bfloat16 where there are
instructions for it; `openvino-f32` in float32.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from peer_engines.case import Case, Peer, Run, in_workers
from peer_engines.weights import drop_broken_torchaudio, save_hugging_face
from slimwhisper.audio.load import load_audio
from slimwhisper.checkpoint.load import Checkpoint


def save_openvino(checkpoint: Checkpoint, path: Path, case: Case) -> None:
    drop_broken_torchaudio()
    import openvino
    from openvino_tokenizers import convert_tokenizer
    from optimum.intel import OVModelForSpeechSeq2Seq
    from transformers import AutoTokenizer, WhisperProcessor

    with TemporaryDirectory() as folder:
        source = str(Path(folder) / "hugging_face")
        save_hugging_face(checkpoint, Path(source), case)
        eight = case.dtype == "int8"
        model = OVModelForSpeechSeq2Seq.from_pretrained(
            source, export=True, compile=False, load_in_8bit=eight
        )
        model.save_pretrained(path)
        WhisperProcessor.from_pretrained(source).feature_extractor.save_pretrained(path)
        both = convert_tokenizer(AutoTokenizer.from_pretrained(source), with_detokenizer=True)
        for name, converted in zip(("tokenizer", "detokenizer"), both, strict=True):
            openvino.save_model(converted, path / f"openvino_{name}.xml")


def openvino_genai(case: Case, path: str, **settings: str) -> Run:
    """settings: of OpenVINO, beside the threads."""
    from openvino_genai import WhisperPipeline

    threads = {"INFERENCE_NUM_THREADS": case.threads, "NUM_STREAMS": 1}
    pipeline = WhisperPipeline(path, "CPU", **{**settings, **threads})
    config = pipeline.get_generation_config()
    config.return_timestamps = case.job is not None
    if not case.job:
        config.suppress_tokens, config.begin_suppress_tokens = [], []
    if config.is_multilingual:
        config.language, config.task = "<|en|>", "transcribe"
    if case.tokens:
        config.max_new_tokens = case.tokens

    def run(audio: list[Any]) -> Iterator[tuple[str, int]]:
        for recording in audio:
            samples = load_audio(recording) if case.job else recording
            result = pipeline.generate(samples, config)
            yield result.texts[0], result.perf_metrics.get_num_generated_tokens()

    return run


def variant(*dtypes: str, **fields: Any) -> Peer:
    return Peer(
        ("openvino_genai", "openvino_tokenizers", "optimum", "nncf"),
        ("openvino-genai", "openvino", "optimum-intel"),
        "openvino-{dtype}",
        save_openvino,
        in_workers(openvino_genai),
        {"cpu": dtypes},
        batches=False,
        in_workers=True,
        by_torch=False,
        jobs={"folder": (1, 8), "long": (1,)},
        **fields,
    )


PEERS = {
    "openvino": variant("float32", "int8"),
    "openvino-f32": variant("float32", options={"INFERENCE_PRECISION_HINT": "f32"}),
}
