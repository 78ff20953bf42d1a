"""Makes message ids that are equal when the same row is sent again: by a retried task, a replay or a second job.

Laws:

1. An id depends only on the row and, for `position`, on the position of the row; never on the process, the time or the
   attempt. The hashed bytes do not change between releases.
2. `position` hashes the content too, so different messages never share an id, except numbers that differ only in
   their AMQP type. A replay in another order causes duplicates but no loss.
3. Each hashed part includes its type and length, so that two different rows have different bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from hashlib import blake2b
from random import Random
from typing import Any, Final, Literal
from uuid import UUID

from sbclient.amqp.encode import encode_value
from sbclient.amqp.types import Binary, DateTimeOffset, Opaque, TimeSpan, Uri
from sbclient.errors import InvalidOperationError

MessageIdMode = Literal["auto", "column", "keys", "content", "position", "random"]

DIGEST_BYTES: Final = 16
DIGEST_CHARACTERS: Final = 2 * DIGEST_BYTES

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_OF_AMQP: Final = (Opaque, Binary, TimeSpan, DateTimeOffset, Uri)
"""Classes of values whose encoding identifies them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageIdPlan:
    """How a write makes message ids; the driver chooses it.

    Attributes:
        mode: any but `auto`.
        prefix: of every id.
        columns: of the mode `keys`.
        transaction: `txnAppId` and `txnVersion`, for the mode `position` in a batch job.
    """

    mode: MessageIdMode
    prefix: str = ""
    columns: tuple[str, ...] = ()
    transaction: tuple[str, int] | None = None


def choose_plan(
    mode: MessageIdMode,
    *,
    has_column: bool,
    key_columns: tuple[str, ...],
    prefix: str,
    transaction: tuple[str, int] | None,
    is_streaming: bool,
) -> MessageIdPlan:
    """Choose how a write makes message ids.

    Args:
        mode: of the options; `auto` uses the column `message_id`, else the key columns, else the position.
        has_column: whether the rows have a column `message_id`.
        transaction: `txnAppId` and `txnVersion`, of a batch job only.
        is_streaming: whether Spark numbers the rows by query and micro-batch.

    Raises:
        InvalidOperationError: repeatable ids are impossible, two modes are requested, or the micro-batches of a stream
            would share their ids.
    """
    if is_streaming and transaction is not None:
        raise InvalidOperationError(
            "txnAppId and txnVersion are for batch jobs, and micro-batches of a stream would share message ids: leave "
            "them out, because a stream numbers its micro-batches"
        )
    if has_column and key_columns:
        raise InvalidOperationError(
            "a column message_id and the option messageIdColumns exclude each other: drop one of them"
        )
    chosen = mode
    if mode == "auto":
        chosen = "column" if has_column else "keys" if key_columns else "position"
    if chosen == "column" and not has_column:
        raise InvalidOperationError("messageIdMode 'column' requires a column message_id: add it")
    if has_column and chosen != "column":
        raise InvalidOperationError(
            f"messageIdMode {chosen!r} would ignore the column message_id: drop the column, or use the mode 'column'"
        )
    if chosen == "position" and transaction is None and not is_streaming:
        raise InvalidOperationError(
            "a batch job cannot make repeatable message ids without more information: add a column message_id, name "
            "key columns in messageIdColumns, set txnAppId and txnVersion, or use messageIdMode 'content' or 'random'"
        )
    return MessageIdPlan(
        mode=chosen, prefix=prefix, columns=key_columns if chosen == "keys" else (), transaction=transaction
    )


@dataclass(frozen=True, slots=True)
class Place:
    """The position of the rows of a task.

    Attributes:
        app: the streaming query's id, or `txnAppId`.
        version: the micro-batch's number, or `txnVersion`.
        partition: the task's partition.
    """

    app: str
    version: int
    partition: int


class MessageIds:
    """Makes the ids of one task.

    Args:
        plan: how ids are made.
        place: of the task; needed for the mode `position` only.
        random: for the mode `random` only.
    """

    def __init__(self, plan: MessageIdPlan, place: Place | None, random: Random) -> None:
        self._plan = plan
        self._random = random
        self._start = b""
        if plan.mode == "position":
            if place is None:
                raise InvalidOperationError(
                    "this version of Spark does not give a task its query and micro-batch: add a column message_id, "
                    "name key columns in messageIdColumns, or use messageIdMode 'content'"
                )
            self._start = b"".join(map(canonical, (place.app, place.version, place.partition)))

    @property
    def mode(self) -> MessageIdMode:
        """How ids are made."""
        return self._plan.mode

    @property
    def prefix(self) -> str:
        """The prefix of every id."""
        return self._plan.prefix

    def random_id(self) -> str:
        """Return a random id."""
        return self._plan.prefix + str(UUID(int=self._random.getrandbits(128), version=4))

    def digest(self, hashed: bytes) -> str:
        """Return the id for the canonical bytes of a row, to which the place of the task is added."""
        return self._plan.prefix + blake2b(self._start + hashed, digest_size=DIGEST_BYTES).hexdigest()


def canonical(value: Any) -> bytes:
    """Return a value as bytes: type, length and value. Equal values have equal bytes.

    Raises:
        InvalidOperationError: a value of that type has no canonical form.
    """
    if value is None:
        return b"n0:"
    if isinstance(value, _OF_AMQP):
        return _tagged(b"a", encode_value(value))
    if isinstance(value, str):
        return _tagged(b"s", value.encode())
    if isinstance(value, bytes):
        return _tagged(b"b", value)
    if isinstance(value, bool):
        return b"t1:1" if value else b"t1:0"
    if isinstance(value, int):
        return _tagged(b"i", str(value).encode())
    if isinstance(value, float):
        return _tagged(b"f", repr(value).encode())
    if isinstance(value, Decimal):
        return _tagged(b"d", _plain(value).encode())
    if isinstance(value, datetime):
        timestamp = value.replace(tzinfo=UTC) if value.tzinfo is None else value
        return _tagged(b"m", str((timestamp - _EPOCH) // _MICROSECOND).encode())
    if isinstance(value, date | time):
        return _tagged(b"y", value.isoformat().encode())
    if isinstance(value, timedelta):
        return _tagged(b"p", str(value // _MICROSECOND).encode())
    if isinstance(value, UUID):
        return _tagged(b"u", value.bytes)
    if isinstance(value, Mapping):
        pairs = sorted((canonical(key), canonical(item)) for key, item in value.items())
        return _tagged(b"o", b"".join(part for pair in pairs for part in pair))
    if isinstance(value, list | tuple):
        return _tagged(b"l", b"".join(map(canonical, value)))
    raise InvalidOperationError(f"a {type(value).__name__} cannot be part of a message id: cast the column to a string")


def _plain(value: Decimal) -> str:
    """Return a decimal without exponent and trailing zeros, so that 1.50 and 1.5 are equal keys."""
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _tagged(tag: bytes, body: bytes) -> bytes:
    return b"%b%d:%b" % (tag, len(body), body)
