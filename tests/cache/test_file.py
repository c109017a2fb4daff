"""The file of `calibrate`: what it holds comes back; anything else is one line."""

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import slimwhisper
from slimwhisper.app.command import make_settings
from slimwhisper.app.service.settings import ServerSettings
from slimwhisper.cache.choice import choose_forms
from slimwhisper.cache.file import (
    MAX_MEASURED,
    as_stored,
    looks_like_file,
    read_header,
    read_learned,
    write_file,
)
from slimwhisper.cache.forms import E, X
from slimwhisper.checkpoint.load import Checkpoint, load_checkpoint
from slimwhisper.cli import build_parser
from slimwhisper.digests import WHOLE_TENSOR, weights_digest
from slimwhisper.errors import CacheError, OptionError, OutputError
from slimwhisper.jobs.journal.identity import identify_caches
from slimwhisper.model.calibration import fold_plan, guarded_plan, learned_by, record_activations
from slimwhisper.model.model import Model
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.command import Run
from tests.support.paths import SAMPLES
from tests.support.toy_form import first_form

DIMS = tiny_dims(width=8, heads=2, text_layers=2, multilingual=False)
STATE = random_state(DIMS, seed=4)
CHECKPOINT = Checkpoint("random", DIMS, STATE)
DIGEST = weights_digest(STATE)
GOOD = {"format": "slimwhisper-cache", "version": "1", "checkpoint": DIGEST, "cross": "e"}
GOOD |= {"self": "x", "measured": "{}"}
CPU = torch.device("cpu")
ROTATIONS = ("cross.0.rotation", "cross.1.rotation")
LEARNED = {name: torch.eye(8).clone() for name in ROTATIONS}


@pytest.fixture
def first() -> Iterator[str]:
    with first_form() as name:
        yield name


def raw(path: Path, tensors: dict[str, Tensor] | None = None, **metadata: Any) -> Path:
    """A file with this metadata; None leaves one out."""
    words = {k: v for k, v in (GOOD | metadata).items() if v is not None}
    save_file(tensors or {}, path, words)
    return path


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(CacheError) as caught:
        call()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700
    return str(caught.value)


def read(path: Path) -> Any:
    return read_learned(read_header(path), DIGEST, 2)


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    """Rounded to float32."""
    generator = torch.Generator().manual_seed(1)
    one, other = torch.rand(2, 5, 3, generator=generator, dtype=torch.float64)
    learned = {"cross.0.rotation": one, "cross.0.mean": one[0], "self.1.rotation": other.T}
    path = tmp_path / "a.safetensors"
    write_file(path, DIGEST, ("e", "x"), learned, {"loss": 0.25})
    assert sorted(load_file(path)) == ["cross.0.mean", "cross.0.rotation", "self.1.rotation"]
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    header = read_header(path)
    assert (header.cross, header.self_, header.measured) == ("e", "x", {"loss": 0.25})
    result, stored = read(path), as_stored(learned)
    assert set(result) == set(stored) == set(learned)
    for name, tensor in learned.items():
        assert torch.equal(result[name], tensor.float().double())
        assert torch.equal(stored[name], result[name])
    assert choose_forms(str(path)) == (E(), X())


def test_digest_of_weights() -> None:
    """Any name, dtype, shape or small tensor counts, and some of every 64 KiB of a large one."""
    big = torch.zeros(WHOLE_TENSOR // 4 + 10)
    state = {"a": torch.ones(3, 4), "b": torch.ones(2, dtype=torch.bfloat16), "c": big}
    one = weights_digest(state)
    assert one == weights_digest(dict(reversed(state.items())))
    assert one == weights_digest(state | {"a": torch.ones(4, 3).T})
    changed = big.clone()
    changed[-1] = 1
    middle = big.clone()
    middle[16384:32768] = 1
    others = [
        {"a2": torch.ones(3, 4)},
        {"a": torch.ones(4, 3)},
        {"a": torch.ones(3, 4, dtype=torch.float64)},
        {"b": torch.tensor([1, 0], dtype=torch.bfloat16)},
        {"c": changed},
        {"c": middle},
    ]
    assert len({one, *(weights_digest(state | other) for other in others)}) == 1 + len(others)


def test_rotations_are_used_and_not_learned_again(first: str, tmp_path: Path) -> None:
    spec = f"{first}:frames=700"
    plan = fold_plan(STATE, DIMS, spec, "x", record_activations(CHECKPOINT))
    learned = as_stored(learned_by(plan))
    path = tmp_path / "a.safetensors"
    write_file(path, DIGEST, (spec, "x"), learned, {})
    assert sorted(load_file(path)) == ["cross.0.rotation", "cross.1.rotation"]
    again = guarded_plan(CHECKPOINT, spec, "x", torch.float64, None, read(path))
    assert again.inspections == []
    for ours, theirs in zip(again.cross, plan.cross, strict=True):
        torch.testing.assert_close(ours.key_map, theirs.key_map, rtol=1e-6, atol=1e-6)
    assert torch.equal(again.cross[0].learned["rotation"], learned["cross.0.rotation"])


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({}, "the file's tensors do not fit caches 'first:frames=9' and 'x' .KeyError"),
        ({name: torch.eye(5).clone() for name in ROTATIONS}, "do not fit caches .*RuntimeError"),
        (LEARNED | {"cross.1.more": torch.ones(1)}, "tensor 'more' of"),
        (LEARNED | {"self.0.a": torch.ones(1)}, "tensor 'a' of self.0 "),
    ],
)
def test_tensors_that_do_not_fit(
    tensors: dict[str, Tensor], reason: str, first: str, tmp_path: Path
) -> None:
    path = raw(tmp_path / "a.safetensors", tensors, cross=f"{first}:frames=9")
    learned = read(path)
    with pytest.raises(CacheError, match=reason):
        Model(CHECKPOINT, CPU, torch.float32, choose_forms(str(path)), learned=learned)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"format": "pt"}, "not a file from slimwhisper calibrate"),
        ({"format": None}, "not a file from slimwhisper calibrate"),
        ({"version": "2"}, "has version '2', and this program reads '1'"),
        ({"more": "x"}, "unknown entry 'more'"),
        ({"self": None}, "missing entry 'self'"),
        ({"cross": "e" * 400}, "cross is too long"),
        ({"measured": "1" * (MAX_MEASURED + 1)}, "measured is too long"),
        ({"measured": "{"}, "measured is not JSON"),
        ({"measured": "[" * 100_000}, "measured is not JSON"),
        ({"cross": "nonsense"}, "'nonsense' is not one of kv, k, v, e"),
        ({"self": "x:r=3"}, "x has no settings"),
        ({"cross": "x"}, "'x' is not one of kv"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_wrong_metadata(metadata: dict[str, str | None], reason: str, tmp_path: Path) -> None:
    path = raw(tmp_path / "a.safetensors", **metadata)
    assert reason in refusal(lambda: choose_forms(str(path)))


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"encoder.weight": torch.ones(2)}, "unknown tensor 'encoder.weight'"),
        ({"cross.0": torch.ones(2)}, "unknown tensor"),
        ({"cross.00.a": torch.ones(2)}, "unknown tensor"),
        ({"self.0.a\nb": torch.ones(2)}, r"unknown tensor 'self.0.a\\nb'"),
        ({"cross.2.a": torch.ones(2)}, "the model has 2 decoder layers"),
        ({"cross.0.a": torch.ones(2, dtype=torch.float64)}, "'cross.0.a' is not float32"),
        ({"cross.0.a": torch.ones(1, 1, 1, 1, 1)}, "more than 4 dimensions"),
        ({"cross.0.a": torch.ones(0, 3)}, "is empty"),
        ({"cross.0.a": torch.tensor([1.0, torch.nan])}, "holds NaN or infinity"),
        ({"cross.all.a": torch.ones(2)}, "unknown tensor"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_wrong_tensors(tensors: dict[str, Tensor], reason: str, tmp_path: Path) -> None:
    path = raw(tmp_path / "a.safetensors", tensors)
    assert reason in refusal(lambda: read(path))


def test_damaged_files(tmp_path: Path) -> None:
    """Cut anywhere, or with one byte more, or with a header that promises too much."""
    path = raw(tmp_path / "a.safetensors", {"cross.0.a": torch.ones(40)})
    whole = path.read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]
    header, data = json.loads(whole[8 : 8 + length]), whole[8 + length :]

    def with_header(**changes: Any) -> bytes:
        text = json.dumps(header | {"cross.0.a": header["cross.0.a"] | changes}).encode()
        return struct.pack("<Q", len(text)) + text + data

    shapes = ([10**12], [2**31, 2**31], [-40], [True] * 2, "40", None, [40.0])
    for content in (
        *(whole[:size] for size in (0, 3, 8, 60, len(whole) // 2, -1)),
        whole + b"0",
        struct.pack("<Q", 1 << 62) + whole[8:],
        *(with_header(shape=shape) for shape in shapes),
        with_header(shape=[40], data_offsets=[4, 164]),
        b"[]" * 100,
    ):
        path.write_bytes(content)
        assert path.name in refusal(lambda: read(path))
    path.unlink()
    assert "No such file" in refusal(lambda: read(path))
    path.mkdir()
    refusal(lambda: read(path))


def test_what_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="choose another -o"):
        write_file(tmp_path / "file" / "a.safetensors", DIGEST, ("e", "x"), {}, {})


def test_another_checkpoint_is_refused(
    digits_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = raw(tmp_path / "other.safetensors")
    message = refusal(lambda: slimwhisper.load_model(digits_path, "cpu", cache=other))
    assert message.startswith("other.safetensors: was made for a checkpoint with digest")
    assert str(tmp_path) not in message
    recording = str(SAMPLES / "door-code.mp3")
    flags = ("-o", str(tmp_path), "-f", "txt", "--language", "en")
    run = Run(capsys, "transcribe", recording, "--model", "digits", "--cache", str(other), *flags)
    assert run.status == 1 and "was made for a checkpoint with digest" in run.err

    own = weights_digest(load_checkpoint(digits_path).state)
    path = raw(tmp_path / "own.safetensors", checkpoint=own, cross="e8", self="x8")
    model = slimwhisper.load_model(digits_path, "cpu", cache=path)
    assert model.forms == ("e8", "x8")
    run = Run(capsys, "transcribe", recording, "--model", "digits", "--cache", str(path), *flags)
    assert run.status == 0 and "cache e8+x8" in run.err
    assert (tmp_path / "door-code.txt").read_text().split() == "four zero seven seven".split()


def test_flags_and_identity(tmp_path: Path) -> None:
    """Two files count as different caches in a journal, and a file has both forms."""
    one, two = raw(tmp_path / "a.safetensors"), raw(tmp_path / "b.safetensors", measured="1")
    results = {identify_caches(str(path), None, None, None) for path in (one, two)}
    assert len(results) == 2 and all(name.startswith("e+x ") for name in results)
    assert looks_like_file("later.safetensors") and not looks_like_file("fast")
    for other in ({"cross_cache": "e"}, {"self_cache": "x"}, {"cache_dtype": "fp8"}):
        with pytest.raises(OptionError, match=f"^{next(iter(other))}: .* has both forms"):
            choose_forms(str(one), **other)
    arguments = build_parser().parse_args(["serve", "--cache", str(one)])
    settings: ServerSettings = make_settings(arguments, None)
    assert settings.cache is None
    assert make_settings(build_parser().parse_args(["serve"]), None).cache == "slim"
