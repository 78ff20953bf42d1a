"""The numbers that the package holds as constants, and the texts that repeat one of them.

`constants.txt` has each constant. If one changes, a test names the texts in which its former value stands.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PATH: Final = Path(__file__).with_suffix(".txt")
PACKAGES: Final = ("sbclient", "sbclient_spark")
WORDS: Final = ["", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
DURATIONS: Final = {
    1: "ms|milliseconds?",
    1_000: "s|seconds?",
    60_000: "min|minutes?",
    3_600_000: "h|hours?",
    86_400_000: "d|days?",
}
SIZES: Final = {1: "bytes?", 2**10: "KiB|KB|kB", 2**20: "MiB|MB"}

NOT_WRITTEN: Final = ("reference.md", "deviations.md", "performance.md")
"""Pages that are generated or have measured numbers only."""


def text() -> str:
    """Return a line for each constant."""
    return "".join(f"{name} = {value}\n" for name, value in constants().items())


def recorded() -> dict[str, str]:
    """Return the constants of the file."""
    return dict(line.split(" = ") for line in PATH.read_text(encoding="utf-8").splitlines())


def stale() -> Iterator[str]:
    """Yield the lines in which the former value of a constant stands that has another one now, or is gone."""
    now = constants()
    for name, value in recorded().items():
        if now.get(name) != value:
            yield from (f"{name} was {value}: {place}" for place in places(name, value))


def constants() -> dict[str, str]:
    """Return each number and duration that a module defines in capitals, by file and name."""
    found = {}
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for line in ast.parse(source).body:
            if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name):
                continue
            is_code = "0x" in (ast.get_source_segment(source, line) or "")  # of AMQP, which no text repeats
            if line.target.id.isupper() and not is_code and (value := _value(line.value)):
                found[f"{path.relative_to(ROOT)}: {line.target.id}"] = value
    return found


def _value(expression: ast.expr | None) -> str:
    """Return a number as text, a duration as `90 s`; nothing for what is neither or is made of other constants."""
    if not isinstance(expression, ast.Constant | ast.BinOp | ast.Call):
        return ""
    try:
        value = eval(ast.unparse(expression), {"__builtins__": {}, "timedelta": timedelta})
    except (NameError, TypeError, AttributeError):
        return ""
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} s"
    return f"{value}" if type(value) in (int, float) else ""


def places(constant: str, value: str) -> Iterator[str]:
    """Yield the lines of the documents, texts and comments in which a value of a constant stands in a usual form."""
    form = written(constant, value)
    for path, lines in texts().items():
        yield from (f"{path}:{number}: {line.strip()}" for number, line in enumerate(lines, 1) if form.search(line))


def written(constant: str, value: str) -> re.Pattern[str]:
    """Return how texts write a value of a constant: `90 days`, `256 KiB`, `a minute`, `10,000`."""
    return re.compile("|".join(_forms(constant.partition(": ")[2], value)))


def _forms(name: str, value: str) -> Iterator[str]:
    number = float(value.removesuffix(" s"))
    if value.endswith(" s") or name.endswith("_S"):
        yield from _with_units(number * 1000, DURATIONS)
    elif "BYTES" in name or (number >= 1024 and number % 1024 == 0):
        yield from _with_units(number, SIZES)
    elif number < 1000:
        nouns = "|".join(rf"{part.lower().rstrip('s')}\w*" for part in name.strip("_").split("_"))
        yield rf"\b{_digits(number)} (?:\w+ )?(?:{nouns})"
    if number >= 1000:
        yield rf"(?<![\d.,]){number:,.10g}(?![\d_]|[.,]\d)"


def _with_units(number: float, units: Mapping[int, str]) -> Iterator[str]:
    for size, names in units.items():
        if number >= size and number * 100 % size == 0:
            yield rf"(?<![\d.,]){_digits(number / size)}[ -](?:{names})\b"
        if number == size and size > 1000:
            yield rf"\ban? (?:{names})\b"


def _digits(number: float) -> str:
    word = WORDS[int(number)] if number in range(1, len(WORDS)) else ""
    return rf"(?:{number:,g}|{number:.10g}{f'|(?i:{word})' * bool(word)})".replace(".", r"\.")


@cache
def texts() -> Mapping[str, list[str]]:
    """Return the lines of each file that people read; generated parts of it are empty lines."""
    paths = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.*")]
    paths = [path for path in paths if path.name not in NOT_WRITTEN]
    for package in PACKAGES:
        paths += [path for ending in ("py", "json", "js", "html") for path in (ROOT / package).rglob(f"*.{ending}")]
    found = {}
    for path in sorted(paths):
        try:
            whole = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if path.name == "CHANGELOG.md":
            whole = "".join(re.split(r"^(?=## )", whole, flags=re.M)[:2])
        without = re.sub(
            r"^<!-- (.+): python -m .*?<!-- end of \1 -->",
            lambda part: "\n" * part[0].count("\n"),
            whole,
            flags=re.M | re.S,
        )
        found[str(path.relative_to(ROOT))] = without.splitlines()
    return found
