"""`--report`: what the page says of this run and of earlier ones, and that it is shut off."""

import base64
import hashlib
import json
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from slimwhisper.errors import AudioError
from slimwhisper.jobs.job import Ledger
from slimwhisper.jobs.report import UNKNOWN, JobReport
from slimwhisper.types import Segment, Transcript
from tests.support.fake_model import FakeModel

HOSTILE = '</script><script>alert("x")</script><b>&amp;'


def data(path: Path | str) -> dict[str, Any]:
    """What the page's script reads."""
    page = Path(path).read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(page.split('id="data">')[1].split("</script>")[0])
    found["by_path"] = {f["path"]: f for f in found["files"]}
    return found


def said(text: str, language: str = "en", **changes: Any) -> Transcript:
    segment = Segment(0, 0, 1.0, 3.0, text, [], 0.0, -0.1, 1.0, 0.0)
    return Transcript(text, [replace(segment, **changes), replace(segment, text="")], language)


def opened(path: Path) -> JobReport:
    report = JobReport(str(path))
    report.prepare()
    return report


def test_what_is_reported_of_a_recording(tmp_path: Path) -> None:
    report = opened(tmp_path / "new" / "r.html")
    report.add(Path("a.wav"), 12.5, said(" one two", speaker="Ann", flags=("repeats",)))
    report.add(Path("b.wav"), 7.5, said("今日は 晴れ", "ja"))
    report.add(Path("c.wav"), None, AudioError("c.wav: damaged\nbadly"))
    report.write(["stopped"], {"model": "tiny"}, {"language": None})
    found = data(tmp_path / "new" / "r.html")
    to_check = [[1.0, 3.0, "one two", ["repeats"]]]
    said_of_a = ["a.wav", 12.5, "en", ["Ann"], 2, False, 60, 1, to_check, None, None]
    assert list(found["by_path"]["a.wav"].values()) == said_of_a
    other = found["by_path"]["b.wav"]
    assert (other["words"], other["characters"], other["speed"]) == (5, True, 150)
    assert found["by_path"]["c.wav"]["error"] == "damaged\\nbadly"
    job = found["job"]
    assert (job["done"], job["failed"], job["seconds"], job["words"]) == (2, 1, 20.0, 2)
    assert (job["segments"], job["to_check"], job["notices"]) == (2, 1, ["stopped"])
    assert (job["model"], job["options"]) == ([["model", "tiny"]], [["language", "None"]])
    assert "repeats" in job["reasons"]


def test_nothing_said_is_markup_and_only_the_page_s_own_script_runs(tmp_path: Path) -> None:
    report = opened(tmp_path / "r.html")
    report.add(HOSTILE, 1.0, said(HOSTILE, HOSTILE, speaker=HOSTILE, flags=("repeats",)))
    report.add(HOSTILE, 1.0, AudioError(HOSTILE))
    report.write([HOSTILE], {"model": HOSTILE}, {"initial_prompt": HOSTILE})
    page = (tmp_path / "r.html").read_text()
    assert HOSTILE[:9] in page and page.count("<script") == page.count("</script") == 2
    assert data(tmp_path / "r.html")["files"][0]["check"][0][2] == HOSTILE
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None and policy[1].startswith("default-src 'none'; ")
    for tag in ("style", "script"):
        inline = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy[1]
    assert not re.search(r"\son\w+=|https?:|@import|url\(", page)


@pytest.mark.parametrize("format", ["json", "txt"])
def test_a_job_that_resumes(run: Any, fake_model: FakeModel, format: str) -> None:
    arguments = ("in", "--report", "r.html", "-f", format)
    first = run("gone.wav", *arguments)
    assert first.status == 1 and "report: r.html\n" in first.err
    before = data("r.html")
    assert len(before["files"]) == 5
    assert before["by_path"]["in/c/x.wav"]["error"] == "damaged; copy the file again"
    assert before["by_path"][""]["error"] == "gone.wav: no such file; check the path"
    assert (before["job"]["done"], before["job"]["failed"]) == (3, 2)
    Path("in/d.wav").write_text("four")
    fake_model.taken.clear()
    run(*arguments)
    assert [p.name for p in fake_model.taken] == ["d.wav"]
    found = data("r.html")
    assert len(found["files"]) == 5
    assert found["by_path"]["in/c/x.wav"]["error"].endswith("damaged; copy the file again")
    for name in ("a.wav", "b/a.mp3"):
        now, then = (d["by_path"][f"in/{name}"] for d in (found, before))
        if format == "json":
            assert now == then
        else:
            assert now["seconds"] == then["seconds"]
            assert (now["words"], now["note"]) == (None, UNKNOWN)
    assert found["by_path"]["in/d.wav"]["words"] == 1
    assert "journal: out" in run(*arguments).err
    assert dict(data("r.html")["job"]["model"])["model"].startswith("turbo, not loaded")
    with patch("slimwhisper.jobs.report.atomic_write", side_effect=OSError(28, "No space")):
        full = run(*arguments)
    assert "r.html: the report cannot" in full.err and "report: r.html\n" not in full.err


def test_an_interrupted_job_has_a_report(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = Ledger.ended

    def stop(ledger: Ledger, *arguments: Any) -> None:
        ended(ledger, *arguments)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Ledger, "ended", stop)
    assert run("in", "--report", "r.html").status == 143
    found = data("r.html")
    assert len(found["files"]) == 1
    assert "stopped early" in found["job"]["notices"][0]


def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    run: Any, fake_model: FakeModel, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.html").mkdir()
    for path, remedy, status in (
        ("in/a.wav", ".html", 2),
        ("s3://bucket/r.html", ".html", 2),
        ("file/r.html", "cannot be written (File exists)", 1),
        ("folder.html", "cannot be written (it is a folder)", 1),
    ):
        done = run("in", "--report", path)
        assert done.status == status and path in done.err and remedy in done.err
    assert fake_model.taken == [] and not Path("out").exists()


@pytest.mark.slow
def test_ten_thousand_files_in_a_browser(tmp_path: Path) -> None:
    from tests.support.browser import chromium

    path = tmp_path / "r.html"
    report = opened(path)
    for i in range(10_000):
        flags = ("repeats",) if i % 100 == 7 else ()
        report.add(f"talk-{i}.mp3", 60.0 + i, said(" hay", flags=flags))
    report.add("bad.mp3", None, AudioError(HOSTILE))
    report.write([], {"model": "tiny"}, {})
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
        strange: list[str] = []
        page.on("request", lambda r: None if r.url.startswith("file:") else strange.append(r.url))
        page.on("console", lambda m: strange.append(m.text))
        page.on("pageerror", lambda e: strange.append(str(e)))
        page.goto(path.as_uri())
        rows = page.locator("#rows tr")
        assert rows.count() == 200
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.click("#more")
        assert rows.count() == 1200
        page.set_viewport_size({"width": 1200, "height": 800})
        for first in ("talk-0.mp3", "talk-9999.mp3"):
            page.click("th:nth-child(2) button")
            assert rows.first.locator("td").first.inner_text() == first
        page.click("#kinds button:nth-child(2)")
        assert rows.count() == 100
        page.click("#rows summary >> nth=0")
        assert page.locator("#rows li small").first.inner_text() == "the text repeats itself"
        page.click("#kinds button:nth-child(3)")
        assert HOSTILE in rows.first.inner_text()
        page.click("#kinds button:nth-child(1)")
        page.fill("#find", "TALK-4321.")
        assert rows.count() == 1
    assert strange == []
