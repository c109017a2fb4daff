"""Loading by name, file, folder and hub id: what is read, what is fetched, what is refused."""

import hashlib
import io
import json
import logging
import pickle
import shutil
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
import whisper
from checkpoints import hf_config, hf_name, random_state, save_hf, save_openai, tiny_dims
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from torch import Tensor
from whisper.model import ModelDimensions, Whisper

from slimwhisper.checkpoint import (
    available_models,
    default_download_root,
    expected_shapes,
    load_checkpoint,
)
from slimwhisper.errors import CheckpointError
from slimwhisper.types import Dims

State = dict[str, Tensor]
# Eight wide: the vocabulary alone would make wider files large.
DIMS = tiny_dims(width=8, audio_layers=1, text_layers=1)


@pytest.fixture(scope="module")
def state() -> State:
    return random_state(DIMS, seed=1)


@pytest.fixture(scope="module")
def openai_bytes(tmp_path_factory: pytest.TempPathFactory, state: State) -> bytes:
    return save_openai(tmp_path_factory.mktemp("openai") / "x.pt", DIMS, state).read_bytes()


@pytest.fixture(scope="module")
def saved_folder(tmp_path_factory: pytest.TempPathFactory, state: State) -> Path:
    return save_hf(tmp_path_factory.mktemp("hf") / "saved", DIMS, state)


@pytest.fixture
def openai_file(tmp_path: Path, openai_bytes: bytes) -> Path:
    path = tmp_path / "model.pt"
    path.write_bytes(openai_bytes)
    return path


@pytest.fixture
def hf_folder(tmp_path: Path, saved_folder: Path) -> Path:
    return Path(shutil.copytree(saved_folder, tmp_path / "model"))


def refusal(name: str | Path, **arguments: Any) -> str:
    """The message of the CheckpointError that loading raises: one line."""
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(name, **arguments)
    message = str(caught.value)
    assert "\n" not in message
    assert 0 < len(message) < 700
    return message


def assert_equal(found: Any, expected: State, dtype: torch.dtype = torch.float32) -> None:
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == dtype, name
        assert found[name].device.type == "cpu"
        assert not found[name].requires_grad
        assert torch.equal(found[name], tensor.to(dtype)), name


# ---- what is read


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_openai_file(tmp_path: Path, state: State, dtype: torch.dtype) -> None:
    cast = {name: tensor.to(dtype) for name, tensor in state.items()}
    path = save_openai(tmp_path / "a.pt", DIMS, cast)
    found = load_checkpoint(path)
    assert found.name == str(path)
    assert found.dims == DIMS
    assert_equal(found.state, state, dtype)
    # openai-whisper casts to float32 on loading
    reference = whisper.load_model(str(path), device="cpu")
    assert asdict(found.dims) == vars(reference.dims)
    assert_equal({n: t.float() for n, t in found.state.items()}, reference.state_dict())


def test_openai_file_from_before_zip(tmp_path: Path, state: State) -> None:
    path = tmp_path / "old.pt"
    content = {"dims": asdict(DIMS), "model_state_dict": state}
    torch.save(content, path, _use_new_zipfile_serialization=False)
    assert_equal(load_checkpoint(path).state, state)


def test_openai_file_of_parameters(tmp_path: Path, state: State) -> None:
    parameters = {name: torch.nn.Parameter(tensor) for name, tensor in state.items()}
    assert_equal(load_checkpoint(save_openai(tmp_path / "p.pt", DIMS, parameters)).state, state)


@pytest.mark.parametrize("shards", [1, 3])
def test_hugging_face_folder(tmp_path: Path, state: State, shards: int) -> None:
    folder = save_hf(tmp_path / "m", DIMS, state, shards=shards)
    found = load_checkpoint(str(folder))
    assert found.dims == DIMS
    assert_equal(found.state, state)


def test_hugging_face_names_without_prefix_and_tied_output(hf_folder: Path, state: State) -> None:
    tensors = {hf_name(n).removeprefix("model."): t for n, t in state.items()}
    tensors["proj_out.weight"] = state["decoder.token_embedding.weight"].clone()
    save_file(tensors, hf_folder / "model.safetensors")
    assert_equal(load_checkpoint(hf_folder).state, state)


def test_logits_of_a_converted_folder(tmp_path: Path) -> None:
    dims = tiny_dims(heads=2, text_layers=2)
    original = random_state(dims, seed=2)
    converted = load_checkpoint(save_hf(tmp_path / "m", dims, original)).state
    generator = torch.Generator().manual_seed(0)
    mel = torch.randn(1, 80, 3000, generator=generator)
    tokens = torch.randint(0, 50_000, (1, 7), generator=generator)
    logits = []
    for weights in (original, converted):
        model = Whisper(ModelDimensions(**asdict(dims))).eval()
        model.load_state_dict(dict(weights))
        with torch.no_grad():
            logits.append(model(mel, tokens))
    assert logits[0].std() > 1
    assert torch.equal(logits[0], logits[1])


def test_key_bias_is_kept(tmp_path: Path, state: State) -> None:
    biased = state | {"decoder.blocks.0.cross_attn.key.bias": torch.ones(8)}
    assert_equal(load_checkpoint(save_openai(tmp_path / "b.pt", DIMS, biased)).state, biased)


@pytest.mark.parametrize("dims", [DIMS, tiny_dims(multilingual=False, width=16, n_mels=128)])
def test_expected_shapes_are_whispers(dims: Dims) -> None:
    model = Whisper(ModelDimensions(**asdict(dims)))
    shapes = {n: tuple(t.shape) for n, t in model.state_dict().items()}
    assert expected_shapes(dims) == shapes


def test_trained_probe_loads(probe_path: Path) -> None:
    found = load_checkpoint(probe_path)
    assert (found.dims.n_audio_state, found.dims.n_text_layer) == (128, 4)
    assert {t.dtype for t in found.state.values()} == {torch.float16}


# ---- names, and OpenAI's files


class Server:
    """A loopback HTTP server: `pages` maps a path to its body; the rest is 404."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.headers: dict[str, str] = {}  # of every answer
        self.cut = False  # announce the whole body, send half
        self.requests: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests.append(self.path)
                body = server.pages.get(self.path)
                self.send_response(404 if body is None else 200)
                for key, value in server.headers.items():
                    self.send_header(key, value)
                self.send_header("ETag", f'"{hashlib.sha1(body or b"").hexdigest()}"')
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write((body or b"")[: len(body or b"") // (1 + server.cut)])

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


@pytest.fixture
def official(
    server: Server, monkeypatch: pytest.MonkeyPatch, openai_bytes: bytes
) -> Iterator[Server]:
    """The server has the model "test"."""
    page = f"/{hashlib.sha256(openai_bytes).hexdigest()}/test-file.pt"
    server.pages[page] = openai_bytes
    monkeypatch.setitem(whisper._MODELS, "test", server.url + page)
    yield server


def test_available_models() -> None:
    names = available_models()
    assert {"tiny", "tiny.en", "large-v3", "turbo", "distil-small.en", "distil-large-v3.5"} <= set(
        names
    )
    assert set(whisper.available_models()) <= set(names)


def test_default_download_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_download_root() == tmp_path / ".cache" / "whisper"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_download_root() == tmp_path / "xdg" / "whisper"


def test_download(
    official: Server,
    tmp_path: Path,
    state: State,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = load_checkpoint("test")
    assert found.name == "test"
    assert_equal(found.state, state)
    assert "100%" in capsys.readouterr().err
    assert [p.name for p in (tmp_path / "whisper").iterdir()] == ["test-file.pt"]
    load_checkpoint("test")
    load_checkpoint("test", local_files_only=True)
    assert len(official.requests) == 1


def test_a_name_precedes_a_file_and_a_file_a_hub_id(
    official: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, openai_bytes: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("test").write_text("not a model")
    Path("openai").mkdir()
    Path("openai/whisper-tiny").write_bytes(openai_bytes)
    assert load_checkpoint("test", download_root=tmp_path / "root").dims == DIMS
    assert load_checkpoint("openai/whisper-tiny").dims == DIMS


def test_cut_download_leaves_nothing(official: Server, tmp_path: Path, state: State) -> None:
    official.cut = True
    message = refusal("test", download_root=tmp_path)
    assert str(tmp_path / "test-file.pt") in message
    assert list(tmp_path.iterdir()) == []
    official.cut = False
    assert_equal(load_checkpoint("test", download_root=tmp_path).state, state)


def test_interrupted_download_leaves_nothing(
    official: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(torch.hub.tqdm, "update", interrupt)
        load_checkpoint("test", download_root=tmp_path)
    assert list(tmp_path.iterdir()) == []
    load_checkpoint("test", download_root=tmp_path)


def test_leftover_of_a_killed_download_is_not_trusted(
    official: Server, tmp_path: Path, openai_bytes: bytes
) -> None:
    (tmp_path / "test-file.pt.0123.partial").write_bytes(openai_bytes[:1000])
    assert load_checkpoint("test", download_root=tmp_path).dims == DIMS
    assert len(official.requests) == 1


def test_wrong_checksum_is_refused(official: Server, tmp_path: Path) -> None:
    official.pages = dict.fromkeys(official.pages, b"something else")
    message = refusal("test", download_root=tmp_path)
    assert "checksum" in message
    assert str(tmp_path / "test-file.pt") in message
    assert list(tmp_path.iterdir()) == []


def test_damaged_cached_file_is_replaced(
    official: Server,
    tmp_path: Path,
    state: State,
    openai_bytes: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cached = tmp_path / "test-file.pt"
    cached.write_bytes(openai_bytes[:-1])
    assert "checksum" in refusal("test", download_root=tmp_path, local_files_only=True)
    assert official.requests == []
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="slimwhisper"):
        assert_equal(load_checkpoint("test", download_root=tmp_path).state, state)
    (record,) = caplog.records
    assert record.name == "slimwhisper"
    assert str(cached) in record.getMessage()
    assert cached.read_bytes() == openai_bytes


def test_nothing_is_fetched_when_only_local_files_may_be_used(
    official: Server, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    message = refusal("test", download_root=root, local_files_only=True)
    assert "test" in message
    assert str(root / "test-file.pt") in message
    assert official.requests == []
    assert not root.exists()


def test_failed_download(official: Server, tmp_path: Path) -> None:
    official.pages = {}
    message = refusal("test", download_root=tmp_path)
    assert message.startswith("cannot download")
    assert "Not Found" in message
    assert str(tmp_path / "test-file.pt") in message
    official.close()
    message = refusal("test", download_root=tmp_path)
    assert "refused" in message
    assert list(tmp_path.iterdir()) == []


def test_download_root_that_cannot_be_used(official: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in refusal("test", download_root=tmp_path / "file")
    (tmp_path / "test-file.pt").mkdir()
    assert str(tmp_path / "test-file.pt") in refusal("test", download_root=tmp_path)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tinny", ["did you mean", "tiny", "large-v3-turbo", "distil-large-v3.5"]),
        ("zzzz", ["tiny.en", "distil-small.en"]),
        ("", ["tiny"]),
        ("no-such.pt", ["no-such.pt", "file"]),
        ("no/such/folder/x.pt", ["no/such/folder/x.pt", "file"]),
        ("models/x.pt", ["models/x.pt", "file"]),
        (Path("no-such"), ["no-such"]),
        ("./no/such", ["./no/such"]),
        ("./no-such", ["./no-such"]),
        ("-a/b", ["-a/b"]),
        ("x" * 5000, ["x"]),
        ("bad\nname", ["bad"]),
    ],
)
def test_unknown_name_or_path(name: str | Path, expected: list[str]) -> None:
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(name)
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in expected)


# ---- the hub


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache; the hub's constants were read from the environment on import."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    return cache


def fill_hub_cache(cache: Path, repo_id: str, source: Path) -> Path:
    """Put a folder's files into the hub's cache, as its download would."""
    repository = cache / f"models--{repo_id.replace('/', '--')}"
    commit = "0123456789abcdef0123456789abcdef01234567"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    return Path(shutil.copytree(source, repository / "snapshots" / commit))


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("name", ["someone/whisper-x", "distil-small.en"])
@pytest.mark.parametrize("off", ["argument", "environment"])
def test_hub_model_in_the_cache(
    hub_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: State,
    name: str,
    shards: int,
    off: str,
) -> None:
    repo_id = name if "/" in name else f"distil-whisper/{name}"
    fill_hub_cache(hub_cache, repo_id, save_hf(tmp_path / "m", DIMS, state, shards=shards))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", off == "environment")
    found = load_checkpoint(name, local_files_only=off == "argument")
    assert found.name == name
    assert_equal(found.state, state)


@pytest.mark.parametrize("off", ["argument", "environment"])
def test_hub_model_not_in_the_cache(
    hub_cache: Path, monkeypatch: pytest.MonkeyPatch, off: str
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", off == "environment")
    message = refusal("someone/whisper-x", local_files_only=off == "argument")
    assert "someone/whisper-x" in message
    assert str(hub_cache) in message
    assert "folder" in message


def test_hub_model_half_in_the_cache(hub_cache: Path, tmp_path: Path, state: State) -> None:
    folder = save_hf(tmp_path / "m", DIMS, state, shards=2)
    snapshot = fill_hub_cache(hub_cache, "someone/whisper-x", folder)
    lost = "model-00002-of-00002.safetensors"
    (snapshot / lost).unlink()
    assert lost in refusal("someone/whisper-x", local_files_only=True)
    (snapshot / "model.safetensors.index.json").unlink()
    assert "model.safetensors" in refusal("someone/whisper-x", local_files_only=True)


@pytest.fixture
def hub(hub_cache: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server stands for the hub, with an empty cache; the hub's retries do not wait."""
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("time.sleep", lambda _: None)
    return server


@pytest.mark.parametrize(
    ("code", "expected"), [("RepoNotFound", "no such model"), ("GatedRepo", "hf auth login")]
)
def test_hub_refuses(hub: Server, code: str, expected: str) -> None:
    hub.headers = {"X-Error-Code": code}
    message = refusal("someone/whisper-x")
    assert "someone/whisper-x" in message
    assert expected in message
    assert hub.requests


def test_hub_model_with_files_missing(hub: Server) -> None:
    hub.headers = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": "0" * 40}
    assert "config.json" in refusal("someone/whisper-x")
    files = f"/someone/whisper-x/resolve/{'0' * 40}/"
    for folder in (files, files.replace("0" * 40, "main")):
        hub.pages[folder + "config.json"] = json.dumps(hf_config(DIMS)).encode()
        hub.pages[folder + "pytorch_model.bin"] = b"a pickle"
    message = refusal("someone/whisper-x")
    assert "no model.safetensors" in message
    assert "safe_serialization=True" in message
    assert not any("pytorch_model.bin" in path for path in hub.requests)


def test_hub_model_over_http(hub: Server, saved_folder: Path, state: State) -> None:
    hub.headers = {"X-Repo-Commit": "0" * 40}
    for revision in ("main", "0" * 40):
        for file in ("config.json", "model.safetensors"):
            page = f"/someone/whisper-x/resolve/{revision}/{file}"
            hub.pages[page] = (saved_folder / file).read_bytes()
    assert_equal(load_checkpoint("someone/whisper-x").state, state)


def test_hub_out_of_reach(hub: Server) -> None:
    hub.close()
    message = refusal("someone/whisper-x")
    assert "someone/whisper-x" in message
    assert "refused" in message


# ---- damaged, foreign and dangerous files


class RunsCode:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return print, ("this must not be printed",)


def test_pickle_that_runs_code(
    tmp_path: Path, state: State, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "evil.pt"
    content = {"dims": asdict(DIMS), "model_state_dict": {}, "extra": RunsCode()}
    torch.save(content, path)
    message = refusal(path)
    assert str(path) in message
    assert "code" in message
    path.write_bytes(pickle.dumps(content, protocol=2))
    assert str(path) in refusal(path)
    assert "this must not be printed" not in capsys.readouterr().out


@pytest.mark.parametrize("keep", [0, 1, 3, 4, 100, 5_000, -1, -100, -100_000])
def test_truncated_openai_file(openai_file: Path, openai_bytes: bytes, keep: int) -> None:
    openai_file.write_bytes(openai_bytes[:keep])
    message = refusal(openai_file)
    assert str(openai_file) in message
    assert "again" in message


def old_format(state: State) -> bytes:
    buffer = io.BytesIO()
    content = {"dims": asdict(DIMS), "model_state_dict": state}
    torch.save(content, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


@pytest.mark.parametrize("part", [0.0001, 0.003, 0.5, 0.999])
def test_truncated_old_file(openai_file: Path, state: State, part: float) -> None:
    content = old_format(state)
    openai_file.write_bytes(content[: int(len(content) * part)])
    assert str(openai_file) in refusal(openai_file)


@pytest.mark.parametrize(
    "content", [b"\0" * 4096, b"ID3" + b"\xff" * 500, b"<html>", b"{}", b"\x80"]
)
def test_something_else_named_pt(openai_file: Path, content: bytes) -> None:
    openai_file.write_bytes(content)
    assert str(openai_file) in refusal(openai_file)


def test_another_zip_named_pt(openai_file: Path) -> None:
    with zipfile.ZipFile(openai_file, "w") as archive:
        archive.writestr("letter.txt", "dear reader")
    assert str(openai_file) in refusal(openai_file)


@pytest.mark.parametrize(
    "content",
    [
        {"weight": torch.zeros(2)},
        torch.zeros(3),
        [1, 2],
        {"dims": asdict(DIMS)},
        {"dims": 3, "model_state_dict": {}},
        {"dims": asdict(DIMS), "model_state_dict": torch.zeros(3)},
        {"dims": asdict(DIMS) | {"n_mels": 80.5}, "model_state_dict": {}},
        {"dims": asdict(DIMS) | {"n_mels": True}, "model_state_dict": {}},
        {"dims": asdict(DIMS) | {"n_new": 1}, "model_state_dict": {}},
        {"dims": asdict(DIMS) | {3: 1}, "model_state_dict": {}},
        {"dims": {"n_mels": 80}, "model_state_dict": {}},
    ],
)
def test_foreign_openai_file(openai_file: Path, content: Any) -> None:
    torch.save(content, openai_file)
    message = refusal(openai_file)
    assert str(openai_file) in message
    assert "dims" in message


def test_safetensors_file_alone(hf_folder: Path) -> None:
    message = refusal(hf_folder / "model.safetensors")
    assert "folder" in message
    assert "config.json" in message


@pytest.mark.parametrize("keep", [0, 5, 500, -1, -10_000])
def test_truncated_safetensors(hf_folder: Path, keep: int) -> None:
    path = hf_folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    message = refusal(hf_folder)
    assert str(path) in message
    assert "again" in message


def test_folder_without_config(hf_folder: Path) -> None:
    (hf_folder / "config.json").unlink()
    message = refusal(hf_folder)
    assert str(hf_folder) in message
    assert "config.json" in message


def test_folder_without_weights(hf_folder: Path) -> None:
    (hf_folder / "model.safetensors").unlink()
    assert "model.safetensors" in refusal(hf_folder)
    (hf_folder / "pytorch_model.bin").write_bytes(b"anything")
    message = refusal(hf_folder)
    assert str(hf_folder) in message
    assert "safe_serialization=True" in message


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '"whisper"', "\xff", "[" * 100_000])
def test_damaged_config(hf_folder: Path, text: str) -> None:
    path = hf_folder / "config.json"
    path.write_bytes(text.encode("latin1"))
    assert str(path) in refusal(hf_folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "wav2vec2"),
        ("model_type", None),
        ("d_model", "8"),
        ("d_model", None),
        ("decoder_layers", 1.5),
        ("encoder_layers", True),
        ("encoder_attention_heads", 0),
        ("vocab_size", -1),
        ("activation_function", "relu"),
        ("scale_embedding", True),
    ],
)
def test_config_of_another_model(hf_folder: Path, key: str, value: object) -> None:
    path = hf_folder / "config.json"
    path.write_text(json.dumps(hf_config(DIMS) | {key: value}))
    message = refusal(hf_folder)
    assert str(path) in message
    assert key in message
    assert repr(value) in message


def test_missing_shard(tmp_path: Path, state: State) -> None:
    folder = save_hf(tmp_path / "m", DIMS, state, shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors" in refusal(folder)


@pytest.mark.parametrize(
    "index",
    [
        {},
        {"weight_map": {}},
        {"weight_map": [1]},
        {"weight_map": {"a": 3}},
        {"weight_map": {"a": "../other/model.safetensors"}},
        {"weight_map": {"a": "/etc/passwd"}},
        {"weight_map": {"a": ".."}},
        {"weight_map": {"a": ""}},
    ],
)
def test_bad_index(hf_folder: Path, index: object) -> None:
    shutil.copytree(hf_folder, hf_folder.parent / "other")
    (hf_folder / "model.safetensors").unlink()
    path = hf_folder / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    assert str(path) in refusal(hf_folder)


def test_output_matrix_that_is_not_the_embedding(hf_folder: Path) -> None:
    path = hf_folder / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"proj_out.weight": torch.zeros(DIMS.n_vocab, 8)}, path)
    assert "proj_out.weight" in refusal(hf_folder)


# ---- whole files of models that are not Whisper's


def without(state: State, *names: str) -> State:
    return {name: tensor for name, tensor in state.items() if name not in names}


LN = "decoder.ln.weight"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda s: without(s, LN), [LN]),
        (lambda s: without(s, LN, "decoder.ln.bias", "encoder.ln_post.bias"), ["2 more"]),
        (lambda s: s | {"lora_A": torch.ones(1)}, ["lora_A"]),
        (lambda s: s | {"a": torch.ones(1), "b": torch.ones(1)}, ["a", "1 more"]),
        (lambda s: s | {3: torch.ones(1)}, ["3"]),
        (lambda s: s | {LN: torch.ones(9)}, [LN, "9", "8"]),
        (lambda s: s | {LN: torch.ones(8, 1)}, [LN]),
        (lambda s: s | {LN: "text"}, [LN]),
        (lambda s: s | {LN: torch.ones(8, dtype=torch.int8)}, [LN, "int8"]),
        (lambda s: s | {LN: torch.ones(8, dtype=torch.complex64)}, [LN, "complex64"]),
        (lambda s: s | {LN: torch.ones(8).to(torch.float8_e4m3fn)}, [LN, "float8"]),
        (lambda s: s | {LN: torch.ones(8).to_sparse()}, [LN, "sparse"]),
        (lambda s: s | {LN: torch.ones(8, device="meta")}, [LN]),
        (lambda s: s | {LN: torch.tensor([1.0] * 7 + [float("nan")])}, [LN, "finite"]),
        (lambda s: s | {LN: torch.tensor([1.0] * 7 + [float("-inf")])}, [LN, "finite"]),
        (
            lambda s: s | {"decoder.blocks.0.attn.key.bias": torch.full((8,), float("nan"))},
            ["decoder.blocks.0.attn.key.bias", "finite"],
        ),
        (
            lambda s: s | {"decoder.blocks.0.attn.key.bias": torch.ones(7)},
            ["decoder.blocks.0.attn.key.bias", "7", "8"],
        ),
    ],
)
def test_wrong_tensors(
    tmp_path: Path, state: State, change: Callable[[State], State], expected: list[str]
) -> None:
    path = save_openai(tmp_path / "wrong.pt", DIMS, change(state))
    message = refusal(path)
    assert str(path) in message
    assert all(part in message for part in expected), message


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"n_vocab": 32_000}, ["32000", "not Whisper's", "51865"]),
        ({"n_vocab": 51_867}, ["51867"]),
        ({"n_mels": 64}, ["64", "80"]),
        ({"n_audio_ctx": 750}, ["750", "1500"]),
        ({"n_text_ctx": 449}, ["449", "448"]),
        ({"n_text_ctx": 7}, ["7", "448"]),
        ({"n_audio_head": 3}, ["8", "3 heads"]),
        ({"n_text_head": 5}, ["8", "5 heads"]),
        ({"n_text_head": 0}, ["dims"]),
        ({"n_text_layer": -1}, ["dims"]),
        ({"n_text_state": 16}, ["16", "8"]),
        ({"n_mels": 128}, ["encoder.conv1.weight", "128", "80"]),
        ({"n_vocab": 51_866}, ["decoder.token_embedding.weight", "51866"]),
        ({"n_text_layer": 2}, ["decoder.blocks.1"]),
        ({"n_text_layer": 10**6}, ["too few", "layers"]),  # must not build a list of them
    ],
)
def test_wrong_dims(
    tmp_path: Path, state: State, changes: dict[str, int], expected: list[str]
) -> None:
    path = save_openai(tmp_path / "wrong.pt", replace(DIMS, **changes), state)
    message = refusal(path)
    assert str(path) in message
    assert all(part in message for part in expected), message


def test_short_text_context_is_fine(tmp_path: Path, state: State) -> None:
    short = state | {"decoder.positional_embedding": torch.ones(8, 8)}
    dims = replace(DIMS, n_text_ctx=8)
    assert load_checkpoint(save_openai(tmp_path / "short.pt", dims, short)).dims == dims
