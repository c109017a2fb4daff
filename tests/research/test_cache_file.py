"""The file of `calibrate`: what it holds comes back; anything else is one line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

import slimwhisper
from slimwhisper.app.command import make_settings
from slimwhisper.cache.forms import E, X, check_cache, choose_forms, parse_form
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.cli import build_parser
from slimwhisper.disk import MIB, weights_digest
from slimwhisper.errors import CacheError, OptionError, OutputError
from slimwhisper.formats.load import load_checkpoint
from slimwhisper.guard import guarded_plan
from slimwhisper.jobs.journal import identify_caches
from slimwhisper.model.model import Model
from slimwhisper.research import cache_file
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.fuzz import examples

pytestmark = pytest.mark.usefixtures("first")
DIMS = tiny_dims(width=8, heads=2, text_layers=2, multilingual=False)
CHECKPOINT = Checkpoint("random", DIMS, random_state(DIMS, seed=4))
DIGEST = weights_digest(CHECKPOINT.state)
GOOD = {"format": "slimwhisper-cache", "version": "1", "checkpoint": DIGEST, "cross": "e"}
GOOD |= {"self": "x", "measured": "{}"}
CPU = torch.device("cpu")
FIRST = "first:frames=700"
LEARNED = {name: torch.eye(8).clone() for name in ("cross.0.rotation", "cross.1.rotation")}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.safetensors"


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
    return cache_file.read_forms(path, choose_forms(str(path)), CHECKPOINT)


def test_what_was_learned_comes_back(first: str, path: Path) -> None:
    """Rounded to float32; it is used, and not learned again."""
    plan = guarded_plan(CHECKPOINT, (parse_form(f"{first}:frames=700"), X()), torch.float64)
    form = plan.cross[0].form
    cache_file.write_file(path, DIGEST, (form, X()), {"loss": 0.25})
    assert sorted(load_file(path)) == sorted(LEARNED)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    header = cache_file.read_header(path)
    found = (header.cross, header.self_, header.measured)
    assert found == (f"{first}:frames=700", "x", {"loss": 0.25})
    cross, self_ = read(path)
    assert (cross, self_) == choose_forms(str(path)) == (form, X()) and not cross.learns
    stored = cache_file.as_stored(form)
    assert form.learned and cross.learned and stored.learned
    for ours, again, before in zip(cross.learned, stored.learned, form.learned, strict=True):
        assert torch.equal(ours["rotation"], before["rotation"].float().double())
        assert torch.equal(ours["rotation"], again["rotation"])
    model = Model(CHECKPOINT, CPU, torch.float32, (cross, self_))
    assert not model.plan.inspections and model.plan.cross[0].form is cross


def test_digest_of_weights() -> None:
    """Any name, dtype, shape or small tensor counts, and some of every 64 KiB of a large one."""
    big = torch.zeros(MIB // 4 + 10)
    state = {"a": torch.ones(3, 4), "b": torch.ones(2, dtype=torch.bfloat16), "c": big}
    one = weights_digest(state)
    assert one == weights_digest(dict(reversed(state.items())))
    assert one == weights_digest(state | {"a": torch.ones(4, 3).T})
    changed, middle = big.clone(), big.clone()
    changed[-1] = 1
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


@pytest.mark.parametrize(
    ("metadata", "tensors", "reason"),
    [
        ({"format": "pt"}, {}, "not a file from slimwhisper calibrate"),
        ({"version": "2"}, {}, "has version '2', and this program reads '1'"),
        ({"more": "x"}, {}, "unknown entry 'more'"),
        ({"self": None}, {}, "missing entry 'self'"),
        ({"measured": "1" * (cache_file.MAX_MEASURED + 1)}, {}, "measured is too long"),
        ({"measured": "[" * 100_000}, {}, "measured is not JSON"),
        ({"cross": "nonsense"}, {}, "'nonsense' is not one of kv, k, v, e"),
        ({"cross": "first"}, {}, "missing tensor 'cross.0.rotation'"),
        ({"cross": "first"}, {n: torch.ones(0, 3) for n in LEARNED}, "do not fit first:frames"),
        ({"cross": "first"}, {n: torch.full((8, 8), torch.nan) for n in LEARNED}, "holds NaN"),
        ({"cross": "first"}, LEARNED | {"cross.1.a": torch.ones(1)}, "unknown tensor 'cross.1.a'"),
        ({}, {"self.0.a\nb": torch.ones(2)}, r"unknown tensor 'self.0.a\\nb'"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_wrong_files(
    metadata: dict[str, str | None], tensors: dict[str, Tensor], reason: str, path: Path
) -> None:
    raw(path, tensors, **metadata)
    assert reason in refusal(lambda: read(path))


@examples(80)
@given(st.data())
def test_damaged_files(path: Path, data: st.DataObject) -> None:
    """Cut anywhere, lengthened, or changed anywhere: one line, or the same caches."""
    raw(path, LEARNED, cross=FIRST)
    whole = path.read_bytes()
    at, size = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 8))
    noise = data.draw(st.binary(max_size=8))
    path.write_bytes(whole[:at] + noise + whole[at + size :] * data.draw(st.booleans()))
    try:
        cross, own = read(path)
    except CacheError as error:
        assert path.name in str(error) and "\n" not in str(error) and len(str(error)) < 700
    else:
        assert str(cross).startswith("first:") and own == X()


def test_files_that_are_not_there(path: Path) -> None:
    assert "No such file" in refusal(lambda: read(path))
    path.touch()
    with pytest.raises(OutputError, match="choose another -o"):
        cache_file.write_file(path / "b", DIGEST, (E(), X()), {})


def test_another_checkpoint_is_refused(digits_path: Path, path: Path) -> None:
    raw(path)
    message = refusal(lambda: slimwhisper.load_model(digits_path, "cpu", cache=path))
    assert message.startswith(f"{path.name}: was made for a checkpoint with digest")
    own = weights_digest(load_checkpoint(digits_path).state)
    raw(path, checkpoint=own, cross="e8", self="x")
    assert slimwhisper.load_model(digits_path, "cpu", cache=path).forms == ("e8", "x")


def test_flags_and_identity(path: Path, tmp_path: Path) -> None:
    """Two files count as different caches in a journal, and a file has both forms."""
    one, two = raw(path), raw(tmp_path / "b.safetensors", measured="1")
    results = {identify_caches({"cache": str(each)}) for each in (one, two)}
    assert len(results) == 2 and all(name.startswith("e+x ") for name in results)
    assert check_cache("later.safetensors")
    for other in ({"cross_cache": "e"}, {"self_cache": "x"}, {"cache_dtype": "fp8"}):
        with pytest.raises(OptionError, match=f"^{next(iter(other))}: .* has both forms"):
            choose_forms(str(one), **other)
    settings = make_settings(build_parser("serve").parse_args(["serve", "--cache", str(one)]), None)
    assert settings.cache is None
