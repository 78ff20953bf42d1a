"""Tables that a module generates into a page of the documentation, between two comments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parents[1] / "docs"


@dataclass(frozen=True)
class PageTable:
    """A generated table.

    Attributes:
        page: the file name of the page.
        subject: what the rows are, such as `clients`.
        module: writes the table when it is run.
        columns: their names.
    """

    page: str
    subject: str
    module: str
    columns: Sequence[str]

    def write(self, rows: Iterable[Sequence[object]]) -> None:
        """Replace the table in the page."""
        path = DOCS / self.page
        before, rest = path.read_text().split(self._begin)
        path.write_text(before + self._text(rows) + rest.split(self._end)[1])

    def check(self, rows: Iterable[Sequence[object]]) -> None:
        """Fail if the table in the page is out of date."""
        assert self._text(rows) in (DOCS / self.page).read_text(), f"run python -m {self.module}"

    @property
    def _begin(self) -> str:
        return f"<!-- {self.subject}: python -m {self.module} -->\n"

    @property
    def _end(self) -> str:
        return f"<!-- end of {self.subject} -->\n"

    def _text(self, rows: Iterable[Sequence[object]]) -> str:
        head, *lines = [f"| {' | '.join(map(str, row))} |\n" for row in (self.columns, *rows)]
        return self._begin + head + "|" + "---|" * len(self.columns) + "\n" + "".join(lines) + self._end
