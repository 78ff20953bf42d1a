"""The work of a program of a run: its only argument is a file with a plan."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one process does.

    Attributes:
        primary: the connection string of the primary.
        record: the file that the process writes, see `Record`.
        seed: of its random choices.
        timeout_s: of its operations.
        pause_s: the mean pause after each message or send.
    """

    primary: str
    record: str
    seed: int = 0
    timeout_s: float = 6.0
    pause_s: float = 0.0

    @classmethod
    def read(cls, path: str) -> Self:
        return cls(**json.loads(Path(path).read_text()))

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps(asdict(self)))
        return path
