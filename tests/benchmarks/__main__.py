"""The benchmarks by name: `python -m tests.benchmarks spark --rows 40000`; without a name, which there are."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Final

NAMES: Final = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))


def main() -> int:
    """Run the benchmark that the first argument names with the arguments behind it; 2 if there is none of that name."""
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        print(f"usage: python -m tests.benchmarks NAME [ARGUMENTS], with one of {', '.join(NAMES)}", file=sys.stderr)
        return 2
    module = f"{__package__}.{sys.argv[1]}"
    del sys.argv[1]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
