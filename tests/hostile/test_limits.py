"""What a client can make the emulator hold before its token is accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from sbclient.amqp import Connection, ConnectionClosed, ConnectionOptions
from sbclient.amqp.encode import encode_value
from sbclient.amqp.errors import FRAMING_ERROR, RESOURCE_LIMIT
from sbclient.amqp.frames import AMQP_HEADER, encode_frame
from sbclient.amqp.limits import Limits
from sbclient.amqp.performatives import Begin, Detach, Open
from sbclient.emulator.amqp.connection import BEFORE_TOKEN, MAX_RETAINED_BYTES
from sbclient.emulator.context import NamespaceContext
from tests.emulator.conftest import context, host
from tests.emulator.requests import request
from tests.hostile.raw_client import attach_frame, encoded_map

__all__ = ["context", "host"]

OPENED = AMQP_HEADER + encode_frame(0, Open("attacker"), 512)
BEGUN = OPENED + encode_frame(0, Begin(None, 0, 5_000, 5_000), 512)


def properties_of(size: int) -> bytes:
    """Properties with empty lists, which need 64 bytes of memory for each byte on the wire."""
    return encoded_map([(b"\xa3\x01p", encode_value([[]] * size))])


def condition_after(*frames: bytes, limits: Limits = BEFORE_TOKEN) -> str | None:
    """The condition with which the server closes the connection; None while it is open."""
    engine = Connection.server(ConnectionOptions(container_id="contoso"), now=0.0)
    engine.limits = limits
    for frame in frames:
        engine.receive_bytes(frame, now=0.0)
        while (event := engine.next_event()) is not None:
            if isinstance(event, ConnectionClosed):
                assert event.error is not None
                return event.error.condition
    return None


def attaches(count: int, size: int = 0) -> Iterator[bytes]:
    yield BEGUN
    for handle in range(count):
        yield attach_frame(handle, properties_of(size) if size else b"\x40")


@pytest.mark.promise("emulator.no-token")
def test_sixteen_links_are_allowed_and_one_more_is_not() -> None:
    assert condition_after(*attaches(16)) is None
    engine = Connection.server(ConnectionOptions(container_id="contoso"), now=0.0)
    engine.limits = BEFORE_TOKEN
    engine.receive_bytes(b"".join(attaches(17)), now=0.0)
    while engine.next_event() is not None:
        pass
    assert all(not session.links for session in engine.sessions)


@pytest.mark.promise("emulator.no-token")
def test_incomplete_messages_are_limited() -> None:
    engine = Connection.server(ConnectionOptions(container_id="contoso"), now=0.0)
    engine.limits = BEFORE_TOKEN
    assert engine.reserve(131_072)
    assert not engine.reserve(1)


@pytest.mark.promise("emulator.no-token")
@pytest.mark.parametrize(
    ("authorization", "limit"), [("", 8_192), ("SharedAccessSignature sr=x", 8_192), (None, 2**20)]
)
def test_body_of_a_request_without_a_valid_token_is_small(
    context: NamespaceContext, authorization: str | None, limit: int
) -> None:
    assert context.max_body_bytes(request("PUT", "/q", authorization=authorization)) == limit


@pytest.mark.promise("emulator.with-token")
def test_a_token_allows_32_mib_of_decoded_properties(record_property: Callable[[str, object], None]) -> None:
    limits = ConnectionOptions(container_id="contoso", max_retained_bytes=MAX_RETAINED_BYTES).limits
    kept, one_more = (condition_after(*attaches(count, size=60_000), limits=limits) for count in (8, 9))
    assert (kept, one_more) == (None, RESOURCE_LIMIT)
    record_property("bytes", 9 * 60_000)


@pytest.mark.promise("emulator.no-token")
def test_retained_properties_of_links_are_limited() -> None:
    assert condition_after(*attaches(1, size=500)) is None
    assert condition_after(*attaches(2, size=500)) == RESOURCE_LIMIT


def test_retained_properties_of_the_connection_are_limited() -> None:
    opened = Open("a", properties={"p": [[]] * 1_100})
    assert condition_after(AMQP_HEADER + encode_frame(0, opened, 65_536)) == RESOURCE_LIMIT


def test_links_release_retained_memory() -> None:
    rounds = [frame for _ in range(10) for frame in (attach_frame(0, properties_of(500)), DETACHED)]
    engine = Connection.server(ConnectionOptions(container_id="contoso"), now=0.0)
    engine.limits = BEFORE_TOKEN
    engine.receive_bytes(BEGUN, now=0.0)
    for frame in rounds:
        engine.receive_bytes(frame, now=0.0)
        while engine.next_event() is not None:
            pass
    assert not engine.is_over


DETACHED = encode_frame(0, Detach(0, True), 512)


@pytest.mark.promise("emulator.no-token")
@pytest.mark.parametrize(("size", "condition"), [(16_384, None), (16_385, FRAMING_ERROR)])
def test_frames_are_small(size: int, condition: str | None) -> None:
    empty = size.to_bytes(4, "big") + bytes((size // 4 if size < 1_024 else 2, 0, 0, 0))
    assert condition_after(OPENED + empty) == condition


@pytest.mark.promise("emulator.no-token")
def test_eight_sessions_are_allowed_and_one_more_is_not() -> None:
    begins = [encode_frame(channel, Begin(None, 0, 5_000, 5_000), 512) for channel in range(9)]
    assert condition_after(OPENED, *begins[:8]) is None
    assert condition_after(OPENED, *begins) == RESOURCE_LIMIT


def test_limits_end_with_the_first_token() -> None:
    engine = Connection.server(ConnectionOptions(container_id="contoso"), now=0.0)
    engine.limits = BEFORE_TOKEN
    engine.limits = engine.options.limits
    engine.receive_bytes(b"".join(attaches(100, size=500)), now=0.0)
    while engine.next_event() is not None:
        pass
    assert sum(len(session.links) for session in engine.sessions) == 100
