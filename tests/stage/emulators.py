"""The command `sbclient emulator` in a process of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tests.commands import start


def printed(process: subprocess.Popen[str]) -> Any:
    """What an emulator prints with `--json` when it is ready."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return json.loads(line)


@contextmanager
def emulator_process(*options: str, **popen: Any) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """Run the emulator; yields the process and what it printed when it was ready."""
    process = start("emulator", "--json", *options, is_strict=False, stderr=subprocess.DEVNULL, **popen)
    try:
        yield process, printed(process)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.communicate()
