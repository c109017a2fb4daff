"""The `serve` command: it begins, answers, and ends as it should."""

import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from slimwhisper.app.command import load_choice
from slimwhisper.app.service.jobs import ModelChoice
from slimwhisper.cli import build_parser, main
from tests.support.live import eventually, free_port
from tests.support.spoken import SAMPLES


def is_ready(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    return False


@pytest.mark.slow
def test_it_serves_until_a_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs when the signal comes is finished first; then nothing is left behind."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    port = free_port()
    url, key = f"http://127.0.0.1:{port}", {"Authorization": "Bearer key"}
    flags = ["--model", "digits", "--port", str(port), "--api-key", "key"]
    command = [sys.executable, "-m", "slimwhisper", "serve", *flags]
    with subprocess.Popen(command) as process, ExitStack() as stack:
        stack.callback(process.kill)
        assert eventually(lambda: is_ready(url), 120)
        target = f"{url}/v1/audio/transcriptions"
        files = {"file": (SAMPLES / "phone-number.wav").read_bytes()}
        found = httpx.post(target, files=files, headers=key, timeout=60)
        assert found.json()["text"].startswith("five five five")
        assert httpx.get(f"{url}/v1/models", headers=key).json()["data"][0]["id"] == "digits"
        assert "key as the password" in httpx.get(url).text, "the page asks who is there"
        assert len(list(tmp_path.glob("slimwhisper-serve-*"))) == 1
        long = {"file": (SAMPLES / "three-minutes.ogg").read_bytes()}
        data = {"stream": "true"}
        with httpx.stream("POST", target, files=long, data=data, headers=key, timeout=60) as stream:
            lines = stream.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]" and "transcript.text.done" in rest[-2]
        assert process.wait(60) == 0
        assert list(tmp_path.iterdir()) == []


def test_strangers_are_warned_of_and_a_model_that_does_not_load_ends_it(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    ports = ["--port", str(free_port()), "--wyoming", str(free_port())]
    assert main(["serve", "--model", "/no/such.pt", "--host", "0.0.0.0", "--no-page", *ports]) == 1
    assert "slimwhisper: /no/such.pt: " in capsys.readouterr().err
    assert "0.0.0.0: anyone who can reach this address can use the server" in caplog.text
    assert "--wyoming: anyone who can reach 0.0.0.0" in caplog.text


def test_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIMWHISPER_API_KEY", "secret")
    a = build_parser().parse_args(["serve", "--auth", "ann:a:b", "--unload-after", "60"])
    assert (a.api_key, a.auth, a.unload_after) == ("secret", ("ann", "a:b"), 60)
    for wrong in (["--auth", "ann"], ["--queue", "0"], ["--timeout", "-1"], ["--max-upload", "x"]):
        with pytest.raises(SystemExit):
            build_parser().parse_args(["serve", *wrong])


def test_a_cache_chosen_on_the_page() -> None:
    flags = ["--model", "digits", "--cross-cache", "kv", "--device", "cpu"]
    a = build_parser().parse_args(["serve", *flags])
    for cache, forms in ((None, ("kv", "x")), ("slim", ("e", "x")), ("baseline", ("kv", "kv"))):
        assert load_choice(a, ModelChoice("digits", cache)).forms == forms


def test_adapters_and_drafts_belong_to_the_servers_own_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr("slimwhisper.api.load_model", lambda **given: asked.append(given))
    flags = ["--model", "tiny", "--adapter", "mine", "--adapter", "me/other", "--draft", "less"]
    a = build_parser().parse_args(["serve", *flags])
    for choice in (ModelChoice("tiny"), ModelChoice("tiny", "slim"), ModelChoice("digits")):
        load_choice(a, choice)
    assert [given["adapter"] for given in asked] == [["mine", "me/other"]] * 2 + [None]
    assert [given["draft"] for given in asked] == ["less", "less", None]
