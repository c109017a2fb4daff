"""The page without a browser: its addresses, its API, who may use it, what it keeps."""

import asyncio
import base64
import json
import os
import signal
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from slimwhisper.api import SlimWhisper
from slimwhisper.app.page.files import COLUMNS, PREFIX, PageResults, outline, page_folder
from slimwhisper.app.page.handlers import Run, RunOrder
from slimwhisper.app.page.page import cost_table
from slimwhisper.app.service.jobs import AHEAD, Limits, ModelChoice
from slimwhisper.audio.samples import ArraySamples
from slimwhisper.audio_formats.names import AUDIO_SUFFIXES
from tests.support.live import Begin, eventually, held_engines, held_readers
from tests.support.page_calls import DEFAULTS, call, post_call, upload
from tests.support.paths import BROKEN, PHONE, ROOT
from tests.support.service_jobs import Make
from tests.support.spoken import EXPECTED

TEXT = EXPECTED[PHONE.name]["text"]


def test_one_call_by_http(client: httpx.Client, folder: Path) -> None:
    kind, answer = call(client, upload(client, PHONE), language="de")
    text, view = answer
    assert kind == "complete" and text == TEXT
    assert not view["running"] and view["zip"] is None
    file = view["files"][0]
    assert file["state"] == "done" and file["name"] == PHONE.name
    assert file["warnings"] == ["Digits is English-only: language 'en' is used, not 'de'"]
    assert [s[2] for s in file["segments"]] == [s["text"] for s in EXPECTED[PHONE.name]["segments"]]
    peaks = np.frombuffer(base64.b64decode(file["peaks"]), np.int8)
    assert len(peaks) == 2 * COLUMNS and peaks.min() < -20 and peaks.max() > 20
    for name, path in file["downloads"].items():
        found = client.get(f"/{path}")
        assert found.status_code == 200 and name in found.headers["content-disposition"]
    sound = client.get(f"/{file['audio']}", headers={"Range": "bytes=0-3"})
    assert sound.status_code == 206 and sound.content == b"RIFF"
    assert sound.headers["content-type"].startswith("audio/")
    assert sound.headers["x-content-type-options"] == "nosniff"
    for wrong in ("audio/x", "result/x.srt", "results/x.zip", f"result/{'x' * 32}.exe"):
        assert client.get(f"/page/{wrong}").status_code == 404
    unknown = file["downloads"]["txt"].removesuffix("txt") + "exe"
    for path, status in ((unknown, 404), ("v1/nothing", 404), ("inference", 405)):
        found = client.get(f"/{path}")
        assert found.status_code == status and "message" in found.json()["error"], path
    broken = call(client, upload(client, BROKEN))
    pages = [client.get(path).text for path in ("/", "/config", "/gradio_api/info")]
    for told in (*pages, json.dumps(answer), json.dumps(broken)):
        assert str(folder) not in told and str(ROOT) not in told, "paths of the server"


def test_a_text_beside_a_recording(client: httpx.Client) -> None:
    """Lines keep their text and get times; what is missing on either side is marked."""
    file = upload(client, PHONE)
    lines = ["Five five <b>five</b>!", "nobody says this line", "two seven nine eight"]
    kind, (text, view) = call(client, file, script="\n".join(lines))
    assert kind == "complete" and text == "\n".join(lines)
    shown = view["files"][0]
    first, missing, last = shown["segments"]
    assert [s[2] for s in shown["segments"]] == lines and first[3] and last[3]
    assert 0 < first[0] < first[1] < last[0] < last[1] <= shown["seconds"]
    assert missing[0] == missing[1] and missing[5] == ["not_in_audio"]
    assert [text for _, _, text in shown["unscripted"]] == ["zero one four"]
    subtitles = client.get(f"/{shown['downloads']['srt']}").text
    assert lines[0] in subtitles and lines[1] not in subtitles
    message = "To align a text, "
    assert message in call(client, file, script="one", vad=True)[1]["error"]
    assert message in call(client, file, script="one", channels="split")[1]["error"]
    assert message in call(client, file, file, script="one")[1]["error"]
    assert "text is empty" in call(client, file, script=" \n ")[1]["error"]


def test_calls_that_the_page_tells_of(client: httpx.Client) -> None:
    """One for programs, which pass its parameters by name. Buttons use the same route: Gradio has
    another for what is not queued, and access control refuses it.
    """
    ((name, row),) = client.get("/gradio_api/info").json()["named_endpoints"].items()
    assert name == "/transcribe"
    assert [each["parameter_name"] for each in row["parameters"]] == list(DEFAULTS)
    config = client.get("/config").json()
    assert all(row["queue"] for row in config["dependencies"] if row["backend_fn"])
    (files,) = (c for c in config["components"] if c["props"].get("elem_id") == "sw-files")
    assert AUDIO_SUFFIXES <= set(files["props"]["file_types"])


def test_a_page_without_live_streams(client: httpx.Client, begin: Begin, folder: Path) -> None:
    live = begin(page=folder, limits=Limits(streams=0))
    with httpx.Client(base_url=live.url) as other:
        for one, status in ((client, 200), (other, 404)):
            assert ("sw-tab-live" in one.get("/").text) == (status == 200)
            assert one.post("/page/live/key", json={}).status_code == status


def test_a_shutdown_waits_for_what_runs_and_for_no_open_page(
    begin: Begin, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, live = held_engines(monkeypatch), begin(page=folder, cache="slim")
    with httpx.Client(base_url=live.url, timeout=120) as client:
        event = post_call(client, upload(client, PHONE)).json()["event_id"]
        with (
            client.stream("GET", "/gradio_api/heartbeat/page") as alive,
            client.stream("GET", f"/gradio_api/call/transcribe/{event}") as told,
        ):
            lines = told.iter_lines()
            next(lines)
            next(alive.iter_lines())
            live.server.handle_exit(signal.SIGTERM, None)
            go.set()
            text = "\n".join(lines)
    _, _, last = text.rpartition("event: complete\ndata: ")
    assert json.loads(last.partition("\n")[0])[1]["files"][0]["state"] == "done"
    live.thread.join(30)
    assert not live.thread.is_alive()


def test_places_in_the_queue(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that wait know how many are before them; leaving early cancels all."""
    go, service, count = held_readers(monkeypatch), make(batch_size=2), AHEAD + 2
    results = PageResults(tmp_path / "kept", 10**9)

    async def press(early: bool) -> list[str]:
        """The states of the files in the end."""
        order = RunOrder([(PHONE, "a.wav")] * count, ModelChoice("digits"), {})
        run = Run(service, results, order, "me")
        async for view in run.updates():
            if sorted(f["position"] for f in view["files"])[-3:] == [0, 1, 2]:
                if early:
                    break
                go.set()
        run.stop()
        return [f["state"] for f in run.view()["files"]]

    assert asyncio.run(press(early=True)) == ["stopped"] * count
    go.set()
    assert eventually(lambda: service.in_flight == 0) and service.counts.cancelled == count
    go.clear()
    assert asyncio.run(press(early=False)) == ["done"] * count


def test_folders_go_with_their_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, before = tmp_path / f"{PREFIX}of-a-killed-one", dict(os.environ)
    (left / "files").mkdir(parents=True)
    (left / "lock").touch()
    with page_folder() as one, page_folder() as other:
        assert sorted(tmp_path.iterdir()) == sorted([one, other]), "what is in use stays"
        assert other.stat().st_mode & 0o777 == 0o700
        assert os.environ["GRADIO_TEMP_DIR"].startswith(str(other))
    assert list(tmp_path.iterdir()) == [] and dict(os.environ) == before


def test_an_outline() -> None:
    ramp = np.linspace(-1, 1, 100_000, dtype=np.float32)
    found = np.frombuffer(base64.b64decode(outline(ArraySamples(ramp))), np.int8).reshape(-1, 2)
    assert found.shape == (COLUMNS, 2)
    assert found[0, 0] == -127 and found[-1, 1] == 127
    assert np.all(found[:500, 1] <= 0) and np.all(found[500:, 0] >= 0)
    for few in (np.zeros(0, np.float32), np.ones(3, np.float32)):
        assert len(base64.b64decode(outline(ArraySamples(few)))) == 2 * COLUMNS


def test_what_the_cache_costs(model: SlimWhisper) -> None:
    sizes: Any = {"bytes_per_window": 40_500_000, "baseline_bytes_per_window": 319_000_000}
    loaded = SimpleNamespace(device=model.device, forms=("e", "x"))
    loaded.__dict__.update({name: lambda size=size: size for name, size in sizes.items()})
    engines: Any = SimpleNamespace(
        model=loaded, loaded=ModelChoice("/a/turbo"), cache_bytes=lambda: 81_000_000
    )
    table = cost_table(engines)
    for part in ("`turbo`: 7.9 times", "| 40.5 MB | 319 MB |", "| 81.0 MB | 638 MB |", "| slim |"):
        assert part in table, table
    engines.model = None
    assert "No model is loaded" in cost_table(engines)
