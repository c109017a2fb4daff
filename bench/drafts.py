"""Drafts: python bench/drafts.py rated|texts [--results FILE] ...

rated: how much faster a large model writes, with random weights in official shapes and guesses that
are right with the probability of --rates. The draft computes its guesses, which takes its time, and
they are then made right or wrong. Decoders alone: the encoder's output is made up. texts FOLDER
--model M --draft D: whether the texts of recordings are the same with a real draft, and the time
saved; the recordings are encoded once.

Each round decodes the same windows without a draft and with one, in turns. With --results, each
measurement is written at once, and one that is there, with the same settings, versions, machine and
commit, is not made again. Prints a table and ends in one line of JSON.
"""

import argparse
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, product
from pathlib import Path
from typing import Any

import torch
from engines import window
from rows import Row, Rows, add_results_flag, listed, spread, stoppable, table
from timing import machine
from torch import Tensor

from slimwhisper.audio.formats import AUDIO_SUFFIXES
from slimwhisper.audio.load import load_audio
from slimwhisper.audio.mel import Spectrogram
from slimwhisper.audio.samples import ArraySamples
from slimwhisper.cache.decoder_cache import CrossCache
from slimwhisper.cache.forms import names_of
from slimwhisper.cache.rows import Rows as CacheRows
from slimwhisper.checkpoint.load import load_checkpoint
from slimwhisper.checkpoint.random_weights import random_checkpoint
from slimwhisper.commands.costs import OFFICIAL_DIMS
from slimwhisper.devices import INT8
from slimwhisper.digests import weights_digest
from slimwhisper.engine.drafting.draft_model import DraftModel, fast_draft, load_draft
from slimwhisper.engine.drafting.drafter import DraftContext
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Decoded, Window
from slimwhisper.errors import SlimWhisperError
from slimwhisper.flags import positive
from slimwhisper.longform.session import Session
from slimwhisper.model.model import Model
from slimwhisper.options import Options

SETTINGS = {  # of the tables: what has more than one round
    "rated": ("shape", "dtype", "cross", "windows", "rate"),
    "texts": ("model", "windows"),
}
CPU = torch.device("cpu")


def main() -> None:
    args = parsed()
    rows = Rows(args.results, "drafts", CPU)
    try:
        with stoppable(args.results):
            rows_of_cases = rated(args, rows) if args.what == "rated" else texts(args, rows)
    except SlimWhisperError as error:
        raise SystemExit(f"drafts.py: {error}") from None
    print(speed_table(args.what, rows_of_cases))
    print(json.dumps({"bench": "drafts", "machine": machine(CPU), "results": rows_of_cases}))
    exact = [row for row in rows_of_cases if row.get("dtype", "float32") == "float32"]
    if wrong := sum(row["different"] for row in exact):
        raise SystemExit(f"{wrong} texts differ from those without a draft")


def parsed() -> argparse.Namespace:
    """The arguments; exits with status 2 if they do not fit together."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parts = parser.add_subparsers(dest="what", required=True)
    rated, texts = (parts.add_parser(name) for name in SETTINGS)
    shapes = listed(str, OFFICIAL_DIMS)
    rated.add_argument("--shapes", type=shapes, default=["large-v3"], help="[large-v3]")
    rated.add_argument("--rates", type=listed(float), default=[0.6, 0.8, 0.9], help="[0.6,0.8,0.9]")
    dtypes = listed(str, ("float32", "bfloat16", INT8))
    rated.add_argument("--dtypes", type=dtypes, default=["float32"], help="[float32]")
    forms = listed(str, names_of("cross"))
    help = "the model's caches of the audio [e]"
    rated.add_argument("--cross-caches", type=forms, default=["e"], help=help)
    rated.add_argument("--tokens", type=positive, default=48, help="of each text [48]")
    rated.add_argument("--layers", type=positive, default=2, help="of the draft's decoder [2]")
    texts.add_argument("folder", type=Path, help="recordings; of each, the first 30 s")
    texts.add_argument("--count", type=positive, help="of the recordings [all]")
    texts.add_argument("--model", default="digits")
    texts.add_argument("--draft", required=True, help="a model with the same encoder")
    for part, windows in ((rated, [1, 4]), (texts, [1, 4])):
        known = ",".join(map(str, windows))
        part.add_argument("--windows", type=listed(positive), default=windows, help=f"[{known}]")
        part.add_argument("--rounds", type=positive, default=3)
        add_results_flag(part)
    args = parser.parse_args()
    if args.what == "texts" and not args.folder.is_dir():
        parser.error(f"{args.folder}: no such folder; name one with recordings")
    return args


class Rated(DraftModel):
    """Guesses that are right with a given probability, in the time that a draft takes."""

    def __init__(
        self,
        draft: Model,
        target: Model,
        text: tuple[int, ...],
        rate: float,
        cross: CrossCache,
        rows: int,
        pages: int,
    ) -> None:
        """text: that all windows will have."""
        super().__init__(draft, target, cross, rows, pages)
        self.text, self.rate = text, rate
        self.random = torch.Generator().manual_seed(0)
        self.prompt = 0

    def begin(self, prompts: Tensor, rows: CacheRows) -> None:
        super().begin(prompts, rows)
        self.prompt = prompts.shape[1]

    def logits(self, behind: DraftContext) -> Tensor:
        logits = super().logits(behind)
        places = behind.positions[:, -1] + 1 - self.prompt
        known = torch.tensor([*self.text, 0])[places.clamp(max=len(self.text))]
        wrong = torch.rand(len(known), generator=self.random) >= self.rate
        return logits.scatter(1, (known + wrong.long())[:, None], 1e4)


def rated(args: argparse.Namespace, rows: Rows) -> list[Row]:
    """Measure what the results do not have yet; returns all rows."""
    rows_of_cases = []
    for shape, dtype, cross in product(args.shapes, args.dtypes, args.cross_caches):
        case = {"what": "rated", "shape": shape, "dtype": dtype, "layers": args.layers}
        case |= {"cross": cross, "tokens": args.tokens, "threads": torch.get_num_threads()}
        models: tuple[Model, Model] | None = None
        for windows in args.windows:
            cases = [{**case, "windows": windows, "rate": rate} for rate in args.rates]
            if left := missing(rows, args, cases):
                models = models or made(shape, dtype, cross, args.layers)
                measure(*models, [window(models[0], args.tokens, 0)] * windows, left, rows)
            rounds = range(args.rounds)
            rows_of_cases += [rows.kept(**one, round=n)[-1] for one in cases for n in rounds]
    return rows_of_cases


def made(shape: str, dtype: str, cross: str, layers: int) -> tuple[Model, Model]:
    """A model with random weights whose encoder's output is made up, and a draft of `layers`.
    cross: the form of the model's cache of the audio.
    """
    dims, random = replace(OFFICIAL_DIMS[shape], n_audio_layer=1), torch.Generator().manual_seed(0)
    number = torch.float32 if dtype == INT8 else getattr(torch, dtype)
    model = Model(random_checkpoint(dims, 0), CPU, number, (cross, "x"), int8=dtype == INT8)
    made_up = torch.randn(1, dims.n_audio_ctx, dims.n_audio_state, generator=random)
    vars(model)["encoder"] = lambda mel: made_up.to(model.dtype).expand(len(mel), -1, -1)
    return model, fast_draft(random_checkpoint(replace(dims, n_text_layer=layers), 1), model)


def measure(
    model: Model, draft: Model, windows: Sequence[Window], left: Sequence[Row], rows: Rows
) -> None:
    """Rounds: with each rate, and just before without a draft."""
    plain = Engine(model, model.vocabulary, len(windows))
    text = decoded(plain, windows)[0][0]
    drafted = {}
    for rate in dict.fromkeys(row["rate"] for row in left):
        maker = partial(Rated, draft, model, text, rate)
        drafted[rate] = Engine(model, model.vocabulary, len(windows), draft=maker)
        decoded(drafted[rate], windows)  # its lane learns how long steps take
    for row in left:
        without = decoded(plain, windows)
        rows.add(**row, **compared(without, drafted[row["rate"]], windows))


def texts(args: argparse.Namespace, rows: Rows) -> list[Row]:
    """Measure what the results do not have yet; returns all rows."""
    paths = sorted(p for p in args.folder.iterdir() if p.suffix in AUDIO_SUFFIXES)[: args.count]
    checkpoint, smaller = load_checkpoint(args.model), load_checkpoint(args.draft)
    case = {
        "what": "texts",
        "model": args.model,
        "draft": Path(args.draft).name,
        "weights": [weights_digest(checkpoint.state), weights_digest(smaller.state)],
        "recordings": len(paths),
        "threads": torch.get_num_threads(),
    }
    cases = [{**case, "windows": windows} for windows in args.windows]
    if left := missing(rows, args, cases):
        model = Model(checkpoint, CPU, torch.float32)
        maker = partial(DraftModel, load_draft(smaller, checkpoint, model), model)
        windows, spent = encoded(model, paths)
        for slots in dict.fromkeys(row["windows"] for row in left):
            plain = Engine(model, model.vocabulary, slots)
            drafted = Engine(model, model.vocabulary, slots, draft=maker)
            for engine in (plain, drafted):
                decoded(engine, windows[: 2 * slots])  # a lane learns how long steps take
            for row in left:
                if row["windows"] == slots:
                    without = decoded(plain, windows)
                    difference = compared(without, drafted, windows)
                    rows.add(**row, **difference, encoder_seconds=spent)
    return [rows.kept(**one, round=n)[-1] for one in cases for n in range(args.rounds)]


def encoded(model: Model, paths: Sequence[Path]) -> tuple[list[Window], float]:
    """The first window of each recording, whose encoder output the model will remember; and the
    seconds that the encoder took.
    """
    options, windows, spent = Options(language="en"), [], 0.0
    outputs: list[Tensor] = []  # [p, d] of each window
    for number, path in enumerate(paths):
        mel = Spectrogram(ArraySamples(load_audio(str(path))), model.dims.n_mels)
        session = Session(mel, model.dims, options, vocabulary=model.vocabulary)
        request = session.next_request()
        assert isinstance(request, Window) and request.mel is not None
        since = time.perf_counter()
        with torch.inference_mode():
            outputs.append(model.encoder(request.mel[None])[0])
        spent += time.perf_counter() - since
        # only its number is read
        windows.append(replace(request, mel=torch.tensor(float(number)).expand_as(request.mel)))
        mel.close()
    features = torch.stack(outputs)
    vars(model)["encoder"] = lambda mel: features[mel[:, 0, 0].long()]
    return windows, spent


def missing(rows: Rows, args: argparse.Namespace, cases: Iterable[Row]) -> list[Row]:
    """The cases, each with a round, that were not measured yet; round by round."""
    every = [{**case, "round": n} for n in range(args.rounds) for case in cases]
    return [case for case in every if not rows.kept(**case)]


Texts = tuple[list[tuple[int, ...]], float]  # tokens of each window, and the seconds they took


def decoded(engine: Engine, windows: Sequence[Window]) -> Texts:
    """The texts of all windows."""
    since = time.perf_counter()
    answers = engine.run(windows)
    texts = [answer.tokens for answer in answers if isinstance(answer, Decoded)]
    return texts, time.perf_counter() - since


def compared(without: Texts, engine: Engine, windows: Sequence[Window]) -> dict[str, Any]:
    """Decodes them with a draft, too: columns of a row."""
    speculation = engine.group_runners[0].speculation
    assert speculation is not None
    drafts = speculation.acceptance
    drafts.drafted = drafts.accepted = 0
    texts, seconds = decoded(engine, windows)
    tokens = sum(map(len, texts))
    return {
        "seconds": seconds,
        "seconds_without": without[1],
        "times_as_fast": without[1] / seconds,
        "different": sum(a != b for a, b in zip(without[0], texts, strict=True)),
        "sampled": tokens,
        "tokens_per_step": tokens / max(tokens - drafts.accepted, 1),  # of each text
        "guessed": drafts.drafted,
        "right": drafts.accepted,
    }


def speed_table(what: str, rows: Sequence[Row]) -> str:
    """Medians of the rounds, with the least and the most, in Markdown."""
    names = SETTINGS[what]
    lines = []
    for key, some in groupby(rows, lambda row: [row[name] for name in names]):
        rounds = list(some)
        cells = [spread([row["times_as_fast"] for row in rounds])]
        if what == "texts":  # with the encoder, which is the same for both
            cells.append(spread([with_encoder(row) for row in rounds]))
        guessed, right = (sum(row[k] for row in rounds) for k in ("guessed", "right"))
        share = f"{100 * right / guessed:.0f} %" if guessed else "-"
        without = spread([1000 * r["seconds_without"] / r["sampled"] for r in rounds], ".1f")
        different = sum(row["different"] for row in rounds)
        steps = spread([row["tokens_per_step"] for row in rounds])
        cells += [steps, share, without, str(different)]
        lines.append([*key, *cells])
    speeds = ["times as fast", *(["with the encoder"] if what == "texts" else [])]
    rest = ["tokens a step", "guesses right", "ms a token without", "texts that differ"]
    return table([*names, *speeds, *rest], lines)


def with_encoder(row: Row) -> float:
    """Times as fast, with the encoder, which is the same for both."""
    without, spent = (row[k] + row["encoder_seconds"] for k in ("seconds_without", "seconds"))
    return without / spent


if __name__ == "__main__":
    main()
