"""The service: one engine for the requests of all users."""

import os
import time
from contextlib import suppress
from pathlib import Path

import jiwer
import pytest
import soundfile as sf

from slimwhisper.app.command import job_defaults
from slimwhisper.app.service import fair_queue
from slimwhisper.app.service.fair_queue import AHEAD
from slimwhisper.app.service.jobs import (
    BusyError,
    Event,
    JobFailed,
    JobFinished,
    JobProgress,
    JobStarted,
    Limits,
    ModelError,
    StoppingError,
)
from slimwhisper.app.service.service import Service
from slimwhisper.cli import build_parser
from slimwhisper.engine.engine import Engine
from slimwhisper.errors import OptionError
from slimwhisper.loading import load_model
from tests.support.live import eventually, held_engines, held_readers
from tests.support.paths import BROKEN
from tests.support.pretend.cuda import pretend_cuda
from tests.support.service_jobs import PHONE, Make, Upload
from tests.support.sounds import claps
from tests.support.spoken import EXPECTED, LONG


def test_all_short_samples_at_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Engine.step
    # on a busy machine the first could end before the next has been read
    monkeypatch.setattr(Engine, "step", lambda engine: (time.sleep(0.02), step(engine))[1])
    service, truths = make(), {n: truth for n, truth in EXPECTED.items() if n != LONG}
    uploads = {name: Upload(service, name) for name in truths}
    ends = {name: h.until_the_end() for name, h in uploads.items()}
    texts = []
    for name, events in ends.items():
        started, *progress, last = events
        assert isinstance(started, JobStarted) and isinstance(last, JobFinished)
        assert started.seconds == last.seconds > 3
        assert all(isinstance(p, JobProgress) for p in progress)
        assert [s for p in progress for s in p.segments] == list(last.transcript.segments), name
        done = [p.done for p in progress]
        assert done == sorted(done) and done[-1] == pytest.approx(last.seconds, abs=0.1)
        texts.append(last.transcript.text.strip())
    assert jiwer.wer([truth["text"] for truth in truths.values()], texts) <= 0.01
    counts = service.counts
    assert counts.finished == len(truths) and counts.failed == 0 and service.in_flight == 0
    assert counts.filled_slots / counts.steps > 1, "several at once"
    assert counts.audio_seconds > 20 and counts.busy_seconds > 0


def test_claps_have_no_text_by_default(make: Make, tmp_path: Path) -> None:
    """The default of `serve`; a request may choose otherwise."""
    sf.write(tmp_path / "claps.wav", claps(10.0), 16_000)
    service = make(defaults=job_defaults(build_parser().parse_args(["serve"])))
    assert Upload(service, tmp_path / "claps.wav").text == ""
    assert Upload(service, tmp_path / "claps.wav", speech_only=False).text
    assert Upload(service).text.startswith("five five five")


def test_requests_differ_and_a_bad_one_harms_no_other(make: Make) -> None:
    service = make()
    plain, beams = Upload(service), Upload(service, beam_size=2, temperature=0.0)
    broken, wrong = Upload(service, BROKEN), Upload(service, language="klingon")
    words, unknown = Upload(service, word_timestamps=True), Upload(service, model="gigantic")
    assert "broken.m4a: not audio" in str(broken.error)
    assert isinstance(wrong.error, OptionError)
    error = unknown.error
    assert isinstance(error, ModelError) and "gigantic cannot be loaded at the moment" in str(error)
    assert plain.text == beams.text
    last = words.last
    assert isinstance(last, JobFinished) and last.transcript.segments[0].words
    assert service.counts.failed == 3


def test_a_full_queue_refuses(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    service = make(limits=Limits(queue=3))
    go = held_engines(monkeypatch)
    uploads = [Upload(service) for _ in range(3)]
    with pytest.raises(BusyError, match="3 requests are waiting; try again"):
        Upload(service)
    go.set()
    assert len({h.text for h in uploads}) == 1
    assert Upload(service).text and service.counts.refused == 1


def test_cancelled_jobs_leave_at_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    service = make(batch_size=1)
    long, running = Upload(service, LONG), Upload(service)
    assert isinstance(long.events.get(timeout=60), JobStarted)
    service.cancel(long.job)
    assert running.text
    assert eventually(lambda: service.in_flight == 0) and service.counts.cancelled == 1
    emitted: list[Event] = []
    while not long.events.empty():
        emitted.append(long.events.get())
    assert not any(isinstance(e, JobFinished | JobFailed) for e in emitted)
    service.cancel(running.job)  # too late: nothing happens
    assert service.counts.cancelled == 1


def test_a_job_that_is_cancelled_as_it_begins(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """It is not read, which would end in an error that is nobody's."""
    service = make()
    assert Upload(service).text
    with service._changed:
        service.cancel(Upload(service).job)
    assert eventually(lambda: service.counts.cancelled == 1)
    assert Upload(service).text
    assert "could not be read" not in caplog.text


def test_users_take_turns(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred files of one user do not keep another waiting."""
    service = make(batch_size=1)
    order: list[str] = []
    many = [Upload(service, user="many") for _ in range(12)]
    for h in many:
        h.job.listener = lambda e: order.append("many") if isinstance(e, JobFinished) else None
    one = Upload(service, user="one")
    assert one.text
    assert order.count("many") < 12 - 2
    assert service.jobs.position(many[-1].job) >= 0


def test_models_are_switched_and_unloaded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    service = make(unload_after=0.2)
    assert service.engines.loaded is None
    first, second, third = Upload(service), Upload(service, model="other"), Upload(service)
    assert first.text == second.text == third.text
    assert eventually(lambda: service.engines.loaded is None) and service.engines.model is None
    assert Upload(service).text


def test_shutting_down(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """With patience, running jobs finish; without, all jobs fail."""
    patient, hasty = make(), make(batch_size=1)
    finished = Upload(patient)
    patient.close(patience=60)
    assert jiwer.wer(EXPECTED[PHONE]["text"], finished.text) == 0
    held_engines(monkeypatch, 0.01)
    running, waiting = Upload(hasty, LONG), Upload(hasty)
    assert isinstance(running.events.get(timeout=60), JobStarted)
    hasty.close(patience=0)
    assert [type(uploads.error) for uploads in (running, waiting)] == [StoppingError] * 2
    with pytest.raises(StoppingError):
        Upload(patient)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_process_that_was_forked(make: Make) -> None:
    """It has none of the service's threads, so that nothing would ever be transcribed in it."""
    service = make()
    assert Upload(service).text
    if not (child := os.fork()):
        with suppress(StoppingError):
            Upload(service)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert Upload(service).text


@pytest.mark.parametrize(
    ("max_bytes", "ahead"), [(1 << 20, 6), pytest.param(1, AHEAD, marks=pytest.mark.slow)]
)
def test_small_recordings_are_read_ahead(
    make: Make, monkeypatch: pytest.MonkeyPatch, max_bytes: int, ahead: int
) -> None:
    """As many as there are slots, so that a step can fill them; large ones a few at a time."""
    go = held_readers(monkeypatch)
    monkeypatch.setattr(fair_queue, "AHEAD_BYTES", max_bytes)
    service = make(batch_size=6)
    first = Upload(service, "door-code.mp3")  # the slots are known once the model is loaded
    go.set()
    first.until_the_end()
    go.clear()
    uploads = [Upload(service, "door-code.mp3") for _ in range(9)]
    assert eventually(lambda: service.jobs.states()["reading"] >= ahead)
    assert service.jobs.states() == {"waiting": 9 - ahead, "reading": ahead, "running": 0}
    go.set()
    assert {h.text for h in uploads} == {"four zero seven seven"}


@pytest.mark.slow
def test_a_gpu_that_is_not_the_current_one() -> None:
    names = [PHONE, "countdown.flac"]
    with pretend_cuda(count=2) as gpu:
        model = load_model("digits", "cuda:1", dtype="float32")
        service = Service(lambda _: model, batch_size=4)
        uploads = {name: Upload(service, name, user=name) for name in names}
        texts = {name: each.text for name, each in uploads.items()}
        service.close()
    for name, text in texts.items():
        assert jiwer.wer(EXPECTED[name]["text"], text) == 0
    assert gpu.counts.kernels["graph"] > 0
