"""Correcting on the page, in a browser, at the width of a desktop and of a phone."""

import re
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from slimwhisper.app.page.handlers import RunPart
from slimwhisper.app.service.jobs import Event
from slimwhisper.outputs import FORMATS
from slimwhisper.service.source import Finished
from slimwhisper.types import Segment, Transcript, Word
from tests.support.browser import BrowserPage
from tests.support.live import Live
from tests.support.spoken import SAMPLES

pytestmark = pytest.mark.slow

Open = Callable[..., BrowserPage]
DOOR, FLIGHT = SAMPLES / "door-code.mp3", SAMPLES / "flight.m4a"
WIDE, PHONE = {"width": 1100, "height": 900}, {"width": 390, "height": 844}
SENTENCES = (
    ("SPEAKER_00", "Good morning Mrs Smiht.", ()),
    ("SPEAKER_00", "This is the gate.", ("improbable",)),
    ("SPEAKER_01", "Is Mrs Smiht on board?", ()),
    ("SPEAKER_00", "No. smiht is late.", ("repeats", "too_fast")),
)


def dressed() -> Transcript:
    """What two people say, instead of digits: half a second for each word."""
    segments = []
    for i, (speaker, text, flags) in enumerate(SENTENCES):
        words = [
            Word(f" {word}", i + 0.2 * n, i + 0.2 * n + 0.2, 0.95 - 0.25 * n, speaker)
            for n, word in enumerate(text.split())
        ]
        given = (1.0 * i, words[-1].end, f" {text}", [1], 0.0, -0.1, 1.0, 0.0)
        segments.append(Segment(i, 0, *given, words, speaker, flags))
    return Transcript("".join(s.text for s in segments), segments, "en")


@pytest.fixture(autouse=True)
def all_are_dressed(monkeypatch: pytest.MonkeyPatch) -> None:
    update = RunPart.update

    def dress(part: RunPart, event: Event) -> None:
        update(part, Finished(None, dressed()) if isinstance(event, Finished) else event)

    monkeypatch.setattr(RunPart, "update", dress)


@pytest.fixture
def shown(show: Open, request: pytest.FixtureRequest) -> Iterator[BrowserPage]:
    """Two transcripts, shown; in the end, nothing stands out."""
    size = PHONE if "speakers" in request.node.name else WIDE
    opened = show(viewport=size)
    opened.transcribed(DOOR, FLIGHT)
    yield opened
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= size["width"]


def downloads(shown: BrowserPage, *formats: str) -> dict[str, str]:
    """The first file's downloads: one by a click, which waits for corrections, others by address.

    Chromium allows a page only a few downloads in a row.
    """
    first = shown.page.locator(".sw-file").first
    links = {format: first.get_by_text(format, exact=True) for format in formats}
    links[formats[0]].scroll_into_view_if_needed()
    # rows that come into view get their height, which moves the link; within a click, it is lost
    shown.page.evaluate("new Promise((then) => requestAnimationFrame(() => setTimeout(then, 100)))")
    texts = {formats[0]: shown.downloaded(links[formats[0]]).read_text()}
    for format in formats[1:]:
        answer = shown.context.request.get(links[format].evaluate("link => link.href"))
        assert answer.ok and "attachment" in answer.headers["content-disposition"]
        texts[format] = answer.body().decode()
    return texts


def row(shown: BrowserPage, index: int, file: int = 0) -> Any:
    return shown.page.locator(".sw-file").nth(file).locator(".sw-row").nth(index)


def test_a_correction_is_played_undone_and_downloaded(shown: BrowserPage) -> None:
    page = shown.page
    row(shown, 2).get_by_text("board").click()
    shown.playing(2.75)
    before = row(shown, 0).bounding_box()["height"]
    row(shown, 0).get_by_text("Smiht").dblclick()
    field = row(shown, 0).get_by_role("textbox")
    page.wait_for_function("document.querySelector('.sw-file audio').paused")
    page.wait_for_function("getSelection().toString() === 'Smiht.'")
    assert row(shown, 0).bounding_box()["height"] == pytest.approx(before, abs=1), "nothing moves"
    page.keyboard.type("Smythe.")
    page.keyboard.press("Escape")
    assert row(shown, 0).locator(".sw-words").text_content() == SENTENCES[0][1]
    assert not shown.asks()
    row(shown, 0).locator(".sw-segment").dblclick(position={"x": 20, "y": 15})
    field.fill("Good morning Mrs Jane Smythe.")
    files = downloads(shown, *FORMATS)  # leaving the field saves; downloads wait for it
    for format, text in files.items():
        plain = re.sub(r" ?<[\d:.]+>", " ", text)  # lrc has a time before each word
        said = "Jane Smythe." in re.sub(r" +", " ", plain) and "Smiht." not in text
        assert said or format == "rttm", text
    assert "Jane Smythe" in page.locator(".sw-text").first.inner_text()
    with zipfile.ZipFile(shown.downloaded(page.get_by_text("Download all 2"))) as archive:
        assert "Smythe" in archive.read("door-code.srt").decode()
    assert not shown.asks()
    page.get_by_role("button", name="Undo").click()
    page.wait_for_selector(".sw-row >> text=Mrs Smiht. >> nth=0")
    assert "Smythe" not in downloads(shown, "txt")["txt"]
    page.get_by_role("button", name="Redo").click()
    page.wait_for_selector(".sw-row >> text=Smythe")
    assert shown.asks(), "there is no file of it since"
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.get_by_role("button", name="Transcribe").click()
    assert page.get_by_text("Smythe").count() > 1, "another run would lose it: the user said no"
    page.get_by_role("tab", name="Live").click()
    page.keyboard.press("ControlOrMeta+z")
    page.get_by_role("tab", name="Files").click()
    assert page.get_by_role("button", name="Undo").is_enabled(), "as it was"


def test_find_and_replace_in_all_files(shown: BrowserPage) -> None:
    page = shown.page
    page.get_by_role("button", name="Find and replace").click()
    page.get_by_label("Find", exact=True).fill("smiht")
    said = page.locator(".sw-search output")
    assert said.text_content() == "1 of 6 in 2 files"
    assert page.evaluate("[...CSS.highlights.values()].map((h) => h.size)") == [5, 1]
    page.get_by_label("Match case").check()
    assert said.text_content() == "1 of 2 in 2 files"
    page.get_by_label("Match case").uncheck()
    page.get_by_label("Replace with").fill("$& Smith")
    page.get_by_role("button", name="Next", exact=True).click()
    page.get_by_role("button", name="Replace", exact=True).click()
    page.wait_for_selector(".sw-row >> text=Is Mrs $& Smith on board?")
    assert said.text_content() == "2 of 5 in 2 files"
    row(shown, 3).get_by_text("No.").dblclick()
    page.keyboard.type("Nope.")
    page.get_by_role("button", name="Replace", exact=True).click()  # leaving the field moves it
    page.wait_for_selector(".sw-announced >> text=0 replaced", state="attached")
    assert said.text_content() == "2 of 5 in 2 files"
    page.get_by_label("Replace with").fill("Smith")
    row(shown, 0, 1).get_by_text("Smiht").dblclick()
    page.keyboard.type("Smiht-Smiht.")
    page.get_by_role("button", name="Replace all").click()
    page.wait_for_selector(".sw-search output >> text=/^Not found$/")
    assert row(shown, 0, 1).locator(".sw-words").text_content() == "Good morning Mrs Smith-Smith."
    assert row(shown, 3, 1).locator(".sw-words").text_content() == "No. Smith is late."
    assert "Smiht" not in "".join(downloads(shown, *FORMATS).values())
    page.get_by_role("button", name="Undo").click()
    page.wait_for_selector(".sw-search output >> text=of 6 in 2 files")
    row(shown, 1).get_by_text("gate").dblclick()
    page.keyboard.type("bridge.")
    page.get_by_role("button", name="Undo").click()  # leaving the field saves first
    row(shown, 1).get_by_text("gate").wait_for()
    page.keyboard.press("Escape")


def test_speakers_flags_and_unsure_words(shown: BrowserPage) -> None:
    page = shown.page
    first = page.locator(".sw-file").first
    first.locator(".sw-speaker").nth(2).click()
    page.keyboard.type("Ann")
    page.keyboard.press("Enter")
    page.wait_for_selector(".sw-speaker >> text=Ann")
    assert first.locator(".sw-speaker").all_text_contents() == ["Ann", "SPEAKER_01", "Ann"]
    assert '"Ann"' in downloads(shown, "json")["json"]
    check = page.locator(".sw-tool", has_text=re.compile("check"))
    assert check.text_content() == "Next to check (4)"
    check.click()
    assert page.evaluate("document.activeElement.innerText").endswith("This is the gate.")
    assert "the model was unsure" in row(shown, 1).locator(".sw-flags").text_content()
    check.click()
    assert page.evaluate("document.activeElement.innerText").endswith("smiht is late.")
    row(shown, 3).get_by_role("button", name="Mark as correct").click()
    page.wait_for_selector(".sw-tool >> text=Next to check (3)")
    assert "repeats" not in downloads(shown, "json")["json"]
    shown.assert_readable(
        *(".sw-flags span", ".sw-speaker", ".sw-approve", ".sw-edit", ".sw-tool", ".sw-text"),
        *(".sw-segment time", ".sw-segment", ".sw-state", ".sw-note", "#sw-title p", "#sw-go"),
    )
    page.get_by_role("button", name="Unsure words").click()
    unsure = row(shown, 0).locator(".sw-unsure-3")
    assert unsure.get_attribute("title") == "Probability 20 %"
    line = "getComputedStyle(document.querySelector('.sw-unsure-2')).textDecorationLine"
    assert page.evaluate(line) == "underline", "not by colour alone"


def test_two_people_correct_the_same_text(show: Open, page_server: Live) -> None:
    """The second is told what is there now, keeps what was typed, and may save it all the same."""
    shown = show()
    shown.transcribed(DOOR)
    page = shown.page
    link = page.get_by_text("txt", exact=True).get_attribute("href")
    token = link.rpartition("/")[2].removesuffix(".txt")
    row(shown, 1).get_by_text("gate").dblclick()
    change = {"texts": [[1, SENTENCES[1][1], "This is the door."]]}
    assert httpx.post(f"{page_server.url}/page/edit/{token}", json=change).status_code == 200
    page.keyboard.type("bridge.")
    page.keyboard.press("Enter")
    page.wait_for_selector(".sw-row .sw-error >> text=changed elsewhere")
    field = row(shown, 1).get_by_role("textbox")
    assert field.input_value() == "This is the bridge."
    assert "door" in page.locator(".sw-text").inner_text()
    page.keyboard.press("Enter")
    page.wait_for_selector(".sw-words >> text=This is the bridge.")
    page.context.set_offline(True)
    row(shown, 1).get_by_text("bridge").dblclick()
    page.keyboard.type("tunnel.")
    page.keyboard.press("Enter")
    page.wait_for_selector(".sw-row .sw-error >> text=cannot be reached")
    page.context.set_offline(False)
    page.keyboard.press("Enter")
    page.wait_for_selector(".sw-words >> text=This is the tunnel.")
    shown.close()
    assert "tunnel" in httpx.get(f"{page_server.url}{link}").text, "when the page is closed, too"


def test_an_example_with_one_click(show: Open) -> None:
    shown = show()
    shown.page.get_by_role("button", name="Flight").click()
    shown.ended(1)
    assert shown.page.inner_text(".sw-file h3") == "flight.m4a"
    for index in range(len(SENTENCES)):
        row(shown, index).locator(".sw-segment").press("Enter")
        row(shown, index).get_by_role("textbox").fill("")
        shown.page.keyboard.press("Enter")
        row(shown, index).get_by_text("Removed").wait_for()
    assert shown.page.locator(".sw-text:visible, .sw-copy:visible").count() == 0
