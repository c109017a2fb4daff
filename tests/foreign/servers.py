"""Other people's forms, events and files, sent to our servers and given to our loaders."""

import asyncio
import re
import wave
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from slimwhisper.app.realtime.wyoming import read_frame
from slimwhisper.checkpoint.load import load_checkpoint
from slimwhisper.errors import CheckpointError
from tests.foreign.outcomes import Check, NotApplicableError, Status, attempt, needs
from tests.foreign.places import Places
from tests.support.paths import SAMPLES
from tests.support.spoken import EXPECTED

SOUND = SAMPLES / "phone-number.wav"
SAID = EXPECTED[SOUND.name]["text"].split()
# of whisper.cpp's form: a value that server.cpp's code does not show as the field's default
GIVEN = {"prompt": "numbers", "language": "en", "offset_t": "500", "duration": "2000"}
ONLY = {"suppress_nst", "suppress_non_speech"}  # whose default is refused: docs/openai.md


async def read_ours(theirs: Any) -> Any:
    """wyoming's `async_read_event` by our reader; theirs: a reader with `readline`."""
    from wyoming.event import Event

    reader = asyncio.StreamReader()
    while line := await theirs.readline():
        reader.feed_data(line)
    reader.feed_eof()
    frame = await read_frame(reader)
    assert frame is not None
    return Event(frame.type, frame.data, frame.payload or None)


def whisper_cpp(places: Places) -> Iterator[Check]:
    """Each field of whisper.cpp's server with its default; its README's request; its test files."""
    suite, folder = "whisper.cpp", places.foreign / "whisper.cpp"
    source = (folder / "examples/server/server.cpp").read_text()
    fields = dict(re.findall(r"has_file\(\"(\w+)\"\)\)\s*\{\s*params\.(\w+) =", source))
    for field, variable in fields.items():
        found = re.search(
            rf"(?:bool|float|int|int32_t|std::string) +{variable} *= *([^;]+);", source
        )
        value = GIVEN.get(field) or (found[1] if found else "").rstrip("f").strip('"')
        value = "json" if value == "json_format" else value
        value = "1e9" if value.startswith("FLT_MAX") else value
        yield attempt(suite, f"/inference {field}={value}", partial(infer, places, {field: value}))
    for kind in ("json", "text", "srt", "vtt", "verbose_json"):
        yield attempt(suite, f"/inference, {kind}", partial(format_of_cpp, places, kind))
    readme = (folder / "examples/server/README.md").read_text()
    request = re.search(r"^curl \S+/inference.*?^```", readme, re.S | re.M)
    assert request is not None
    sent = dict(re.findall(r'-F (\w+)="([^@"]*)"', request[0]))
    yield attempt(suite, "README: /inference", partial(infer, places, sent))
    for path in sorted((folder / "models").glob("for-tests-*.bin")):
        yield attempt(suite, path.name, partial(is_refused, path))


def infer(places: Places, fields: dict[str, str]) -> httpx.Response:
    files = {"file": SOUND.read_bytes()}
    answer = httpx.post(f"{places.url}/inference", data=fields, files=files, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer


def format_of_cpp(places: Places, kind: str) -> None:
    """What whisper.cpp's clients look for in each format."""
    answer = infer(places, {"response_format": kind, "temperature": "0.0"})
    if kind == "verbose_json":
        body = answer.json()
        assert {"task", "language", "duration", "text", "segments"} <= set(body), sorted(body)
        assert {"id", "text", "start", "end", "tokens", "words"} <= set(body["segments"][0])
        missing = {"detected_language", "language_probabilities"} - set(body)
        assert not missing, f"verbose_json has no {' and no '.join(sorted(missing))}"
    text = answer.json()["text"] if kind.endswith("json") else answer.text
    said = re.sub(r"WEBVTT|^\d+$|^.*-->.*$", "", text, flags=re.M)
    assert said.split() == SAID, said


def is_refused(path: Path) -> None:
    try:
        load_checkpoint(path)
    except CheckpointError as error:
        message = str(error)
    else:
        raise AssertionError("it loads")
    assert message.startswith(f"{path}: ") and "\n" not in message, message
    assert re.search(r"; (use|give) ", message), message  # a remedy


def wyoming(places: Places) -> Iterator[Check]:
    """wyoming's client at our port."""
    needs("wyoming")
    forms = {
        "16 kHz, mono, 16 bits": (16_000, 2, 1),
        "48 kHz, stereo, 16 bits": (48_000, 2, 2),
        "22.05 kHz, mono, 32 bits": (22_050, 4, 1),
    }
    for name, form in forms.items():
        yield attempt("wyoming", f"transcribe, {name}", exchange(places, transcribed(*form)))
    for name, given in {"without a language": {}, "with a model": {"name": "digits"}}.items():
        yield attempt("wyoming", f"transcribe, {name}", exchange(places, transcribed(**given)))
    cases = {"describe": described, "ping": pinged, "two recordings": twice, "silence": silent}
    cases |= {"events of other services": others, "a model that it has not": refused}
    for name, case in cases.items():
        yield attempt("wyoming", name, exchange(places, case))
    yield Check(
        "wyoming", "its other tests", Status.NOT_APPLICABLE, "they test the package wyoming alone"
    )


def exchange(places: Places, case: Callable[[Any], Any]) -> Callable[[], None]:
    """A conversation on a connection of its own."""

    async def talk() -> None:
        from wyoming.client import AsyncTcpClient

        async with AsyncTcpClient("127.0.0.1", places.wyoming) as client:
            await asyncio.wait_for(case(client), 60)

    return lambda: asyncio.run(talk())


async def until(client: Any, kind: str) -> Any:
    while event := await client.read_event():
        if event.type == kind:
            return event
        if event.type == "error":
            raise AssertionError(f"error: {event.data}")
    raise AssertionError("the connection was closed")


def converted(rate: int, width: int, channels: int) -> Iterator[Any]:
    """The recording, as wyoming cuts and converts it."""
    from wyoming.audio import AudioChunkConverter, wav_to_chunks

    converter = AudioChunkConverter(rate=rate, width=width, channels=channels)
    with wave.open(str(SOUND), "rb") as file:
        for chunk in wav_to_chunks(file, samples_per_chunk=1024, stop_event=False):
            yield converter.convert(chunk)


def transcribed(
    rate: int = 16_000, width: int = 2, channels: int = 1, **given: Any
) -> Callable[[Any], Any]:
    async def case(client: Any) -> None:
        from wyoming.asr import Transcribe, Transcript
        from wyoming.audio import AudioStart, AudioStop

        await client.write_event(Transcribe(**given).event())
        await client.write_event(AudioStart(rate, width, channels).event())
        for chunk in converted(rate, width, channels):
            await client.write_event(chunk.event())
        await client.write_event(AudioStop().event())
        found = Transcript.from_event(await until(client, "transcript"))
        assert found.text.split() == SAID, found.text

    return case


async def described(client: Any) -> None:
    from wyoming.info import Describe, Info

    await client.write_event(Describe().event())
    info = Info.from_event(await until(client, "info"))
    assert [model.name for model in info.asr[0].models if model.installed] == ["digits"]
    assert info.asr[0].models[0].languages == ["en"]


async def pinged(client: Any) -> None:
    from wyoming.ping import Ping, Pong

    await client.write_event(Ping(text="here").event())
    assert Pong.from_event(await until(client, "pong")).text == "here"


async def twice(client: Any) -> None:
    await transcribed()(client)
    await transcribed()(client)


async def silent(client: Any) -> None:
    from wyoming.asr import Transcribe, Transcript
    from wyoming.audio import AudioChunk, AudioStart, AudioStop

    for event in (
        Transcribe(language="en"),
        AudioStart(16_000, 2, 1),
        AudioChunk(16_000, 2, 1, bytes(32_000)),
        AudioStop(),
    ):
        await client.write_event(event.event())
    assert Transcript.from_event(await until(client, "transcript")).text == ""


async def others(client: Any) -> None:
    """They are ignored, and the connection lives."""
    from wyoming.intent import Recognize
    from wyoming.tts import Synthesize
    from wyoming.wake import Detect

    for event in (Recognize(text="x"), Synthesize(text="x"), Detect(names=["x"])):
        await client.write_event(event.event())
    await pinged(client)


async def refused(client: Any) -> None:
    """Home Assistant passes over errors, and reads until a transcript or the connection's end."""
    with suppress(AssertionError):
        await transcribed(name="no-such-model")(client)
    while event := await client.read_event():
        assert event.type in ("error", "transcript"), event
        if event.type == "transcript":
            return


def transformers(places: Places) -> Iterator[Check]:
    """A random Whisper of transformers' own, saved by it."""
    needs("transformers.models.whisper.modeling_whisper: transformers")
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    import slimwhisper

    torch.manual_seed(0)
    layers = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in SIZES.items()}
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 50_257)
    config = WhisperConfig(d_model=16, vocab_size=51_865, decoder_start_token_id=50_258, **layers)
    model = WhisperForConditionalGeneration(config).eval()
    model.generation_config.update(**ends)
    mel = torch.randn(2, 80, 3000)
    tokens = torch.tensor([[50258, 50259, 50359, 50363, 7, 8], [50258, 50261, 50359, 50363, 9, 1]])
    with torch.no_grad():
        expected = model(mel, decoder_input_ids=tokens)
    for name, most in {"model.safetensors": "5GB", "model.safetensors.index.json": "500KB"}.items():
        folder = places.work / f"transformers-{most}"
        model.save_pretrained(folder, max_shard_size=most)
        if not (folder / name).exists():
            raise NotApplicableError(f"this transformers writes no {name}")
        ours = slimwhisper.load_model(folder, "cpu")

        def agrees(found: Any, theirs: Any) -> None:
            torch.testing.assert_close(found, theirs, atol=2e-4, rtol=1e-3)

        encoded = ours.embed_audio(mel)
        encoder = partial(agrees, encoded, expected.encoder_last_hidden_state)
        yield attempt("transformers", f"encoder of {name}", encoder)
        logits = partial(agrees, ours.logits(tokens, encoded), expected.logits)
        yield attempt("transformers", f"logits of {name}", logits)


SIZES = {"layers": 2, "attention_heads": 2, "ffn_dim": 64}
