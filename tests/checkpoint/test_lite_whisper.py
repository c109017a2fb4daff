"""LiteASR's factored encoders: what is read, that factors stay factors, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import whisper
from torch import Tensor

import slimwhisper
from slimwhisper.checkpoint.formats.lite_whisper import multiply_factors
from slimwhisper.checkpoint.load import Checkpoint, load_checkpoint
from slimwhisper.commands.measurement import EncoderClock, _whisper_run
from slimwhisper.engine.drafting import load_draft
from slimwhisper.errors import OptionError
from slimwhisper.kernels.linear import Packed, Plain, Quantized
from slimwhisper.model.encoder import Encoder
from slimwhisper.model.model import Model
from tests.support.adapters import query_and_value_factors, save_adapter
from tests.support.checkpoints import (
    State,
    assert_equal,
    hf_name,
    refusal,
    save_openai,
    tiny_dims,
)
from tests.support.command import Run
from tests.support.lite_whisper import RANKS, factored_state, products, save_lite
from tests.support.oracle import their_model
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


def test_factors_are_read_as_they_are(checkpoint: Checkpoint) -> None:
    """By OpenAI's names; the second copy of the embedding is dropped, and no code was run."""
    assert_equal(checkpoint.state, STATE)
    assert tuple(checkpoint.state[f"{QUERY}.weight1"].shape) == (32, RANKS["q_proj"])
    assert checkpoint.tokens.is_whispers, "its folder has no tokenizer"


def test_another_file_may_have_them(tmp_path: Path) -> None:
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


def test_all_products_are_of_factors(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are factors, nothing is multiplied by a whole matrix."""
    shapes: list[tuple[int, ...]] = []

    def recorded(self: Plain, *operands: Any) -> Tensor:
        shapes.append(tuple(self.matrix.shape))
        return multiply(self, *operands)

    multiply = Plain.multiply
    monkeypatch.setattr(Plain, "multiply", recorded)
    encode(checkpoint.state, torch.float64)
    attention = [(3, 32), (32, 3), (4, 32), (32, 4), (5, 32), (32, 5)]
    first = [*attention, (6, 32), (32, 6), (7, 32), (128, 7), (9, 128), (32, 9)]
    assert shapes == [*first, *attention, (32, 32), (7, 32), (128, 7), (32, 128)]


def test_the_form_of_the_factors(
    checkpoint: Checkpoint, true: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32 as of any matrix; in int8 all are rounded, as the products would be."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)  # without AMX
    for int8, kinds in ((False, Packed | Plain), (True, Quantized)):
        encoder = Encoder(checkpoint.state, DIMS, CPU, torch.float32, int8)
        assert not encoder.rows, "C reads no factors"
        first, last = encoder.blocks
        for layer in (*first.projections, first.out, last.projections[2]):
            assert isinstance(layer.weight, kinds) and isinstance(layer.first, kinds)
        assert last.out.first is None and last.mlp.last is None
        for mlp in (first.mlp, last.mlp):
            assert mlp.first is not None and isinstance(mlp.first.weight, kinds)
            assert all(isinstance(down.weight, kinds) for _, down in mlp.parts)
        assert first.mlp.last is not None and isinstance(first.mlp.last.weight, kinds)


def test_int8(checkpoint: Checkpoint, true: Tensor) -> None:
    """Two roundings in a row instead of one: below twice the error of the rounded products."""
    error = relative(encode(checkpoint.state, torch.float32, int8=True), true)
    product = relative(encode(multiply_factors(checkpoint.state), torch.float32, int8=True), true)
    assert 0 < product < 0.05  # 0.03 with inputs of 7 bits
    assert product / 2 < error < 2.5 * product


def test_products_are_rounded_once(checkpoint: Checkpoint) -> None:
    found, expected = multiply_factors(checkpoint.state), products(STATE)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == torch.float32 and found[name].is_contiguous()
        assert torch.equal(found[name], tensor.float()), name
    halves = {name: tensor.half() for name, tensor in STATE.items()}
    whole = multiply_factors(halves)
    assert whole[f"{QUERY}.weight"].dtype == torch.float32
    assert whole["encoder.conv1.weight"].dtype == torch.float16
    wide = multiply_factors({name: tensor.double() for name, tensor in STATE.items()})
    assert wide[f"{QUERY}.weight"].dtype == torch.float64


# ---- as a model


def test_texts_are_those_of_the_products(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In float32; and `report`, which describes a model, measures it."""
    whole = {n: t.float() for n, t in multiply_factors(STATE).items()}
    plain = save_lite(tmp_path / "whole", DIMS, whole, low_rank_config=None)
    sound = torch.randn(16_000, generator=torch.Generator().manual_seed(3)).numpy() * 0.1
    answers = []
    for model in (folder, plain):
        loaded = slimwhisper.load_model(model, device="cpu")
        result = loaded.transcribe(sound, language="en", temperature=0.0, sample_len=10)
        answers.append([segment["tokens"] for segment in result["segments"]])
    assert answers[0] == answers[1] and any(answers[0])
    parameters = {n: t for n, t in STATE.items() if n != "encoder.positional_embedding"}
    found = dict(slimwhisper.load_model(folder, device="cpu").named_parameters())
    assert {n: t.numel() for n, t in found.items()} == {n: t.numel() for n, t in parameters.items()}
    run = Run(capsys, "report", str(folder), "--guard")
    assert run.status == 0 and "condition" in run.out


def test_a_draft_has_the_same_factors(checkpoint: Checkpoint) -> None:
    model = Model(checkpoint, CPU, torch.float32, ("e", "x"))
    assert load_draft(checkpoint, checkpoint, model).encoder is model.encoder
    whole = replace(checkpoint, state=multiply_factors(checkpoint.state))
    with pytest.raises(OptionError, match=r"its encoder\.blocks\.0\.\S+\.weight1 differs"):
        load_draft(whole, checkpoint, model)


def test_openai_whisper_is_measured_with_the_products(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[Any] = []

    def transcribe(model: Any, *_: Any, **__: Any) -> dict[str, Any]:
        models.append(model)
        return {"segments": []}

    monkeypatch.setattr(whisper.model.Whisper, "transcribe", transcribe)
    run = _whisper_run(checkpoint, CPU, torch.float32, EncoderClock(CPU))
    list(run([MEL[0].numpy()], {}))
    expected = products(STATE)[f"{QUERY}.weight"].float()
    assert torch.equal(models[0].encoder.blocks[0].attn.query.weight, expected)


def test_an_adapter_is_refused(folder: Path, tmp_path: Path) -> None:
    adapter = save_adapter(tmp_path / "lora", query_and_value_factors(DIMS))
    message = refusal(folder, adapter=adapter)
    assert f"{adapter}" in message and "layers.0.self_attn.q_proj" in message
    assert "`slimwhisper convert` the model" in message
    only = {n: t for n, t in query_and_value_factors(DIMS).items() if ".decoder." in n}
    found = load_checkpoint(folder, adapter=save_adapter(tmp_path / "b", only, target_modules=[]))
    assert torch.equal(found.state[f"{QUERY}.weight1"], STATE[f"{QUERY}.weight1"])


# ---- refused

Change = Callable[[State], Any]


def without(name: str) -> Change:
    return lambda state: state.pop(name)


def become(name: str, *shape: int) -> Change:
    return lambda state: state.update({name: torch.ones(shape)})


FIRST, SECOND, WHOLE = (f"{QUERY}.{kind}" for kind in ("weight1", "weight2", "weight"))
DECODER = "decoder.blocks.0.mlp.0"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (become(FIRST, 30, 3), (FIRST, "[30, 3]", "[32, 3]")),
        (become(SECOND, 32, 3), (SECOND, "[32, 3]", "[3, 32]")),
        (become(SECOND, 4, 32), (SECOND, "[4, 32]", "[3, 32]")),
        (become(WHOLE, 32, 32), ("unknown tensor", WHOLE)),
        (without(SECOND), ("missing tensor", SECOND)),
        (become(f"{DECODER}.weight1", 32, 3), (DECODER, "only the encoder's matrices")),
        (become("encoder.conv1.weight2", 3, 32), ("encoder.conv1", "only the encoder's matrices")),
        (become("encoder.blocks.0.mlp_ln.weight1", 1, 3), ("blocks.0.mlp_ln no rank, but",)),
        (lambda state: state[FIRST].fill_(torch.nan), (FIRST, "NaN")),
    ],
)
def test_other_factors_are_refused(
    tmp_path: Path, change: Change, expected: tuple[str, ...]
) -> None:
    state = {name: tensor.clone() for name, tensor in STATE.items()}
    folder = save_lite(tmp_path / "model", DIMS, state)
    ranks = (folder / "config.json").read_text()
    change(state)
    save_lite(folder, DIMS, state)
    (folder / "config.json").write_text(ranks)  # as before the damage
    message = refusal(folder)
    assert all(part in message for part in (f"{folder}", *expected)), message


@pytest.mark.parametrize("shape", [(32, 0), (32,), ()])
def test_a_file_without_ranks_is_checked_too(tmp_path: Path, shape: tuple[int, ...]) -> None:
    state = STATE | {FIRST: torch.ones(shape)}
    message = refusal(save_openai(tmp_path / "x.pt", DIMS, state))
    assert f"{FIRST} has shape {list(shape)}, but its dimensions require [32, 1]" in message


KEY = "encoder.blocks.0.attn.key"
OTHER = [dict.fromkeys(RANKS, 3), {}]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {"low_rank_config": OTHER},
            "gives encoder.blocks.0.attn.key rank 3, but the weights have rank 4",
        ),
        (
            {"low_rank_config": None},
            "gives encoder.blocks.0.attn.key no rank, but the weights have rank 4",
        ),
        ({"low_rank_config": OTHER[:1]}, "not a list of 2 objects, one for each encoder layer"),
        ({"low_rank_config": [1, 2]}, "not a list of 2 objects"),
        ({"low_rank_config": "3"}, "not of type list"),
        ({"model_type": "lite-whisper-2"}, "model_type is 'lite-whisper-2', not 'whisper'"),
    ],
)
def test_ranks_that_are_not_the_factors(
    tmp_path: Path, config: dict[str, Any], expected: str
) -> None:
    message = refusal(save_lite(tmp_path / "model", DIMS, STATE, **config))
    assert f"{tmp_path / 'model' / 'config.json'}" in message and expected in message


def test_ranks_without_factors_are_refused(tmp_path: Path) -> None:
    whole = multiply_factors(STATE)
    ranks = [{"q_proj": 3}, {}]
    message = refusal(save_lite(tmp_path / "model", DIMS, whole, low_rank_config=ranks))
    assert f"gives {QUERY} rank 3, but the weights have no rank" in message


# ---- transformers as the oracle


class LowRank(torch.nn.Module):
    """LiteASR's layer: (x W_1) W_2 + b."""

    def __init__(self, first: Tensor, second: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.first, self.second, self.bias = first.double(), second.double(), bias.double()

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.first @ self.second + self.bias


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # other projects' warnings
def test_output_is_that_of_transformers(checkpoint: Checkpoint) -> None:
    """Whisper's encoder there, with the layers that LiteASR's own code puts in it."""
    plain = {n: t for n, t in multiply_factors(STATE).items() if not n.endswith(".key.bias")}
    encoder = their_model(DIMS, plain).double().model.encoder
    for name in (n for n in STATE if n.endswith(".weight1")):
        layer = name.removesuffix(".weight1")
        parent, _, child = hf_name(name).removesuffix(".weight1").rpartition(".")
        module = encoder.get_submodule(parent.removeprefix("model.encoder."))
        values = (STATE[f"{layer}.{part}"] for part in ("weight1", "weight2", "bias"))
        setattr(module, child, LowRank(*values))
    with torch.no_grad():
        expected = encoder(MEL.double()).last_hidden_state
    assert relative(encode(dict(checkpoint.state), torch.float64), expected) < 1e-13
