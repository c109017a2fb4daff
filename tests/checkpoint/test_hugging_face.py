"""Models by hub id: what is fetched when, what the cache gives offline, what the hub refuses."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from huggingface_hub import constants

from slimwhisper.formats.downloads import OPTIONAL, default_download_root, looks_like_hub_id
from slimwhisper.formats.load import load_checkpoint
from slimwhisper.formats.names import MODEL_URLS
from tests.support import checkpoints as c
from tests.support.adapters import query_and_value_factors, save_adapter
from tests.support.checkpoints import COMMIT, DIMS, State, assert_equal, refusal, save_hf
from tests.support.command import python
from tests.support.paths import ROOT
from tests.support.servers import Server, serving

REPOSITORY, DISTILLED = "someone/whisper-x", "distil-whisper/distil-small.en"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server stands for the hub, offline too, with an empty cache; retries do not wait."""
    with serving() as server:
        cache = str(tmp_path / "hub")
        server.headers = {"X-Repo-Commit": COMMIT, "X-Error-Code": "EntryNotFound"}
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        # its constants were read from the environment on import
        monkeypatch.setattr(constants, "HF_HUB_CACHE", cache)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        # else the first test of a process sees one request more, for a list of coding agents
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
        monkeypatch.setattr("time.sleep", lambda _: None)
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        monkeypatch.setenv("SSL_CERT_DIR", cache)  # plain HTTP: no certificates are read
        yield server


def publish(hub: Server, folder: Path, config: str = "config.json") -> None:
    """Only the config is served from "main": the rest has to be asked for by commit."""
    for file in folder.iterdir():
        revision = "main" if file.name == config else COMMIT
        hub.pages[f"/{REPOSITORY}/resolve/{revision}/{file.name}"] = file.read_bytes()


# ---- fetched


@pytest.mark.parametrize(("shards", "pickled"), [(1, False), (3, False), (2, True)])
def test_model_is_fetched_at_one_revision(
    hub: Server, tmp_path: Path, state: State, shards: int, pickled: bool
) -> None:
    publish(hub, save_hf(tmp_path / "model", DIMS, state, shards=shards, pickled=pickled))
    assert_equal(load_checkpoint(REPOSITORY).state, state)
    hub.requests.clear()
    assert_equal(load_checkpoint(REPOSITORY).state, state)
    asked = [Path(r).name for r in hub.requests]
    missing = [name for name, others in OPTIONAL.items() for name in (name, *others)]
    assert asked == ["config.json", *missing], "the rest is in the cache"
    hub.close()
    assert_equal(load_checkpoint(REPOSITORY).state, state)
    assert_equal(load_checkpoint(REPOSITORY, local_files_only=True).state, state)


def test_files_that_the_hub_lacks(hub: Server, folder: Path, tmp_path: Path, state: State) -> None:
    assert "config.json" in refusal(REPOSITORY)
    assert "adapter_config.json" in refusal(folder, adapter=REPOSITORY)
    config = (folder / "config.json").read_bytes()
    for name in ("config.json", "adapter_config.json"):
        hub.pages[f"/{REPOSITORY}/resolve/main/{name}"] = config
    assert "no model.safetensors or pytorch_model.bin" in refusal(REPOSITORY)
    assert "adapter_model.safetensors" in refusal(folder, adapter=REPOSITORY)
    lost = "model-00002-of-00003.safetensors"
    sharded = save_hf(tmp_path / "sharded", DIMS, state, shards=3)
    (sharded / lost).unlink()
    publish(hub, sharded)
    message = refusal(REPOSITORY)
    assert REPOSITORY in message and lost in message


def test_index_of_the_hub_that_reaches_outside(hub: Server, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"a": "../../secret.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    publish(hub, folder)
    message = refusal(REPOSITORY)
    assert "model.safetensors.index.json" in message and "../../secret.safetensors" in message
    assert not any("secret" in request for request in hub.requests)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"X-Error-Code": "RepoNotFound"}, "no such model"),
        ({"X-Error-Code": "GatedRepo"}, "hf auth login"),
        ({}, REPOSITORY),  # an answer that is not the hub's
    ],
)
def test_hub_refuses(hub: Server, headers: dict[str, str], expected: str) -> None:
    hub.headers = headers
    message = refusal(REPOSITORY)
    assert REPOSITORY in message and expected in message
    assert hub.requests
    hub.close()
    assert "refused" in refusal(REPOSITORY), "out of reach"


# ---- in the cache


def test_hub_model_in_the_cache(
    hub: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: State
) -> None:
    """With the hub off by the argument, and by the environment; then with a part of it only."""
    folder = save_hf(tmp_path / "m", DIMS, state, shards=2)
    for name, repo_id in (REPOSITORY, REPOSITORY), ("distil-small.en", DISTILLED):
        off = {"local_files_only": name == REPOSITORY}
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", name != REPOSITORY)
        message = refusal(name, **off)
        assert repo_id in message and constants.HF_HUB_CACHE in message and "folder" in message
        snapshot = c.fill_cache(tmp_path / "hub", repo_id, folder)
        found = load_checkpoint(name, **off)
        assert found.name == name
        assert_equal(found.state, state)
    for lost in ("model-00002-of-00002.safetensors", "model.safetensors.index.json"):
        (snapshot / lost).unlink()
        assert lost.removesuffix(".index.json") in refusal("distil-small.en")
    assert hub.requests == []


def test_local_files_only_sends_nothing_from_a_fresh_process(hub: Server, tmp_path: Path) -> None:
    """The process has its telemetry on, and no file yet that says otherwise."""
    program = (
        "from tests.support.checkpoints import refusal\n"
        f"refusal({REPOSITORY!r}, local_files_only=True)"
    )
    off = "HF_HUB_OFFLINE TRANSFORMERS_OFFLINE DO_NOT_TRACK"
    telemetry = "HF_HUB_DISABLE_TELEMETRY DISABLE_TELEMETRY"
    place = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = python("-c", program, without=f"{off} {telemetry}".split(), **place)
    assert done.returncode == 0, done.stderr
    assert hub.requests == []


# ---- pickles and adapters


@pytest.mark.parametrize("pickled", [False, True])
def test_adapter_is_fetched(hub: Server, folder: Path, tmp_path: Path, pickled: bool) -> None:
    local = save_adapter(tmp_path / "adapter", query_and_value_factors(DIMS), pickled)
    publish(hub, local, "adapter_config.json")
    wanted = load_checkpoint(folder, adapter=local).state
    assert_equal(load_checkpoint(folder, adapter=REPOSITORY).state, dict(wanted))
    hub.close()
    found = load_checkpoint(folder, adapter=REPOSITORY, local_files_only=True)
    assert_equal(found.state, dict(wanted))


# ---- ids


@pytest.mark.parametrize("name", ["some/mo--del", "some/model.", "some/x.git", f"a/{'b' * 200}"])
def test_id_that_the_hub_does_not_allow(hub: Server, name: str) -> None:
    assert name in refusal(name)
    assert REPOSITORY in refusal(Path(REPOSITORY)), "a path is no id"
    assert hub.requests == []
    ids = "openai/whisper-tiny a/b distil-whisper/distil-large-v3.5 me/my_model.v2".split()
    assert all(map(looks_like_hub_id, ids))
    others = "tiny /a a/ a/b/c ./a ../a a/.. ~/a a/b.pt".split()
    assert not any(map(looks_like_hub_id, [*others, "a/b\n", "a b/c"]))


# OpenAI's models by name: fetched once, verified, and never left half on the disk


@pytest.fixture
def official(monkeypatch: pytest.MonkeyPatch, openai_bytes: bytes) -> Iterator[Server]:
    """A server that has the model "test"."""
    with serving() as server:
        page = f"/{hashlib.sha256(openai_bytes).hexdigest()}/test-file.pt"
        server.pages[page] = openai_bytes
        monkeypatch.setitem(MODEL_URLS, "test", server.url + page)
        yield server


def test_download(
    official: Server, tmp_path: Path, state: State, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_download_root() == tmp_path / "home" / ".cache" / "whisper"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = load_checkpoint("test")
    assert found.name == "test"
    assert_equal(found.state, state)
    assert "100%" in capsys.readouterr().err
    assert [p.name for p in (tmp_path / "whisper").iterdir()] == ["test-file.pt"]
    load_checkpoint("test")
    load_checkpoint("test", local_files_only=True)
    assert len(official.requests) == 1


def test_a_name_precedes_a_file_and_a_file_a_hub_id(
    official: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, openai_bytes: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("test").write_text("not a model")
    Path("openai").mkdir()
    Path("openai/whisper-tiny").write_bytes(openai_bytes)
    assert load_checkpoint("test", download_root=tmp_path / "root").dims == DIMS
    assert load_checkpoint("openai/whisper-tiny").dims == DIMS


def test_failed_downloads_leave_nothing(official: Server, tmp_path: Path, state: State) -> None:
    """Cut short, changed, not there, out of reach: then it works again."""

    def refused() -> str:
        message = refusal("test", download_root=tmp_path)
        assert str(tmp_path / "test-file.pt") in message
        assert list(tmp_path.iterdir()) == []
        return message

    whole = official.pages
    official.cut = True
    refused()
    official.cut, official.pages = False, dict.fromkeys(whole, b"something else")
    assert "checksum" in refused()
    official.pages = {}
    assert "Not Found" in refused()
    official.pages = whole
    assert_equal(load_checkpoint("test", download_root=tmp_path).state, state)
    (tmp_path / "test-file.pt").unlink()
    official.close()
    assert "refused" in refused()


def test_interrupted_download_leaves_nothing(
    official: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, openai_bytes: bytes
) -> None:

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(torch.hub.tqdm, "update", Mock(side_effect=KeyboardInterrupt))
        load_checkpoint("test", download_root=tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "test-file.pt.0123.partial").write_bytes(openai_bytes[:1000])
    assert load_checkpoint("test", download_root=tmp_path).dims == DIMS, "no leftover is trusted"


def test_damaged_cached_file_is_replaced(
    official: Server, tmp_path: Path, openai_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cached = tmp_path / "test-file.pt"
    cached.write_bytes(openai_bytes[:-1])
    assert "checksum" in refusal("test", download_root=tmp_path, local_files_only=True)
    assert official.requests == []
    load_checkpoint("test", download_root=tmp_path)
    assert str(cached) in caplog.text
    assert cached.read_bytes() == openai_bytes


def test_download_root_that_cannot_be_used(official: Server, tmp_path: Path) -> None:
    root = tmp_path / "root"
    assert "are off" in refusal("test", download_root=root, local_files_only=True)
    assert not root.exists()
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in refusal("test", download_root=tmp_path / "file")
    (tmp_path / "test-file.pt").mkdir()
    assert str(tmp_path / "test-file.pt") in refusal("test", download_root=tmp_path)
    assert "~no-such-user/x" in refusal("test", download_root="~no-such-user/x")
    assert official.requests == []
