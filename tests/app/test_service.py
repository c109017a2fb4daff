"""The service: one engine for the requests of all users."""

import time
from collections import Counter
from pathlib import Path

import jiwer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slimwhisper.app.service import jobs
from slimwhisper.app.service.service import Service
from slimwhisper.engine.engine import Engine
from slimwhisper.errors import OptionError
from slimwhisper.loading import load_model
from slimwhisper.service.source import Failed, Finished, Progress
from tests.support.fuzz import examples
from tests.support.paths import BROKEN
from tests.support.pretend.cuda import pretend_cuda
from tests.support.service_jobs import PHONE, Make, Upload
from tests.support.spoken import EXPECTED, LONG
from tests.support.waiting import eventually, forked


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
        assert isinstance(started, jobs.JobStarted) and isinstance(last, Finished)
        assert started.seconds > 3
        assert all(isinstance(p, Progress) for p in progress)
        assert [s for p in progress for s in p.news[0]] == list(last.result.segments), name
        done = [p.news[1] for p in progress]
        assert done == sorted(done) and done[-1] == pytest.approx(started.seconds, abs=0.1)
        texts.append(last.result.text.strip())
    assert jiwer.wer([truth["text"] for truth in truths.values()], texts) <= 0.01
    counts = service.counts
    assert counts.finished == len(truths) and counts.failed == 0 and service.in_flight == 0
    assert counts.filled_slots / counts.steps > 1, "several at once"
    assert counts.audio_seconds > 20 and counts.busy_seconds > 0


def test_requests_differ_and_a_bad_one_harms_no_other(make: Make) -> None:
    """Nor does one for another model; an idle model is unloaded. Options replace the defaults."""
    service = make(unload_after=0.2, defaults={"token_logprobs": True})
    assert service.engines.loaded is None
    plain = Upload(service, token_logprobs=False)
    beams = Upload(service, beam_size=2, temperature=0.0)
    broken, wrong = Upload(service, BROKEN), Upload(service, language="klingon")
    words, unknown = Upload(service, word_timestamps=True), Upload(service, model="gigantic")
    other, again = Upload(service, model="other"), Upload(service)
    assert "broken.m4a: not audio" in str(broken.error)
    assert isinstance(wrong.error, OptionError)
    error = unknown.error
    assert isinstance(error, jobs.ModelError)
    assert "gigantic cannot be loaded at the moment" in str(error)
    assert plain.text == beams.text == other.text == again.text
    last, without = words.last, plain.last
    assert isinstance(last, Finished) and isinstance(without, Finished)
    assert last.result.segments[0].words and last.result.segments[0].token_logprobs
    assert without.result.segments[0].token_logprobs is None
    assert service.counts.failed == 3
    assert eventually(lambda: service.engines.loaded is None) and service.engines.model is None
    assert Upload(service).text


def test_cancelled_jobs_leave_at_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    service = make(batch_size=1)
    long, running = Upload(service, LONG), Upload(service)
    assert isinstance(long.events.get(timeout=60), jobs.JobStarted)
    service.cancel(long.job)
    assert running.text
    assert eventually(lambda: service.in_flight == 0) and service.counts.cancelled == 1
    emitted: list[jobs.Event] = []
    while not long.events.empty():
        emitted.append(long.events.get())
    assert not any(isinstance(e, Finished | Failed) for e in emitted)
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


@examples(100)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xxxy"), st.integers(0, 40))),
    st.integers(0, 20),
)
def test_whose_recording_is_read_next(asked: list[tuple[str, str, int]], slots: int) -> None:
    """Those of one model, by turns of the users; a few, or as many small ones as a step can take,
    so that a hundred files of one user do not keep another waiting.
    """
    queue, waiting = jobs.Jobs(), list[jobs.Job]()
    for user, model, megabytes in asked:
        waiting.append(jobs.Job(Path("gone"), "a", jobs.ModelChoice(model), {}, user, print))
        waiting[-1].size = megabytes << 20
        queue.enqueue(waiting[-1])
    chosen = queue.next_to_read(slots, lambda job: True)
    assert [queue.position(job) for job in chosen] == [0] * len(chosen)
    for number, job in enumerate(chosen):
        same = [other for other in waiting if other.model == waiting[0].model]
        users = Counter(before.user for before in chosen[:number])
        assert job is min(
            (o for o in same if o not in chosen[:number]), key=lambda o: users[o.user]
        )
        if number >= jobs.AHEAD:
            assert number < slots and sum(o.size for o in chosen[:number]) < jobs.AHEAD_BYTES
    left = [job for job in waiting if job not in chosen]
    if left and left[0].model == waiting[0].model:
        many = len(chosen) >= slots or sum(job.size for job in chosen) >= jobs.AHEAD_BYTES
        assert len(chosen) >= jobs.AHEAD and many
    assert not queue.next_to_read(slots, lambda job: False)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_process_that_was_forked(make: Make) -> None:
    """It has none of the service's threads, so that nothing would ever be transcribed in it."""
    service = make()
    assert Upload(service).text

    def refused() -> bool:
        with pytest.raises(jobs.StoppingError):
            Upload(service)
        return True

    assert forked(refused)()
    assert Upload(service).text


@pytest.mark.slow
def test_a_gpu_that_is_not_the_current_one() -> None:
    names = [PHONE, "countdown.flac"]
    with pretend_cuda(count=2) as gpu:
        model = load_model("digits", "cuda:1", dtype="float32")
        service = Service(lambda _: model, batch_size=4)
        uploads = {name: Upload(service, name, user=name) for name in names}
        for name, each in uploads.items():
            assert jiwer.wer(EXPECTED[name]["text"], each.text) == 0
        service.close()
    assert gpu.counts.kernels["graph"] > 0
