"""`transcribe --engine ray` on a full disk."""

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from slimwhisper.cli import main
from tests.support.kills import journal_lines, whole_tree
from tests.support.ray_jobs import FLAGS, ray_run
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
