"""Tables that the commands print."""

from collections.abc import Iterable, Sequence
from typing import Literal

from rich.console import Console
from rich.table import Table

WIDE = 400  # characters: more than any table takes, so that none is cut


def console(width: int | None = WIDE) -> Console:
    """Standard output, for text as it is. width: in characters; None: the terminal's."""
    return Console(highlight=False, markup=False, emoji=False, width=width)


def table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[str], gap: int = 2
) -> Table:
    """Columns with `gap` spaces between them, aligned on the right but for those in `left`."""
    made = Table(box=None, header_style="bold", pad_edge=False, padding=(0, gap, 0, 0))
    for i, heading in enumerate(headings):
        justify: Literal["left", "right"] = "left" if heading in left else "right"
        made.add_column(heading, justify=justify, no_wrap=i == 0)
    for row in rows:
        made.add_row(*row)
    return made
