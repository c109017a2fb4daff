"""The cost model: operations as torch counts them, bytes as the caches have them, and the figures
of the desk check that it must reproduce.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from slimwhisper.cache.base import Rows, Step
from slimwhisper.cache.forms import PRESETS
from slimwhisper.cache.plan import DecoderCache
from slimwhisper.cli import build_parser, main
from slimwhisper.commands.costs import OFFICIAL_DIMS, make_report, predict
from slimwhisper.commands.gpu import report as gpu_report
from slimwhisper.commands.gpu.costs import FORMS, STEPS, Costs, Decoding
from slimwhisper.commands.gpu.devices import DEVICES
from slimwhisper.commands.gpu.drafting import drafted
from slimwhisper.commands.gpu.measured import WHATS, read_measured, write_measured
from slimwhisper.commands.gpu.scenarios import LAUNCHES, LAUNCHES_BESIDE, SCENARIOS
from slimwhisper.errors import OptionError
from slimwhisper.model.calibration import exact_plan
from slimwhisper.model.decoder import Decoder
from slimwhisper.model.encoder import Encoder
from tests.commands.test_gpu_measured import ROW
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.paths import ROOT

LARGE = OFFICIAL_DIMS["large-v3"]


def costs(form: str, batch: int, scenario: str, device: str = "h200", beams: int = 1) -> Costs:
    return Decoding(LARGE, form, batch, DEVICES[device], SCENARIOS[scenario], beams).costs()


# -- the desk check: docs/gpu.md says what it was ------------------------------------------------

A_LAYER = {  # us at batch 64, and what the whole step takes, ms: limit, desk check
    "cross": (57, 102),
    "self": (8, 20),
    "combine": (0, 11),
    "products": (12, 66),
    "other": (0, 40),
    "step": (2.5, 7.8),
}
A_WINDOW: dict[str, tuple[Callable[[Costs], float], float, float, float]] = {  # ms
    # "desk check" at batch 64, "present" at 256, "limit" at 256
    "decode": (lambda c: c.decode.seconds * 1e3, 14.4, 8.1, 3.8),
    "encoder": (lambda c: c.encoder.seconds * 1e3, 8.5, 5.5, 2.9),
    "prompt": (lambda c: c.prompt.seconds * 1e3, 2.3, 2.0, 1.0),
    "host": (lambda c: c.host * 1e3, 8.3, 0.3, 0),
    "x real time": (lambda c: c.speed, 900, 1900, 3900),
}


@pytest.mark.parametrize("part", A_LAYER)
def test_a_layer_of_the_desk_check(part: str) -> None:
    for scenario, expected in zip(("limit", "desk check"), A_LAYER[part], strict=True):
        found = costs("slim", 64, scenario)
        value = found.step.seconds * 1e3 if part == "step" else found.layer[part].seconds * 1e6
        assert value == pytest.approx(expected, rel=0.15), scenario


@pytest.mark.parametrize("part", A_WINDOW)
def test_a_window_of_the_desk_check(part: str) -> None:
    value, *expected = A_WINDOW[part]
    columns = (("desk check", 64), ("present", 256), ("limit", 256))
    for (scenario, batch), number in zip(columns, expected, strict=True):
        assert value(costs("slim", batch, scenario)) == pytest.approx(number, rel=0.15), scenario


def test_other_figures_of_the_desk_check() -> None:
    assert costs("baseline", 64, "desk check").step.seconds == pytest.approx(9.5e-3, rel=0.15)
    float8 = costs("slim fp8", 64, "desk check").layer
    assert float8["cross"].seconds == pytest.approx(285e-6, rel=0.15)
    beams = {form: costs(form, 64, "desk check", beams=5).layer for form in ("slim", "baseline")}
    assert beams["slim"]["cross"].seconds == pytest.approx(340e-6, rel=0.15)
    assert beams["baseline"]["cross"].seconds == pytest.approx(175e-6, rel=0.15)
    encoder = costs("slim", 64, "limit").encoder
    assert encoder.operations == pytest.approx(2.27e12, rel=0.01)


@pytest.mark.parametrize(
    ("model", "microseconds"),
    [
        *(("tiny", 171), ("base", 338), ("small", 1011), ("medium", 2711)),
        *(("large-v3", 4576), ("turbo", 599)),
    ],
)
def test_the_baselines_limit_as_worked_out_by_hand(model: str, microseconds: float) -> None:
    """Caches, weights and logits, batch 64, 224 tokens, at 4.3 TB/s."""
    limit = Decoding(
        OFFICIAL_DIMS[model], "baseline", 64, DEVICES["h200"], SCENARIOS["limit"]
    ).costs()
    assert limit.step.seconds * 1e6 == pytest.approx(microseconds, rel=0.01)


# -- what is counted -----------------------------------------------------------------------------


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("form", ["slim", "baseline"])
def test_operations_are_those_that_torch_counts(form: str, beams: int) -> None:
    dims, cpu, double = tiny_dims(width=32, heads=4), torch.device("cpu"), torch.float64
    state = random_state(dims, seed=0)
    windows, tokens = 2, 30
    model = Decoding(dims, form, windows, DEVICES["h200"], SCENARIOS["present"], beams)

    def counted(call: Callable[[], Any]) -> tuple[Any, int]:
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            result = call()
        return result, counter.get_total_flops()

    encoder = Encoder(state, dims, cpu, double)
    mel = torch.zeros(windows, dims.n_mels, 2 * dims.n_audio_ctx)
    features, encoding = counted(lambda: encoder(mel))
    assert encoding == model.cost(model.encoder_kernels(windows)).operations

    plan = exact_plan(state, dims, *PRESETS[form]).to(cpu, double)
    cache = DecoderCache.allocate(plan, windows, dims.n_audio_ctx, dims.n_text_ctx)
    decoder, rows = Decoder(state, dims, cpu, double), Rows.block(windows)
    _, filling = counted(lambda: cache.cross.put(torch.arange(windows), features))
    prompt = torch.zeros(windows, tokens, dtype=torch.int64)
    _, prompting = counted(lambda: decoder.prefill(prompt, rows, cache))
    # torch counts what the causal mask hides
    hidden = 2 * windows * tokens**2 * dims.n_text_state * dims.n_text_layer
    expected = model.cost(model.prompt_kernels(windows, tokens)).operations
    assert filling + prompting - hidden == expected

    cache = DecoderCache.allocate(plan, windows, dims.n_audio_ctx, dims.n_text_ctx, beams)
    count = windows * beams
    rows = Rows.block(windows, beams)
    step = Step.at(rows, torch.full((count,), tokens), tokens + 1, True, double)
    token = torch.zeros(count, dtype=torch.int64)
    _, stepping = counted(lambda: decoder.step(token, step, cache))
    assert stepping == model.step(tokens + 1).operations

    together = 3  # tokens of each text, which torch reads up to the longest
    several = rows.spread(together)
    places = torch.arange(tokens, tokens + together).repeat(count)
    step = Step.at(several, places, tokens + together, False, double)
    _, checking = counted(lambda: decoder.step(token.repeat_interleave(together), step, cache))
    assert checking == replace(model, tokens=together).step(tokens + together).operations


def test_tokens_of_a_step_read_weights_and_caches_once() -> None:
    """In the limit; then instructions are: 3 tokens of 20 heads are two blocks of 32 queries."""
    plain = Decoding(LARGE, "slim", 64, DEVICES["h200"], SCENARIOS["limit"])
    assert replace(plain, tokens=4).step(224).bytes == plain.step(224).bytes
    present = replace(plain, scenario=SCENARIOS["present"])
    one, two, three, four = (
        replace(present, tokens=t).layer_kernels(224)["cross"][0] for t in (1, 2, 3, 4)
    )
    assert one.kept == two.kept == three.kept == four.kept
    assert 2 * one.cycles == two.cycles == three.cycles and four.cycles == 3 * one.cycles


def test_a_draft_is_as_long_as_pays(capsys: pytest.CaptureFixture[str]) -> None:
    draft = replace(LARGE, n_text_layer=2)
    for batch in (1, 64):
        few, many = (drafted(LARGE, draft, batch, "h200", "present", rate) for rate in (0.6, 0.9))
        assert few.guesses <= many.guesses and 1 < few.speedup < many.speedup
        assert many.tokens == pytest.approx(sum(0.9**i for i in range(many.guesses + 1)))
    alone = drafted(LARGE, draft, 1, "h200", "present", 0.8)
    assert alone.speedup > drafted(LARGE, draft, 64, "h200", "present", 0.8).speedup
    asked = ["report", "large-v3", "--draft", "distil-large-v3", "--device", "h200"]
    assert main([*asked, "--batch", "1"]) == 0
    printed = capsys.readouterr().out
    assert f"{alone.guesses} guesses a step, {alone.tokens:.2f} tokens in" in printed
    assert main([*asked, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["draft"] == "distil-large-v3" and len(found["computed"]) == 6
    assert main([*asked, "--dtype", "float32"]) == 2
    assert "not float32" in capsys.readouterr().err


@pytest.mark.parametrize(("form", "preset"), [("slim", 3), ("baseline", 0)])
def test_bytes_are_those_of_caches_and_weights(form: str, preset: int) -> None:
    """`report` counts them from the engine's buffers, and from the paper's matrices."""
    report, context = make_report(LARGE, 64), LARGE.n_text_ctx // 2
    allocated = report.allocated[preset]
    reads = 1 if form == "baseline" else LARGE.n_text_layer  # E is one, and every layer's
    caches = allocated.cross_bytes * reads + allocated.self_bytes * context // LARGE.n_text_ctx
    weights = 2 * predict(LARGE, 64)[0 if form == "baseline" else 2].parameters
    assert costs(form, 64, "limit").step.bytes == caches + weights


def test_launches() -> None:
    for form, launches in LAUNCHES.items():
        found = costs(form, 256, "present")
        assert sum(part.launches for part in found.layer.values()) == launches
        assert found.step.launches == launches * LARGE.n_text_layer + LAUNCHES_BESIDE
        before = found.encoder.launches + found.prompt.launches
        assert found.window.launches == pytest.approx(before + STEPS * found.step.launches / 256)
    # two of the 30 combine the parts of the two attentions
    layer = costs("slim", 64, "desk check").layer
    assert sum(part.launches for part in layer.values()) == 30
    assert layer["combine"].launches == 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch", [1, 64, 256])
def test_nothing_is_faster_than_the_limit(device: str, form: str, batch: int) -> None:
    limit, before, after = (costs(form, batch, name, device) for name in SCENARIOS)
    for part in ("step", "encoder", "prompt", "decode", "window"):
        least, old, new = (getattr(c, part).seconds for c in (limit, before, after))
        assert least < min(old, new), part
        assert new < old or device != "h200", part


def test_the_limit_is_the_devices() -> None:
    best = DEVICES["h200"]
    half = replace(best, bandwidth=best.bandwidth / 2, tensor=best.tensor / 2)
    slow = Decoding(LARGE, "slim", 64, half, SCENARIOS["limit"]).costs()
    assert slow.window.seconds == pytest.approx(2 * costs("slim", 64, "limit").window.seconds)


# -- the command ---------------------------------------------------------------------------------


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of measurements in the place of the project's; it does not exist."""
    path = tmp_path / "gpu-measured.json"
    monkeypatch.setattr(gpu_report, "read_measured", lambda _: read_measured(path))
    monkeypatch.setenv("COLUMNS", "80")
    return path


def test_prints_computed_numbers(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "large-v3", "turbo", "--device", "h200"]) == 0
    lines = capsys.readouterr().out.splitlines()
    titles = [line for line in lines if "batch 64" in line]
    assert len(titles) == 2 * len(FORMS)
    assert all(title.endswith("computed") for title in titles)
    assert titles[0].startswith("large-v3, slim, float16, batch 64, NVIDIA H200")
    assert "measured" not in " ".join(lines)
    found = costs("slim", 64, "present").layer["cross"].seconds * 1e6
    cross = next(line for line in lines if "cross-attention" in line)
    assert cross.split() == ["cross-attention", "57.2", "103", f"{found:.0f}"]
    assert max(map(len, lines)) <= 80


def test_prints_measured_beside_computed(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        ROW,
        replace(ROW, what="cross", milliseconds=0.1234),
        replace(ROW, what="encoder", batch=16, milliseconds=7.77),
        replace(ROW, what="encoder", batch=8, milliseconds=8.88),
        replace(ROW, device="l4", milliseconds=99),
        replace(ROW, model="turbo", milliseconds=98),
        replace(ROW, batch=32, milliseconds=97),
    ]
    write_measured(rows, measured)
    assert main(["report", "large-v3", "--device", "h200"]) == 0
    slim, float8, _ = capsys.readouterr().out.split("\n\n")[:3]

    def last(table: str, label: str) -> str:
        return next(line for line in table.splitlines() if label in line).split()[-1]

    assert last(slim, "limit") == "measured"
    assert (last(slim, "a step of"), last(slim, "cross-"), last(slim, "encoder")) == (
        *("6.25", "123", "7.77"),
    )
    assert last(slim, "a window") == last(float8, "a step of") == "-"
    assert last(float8, "encoder") == "7.77"  # the same for all forms


def test_beams(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Measurements are of one text a window, so they are not shown beside."""
    write_measured([ROW], measured)
    asked = ["report", "large-v3", "--device", "h200", "--beam_size", "5"]
    assert main(asked) == 0
    printed = capsys.readouterr().out
    assert "batch 64, 5 beams, NVIDIA H200: computed" in printed
    assert "measured" not in printed
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)[0]
    assert found["beams"] == 5
    step = costs("slim", 64, "present", beams=5).step
    assert found["computed"]["present"]["step"] == asdict(step)


def test_json(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_measured([ROW], measured)
    assert main(["report", "large-v3", "--device", "h200", "--batch", "64", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(f["form"], len(f["measured"])) for f in found] == [
        *(("slim", 1), ("slim fp8", 0), ("baseline", 0)),
    ]
    computed = found[0]["computed"]
    assert list(computed) == list(SCENARIOS)
    assert computed["present"]["step"] == asdict(costs("slim", 64, "present").step)
    assert found[0]["measured"][0]["milliseconds"] == 6.25


def test_refuses_what_it_cannot_compute(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OptionError, match="--device computes float16 and bfloat16, not float32"):
        gpu_report.compute_times(make_report("tiny", dtype="float32"), "h200")
    with pytest.raises(SystemExit):
        build_parser().parse_args(["report", "tiny", "--device", "h300"])
    assert "invalid choice: 'h300'" in capsys.readouterr().err


# -- the page ------------------------------------------------------------------------------------


def page_rows() -> list[str]:
    """The rows of docs/gpu.md that hold this model's numbers."""
    seen = {
        (form, batch, name): costs(form, batch, name)
        for form in FORMS
        for batch in (64, 256)
        for name in SCENARIOS
    }
    values: list[tuple[str, int, Callable[[Costs], float]]] = [
        ("cross-attention, us a layer", 64, lambda c: c.layer["cross"].seconds * 1e6),
        ("self-attention, us a layer", 64, lambda c: c.layer["self"].seconds * 1e6),
        ("combining parts, us a layer", 64, lambda c: c.layer["combine"].seconds * 1e6),
        ("products, us a layer", 64, lambda c: c.layer["products"].seconds * 1e6),
        ("other kernels, us a layer", 64, lambda c: c.layer["other"].seconds * 1e6),
        ("step, 64 windows, ms", 64, lambda c: c.step.seconds * 1e3),
        ("step, 256 windows, ms", 256, lambda c: c.step.seconds * 1e3),
        ("decode, 64 together, ms", 64, lambda c: c.decode.seconds * 1e3),
        ("decode, 256 together, ms", 256, lambda c: c.decode.seconds * 1e3),
        ("encoder, ms", 64, lambda c: c.encoder.seconds * 1e3),
        ("prompt, ms", 64, lambda c: c.prompt.seconds * 1e3),
        ("host, GPU idle, ms", 64, lambda c: c.host * 1e3),
        ("x real time, 64 together", 64, lambda c: c.speed),
        ("x real time, 256 together", 256, lambda c: c.speed),
    ]
    rows = []
    for label, batch, value in values:
        cells = [gpu_report._number(value(seen[f, batch, s])) for f in FORMS for s in SCENARIOS]
        rows.append(f"| {label} | {' | '.join(cells)} |")
    for beams in (1, 2, 3, 5, 8):
        found = [costs(form, 64, "present", beams=beams) for form in ("slim", "baseline")]
        cells = [gpu_report._number(c.layer["cross"].seconds * 1e6) for c in found]
        cells += [gpu_report._number(c.step.seconds * 1e3) for c in found]
        rows.append(f"| {beams} beams | {' | '.join(cells)} |".replace("| 1 beams", "| greedy"))
    for name, device in DEVICES.items():
        found = [costs(form, 64, "present", name) for form in FORMS]
        cells = [gpu_report._number(c.step.seconds * 1e3) for c in found]
        cells += [gpu_report._number(c.speed) for c in found]
        rows.append(f"| {device.gpu} | {' | '.join(cells)} |")
    return rows


def test_the_page_has_these_numbers() -> None:
    page = (ROOT / "docs" / "gpu.md").read_text()
    missing = [row for row in page_rows() if row not in page]
    assert not missing, "docs/gpu.md needs these rows:\n" + "\n".join(missing)
    for what, meaning in WHATS.items():
        assert f"| `{what}` | {meaning} |" in page
