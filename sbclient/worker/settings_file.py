"""Reads the worker's settings from a TOML file, and connection strings from files of their own.

The file has no tables, only `name = value`. Errors about unknown settings and wrong types give the line. Connection
strings are rejected, since such files are copied, committed and shown: a setting names the file that contains one.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sbclient.errors import InvalidOperationError
from sbclient.settings.table import Setting, suggestion
from sbclient.worker.settings import SETTINGS

MAX_SECRET_BYTES: Final = 16_384
MAX_FILE_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """Content of a settings file.

    Attributes:
        path: of the file.
        values: value of each setting as text, by name.
        origins: place of each setting, by name: `syphon.toml, line 3`.
    """

    path: Path
    values: Mapping[str, str]
    origins: Mapping[str, str]


def read_settings_file(path: Path) -> SettingsFile:
    """Read and check a file.

    Raises:
        InvalidOperationError: the file cannot be read, or a setting is unknown or has the wrong type.
    """
    content = _content(path, "the configuration")
    try:
        found = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise InvalidOperationError(f"{path} is not valid TOML: {error}") from None
    values: dict[str, str] = {}
    origins: dict[str, str] = {}
    for key, value in found.items():
        origin = origins[key] = _origin(path, content, key)
        setting = SETTINGS.get(key)
        if setting is None:
            raise InvalidOperationError(_unknown(key, value, origin))
        if setting.is_secret:
            raise InvalidOperationError(
                f"{key} in {origin}: a connection string must not be here: set {key}_file to the path of a file "
                f"that contains it, or set {setting.variable}"
            )
        values[key] = _as_text(setting, value, origin)
    return SettingsFile(path, values, origins)


def read_secret(name: str, where: str, base: Path) -> str:
    """Return the connection string in a file.

    Args:
        name: name of the setting that names the file, for errors.
        where: path of the file, relative to `base`.

    Raises:
        InvalidOperationError: the file cannot be read, or is not exactly one line. The text shows no content.
    """
    path = base / where
    content = _content(path, name).strip()
    if not content or "\n" in content or len(content) > MAX_SECRET_BYTES:
        raise InvalidOperationError(f"{name} is {str(path)!r}: the file must contain one line, the connection string")
    return content


def _content(path: Path, what: str) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise InvalidOperationError(
                f"{what} is {str(path)!r}, which has more than {MAX_FILE_BYTES} bytes: name another file"
            )
        return content.decode("utf-8-sig")
    except OSError as error:
        raise InvalidOperationError(f"{what} is {str(path)!r}, which cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidOperationError(f"{what} is {str(path)!r}, which is not UTF-8 text") from None


def _origin(path: Path, content: str, key: str) -> str:
    """Return the file and, if found, the line of a key; the TOML parser does not report lines."""
    name = rf"(?:{re.escape(key)}|\"{re.escape(key)}\"|'{re.escape(key)}')"
    found = re.search(rf"^[ \t]*(?:{name}[ \t]*[=.]|\[+[ \t]*{name}[ \t]*[\].])", content, re.MULTILINE)
    return f"{path.name}, line {content.count(chr(10), 0, found.start()) + 1}" if found else path.name


def _unknown(key: str, value: Any, origin: str) -> str:
    if isinstance(value, dict):
        inside = next((name for name in value if name in SETTINGS), None)
        advice = f"write {inside} before the first table" if inside else "write each setting as name = value"
        return f"[{key}] in {origin} is a table, but settings are not in tables: {advice}"
    return f"{key} in {origin} is not a setting: {suggestion(key, SETTINGS)}"


def _as_text(setting: Setting, value: Any, origin: str) -> str:
    """Return a value as the text of an option."""
    allowed = setting.kind.in_file
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        raise InvalidOperationError(
            f"{setting.name} in {origin} is {_TYPES.get(type(value), 'something else')}: it must be "
            + _wanted(" or ".join(_TYPES[one] for one in allowed), setting.kind.word)
        )
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wanted(types: str, word: str) -> str:
    """Return the allowed types, with the description of the value if that says more."""
    if word in types:
        return types
    return f"a {word}" if word.startswith(types.removeprefix("a ")) else f"{types}, {word}"


_TYPES: Final[Mapping[type, str]] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
}
