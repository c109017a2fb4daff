"""LiteASR's factored encoders: what is read, that factors stay factors, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import whisper
from torch import Tensor

import slimwhisper
from slimwhisper.checkpoint.formats.hugging_face import multiply_factors
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.draft_model import load_draft
from slimwhisper.errors import OptionError
from slimwhisper.formats.load import load_checkpoint
from slimwhisper.kernels.linear import Packed, Plain, Quantized
from slimwhisper.model.encoder import Encoder
from slimwhisper.model.model import Model
from tests.support.adapters import query_and_value_factors, save_adapter
from tests.support.checkpoints import State, assert_equal, refusal, save_openai, tiny_dims
from tests.support.lite_whisper import RANKS, factored_state, products, save_lite
from tests.support.reference import whisper_model

CPU = torch.device("cpu")
DIMS = replace(tiny_dims(width=32, heads=2, audio_layers=2, text_layers=1), n_audio_ctx=60)
STATE = factored_state(DIMS, seed=1)
QUERY = "encoder.blocks.0.attn.query"
MEL = torch.randn(2, DIMS.n_mels, 2 * DIMS.n_audio_ctx, generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_lite(tmp_path_factory.mktemp("lite") / "model", DIMS, STATE)


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> Checkpoint:
    return load_checkpoint(folder)


@pytest.fixture(scope="module")
def true() -> Tensor:
    """The encoder's output in float64: openai-whisper's modules, the products, keys with biases."""
    whole = products(STATE)
    plain = {n: t for n, t in whole.items() if not n.endswith(".key.bias")}
    encoder = whisper_model(DIMS, plain, torch.float64).encoder
    for block in encoder.blocks:
        block.attn.key = whisper.model.Linear(32, 32, bias=True, dtype=torch.float64)
    named = {n.removeprefix("encoder."): t for n, t in whole.items() if n.startswith("encoder.")}
    encoder.load_state_dict(named)
    with torch.no_grad():
        output: Tensor = encoder(MEL.double())
    return output


def encode(state: State, dtype: torch.dtype, int8: bool = False) -> Tensor:
    return Encoder(state, DIMS, CPU, dtype, int8)(MEL)


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


# ---- read and multiplied by


def test_factors_are_read_as_they_are(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """By OpenAI's names; the second copy of the embedding is dropped, and no code was run."""
    assert_equal(checkpoint.state, STATE)
    assert tuple(checkpoint.state[f"{QUERY}.weight1"].shape) == (32, RANKS["q_proj"])
    assert checkpoint.tokens.is_whispers, "its folder has no tokenizer"
    assert_equal(load_checkpoint(save_openai(tmp_path / "x.pt", DIMS, STATE)).state, STATE)


@pytest.mark.parametrize(
    ("dtype", "bound"),
    [(torch.float64, 1e-13), (torch.float32, 2e-6), (torch.bfloat16, 0.02), (torch.float16, 3e-3)],
)
def test_output_is_that_of_the_products(
    checkpoint: Checkpoint, true: Tensor, dtype: torch.dtype, bound: float
) -> None:
    """Within roundings of the dtype, and not much further off than with the products."""
    error = relative(encode(checkpoint.state, dtype), true)
    assert error < bound
    assert error < 3 * relative(encode(multiply_factors(checkpoint.state), dtype), true) + 1e-14


def test_the_form_of_the_factors(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors stay factors, in float32 as any matrix; in int8 all are rounded."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)  # without AMX
    for int8, kinds in ((False, Packed | Plain), (True, Quantized)):
        encoder = Encoder(checkpoint.state, DIMS, CPU, torch.float32, int8)
        assert not encoder.rows, "C reads no factors"
        first, last = encoder.blocks
        for layer in (*first.projections, first.out, last.projections[2]):
            assert isinstance(layer.weight, kinds) and isinstance(layer.first, kinds)
        assert last.out.first is None and last.mlp.last is None
        assert isinstance(first.mlp.first.weight, kinds)  # type: ignore[union-attr]
        assert isinstance(first.mlp.last.weight, kinds)  # type: ignore[union-attr]


def test_int8(checkpoint: Checkpoint, true: Tensor) -> None:
    """Two roundings in a row instead of one: below twice the error of the rounded products."""
    error = relative(encode(checkpoint.state, torch.float32, int8=True), true)
    product = relative(encode(multiply_factors(checkpoint.state), torch.float32, int8=True), true)
    assert 0 < product < 0.05  # 0.03 with inputs of 7 bits
    assert product / 2 < error < 2.5 * product


def test_products_of_halves_are_in_float32() -> None:
    whole = multiply_factors({name: tensor.half() for name, tensor in STATE.items()})
    assert whole[f"{QUERY}.weight"].dtype == torch.float32
    assert whole["encoder.conv1.weight"].dtype == torch.float16


# ---- as a model


def test_texts_are_those_of_the_products(folder: Path, tmp_path: Path) -> None:
    whole = {n: t.float() for n, t in multiply_factors(STATE).items()}
    plain = save_lite(tmp_path / "whole", DIMS, whole, low_rank_config=None)
    sound = torch.randn(16_000, generator=torch.Generator().manual_seed(3)).numpy() * 0.1
    factored, product = (
        slimwhisper.load_model(model, device="cpu").transcribe(
            sound, language="en", temperature=0.0, sample_len=10
        )
        for model in (folder, plain)
    )
    assert factored["text"] == product["text"] != ""


def test_a_draft_has_the_same_factors(checkpoint: Checkpoint) -> None:
    model = Model(checkpoint, CPU, torch.float32, ("e", "x"))
    assert load_draft(checkpoint, checkpoint, model).encoder is model.encoder
    whole = replace(checkpoint, state=multiply_factors(checkpoint.state))
    with pytest.raises(OptionError, match=r"its encoder\.blocks\.0\.\S+\.weight1 differs"):
        load_draft(whole, checkpoint, model)


def test_an_adapter_is_refused(folder: Path, tmp_path: Path) -> None:
    adapter = save_adapter(tmp_path / "lora", query_and_value_factors(DIMS))
    message = refusal(folder, adapter=adapter)
    assert f"{adapter}" in message and "layers.0.self_attn.q_proj" in message
    assert "`slimwhisper convert` the model" in message
    only = {n: t for n, t in query_and_value_factors(DIMS).items() if ".decoder." in n}
    found = load_checkpoint(folder, adapter=save_adapter(tmp_path / "b", only, target_modules=[]))
    assert torch.equal(found.state[f"{QUERY}.weight1"], STATE[f"{QUERY}.weight1"])


# ---- refused

FIRST, SECOND, WHOLE = (f"{QUERY}.{kind}" for kind in ("weight1", "weight2", "weight"))
DECODER, KEY = "decoder.blocks.0.mlp.0", "encoder.blocks.0.attn.key"
RANK_OF_KEY = f"gives {KEY} {{}}, but the weights have rank 4"


@pytest.mark.parametrize(
    ("changes", "config", "expected"),
    [
        ({FIRST: (30, 3)}, {}, f"{FIRST} has shape [30, 3], but its dimensions require [32, 3]"),
        ({SECOND: (4, 32)}, {}, f"{SECOND} has shape [4, 32], but its dimensions require [3, 32]"),
        ({WHOLE: (32, 32)}, {}, f"unknown tensor {WHOLE}"),
        ({SECOND: None}, {}, f"missing tensor {SECOND}"),
        ({f"{DECODER}.weight1": (32, 3)}, {}, "only the encoder's matrices"),
        ({"encoder.conv1.weight2": (3, 32)}, {}, "only the encoder's matrices"),
        ({"encoder.blocks.0.mlp_ln.weight1": (1, 3)}, {}, "blocks.0.mlp_ln no rank, but"),
        ({}, {"low_rank_config": [dict.fromkeys(RANKS, 3), {}]}, RANK_OF_KEY.format("rank 3")),
        ({}, {"low_rank_config": None}, RANK_OF_KEY.format("no rank")),
        ({}, {"low_rank_config": [RANKS]}, "not a list of 2 objects"),
        ({}, {"low_rank_config": "3"}, "not of type list"),
        ({}, {"model_type": "lite-whisper-2"}, "model_type is 'lite-whisper-2', not 'whisper'"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, changes: dict[str, Any], config: dict[str, Any], expected: str
) -> None:
    folder = save_lite(tmp_path / "model", DIMS, STATE, **config)
    before = (folder / "config.json").read_text()
    new = {name: None if shape is None else torch.ones(shape) for name, shape in changes.items()}
    save_lite(folder, DIMS, {n: t for n, t in (STATE | new).items() if t is not None})
    (folder / "config.json").write_text(before)
    message = refusal(folder)
    assert expected in message and str(folder) in message


@pytest.mark.parametrize("shape", [(32, 0), (32,), ()])
def test_a_file_without_ranks_is_checked_too(tmp_path: Path, shape: tuple[int, ...]) -> None:
    state = STATE | {FIRST: torch.ones(shape)}
    message = refusal(save_openai(tmp_path / "x.pt", DIMS, state))
    assert f"{FIRST} has shape {list(shape)}, but its dimensions require [32, 1]" in message
