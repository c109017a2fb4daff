"""The page, in a browser against a live server."""

import io
import re
import time
import zipfile
from collections.abc import Callable

import pytest

from slimwhisper.outputs.formats import FORMATS
from tests.support.browser import Shown
from tests.support.live import Live
from tests.support.spoken import EXPECTED, SAMPLES

pytestmark = pytest.mark.slow

PHONE = SAMPLES / "phone-number.wav"
TEXT = EXPECTED[PHONE.name]["text"]


Open = Callable[..., Shown]
FLAGS = (f"--use-file-for-fake-audio-capture={PHONE}",)


def idle(live: Live) -> bool:
    """Wait until the service has no jobs."""
    deadline = time.monotonic() + 60
    while any(live.service.states().values()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(live.service.states().values())


def playing(shown: Shown, least: float) -> None:
    """Wait until the first file is heard, from some second on."""
    shown.page.wait_for_function(
        "least => { const a = document.querySelector('.sw-file audio');"
        " return !a.paused && a.currentTime >= least; }",
        arg=least,
    )


def test_one_file_with_options(show: Open) -> None:
    shown = show()
    page = shown.page
    page.get_by_label("Word times").check()
    page.get_by_label("Prompt").fill("one two three")
    page.click("#sw-more button >> nth=0")
    page.get_by_label("Skip silence").check()
    page.get_by_label("Cache form").click()
    page.get_by_role("option", name="baseline").click()
    shown.go(PHONE)
    shown.ended(1)
    card = shown.card(PHONE.name)
    assert card.locator(".sw-text").inner_text() == TEXT
    assert card.locator(".sw-word").all_text_contents() == TEXT.split()
    card.locator(".sw-word", has_text="four").click()
    playing(shown, 4.0)
    segments = card.locator(".sw-segment")
    assert segments.count() == len(EXPECTED[PHONE.name]["segments"])
    assert segments.nth(1).text_content().endswith("zero one four")
    page.wait_for_function("document.querySelector('.sw-file audio').readyState >= 1")
    segments.nth(2).click()
    playing(shown, 5.0)
    page.wait_for_selector(".sw-segment[aria-current] >> text=two seven nine eight")
    page.evaluate("document.querySelector('.sw-file audio').pause()")
    box = card.locator(".sw-wave").bounding_box()
    card.locator(".sw-wave").click(position={"x": box["width"] / 3, "y": 20})
    page.wait_for_function(
        "Math.abs(document.querySelector('.sw-file audio').currentTime - 3.15) < 1"
    )
    with page.expect_download() as download:
        card.get_by_text("srt", exact=True).click()
    assert download.value.suggested_filename == "phone-number.srt"
    blocks = download.value.path().read_text().strip().split("\n\n")
    assert len(blocks) == 3
    for number, block in enumerate(blocks, start=1):
        first, times, text = block.split("\n")
        assert int(first) == number and text in TEXT
        assert re.fullmatch(r"00:00:\d\d,\d{3} --> 00:00:\d\d,\d{3}", times)
    shown.context.grant_permissions(["clipboard-read", "clipboard-write"])
    card.get_by_text("Copy text").click()
    page.wait_for_selector("text=Copied")
    assert page.evaluate("navigator.clipboard.readText()") == TEXT


def test_several_files_one_of_them_bad(show: Open) -> None:
    shown = show()
    shown.go(PHONE, SAMPLES / "broken.m4a", SAMPLES / "flight.m4a")
    shown.ended(3)
    broken = shown.card("broken.m4a")
    assert broken.get_attribute("data-state") == "failed"
    assert broken.locator(".sw-error").inner_text().startswith("Not audio or video that")
    assert shown.card(PHONE.name).locator(".sw-text").inner_text() == TEXT
    with shown.page.expect_download() as download:
        shown.page.click("text=Download all 2 transcripts")
    with zipfile.ZipFile(io.BytesIO(download.value.path().read_bytes())) as archive:
        names = set(archive.namelist())
        assert archive.read("phone-number.txt").decode().split() == TEXT.split()
    formats = [name for name, row in FORMATS.items() if not row.speakers]
    assert names == {f"{stem}.{name}" for stem in ("phone-number", "flight") for name in formats}


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
    card = shown.card("recording.wav")
    assert "five five five zero one" in 2 * f"{card.locator('.sw-text').inner_text()} "


def test_what_the_cache_costs_and_that_all_fits_a_phone(show: Open, page_server: Live) -> None:
    shown = show(viewport={"width": 390, "height": 844}, has_touch=True)
    page = shown.page
    shown.go(PHONE)
    shown.ended(1)
    page.click("#sw-more button >> nth=0")
    page.click("#sw-costs button >> nth=0")
    page.wait_for_selector(".sw-charts figure >> nth=2")
    said = page.inner_text("#sw-chart")
    assert "slim" in said and "baseline" in said and "times smaller" in said
    assert page_server.service.engines.cache_bytes() > 0
    widths = page.eval_on_selector_all(
        ".sw-charts i", "bars => bars.map((bar) => bar.getBoundingClientRect().width)"
    )
    assert widths[0] < widths[1] / 3 and widths[4] > 3 * widths[5]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    outside = page.eval_on_selector_all(
        ".sw-file *", "all => all.filter((e) => e.getBoundingClientRect().right > 391).length"
    )
    assert outside == 0


def test_text_appears_while_it_works_and_stop_stops(show: Open, page_server: Live) -> None:
    shown = show()
    page = shown.page
    before = page_server.service.counts.cancelled
    shown.go(SAMPLES / "three-minutes.ogg")
    page.wait_for_selector(".sw-file[data-state=working] .sw-segment")
    assert re.fullmatch(r"\d:\d\d of 2:59", page.inner_text(".sw-state"))
    assert 0 < page.evaluate("document.querySelector('.sw-progress').value") < 1
    assert page.inner_text(".sw-text").startswith("five six zero three")
    page.click("#sw-stop")
    shown.ended(1)
    assert page.inner_text(".sw-state") == "Stopped"
    assert idle(page_server) and page_server.service.counts.cancelled == before + 1
    page.wait_for_selector("#sw-stop", state="hidden")
    assert page.locator(".sw-segment").count() > 0, "what was heard stays"
    page.click("#sw-go")
    page.wait_for_selector(".sw-file[data-state=working] .sw-segment")
    page.click("#sw-stop")
    shown.ended(1)


def test_closing_the_page_frees_its_slots(show: Open, page_server: Live) -> None:
    shown = show()
    before = page_server.service.counts.cancelled
    shown.go(SAMPLES / "three-minutes.ogg", SAMPLES / "countdown.flac")
    shown.page.wait_for_selector(".sw-file[data-state=working] .sw-segment")
    shown.close()
    assert idle(page_server)
    assert page_server.service.counts.cancelled > before


def test_a_full_queue_says_so(
    show: Open, page_server: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = show()
    monkeypatch.setattr(type(page_server.service), "in_flight", 10**6)
    shown.add(PHONE)
    shown.page.click("#sw-go")
    shown.ended(1)
    monkeypatch.undo()
    error = shown.card(PHONE.name).locator(".sw-error").first
    assert "requests are waiting; try again in a minute" in error.inner_text()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_can_be_read(show: Open, theme: str) -> None:
    shown = show(query=f"/?__theme={theme}")
    shown.go(PHONE)
    shown.ended(1)
    for text in (".sw-text", ".sw-segment time", ".sw-segment", ".sw-state", ".sw-note"):
        assert shown.contrast(text) > 4.5, text
    assert shown.contrast("#sw-title p") > 4.5 and shown.contrast("#sw-go") > 4.5
    bright = shown.page.evaluate(
        "getComputedStyle(document.querySelector('.sw-file')).backgroundColor.match(/\\d+/)[0]"
    )
    assert (int(bright) > 128) == (theme == "light")


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
    playing(shown, 2.5)
    page.keyboard.press("Space")
    page.wait_for_function("document.querySelector('.sw-file audio').paused")
    page.keyboard.press("F2")
    page.keyboard.type("s")
    page.keyboard.press("Enter")
    page.wait_for_selector(".sw-segment:focus >> text=zero one fours")
    page.keyboard.press("ControlOrMeta+z")
    page.wait_for_selector(".sw-segment >> text=/four$/")


def test_names_are_no_markup(show: Open) -> None:
    shown = show()
    name = "<img src=x onerror=window.hacked=1>.wav"
    shown.go({"name": name, "mimeType": "audio/wav", "buffer": PHONE.read_bytes()})
    shown.ended(1)
    assert shown.page.inner_text(".sw-file h3") == name
    assert shown.page.evaluate("window.hacked") is None
    assert shown.page.locator(".sw-player img").count() == 0
