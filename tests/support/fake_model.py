"""A model that needs no weights and no torch: what a job asks of one, and nothing else.

Its recordings are text files: the text is the transcript, `bad...` is an error, `cut...` one that
`allow_truncated` lifts. The length in seconds is the file's size.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slimwhisper.errors import AudioError, SlimWhisperError
from slimwhisper.types import Segment, Transcript


class FakeModel:
    """See above. `ahead` files are taken before the first is finished, as the engine does."""

    name, device, compute_type, forms = "fake", "cpu", "float32", ("e", "x")
    fallbacks: tuple[str, ...] = ()

    def __init__(self, ahead: int = 4, delay: float = 0.0) -> None:
        self.ahead = ahead
        self.delay = delay
        self.taken: list[Path] = []
        self.calls: list[dict[str, Any]] = []
        self.closed = False

    def bytes_per_window(self) -> int:
        return 1_000_000

    def baseline_bytes_per_window(self) -> int:
        return 8_000_000

    def transcribe_many(
        self,
        sources: Iterable[Path],
        *,
        batch_size: int | None,
        allow_truncated: bool,
        on_segments: Callable[[Path, list[Segment], float], None],
        on_duration: Callable[[Path, float], None],
        **options: Any,
    ) -> Iterator[tuple[Path, Transcript | SlimWhisperError]]:
        self.calls.append({"batch_size": batch_size, **options})
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
                    text = path.read_text(encoding="utf-8")
                except OSError as error:
                    yield path, AudioError(f"{path}: no such file; check the path ({error.errno})")
                    continue
                if text.startswith("bad") or (text.startswith("cut") and not allow_truncated):
                    yield path, AudioError(f"{path}: damaged; copy the file again")
                    continue
                on_duration(path, float(len(text)))
                segment = Segment(0, 0, 0.0, 1.5, f" {text}", [1], 0.0, -0.5, 1.0, 0.1)
                on_segments(path, [segment], float(len(text)))
                yield path, Transcript(f" {text}", [segment], "en")
        finally:
            self.closed = True


def install(model: FakeModel, set_item: Callable[[Any, str, Any], None]) -> None:
    """Put it where a job loads its model from."""
    module = SimpleNamespace(load_model=lambda *_, **__: model)
    set_item(sys.modules, "slimwhisper.api", module)


@pytest.fixture
def fake_model(monkeypatch: pytest.MonkeyPatch) -> FakeModel:
    """Every job of the test runs on it."""
    model = FakeModel()
    install(model, monkeypatch.setitem)
    return model
