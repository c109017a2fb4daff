"""A model without weights or torch that does only what a job needs.

Its recordings are text files whose text is the transcript. An empty file is silent, `bad...` fails,
and `cut...` fails unless `allow_truncated` is set. A character lasts a second.
"""

import io
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import make_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slimwhisper.audio.samples import RemoteFile
from slimwhisper.errors import AudioError, SlimWhisperError
from slimwhisper.types import Segment, Transcript

# the module of the real one imports torch
MEMORY = make_dataclass("TextMemory", ["peak_bytes", "preemptions"])


class FakeModel:
    """See above. Like the engine, it takes `ahead` files before the first one is finished."""

    name, forms = "fake", ("e", "x")
    fastest_dtype = "float32"
    fallbacks: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()

    def __init__(self, ahead: int = 4, delay: float = 0.0) -> None:
        self.ahead = ahead
        self.delay = delay
        self.device, self.compute_type = "cpu", "float32"
        self.taken: list[Path] = []
        self.calls: list[dict[str, Any]] = []
        self.closed = False

    def bytes_per_window(self) -> int:
        return 1_000_000

    def baseline_bytes_per_window(self) -> int:
        return 8_000_000

    def text_memory(self) -> Any:
        return MEMORY(0, 0)

    def default_batch_size(self, **options: Any) -> int:
        return self.ahead

    def transcribe_many(
        self,
        sources: Iterable[Path],
        *,
        batch_size: int | None,
        allow_truncated: bool,
        loaders: int | None,
        on_segments: Callable[[Path, list[Segment], float], None],
        on_duration: Callable[[Path, float], None],
        **options: Any,
    ) -> Iterator[tuple[Path, Transcript | SlimWhisperError]]:
        self.calls.append({"batch_size": batch_size, "loaders": loaders, **options})
        queue = iter(sources)
        taken: deque[Path] = deque()
        try:
            while True:
                while len(taken) < self.ahead and (path := next(queue, None)) is not None:
                    self.taken.append(path)
                    taken.append(path)
                if not taken:
                    return
                path = taken.popleft()
                time.sleep(self.delay)
                try:
                    text = contents(path)
                except OSError as error:
                    yield path, AudioError(f"{path}: no such file; check the path ({error.errno})")
                    continue
                except SlimWhisperError as error:
                    yield path, error
                    continue
                if text.startswith("bad") or (text.startswith("cut") and not allow_truncated):
                    yield path, AudioError(f"{path}: damaged; copy the file again")
                    continue
                on_duration(path, float(len(text)))
                spoken = f" {text}" if text else ""
                segment = Segment(0, 0, 0.0, 1.5, spoken, [1], 0.0, -0.5, 1.0, 0.1)
                segments = [segment] if text else []
                on_segments(path, segments, float(len(text)))
                yield path, Transcript(spoken, segments, "en")
        finally:
            self.closed = True


def contents(source: Path | RemoteFile) -> str:
    """What is in a file, or an object of a store."""
    return (source.read_bytes() if isinstance(source, Path) else fetched(source)).decode()


def fetched(file: RemoteFile) -> bytes:
    """What is in an object of a store."""
    target = io.BytesIO()
    file.fetch(target)
    return target.getvalue()


def install(model: FakeModel, set_item: Callable[[Any, str, Any], None]) -> None:
    """Make every job load this model."""

    def load_model(*, dtype: str | None, device: str | None, **_: Any) -> FakeModel:
        model.device = device or "cpu"
        dtype = model.fastest_dtype if dtype == "auto" else dtype
        model.compute_type = dtype or ("float32" if model.device == "cpu" else "float16")
        return model

    set_item(sys.modules, "slimwhisper.loading", SimpleNamespace(load_model=load_model))


@pytest.fixture
def fake_model(monkeypatch: pytest.MonkeyPatch) -> FakeModel:
    """The model of every job in the test."""
    model = FakeModel()
    install(model, monkeypatch.setitem)
    return model
