"""OpenAI's models by name: fetched once, verified, and never left half on the disk."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from slimwhisper.formats.downloads import default_download_root
from slimwhisper.formats.load import load_checkpoint
from slimwhisper.formats.names import MODEL_URLS
from tests.support.checkpoints import DIMS, State, assert_equal, refusal
from tests.support.servers import Server, serving


@pytest.fixture
def official(monkeypatch: pytest.MonkeyPatch, openai_bytes: bytes) -> Iterator[Server]:
    """A server that has the model "test"."""
    with serving() as server:
        page = f"/{hashlib.sha256(openai_bytes).hexdigest()}/test-file.pt"
        server.pages[page] = openai_bytes
        monkeypatch.setitem(MODEL_URLS, "test", server.url + page)
        yield server


def test_download(
    official: Server,
    tmp_path: Path,
    state: State,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
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
