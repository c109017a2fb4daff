"""`transcribe --engine ray` where outputs or inputs fail: a full disk, and a bucket in trouble."""

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slimwhisper.cli import main
from tests.support.kills import journal_lines, whole_tree
from tests.support.ray_jobs import FLAGS, ray_run
from tests.support.s3_server import bucket_marks, s3_server
from tests.support.spoken import SAMPLES

pytest.importorskip("ray", reason="the extra ray is not installed")
pytestmark = pytest.mark.slow


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    """Every recording is whole or reported; with more space the next run does the rest."""
    recordings = tmp_path / "in"
    recordings.mkdir()
    for number in range(16):
        (recordings / f"{number:02}.mp3").write_bytes((SAMPLES / "door-code.mp3").read_bytes())
    one, out = tmp_path / "one", small_disk / "out"
    quiet = ("--verbose", "False")
    assert main(["transcribe", str(recordings), "-o", str(one), *FLAGS, *quiet]) == 0
    with ray_run(recordings, "-o", out, *FLAGS, *quiet, "--workers", "2") as run:
        events = list(run.events())
        assert run.wait() == 1
    assert not list(out.rglob("*.part"))
    ended = {Path(e["path"]).stem: e for e in events if e["event"] == "file"}
    whole = {name for name, event in ended.items() if event["status"] == "done"}
    assert 0 < len(whole) < 16
    for name in ended.keys() - whole:
        assert "No space left on device" in ended[name]["error"]
    expected = whole_tree(one)
    found = whole_tree(out)
    assert all(found[n] == data for n, data in expected.items() if Path(n).stem in whole)
    marked = Counter(
        Path(line["path"]).stem for line in journal_lines(out) if line["status"] == "done"
    )
    assert marked.keys() <= whole and set(marked.values()) == {1}
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    with ray_run(recordings, "-o", out, *FLAGS, *quiet, "--workers", "2") as run:
        list(run.events())
        assert run.wait() == 0
    assert whole_tree(out) == expected
    done = [line["path"] for line in journal_lines(out) if line["status"] == "done"]
    assert len(done) == len(set(done)) == 16


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the server's and the client's libraries
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_bucket_that_answers_errors_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3fs: Any = pytest.importorskip("s3fs", reason="needs s3fs: pip install 'fsspec[s3]'")
    pytest.importorskip("moto.server", reason="needs moto[server], an S3 server for tests")
    arguments = ("s3://calls/in", "-o", "s3://calls/out", "-f", "txt", *FLAGS, "--workers", "2")
    with s3_server() as (environment, faults):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        bucket = s3fs.S3FileSystem(use_listings_cache=False)
        bucket.mkdir("calls")
        data = {f"{n % 3}/{n}.mp3": (SAMPLES / "door-code.mp3").read_bytes() for n in range(24)}
        for name, content in (data | {"0/bad.mp3": b"no sound"}).items():
            bucket.pipe_file(f"calls/in/{name}", content)
        faults.errors, faults.slow = 0.3, 0.1
        with ray_run(*arguments) as run:
            list(run.events())
            assert run.wait() == 1
        assert faults.failed > 10
        faults.errors = faults.slow = 0.0
        with ray_run(*arguments) as run:
            list(run.events())
            assert run.wait() == 1  # a recording is bad
        texts = {n: bucket.cat_file(n) for n in bucket.find("calls/out") if n.endswith(".txt")}
        assert texts.keys() == {f"calls/out/{name}.txt" for name in data}
        assert set(texts.values()) == {b"four zero seven seven\n"}
        settled = Counter(
            (line["path"].removeprefix("s3://calls/in/"), line["status"])
            for line in bucket_marks(bucket, "calls/out")
            if line["status"] in ("done", "failed")
        )
        wanted = [*((name, "done") for name in data), ("0/bad.mp3", "failed")]
        assert settled == Counter(wanted)
    s3fs.S3FileSystem.clear_instance_cache()
