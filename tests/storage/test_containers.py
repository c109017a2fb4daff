"""Folders, patterns, manifests, tables and archives: the recordings they name, and no secret."""

import gzip
import io
import json
import pickle
import re
import tarfile
import threading
import tomllib
import tracemalloc
from contextlib import closing
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from slimwhisper.audio.load import load_samples
from slimwhisper.audio.samples import RemoteFile
from slimwhisper.audio_formats.readers import Readers
from slimwhisper.errors import AudioError, DependencyError, OptionError, StorageError
from slimwhisper.files import Fingerprint, InputFile, is_uri, reason_of, redact, redact_text
from slimwhisper.jobs import members
from slimwhisper.jobs.inputs import are_stored, distinct, longest_first
from slimwhisper.jobs.members import HeldFile
from slimwhisper.storage import containers
from slimwhisper.storage.containers import StoredInputs, format_times
from slimwhisper.storage.stores import Location, StoredFile, open_filesystem
from tests.support.fake_model import fetched
from tests.support.memory_store import fill, tar_of
from tests.support.paths import PHONE

ROW = "memory://t/x.parquet#row="


def found(*arguments: str, column: str | None = None) -> list[InputFile]:
    return [f for f in StoredInputs(arguments, column).list() if isinstance(f, InputFile)]


def stored(*arguments: str) -> list[RemoteFile]:
    return [f.path for f in found(*arguments) if isinstance(f.path, RemoteFile)]


def problems(*arguments: str, column: str | None = None) -> list[str]:
    files = StoredInputs(arguments, column).list()
    return [str(f) for f in files if not isinstance(f, InputFile)]


def listed(*arguments: str, column: str | None = None) -> dict[str, str]:
    """Name -> output of each recording."""
    assert not problems(*arguments, column=column)
    files = found(*arguments, column=column)
    assert all(str(f.path) == f.fingerprint.path for f in files)
    return {str(f.path): f.output for f in files}


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_manifests(store: Any, tmp_path: Path) -> None:
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
    files = found("memory://m/train.jsonl")
    assert files[0].fingerprint.size == 3
    assert files[1].fingerprint.size is None  # not there: fetching says so
    with pytest.raises(AudioError, match=r"^memory://other/c.wav: no such object; check"):
        fetched(stored("memory://m/train.jsonl")[1])
    assert files[-1].local == here and files[-1].fingerprint == Fingerprint.of(here)
    fill(store, dict.fromkeys(("m/x/m.jsonl", "m/y/m.jsonl"), lines(rows[0])))
    assert list(listed("memory://m/*/m.jsonl").values()) == ["x/a.wav", "y/a.wav"]


def test_no_results_replace_others(store: Any, tmp_path: Path) -> None:
    """Nor are any read that never end."""
    names = [*map("memory://{}".format, "a?key=1 a?key=2 a?key=1 b /b /b".split()), "/dev/zero"]
    (path := tmp_path / "m.jsonl").write_text(lines(*({"audio_filepath": n} for n in names)))
    taken = [f"memory://{name}: another recording's results have the same " for name in ("a", "/b")]
    for is_table in (False, True):
        entries = distinct(StoredInputs([str(path)]).list(), is_table)
        told = [str(e).partition("name;")[0] for e in entries if not isinstance(e, InputFile)]
        special = "/dev/zero: not a regular file; drop it from the list"
        assert told == [*taken[: 2 - is_table], special]


@pytest.mark.parametrize(
    "bad",
    [
        *(b"[]", b"no", b'{"wav": 1}', b"[" * 5000),
        *(rb'{"audio_filepath": "b\u0000.wav"}', rb'{"audio_filepath": "b\ud800.wav"}'),
        *(
            b'{"audio_filepath": "b.wav", "%s": %s}' % (key, value)
            for key in (b"offset", b"duration")
            for value in (b"1" * 400, b"NaN", b"Infinity", b"-1", b"true", b'"x"', b"[1]")
        ),
    ],
)
def test_a_bad_line_of_a_manifest_costs_itself_alone(tmp_path: Path, bad: bytes) -> None:
    good = b'{"audio_filepath": "%s.wav"}\n'
    path = tmp_path / "m.jsonl"
    path.write_bytes(good % b"a" + b"\n" + bad + b"\n" + good % b"c")
    assert problems(str(path)) == [
        f"{path}: line 3 is not a JSON object with audio_filepath, with duration and offset, if "
        "given, in seconds; check the manifest"
    ]
    assert [f.output for f in found(str(path))] == ["a.wav", "c.wav"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le"])
def test_manifests_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "m.jsonl"
    rows = lines({"audio_filepath": "ü.wav"}, {"audio_filepath": "b.wav"})
    path.write_bytes(rows.encode(encoding))
    assert [f.output for f in found(str(path))] == ["ü.wav", "b.wav"]
    path.write_bytes(PHONE.read_bytes())
    assert problems(str(path)) == [f"{path}: is no text, so no manifest; give recordings by name"]


def test_archives(store: Any) -> None:
    files = {"k/1.wav": b"one", "k/1.txt": b"no", "../2.flac": b"two", "/3.mp3": b"three"}
    files |= {"k/._1.wav": b"no", "__MACOSX/k/1.wav": b"no", "./k/code.ts": b"import x"}
    fill(store, {f"w/s{n}.tar": tar_of(files) for n in range(3)})
    fill(store, {"w/z.tgz": tar_of(files, "w:gz")})
    assert listed("memory://w/s0.tar") == {
        "tar://k/1.wav::memory://w/s0.tar": "s0.tar/k/1.wav",
        "tar://../2.flac::memory://w/s0.tar": "s0.tar/outside/2.flac",
        "tar:///3.mp3::memory://w/s0.tar": "s0.tar/outside/3.mp3",
    }
    assert len(listed("memory://w/*.tar")) == 9 and len(listed("memory://w/z.tgz")) == 3
    file = pickle.loads(pickle.dumps(found("memory://w/s0.tar")[0]))
    assert fetched(file.path) == b"one" and file.fingerprint.size == 3
    fill(store, {"w/no.tar": b"no" * 999})
    assert problems("memory://w/no.tar") == [
        "memory://w/no.tar: damaged or not a tar archive; copy it again"
    ]
    fill(store, {"w/s.tar": tar_of({"x.wav": b"1", "../x.wav": b"2", "outside/x.wav": b"3"})})
    assert len(set(listed("memory://w/s.tar").values())) == 3  # none takes another's place


def test_damaged_archives(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tar_of({f"{n}.wav": np.random.default_rng(n).bytes(5000) for n in range(3)})
    packed, parts = gzip.compress(data), gzip.compress(data[:600]) + gzip.compress(data[600:])
    whole = tar_of({"a.wav": b"a"}) + data + bytes(1 << 16)
    fill(store, {"d/whole.tar": whole, "d/parts.tgz": parts + bytes(512)})
    assert len(listed("memory://d/*")) == 7
    damaged = [data.replace(b"2.wav", b"3.wav"), data[:12_000], packed[:-400]]
    damaged += [packed[:9000] + bytes(40) + packed[9040:], packed[:-8] + bytes(8)]
    for bad in damaged:
        fill(store, {"d/bad.tar": bad})
        assert [p[:26] for p in problems("memory://d/bad.tar")] == ["memory://d/bad.tar: damage"]
    full = partial(Path("/dev/full").open, "wb", buffering=0)
    monkeypatch.setattr(members, "SpooledTemporaryFile", lambda _: full())
    names = [problem.partition(": ")[0] for problem in problems("memory://d/parts.tgz")]
    assert names == [f"tar://{n}.wav::memory://d/parts.tgz" for n in range(3)]


def test_members_that_are_links_or_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "MAX_MEMBER", 4)
    (tmp_path / "secret.wav").write_bytes(b"mine")
    with tarfile.open(tmp_path / "a.tar", "w:gz") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
            member = tarfile.TarInfo("link.wav")
            member.type, member.linkname = kind, str(tmp_path / "secret.wav")
            archive.addfile(member)
        for name, size in (("bomb.wav", 5), ("good.wav", 4), ("./good.wav", 3)):
            member = tarfile.TarInfo(name)
            member.size = size
            archive.addfile(member, io.BytesIO(bytes(size)))
    path = str((tmp_path / "a.tar").rename(tmp_path / "a.tgz"))
    assert [f.output for f in found(path)] == ["a.tgz/good.wav"]
    link = f"tar://link.wav::{path}: is a link to {tmp_path}/secret.wav; give it as a file"
    large = f"tar://bomb.wav::{path}: is larger than 1 GiB; give it as a file"
    second = f"tar://./good.wav::{path}: is not the first of this name; give it as a file"
    assert problems(path) == [link, link, large, second]


@pytest.mark.parametrize(
    ("columns", "column", "expected"),
    [
        (
            {"path": ["a.wav", "b.wav"], "duration": [1.0, 5.0], "offset": [None, 2.5]},
            None,
            {"memory://t/b.wav#t=2.5,7.5": "b.wav-2.5-7.5", "memory://t/a.wav": "a.wav"},
        ),
        (
            {"flac": [b"aa", b"bb"]},
            "flac",
            {f"{ROW}{n}": f"x.parquet/0000000{n}" for n in range(2)},
        ),
        (
            {"audio": [{"bytes": b"aa", "path": "x/a.wav"}, {"bytes": b"bb", "path": None}]},
            None,
            {f"{ROW}0": "x.parquet/00000000-a.wav", f"{ROW}1": "x.parquet/00000001"},
        ),
    ],
)
def test_tables(store: Any, columns: Any, column: str | None, expected: dict[str, str]) -> None:
    fill(store, {"t/a.wav": "aa", "t/b.wav": "bb", "t/x.parquet": table(columns)})
    assert listed("memory://t/x.parquet", column=column) == expected
    paths = [f.path for f in found("memory://t/x.parquet", column=column)]
    assert sorted(fetched(p) for p in paths if isinstance(p, RemoteFile)) == [b"aa", b"bb"]


def table(columns: Any) -> bytes:
    pa = pytest.importorskip("pyarrow", reason="tables need the extra parquet")
    parquet = pytest.importorskip("pyarrow.parquet")
    buffer = io.BytesIO()
    parquet.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def test_names_of_any_type(store: Any) -> None:
    pa, names = pytest.importorskip("pyarrow"), ["a.wav", "a.wav"]
    audio = [{"bytes": None, "path": name} for name in names]
    for column in (pa.array(names).dictionary_encode(), pa.array(names, pa.string_view()), audio):
        fill(store, {"t/x.parquet": table({"audio": column})})
        assert listed("memory://t/x.parquet") == {"memory://t/a.wav": "a.wav"}


def test_tables_that_name_no_recordings(store: Any) -> None:
    fill(store, {"t/x.parquet": table({"flac": [None]}), "t/no.parquet": b"no table"})
    fill(store, {"t/p.parquet": table({"path": [None, "a.wav"]})})
    for name, column, problem in (
        ("x", "flac", "#row=0: has no bytes"),
        ("x", None, "no column audio_filepath or audio or path or uri or url or file"),
        ("p", None, "row 0 does not name a recording"),
        ("no", None, "not a parquet file"),
    ):
        (error,) = problems(f"memory://t/{name}.parquet", column=column)
        assert error.startswith(f"memory://t/{name}.parquet") and problem in error


def test_the_longest_first_within_bounds() -> None:
    lengths = np.random.default_rng(0).uniform(0, 100, 500)
    order = list(longest_first(((x, x) for x in lengths), ahead=50))
    assert sorted(order) == sorted(lengths)
    assert np.mean(order[:100]) > np.mean(order[-100:]) + 30
    endless = count()
    some = longest_first(((None, number) for number in endless), ahead=8)
    assert list(islice(some, 5)) == [0, 1, 2, 3, 4] and next(endless) == 13
    assert format_times(0, None, 12.5, 0.1 + 0.2, 1e-7, 1e7) == "0 12.5 0.3 0 10000000".split()


def peak_of(path: Path) -> tuple[int, int]:
    """The recordings in a container, and the bytes that this takes."""
    tracemalloc.start()
    try:
        return sum(1 for _ in StoredInputs([str(path)]).list()), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_long_manifest_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    rows = ({"audio_filepath": f"{n}.wav", "duration": n % 30} for n in range(9_000))
    path.write_text(lines(*rows))
    count, peak = peak_of(path)
    assert count == 9_000 and peak < 14e6  # those of the look-ahead; all would take 18 MB


def test_a_small_archive_of_large_files_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.tgz"
    path.write_bytes(tar_of({"a.wav": bytes(64 << 20)}, "w:gz"))
    assert path.stat().st_size < 100_000
    count, peak = peak_of(path)
    assert count == 1 and peak < 50e6  # 10 kB become 10 MB, three times


@pytest.mark.parametrize("loaders", [0, 1])
def test_samples(store: Any, loaders: int, tmp_path: Path) -> None:
    """A remote recording's samples are those of the file, and an excerpt's are a part of them."""
    fill(store, {"s/a.wav": PHONE.read_bytes(), "s/empty.wav": b"", "s/bad.wav": b"no" * 99})
    rows = [{"audio_filepath": "a.wav", "offset": 1.5, "duration": 2.0}]
    rows += [{"audio_filepath": str(PHONE), "offset": 1.5}]
    rows += [{"audio_filepath": "a.wav", "offset": 1e4, "duration": 1}]
    fill(store, {"s/m.jsonl": lines(*rows)})
    whole = load_samples(PHONE)
    expected = whole.read(0, len(whole))
    part, beyond, rest = stored("memory://s/m.jsonl")
    (plain,), (empty,), (bad,) = (stored(f"memory://s/{n}.wav") for n in ("a", "empty", "bad"))
    with closing(Readers(loaders)) as readers:
        for file, start, end in ((plain, 0, None), (part, 24_000, 56_000), (rest, 24_000, None)):
            read = load_samples(file, read=readers.read_source).read(0, 10**9)
            np.testing.assert_array_equal(read, expected[start:end])
        for file, problem in (
            (beyond, "#t=10000,10001: no audio from 10000 s on"),
            (empty, "^memory://s/empty.wav: is empty"),
            (bad, "^memory://s/bad.wav: "),
        ):
            with pytest.raises(AudioError, match=problem):
                load_samples(file, read=readers.read_source)


def test_members_wait_on_disk_until_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "MAX_RESERVED", 30)
    monkeypatch.setattr(members, "IN_MEMORY", 5)
    first, second = (HeldFile("a", io.BytesIO(b"x" * 15), 15) for _ in range(2))
    assert getattr(first._file, "_rolled", False), "on disk"
    made = threading.Event()

    def make() -> None:
        HeldFile("b", io.BytesIO(b"x"), 1)
        made.set()

    thread = threading.Thread(target=make)
    thread.start()
    assert not made.wait(0.2)
    target = io.BytesIO()
    first.fetch(target)
    assert made.wait(10) and target.getvalue() == b"x" * 15
    thread.join()
    copy = pickle.loads(pickle.dumps(second))
    copy.fetch(target)
    assert target.getvalue() == b"x" * 30
    monkeypatch.setattr("tempfile.NamedTemporaryFile", lambda: Path("/dev/full").open("r+b"))
    with pytest.raises(StorageError, match=r"^a: no space for its samples .* set TMPDIR"):
        load_samples(second)
    del second, copy
    assert members._reserved == 0


# What a store lists, and that no message, journal or name of an output holds a credential


SHOWN = tomllib.loads(Path(__file__).with_name("addresses.toml").read_text())["shown"]


@pytest.mark.parametrize(("uri", "shown"), SHOWN)
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
