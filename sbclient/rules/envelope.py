"""Rewrites a message for a backlog queue, which holds messages for many entities, and restores it.

Laws (source: paired namespaces, documented, unless said otherwise):

1. `seal` stores the destination path, the session id, a finite time to live and the scheduled enqueue time as
   application properties under the four names below, and clears the last three. The rest is unchanged. The time to
   live is a timespan of .NET, as the original client writes it.
2. `unseal` restores the message exactly and removes the four properties. A time to live of the service's maximum or
   more is unlimited, the same as no time to live. It may also be a string in ISO 8601, as earlier releases wrote it.
3. A property of the application with one of the four names, or with a name that begins with `x-ms-user-`, is stored
   with the prefix `x-ms-user-` (our choice: it is kept and not overwritten).
4. In a session-enabled backlog queue the message has a session id of that queue. A partition key would differ from it,
   so it is stored as `x-ms-user-partitionkey`, a name that law 3 gives to no other property (our choice).
5. The original client sends the session id as partition key, too, and removes both when it diverts. `unseal` restores
   both. The original writes `x-ms-path` as the last property, `seal` before the other three (source: messages of the
   original client).
6. A message that cannot be restored is rejected with a fixed reason, which the caller dead-letters it with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

from sbclient.amqp import EncodedBatch, EncodedMessage, WireError
from sbclient.amqp.decode import decode_at, skip_value
from sbclient.amqp.encode import encode_string, sized_map
from sbclient.amqp.encoded import encode_entries, encoded_content
from sbclient.amqp.sections import APPLICATION_PROPERTIES, map_content, map_entries
from sbclient.amqp.types import TimeSpan
from sbclient.delivery import UNKNOWN_TIME
from sbclient.errors import InvalidOperationError
from sbclient.formats.iso8601 import ticks_of
from sbclient.message import MAX_ID_LENGTH, PropertyValue, ServiceBusReceivedMessage
from sbclient.rules.backlog import is_backlog_path
from sbclient.rules.entity_path import canonical, check_entity_path
from sbclient.rules.syphon_reason import SyphonReason

PATH: Final = "x-ms-path"
SESSION_ID: Final = "x-ms-sessionid"
TIME_TO_LIVE: Final = "x-ms-timetolive"
SCHEDULED_ENQUEUE_TIME: Final = "x-ms-scheduledenqueuetimeutc"
USER_PREFIX: Final = "x-ms-user-"
PARTITION_KEY: Final = "x-ms-user-partitionkey"

UNLIMITED_TIME_TO_LIVE: Final = timedelta(days=10675199, hours=2, minutes=48, seconds=5, microseconds=477580)
"""The service's longest time to live, 2**63 - 1 ticks of 100 ns: such a message never expires."""

_ALIASES = frozenset({PATH, SESSION_ID, TIME_TO_LIVE, SCHEDULED_ENQUEUE_TIME})
_RESERVED: Final = b"x-ms-"
"""What all names contain that law 3 renames."""
_PATHS_KEPT: Final = 4096
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class MalformedEnvelopeError(Exception):
    """A message of a backlog queue cannot be restored.

    Attributes:
        reason: the dead-letter reason.
        description: one sentence with the values that were found.
    """

    def __init__(self, reason: SyphonReason, description: str) -> None:
        super().__init__(reason, description)
        self.reason = reason
        self.description = description

    def __str__(self) -> str:
        return f"{self.reason}: {self.description}"


class Unsealed(NamedTuple):
    """The destination of a message of a backlog queue, and the message as it was originally sent.

    Attributes:
        destination: path of a queue or topic.
        message: its time to live is what was left when it was unsealed.
        lifetime: the full time to live and its start; None if the time to live does not decrease.
    """

    destination: str
    message: EncodedMessage
    lifetime: tuple[timedelta, datetime] | None = None

    def message_at(self, now: float) -> EncodedMessage:
        """Return the message with the time to live that is left now, in whole seconds.

        Args:
            now: seconds since 1970-01-01 UTC.

        Raises:
            MalformedEnvelopeError: less than one second is left.
        """
        if self.lifetime is None:
            return self.message
        time_to_live = _remaining(*self.lifetime, now)
        if time_to_live == self.message.time_to_live:
            return self.message
        return self.message.rewritten(time_to_live=time_to_live, created_at_ms=int(now * 1000))


def seal(message: EncodedMessage, destination: str, *, native_session_id: str | None = None) -> EncodedMessage:
    """Return the message rewritten for a backlog queue.

    Args:
        destination: the path of the queue or topic that the message was sent to.
        native_session_id: its session id in a session-enabled backlog queue; None for a plain queue.

    Raises:
        InvalidOperationError: the destination is not a legal path, or is a backlog queue.
    """
    aliases: dict[str, PropertyValue] = {}
    changes: dict[str, Any] = {}
    if message.session_id is not None:
        aliases[SESSION_ID] = message.session_id
    if message.session_id != native_session_id:
        changes["session_id"] = native_session_id
    if message.time_to_live is not None:
        changes["time_to_live"] = None
        if message.time_to_live < UNLIMITED_TIME_TO_LIVE:
            aliases[TIME_TO_LIVE] = message.time_to_live
    if message.scheduled_enqueue_time_utc is not None:
        aliases[SCHEDULED_ENQUEUE_TIME] = message.scheduled_enqueue_time_utc
        changes["scheduled_enqueue_time_utc"] = None
    if native_session_id is not None and message.partition_key is not None:
        aliases[PARTITION_KEY] = message.partition_key
        changes["partition_key"] = None
    own, own_count = _kept_properties(message)
    added, count = encode_entries(aliases) if aliases else (b"", 0)
    content = b"".join((own, _path_entry(destination), added))
    return message.rewritten(application_properties=sized_map(content, own_count + 2 + count), **changes)


def seal_all(messages: Sequence[EncodedMessage], destination: str) -> EncodedBatch:
    """Return messages as one transfer to a plain backlog queue, each rewritten as `seal` does it.

    Raises:
        InvalidOperationError: the destination is not a legal path, or is a backlog queue.
    """
    # Most messages have none of the rewritten attributes and no properties of the application. Their bytes are joined
    # with the added section once, in the transfer.
    for message in messages:
        if message.session_id is not None or not message.properties_end:
            return EncodedBatch([seal(each, destination) for each in messages])
    return EncodedBatch.extended(messages, _path_section(destination))


def unseal(
    received: ServiceBusReceivedMessage,
    *,
    now: float,
    time_to_live_mode: Literal["remaining", "restart"],
    allowed: Sequence[str] | None = None,
) -> Unsealed:
    """Return the destination and the original message of a message received from a backlog queue.

    Args:
        now: seconds since 1970-01-01 UTC.
        time_to_live_mode: `"remaining"` restores what is left of a finite time to live, in whole seconds; it starts at
            the arrival in the backlog queue or at the scheduled enqueue time, whichever is later. `"restart"` restores
            the full time to live.
        allowed: patterns of the destinations, as of a shell, in any case of letters; None = every one. A sender to a
            backlog queue chooses the destination.

    Raises:
        MalformedEnvelopeError: the message cannot be restored; `reason` and `description` say why.
    """
    sealed = encoded_content(received)
    raw = sealed.raw_value(APPLICATION_PROPERTIES)
    aliases, restored, is_original = (_parts_of_one if _has_one_entry(raw) else _parts)(raw)
    destination = _destination(aliases.get(PATH, ...))
    if allowed is not None and not any(fnmatchcase(canonical(destination), canonical(each)) for each in allowed):
        raise MalformedEnvelopeError(
            SyphonReason.DESTINATION_NOT_ALLOWED,
            f"the destination {destination!r} matches none of {', '.join(allowed)}",
        )
    schedule = _schedule(aliases[SCHEDULED_ENQUEUE_TIME]) if SCHEDULED_ENQUEUE_TIME in aliases else None
    time_to_live = _time_to_live(aliases[TIME_TO_LIVE]) if TIME_TO_LIVE in aliases else None
    session_id = _short_text(SESSION_ID, aliases[SESSION_ID]) if SESSION_ID in aliases else None
    partition_key = _short_text(PARTITION_KEY, aliases[PARTITION_KEY]) if PARTITION_KEY in aliases else None
    if sealed.session_id is None and partition_key is None:
        partition_key = session_id if is_original and sealed.partition_key is None else sealed.partition_key
    lifetime = None
    if time_to_live is not None and time_to_live_mode == "remaining":
        lifetime = time_to_live, max(received.enqueued_time_utc, schedule or _EPOCH)
        time_to_live = _remaining(*lifetime, now)
    message = sealed.rewritten(
        application_properties=restored,
        session_id=session_id,
        time_to_live=time_to_live,
        scheduled_enqueue_time_utc=schedule,
        partition_key=partition_key,
        created_at_ms=int(now * 1000),
    )
    return Unsealed(destination, message, lifetime)


def _parts(raw: bytes) -> tuple[Mapping[str, Any], bytes, bool]:
    """Return the values of the aliases by name, the encoded properties of the application, and whether a client of the
    original wrote them.

    Args:
        raw: the encoded properties of a message of a backlog queue; empty for none.

    Raises:
        MalformedEnvelopeError: a name is present twice, or they cannot be decoded.
    """
    aliases: dict[str, Any] = {}
    restored: list[bytes] = []
    is_original = False
    try:
        for name, entry in map_entries(raw) if raw else ():
            is_original = is_original or (name == PATH and SESSION_ID in aliases)
            own = name.removeprefix(USER_PREFIX)
            if own != name and _is_reserved(own):
                restored.append(encode_string(own) + entry[skip_value(entry, 0) :])
            elif name in aliases:
                raise _malformed(name, "present twice", "once")
            elif name in _ALIASES or name == PARTITION_KEY:
                aliases[name] = decode_at(entry, skip_value(entry, 0), typed=name == TIME_TO_LIVE)[0]
            else:
                restored.append(entry)
    except WireError as error:
        raise MalformedEnvelopeError(SyphonReason.PROPERTY_MALFORMED, str(error)) from error
    return aliases, sized_map(b"".join(restored), 2 * len(restored)) if restored else b"", is_original


_parts_of_one: Final = lru_cache(_PATHS_KEPT)(_parts)
"""Most messages have one property, their destination."""


def _has_one_entry(raw: bytes) -> bool:
    """Return whether it is a map of one entry in the form of at most 257 bytes."""
    return raw[:1] == b"\xc1" and raw[2:3] == b"\x02"


def path_of(message: ServiceBusReceivedMessage) -> str | None:
    """Return what a message of a backlog queue has as its destination; None if that is no string, or unreadable."""
    try:
        raw = encoded_content(message).raw_value(APPLICATION_PROPERTIES)
        for name, entry in map_entries(raw) if raw else ():
            if name == PATH:
                path = decode_at(entry, skip_value(entry, 0))[0]
                return path if isinstance(path, str) else None
    except WireError:
        pass
    return None


def _kept_properties(message: EncodedMessage) -> tuple[bytes, int]:
    """Return the encoded properties of the application, renamed by law 3, and how many names and values they are."""
    raw = message.raw_value(APPLICATION_PROPERTIES)
    if not raw:
        return b"", 0
    if _RESERVED not in raw:
        return map_content(raw)
    kept = [
        encode_string(USER_PREFIX + name) + entry[skip_value(entry, 0) :] if _is_reserved(name) else entry
        for name, entry in map_entries(raw)
    ]
    return b"".join(kept), 2 * len(kept)


@lru_cache(_PATHS_KEPT)
def _checked_destination(path: str) -> str:
    destination = check_entity_path(path)
    if is_backlog_path(destination):
        raise InvalidOperationError(f"{path!r} is reserved for backlog queues: choose another destination")
    return destination


@lru_cache(_PATHS_KEPT)
def _path_entry(path: str) -> bytes:
    """Return the encoded property of a destination."""
    return encode_entries({PATH: _checked_destination(path)})[0]


@lru_cache(_PATHS_KEPT)
def _path_section(path: str) -> bytes:
    """Return the encoded application properties of a message that has the property of a destination only."""
    return b"\x00\x53\x74" + sized_map(_path_entry(path), 2)


def _is_reserved(name: str) -> bool:
    return name in _ALIASES or name.startswith(USER_PREFIX)


def _malformed(name: str, found: str, wanted: str) -> MalformedEnvelopeError:
    return MalformedEnvelopeError(SyphonReason.PROPERTY_MALFORMED, f"{name} is {found}, not {wanted}")


def _destination(path: Any) -> str:
    if not isinstance(path, str):
        found = "is not set" if path is ... else f"is a {type(path).__name__}, not a path"
        raise MalformedEnvelopeError(SyphonReason.DESTINATION_MISSING, f"{PATH} {found}: the destination is unknown")
    try:
        return _checked_destination(path)
    except InvalidOperationError as error:
        raise MalformedEnvelopeError(SyphonReason.DESTINATION_ILLEGAL, f"{PATH}: {error}") from error


def _short_text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _malformed(name, f"a {type(value).__name__}", "a string")
    if len(value) > MAX_ID_LENGTH:
        raise _malformed(name, f"a string of {len(value)} characters", f"one of at most {MAX_ID_LENGTH}")
    return value


def _schedule(value: Any) -> datetime:
    """Return the scheduled enqueue time. Some clients pass a timestamp as an int of milliseconds, as on the wire."""
    try:
        if isinstance(value, datetime):
            return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        if isinstance(value, int) and not isinstance(value, bool):
            return _EPOCH + timedelta(milliseconds=value)
    except OverflowError as error:
        raise _malformed(SCHEDULED_ENQUEUE_TIME, f"{value!r}", "a timestamp in the years 1 to 9999") from error
    raise _malformed(SCHEDULED_ENQUEUE_TIME, f"a {type(value).__name__}", "a timestamp")


def _time_to_live(value: Any) -> timedelta | None:
    if isinstance(value, TimeSpan):
        ticks: int | None = value.ticks
        if value.ticks < 0:
            raise _malformed(TIME_TO_LIVE, f"negative, {value.ticks} ticks", "a duration")
    elif type(value) is str:
        ticks = ticks_of(value)
    else:
        raise _malformed(TIME_TO_LIVE, f"a {type(value).__name__}", "a timespan with a long, or a string in ISO 8601")
    if ticks is None:
        raise _malformed(
            TIME_TO_LIVE, f"{value[:40]!r}", "an ISO 8601 duration of weeks, days, hours, minutes or seconds"
        )
    return timedelta(microseconds=ticks // 10) if ticks // 10 < UNLIMITED_TIME_TO_LIVE // _MICROSECOND else None


def _remaining(time_to_live: timedelta, since: datetime, now: float) -> timedelta:
    """Return what is left of a time to live: whole seconds, at least one; all of it if its begin is unknown."""
    if since == UNKNOWN_TIME:
        return time_to_live
    passed = timedelta(seconds=now) - (since - _EPOCH)
    left = time_to_live - max(passed, timedelta(0))
    if left < timedelta(seconds=1):
        raise MalformedEnvelopeError(
            SyphonReason.TTL_EXPIRED,
            f"less than 1 s is left of the time to live of {time_to_live} since {since.isoformat()}",
        )
    return timedelta(seconds=left // timedelta(seconds=1))
