"""A real S3 server on loopback: objects in, results out, killed half-way and resumed."""

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slimwhisper.errors import OutputError, StorageError
from slimwhisper.files import open_sink
from slimwhisper.storage.containers import StoredInputs
from slimwhisper.storage.stores import Location
from tests.support.kills import forking
from tests.support.memory_store import journal
from tests.support.waiting import eventually

s3fs = pytest.importorskip("s3fs", reason="needs s3fs: pip install 'fsspec[s3]'")
pytest.importorskip("moto.server", reason="needs moto[server], an S3 server for tests")
pytestmark = [
    pytest.mark.slow,
    # the server's and the client's libraries
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
OBJECTS = 150


class Faults:
    """The server's application, which sometimes does not answer well."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._random = random.Random(0)
        self.errors = self.slow = 0.0  # shares of requests
        self.failed = 0

    def __call__(self, environ: Any, start_response: Any) -> Any:
        if self._random.random() < self.slow:
            time.sleep(0.5)
        if self._random.random() < self.errors:
            self.failed += 1
            start_response("503 Service Unavailable", [("Content-Type", "text/xml")])
            return [b"<Error><Code>ServiceUnavailable</Code><Message>later</Message></Error>"]
        return self._application(environ, start_response)


@pytest.fixture(scope="module")
def faults() -> Iterator[Faults]:
    """Of an S3 server on loopback (moto), in a thread, which is every client's."""
    from moto.server import ThreadedMotoServer

    running: Any = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    faults = running._server.app = Faults(running._server.app)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret-of-the-test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        yield faults
    running.stop()


@pytest.fixture
def bucket(faults: Faults) -> Iterator[Any]:
    """s3fs, with an empty bucket `box`."""
    s3fs.S3FileSystem.clear_instance_cache()
    filesystem = s3fs.S3FileSystem(use_listings_cache=False)
    filesystem.mkdir("box")
    yield filesystem
    filesystem.rm("box", recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()


def fill(bucket: Any, count: int = OBJECTS) -> dict[str, str]:
    """URI -> text of each object; every 50th is bad."""
    texts = {}
    for number in range(count):
        text = f"bad {number}" if number % 50 == 7 else f"text {number}"
        bucket.pipe_file(f"box/in/{number % 7}/{number}.wav", text.encode())
        texts[f"s3://box/in/{number % 7}/{number}.wav"] = text
    return texts


def run(*arguments: str, wait: Callable[[int], None] | None = None) -> int:
    """The status of a job in another process, with a model that needs no weights; `wait` is called
    with its process, which is then killed.
    """
    delay = 0.005 if wait is None else 0.02
    with forking("transcribe", "--verbose", "False", *arguments, delay=delay) as start:
        child = start(Path(os.devnull))
        if wait is not None:
            wait(child.pid)
            os.kill(child.pid, 9)
        return child.wait()


def statuses(texts: dict[str, str]) -> dict[str, str]:
    return {n: "done" if t.startswith("text") else "failed" for n, t in texts.items()}


def marks(bucket: Any) -> Counter[tuple[str, str]]:
    """How often each recording has each status."""
    return Counter((line["path"], line["status"]) for line in journal(bucket, "box/out"))


def test_killed_and_resumed(bucket: Any) -> None:
    texts = fill(bucket)
    arguments = ("s3://box/in", "-o", "s3://box/out", "-f", "txt")

    def written() -> list[str]:
        return [name for name in bucket.find("box/out") if name.endswith(".txt")]

    for goal in (OBJECTS // 4, OBJECTS // 2):

        def wait(_: int, goal: int = goal) -> None:
            assert eventually(lambda: len(written()) >= goal, 60)

        assert run(*arguments, wait=wait) == -9
        assert goal <= len(written()) < OBJECTS
    assert run(*arguments) == 1
    expected = {
        f"box/out/{name.removeprefix('s3://box/in/')}.txt": f"{text}\n".encode()
        for name, text in texts.items()
        if text.startswith("text")
    }
    assert bucket.cat(written()) == expected
    assert marks(bucket) == Counter(statuses(texts).items())
    versions = {name: bucket.info(name)["LastModified"] for name in written()}
    assert run(*arguments) == 1  # some have failed before
    assert {name: bucket.info(name)["LastModified"] for name in written()} == versions


def test_a_table_killed_and_resumed(bucket: Any) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra parquet")
    texts = fill(bucket, 120)
    arguments = ("s3://box/in", "-o", "s3://box/out", "-f", "parquet")
    assert run(*arguments, wait=lambda _: time.sleep(1.0)) == -9
    assert run(*arguments) == 1
    rows = parquet.read_table("box/out/transcripts", filesystem=bucket).to_pylist()
    assert {row["etag"] is not None for row in rows} == {True}
    found = sorted((row["path"], row["text"], row["error"] is None) for row in rows)
    good = {n: t.startswith("text") for n, t in texts.items()}
    assert found == sorted((n, f" {t}" if good[n] else None, good[n]) for n, t in texts.items())


def test_errors_and_slow_answers(bucket: Any, faults: Faults) -> None:
    """What a store does not give or take is tried again in the next run, and nothing is doubled."""
    texts = fill(bucket, 24)
    arguments = ("s3://box/in", "-o", "s3://box/out", "-f", "txt")
    faults.errors, faults.slow, faults.failed = 0.3, 0.05, 0
    try:
        for _ in range(2):
            run(*arguments)
    finally:
        faults.errors = faults.slow = 0.0
    assert run(*arguments) == 1  # a recording is bad
    assert faults.failed > 10
    settled = Counter({key: n for key, n in marks(bucket).items() if key[1] in ("done", "failed")})
    assert settled == Counter(statuses(texts).items())
    assert len([n for n in bucket.find("box/out") if n.endswith(".txt")]) == 23


def test_listing_page_by_page(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(bucket, 25)
    bucket.pipe_file("box/in/folder/", b"")
    call_s3, pages = s3fs.S3FileSystem.call_s3, 0

    def ten_names(self: Any, method: str, **request: Any) -> Any:
        nonlocal pages
        pages += method == "list_objects_v2"
        return call_s3(self, method, MaxKeys=10, **request)

    monkeypatch.setattr(s3fs.S3FileSystem, "call_s3", ten_names)
    listed = [f.path for f in Location("s3://box/in").files(False, lambda _: True)]
    assert sorted(listed) == sorted(f"box/in/{n % 7}/{n}.wav" for n in range(25)) and pages == 3
    assert [f.path for f in Location("s3://box/in/3/*.wav").files(False, lambda _: True)] == sorted(
        bucket.glob("box/in/3/*.wav")
    )
    (error,) = StoredInputs(["s3://no-such-bucket/in"]).list()
    assert isinstance(error, StorageError)
    assert str(error).startswith("s3://no-such-bucket/in: cannot be read or listed (")


def test_outputs(bucket: Any) -> None:
    folder = open_sink("s3://box/out")
    folder.write("x/one", b"1")
    folder.write("x/one", b"3")
    assert (folder.read("x/one"), folder.names("x"), folder.names("y")) == (b"3", ["x/one"], [])
    with pytest.raises(OutputError, match="s3://box/out/x/two: cannot be read"):
        folder.read("x/two")
