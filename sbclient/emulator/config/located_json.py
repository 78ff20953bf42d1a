"""Reads JSON with comments. Each value has its line and path, so that errors can name them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

from sbclient.errors import InvalidOperationError

MAX_DEPTH: Final = 64

_TOKEN = re.compile(
    r"""(?P<blank>[ \t\r\n]+|//[^\n]*|/\*.*?\*/)
      | (?P<string>"(?:[^"\\\x00-\x1f]|\\.)*")
      | (?P<number>-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)
      | (?P<word>true|false|null)
      | (?P<mark>[{}\[\]:,])""",
    re.VERBOSE | re.DOTALL,
)


class ConfigError(InvalidOperationError):
    """A configuration is not valid; the text names file, line and path of the value, and the allowed values."""


@dataclass(frozen=True, slots=True)
class Located:
    """A value and its place.

    Attributes:
        value: None, a bool, a number or a string; for objects a dict and for arrays a list of `Located`.
        path: `$.UserConfig.Namespaces[0].Name`.
        line: from 1.
        source: the file.
    """

    value: Any = field(repr=False)  # with keys
    path: str
    line: int
    source: str

    def error(self, text: str) -> ConfigError:
        """An error about this value, to raise."""
        return ConfigError(f"{self.source}, line {self.line}: {self.path} {text}")

    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {name: each.plain() for name, each in self.value.items()}
        return [each.plain() for each in self.value] if isinstance(self.value, list) else self.value


def read_located(text: str, source: str) -> Located:
    """Read a document. `//` and `/* */` comments and a comma after the last entry are allowed.

    Raises:
        ConfigError: the document is not JSON; the text names the line.
    """
    reader = _Reader(text.removeprefix("\ufeff"), source)
    root = reader.value("$", 0)
    reader.expect_end()
    return root


class _Reader:
    def __init__(self, text: str, source: str) -> None:
        self._text = text
        self._source = source
        self._at = 0
        self._line = 1
        self._kind, self._token, self._token_line = "", "", 1
        self._advance()

    def value(self, path: str, depth: int) -> Located:
        if depth > MAX_DEPTH:
            raise self._error(f"the value is nested deeper than {MAX_DEPTH}")
        line, token = self._token_line, self._token
        if self._kind == "mark" and token == "{":
            return Located(self._object(path, depth), path, line, self._source)
        if self._kind == "mark" and token == "[":
            return Located(self._array(path, depth), path, line, self._source)
        if self._kind not in ("string", "number", "word"):
            raise self._error(f"found {self._shown} where a value is expected")
        value = self._read(token, "value")
        self._advance()
        return Located(value, path, line, self._source)

    def expect_end(self) -> None:
        if self._kind != "end":
            raise self._error(f"found {self._shown} after the end of the document")

    def _object(self, path: str, depth: int) -> dict[str, Located]:
        found: dict[str, Located] = {}
        self._advance()
        while self._token != "}" or self._kind != "mark":
            if self._kind != "string":
                raise self._error(f"found {self._shown} where a name in quotation marks is expected")
            name = self._read(self._token, "name")
            if name in found:
                raise self._error(f"{path}.{name} is given twice")
            self._advance()
            self._take(":")
            found[name] = self.value(f"{path}.{name}", depth + 1)
            self._separate("}")
        self._advance()
        return found

    def _array(self, path: str, depth: int) -> list[Located]:
        found: list[Located] = []
        self._advance()
        while self._token != "]" or self._kind != "mark":
            found.append(self.value(f"{path}[{len(found)}]", depth + 1))
            self._separate("]")
        self._advance()
        return found

    def _read(self, token: str, what: str) -> Any:
        try:
            return json.loads(token)
        except ValueError:  # the original error shows the text
            raise self._error(f"{self._shown} is not a {what}") from None

    def _separate(self, closing: str) -> None:
        if self._kind == "mark" and self._token == ",":
            self._advance()
        elif self._kind != "mark" or self._token != closing:
            raise self._error(f"found {self._shown} where ',' or '{closing}' is expected")

    def _take(self, mark: str) -> None:
        if self._kind != "mark" or self._token != mark:
            raise self._error(f"found {self._shown} where '{mark}' is expected")
        self._advance()

    def _advance(self) -> None:
        while True:
            if self._at == len(self._text):
                self._kind, self._token, self._token_line = "end", "", self._line
                return
            match = _TOKEN.match(self._text, self._at)
            self._token_line = self._line
            if match is None:
                column = self._at - self._text.rfind("\n", 0, self._at)
                raise self._error(f"unexpected {self._text[self._at]!r} in column {column}")
            self._at = match.end()
            self._line += match[0].count("\n")
            if match.lastgroup != "blank":
                self._kind, self._token = str(match.lastgroup), match[0]
                return

    @property
    def _shown(self) -> str:
        """The current token for an error text; a string is not shown, because it may be a key."""
        return {"end": "the end", "string": "a string"}.get(self._kind, self._token[:32])

    def _error(self, text: str) -> ConfigError:
        return ConfigError(f"{self._source}, line {self._token_line}: {text}")
