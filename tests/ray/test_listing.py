"""Inputs in stores, listed by tasks of Ray."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slimwhisper.errors import SlimWhisperError
from slimwhisper.storage.inputs import Shard, StoredInputs
from tests.support.ray_jobs import QUIET, DyingShard

ray = pytest.importorskip("ray", reason="the extra ray is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # Ray's own
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def on_ray() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUIET.items():
            patch.setenv(name, value)
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


def listed(shards: list[Shard]) -> tuple[Counter[Any], list[str]]:
    from slimwhisper.ray.listing import list_shards

    found = list(list_shards(iter(shards)))
    errors = [str(one) for one in found if isinstance(one, SlimWhisperError)]
    return Counter(one for one in found if not isinstance(one, SlimWhisperError)), errors


def test_together_they_list_what_one_lists(tmp_path: Path) -> None:
    for number in range(700):
        file = tmp_path / str(number % 11) / f"{number}.wav"
        file.parent.mkdir(exist_ok=True)
        file.touch()
    (tmp_path / "above.wav").touch()
    inputs = StoredInputs([f"file://{tmp_path}", f"file://{tmp_path}/../none"])
    found, errors = listed(list(inputs.shards()))
    alone = [one for one in inputs.recordings() if not isinstance(one, SlimWhisperError)]
    assert found == Counter(alone) and len(alone) == 701
    assert len(errors) == 1 and "none: no recordings there" in errors[0]


def test_a_part_whose_task_dies_is_listed_anew(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.wav").touch()
    uris = [f"file://{tmp_path}/{name}" for name in ("a", "b")]
    shards = [DyingShard(uri, str(tmp_path), deaths=n) for n, uri in zip((0, 2), uris, strict=True)]
    found, errors = listed([*shards])
    assert {one[1]: n for one, n in found.items()} == {"a/x.wav": 1, "b/x.wav": 1}
    assert errors == []
    found, errors = listed([shards[0], DyingShard(uris[1], str(tmp_path), deaths=3)])
    assert len(found) == 1 and len(errors) == 1
    assert errors[0].startswith(f"{uris[1]}: 3 processes that listed it have died")
