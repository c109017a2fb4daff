"""Programs of other people, written for faster-whisper, on this engine: those that are installed.

python -m pytest -m slow bench/test_programs.py; docs/guides/faster-whisper.md says how to install
them.
"""

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from slimwhisper.commands.convert import write_folder
from slimwhisper.formats.load import load_checkpoint
from tests.support.foreign import ct2_variables, save_ct2, tokens_of
from tests.support.live import free_port
from tests.support.paths import SAMPLES
from tests.support.spoken import EXPECTED

pytestmark = pytest.mark.slow
COMMAND = [sys.executable, "-m", "slimwhisper.as_faster_whisper"]
PHONE = SAMPLES / "phone-number.wav"
SAID = EXPECTED[PHONE.name]["text"]


def needs(*modules: str) -> None:
    for module in modules:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`digits` in faster-whisper's format, for programs that take nothing else."""
    needs("ctranslate2")
    checkpoint, made = load_checkpoint("digits"), tmp_path_factory.mktemp("digits")
    state = {name: tensor.float() for name, tensor in checkpoint.state.items()}
    save_ct2(made, ct2_variables(checkpoint.dims, state), tokens_of(checkpoint.dims))
    (made / "hf").mkdir()
    write_folder(checkpoint, made / "hf")
    shutil.copy(made / "hf" / "tokenizer.json", made)
    return made


@contextmanager
def server(log: Path, *arguments: str) -> Iterator[None]:
    """A program that runs until the end of the block."""
    with log.open("w") as file, subprocess.Popen([*COMMAND, *arguments], stdout=file) as process:
        try:
            yield
        finally:
            process.kill()


def test_whisper_ctranslate2(folder: Path, tmp_path: Path) -> None:
    """All five files, and its own line for each segment; batched, too."""
    needs("whisper_ctranslate2", "sounddevice", "ctranslate2")
    arguments = [str(PHONE), "--model_directory", str(folder), "--output_dir", str(tmp_path)]
    for more in ([], ["--batched", "True", "--compute_type", "auto"]):
        done = subprocess.run(
            [*COMMAND, "whisper-ctranslate2", *arguments, "--device", "cpu", *more],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert "five five five" in done.stdout
        written = json.loads((tmp_path / "phone-number.json").read_text())
        assert written["text"].strip() == SAID
    assert {p.suffix for p in tmp_path.iterdir()} == {".json", ".srt", ".tsv", ".txt", ".vtt"}


LIVE_SERVER = """
import sys
import time
from whisper_live.server import TranscriptionServer
TranscriptionServer().run(
    "127.0.0.1", port=int(sys.argv[1]), backend="faster_whisper",
    faster_whisper_custom_model_path=sys.argv[2],
)
"""
LIVE_CLIENT = """
import sys, types
try:
    import pyaudio
except ImportError:  # it plays the file, which this test does not need
    class Silent:
        def __getattr__(self, name):
            return lambda *_, **__: self
    sys.modules["pyaudio"] = types.SimpleNamespace(PyAudio=Silent, paInt16=8)
from whisper_live.client import TranscriptionClient
client = TranscriptionClient("127.0.0.1", int(sys.argv[1]), lang="en", use_vad=False, model="x",
                             output_transcription_path=sys.argv[3])
client(sys.argv[2])
print("SAID", "".join(s["text"] for s in client.client.transcript))
"""


def test_whisper_live(folder: Path, tmp_path: Path) -> None:
    """Its server, and its own client, which sends a recording at the speed of speech."""
    needs("whisper_live", "ctranslate2", "onnxruntime", "websocket", "scipy")
    port = str(free_port())
    (tmp_path / "server.py").write_text(LIVE_SERVER)
    script = str(tmp_path / "server.py")
    with server(tmp_path / "log", script, port, str(folder)):
        for _ in range(600):
            with suppress(OSError), socket.create_connection(("127.0.0.1", int(port)), 1):
                break
            time.sleep(0.1)
        done = subprocess.run(
            [sys.executable, "-c", LIVE_CLIENT, port, str(PHONE), str(tmp_path / "out.srt")],
            capture_output=True,
            cwd=tmp_path,  # it writes a copy of the recording there
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    said = done.stdout.split("SAID")[1].split()
    assert said == SAID.split(), (tmp_path / "log").read_text()


WHISPERX = """
import sys, types
try:
    import pyannote.audio
except ImportError:  # another voice activity detector is given
    class Stub(types.ModuleType):
        __path__ = []
        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})
    for name in ("", ".audio", ".core", ".audio.core", ".audio.core.io", ".audio.pipelines",
                 ".audio.pipelines.utils"):
        sys.modules["pyannote" + name] = Stub("pyannote" + name)
import whisperx.asr
from faster_whisper import decode_audio
from faster_whisper.vad import get_speech_timestamps
from whisperx.diarize import Segment
from whisperx.vads import Vad

class Ours(Vad):
    def __call__(self, audio, **_):
        found = get_speech_timestamps(audio["waveform"], min_silence_duration_ms=300)
        return [Segment(r["start"] / 16000, r["end"] / 16000, "S") for r in found]
    preprocess_audio = staticmethod(lambda audio: audio)

model = whisperx.asr.load_model("digits", "cpu", language="en", vad_model=Ours(0.5))
result = model.transcribe(decode_audio(sys.argv[1]), batch_size=4)
print("SAID", "".join(s["text"] for s in result["segments"]))
"""


def test_the_step_of_whisperx_that_transcribes(tmp_path: Path) -> None:
    needs("whisperx", "ctranslate2", "transformers", "pandas")
    (tmp_path / "program.py").write_text(WHISPERX)
    done = subprocess.run(
        [*COMMAND, str(tmp_path / "program.py"), str(PHONE)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("SAID")[1].split() == SAID.split()
