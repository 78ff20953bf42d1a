"""What the bodies of these runs say of themselves: whose they are, and whether they came whole.

A body is some filler that follows from the uid, and the uid between two tildes. The mark stands at the end, so that
whoever watches a wire and sees it knows that the whole message has passed.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

MARK: Final = re.compile(rb"~([a-z0-9.-]{1,60})~")
LONGEST_MARK: Final = 62


def body_of(uid: str, size: int) -> bytes:
    """The body for a uid of small letters, digits, dots and hyphens, with so many bytes of filler."""
    return f"{_filler(uid, size)}~{uid}~".encode()


def uid_of(body: bytes) -> str:
    """The uid of a body; empty if it bears none."""
    found = MARK.search(body[-LONGEST_MARK:])
    return found[1].decode() if found else ""


def is_whole(body: bytes) -> bool:
    """Whether a body is, byte for byte, what was made for its uid."""
    uid = uid_of(body)
    return bool(uid) and body == body_of(uid, len(body) - len(uid) - 2)


def _filler(uid: str, size: int) -> str:
    return (sha256(uid.encode()).hexdigest() * (size // 64 + 1))[:size]
