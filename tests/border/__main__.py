"""Writes `accepted.txt` anew."""

from __future__ import annotations

import warnings

from tests.border.methods import ROWS
from tests.border.test_border import TABLE, lines_of, outcomes, run, single

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    lines = [
        line for method in sorted(ROWS) for line in lines_of(method, run(outcomes("memory", method, single(method)))[0])
    ]
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")
