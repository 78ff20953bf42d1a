"""Tables and other parts that are generated into a page of the documentation, between two comments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parents[2] / "docs"
COMMAND: Final = "python -m tests.pages"


@dataclass(frozen=True)
class Part:
    """A generated part of a page.

    Attributes:
        page: the file name of the page.
        subject: what it shows, such as `clients`.
        text: returns its lines.
        needs: a package without which it cannot be made.
    """

    page: str
    subject: str
    text: Callable[[], str]
    needs: str = "sbclient"

    @property
    def name(self) -> str:
        """The page and the subject."""
        return f"{self.page}: {self.subject}"

    def page_text(self) -> str:
        """Return the text of the page with the generated part.

        Raises:
            ValueError: the page has no place for it.
        """
        text = (DOCS / self.page).read_text(encoding="utf-8")
        before, rest = text.split(f"<!-- {self.subject}: {COMMAND} -->\n")
        _, after = rest.split(f"<!-- end of {self.subject} -->\n")
        begin, end = f"<!-- {self.subject}: {COMMAND} -->\n", f"<!-- end of {self.subject} -->\n"
        return before + begin + self.text() + end + after


def page_table(
    page: str,
    subject: str,
    columns: Sequence[str],
    rows: Callable[[], Iterable[Sequence[object]]],
    needs: str = "sbclient",
) -> Part:
    """Return a part that is a table."""

    def text() -> str:
        head, *lines = [f"| {' | '.join(map(str, row))} |\n" for row in (columns, *rows())]
        return head + "|" + "---|" * len(columns) + "\n" + "".join(lines)

    return Part(page, subject, text, needs)
