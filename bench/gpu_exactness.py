"""How exact a device is, in half precision: python bench/gpu_exactness.py [--shapes ...]

    random   logits of a decoder with random weights, token by token along one text, against those
             of the CPU in float32: the largest difference, as a share of their standard deviation,
             and how often the most likely token is the same
    trained  texts of the bundled model and samples, against those of the CPU in float32
    overlap  texts of steps beside which the encoder works, against texts of the same steps alone

random and trained: for each form of cache. The exit status is 1 if a trained text differs, or one
with overlap. With --results, appends each row to a file.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from engines import full_engine, load, make_parser
from rows import Rows, preset_of
from timing import synchronize
from torch import Tensor

import slimwhisper
from slimwhisper.cache.base import DecodeStep
from slimwhisper.cache.base import Rows as CacheRows
from slimwhisper.cache.decoder_cache import DecoderCache
from slimwhisper.engine.passes import AsyncEncoder
from slimwhisper.model.model import Model

SAMPLES = Path(__file__).parents[1] / "samples"
PROMPT = 4  # tokens that are read together; each other one is a step


@torch.inference_mode()
def stepwise_logits(model: Model, mel: Tensor, tokens: Tensor) -> Tensor:
    """mel [B, n_mels, 3000], tokens [B, T] -> [B, T - PROMPT + 1, V] float32, on the CPU."""
    rows = CacheRows.block(len(mel), device=model.device)
    cache = DecoderCache(model.allocate_cross(len(mel)), model.allocate_self(len(mel)))
    cache.cross.put(rows.slots, model.encoder(mel))
    tokens = tokens.to(model.device)
    hidden = model.decoder.prefill(tokens[:, :PROMPT], rows, cache)
    found = [model.decoder.logits(hidden[:, -1])]
    for position in range(PROMPT, tokens.shape[1]):
        positions = torch.full((len(mel),), position, device=model.device)
        step = DecodeStep.at(rows, positions, position + 1, False, model.dtype)
        found.append(model.decoder.step(tokens[:, position], step, cache))
    return torch.stack(found, dim=1).float().cpu()


def compare_random(shape: str, args: argparse.Namespace, rows: Rows) -> None:
    on_cpu = argparse.Namespace(device="cpu", dtype="float32")
    reference = load(shape, "baseline", on_cpu)
    generator, dims = torch.Generator().manual_seed(0), reference.dims
    mel = torch.randn(args.windows, dims.n_mels, 3000, generator=generator)
    size = (args.windows, args.tokens)
    tokens = torch.randint(0, dims.n_vocab, size, generator=generator)
    expected = stepwise_logits(reference, mel, tokens)
    del reference
    for form in args.forms:
        found = stepwise_logits(load(shape, form, args), mel, tokens)
        largest = float((found - expected).abs().max() / expected.std())
        same = float((found.argmax(-1) == expected.argmax(-1)).float().mean())
        case = {"model": shape, **preset_of(form), "dtype": args.dtype, "batch": args.windows}
        rows.add(**case, what="logits", largest=largest, same_token=same)
        print(f"{shape}, {form}: largest difference {largest:.2g}, same token {same:.1%}")


def compare_trained(args: argparse.Namespace, rows: Rows) -> int:
    """How many texts differ."""
    paths = sorted(SAMPLES.glob("*.flac")) + sorted(SAMPLES.glob("*.wav"))

    def texts(**options: Any) -> dict[str, str]:
        model, found = slimwhisper.load_model("digits", **options), {}
        for path, result in model.transcribe_many(map(str, paths), batch_size=8):
            if isinstance(result, Exception):
                raise result
            found[str(path)] = result.text
        return found

    expected, differ = texts(device="cpu", dtype="float32", cache="baseline"), 0
    for form in args.forms:
        columns = preset_of(form)
        given = {"cache": columns["preset"], "cache_dtype": columns["cache_dtype"]}
        found = texts(device=args.device, dtype=args.dtype, **given)
        wrong = [path for path, text in expected.items() if found[path] != text]
        for path in wrong:
            print(f"  {path}: {expected[path]!r}, {form}: {found[path]!r}")
        case = {"model": "digits", **columns, "dtype": args.dtype}
        rows.add(**case, what="texts", count=len(wrong), of=len(paths))
        print(f"digits, {form}: {len(wrong)} of {len(paths)} texts differ")
        differ += len(wrong)
    return differ


def compare_overlap(shape: str, args: argparse.Namespace, rows: Rows) -> int:
    """How many texts differ."""
    model = load(shape, args.forms[0], args)
    slots = 64 if model.device.type == "cuda" else 2
    mel = torch.randn(8, model.dims.n_mels, 3000)

    def texts(overlap: bool) -> Tensor:
        engine = full_engine(model, slots, 1)
        engine.runner.encoder = AsyncEncoder(model, engine.encode_batch)  # it has not encoded yet
        for number in range(args.steps):
            if overlap and number % 8 == 0:
                engine.runner.encoder.begin((), list(mel[: 1 + number // 8 % 8]), number % 16 > 0)
            engine.step()
        synchronize(model.device)  # the steps have a stream of their own
        return engine.group_runners[0].state.texts.sampled[:slots].cpu()

    differ = int((texts(False) != texts(True)).any(dim=1).sum())
    case = {"model": shape, **preset_of(args.forms[0]), "dtype": args.dtype, "batch": slots}
    rows.add(**case, what="overlap", count=differ, steps=args.steps)
    print(f"{shape}: {differ} of {slots} texts differ beside the encoder")
    return differ


def main() -> None:
    parser, gpu = make_parser(__doc__, ["tiny"], "slim", "baseline"), torch.cuda.is_available()
    parser.add_argument("--windows", type=int, default=4, help="for random")
    parser.add_argument("--tokens", type=int, default=32, help="of a text, for random")
    parser.add_argument("--steps", type=int, default=160 if gpu else 8, help="for overlap")
    args = parser.parse_args()
    rows = Rows(args.results, "exactness", torch.device(args.device))
    differ = compare_trained(args, rows)
    for shape in args.shapes:
        compare_random(shape, args, rows)
        differ += compare_overlap(shape, args, rows)
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
