"""Commands of `sbclient`: called inside the process of a test, and the words that start one in another process."""

from __future__ import annotations

import sys
from typing import Final

from typer.testing import CliRunner, Result

from sbclient.cli.app import make_app

_MAIN: Final = ("-c", "from sbclient.cli import main; main()")

SBCLIENT: Final = [sys.executable, *_MAIN]
STRICT_SBCLIENT: Final = [sys.executable, "-W", "error", *_MAIN]
"""The same, where a warning is an error."""


def call(
    *arguments: str, status: int | None = 0, stdin: str | bytes | None = None, env: dict[str, str] | None = None
) -> Result:
    """Call a command inside this process; it must end with the status, None = any."""
    result = CliRunner().invoke(make_app(arguments), list(arguments), input=stdin, env=env)
    assert status is None or result.exit_code == status, result.output
    return result
