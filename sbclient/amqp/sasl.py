"""The SASL mechanisms of Service Bus. Tokens sent to `$cbs` grant rights, so only PLAIN carries credentials.

MSSBCBS is Service Bus' name for ANONYMOUS followed by a token (claims-based security). So is EXTERNAL here: a client
certificate grants nothing.

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
    """The credentials of PLAIN; in Service Bus the name of a key and the key."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"PlainCredentials(username={self.username!r})"


def judged(init: SaslInit, offered: tuple[str, ...]) -> PlainCredentials | bool:
    """Decide on a client: True or False, or credentials that the owner must check.

    Raises:
        WireError: the response of PLAIN is malformed.
    """
    if init.mechanism not in offered:
        return False
    return plain_credentials(init.initial_response or b"") if init.mechanism == PLAIN else True


def plain_credentials(response: bytes) -> PlainCredentials:
    """The credentials in a response: authorization id (ignored), user name and password, separated by NUL.

    Raises:
        WireError: the response does not have three parts of UTF-8.
    """
    pieces = response.split(b"\x00")
    if len(pieces) != 3:
        raise WireError(INVALID_FIELD, f"the response of PLAIN has {len(pieces)} parts instead of 3")
    try:
        return PlainCredentials(pieces[1].decode(), pieces[2].decode())
    except UnicodeDecodeError:  # its text would contain the key
        raise WireError(INVALID_FIELD, "the response of PLAIN is not UTF-8") from None


def first_response(mechanism: str, credentials: PlainCredentials | None) -> bytes:
    """The initial response that a client sends with its mechanism."""
    if mechanism == PLAIN and credentials is not None:
        return b"\x00" + credentials.username.encode() + b"\x00" + credentials.password.encode()
    return b""
