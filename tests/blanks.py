"""What editors and tools leave around a line: marks of the byte order, blanks, and ends of lines."""

from __future__ import annotations

from itertools import product
from typing import Final

BEFORE: Final = ("", " ", "\ufeff")
AFTER: Final = ("", " ", "\t", "\n", "\r\n", " \r\n", "\n\n")
AROUND_A_LINE: Final = list(product(BEFORE, AFTER))
