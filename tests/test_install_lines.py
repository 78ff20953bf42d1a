"""The install lines of the documentation, the examples and the messages can be run, and name extras that exist.

`.ci/run` installs every extra.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
FOLDERS: Final = (".ci", "docs", "examples", "sbclient", "sbclient_spark", "tests")
PACKAGE: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LINE: Final = re.compile(r"""pip install((?: +(?:-[\w-]+|'[^'\n]*'|[\w./\[\],-]+))+)""")
OPTIONS: Final = ("-e", "--quiet", "--no-cache-dir")
OFFLINE: Final = "after connection broken by"


def texts() -> list[tuple[Path, str]]:
    """The files that people read, or that run pip."""
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for folder in FOLDERS:
        files += [path for path in (ROOT / folder).rglob("*") if path.is_file() and path != Path(__file__)]
    read = []
    for path in files:
        try:
            read.append((path, path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    return read


def requirements() -> dict[str, str]:
    """What the install lines install, with one of the files that say so."""
    found: dict[str, str] = {}
    for path, text in texts():
        for match in LINE.finditer(text):
            for word in shlex.split(match[1]):
                if word not in OPTIONS:
                    found.setdefault(word, str(path.relative_to(ROOT)))
    return found


def test_no_text_installs_the_package_of_the_index_that_is_called_sbclient() -> None:
    assert {word: path for word, path in requirements().items() if re.match(r"sbclient\b", word)} == {}
    assert [str(path) for path, text in texts() if "`sbclient[" in text or "'sbclient[" in text] == []


def test_every_extra_of_an_install_line_exists() -> None:
    local = [word for word in requirements() if word.startswith(".")]
    assert len(local) >= 5
    extras = {extra for word in local for extra in re.findall(r"\w+", word)}
    assert extras <= set(PACKAGE["optional-dependencies"])


@pytest.mark.slow
def test_pip_accepts_every_install_line() -> None:
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", *requirements()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode and OFFLINE in done.stdout + done.stderr:
        pytest.skip("pip reaches no package index")
    assert done.returncode == 0, done.stderr
    assert f"{PACKAGE['name']}-" in done.stdout


def test_the_versions_of_python_agree() -> None:
    """Those that are promised, those that `.ci/run` checks, and the oldest one for mypy and ruff."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    prefix = "Programming Language :: Python :: "
    promised = [each.removeprefix(prefix) for each in project["project"]["classifiers"] if each.startswith(prefix)]
    reads = next(line for line in (ROOT / ".ci/run").read_text().splitlines() if line.strip().startswith("sed -n"))
    checked = subprocess.run(["bash", "-c", reads], cwd=ROOT, capture_output=True, text=True, check=True)
    assert checked.stdout.split() == promised == sorted(promised, key=lambda version: int(version.partition(".")[2]))
    oldest = promised[0]
    assert project["project"]["requires-python"] == f">={oldest}"
    assert project["tool"]["mypy"]["python_version"] == oldest
    assert project["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"
    assert f"You need Python {oldest} or newer" in (ROOT / "README.md").read_text()
