"""Commands of `sbclient`: called inside the process of a test, and the words that start one in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from typer.testing import CliRunner, Result

from sbclient.cli.app import make_app

ROOT: Final = Path(__file__).parents[1]

SBCLIENT: Final = [sys.executable, "-m", "sbclient"]
STRICT_SBCLIENT: Final = [sys.executable, "-W", "error", "-m", "sbclient"]
"""The same, where a warning is an error."""


def start(*arguments: str, is_strict: bool = True, **options: Any) -> subprocess.Popen[str]:
    """Start a command in another process, with pipes for its output.

    Args:
        is_strict: a warning is an error.
        options: of `Popen`; `env` is added to the variables of this process.
    """
    variables = os.environ | {"PYTHONPATH": str(ROOT)} | options.pop("env", {})
    chosen = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8", **options}
    return subprocess.Popen([*(STRICT_SBCLIENT if is_strict else SBCLIENT), *arguments], env=variables, **chosen)


def call(
    *arguments: str, status: int | None = 0, stdin: str | bytes | None = None, env: dict[str, str] | None = None
) -> Result:
    """Call a command inside this process; it must end with the status, None = any."""
    result = CliRunner().invoke(make_app(arguments), list(arguments), input=stdin, env=env)
    assert status is None or result.exit_code == status, result.output
    return result
