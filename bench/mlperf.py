"""Windows a second as MLPerf Inference counts them for Whisper, offline: python bench/mlperf.py

    python bench/mlperf.py --shapes large-v3 --slots 256
    python bench/mlperf.py --model large-v3 --audio LibriSpeech --slots 256 --loadgen log

1,633 windows, padded to 30 s, again and again: a prompt of four tokens, greedy, without time stamps
or fallback, log-mel spectrograms included. Without --audio they are noise, and their texts have
lengths that are drawn once, 75 tokens on average. --audio: a folder of recordings of at most 30 s,
those of a chapter of LibriSpeech joined as MLPerf joins them; with texts beside (.txt, .trans.txt)
it counts word errors, by Whisper's English normalizer, which comes with openai-whisper.

It ends after --minutes, or after --windows. With --loadgen, MLCommons' load generator (pip install
mlcommons-loadgen) asks for as many windows as --windows, or up to 1,632 more, and writes its log
into that folder; it says VALID if they took as long as --minutes. No number is a result of MLPerf:
none is verified. Ends in one line of JSON for each number of slots.
"""

import argparse
import json
from array import array
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from engines import make_engine, make_parser, models, rules
from rows import Rows
from timing import print_machine

from slimwhisper.audio.load import load_audio
from slimwhisper.audio.mel import first_window
from slimwhisper.commands.random_weights import Audio, recordings
from slimwhisper.cores import WORKERS
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Decoded, Window
from slimwhisper.model.model import Model
from slimwhisper.recordings.transcribe import Loader
from slimwhisper.research.comparison import edits, find_recordings
from slimwhisper.tokens.vocabulary import text_only

COUNT, TOKENS, MOST = 1633, 75, 200  # windows, and tokens of a text: on average, and at most
LONGEST, PAUSE = 30 * 16_000, np.zeros(8_000, np.float32)  # of a window; between joined recordings
Query = tuple[int, int]  # its name, and the number of its sample
Tokens = tuple[int, ...]
Complete = Callable[[int, Tokens], None]  # is told a query's name, and its text


class Sample(NamedTuple):
    """What is in a window."""

    sound: Audio
    tokens: int | None  # of its text; None: the model decides
    said: str | None = None  # None: it is not known


def noise() -> list[Sample]:
    """As long as MLPerf's, 23.2 s on average, by readers who are 15 % faster or slower."""
    random = np.random.default_rng(0)
    filled = random.beta(4, 1, COUNT)  # of 29 s
    spoken = filled * random.normal(1, 0.15, COUNT)
    tokens = np.rint(spoken * TOKENS / spoken.mean()).clip(1, MOST)
    lengths = (filled * len(recordings(1)[0])).astype(int)
    drawn = zip(recordings(COUNT), lengths, tokens, strict=True)
    return [Sample(sound[:length], int(count)) for sound, length, count in drawn]


def speech(folder: Path) -> list[Sample]:
    """A folder's recordings. Their names begin with the chapter: 84-121123-0000.flac."""
    texts, samples, last = dict[str, str](), list[Sample](), [""]
    for file in folder.rglob("*.trans.txt"):
        rows = file.read_text(encoding="utf-8").splitlines()
        texts |= {line[0]: line[1] for row in rows if (line := row.split(" ", 1))[1:]}
    for path, said in find_recordings([str(folder)]):
        chapter, text = path.stem.split("-")[:2], texts.get(path.stem, said)
        sound = load_audio(path)
        if len(sound) > LONGEST:
            continue
        if chapter == last and len(samples[-1].sound) + len(PAUSE) + len(sound) <= LONGEST:
            before = samples.pop()
            sound = np.concatenate([before.sound, PAUSE, sound])
            text = before.said and text and f"{before.said} {text}"
        samples.append(Sample(sound, None, text))
        last = chapter
    return samples


def decoded(
    engine: Engine, samples: list[Sample], queries: Iterable[Query]
) -> Iterator[tuple[Query, Tokens]]:
    """Each query and its text, in the order in which they end."""
    model = engine.model
    prompt = model.vocabulary.tokenizer("en").sot_sequence_including_notimestamps
    forms = {tokens: rules(model, tokens, MOST) for tokens in {s.tokens for s in samples}}

    def prepare(query: Query) -> Window:
        sample = samples[query[1]]
        mel = first_window(sample.sound, model.dims.n_mels)
        return Window(mel, prompt, 0, forms[sample.tokens])

    loader = Loader(queries, prepare, 2 * engine.encode_batch, WORKERS)
    while not (loader.exhausted and engine.idle):
        while engine.room > 0 and (ready := loader.next(block=engine.idle)):
            query, window = ready
            if isinstance(window, Exception):
                raise window
            engine.submit(query, window)
        for ticket, answer in engine.step():
            engine.reply(ticket)
            assert isinstance(answer, Decoded) and isinstance(ticket.owner, tuple)
            yield ticket.owner, answer.tokens


def by_loadgen(
    args: argparse.Namespace, count: int, answer: Callable[[Iterable[Query], Complete], None]
) -> None:
    """MLCommons' load generator asks, by its own settings for Whisper."""
    import mlperf_loadgen as lg

    def complete(name: int, tokens: Tokens) -> None:
        address, length = (data := array("q", tokens)).buffer_info()
        response = lg.QuerySampleResponse(name, address, length * data.itemsize, length)
        lg.QuerySamplesComplete([response])

    args.loadgen.mkdir(parents=True, exist_ok=True)
    config = args.loadgen / "user.conf"
    config.write_text(f"*.Offline.target_qps = {args.windows / (66 * args.minutes)}\n")
    settings, log = lg.TestSettings(), lg.LogSettings()
    settings.FromConfig(str(config), "whisper", "Offline")
    settings.scenario, settings.mode = lg.TestScenario.Offline, lg.TestMode.PerformanceOnly
    settings.min_duration_ms = round(60_000 * args.minutes)
    settings.min_query_count = settings.performance_sample_count_override = count
    log.log_output.outdir = str(args.loadgen)
    asked = lg.ConstructSUT(
        lambda queries: answer(((q.id, q.index) for q in queries), complete), lambda: None
    )
    library = lg.ConstructQSL(count, count, lambda _: None, lambda _: None)
    lg.StartTestWithLogSettings(asked, library, settings, log, "")
    lg.DestroyQSL(library)
    lg.DestroySUT(asked)


def word_errors(model: Model, samples: list[Sample], texts: dict[int, Tokens]) -> float | None:
    """In percent; None if it is not known what was said."""
    known = {number: said for number in texts if (said := samples[number].said)}
    if not known:
        return None
    from whisper.normalizers import EnglishTextNormalizer

    normal, tokenizer = EnglishTextNormalizer(), model.vocabulary.tokenizer("en")
    truth = [normal(said).split() for said in known.values()]
    heard = (normal(tokenizer.decode(text_only(texts[n], tokenizer))).split() for n in known)
    return 100 * sum(map(edits, truth, heard)) / sum(map(len, truth))


def measure(model: Model, case: dict[str, Any], args: argparse.Namespace, rows: Rows) -> None:
    """With one number of slots."""
    samples = speech(args.audio) if args.audio else noise()
    engine, texts, spent = make_engine(model, case["batch"], 1), list[tuple[int, Tokens]](), 0.0

    def answer(queries: Iterable[Query], complete: Complete = lambda *_: None) -> None:
        nonlocal spent
        since = perf_counter()
        for (name, number), tokens in decoded(engine, samples, queries):
            complete(name, tokens)
            texts.append((number, tokens))
        spent += perf_counter() - since

    few = min(2 * case["batch"], args.windows, len(samples))
    list(decoded(engine, samples, ((i, i) for i in range(few))))  # kernels and graphs are made
    if args.loadgen:
        by_loadgen(args, min(len(samples), args.windows), answer)
    else:
        end = perf_counter() + 60 * args.minutes
        names = takewhile(lambda _: perf_counter() < end, range(args.windows))
        answer((name, name % len(samples)) for name in names)
    count, tokens = len(texts), sum(len(tokens) for _, tokens in texts)
    errors = word_errors(model, samples, dict(texts))
    each = 1000 * spent / count
    speed = f"{count / spent:.1f} windows a second, {tokens / spent:.0f} tokens a second"
    row = {"windows": count, "tokens": tokens, "seconds": spent, "word_errors": errors}
    print(
        f"{case['batch']:4} slots: {speed}, {each:.2f} ms a window; "
        f"{count} windows of {tokens / count:.1f} tokens in {spent:.1f} s"
    )
    print(json.dumps(rows.add(**case, what="window", milliseconds=each, **row)), flush=True)


def main() -> None:
    parser, gpu = make_parser(__doc__, ["tiny"], "slim"), torch.cuda.is_available()
    parser.add_argument("--model", help="a trained checkpoint, in place of --shapes")
    parser.add_argument("--audio", type=Path, help="a folder of recordings, with --model")
    parser.add_argument("--slots", type=int, nargs="+", default=[64, 256] if gpu else [2])
    parser.add_argument("--windows", type=int, default=20_000, help="at most [20000]")
    parser.add_argument("--minutes", type=float, default=10, help="at most [10]")
    parser.add_argument("--loadgen", type=Path, help="a folder for the load generator's log")
    args = parser.parse_args()
    if args.audio and not args.model:
        parser.error("--audio needs --model: random weights do not know when a text ends")
    if args.loadgen and find_spec("mlperf_loadgen") is None:
        parser.error("--loadgen needs a package: pip install mlcommons-loadgen")
    rows = Rows(args.results, "mlperf", torch.device(args.device))
    print_machine(torch.device(args.device))
    for model, case in models(args):
        for slots in args.slots:
            measure(model, {**case, "batch": slots}, args, rows)


if __name__ == "__main__":
    main()
