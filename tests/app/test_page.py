"""The page, in a browser against a live server."""

import re
from collections.abc import Callable

import pytest

from tests.support.browser import BrowserPage
from tests.support.live import Live, eventually
from tests.support.paths import PHONE
from tests.support.spoken import EXPECTED, SAMPLES

pytestmark = pytest.mark.slow

TEXT = EXPECTED[PHONE.name]["text"]
Open = Callable[..., BrowserPage]
FLAGS = (f"--use-file-for-fake-audio-capture={PHONE}",)


def test_one_file_with_options(show: Open) -> None:
    shown = show()
    page = shown.page
    page.get_by_label("Word times").check()
    page.get_by_label("Prompt").fill("one two three")
    page.click("#sw-more button >> nth=0")
    page.get_by_label("Skip silence").check()
    page.get_by_label("Cache form").click()
    page.get_by_role("option", name="baseline").click()
    card = shown.transcribed(PHONE)
    assert card.locator(".sw-text").inner_text() == TEXT
    assert card.locator(".sw-word").all_text_contents() == TEXT.split()
    card.locator(".sw-word", has_text="four").click()
    shown.playing(4.0)
    segments = card.locator(".sw-segment")
    assert segments.count() == len(EXPECTED[PHONE.name]["segments"])
    page.wait_for_function("document.querySelector('.sw-file audio').readyState >= 1")
    segments.nth(2).click()
    shown.playing(5.0)
    page.wait_for_selector(".sw-segment[aria-current] >> text=two seven nine eight")
    page.evaluate("document.querySelector('.sw-file audio').pause()")
    box = card.locator(".sw-wave").bounding_box()
    card.locator(".sw-wave").click(position={"x": box["width"] / 3, "y": 20})
    page.wait_for_function(
        "Math.abs(document.querySelector('.sw-file audio').currentTime - 3.15) < 1"
    )
    shown.context.grant_permissions(["clipboard-read", "clipboard-write"])
    card.get_by_text("Copy text").click()
    page.wait_for_selector("text=Copied")
    assert page.evaluate("navigator.clipboard.readText()") == TEXT


def test_a_text_beside_a_recording(show: Open) -> None:
    shown = show()
    page = shown.page
    page.click("#sw-script button >> nth=0")
    page.get_by_label("Text of the recording").fill(
        "five five five\nnobody says this\nzero one four"
    )
    card = shown.transcribed(PHONE)
    assert card.locator(".sw-segment").count() == 3
    assert card.locator(".sw-unscripted button").inner_text() == "0:05 two seven nine eight"
    card.locator(".sw-unscripted button").click()
    shown.playing(5.5)


def test_a_recording(show: Open) -> None:
    shown = show(permissions=["microphone"])
    page = shown.page
    page.click("#sw-record .record-button")
    page.wait_for_selector("#sw-record .stop-button:visible")
    page.wait_for_timeout(9_500)  # what is said takes so long
    with page.expect_response(re.compile("/gradio_api/upload(?!_)")):
        page.click("#sw-record .stop-button:visible")
    while not page.locator(".sw-file").count():  # the page takes a moment to take note of it
        page.click("#sw-go")
        page.wait_for_timeout(500)
    shown.ended(1)
    card = page.locator(".sw-file", has_text="recording.wav")
    assert "five five five zero one" in 2 * f"{card.locator('.sw-text').inner_text()} "


def test_what_the_cache_costs_and_that_all_fits_a_phone(show: Open) -> None:
    shown = show(viewport={"width": 390, "height": 844}, has_touch=True)
    page = shown.page
    shown.transcribed(PHONE)
    page.click("#sw-more button >> nth=0")
    page.click("#sw-costs button >> nth=0")
    page.wait_for_selector("#sw-costs td >> text=Windows that fit")
    assert "times smaller than the baseline" in page.inner_text("#sw-costs")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    outside = page.eval_on_selector_all(
        ".sw-file *", "all => all.filter((e) => e.getBoundingClientRect().right > 391).length"
    )
    assert outside == 0


def test_text_appears_while_it_works_and_stop_stops(show: Open, page_server: Live) -> None:
    """Leaving the page does, too; what was heard is there for who stays."""
    shown, service = show(), page_server.service
    page, before = shown.page, service.counts.cancelled
    page.click("#sw-go")
    page.wait_for_selector("text=Add a file")
    page.wait_for_selector("#sw-stop", state="hidden")
    shown.go(SAMPLES / "three-minutes.ogg")
    page.wait_for_selector(".sw-file[data-state=working] .sw-segment")
    assert re.fullmatch(r"\d:\d\d of 2:59", page.inner_text(".sw-state"))
    assert 0 < page.evaluate("document.querySelector('.sw-progress').value") < 1
    assert page.inner_text(".sw-text").startswith("five six zero three")
    assert page.locator("#sw-go:enabled, #sw-examples :enabled").count() == 0, "one run at a time"
    page.click("#sw-stop")
    shown.ended(1)
    assert page.inner_text(".sw-state") == "Stopped"
    assert eventually(lambda: service.in_flight == 0)
    assert service.counts.cancelled == before + 1
    page.wait_for_selector("#sw-stop", state="hidden")
    assert page.locator(".sw-segment").count() > 0, "what was heard stays"
    page.click("#sw-go")
    page.wait_for_selector(".sw-file[data-state=working] .sw-segment")
    with page.expect_event("dialog") as asked:  # Gradio disconnects at once, and then reloads
        assert shown.asks()
    asked.value.dismiss()
    page.wait_for_selector(".sw-file[data-state=failed] .sw-copy:visible")
    assert eventually(lambda: service.in_flight == 0)
    assert service.counts.cancelled == before + 2


def test_a_full_queue_says_so_and_names_are_no_markup(
    show: Open, page_server: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, name = show(), "<img src=x onerror=window.hacked=1>.wav"
    monkeypatch.setattr(type(page_server.service), "in_flight", 10**6)
    shown.transcribed({"name": name, "mimeType": "audio/wav", "buffer": PHONE.read_bytes()})
    monkeypatch.undo()
    error = shown.page.locator(".sw-file .sw-error").first.inner_text()
    assert "requests are waiting; try again in a minute" in error
    assert shown.page.inner_text(".sw-file h3") == name
    assert shown.page.evaluate("window.hacked") is None
    assert shown.page.locator(".sw-player img").count() == 0


def test_by_keyboard_alone(show: Open) -> None:
    shown = show()
    page = shown.page

    def tab_to(selector: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("s => !!document.activeElement.closest(s)", selector):
                return
        raise AssertionError(f"{selector}: no way there")

    page.wait_for_selector(".mic-select")  # the last to be there
    page.on("filechooser", lambda chooser: chooser.set_files(str(PHONE)))
    tab_to("#sw-files button")
    page.keyboard.press("Enter")
    page.wait_for_selector("#sw-files .file")
    tab_to("#sw-go")
    page.keyboard.press("Enter")
    shown.ended(1)
    tab_to(".sw-segment")
    page.keyboard.press("ArrowDown")
    style = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert style == "solid", "the focus can be seen"
    page.keyboard.press("Space")
    shown.playing(2.5)
    page.keyboard.press("Space")
    page.wait_for_function("document.querySelector('.sw-file audio').paused")
    for key in ("F2", "s", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector(".sw-segment:focus >> text=zero one fours")
    page.keyboard.press("ControlOrMeta+z")
    page.wait_for_selector(".sw-segment >> text=/four$/")
    tab_to(".sw-copy")
