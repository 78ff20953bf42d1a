"""Keeps the tally of a range in a file, so that a range which was interrupted goes on where it stood."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from tests.simulation.run import Result
from tests.simulation.tally import Tally

ROOT: Final = Path(__file__).parents[2]


class Ledger:
    """The tally of a range of seeds, and which code ran which part of it.

    Args:
        file: where it is kept; None = nowhere.
        first: seed of the range.
        only: kinds of weather, as for `draw_plan`.

    Attributes:
        next_seed: the first one that has not run.
        parts: (state of the code, its first seed, its last) in order.

    Raises:
        SystemExit: the file belongs to another range.
    """

    def __init__(self, file: Path | None, first: int, only: Sequence[str]) -> None:
        self._file = file
        self._range = {"first": first, "only": list(only)}
        self._code = _code() if file is not None else ""
        self.tally = Tally()
        self.next_seed = first
        self.parts: list[list[Any]] = []
        if file is not None and file.exists():
            self._load(json.loads(file.read_text()))

    def add(self, result: Result) -> None:
        """Count one more run; runs are added by rising seed."""
        self.tally.add(result)
        if not self.parts or self.parts[-1][0] != self._code:
            self.parts.append([self._code, result.seed, result.seed])
        self.parts[-1][2] = result.seed
        self.next_seed = result.seed + 1

    def save(self) -> None:
        """Write all of it, in one step, so that a kill leaves the old state or the new one."""
        if self._file is None:
            return
        fresh = self._file.with_suffix(".new")
        state = {"range": self._range, "next": self.next_seed, "parts": self.parts, "tally": self.tally.kept()}
        fresh.write_text(json.dumps(state, indent=1))
        fresh.replace(self._file)

    def lines(self) -> list[str]:
        """Which state of the code ran which seeds, if it is kept."""
        return [f"code {code}     seeds {first} to {last}" for code, first, last in self.parts if code]

    def _load(self, state: dict[str, Any]) -> None:
        if state["range"] != self._range:
            raise SystemExit(f"{self._file} is of the range {state['range']}, not {self._range}: name another file")
        self.next_seed, self.parts = state["next"], state["parts"]
        self.tally = Tally.restored(state["tally"])


def _code() -> str:
    """Names the state of the sources that a run depends on."""
    digest = sha256()
    for folder in ("sbclient", "tests/simulation"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(f"{path.relative_to(ROOT)} ".encode() + path.read_bytes())
    return digest.hexdigest()[:12]
