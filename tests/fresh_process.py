"""Short programs in a process that has imported nothing of this package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]


def output_of(program: str) -> str:
    """Run a program of Python in a new process; return what it prints.

    Raises:
        CalledProcessError: the program failed.
    """
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return ended.stdout.strip()
