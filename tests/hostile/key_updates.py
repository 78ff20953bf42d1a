"""Requests for new keys, as a client of TLS 1.3 may send them. The module `ssl` has no function for that."""

from __future__ import annotations

import ctypes
import ssl
from ctypes.util import find_library
from functools import cache
from typing import Any, Final

import pytest

BYTES: Final = 27
"""Of one request, with the header of its record."""
_POINTER_AT: Final = 3 * ctypes.sizeof(ctypes.c_void_p)
"""Where the object of CPython has the pointer: after its head of two words and the socket."""
_REQUESTED: Final = 1


@cache
def _library() -> Any:
    name = find_library("ssl")
    if name is None or not ssl.OPENSSL_VERSION.startswith("OpenSSL 3"):
        pytest.skip("needs the library of OpenSSL 3")
    library = ctypes.CDLL(name)
    library.SSL_key_update.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.SSL_do_handshake.argtypes = [ctypes.c_void_p]
    return library


def request_new_keys(tls: ssl.SSLObject | ssl.SSLSocket) -> bool:
    """Send a request for new keys; False if it could not be written at once."""
    pointer = ctypes.c_void_p.from_address(id(tls._sslobj) + _POINTER_AT).value  # type: ignore[union-attr]
    library = _library()
    return bool(library.SSL_key_update(pointer, _REQUESTED) == 1 and library.SSL_do_handshake(pointer) == 1)
