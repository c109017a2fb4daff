"""Damaged, foreign and dangerous OpenAI files, and names of nothing: one line each."""

import io
import pickle
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.checkpoints import DIMS, State, refusal
from tests.support.damage import CODE, OPENAI, Damage, bomb, cut, openai, pickled, refused, write


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tinny", ["did you mean", "tiny", "large-v3-turbo", "distil-large-v3.5"]),
        ("zzzz", ["tiny.en", "distil-small.en"]),
        ("", ["tiny"]),
        ("no-such.pt", ["no-such.pt", "file"]),
        ("no/such/folder/x.pt", ["no/such/folder/x.pt", "file"]),
        (Path("no-such"), ["no-such"]),
        ("./no/such", ["./no/such"]),
        ("./no-such", ["./no-such"]),
        ("-a/b", ["-a/b"]),
        ("x" * 5000, ["x"]),
        ("bad\nname", ["bad"]),
        ("~no-such-user/x", ["~no-such-user/x"]),
    ],
)
def test_unknown_name_or_path(name: str | Path, expected: list[str]) -> None:
    message = refusal(name)
    assert all(part in message for part in expected), message


def letter() -> bytes:
    """A zip archive that is no checkpoint."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("letter.txt", "dear reader")
    return buffer.getvalue()


KEEP = (0, 1, 3, 4, 100, 5_000, -1, -100, -100_000)  # bytes
WHOLE = asdict(DIMS)


@pytest.mark.parametrize(
    ("kind", "damage", "expected"),
    [
        *[("openai", cut(OPENAI, keep), ("again",)) for keep in KEEP],
        *[("openai-old", cut(OPENAI, keep), ()) for keep in KEEP],
        ("openai", pickled(OPENAI, CODE), ("code",)),
        ("openai", write(OPENAI, pickle.dumps(CODE, protocol=2)), ()),
        ("openai", bomb(OPENAI), ("compressed",)),
        ("openai", write(OPENAI, letter()), ()),
        *[
            ("openai", write(OPENAI, content), ())
            for content in (b"\0" * 4096, b"ID3" + b"\xff" * 500, b"<html>", b"{}", b"\x80")
        ],
        *[
            ("openai", pickled(OPENAI, content), ("dims",))
            for content in (
                {"weight": torch.zeros(2)},
                torch.zeros(3),
                [1, 2],
                {"dims": WHOLE},
                {"dims": 3, "model_state_dict": {}},
                {"dims": WHOLE, "model_state_dict": torch.zeros(3)},
                {"dims": WHOLE | {"n_mels": 80.5}, "model_state_dict": {}},
                {"dims": WHOLE | {"n_mels": True}, "model_state_dict": {}},
                {"dims": WHOLE | {"n_new": 1}, "model_state_dict": {}},
                {"dims": WHOLE | {3: 1}, "model_state_dict": {}},
                {"dims": {"n_mels": 80}, "model_state_dict": {}},
            )
        ],
    ],
)
def test_damaged_files(
    sound: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    kind: str,
    damage: Damage,
    expected: Sequence[str],
) -> None:
    refused(sound, tmp_path, (kind, damage, (OPENAI, *expected)))
    assert "must not be printed" not in capfd.readouterr().out


def without(*names: str) -> Callable[[State], State]:
    return lambda state: {name: tensor for name, tensor in state.items() if name not in names}


def more(tensors: dict[Any, Any]) -> Callable[[State], State]:
    return lambda state: state | tensors


LN, KEY_BIAS = "decoder.ln.weight", "decoder.blocks.0.attn.key.bias"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (without(LN), [LN]),
        (without(LN, "decoder.ln.bias", "encoder.ln_post.bias"), ["2 more"]),
        (more({"lora_A": torch.ones(1)}), ["lora_A"]),
        (more({"a": torch.ones(1), "b": torch.ones(1)}), ["a", "1 more"]),
        (more({3: torch.ones(1)}), ["3"]),
        (more({LN: torch.ones(9)}), [LN, "9", "8"]),
        (more({LN: torch.ones(8, 1)}), [LN]),
        (more({LN: "text"}), [LN]),
        (more({LN: torch.ones(8, dtype=torch.int8)}), [LN, "int8"]),
        (more({LN: torch.ones(8, dtype=torch.complex64)}), [LN, "complex64"]),
        (more({LN: torch.ones(8).to(torch.float8_e4m3fn)}), [LN, "float8"]),
        (more({LN: torch.ones(8).to_sparse()}), [LN, "sparse"]),
        (more({LN: torch.ones(8, device="meta")}), [LN]),
        (more({LN: torch.tensor([1.0] * 7 + [float("nan")])}), [LN, "finite"]),
        (more({LN: torch.tensor([1.0] * 7 + [float("-inf")])}), [LN, "finite"]),
        (more({KEY_BIAS: torch.full((8,), torch.nan)}), [KEY_BIAS, "finite"]),
        (more({KEY_BIAS: torch.ones(7)}), [KEY_BIAS, "7", "8"]),
    ],
)
def test_wrong_tensors(
    sound: Path, tmp_path: Path, change: Callable[[State], State], expected: list[str]
) -> None:
    refused(sound, tmp_path, ("openai", openai(change), expected))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"n_vocab": 32_000}, ["32000", "51865"]),
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
    sound: Path, tmp_path: Path, changes: dict[str, int], expected: list[str]
) -> None:
    refused(sound, tmp_path, ("openai", openai(dict, replace(DIMS, **changes)), expected))
