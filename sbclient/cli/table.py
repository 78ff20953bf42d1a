"""Tables that never cut a name or a number."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.text import Text

_GAP: Final = "  "
_NOTHING: Final = ("", "0")


def table(columns: Sequence[str], rows: Sequence[Sequence[Text]], width: int, *, numbers: Collection[str] = ()) -> Text:
    """Return rows of text in columns, or as a list where the columns do not fit.

    Columns without content are left out; if the table is too wide, those with nothing but zeros, too.

    Args:
        rows: non-empty; the first column names the row.
        width: of the console.
        numbers: the columns that are aligned to the right.
    """
    from rich.text import Text

    def chosen(skipped: Collection[str]) -> list[int]:
        return [at for at in range(len(columns)) if at == 0 or any(row[at].plain not in skipped for row in rows)]

    def widths(of: list[int]) -> list[int]:
        return [max(len(columns[at]), *(row[at].cell_len for row in rows)) for at in of]

    for skipped in (_NOTHING[:1], _NOTHING):
        shown = chosen(skipped)
        if sum(sizes := widths(shown)) + len(_GAP) * (len(shown) - 1) <= width:
            break
    else:
        return Text("\n").join(_listed(columns, row, shown, width) for row in rows)
    header = [Text(columns[at], style="bold") for at in shown]
    lines = []
    for line in (header, *([row[at] for at in shown] for row in rows)):
        cells = []
        for at, size, text in zip(shown, sizes, line, strict=True):
            pad = " " * (size - text.cell_len)
            cells.append(Text(pad) + text if columns[at] in numbers else text + pad)
        joined = Text(_GAP).join(cells)
        joined.rstrip()
        lines.append(joined)
    return Text("\n").join(lines)


def _listed(columns: Sequence[str], row: Sequence[Text], shown: Sequence[int], width: int) -> Text:
    """Return a row as its name and, indented, `column value` pairs; a line break comes only between two pairs."""
    from rich.text import Text

    text, used = Text(end="").append_text(row[0]), width
    for at in islice(shown, 1, None):
        if row[at]:
            pair = Text.assemble((columns[at], "bold"), " ", row[at])
            used += len(_GAP) + pair.cell_len
            if used > width:
                text, used = text + "\n" + _GAP, len(_GAP) + pair.cell_len
            else:
                text += _GAP
            text += pair
    return text
