"""Damaged, foreign and dangerous files, and names of nothing: one line each."""

import io
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.checkpoints import DIMS, State, refusal, save_openai


@pytest.fixture
def openai_file(tmp_path: Path, openai_bytes: bytes) -> Path:
    path = tmp_path / "model.pt"
    path.write_bytes(openai_bytes)
    return path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tinny", ["did you mean", "tiny", "large-v3-turbo", "distil-large-v3.5"]),
        ("zzzz", ["tiny.en", "distil-small.en"]),
        ("", ["tiny"]),
        ("no-such.pt", ["no-such.pt", "file"]),
        ("no/such/folder/x.pt", ["no/such/folder/x.pt", "file"]),
        ("models/x.pt", ["models/x.pt", "file"]),
        (Path("no-such"), ["no-such"]),
        ("./no/such", ["./no/such"]),
        ("./no-such", ["./no-such"]),
        ("-a/b", ["-a/b"]),
        ("x" * 5000, ["x"]),
        ("bad\nname", ["bad"]),
    ],
)
def test_unknown_name_or_path(name: str | Path, expected: list[str]) -> None:
    message = refusal(name)
    assert all(part in message for part in expected), message


def test_home_of_nobody() -> None:
    assert "~no-such-user/x" in refusal("~no-such-user/x")


class RunsCode:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return print, ("this must not be printed",)


def test_pickle_that_runs_code(
    tmp_path: Path, state: State, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "evil.pt"
    content = {"dims": asdict(DIMS), "model_state_dict": {}, "extra": RunsCode()}
    torch.save(content, path)
    message = refusal(path)
    assert str(path) in message
    assert "code" in message
    path.write_bytes(pickle.dumps(content, protocol=2))
    assert str(path) in refusal(path)
    assert "this must not be printed" not in capsys.readouterr().out


@pytest.mark.parametrize("keep", [0, 1, 3, 4, 100, 5_000, -1, -100, -100_000])
def test_truncated_openai_file(openai_file: Path, openai_bytes: bytes, keep: int) -> None:
    openai_file.write_bytes(openai_bytes[:keep])
    message = refusal(openai_file)
    assert str(openai_file) in message
    assert "again" in message


def old_format(state: State) -> bytes:
    buffer = io.BytesIO()
    content = {"dims": asdict(DIMS), "model_state_dict": state}
    torch.save(content, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


@pytest.mark.parametrize("part", [0.0001, 0.003, 0.5, 0.999])
def test_truncated_old_file(openai_file: Path, state: State, part: float) -> None:
    content = old_format(state)
    openai_file.write_bytes(content[: int(len(content) * part)])
    assert str(openai_file) in refusal(openai_file)


@pytest.mark.parametrize(
    "content", [b"\0" * 4096, b"ID3" + b"\xff" * 500, b"<html>", b"{}", b"\x80"]
)
def test_something_else_named_pt(openai_file: Path, content: bytes) -> None:
    openai_file.write_bytes(content)
    assert str(openai_file) in refusal(openai_file)


def test_another_zip_named_pt(openai_file: Path) -> None:
    with zipfile.ZipFile(openai_file, "w") as archive:
        archive.writestr("letter.txt", "dear reader")
    assert str(openai_file) in refusal(openai_file)


@pytest.mark.parametrize(
    "content",
    [
        {"weight": torch.zeros(2)},
        torch.zeros(3),
        [1, 2],
        {"dims": asdict(DIMS)},
        {"dims": 3, "model_state_dict": {}},
        {"dims": asdict(DIMS), "model_state_dict": torch.zeros(3)},
        {"dims": asdict(DIMS) | {"n_mels": 80.5}, "model_state_dict": {}},
        {"dims": asdict(DIMS) | {"n_mels": True}, "model_state_dict": {}},
        {"dims": asdict(DIMS) | {"n_new": 1}, "model_state_dict": {}},
        {"dims": asdict(DIMS) | {3: 1}, "model_state_dict": {}},
        {"dims": {"n_mels": 80}, "model_state_dict": {}},
    ],
)
def test_foreign_openai_file(openai_file: Path, content: Any) -> None:
    torch.save(content, openai_file)
    message = refusal(openai_file)
    assert str(openai_file) in message
    assert "dims" in message


def without(state: State, *names: str) -> State:
    return {name: tensor for name, tensor in state.items() if name not in names}


def normed(weight: object) -> Callable[[State], State]:
    """The state with another `LN`."""
    return lambda state: state | {LN: weight}


LN, KEY_BIAS = "decoder.ln.weight", "decoder.blocks.0.attn.key.bias"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda s: without(s, LN), [LN]),
        (lambda s: without(s, LN, "decoder.ln.bias", "encoder.ln_post.bias"), ["2 more"]),
        (lambda s: s | {"lora_A": torch.ones(1)}, ["lora_A"]),
        (lambda s: s | {"a": torch.ones(1), "b": torch.ones(1)}, ["a", "1 more"]),
        (lambda s: s | {3: torch.ones(1)}, ["3"]),
        (normed(torch.ones(9)), [LN, "9", "8"]),
        (normed(torch.ones(8, 1)), [LN]),
        (normed("text"), [LN]),
        (normed(torch.ones(8, dtype=torch.int8)), [LN, "int8"]),
        (normed(torch.ones(8, dtype=torch.complex64)), [LN, "complex64"]),
        (normed(torch.ones(8).to(torch.float8_e4m3fn)), [LN, "float8"]),
        (normed(torch.ones(8).to_sparse()), [LN, "sparse"]),
        (normed(torch.ones(8, device="meta")), [LN]),
        (normed(torch.tensor([1.0] * 7 + [float("nan")])), [LN, "finite"]),
        (normed(torch.tensor([1.0] * 7 + [float("-inf")])), [LN, "finite"]),
        (lambda s: s | {KEY_BIAS: torch.full((8,), torch.nan)}, [KEY_BIAS, "finite"]),
        (lambda s: s | {KEY_BIAS: torch.ones(7)}, [KEY_BIAS, "7", "8"]),
    ],
)
def test_wrong_tensors(
    tmp_path: Path, state: State, change: Callable[[State], State], expected: list[str]
) -> None:
    path = save_openai(tmp_path / "wrong.pt", DIMS, change(state))
    message = refusal(path)
    assert str(path) in message
    assert all(part in message for part in expected), message


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"n_vocab": 32_000}, ["32000", "Whisper's own", "51865"]),
        ({"n_vocab": 51_867}, ["51867"]),
        ({"n_mels": 64}, ["64", "80"]),
        ({"n_audio_ctx": 750}, ["encoder.positional_embedding", "750", "1500"]),
        ({"n_audio_ctx": 1501}, ["1501", "1500"]),
        ({"n_text_ctx": 449}, ["decoder.positional_embedding", "449", "448"]),
        ({"n_text_ctx": 4097}, ["4097", "4096"]),
        ({"n_text_ctx": 7}, ["7", "4096"]),
        ({"n_audio_head": 3}, ["8", "3 heads"]),
        ({"n_text_head": 5}, ["8", "5 heads"]),
        ({"n_text_head": 0}, ["dims"]),
        ({"n_text_layer": -1}, ["dims"]),
        ({"n_text_state": 16}, ["16", "8"]),
        ({"n_mels": 128}, ["encoder.conv1.weight", "128", "80"]),
        ({"n_vocab": 51_866}, ["decoder.token_embedding.weight", "51866"]),
        ({"n_text_layer": 2}, ["decoder.blocks.1"]),
        ({"n_text_layer": 10**6}, ["too few", "layers"]),  # must not build a list of them
    ],
)
def test_wrong_dims(
    tmp_path: Path, state: State, changes: dict[str, int], expected: list[str]
) -> None:
    path = save_openai(tmp_path / "wrong.pt", replace(DIMS, **changes), state)
    message = refusal(path)
    assert str(path) in message
    assert all(part in message for part in expected), message
