"""Folders, patterns, manifests, tables and archives give the recordings they name, lazily."""

import io
import json
import pickle
import threading
import tracemalloc
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slimwhisper.audio.load import load_samples
from slimwhisper.audio.readers import Readers
from slimwhisper.errors import AudioError, OptionError, SlimWhisperError, StorageError
from slimwhisper.storage import held
from slimwhisper.storage.files import StoredFile, longest_first, media_fragment
from slimwhisper.storage.held import HeldBytes
from slimwhisper.storage.inputs import StoredInputs, are_stored
from slimwhisper.storage.listing import Found
from slimwhisper.storage.stamps import Stamp
from tests.support.memory_store import fill, store, tar_of  # noqa: F401
from tests.support.spoken import SAMPLES


def listed(*arguments: str, column: str | None = None) -> dict[str, str]:
    """Name -> output of each recording."""
    found = list(StoredInputs(arguments, column).recordings())
    errors = [f for f in found if isinstance(f, SlimWhisperError)]
    assert not errors, errors
    return {str(f[0]): str(f[1]) for f in found if isinstance(f, tuple)}


def problems(*arguments: str, column: str | None = None) -> list[str]:
    found = StoredInputs(arguments, column).recordings()
    return [str(f) for f in found if isinstance(f, SlimWhisperError)]


def contents(file: StoredFile) -> bytes:
    target = io.BytesIO()
    file.fetch(target)
    return target.getvalue()


def first(*arguments: str) -> StoredFile:
    found = next(StoredInputs(arguments).recordings())
    assert isinstance(found, tuple)
    return found[0]


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_folders(store: Any) -> None:  # noqa: F811
    fill(store, dict.fromkeys(("b/x/a.mp3", "b/x/a.wav", "b/x/y/c.FLAC", "b/x/n.txt"), "hi"))
    fill(store, {"b/z/d.ogg": "hi"})
    one = {
        "memory://b/x/a.mp3": "a.mp3",
        "memory://b/x/a.wav": "a.wav",
        "memory://b/x/y/c.FLAC": "y/c.FLAC",
    }
    assert listed("memory://b/x") == listed("memory://b/x/") == one
    both = {name: f"x/{output}" for name, output in one.items()}
    both["memory://b/z/d.ogg"] = "z/d.ogg"
    assert listed("memory://b/x", "memory://b/z") == listed("memory://b") == both
    assert listed("memory://b/x/a.mp3") == {"memory://b/x/a.mp3": "a.mp3"}
    assert problems("memory://b/none") == [
        "memory://b/none: no recordings there; check the address"
    ]
    assert not StoredInputs(["memory://b/x/a.mp3"]).is_job
    assert StoredInputs(["memory://b/x"]).is_job


def test_patterns_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        path = tmp_path / "shards" / f"{number}" / "s.tar"
        path.parent.mkdir(parents=True)
        path.write_bytes(tar_of({"a.wav": b"x"}))
    there = f"{tmp_path}/shards"
    expected = {f"tar://a.wav::{there}/{n}/s.tar": f"{n}/s.tar/a.wav" for n in range(2)}
    assert listed("shards/*/s.tar") == listed(f"{there}/**/*.tar") == expected
    assert problems("shards/none.tar") == [
        "shards/none.tar: no recordings there; check the address"
    ]
    (tmp_path / "talks").mkdir()
    (tmp_path / "talks" / "a.wav").write_bytes(b"x")
    (tmp_path / "talks" / "b.wav").symlink_to("a.wav")
    (tmp_path / "talks" / "again").symlink_to(".")  # no link to a folder is followed
    assert listed(f"file://{tmp_path}/talks") == {
        f"{tmp_path}/talks/{name}": name for name in ("a.wav", "b.wav")
    }


def test_patterns(store: Any) -> None:  # noqa: F811
    names = ("b/1/a.wav", "b/1/b.mp3", "b/2/a.wav", "b/2/c/a.wav", "b/a.wav")
    fill(store, dict.fromkeys(names, "hi"))
    assert list(listed("memory://b/*/a.wav").values()) == ["1/a.wav", "2/a.wav"]
    assert set(listed("memory://b/**/a.wav").values()) == {
        *("a.wav", "1/a.wav", "2/a.wav", "2/c/a.wav")
    }
    assert list(listed("memory://b/1/?.mp3").values()) == ["b.mp3"]


def test_a_stamp_has_what_the_store_says() -> None:
    info = {"name": "b/a.wav", "size": 3, "ETag": '"abc"', "LastModified": "x", "type": "file"}
    assert Found.of(info) == Found("b/a.wav", 3, None, "abc")
    assert Found.of({"name": "a", "size": 3, "mtime": 1.5}) == Found("a", 3, 1_500_000_000, None)


def test_manifests(store: Any, tmp_path: Path) -> None:  # noqa: F811
    here = tmp_path / "far.wav"
    here.write_bytes(b"far")
    rows = [
        {"audio_filepath": "a.wav", "duration": 2.0, "text": "ignored"},
        {"audio_filepath": "sub/b.wav", "duration": 30, "offset": 12.5},
        {"audio_filepath": "memory://other/c.wav", "duration": 7},
        {"audio_filepath": str(here)},
        {"audio_filepath": "../up.wav", "duration": 1},
        {"audio_filepath": "a.wav", "offset": 1, "duration": 0.25},
    ]
    fill(store, {"m/train.jsonl": lines(*rows), "m/a.wav": "aa", "m/sub/b.wav": "bbb"})
    assert listed("memory://m/train.jsonl") == {
        "memory://m/sub/b.wav#t=12.5,42.5": "sub/b.wav-12.5-42.5",  # the longest first
        "memory://other/c.wav": "outside/memory/other/c.wav",
        "memory://m/a.wav": "a.wav",
        "memory://up.wav": "outside/up.wav",
        "memory://m/a.wav#t=1,1.25": "a.wav-1-1.25",
        str(here): f"outside{here}",
    }
    found = [f[0] for f in StoredInputs(["memory://m/train.jsonl"]).recordings()]  # type: ignore[index]
    assert found[0].stamp.size == 3 and found[0].duration == 30
    assert found[1].stamp.size is None  # not there: fetching says so
    with pytest.raises(AudioError, match=r"^memory://other/c.wav: no such object; check"):
        contents(found[1])
    assert found[-1].local == here


def test_a_manifest_here(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"aa")
    path = tmp_path / "m.jsonl"
    path.write_text(lines({"audio_filepath": "a.wav"}) + "\n" + lines({"wav": 1}) + "[]\nno\n")
    found = list(StoredInputs([str(path)]).recordings())
    file, output = found[0]  # type: ignore[misc]
    assert (file.stamp, str(output)) == (Stamp.of(tmp_path / "a.wav"), "a.wav")
    assert file.local == tmp_path / "a.wav"
    assert [str(f) for f in found[1:]] == [
        f"{path}: line {n} is not a JSON object with audio_filepath; check the manifest"
        for n in (3, 4, 5)
    ]


def test_archives(store: Any) -> None:  # noqa: F811
    files = {"k/1.wav": b"one", "k/1.txt": b"no", "../2.flac": b"two", "/3.mp3": b"three"}
    fill(
        store, {f"w/s{n}.tar": tar_of(files) for n in range(3)} | {"w/z.tgz": tar_of(files, "w:gz")}
    )
    one = listed("memory://w/s0.tar")
    assert one == {
        "tar://k/1.wav::memory://w/s0.tar": "s0.tar/k/1.wav",
        "tar://../2.flac::memory://w/s0.tar": "s0.tar/outside/2.flac",
        "tar:///3.mp3::memory://w/s0.tar": "s0.tar/outside/3.mp3",
    }
    assert len(listed("memory://w/*.tar")) == 9 and len(listed("memory://w/z.tgz")) == 3
    file = pickle.loads(pickle.dumps(first("memory://w/s0.tar")))
    assert contents(file) == b"one" and file.stamp.size == 3
    fill(store, {"w/cut.tar": tar_of(files)[:700], "w/no.tar": b"no" * 999})
    assert problems("memory://w/no.tar") == [
        "memory://w/no.tar: damaged, or not a tar archive; copy it again"
    ]


@pytest.mark.parametrize("kind", ["names", "bytes", "audio"])
def test_tables(store: Any, kind: str) -> None:  # noqa: F811
    pa = pytest.importorskip("pyarrow", reason="tables need the extra parquet")
    parquet = pytest.importorskip("pyarrow.parquet")
    fill(store, {"t/a.wav": "aa", "t/b.wav": "bb"})
    rows: dict[str, Any] = {
        "names": {"path": ["a.wav", "b.wav"], "duration": [1.0, 5.0], "offset": [None, 2.5]},
        "bytes": {"flac": [b"aa", b"bb", None]},
        "audio": {"audio": [{"bytes": b"aa", "path": "x/a.wav"}, {"bytes": b"bb", "path": None}]},
    }[kind]
    buffer = io.BytesIO()
    parquet.write_table(pa.table(rows), buffer)
    fill(store, {"t/x.parquet": buffer.getvalue()})
    column = "flac" if kind == "bytes" else None
    found = [*StoredInputs(["memory://t/x.parquet"], column).recordings()]
    if kind == "bytes":
        assert str(found.pop()).startswith("memory://t/x.parquet#row=2: no bytes; name the column")
        assert problems("memory://t/x.parquet") == [
            "memory://t/x.parquet: no column audio_filepath or audio or path or uri or url or file "
            "or file_name or bytes; name it with --audio_column"
        ]
    names = {str(f[0]): str(f[1]) for f in found}  # type: ignore[index]
    assert (
        names
        == {
            "names": {
                "memory://t/b.wav#t=2.5,7.5": "b.wav-2.5-7.5",
                "memory://t/a.wav": "a.wav",
            },
            "bytes": {
                "memory://t/x.parquet#row=0": "x.parquet/00000000",
                "memory://t/x.parquet#row=1": "x.parquet/00000001",
            },
            "audio": {
                "memory://t/x.parquet#row=0": "x.parquet/00000000-a.wav",
                "memory://t/x.parquet#row=1": "x.parquet/00000001",
            },
        }[kind]
    )
    assert sorted(contents(f[0]) for f in found) == [b"aa", b"bb"]  # type: ignore[index]


def test_a_table_that_is_none(store: Any) -> None:  # noqa: F811
    pytest.importorskip("pyarrow", reason="tables need the extra parquet")
    fill(store, {"t/x.parquet": b"no table"})
    assert problems("memory://t/x.parquet") == [
        "memory://t/x.parquet: not a parquet file; write it again"
    ]


def test_which_arguments_are_stored() -> None:
    assert are_stored(["s3://b/x", "s3://b/y.tar"]) and are_stored(["a.jsonl"])
    assert not are_stored(["talks", "talks/a.json"])  # a transcript beside its recording
    with pytest.raises(OptionError, match="s3://b/x: paths and URIs have no place in common"):
        are_stored(["talks", "s3://me:secret@b/x"])
    with pytest.raises(OptionError, match="stores of several kinds"):
        StoredInputs(["memory://a", "data.jsonl"])


def test_the_longest_first_within_bounds() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.uniform(0, 100, 500)
    order = list(longest_first(((x, x) for x in lengths), ahead=50))
    assert sorted(order) == sorted(lengths)
    assert np.mean(order[:100]) > np.mean(order[-100:]) + 30
    assert order[-50:] == sorted(order[-50:], reverse=True)

    read = []

    def endless() -> Iterator[tuple[float | None, int]]:
        for number in range(10**9):
            read.append(number)
            yield None, number

    assert list(islice(longest_first(endless(), ahead=8), 5)) == [0, 1, 2, 3, 4]
    assert len(read) == 13


def test_a_long_manifest_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    with path.open("w") as file:
        for number in range(20_000):
            file.write(f'{{"audio_filepath": "{number}.wav", "duration": {number % 30}}}\n')
    tracemalloc.start()
    try:
        count = sum(1 for _ in StoredInputs([str(path)]).recordings())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 20_000 and peak < 15e6  # those of the look-ahead; all would take 40 MB


def test_media_fragments() -> None:
    assert media_fragment(0, None) == "t=0"
    assert media_fragment(12.5, 0.1 + 0.2) == "t=12.5,0.3"
    assert media_fragment(1e-7, 1e7) == "t=0,10000000"


@pytest.mark.parametrize("loaders", [0, 1])
def test_samples(store: Any, loaders: int, tmp_path: Path) -> None:  # noqa: F811
    """A remote recording's samples are those of the file, and an excerpt's are a part of them."""
    path = SAMPLES / "phone-number.wav"
    fill(store, {"s/a.wav": path.read_bytes(), "s/empty.wav": b"", "s/bad.wav": b"no" * 99})
    rows = [{"audio_filepath": "a.wav", "offset": 1.5, "duration": 2.0}]
    rows += [{"audio_filepath": str(path), "offset": 1.5}]
    rows += [{"audio_filepath": "a.wav", "offset": 1e4, "duration": 1}]
    fill(store, {"s/m.jsonl": lines(*rows)})
    whole = load_samples(path)
    expected = whole.read(0, len(whole))
    readers = Readers(loaders)
    try:
        samples = load_samples(first("memory://s/a.wav"), readers=readers)
        np.testing.assert_array_equal(samples.read(0, len(samples)), expected)
        part, beyond, rest = [
            f[0]  # type: ignore[index]
            for f in StoredInputs(["memory://s/m.jsonl"]).recordings()
        ]
        samples = load_samples(part, readers=readers)
        np.testing.assert_array_equal(samples.read(0, 10**9), expected[24_000:56_000])
        samples = load_samples(rest, readers=readers)
        np.testing.assert_array_equal(samples.read(0, 10**9), expected[24_000:])
        with pytest.raises(AudioError, match=r"#t=10000,10001: nothing between 10000 s and"):
            load_samples(beyond, readers=readers)
        with pytest.raises(AudioError, match=r"^memory://s/empty.wav: is empty"):
            load_samples(first("memory://s/empty.wav"), readers=readers)
        with pytest.raises(AudioError, match=r"^memory://s/bad.wav: "):
            load_samples(first("memory://s/bad.wav"), readers=readers)
    finally:
        readers.close()


def test_stores_that_fail(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    fill(store, {"b/a.wav": "aaaa"})
    file = first("memory://b/a.wav")

    def broken(*_: Any, **__: Any) -> bytes:
        raise OSError("503 from https://h/a?Signature=s3cret")

    monkeypatch.setattr(type(store), "cat_file", lambda *_: b"aa")
    with pytest.raises(StorageError, match="2 of its 4 bytes arrived"):
        contents(file)
    monkeypatch.setattr(type(store), "cat_file", broken)
    with pytest.raises(StorageError) as caught:
        contents(file)
    assert str(caught.value) == (
        "memory://b/a.wav: the store does not give it (503 from https://h/a); run the job again"
    )
    monkeypatch.setattr(type(store), "ls", broken)
    assert problems("memory://b")[0].startswith("memory://b: cannot be listed (503 from")


@pytest.mark.parametrize(
    "bad",
    [
        rb'{"audio_filepath": "b\u0000.wav"}',
        rb'{"audio_filepath": "b\ud800.wav"}',
        b"[" * 5000,
        b'{"audio_filepath": "b.wav", "offset": ' + b"1" * 400 + b"}",
    ],
)
def test_a_bad_line_of_a_manifest_costs_itself_alone(tmp_path: Path, bad: bytes) -> None:
    good = b'{"audio_filepath": "%s.wav"}\n'
    path = tmp_path / "m.jsonl"
    path.write_bytes(good % b"a" + bad + b"\n" + good % b"c")
    found = list(StoredInputs([str(path)]).recordings())
    (error,) = [f for f in found if isinstance(f, SlimWhisperError)]
    assert str(path) in str(error) and "\n" not in str(error) and len(str(error)) < 1000
    assert [Path(str(f[0])).name for f in found if isinstance(f, tuple)] == ["a.wav", "c.wav"]


def test_members_do_not_share_outputs(store: Any) -> None:  # noqa: F811
    fill(store, {"w/s.tar": tar_of({"x.wav": b"1", "../x.wav": b"2", "outside/x.wav": b"3"})})
    found = listed("memory://w/s.tar")
    assert len(set(found.values())) == len(found) == 3


def test_members_wait_on_disk_until_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "MAX_HELD", 30)
    monkeypatch.setattr(held, "IN_MEMORY", 5)
    first, second = (HeldBytes(io.BytesIO(b"x" * 15), 15) for _ in range(2))
    assert getattr(first._file, "_rolled", False), "on disk"
    made = threading.Event()

    def make() -> None:
        HeldBytes(io.BytesIO(b"x"), 1)
        made.set()

    thread = threading.Thread(target=make)
    thread.start()
    assert not made.wait(0.2)
    target = io.BytesIO()
    first.move_to(target)
    assert made.wait(10) and target.getvalue() == b"x" * 15
    thread.join()
    copy = pickle.loads(pickle.dumps(second))
    assert len(copy) == 15
    del second, copy
    assert held._held == 0
