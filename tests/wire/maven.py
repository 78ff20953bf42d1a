"""Java libraries from Maven, fetched once to the user's cache outside the tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Final

FETCH_S: Final = 240.0


class NotInstalledError(Exception):
    """Java or a library is missing."""


def cache() -> Path:
    """Return the folder of what was fetched and compiled."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sbclient-wire-tests" / "java"


def check_installed(*programs: str) -> None:
    """Check that programs are on the path.

    Raises:
        NotInstalledError: some are not.
    """
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        raise NotInstalledError(f"{', '.join(missing)}: not installed")


def jars_of(pom: Path, *, proof: str, may_fetch: bool) -> Path:
    """Return a folder with the dependencies of a Maven project.

    Args:
        proof: the name of the proof that fetches them, for the error.
        may_fetch: whether Maven may download them; otherwise they must be in the local Maven repository.

    Raises:
        NotInstalledError: they are missing.
    """
    text = pom.read_text()
    jars = cache() / sha256(text.encode()).hexdigest()[:16]
    if jars.is_dir():
        return jars
    first = re.search(
        r"<groupId>([^<]+)</groupId>\s*<artifactId>([^<]+)</artifactId>", text.partition("<dependency>")[2]
    )
    assert first is not None
    group, name = first.groups()
    if not may_fetch and not (Path.home() / ".m2/repository" / group.replace(".", "/") / name).is_dir():
        raise NotInstalledError(f"{name} is not in the local Maven repository: run .ci/proofs {proof}")
    jars.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jars.parent) as folder:
        command = ["mvn", "--batch-mode", "--quiet", "--file", str(pom)]
        command += ["--offline"] * (not may_fetch)
        command += ["dependency:copy-dependencies", f"-DoutputDirectory={folder}/jars"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise NotInstalledError(f"Maven did not fetch {name} in {FETCH_S:.0f} s") from error
        if done.returncode:
            raise NotInstalledError(f"Maven could not fetch {name}: {done.stdout.strip()[-300:]}")
        shutil.copytree(f"{folder}/jars", jars, dirs_exist_ok=True)
    return jars
