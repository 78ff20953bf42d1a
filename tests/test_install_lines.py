"""The install lines of the documentation, the examples and the messages can be run, and name extras that exist.

`.ci/run` installs every extra.
"""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[1]
FOLDERS: Final = (".ci", "docs", "examples", "sbclient", "sbclient_spark", "tests")
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGE: Final = PROJECT["project"]
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
    prefix = "Programming Language :: Python :: "
    promised = [each.removeprefix(prefix) for each in PACKAGE["classifiers"] if each.startswith(prefix)]
    reads = next(line for line in (ROOT / ".ci/run").read_text().splitlines() if line.strip().startswith("sed -n"))
    checked = subprocess.run(["bash", "-c", reads], cwd=ROOT, capture_output=True, text=True, check=True)
    assert checked.stdout.split() == promised == sorted(promised, key=lambda version: int(version.partition(".")[2]))
    oldest = promised[0]
    assert PACKAGE["requires-python"] == f">={oldest}"
    assert PROJECT["tool"]["mypy"]["python_version"] == oldest
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"
    assert f"You need Python {oldest} or newer" in (ROOT / "README.md").read_text()


def required(lines: Iterable[str], extras: Iterable[str] = ()) -> Iterator[Requirement]:
    """Requirements that hold here, with the given extras."""
    for each in map(Requirement, lines):
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield each


def installed_by(extra: str) -> set[str]:
    """The packages that this one brings with an extra."""
    optional = PACKAGE["optional-dependencies"]
    waiting = [*required(PACKAGE["dependencies"]), *required(optional[extra])]
    found: dict[str, set[str]] = {}
    while waiting:
        each = waiting.pop()
        name, new = canonicalize_name(each.name), each.extras
        if name in found and new <= found[name]:
            continue
        found[name] = found.get(name, set()) | new
        if name == PACKAGE["name"]:
            lines = [line for other in new for line in optional[other]]
        else:
            try:
                lines = requires(name) or []
            except PackageNotFoundError:
                continue
        waiting += required(lines, new)
    return set(found)


def imported() -> Iterator[tuple[str, Path]]:
    """The first names of the packages that mypy sees imported, and where."""
    settings = PROJECT["tool"]["mypy"]
    for path in (path for folder in settings["files"] for path in (ROOT / folder).rglob("*.py")):
        if any(re.search(pattern, path.relative_to(ROOT).as_posix()) for pattern in settings["exclude"]):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((alias.name.partition(".")[0], path) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0], path


@pytest.mark.slow
def test_mypy_knows_which_imports_may_be_missing_after_the_install_for_development() -> None:
    """Where every extra is installed, mypy does not report them."""
    present = installed_by("dev")
    assert {"mypy", "trustme", "opentelemetry-sdk", "aiohttp"} <= present
    assert not {"pyspark", "pyarrow"} & present
    excused = {
        module.partition(".")[0]
        for override in PROJECT["tool"]["mypy"]["overrides"]
        if override.get("ignore_missing_imports")
        for module in override["module"]
    }
    known = {*sys.stdlib_module_names, *PROJECT["tool"]["mypy"]["files"], "_typeshed"} | excused
    sources = packages_distributions()
    missing = {
        name: str(path.relative_to(ROOT))
        for name, path in imported()
        if name not in known and present.isdisjoint(map(canonicalize_name, sources.get(name, [])))
    }
    assert missing == {}, "add them to the extra `dev`, or to the modules that mypy may miss in pyproject.toml"
