"""Draws docs/internals/architecture.svg: the packages, in the order of their layers, and who
imports whom.

    python docs/tools/architecture_svg.py          # writes the picture
    python docs/tools/architecture_svg.py --check  # fails where it would change

Packages and layers are those of the first contract in pyproject.toml, imports are read from the
code, and each box says what the package's docstring says. Left out: arrows that follow from others
(to what an imported package imports as well), and those to the lowest row, which all import.
"""

import ast
import sys
import textwrap
import tomllib
from functools import cache
from html import escape
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
PICTURE = ROOT / "docs/internals/architecture.svg"
WIDTH, ROW, BOX, MARGIN, WIDEST = 1060, 104, 80, 16, 300  # points
CHARACTERS = 38  # of a line in a box
LEFT_OUT = ("__main__", "_lazy", "decoding")  # names for scripts
STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #334155 }
.name { font-weight: 600; font-size: 15px; fill: #0f172a }
.box { fill: #f1f5f9; stroke: #94a3b8 }
.core { fill: #e0e7ff; stroke: #6366f1 }
path { fill: none; stroke: #7d8694; stroke-width: 1.3 }
"""
CORE = ("cache", "kernels", "engine")  # what the project exists for
# where a box stands that is alone in its row, from 0 (left) to 1; else in the middle
ASIDE = {"flags": 0.12, "windows": 0.88, "devices": 0.12}


def rows() -> list[list[str]]:
    """The modules of each layer, the highest first."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = contract["contracts"][0]["layers"]
    found = [[n.strip() for n in layer.split("|")] for layer in layers]
    kept = [[n for n in row if n not in LEFT_OUT] for row in found]
    return [row for row in kept if row]


def imports(names: list[str]) -> dict[str, set[str]]:
    """What each of them imports of the others, without what follows from the rest."""
    graph = grimp.build_graph("slimwhisper")
    modules = {n: f"slimwhisper.{n}" for n in names}
    for module in modules.values():
        if graph.find_children(module):
            graph.squash_module(module)

    def imported(a: str, b: str) -> bool:
        return graph.direct_import_exists(importer=a, imported=b)

    direct = {
        a: {
            b
            for b in names
            if a != b and graph.direct_import_exists(importer=modules[a], imported=modules[b])
        }
        for a in names
    }

    @cache
    def reached(name: str) -> set[str]:
        return direct[name].union(*(reached(n) for n in direct[name]))

    return {a: bs - set().union(*(reached(b) for b in bs)) for a, bs in direct.items()}


def sentence(name: str) -> str:
    """The first sentence of a package's or module's docstring."""
    folder = ROOT / "slimwhisper" / name
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    text = (ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0]
    return " ".join(text.split()).partition(". ")[0].rstrip(".").replace("`", "")


def draw() -> str:
    """The picture, as SVG."""
    layers = rows()
    place: dict[str, tuple[float, float, float]] = {}  # left, top, width
    for number, row in enumerate(layers):
        width = min(WIDEST, (WIDTH - MARGIN) / len(row) - MARGIN)
        spread = WIDTH - len(row) * (width + MARGIN) + MARGIN
        left = max(MARGIN / 2, spread * (ASIDE.get(row[0], 0.5) if len(row) == 1 else 0.5))
        if len(row) == 2:  # at both sides
            left, gap = MARGIN / 2, WIDTH - 2 * width - MARGIN
        for i, name in enumerate(row):
            step = width + (gap if len(row) == 2 else MARGIN)
            place[name] = (left + i * step, MARGIN + number * ROW, width)
    height = 2 * MARGIN + (len(layers) - 1) * ROW + BOX
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}">',
        "<title>The packages of slimwhisper; an arrow points at what is imported</title>",
        f"<style>{STYLE}</style>",
        '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0 8 4 0 8z" style="fill:#7d8694;stroke:none"/></marker>',
    ]
    for importer, imported in imports(list(place)).items():
        imported -= set(layers[-1])
        for number, name in enumerate(sorted(imported, key=lambda n: (place[n][0], n))):
            left, top, width = place[importer]
            x = left + width * (number + 1) / (len(imported) + 1)
            to_left, to_top, to_width = place[name]
            to_x = min(max(x, to_left + 0.2 * to_width), to_left + 0.8 * to_width)
            y, bend = top + BOX, (to_top - top - BOX) / 2
            parts.append(
                f'<path d="M{x:.0f} {y}C{x:.0f} {y + bend:.0f} {to_x:.0f} {to_top - bend:.0f} '
                f'{to_x:.0f} {to_top}" marker-end="url(#tip)"/>'
            )
    for name, (left, top, width) in place.items():
        corner = f'x="{left:.0f}" y="{top}" width="{width:.0f}" height="{BOX}"'
        kind = "box core" if name in CORE else "box"
        parts.append(
            f'<rect class="{kind}" {corner} rx="8"/>'
            f'<text class="name" x="{left + 12:.0f}" y="{top + 21}">{escape(name)}</text>'
        )
        size = CHARACTERS * width / WIDEST
        lines = textwrap.wrap(sentence(name), round(size), max_lines=3, placeholder=" …")
        parts += [
            f'<text x="{left + 12:.0f}" y="{top + 38 + 15 * i}">{escape(line)}</text>'
            for i, line in enumerate(lines)
        ]
    return "\n".join([*parts, "</svg>", ""])


def main() -> int:
    """Write the picture, or see whether it is as it would be written."""
    drawn = draw()
    if "--check" in sys.argv[1:]:
        same = PICTURE.is_file() and PICTURE.read_text(encoding="utf-8") == drawn
        if not same:
            print(
                f"{PICTURE} is out of date; run python docs/tools/architecture_svg.py",
                file=sys.stderr,
            )
        return 0 if same else 1
    PICTURE.write_text(drawn, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
