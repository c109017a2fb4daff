"""Makes the tables that the commands print."""

from collections.abc import Iterable, Sequence
from typing import Literal

from rich.console import Console
from rich.table import Table

WIDE = 400  # characters: wider than any table, so that none is cut


def console(width: int | None = WIDE) -> Console:
    """Standard output, for plain text. width: in characters; None: the terminal's."""
    return Console(highlight=False, markup=False, emoji=False, width=width)


def table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[str], gap: int = 2
) -> Table:
    """Columns with `gap` spaces between them, right-aligned except those in `left`."""
    columns = Table(box=None, header_style="bold", pad_edge=False, padding=(0, gap, 0, 0))
    for i, heading in enumerate(headings):
        justify: Literal["left", "right"] = "left" if heading in left else "right"
        columns.add_column(heading, justify=justify, no_wrap=i == 0)
    for row in rows:
        columns.add_row(*row)
    return columns
