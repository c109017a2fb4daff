"""What a store lists, and that no message, journal or name of an output holds a credential."""

import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from slimwhisper.errors import DependencyError, OptionError, StorageError
from slimwhisper.files import Fingerprint, is_uri, reason_of, redact, redact_text
from slimwhisper.jobs.inputs import are_stored
from slimwhisper.storage.containers import StoredInputs
from slimwhisper.storage.stores import Location, StoredFile, open_filesystem
from tests.support.fake_model import fetched
from tests.support.memory_store import fill, found, listed, problems, stored, tar_of


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("s3://bucket/a b/c.wav", "s3://bucket/a b/c.wav"),
        ("sftp://me:pa:ss@host/x.wav", "sftp://host/x.wav"),
        ("https://me@host/x@y.wav", "https://host/x@y.wav"),
        (
            "https://b.s3.amazonaws.com/a.wav?X-Amz-Credential=AKIA%2F1&X-Amz-Signature=c0ffee",
            "https://b.s3.amazonaws.com/a.wav",
        ),
        ("https://x.blob.core.windows.net/c/a.wav?sv=2024&se=2027&sig=abc", "https://x.blob.core.windows.net/c/a.wav"),
        ("https://h/get?id=5&token=t0p&lang=en", "https://h/get?id=5&lang=en"),
        ("https://h/get?api_key=k#t=1,2", "https://h/get#t=1,2"),
        ("s3://bucket/what?.wav", "s3://bucket/what?.wav"),
        ("abfs://box@account.dfs.core.windows.net/a.wav", "abfs://account.dfs.core.windows.net/a.wav"),
    ],
)  # fmt: skip
def test_what_is_shown(uri: str, shown: str) -> None:
    assert redact(uri) == shown
    assert redact_text(f"GET {uri.replace(' ', '+')} failed") == (
        f"GET {shown.replace(' ', '+')} failed"
    )


def test_what_errors_and_recordings_show() -> None:
    error = OSError("403 for\n'https://u:p@h/a?Signature=s3cret&x=1' (denied)")
    assert reason_of(error) == "403 for 'https://h/a?x=1' (denied)"
    assert reason_of(ValueError()) == "ValueError"
    file = StoredFile("sftp://me:secret@h/a.wav", "/a.wav", Fingerprint("sftp://h/a.wav", 1, 2))
    assert "secret" not in f"{file} {file!r}"


def test_which_kinds_there_are() -> None:
    assert is_uri("s3://b") and is_uri("hf://datasets/x") and is_uri("memory://x")
    assert not any(map(is_uri, ("talks/a.wav", "/a//b", "C:/x", "a:b", "-", "://x")))
    for uri in ("gopher://x:y@host/a", "tar://a.wav::s3://b/c.tar"):
        with pytest.raises(OptionError, match="unknown protocol") as caught:
            open_filesystem(uri)
        assert "y@" not in str(caught.value)


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    missing = ImportError("Install s3fs to access S3")
    monkeypatch.setattr(fsspec.core, "url_to_fs", Mock(side_effect=missing))
    with pytest.raises(DependencyError) as caught:
        open_filesystem("s3://bucket")
    assert str(caught.value) == "s3:// needs another package: pip install 'fsspec[s3]'"


def test_folders_and_patterns(store: Any) -> None:
    names = ("b/x/a.mp3", "b/x/a.wav", "b/x/y/c.FLAC", "b/x/n.txt", "b/z/a.wav")
    fill(store, dict.fromkeys(names, "hi"))
    one = {f"memory://b/x/{name}": name for name in ("a.mp3", "a.wav", "y/c.FLAC")}
    assert listed("memory://b/x") == listed("memory://b/x/") == one
    both = {name: f"x/{output}" for name, output in one.items()}
    both["memory://b/z/a.wav"] = "z/a.wav"
    assert listed("memory://b/x", "memory://b/z") == listed("memory://b") == both
    assert listed("memory://b/x/a.mp3") == {"memory://b/x/a.mp3": "a.mp3"}
    assert problems("memory://b/none") == [
        "memory://b/none: no recordings there; check the address"
    ]
    assert not StoredInputs(["memory://b/x/a.mp3"]).is_job
    assert StoredInputs(["memory://b/x"]).is_job
    assert list(listed("memory://b/*/a.wav").values()) == ["x/a.wav", "z/a.wav"]
    assert set(listed("memory://b/**/?.*").values()) == set(both.values())
    assert list(listed("memory://b/x/*.txt").values()) == ["n.txt"]
    fill(store, dict.fromkeys(("b/x/._a.mp3", "b/.Trash-1/a.mp3", "b/x/@eaDir/a.mp3"), "hi"))
    fill(store, {"b/x/code.ts": "import x", "b/x/tv.ts": b"G@\x11\x10\x00"})
    ts = {"memory://b/x/tv.ts": "x/tv.ts"}
    written = ("slimwhisper-journal.jsonl", "transcripts/part-1.parquet")  # by a job
    fill(store, {f"b/{name}": "no" for name in written})
    assert listed("memory://b") == listed("memory://b/**") == both | ts
    assert list(listed("memory://b/x/._*").values()) == ["._a.mp3"]
    inputs = StoredInputs(["memory://b/x"])
    assert len(list(inputs.list())) == 4
    assert inputs.selection.left_out == {".txt": 1, ".ts": 1, "hidden": 1}
    assert list(listed("memory://b/x/?.mp3").values()) == ["a.mp3"]


def test_patterns_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        path = tmp_path / "shards" / f"{number}" / "s.tar"
        path.parent.mkdir(parents=True)
        path.write_bytes(tar_of({"a.wav": b"x"}))

    def there(folder: str) -> dict[str, str]:
        return {f"tar://a.wav::{folder}/{n}/s.tar": f"{n}/s.tar/a.wav" for n in range(2)}

    shards = f"{tmp_path}/shards"
    assert listed("shards/*/s.tar") == listed(f"{shards}/**/*.tar") == there(shards)
    assert "shards/none.tar: no recordings there" in problems("shards/none.tar")[0]
    (tmp_path / "shards").rename(tmp_path / "s [1]")  # a folder that exists is no pattern
    assert listed("s [1]/*/s.tar") == there(f"{tmp_path}/s [1]")
    assert list(listed("s [1]/0/s.tar").values()) == ["s.tar/a.wav"]
    (tmp_path / "talks").mkdir()
    (tmp_path / "talks" / "a.wav").write_bytes(b"x")
    (tmp_path / "talks" / "b.wav").symlink_to("a.wav")
    (tmp_path / "talks" / "again").symlink_to(".")  # no link to a folder is followed
    files = found(f"file://{tmp_path}/talks")
    expected = {f"{tmp_path}/talks/{name}": name for name in ("a.wav", "b.wav")}
    assert {str(f.path): f.output for f in files} == expected
    assert files[0].fingerprint == Fingerprint.of(tmp_path / "talks" / "a.wav")


def test_a_fingerprint_is_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Location("memory://b")
    for info, fingerprint in (
        ({"ETag": '"abc"', "LastModified": "x"}, (3, None, "abc")),
        ({"mtime": 1.5}, (3, 1_500_000_000, None)),
    ):
        described = {"name": "/b/a.wav", "size": 3, "type": "file"} | info
        monkeypatch.setattr(place._filesystem, "info", lambda _, told=described: told)
        file = place.info("/b/a.wav")
        assert file and file.fingerprint == Fingerprint("memory://b/a.wav", *fingerprint)


def test_which_arguments_are_stored(tmp_path: Path) -> None:
    (folder := tmp_path / "folder.tar").mkdir()
    assert are_stored(["s3://b/x", "s3://b/y.tar"]) and are_stored(["a.jsonl"])
    assert not are_stored(["talks", "talks/a.json"])  # a transcript beside its recording
    assert not are_stored(["talks", "talks/slimwhisper-journal.jsonl", str(folder)])
    for name in ("s3://me:secret@b/x", "a.tar", "talks/*.parquet"):
        with pytest.raises(OptionError, match=f"^{re.escape(redact(name))}: URIs, archives, man"):
            are_stored(["talks", name])
    with pytest.raises(OptionError, match="stores of several kinds"):
        StoredInputs(["memory://a", "data.jsonl"])


def test_stores_that_fail(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, {"b/a.wav": "aaaa"})
    (file,) = stored("memory://b/a.wav")
    broken = Mock(side_effect=OSError("503 from https://h/a?Signature=s3cret"))
    monkeypatch.setattr(type(store), "cat_file", lambda *_: b"aa")
    with pytest.raises(StorageError, match="2 bytes arrived"):
        fetched(file)
    monkeypatch.setattr(type(store), "ls", broken)
    assert problems("memory://b")[0].startswith("memory://b: cannot be read or listed (503 from")
