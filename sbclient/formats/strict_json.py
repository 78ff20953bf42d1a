"""JSON as its standard defines it. Python also reads `NaN` and `Infinity`, and makes `1e400` infinite."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from sbclient.errors import InvalidOperationError


def read_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        InvalidOperationError: the text is not JSON, or a number is too large. The error shows no text of the input,
            except a number.
    """
    try:
        return _DECODER.decode(text if isinstance(text, str) else text.decode(json.detect_encoding(text)))
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at column {error.colno}"
    except UnicodeDecodeError as error:
        reason = f"byte {error.start + 1} is not {error.encoding}"
    except InvalidOperationError as error:
        reason = error.message
    except (ValueError, RecursionError):
        reason = "a number is too long, or values are nested too deeply"
    raise InvalidOperationError(f"invalid JSON: {reason}")  # not chained: the errors contain the text


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise InvalidOperationError(f"the number {text:.40} is too large for 64 bits")
    return number


def _no_constant(name: str) -> Any:
    raise InvalidOperationError(f"{name} is not a JSON number")


_DECODER: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)
