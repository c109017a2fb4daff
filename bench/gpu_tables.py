"""The computed tables of docs/gpu.md: python bench/gpu_tables.py [MODEL] [--update]

--update: writes them there.
"""

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpu_model import CHANGES, DEVICES, DONE, Decoding, Device

from slimwhisper.commands.costs import OFFICIAL_DIMS
from slimwhisper.types import Dims

PAGE = Path(__file__).parents[1] / "docs" / "gpu.md"
FORMS = ("slim", "slim fp8", "baseline")
CLIP = (4, 20)  # tokens of the prompt and of the text of a clip of 5 s
COMMAND = (4, 10)  # of a spoken command


def table(headings: Sequence[str], rows: Iterable[tuple[str, Sequence[float]]]) -> str:
    """In Markdown, numbers with three digits or more."""
    lines = ["| " + " | ".join(headings) + " |", "|---" * len(headings) + "|"]
    for label, values in rows:
        cells = [f"{v:,.{0 if v >= 100 or not v else 1 if v >= 10 else 2}f}" for v in values]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def rows_of(at: Mapping[int, Sequence[Decoding]]) -> Iterator[tuple[str, list[float]]]:
    """Of the first table, by batch."""
    for part in at[64][0].layer():
        yield f"{part}, us a layer", [d.layer()[part] * 1e6 for d in at[64]]
    for batch, every in at.items():
        yield f"step, {batch} windows, ms", [d.step() * 1e3 for d in every]
        for part in every[0].window():
            yield f"{part}, ms a window", [d.window()[part] * 1e3 for d in every]
        yield f"x real time, {batch} windows", [d.speed for d in every]


def tables(dims: Dims) -> Iterator[str]:
    """All tables, for a model of this shape."""
    cases = [(form, limit) for form in FORMS for limit in (True, False)]
    at = {n: [Decoding(dims, form, n, limit=limit) for form, limit in cases] for n in (64, 256)}
    names = [f"{form}: limit" if limit else "present" for form, limit in cases]
    yield table([f"computed, {DEVICES[0].gpu}", *names], rows_of(at))

    def of_device(device: Device) -> tuple[str, list[float]]:
        every = [Decoding(dims, form, 64, device) for form in FORMS]
        return device.gpu, [*(d.step() * 1e3 for d in every), *(d.speed for d in every)]

    names = [f"{what}: {form}" for what in ("step, ms", "x real time") for form in FORMS]
    yield table(["computed, present, 64 windows", *names], map(of_device, DEVICES))

    def after(count: int) -> tuple[str, list[float]]:
        """With the first changes."""
        names = list(CHANGES)[:count]
        done = frozenset(names)
        alone, some, many = (Decoding(dims, "slim", n, done=done) for n in (1, 64, 256))
        clip = replace(some, prompt=CLIP[0], steps=CLIP[1])
        command = replace(alone, prompt=COMMAND[0], steps=COMMAND[1])
        label = f"{CHANGES[names[-1]]}{'' if names[-1] in DONE else ' (planned)'}" if names else ""
        return label or "none", [some.speed, many.speed, 1 / clip.seconds, command.seconds * 1e3]

    names = ["change, each with those above", "x real time, 64 windows", "256 windows"]
    names += ["clips of 5 s a second, 64 at a time", "a command alone, ms"]
    yield table(names, map(after, range(len(CHANGES) + 1)))

    def of_beams(beams: int) -> tuple[str, list[float]]:
        every = [Decoding(dims, form, 64, beams=beams) for form in ("slim", "baseline")]
        cross = [d.layer()["cross-attention"] * 1e6 for d in every]
        return str(beams), [*cross, *(d.step() * 1e3 for d in every)]

    names = ["cross, us a layer: slim", "baseline", "step, ms: slim", "baseline"]
    yield table(["beams, 64 windows", *names], map(of_beams, (1, 2, 3, 5, 8)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", choices=OFFICIAL_DIMS, default="large-v3")
    parser.add_argument("--update", action="store_true", help="write docs/gpu.md")
    args = parser.parse_args()
    made = list(tables(OFFICIAL_DIMS[args.model]))
    print(*made, sep="\n\n")
    if args.update:
        page = PAGE.read_text(encoding="utf-8")
        for new in made:
            heading = new.partition("\n")[0]
            old = next(part for part in page.split("\n\n") if part.startswith(heading))
            page = page.replace(old, new)
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
