"""Who is there: the SASL mechanisms of Service Bus. Rights are a matter of `$cbs`, so all but PLAIN prove nothing.

MSSBCBS is Service Bus' own name for "I shall authenticate by claims": it is ANONYMOUS with the promise of a token.

Source: AMQP 1.0 part 5 section 5.3; RFC 4616 for PLAIN.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sbclient.amqp.errors import INVALID_FIELD, WireError
from sbclient.amqp.performatives import SaslInit

ANONYMOUS: Final = "ANONYMOUS"
PLAIN: Final = "PLAIN"
MSSBCBS: Final = "MSSBCBS"
EXTERNAL: Final = "EXTERNAL"

OUTCOME_OK: Final = 0
OUTCOME_REFUSED: Final = 1


class PlainCredentials(NamedTuple):
    """What a client claims and proves by PLAIN; Service Bus takes a key's name and the key."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"PlainCredentials(username={self.username!r})"


def judged(init: SaslInit, offered: tuple[str, ...]) -> PlainCredentials | bool:
    """Whether a client is let in: at once, never, or by credentials that the owner has to check.

    Raises:
        WireError: the response of PLAIN is malformed.
    """
    if init.mechanism not in offered:
        return False
    return plain_credentials(init.initial_response or b"") if init.mechanism == PLAIN else True


def plain_credentials(response: bytes) -> PlainCredentials:
    """The credentials in a response: authorization id (ignored), user name and password, divided by NUL.

    Raises:
        WireError: it is not three pieces of UTF-8.
    """
    pieces = response.split(b"\x00")
    if len(pieces) != 3:
        raise WireError(INVALID_FIELD, f"the response of PLAIN has {len(pieces)} pieces, 3 are needed")
    try:
        return PlainCredentials(pieces[1].decode(), pieces[2].decode())
    except UnicodeDecodeError:  # it would show the key
        raise WireError(INVALID_FIELD, "the response of PLAIN is not UTF-8") from None


def first_response(mechanism: str, credentials: PlainCredentials | None) -> bytes:
    """What a client sends with its choice of mechanism."""
    if mechanism == PLAIN and credentials is not None:
        return b"\x00" + credentials.username.encode() + b"\x00" + credentials.password.encode()
    return b""
