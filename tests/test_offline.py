"""Without a network: installed from a folder of wheels, started, asked. Nothing looks for another
machine, so nothing waits for one.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT, SAMPLES

ALONE = ["unshare", "--map-root-user", "--net"]  # a network namespace of its own
LISTEN_HERE = """
import fcntl, socket, struct
UP = struct.pack("16sh", b"lo", 0x41) + bytes(14)  # SIOCSIFFLAGS: the loopback is up
fcntl.ioctl(socket.socket(), 0x8914, UP)
"""
# of every Python that runs: writes down each name and address that is not this machine's
WATCH = """
import sys
def watch(event, arguments):
    if event in ("socket.getaddrinfo", "socket.connect"):
        host = arguments[0] if event == "socket.getaddrinfo" else arguments[1][0]
        if isinstance(host, str) and host not in ("127.0.0.1", "::1", "localhost", ""):
            open("sought.txt", "a").write(f"{host}\\n")
sys.addaudithook(watch)
"""
JOB = """
import subprocess, sys, time, httpx, slimwhisper
assert "/site/" in slimwhisper.__file__
sample = sys.argv[1]
cli = [sys.executable, "-m", "slimwhisper"]
subprocess.run([*cli, "transcribe", sample, "--model", "digits", "-o", "out"], check=True)
server = subprocess.Popen([*cli, "serve", "--model", "digits", "--port", "7861"])
try:
    url = "http://127.0.0.1:7861"
    for _ in range(1200):
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                break
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    answer = httpx.post(f"{url}/v1/audio/transcriptions", files={"file": open(sample, "rb")})
    print(answer.json()["text"])
    assert httpx.get(url).status_code == 200  # the page
finally:
    server.terminate()
    assert server.wait(60) == 0
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("unshare") is None
        or subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode != 0,
        reason="needs unshare, and network namespaces for users",
    ),
]


def test_install_start_and_answer(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w"]
    quick = {**os.environ, "CFLAGS": "-O0"}
    subprocess.run([*build, wheels, ROOT], check=True, capture_output=True, env=quick)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(WATCH)
    sample = SAMPLES / "phone-number.wav"
    install = f"{sys.executable} -m pip install -q --no-deps --no-index --find-links wheels"
    steps = [
        f"{sys.executable} -c '{LISTEN_HERE}'",
        f"{install} --target site slimwhisper",
        f"PYTHONPATH=site {sys.executable} -c '{JOB}' {sample}",
    ]
    done = subprocess.run(
        [*ALONE, "sh", "-ec", "\n".join(steps)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "five five five" in done.stdout
    assert (tmp_path / "out/phone-number.txt").exists()
    assert not (tmp_path / "sought.txt").exists(), (tmp_path / "sought.txt").read_text()
