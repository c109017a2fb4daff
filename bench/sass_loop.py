"""Counts the instructions of the latent kernels' main loops: python bench/sass_loop.py [WIDTH ...]

Compiles the split kernel and the one with swapped operands for compute capability 9.0, in
float16, disassembles them, and counts what a warp issues for 64 positions. Needs no GPU and times
nothing: a count says what the kernel asks of a multiprocessor, not how long it takes. Shared memory
gives 128 bytes a cycle; HGMMA reads both of its operands there, 64 rows and all columns, for each
group of four warps.
"""

import argparse
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import networkx as nx  # torch brings it
import triton

from slimwhisper.kernels.configurations import Processor, find
from slimwhisper.kernels.gpu.compilation import SHARED, build, build_swapped, variants
from slimwhisper.kernels.gpu.latent_gluon import PIECE, TILE
from slimwhisper.kernels.gpu.latent_swapped import SHAPES

POSITIONS = 64
KINDS = {  # column: opcodes
    "products": ("HMMA", "HGMMA"),
    "from shared": ("LDSM", "LDS"),
    "to shared": ("STSM", "STS"),
    "copies": ("LDGSTS", "UTMALDG"),
    "barriers": ("BAR", "SYNCS", "DEPBAR", "LDGDEPBAR", "WARPGROUP", "WARPSYNC"),
    "shuffles": ("SHFL",),
    "exp2": ("MUFU",),
}


@dataclass(frozen=True, slots=True)
class Loop:
    """A natural loop of a program."""

    header: int
    body: frozenset[int]  # places in the program


@dataclass(frozen=True, slots=True)
class Row:
    """What one warp issues for `POSITIONS` positions."""

    kernel: str
    warps: int
    issued: Counter[str]  # instruction with its modifiers: how often

    def of(self, *opcodes: str) -> int:
        return sum(n for name, n in self.issued.items() if opcode(name) in opcodes)

    def read(self) -> int:
        """Bytes that all its warps read from shared memory."""
        return self.warps * sum(n * bytes_read(name) for name, n in self.issued.items())


def opcode(name: str) -> str:
    return name.split(".")[0]


def bytes_read(name: str) -> int:
    """From shared memory, by one warp."""
    if shape := re.match(r"HGMMA\.64x(\d+)x(\d+)", name):
        columns, depth = map(int, shape.groups())
        return (64 + columns) * depth * 2 // 4
    size = name.split(".")[-1]
    if opcode(name) == "LDSM":  # matrices of 128 bytes
        return {"2": 256, "4": 512}.get(size, 128)
    if opcode(name) == "LDS":  # bits of a thread
        return {"64": 256, "128": 512}.get(size, 128)
    return 0


def disassemble(cubin: bytes) -> str:
    """By nvdisasm, which comes with Triton."""
    tool = next(Path(triton.__file__).parent.rglob("nvdisasm"))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=True)
    return done.stdout


def parse(text: str) -> tuple[list[str], "nx.DiGraph[int]"]:
    """The instructions of a disassembly, without operands, and the graph of what follows what."""
    lines, labels = [], {}
    for line in text.splitlines():
        if label := re.match(r"\s*(\.L_\w+):", line):
            labels[label[1]] = len(lines)
        elif found := re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?)\s*;", line):
            lines.append((found[1], line))
    graph: nx.DiGraph[int] = nx.DiGraph()
    names = []
    for i, (instruction, line) in enumerate(lines):
        words = instruction.split()
        guard = words.pop(0) if words[0].startswith("@") else ""
        names.append(words[0])
        leaves = opcode(words[0]) in ("BRA", "BRX", "EXIT", "RET")
        # a branch may also carry its condition among the operands
        sometimes = guard or ".DIV" in words[0] or re.match(r"!?U?P\d,", "".join(words[1:2]))
        graph.add_node(i)
        if leaves:
            targets = re.findall(r"\.L_x_\w+", line)
            graph.add_edges_from((i, labels[t]) for t in targets if t in labels)
        if i + 1 < len(lines) and (sometimes or not leaves):
            graph.add_edge(i, i + 1)
    return names, graph


def loops(graph: "nx.DiGraph[int]") -> list[Loop]:
    """Its natural loops, those of one header merged, smallest first."""
    above = nx.immediate_dominators(graph, 0)

    def dominates(a: int, b: int) -> bool:
        while b not in (a, 0, None):
            b = above[b]
        return a == b

    bodies: dict[int, set[int]] = {}
    for last, header in graph.edges:
        if last in above and header <= last and dominates(header, last):
            inside = graph.subgraph(set(graph) - {header})
            body = {header, last} | (nx.ancestors(inside, last) if last != header else set())
            bodies.setdefault(header, set()).update(body)
    return sorted((Loop(h, frozenset(b)) for h, b in bodies.items()), key=lambda x: len(x.body))


def innermost(found: Sequence[Loop], names: Sequence[str], wanted: Sequence[str]) -> Iterator[Loop]:
    """Loops that contain a wanted opcode, and no loop that does."""
    having = [x for x in found if any(opcode(names[i]) in wanted for i in x.body)]
    for loop in having:
        if not any(other.body < loop.body for other in having):
            yield loop


def rows_of_split(width: int) -> Iterator[Row]:
    heads, _ = SHAPES[width]
    c = find("latent", "float16", width, heads, Processor(SHARED[90], 132, 90))
    if c is None:
        raise SystemExit(f"the table has no configuration for d = {width}")
    names, graph = parse(disassemble(build(90, variants(c, 90)[0]).asm["cubin"]))
    for loop in innermost(loops(graph), names, KINDS["products"]):
        issued = Counter(names[i] for i in loop.body)
        times = POSITIONS // c.block_t
        yield Row("split", c.warps, Counter({o: n * times for o, n in issued.items()}))


def rows_of_swapped(width: int) -> Iterator[Row]:
    """Loops over tiles, each with a loop over pieces inside."""
    names, graph = parse(disassemble(build_swapped(width, "float16", chosen=False).asm["cubin"]))
    found = loops(graph)
    pieces, tiles = width // PIECE.value, POSITIONS // TILE.value
    for name, wanted, warps in (("attend", ("HGMMA",), 4), ("load_tiles", ("UTMALDG",), 1)):
        for inner in innermost(found, names, wanted):
            outer = next((x for x in found if inner.body < x.body), inner)
            issued = Counter(names[i] for i in outer.body - inner.body)
            for i in inner.body:
                issued[names[i]] += pieces
            yield Row(f"swapped, {name}", warps, Counter({o: n * tiles for o, n in issued.items()}))


def table(widths: Sequence[int]) -> str:
    """In Markdown."""
    counted = ("issued by a warp", "by all", "KB of shared memory read", *KINDS)
    heads = ["d", "kernel", "warps", *counted]
    lines: list[list[str]] = [heads, ["---"] * len(heads)]
    for width in widths:
        for row in (*rows_of_split(width), *rows_of_swapped(width)):
            each = row.issued.total()
            counts = [row.warps, each, row.warps * each, row.read() // 1024]
            counts += [row.of(*opcodes) for opcodes in KINDS.values()]
            lines.append([str(width), row.kernel, *(f"{n:,}" for n in counts)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("widths", nargs="*", type=int, metavar="WIDTH", help="1024, 1280 or both")
    widths = parser.parse_args().widths or list(SHAPES)
    if unknown := [w for w in widths if w not in SHAPES]:
        parser.error(f"no kernel with swapped operands for {unknown}; choose from {list(SHAPES)}")
    print(
        f"Triton {triton.__version__}, compiled, not timed: instructions for {POSITIONS} positions"
    )
    print(table(widths))


if __name__ == "__main__":
    main()
