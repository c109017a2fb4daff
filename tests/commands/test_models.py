"""`slimwhisper models`, and the short names wherever a model is named."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
import whisper
from huggingface_hub import constants

from slimwhisper.commands.costs import OFFICIAL_DIMS, known_dims
from slimwhisper.formats import downloads
from slimwhisper.formats.names import HUB_IDS, HUB_MODELS, available_models
from slimwhisper.research.report import make_report
from tests.support.checkpoints import fill_cache, refusal
from tests.support.command import RunCLI


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache."""
    folder = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    return folder


def listed(run_cli: RunCLI, folder: Path) -> dict[str, dict[str, Any]]:
    run = run_cli("models", "--json", "--model_dir", str(folder))
    assert run.status == 0 and run.err == ""
    return {model["name"]: model for model in json.loads(run.out)}


def put(cache: Path, name: str, **files: str) -> Path:
    """A snapshot in the hub's cache, with these files ("__" for "." in their names)."""
    source = cache.parent / name
    source.mkdir()
    for file, text in files.items():
        (source / file.replace("__", ".")).write_text(text)
    return fill_cache(cache, HUB_IDS[name], source)


def test_every_name_is_listed(run_cli: RunCLI, tmp_path: Path) -> None:
    models = listed(run_cli, tmp_path)
    assert list(models) == available_models()
    assert set(models) == {"digits", *whisper.available_models(), *HUB_MODELS}
    assert models["digits"]["path"].endswith("digits.pt")
    assert all(model["path"] is None for name, model in models.items() if name != "digits")


def test_what_is_known(run_cli: RunCLI, tmp_path: Path) -> None:
    """Sizes that OpenAI and distil-whisper state, in millions, and the report's memory."""
    models = listed(run_cli, tmp_path)
    stated = {"tiny": 39, "base": 74, "small": 244, "medium": 769, "turbo": 809}
    stated |= {"large-v2": 1550, "distil-large-v3": 756, "distil-medium.en": 394}
    for name, millions in stated.items():
        parameters = models[name]["parameters"]
        assert parameters == pytest.approx(millions * 1e6, rel=0.06), name
        assert models[name]["weights_bytes"] == 2 * parameters
    for name in ("tiny", "turbo", "distil-small.en", "kb-whisper-large"):
        slim = {a.preset: a for a in make_report(name, 64).allocated}["slim"]
        assert models[name]["window_bytes"] == slim.bytes_per_window, name
    languages = {n: models[n]["languages"] for n in ("tiny", "tiny.en", "turbo", "kb-whisper-tiny")}
    assert languages == {"tiny": "99", "tiny.en": "en", "turbo": "100", "kb-whisper-tiny": "sv"}
    assert models["distil-large-v3"]["source"] == "distil-whisper/distil-large-v3"
    unknown = models["nb-whisper-large"]
    assert unknown["parameters"] is unknown["weights_bytes"] is unknown["window_bytes"] is None


def test_shapes_of_known_names() -> None:
    for name, model in HUB_MODELS.items():
        assert model.shape is None or model.shape in OFFICIAL_DIMS
        assert known_dims(name) == known_dims(model.repository) == OFFICIAL_DIMS.get(model.shape)
    assert known_dims("openai/whisper-large") == OFFICIAL_DIMS["large-v1"]
    assert known_dims("openai/whisper-tiny") == OFFICIAL_DIMS["tiny"]
    assert known_dims("someone/whisper-tiny") is known_dims("./turbo") is None
    assert set(whisper.available_models()) <= set(OFFICIAL_DIMS)
    for name, dims in OFFICIAL_DIMS.items():
        assert dims.is_multilingual is not name.endswith(".en")
        assert (dims.n_mels == 128) is (dims.n_vocab == 51_866)


def test_what_is_here(run_cli: RunCLI, tmp_path: Path, empty_cache: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "large-v3-turbo.pt").write_text("")
    put(empty_cache, "distil-small.en", config__json="{}")  # an interrupted download
    index = json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}})
    half = {"config__json": "{}", "model__safetensors__index__json": index, "1__safetensors": ""}
    put(empty_cache, "distil-medium.en", **half)
    put(empty_cache, "distil-large-v2", **half, **{"2__safetensors": ""})
    whole = put(empty_cache, "kb-whisper-tiny", config__json="{}", model__safetensors="")
    put(empty_cache, "kb-whisper-base", config__json="{}", model__safetensors__index__json="[]")
    models = listed(run_cli, root)
    here = {name for name, model in models.items() if model["path"]}
    assert here == {"digits", "large-v3-turbo", "turbo", "distil-large-v2", "kb-whisper-tiny"}
    assert models["kb-whisper-tiny"]["path"] == str(whole)


def test_short_names_are_fetched_by_their_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = create_autospec(downloads.fetch_model, side_effect=downloads.load_error("no network"))
    monkeypatch.setattr(downloads, "fetch_model", fetch)
    for name in HUB_IDS:
        assert refusal(name) == "no network"
    assert [call.args[0] for call in fetch.call_args_list] == list(HUB_IDS.values())
