"""Tables that are generated into a page of the documentation, between two comments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parents[2] / "docs"
COMMAND: Final = "python -m tests.pages"


@dataclass(frozen=True)
class PageTable:
    """A generated table.

    Attributes:
        page: the file name of the page.
        subject: what the rows are, such as `clients`.
        columns: their names.
        rows: returns the rows.
        needs: a package without which the rows cannot be made.
    """

    page: str
    subject: str
    columns: Sequence[str]
    rows: Callable[[], Iterable[Sequence[object]]]
    needs: str = "sbclient"

    @property
    def name(self) -> str:
        """The page and the subject."""
        return f"{self.page}: {self.subject}"

    def page_text(self) -> str:
        """Return the text of the page with the generated table.

        Raises:
            ValueError: the page has no place for the table.
        """
        text = (DOCS / self.page).read_text(encoding="utf-8")
        before, rest = text.split(f"<!-- {self.subject}: {COMMAND} -->\n")
        _, after = rest.split(f"<!-- end of {self.subject} -->\n")
        return before + self._text() + after

    def _text(self) -> str:
        head, *lines = [f"| {' | '.join(map(str, row))} |\n" for row in (self.columns, *self.rows())]
        table = head + "|" + "---|" * len(self.columns) + "\n" + "".join(lines)
        return f"<!-- {self.subject}: {COMMAND} -->\n{table}<!-- end of {self.subject} -->\n"
