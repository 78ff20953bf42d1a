"""Arbitrary messages and paths, and what two messages must have in common to be the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from sbclient.amqp import EncodedMessage
from sbclient.message import ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.rules.envelope import PARTITION_KEY, PATH, SCHEDULED_ENQUEUE_TIME, SESSION_ID, TIME_TO_LIVE, USER_PREFIX
from tests.payloads import encoded

BACKLOG_AT = datetime(2024, 1, 1, tzinfo=UTC)
"""When `received` messages were stored."""

FIELDS = (
    "body_type",
    "application_properties",
    "session_id",
    "message_id",
    "scheduled_enqueue_time_utc",
    "time_to_live",
    "content_type",
    "correlation_id",
    "subject",
    "partition_key",
    "to",
    "reply_to",
    "reply_to_session_id",
)

short_ids = st.text(max_size=128)
moments = st.integers(0, 2**42).map(
    lambda milliseconds: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
)
times_to_live = st.integers(0, 4000 * 86_400_000).map(lambda milliseconds: timedelta(milliseconds=milliseconds))
awkward_names = st.sampled_from([PATH, SESSION_ID, TIME_TO_LIVE, SCHEDULED_ENQUEUE_TIME, PARTITION_KEY, USER_PREFIX])
property_names = (
    st.text(max_size=20)
    | awkward_names
    | awkward_names.map(USER_PREFIX.__add__)
    | awkward_names.map((USER_PREFIX * 2).__add__)
)
property_values = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.uuids()
    | st.decimals(-(10**20), 10**20, places=2)
    | moments
)
bodies = st.binary(max_size=400) | st.text(max_size=100) | st.lists(st.binary(max_size=300), min_size=1, max_size=3)

_segments = st.text("abcXYZ019._-", min_size=1, max_size=12).filter(lambda segment: segment.strip("."))
entity_paths = st.lists(_segments, min_size=1, max_size=4).map("/".join)


@st.composite
def messages(draw: st.DrawFn) -> ServiceBusMessage:
    """Any message that may be sent: where it has a session id, its partition key is the same or None."""
    session_id = draw(st.none() | short_ids)
    return ServiceBusMessage(
        draw(bodies),
        application_properties=draw(st.dictionaries(property_names, property_values, max_size=6)),
        session_id=session_id,
        partition_key=draw(st.none() | (short_ids if session_id is None else st.just(session_id))),
        message_id=draw(st.none() | short_ids),
        scheduled_enqueue_time_utc=draw(st.none() | moments),
        time_to_live=draw(st.none() | times_to_live),
        content_type=draw(st.none() | st.text(max_size=300)),
        correlation_id=draw(st.none() | st.text(max_size=300)),
        subject=draw(st.none() | st.text(max_size=30)),
        to=draw(st.none() | st.text(max_size=30)),
        reply_to=draw(st.none() | st.text(max_size=30)),
        reply_to_session_id=draw(st.none() | short_ids),
    )


def content_of(given: ServiceBusMessage | EncodedMessage) -> dict[str, Any]:
    """Everything a sender can say in a message, with the type of each property (True is not 1)."""
    message = given.decoded() if isinstance(given, EncodedMessage) else given
    body = [message.body] if isinstance(message.body, dict) else list(message.body)
    content: dict[str, Any] = {name: getattr(message, name) for name in FIELDS}
    types = {name: type(value) for name, value in message.application_properties.items()}
    return content | {"parts": body, "types": types}


def received(message: ServiceBusMessage | EncodedMessage, *, at: datetime = BACKLOG_AT) -> ServiceBusReceivedMessage:
    """What a receiver is handed for a message that was stored at that moment."""
    return ServiceBusReceivedMessage.of(encoded(message), sequence_number=1, enqueued_time_utc=at)
