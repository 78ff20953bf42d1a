from datetime import timedelta

import pytest

from sbclient.errors import InvalidOperationError
from sbclient.message import ServiceBusMessage
from sbclient.rules.ping import check_not_ping, is_ping, ping_message
from tests.payloads import size_of

PING_CONTENT_TYPE = "application/vnd.ms-servicebus-ping"


def test_a_ping_is_empty_expires_after_one_second_and_has_the_failing_key() -> None:
    ping = ping_message(message_id="p1", session_id="s", partition_key="s")
    assert bytes(ping) == b""
    assert ping.content_type == "application/vnd.ms-servicebus-ping"
    assert ping.time_to_live == timedelta(seconds=1)
    assert (ping.message_id, ping.session_id, ping.partition_key) == ("p1", "s", "s")
    assert ping.application_properties == {}
    assert size_of(ping_message(message_id="p1")) < 80


def test_a_ping_may_be_without_keys() -> None:
    ping = ping_message(message_id="p1")
    assert (ping.session_id, ping.partition_key) == (None, None)


@pytest.mark.parametrize("content_type", [PING_CONTENT_TYPE, "Application/VND.ms-ServiceBus-Ping"])
def test_pings_of_every_client_are_known_and_applications_may_not_send_one(content_type: str) -> None:
    own = ServiceBusMessage(b"money", message_id="m1", content_type=content_type)
    assert is_ping(own)
    with pytest.raises(InvalidOperationError) as caught:
        check_not_ping(own)
    assert "'m1'" in str(caught.value)
    assert "money" not in str(caught.value)


@pytest.mark.parametrize("content_type", [None, "", "application/json", PING_CONTENT_TYPE + "-pong", " "])
def test_everything_else_is_not_a_ping(content_type: str | None) -> None:
    message = ServiceBusMessage(None, content_type=content_type, time_to_live=timedelta(seconds=1))
    assert not is_ping(message)
    check_not_ping(message)
