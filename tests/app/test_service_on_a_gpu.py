"""The service's thread on a pretend GPU that is not the current one."""

import queue

import jiwer

from slimwhisper.api import load_model
from slimwhisper.app.service.jobs import Event, Failed, Finished, Job, ModelChoice
from slimwhisper.app.service.service import Service
from tests.support.pretend.cuda import pretend_cuda
from tests.support.spoken import EXPECTED, SAMPLES


def test_two_recordings_side_by_side() -> None:
    names = ["phone-number.wav", "countdown.flac"]
    events: queue.SimpleQueue[tuple[str, Event]] = queue.SimpleQueue()
    with pretend_cuda(count=2) as gpu:
        model = load_model("digits", "cuda:1", dtype="float32")
        service = Service(lambda _: model, batch_size=4)
        for name in names:
            tell = lambda event, name=name: events.put((name, event))  # noqa: E731
            service.submit(Job(SAMPLES / name, name, ModelChoice("digits"), {}, name, tell))
        texts: dict[str, str] = {}
        while len(texts) < len(names):
            name, event = events.get(timeout=120)
            assert not isinstance(event, Failed), event
            if isinstance(event, Finished):
                texts[name] = event.transcript.text
        service.close()
    for name, text in texts.items():
        assert jiwer.wer(EXPECTED[name]["text"], text) == 0
    kernels = model.network.plan.kernels
    assert kernels.failures == {} and kernels.used["latent", "triton"] > 0
    assert gpu.counts.kernels["graph"] > 0
