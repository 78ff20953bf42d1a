"""Shared access signatures: the tokens that a shared access key signs.

Source: shared access signatures of Service Bus, documented. A token is
`SharedAccessSignature sr=<URI>&sig=<HMAC-SHA256, base64>&se=<Unix seconds>&skn=<key name>`. The signed text is `sr`,
still percent-encoded, then a line feed, then `se`.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from typing import Final
from urllib.parse import quote_plus

SCHEME: Final = "SharedAccessSignature "

LATEST_EXPIRY: Final = 253_402_300_800
"""The end of the year 9999: a token with a later expiry never expires."""


def sign(uri: str, key_name: str, key: str, expires_at: float) -> str:
    """Return a token for a URI, `sb://host/path`, that expires at a time in seconds since 1970."""
    encoded, expiry = quote_plus(uri), str(int(expires_at))
    signature = signature_of(encoded, expiry, key)
    return f"{SCHEME}sr={encoded}&sig={quote_plus(signature)}&se={expiry}&skn={quote_plus(key_name)}"


def signature_of(encoded_uri: str, expiry: str, key: str) -> bytes:
    """Return the signature of a token in base64; the arguments are texts of the token."""
    return b64encode(hmac.digest(key.encode(), f"{encoded_uri}\n{expiry}".encode(), "sha256"))
