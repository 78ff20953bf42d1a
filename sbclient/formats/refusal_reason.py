"""The header of a rejected management request in which the emulator states its own reason.

The body has the words of the service, which often say only that a request is bad.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

HEADER: Final = "X-Sbclient-Reason"

_KEPT: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
_MOST: Final = 2_000
"""Characters of a value; clients limit the size of headers."""


def write_reason(reason: str) -> str:
    """Return a reason as the value of the header: all but printable ASCII is percent-encoded, as UTF-8."""
    return quote(reason[:_MOST], safe=_KEPT, errors="replace")


def read_reason(value: str) -> str:
    """Return the reason in the value of the header, without line breaks."""
    return " ".join(unquote(value[: 12 * _MOST]).split())[:_MOST]
