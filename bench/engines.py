"""Engines with random weights whose windows sample a fixed number of tokens; for the benchmarks."""

import argparse
import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from rows import add_results_flag, preset_of
from timing import synchronize
from torch import Tensor

from slimwhisper.cache.forms import PRESETS, choose_forms
from slimwhisper.commands.costs import OFFICIAL_DIMS
from slimwhisper.commands.random_weights import random_checkpoint
from slimwhisper.devices import INT8, choose_dtype
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Decoded, Rules, Search, Window
from slimwhisper.formats.load import load_checkpoint
from slimwhisper.guard import guarded_plan
from slimwhisper.longform.requests import make_rules
from slimwhisper.model.model import Model
from slimwhisper.options import Options

FORMS = (*PRESETS, "slim-fp8")
CONTEXT = 160  # prompt tokens: a step's texts stay below 256 tokens, so one graph serves them
WARM_UP = 6  # steps: the first runs without a graph, the second is recorded


weights = cache(random_checkpoint)  # of a large shape they take half a minute


def make_parser(doc: str, shapes: Sequence[str], *forms: str) -> argparse.ArgumentParser:
    """The arguments of all benchmarks of models. shapes, forms: the defaults."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    gpu = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if gpu else "cpu")
    parser.add_argument("--dtype", default="float16" if gpu else "float32")
    parser.add_argument("--shapes", nargs="+", choices=list(OFFICIAL_DIMS), default=shapes)
    if forms:
        parser.add_argument("--forms", nargs="+", choices=FORMS, default=forms)
    add_results_flag(parser)
    return parser


def models(args: argparse.Namespace) -> Iterator[tuple[Model, dict[str, Any]]]:
    """The models of all shapes, or of a checkpoint, and all forms; with their rows' columns."""
    trained = vars(args).get("model")
    for shape in [trained] if trained else args.shapes:
        for form in args.forms:
            model = load(shape, form, args, trained=bool(trained))
            print(f"== {shape}, {form}: {model.plan.kernels.describe()}", flush=True)
            yield model, {"model": shape, **preset_of(form), "dtype": args.dtype}


def load(shape: str, form: str, args: argparse.Namespace, trained: bool = False) -> Model:
    """Random weights of a shape, or a trained checkpoint, with caches such as "slim-fp8"."""
    preset, _, number = form.partition("-")
    forms = choose_forms(preset, cache_dtype=number or None)
    device = torch.device(args.device)
    dtype = choose_dtype(args.dtype, device)
    checkpoint = load_checkpoint(shape) if trained else weights(OFFICIAL_DIMS[shape])
    return Model(checkpoint, device, dtype, forms, guarded_plan, args.dtype == INT8)


def rules(model: Model, tokens: int | None, most: int = 0) -> Rules:
    """For texts of exactly `tokens` tokens; None: of as many as the model decides, `most`."""
    banned = "-1" if tokens is None else f"-1,{model.vocabulary.eot}"
    options = Options(sample_len=tokens or most, suppress_tokens=banned, without_timestamps=True)
    return make_rules(model.dims, options, model.vocabulary)


def window(model: Model, tokens: int, before: int, seed: int = 0) -> Window:
    """A window that samples exactly `tokens` tokens, after a prompt of `before`."""
    tokenizer = model.vocabulary.tokenizer()
    mel = torch.randn(model.dims.n_mels, 3000, generator=torch.Generator().manual_seed(seed))
    previous = [tokenizer.sot_prev, *range(1000, 1000 + before)] if before else []
    prompt = (*previous, *tokenizer.sot_sequence)
    return Window(mel, prompt, len(previous), rules(model, tokens))


def make_engine(model: Model, windows: int, beams: int, check_every: int | None = None) -> Engine:
    gc.collect()  # the caches of an engine before it may leave no room
    search = Search(beams=beams if beams > 1 else None)
    return Engine(model, windows, search, check_every)


def decode(engine: Engine, windows: Sequence[Window]) -> tuple[float, list[tuple[int, ...]]]:
    """Seconds, and each window's tokens. The first time kernels are compiled, the second time
    graphs are recorded.
    """
    synchronize(engine.model.device)
    since = time.perf_counter()
    found: dict[int, tuple[int, ...]] = {}
    for number, window in enumerate(windows):
        engine.submit(number, window)
    while not engine.idle:
        for ticket, answer in engine.step():
            assert isinstance(answer, Decoded)
            found[ticket.number] = answer.tokens
            engine.reply(ticket)
    synchronize(engine.model.device)
    seconds = time.perf_counter() - since
    return seconds, [tokens for _, tokens in sorted(found.items())]


@contextmanager
def without_encoder(model: Model) -> Iterator[None]:
    """The encoder's output is zeros, at once, so that windows start together."""
    stand_in: Any = model  # any function may stand in for its encoder
    encoder, shape = model.encoder, (model.dims.n_audio_ctx, model.dims.n_audio_state)

    def zeros(mel: Tensor) -> Tensor:
        return torch.zeros((len(mel), *shape), device=model.device, dtype=model.dtype)

    stand_in.encoder = zeros
    try:
        yield
    finally:
        model.encoder = encoder


def serially(engine: Engine) -> None:
    """Make an engine wait for the GPU before and after it encodes: windows arrive when they would
    on a CPU, in groups that do not depend on time.
    """
    encoder: Any = engine.runner.encoder
    begin, device = encoder.begin, engine.model.device

    def begin_and_wait(*arguments: object) -> None:
        synchronize(device)
        begin(*arguments)
        synchronize(device)

    encoder.begin = begin_and_wait


def full_engine(model: Model, windows: int, beams: int) -> Engine:
    """An engine whose slots all decode, warmed up."""
    engine = make_engine(model, windows, beams, check_every=1000)
    serially(engine)
    room = model.dims.n_text_ctx - CONTEXT - 8
    for _ in range(windows):
        engine.submit(0, window(model, room, CONTEXT))
    with without_encoder(model):
        while len(engine.scheduler.main_group.tickets) < windows:
            engine.step()
    for _ in range(WARM_UP):
        engine.step()
    return engine


@contextmanager
def only_replays(engine: Engine, steps: int) -> Iterator[None]:
    """Fails unless `steps` steps, and on a GPU nothing but replays of one graph, run within."""
    graphs, tickets = engine.group_runners[0].graphs, engine.scheduler.main_group.tickets
    before = None if graphs is None else (len(graphs.recorded), graphs.replays)
    lengths = [ticket.length for ticket in tickets]
    yield
    assert [t.length - n for t, n in zip(tickets, lengths, strict=True)] == [
        steps
    ] * engine.batch_size
    if graphs is not None and before is not None:
        found = (len(graphs.recorded), graphs.replays)
        assert found == (before[0], before[1] + steps), f"{before} graphs and replays, then {found}"
