"""The page without a browser: its addresses, its API, who may use it, what it keeps."""

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from slimwhisper.api import SlimWhisper
from slimwhisper.app.page.cache_costs import panel
from slimwhisper.app.page.run import Run
from slimwhisper.app.page.tempdir import PREFIX, page_folder, sweep
from slimwhisper.app.page.transcripts.results import Results
from slimwhisper.app.page.transcripts.views import COLUMNS, outline
from slimwhisper.app.service.jobs import Limits, ModelChoice
from slimwhisper.app.service.service import Service
from slimwhisper.app.service.turns import AHEAD
from slimwhisper.audio.samples import ArraySamples
from tests.support.live import Begin, held_engines, held_readers, start, stop
from tests.support.page_calls import PHONE, call, call_begins, upload
from tests.support.paths import ROOT
from tests.support.spoken import EXPECTED, SAMPLES

TEXT = EXPECTED[PHONE.name]["text"]


def test_one_call_by_http(client: httpx.Client, folder: Path) -> None:
    kind, answer = call(client, upload(client, PHONE))
    text, view = answer
    assert kind == "complete" and text == TEXT
    assert not view["running"] and view["zip"] is None
    file = view["files"][0]
    assert file["state"] == "done" and file["name"] == PHONE.name
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
    unknown = client.get(f"/{file['downloads']['txt'].removesuffix('txt')}exe")
    assert unknown.status_code == 404 and "choose: txt" in unknown.json()["error"]["message"]
    asked = {"Origin": "http://other.example", "Access-Control-Request-Method": "POST"}
    preflight = client.options(f"/{file['edit']}", headers=asked)
    assert preflight.status_code == 400, "other sites may not correct"
    assert "access-control-allow-origin" not in preflight.headers
    broken = call(client, upload(client, SAMPLES / "broken.m4a"))
    pages = [client.get(path).text for path in ("/", "/config", "/gradio_api/info")]
    for told in (*pages, json.dumps(answer), json.dumps(broken)):
        assert str(folder) not in told and str(ROOT) not in told, "paths of the server"


def test_gradios_own_client(begin_page: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    gradio_client = pytest.importorskip("gradio_client")
    # its thread outlives `close`, with a socket that is never closed
    monkeypatch.setattr(gradio_client.Client, "_stream_heartbeat", lambda *_: None)
    live = begin_page()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        client = gradio_client.Client(live.url, verbose=False)
        files = [gradio_client.handle_file(str(SAMPLES / n)) for n in (PHONE.name, "broken.m4a")]
        text, view = client.predict(files, api_name="/transcribe")
        client.close()
    assert text.startswith(f"{PHONE.name}\n{TEXT}")
    assert [f["state"] for f in view["files"]] == ["done", "failed"]
    assert view["files"][1]["message"].startswith("Not audio or video that FFmpeg can read")


def test_the_names_of_the_call(client: httpx.Client) -> None:
    """Clients of the page's API pass its parameters by name."""
    (call,) = client.get("/gradio_api/info").json()["named_endpoints"].items()
    assert call[0] == "/transcribe"
    assert [parameter["parameter_name"] for parameter in call[1]["parameters"]] == [
        *("files", "recording", "language", "task", "words", "prompt"),
        *("model", "cache", "beams", "temperature", "vad"),
        *("diarize", "speakers", "sentences"),
    ]


def test_buttons_use_the_one_route_for_calls(client: httpx.Client) -> None:
    """Gradio has another for what is not queued, and access control refuses it."""
    rows = client.get("/config").json()["dependencies"]
    assert all(row["queue"] for row in rows if row["backend_fn"])
    assert client.post("/gradio_api/run/predict", json={"data": []}).status_code == 404


def test_a_page_without_live_streams(model: SlimWhisper, folder: Path) -> None:
    found = []
    for streams in (0, 1):
        live = start(model, Limits(streams=streams), page=folder, cache="slim")
        found.append("sw-tab-live" in httpx.get(live.url).text)
        key = httpx.post(f"{live.url}/page/live/key", json={})
        assert key.status_code == (200 if streams else 404)
        stop(live)
    assert found == [False, True]


@pytest.mark.parametrize(
    ("settings", "right", "wrong"),
    [
        ({"login": ("ann", "pass")}, ("ann", "pass"), ("bob", "pass")),
        ({"api_key": "secret"}, ("anybody", "secret"), ("anybody", "Secret")),
        ({"login": ("ann", "pass"), "api_key": "k"}, ("ann", "pass"), ("ann", "k")),
    ],
)
def test_login(begin_page: Begin, settings: Any, right: Any, wrong: Any) -> None:
    live = begin_page(**settings)

    def log_in(client: httpx.Client, pair: tuple[str, str]) -> int:
        data = dict(zip(("username", "password"), pair, strict=True))
        return client.post("/login", data=data).status_code

    with httpx.Client(base_url=live.url, timeout=60) as client:
        assert '"auth_required":true' in client.get("/").text.replace(" ", "")
        assert ("key as the password" in client.get("/").text) == ("login" not in settings)
        assert client.get("/config").status_code == 401
        assert client.post("/page/live/key", json={}).status_code == 401
        refused = client.post("/gradio_api/upload", files={"files": ("a.wav", b"")})
        assert refused.status_code == 401
        assert log_in(client, wrong) == 400 and client.get("/config").status_code == 401
        assert log_in(client, right) == 200 and client.get("/config").status_code == 200
        assert call(client, upload(client, PHONE))[0] == "complete"
        assert client.post("/page/live/key", json={}).json()["value"].startswith("ek_")
        assert client.get("/health").status_code == 200
        assert client.get("/v1/models").status_code == 401


def test_the_api_keeps_its_paths_and_errors(begin_page: Begin) -> None:
    live = begin_page(api_key="secret", root_path="/speech")
    key = {"Authorization": "Bearer secret"}
    assert httpx.get(f"{live.url}/v1/models").status_code == 401, "also behind a proxy"
    assert httpx.get(f"{live.url}/metrics").status_code == 401
    assert httpx.get(f"{live.url}/v1/models", headers=key).json()["data"][0]["id"] == "digits"
    for path, status in (("/v1/nothing", 404), ("/v1/audio/transcriptions", 405)):
        found = httpx.get(live.url + path, headers=key)
        assert found.status_code == status
        assert set(found.json()["error"]) == {"message", "type", "param", "code"}
    page = httpx.get(f"{live.url}/").text
    assert f'"root":"{live.url}/speech"' in page.replace(" ", "")


def test_a_shutdown_waits_for_what_runs_and_for_no_open_page(
    begin_page: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, live = held_engines(monkeypatch), begin_page()
    with httpx.Client(base_url=live.url, timeout=120) as client:
        event = call_begins(client, upload(client, PHONE))
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


def test_places_in_the_queue(
    model: SlimWhisper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that wait know how many are before them; leaving early cancels all."""
    go = held_readers(monkeypatch)
    service = Service(lambda _: model, batch_size=2)
    results = Results(tmp_path / "kept", 10**9)
    count = AHEAD + 2

    async def press(early: bool) -> list[Any]:
        run = Run(service, results, [(PHONE, "a.wav")] * count, ModelChoice("digits"), {}, "me")
        places = []
        async for view in run.updates():
            places.append([f["place"] for f in view["files"]])
            if sorted(places[-1])[-3:] == [0, 1, 2]:
                if early:
                    break
                go.set()
        if early:
            run.stop()
            return places
        assert [f["state"] for f in view["files"]] == ["done"] * count
        assert view["zip"] and f"a.wav\n{TEXT}" in run.text
        return places

    asyncio.run(press(early=True))
    deadline = time.monotonic() + 60
    go.set()
    while service.in_flight and time.monotonic() < deadline:
        time.sleep(0.05)
    assert service.in_flight == 0 and service.counts.cancelled == count
    go.clear()
    assert [0, 1, 2] in [sorted(set(p)) for p in asyncio.run(press(early=False))]
    service.close()


def test_folders_go_with_their_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = (
        "import time\nfrom slimwhisper.app.page.tempdir import page_folder\n"
        "with page_folder() as f:\n (f / 'a').write_text('x')\n print(f, flush=True)\n"
        " time.sleep(99)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    left = Path(process.stdout.readline().decode().strip())
    sweep()
    assert left.name.startswith(PREFIX) and left.parent == tmp_path and left.exists()
    process.kill()
    process.wait()
    process.stdout.close()
    before = dict(os.environ)
    with page_folder() as folder:
        assert not left.exists() and folder.stat().st_mode & 0o777 == 0o700
        assert os.environ["GRADIO_TEMP_DIR"].startswith(str(folder))
    assert not folder.exists() and dict(os.environ) == before


def test_an_outline() -> None:
    ramp = np.linspace(-1, 1, 100_000, dtype=np.float32)
    found = np.frombuffer(base64.b64decode(outline(ArraySamples(ramp))), np.int8).reshape(-1, 2)
    assert found.shape == (COLUMNS, 2)
    assert found[0, 0] == -127 and found[-1, 1] == 127
    assert np.all(found[:500, 1] <= 0) and np.all(found[500:, 0] >= 0)
    for few in (np.zeros(0, np.float32), np.ones(3, np.float32)):
        assert len(base64.b64decode(outline(ArraySamples(few)))) == 2 * COLUMNS


@pytest.mark.parametrize(("forms", "bars"), [(("e", "x"), 6), (("kv", "kv"), 3)])
def test_the_chart(model: SlimWhisper, forms: tuple[str, str], bars: int) -> None:
    """Of the caches, beside the baseline unless that is what is loaded."""
    sizes: Any = {"bytes_per_window": 40_500_000, "baseline_bytes_per_window": 319_000_000}
    loaded = SimpleNamespace(device=model.device, forms=forms)
    loaded.__dict__.update({name: lambda size=size: size for name, size in sizes.items()})
    engines: Any = SimpleNamespace(model=loaded, cache_bytes=lambda: 81_000_000)
    html = panel(engines, "<b>")
    for part in ("&lt;b&gt;", "40.5 MB", "81.0 MB", "7.9 times smaller"):
        assert part in html, part
    assert "<b><b>" not in html and html.count('"sw-bar') == bars
    assert ("638 MB" in html) == (bars == 6)
    engines.model = None
    assert "No model is loaded" in panel(engines, "digits")
