"""The Live tab, in a browser whose microphone plays a file."""

import json
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import soxr

from slimwhisper.app.service.jobs import BusyError
from tests.support.live import Live
from tests.support.live_tab import Tab
from tests.support.paths import PHONE as SOUND
from tests.support.realtime import PATH
from tests.support.spoken import EXPECTED

pytestmark = pytest.mark.slow

TEXT = EXPECTED[SOUND.name]["text"]
STRANGER = "speech.test"  # a name of this machine, neither https nor localhost
PHONE = {"width": 390, "height": 844}
DETAILS: dict[str, Any] = {  # of a segment
    "tokens": [50364, 5],
    "temperature": 0.5,
    "avg_logprob": -0.25,
    "compression_ratio": 0.75,
    "no_speech_prob": 0.125,
}
FLAGS = (
    f"--use-file-for-fake-audio-capture={SOUND}%noloop",
    f"--host-resolver-rules=MAP {STRANGER} 127.0.0.1",
)
SETTINGS = {"allow_hosts": (STRANGER,)}
BROWSER_PAGE = Tab
Open = Callable[..., Tab]


@pytest.fixture
def tab(show: Open) -> Tab:
    """The tab, on a server of streams that the test plays."""
    opened = show()
    opened.fake()
    return opened


def word(text: str, start: float) -> dict[str, Any]:
    return {"word": text, "start": start, "end": start + 0.2, "probability": 0.5}


def focused(tab: Tab, index: int) -> bool:
    """Whether a word has the focus."""
    found = tab.page.locator(".sw-word").nth(index)
    return bool(found.evaluate("word => word === document.activeElement"))


def test_the_session_that_is_asked_for(tab: Tab) -> None:
    fields = tab.page.locator("#sw-live-options")
    fields.get_by_label("Word times").check()
    fields.get_by_label("Prompt").fill("Smythe")
    fields.get_by_label("Language").click()
    tab.page.get_by_role("option", name="English").click()
    tab.begin()
    asked = tab.sent[0][0]["session"]
    assert asked["include"] == [
        f"item.input_audio_transcription.{name}" for name in ("tentative", "details", "words")
    ]
    transcription = {"language": "en", "prompt": "Smythe", "task": "transcribe"}
    sound = {"format": {"type": "audio/pcm", "rate": 16_000}, "transcription": transcription}
    assert asked["audio"]["input"] == sound


def test_words_and_what_may_still_change(tab: Tab) -> None:
    page = tab.page
    tab.begin()
    tab.emit("input_audio_buffer.speech_started", "a", audio_start_ms=-8000)
    tab.emit(f"{PATH}.tentative", "a", text="", heard=-8.0)
    page.wait_for_selector(".sw-state >> text=Listening, over 5 s behind")
    tab.emit("input_audio_buffer.speech_started", "a", audio_start_ms=3_725_400)
    tab.emit(f"{PATH}.tentative", "a", text="<b>five")
    page.wait_for_selector(".sw-tail >> text=<b>five")
    assert page.inner_text(".sw-committed") == ""
    words = [word(" five", 3725.4), word(" five", 3725.7)]
    tab.emit(f"{PATH}.delta", "a", delta="five five", words=words)
    tab.emit(f"{PATH}.tentative", "a", text=" nine")
    page.wait_for_selector(".sw-tail >> text=nine")
    assert page.inner_text(".sw-utterance") == "1:02:05\nfive five nine"
    assert page.locator(".sw-word").nth(1).get_attribute("title") == "3725.70 to 3725.90 s"
    when = page.locator(".sw-log + .sw-note")
    assert when.inner_text().startswith("Tap a word")
    page.locator(".sw-log").focus()
    for key, index in (("ArrowRight", 1), ("ArrowLeft", 0), ("ArrowLeft", 0), ("ArrowRight", 1)):
        page.keyboard.press(key)
        assert focused(tab, index)
    assert when.inner_text() == "five: 3725.70 to 3725.90 s"
    assert page.get_by_role("log").all_text_contents() == ["five five"], "for screen readers"
    tab.until("Number(document.querySelector('.sw-meter').ariaValueNow) > 20")
    tab.emit(f"{PATH}.delta", "a", delta=" five")
    words.append(word(" five", 3726))
    text, times = "five five five", {"start": 3725.4, "end": 3726.4, "words": words}
    tab.emit(f"{PATH}.segment", "a", text=text, **times, **DETAILS)
    tab.emit(f"{PATH}.completed", "a", transcript=text)
    tab.until("document.querySelectorAll('.sw-word').length === 3")
    assert focused(tab, 1), "also when the words are drawn again"


def test_pause_stop_save_and_clear(tab: Tab) -> None:
    page = tab.page
    tab.begin()
    page.on("dialog", lambda dialog: dialog.accept())
    tab.emit(f"{PATH}.delta", "cleared", delta="zero")
    page.wait_for_selector(".sw-committed >> text=zero")
    tab.press("Clear")
    tab.emit(f"{PATH}.completed", "cleared", transcript="zero zero")
    text, times = "five five five", {"start": 3725.4, "end": 3726.4, "words": None}
    tab.emit("input_audio_buffer.speech_started", "a", audio_start_ms=3_725_400)
    tab.emit(f"{PATH}.segment", "a", text=text, **times, **DETAILS)
    tab.emit(f"{PATH}.completed", "a", transcript=text)
    tab.press("Pause")
    tab.become("paused")
    assert tab.sent[0][-1]["type"] == "input_audio_buffer.commit"
    before = tab.appended()
    page.wait_for_timeout(400)
    assert tab.appended() == before, "no sound is sent in a pause"
    tab.press("Resume")
    tab.emit("input_audio_buffer.speech_started", "b", audio_start_ms=3_730_000)
    tab.emit(f"{PATH}.delta", "b", delta="nine")
    tab.until("document.querySelectorAll('.sw-utterance').length === 2")
    page.wait_for_timeout(300)
    assert tab.appended() > before
    tab.press("Stop")
    tab.become("stopping")
    page.wait_for_timeout(1600)
    assert page.get_attribute(".sw-live", "data-state") == "stopping", "the last text is to come"
    tab.emit("input_audio_buffer.speech_stopped", "b", audio_end_ms=3_731_000)
    tab.emit(f"{PATH}.completed", "b", transcript="nine nine")
    tab.become("idle")
    assert "nine nine" in page.inner_text(".sw-live")
    assert tab.saved("srt") == (
        "1\n01:02:05,400 --> 01:02:06,400\nfive five five\n\n"
        "2\n01:02:10,000 --> 01:02:11,000\nnine nine\n\n"
    )
    first, last = json.loads(tab.saved("json"))["segments"]
    assert [first["text"], last["text"]] == [" five five five", " nine nine"]
    assert {name: first[name] for name in DETAILS} == DETAILS
    tab.press("Clear")
    page.wait_for_selector("text=Press Start and speak")
    assert page.locator(".sw-utterance").count() == 0


def test_it_fits_a_phone_and_can_be_read(show: Open) -> None:
    tab = show(viewport=PHONE, has_touch=True)
    tab.fake()
    tab.begin()
    for number in range(60):
        tab.emit(f"{PATH}.delta", str(number), delta="five zero one four and then much more " * 3)
    tab.emit(f"{PATH}.tentative", "59", text=" nine" * 9)
    tab.page.wait_for_selector(".sw-tail >> text=nine")
    log, tail = (tab.page.locator(s).last.bounding_box() for s in (".sw-log", ".sw-tail"))
    assert tail["y"] + tail["height"] <= log["y"] + log["height"] + 1, "the newest is in sight"
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    tab.emit(f"{PATH}.delta", "59", delta=" nine", words=[word(" nine", 7.5)])
    tab.page.locator(".sw-word").tap()
    tab.page.wait_for_selector(".sw-note >> text=nine: 7.50 to 7.70 s")
    tab.assert_readable(".sw-committed", ".sw-tail", ".sw-utterance time", ".sw-main", ".sw-stop")


def test_a_lost_connection(tab: Tab) -> None:
    page = tab.page
    tab.begin()
    page.wait_for_timeout(600)
    tab.emit("input_audio_buffer.speech_started", "a", audio_start_ms=200)
    tab.emit(f"{PATH}.delta", "a", delta="five")
    page.wait_for_selector(".sw-committed >> text=five")
    sent = tab.appended()
    tab.socket.close()
    tab.become("lost")
    page.wait_for_timeout(300)
    tab.become("running")
    page.wait_for_timeout(300)
    assert tab.appended() >= sent + 5, "what has no whole text, and what was said meanwhile"
    assert page.locator(".sw-utterance").count() == 0, "heard again"
    tab.emit("input_audio_buffer.speech_started", "other", audio_start_ms=200)
    tab.emit(f"{PATH}.delta", "other", delta="five five")
    tab.emit(f"{PATH}.completed", "other", transcript="five five")
    page.wait_for_selector(".sw-committed >> text=five five")
    page.wait_for_timeout(1500)
    tab.socket.close()
    tab.become("lost")
    tab.become("running")
    page.wait_for_timeout(300)
    minutes, _, seconds = page.inner_text(".sw-live header time").partition(":")
    given = 10 * (60 * int(minutes) + int(seconds))
    assert 15 <= tab.appended() <= given - 10, "what has its text is not sent again"
    tab.emit("error", error={"message": "the server is shutting down", "code": "stopping"})
    tab.socket.close()
    tab.become("idle")
    problem = page.inner_text(".sw-live [role=alert]")
    assert problem.startswith("The server is shutting down.")
    assert "five five" in page.inner_text(".sw-log"), "nothing that was said is gone"


def test_what_is_refused(show: Open, browser: Any, page_server: Live) -> None:
    tab = show()
    page = tab.page

    def problem() -> str:
        tab.press("Start")
        tab.become("idle")
        page.wait_for_selector(".sw-live [role=alert]:visible")
        return str(page.inner_text(".sw-live [role=alert]"))

    for name, said in (("NotAllowedError", "Allow it for this site"), ("NotFoundError", "Connect")):
        page.evaluate(
            "name => { navigator.mediaDevices.getUserMedia = async () => {"
            " throw new DOMException('no', name); }; }",
            name,
        )
        assert said in problem()
    page.evaluate("delete navigator.mediaDevices.getUserMedia")

    busy = BusyError("there are 64 live streams; try again in a minute")
    with patch.object(page_server.service, "open_stream", side_effect=busy):
        assert problem() == "There are 64 live streams; try again in a minute."
    page.context.set_offline(True)
    assert problem() == "The server cannot be reached."
    unsafe = Tab(browser, page_server.url.replace("127.0.0.1", STRANGER))
    unsafe.press("Start")
    unsafe.page.wait_for_selector("text=Open this page over https, or on the server's machine")
    assert unsafe.strange == []
    unsafe.close()


def test_other_sample_rates(show: Open) -> None:
    """The page's resampling against soxr's: what speech has is the same, nothing is folded down."""
    page = show().page
    rng = np.random.default_rng(5)
    for rate in (48_000, 44_100, 8_000):
        seconds = np.arange(rate // 2) / rate
        low = sum(np.sin(2 * np.pi * f * seconds + f) for f in (100, 440, 2000, 3000)) / 8
        high = np.sin(2 * np.pi * 9500 * seconds) / 4 if rate > 20_000 else 0 * seconds
        given = (low + high).astype(np.float32)
        cuts = np.sort(rng.integers(0, rate // 2, 9)).tolist()
        made = page.evaluate(
            """async ([given, rate, cuts]) => {
              const { Resampler } = await import("/page/assets/resample.js");
              const resampler = new Resampler(rate, 16000);
              return [0, ...cuts].flatMap((from, i) =>
                [...resampler.push(Float32Array.from(given.slice(from, cuts[i] ?? given.length)))]);
            }""",
            [given.tolist(), rate, cuts],
        )
        expected = soxr.resample(given, rate, 16_000)
        assert 0 <= len(expected) - len(made) < 64
        middle = slice(500, 7500)
        np.testing.assert_allclose(made[middle], expected[middle], atol=1e-3)


def test_words_appear_while_they_are_spoken(show: Open) -> None:
    tab = show()
    page = tab.page
    tab.begin()
    page.wait_for_selector(".sw-tail >> text=/five|zero/")
    page.wait_for_selector(".sw-committed >> text=five")
    assert "eight" not in page.inner_text(".sw-log"), "word by word"
    page.wait_for_selector(".sw-committed >> text=two seven nine eight")
    for button, state in (("Pause", "paused"), ("Stop", "idle")):
        tab.press(button)
        tab.become(state)
    assert " ".join(page.locator(".sw-committed").all_inner_texts()) == TEXT
    blocks = tab.saved("srt").strip().split("\n\n")
    assert " ".join(block.split("\n")[2] for block in blocks) == TEXT
    assert page.locator(".sw-error:visible").count() == 0
