from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.amqp import EncodedBatch, EncodedMessage, encode_message
from sbclient.amqp.encode import encode_map, encode_string, encode_value, sized_map
from sbclient.amqp.types import Described, Int, Long, Symbol, TimeSpan, ULong
from sbclient.delivery import UNKNOWN_TIME
from sbclient.errors import InvalidOperationError
from sbclient.message import AmqpMessageBodyType, ServiceBusMessage
from sbclient.rules.envelope import (
    UNLIMITED_TIME_TO_LIVE,
    MalformedEnvelopeError,
    Unsealed,
    seal,
    seal_all,
    unseal,
)
from sbclient.rules.syphon_reason import SyphonReason
from tests.original_client import BACKLOG, Recorded, comparable, healthy
from tests.rules.strategies import BACKLOG_AT, content_of, entity_paths, messages, received, short_ids

NOW = BACKLOG_AT.timestamp()
TIME_TO_LIVE = timedelta(minutes=10)
MOMENT = datetime(2024, 1, 1, 12, tzinfo=UTC)

Mode = Literal["remaining", "restart"]


def plain(**changes: Any) -> ServiceBusMessage:
    return ServiceBusMessage(b"hi", **changes)


def unsealed(
    properties: dict[str, Any], *, now: float = NOW, time_to_live_mode: Mode = "remaining", at: datetime = BACKLOG_AT
) -> Unsealed:
    """What comes of a backlog message with these properties, as some client may have written them."""
    return unseal(
        received(plain(application_properties=properties), at=at), now=now, time_to_live_mode=time_to_live_mode
    )


def refusal(properties: dict[str, Any], *, now: float = NOW, time_to_live_mode: Mode = "remaining") -> str:
    with pytest.raises(MalformedEnvelopeError) as caught:
        unsealed(properties, now=now, time_to_live_mode=time_to_live_mode)
    assert caught.value.description in str(caught.value)
    return caught.value.reason


def remaining(time_to_live: timedelta, passed_s: float, *, schedule: datetime | None = None) -> timedelta | None:
    sealed = seal(encode_message(plain(time_to_live=time_to_live, scheduled_enqueue_time_utc=schedule)), "orders")
    return unseal(received(sealed), now=NOW + passed_s, time_to_live_mode="remaining").message.time_to_live


def test_all_of_the_time_to_live_remains_if_it_is_unknown_when_the_message_came() -> None:
    sealed = seal(encode_message(plain(time_to_live=timedelta(seconds=9))), "orders")
    home = unseal(received(sealed, at=UNKNOWN_TIME), now=NOW, time_to_live_mode="remaining")
    assert home.message.time_to_live == timedelta(seconds=9)


@pytest.mark.deviation("pairing.schedule-property")
def test_the_four_properties_are_written_as_documented() -> None:
    message = plain(
        session_id="s",
        partition_key="s",
        message_id="m",
        time_to_live=timedelta(hours=26, seconds=1.5),
        scheduled_enqueue_time_utc=MOMENT,
        application_properties={"kept": 1},
    )
    sealed = seal(encode_message(message), "orders/eu")
    assert sealed.application_properties == {
        "x-ms-path": "orders/eu",
        "x-ms-sessionid": "s",
        "x-ms-timetolive": TimeSpan(hours=26, seconds=1.5),
        "x-ms-scheduledenqueuetimeutc": MOMENT,
        "kept": 1,
    }
    assert (sealed.session_id, sealed.time_to_live, sealed.scheduled_enqueue_time_utc) == (None, None, None)
    assert (sealed.partition_key, sealed.message_id, bytes(sealed)) == ("s", "m", b"hi")


def test_a_plain_message_gains_its_destination_only() -> None:
    assert seal(encode_message(plain()), "orders").application_properties == {"x-ms-path": "orders"}


def test_seal_does_not_change_the_message() -> None:
    message = plain(session_id="s", time_to_live=TIME_TO_LIVE, application_properties={"x-ms-path": "mine"})
    before = content_of(message)
    seal(encode_message(message), "orders", native_session_id="n")
    assert content_of(message) == before


@given(messages(), entity_paths, st.none() | short_ids.filter(bool), st.booleans())
def test_unsealing_restores_the_message_exactly(
    message: ServiceBusMessage, destination: str, native_session_id: str | None, is_enqueued_late: bool
) -> None:
    sealed = seal(encode_message(message), destination, native_session_id=native_session_id)
    assert sealed.session_id == native_session_id
    assert (sealed.time_to_live, sealed.scheduled_enqueue_time_utc) == (None, None)
    assert native_session_id is None or sealed.partition_key is None
    home = unseal(received(sealed), now=NOW + 1e9 * is_enqueued_late, time_to_live_mode="restart")
    assert home.destination == destination
    assert content_of(home.message) == content_of(message)


@given(
    st.lists(messages() | st.builds(ServiceBusMessage, st.binary(max_size=300), message_id=st.text(max_size=9))),
    st.lists(st.builds(ServiceBusMessage, st.binary(max_size=300), message_id=short_ids), min_size=1, max_size=4),
    entity_paths,
)
def test_a_transfer_holds_the_messages_as_they_are_sealed_one_by_one(
    of_any_kind: list[ServiceBusMessage], plain_ones: list[ServiceBusMessage], destination: str
) -> None:
    for given_messages in (plain_ones, of_any_kind + plain_ones):
        encoded = [encode_message(message) for message in given_messages]
        transfer, expected = (
            seal_all(encoded, destination),
            EncodedBatch([seal(message, destination) for message in encoded]),
        )
        assert transfer.payload == expected.payload
        assert (transfer.size_bytes, transfer.largest_bytes) == (expected.size_bytes, expected.largest_bytes)
        assert (len(transfer), transfer.message_format) == (len(expected), expected.message_format)
        assert [message.payload for message in transfer] == [message.payload for message in expected]
        assert transfer.first.message_id == expected.first.message_id


@given(messages(), entity_paths)
def test_a_sealed_message_may_be_sealed_again(message: ServiceBusMessage, destination: str) -> None:
    sealed = seal(encode_message(message), "first")
    twice = unseal(received(seal(sealed, destination)), now=NOW, time_to_live_mode="restart")
    assert twice.destination == destination
    assert content_of(twice.message) == content_of(sealed)


@given(messages())
def test_no_property_overwrites_another(message: ServiceBusMessage) -> None:
    names = seal(encode_message(message), "orders", native_session_id="n").application_properties
    added = {
        "x-ms-path": True,
        "x-ms-sessionid": message.session_id is not None,
        "x-ms-timetolive": message.time_to_live is not None,
        "x-ms-scheduledenqueuetimeutc": message.scheduled_enqueue_time_utc is not None,
        "x-ms-user-partitionkey": message.partition_key is not None,
    }
    assert len(names) == len(message.application_properties) + sum(added.values())


def test_a_user_property_with_a_reserved_name_is_kept() -> None:
    own = {"x-ms-path": 7, "x-ms-user-x-ms-path": 8, "x-ms-user-partitionkey": 9, "x-ms-other": 10, "X-MS-PATH": 11}
    sealed = seal(encode_message(plain(application_properties=own, partition_key="k")), "orders", native_session_id="n")
    assert sealed.application_properties == {
        "x-ms-path": "orders",
        "x-ms-user-x-ms-path": 7,
        "x-ms-user-x-ms-user-x-ms-path": 8,
        "x-ms-user-x-ms-user-partitionkey": 9,
        "x-ms-other": 10,
        "X-MS-PATH": 11,
        "x-ms-user-partitionkey": "k",
    }
    home = unseal(received(sealed), now=NOW, time_to_live_mode="remaining").message
    assert home.application_properties == own
    assert home.partition_key == "k"


def test_a_property_that_only_resembles_an_alias_is_not_changed() -> None:
    home = unsealed({"x-ms-path": "orders", "x-ms-user-colour": "red"}).message
    assert home.application_properties == {"x-ms-user-colour": "red"}


def test_unseal_removes_the_session_of_the_backlog_queue() -> None:
    sealed = seal(encode_message(plain(partition_key="k")), "orders", native_session_id="n")
    assert (sealed.session_id, sealed.partition_key) == ("n", None)
    home = unseal(received(sealed), now=NOW, time_to_live_mode="remaining").message
    assert (home.session_id, home.partition_key) == (None, "k")


def test_unseal_removes_a_partition_key_derived_from_the_backlog_session() -> None:
    sealed = seal(encode_message(plain(session_id="s")), "orders", native_session_id="n")
    home = unseal(received(sealed.rewritten(partition_key="n")), now=NOW, time_to_live_mode="remaining").message
    assert (home.session_id, home.partition_key) == ("s", None)


def test_unseal_removes_properties_added_by_the_backlog_queue() -> None:
    sealed = seal(encode_message(plain()), "orders").rewritten(
        time_to_live=timedelta(days=14), scheduled_enqueue_time_utc=MOMENT
    )
    home = unseal(received(sealed), now=NOW, time_to_live_mode="remaining").message
    assert (home.time_to_live, home.scheduled_enqueue_time_utc) == (None, None)


def test_a_body_of_another_type_is_unchanged() -> None:
    message = ServiceBusMessage(None)
    message._body, message._body_type = {"a": 1}, AmqpMessageBodyType.VALUE
    home = unseal(received(seal(encode_message(message), "orders")), now=NOW, time_to_live_mode="remaining").message
    assert (home.body, home.body_type) == ({"a": 1}, AmqpMessageBodyType.VALUE)


def test_ids_of_maximum_length_are_restored() -> None:
    message = plain(session_id="s" * 128, partition_key="s" * 128)
    home = unseal(
        received(seal(encode_message(message), "orders", native_session_id="n")), now=NOW, time_to_live_mode="remaining"
    ).message
    assert (home.session_id, home.partition_key) == ("s" * 128, "s" * 128)


def test_a_backslash_in_the_destination_becomes_a_slash() -> None:
    assert seal(encode_message(plain()), "a\\b").application_properties["x-ms-path"] == "a/b"
    assert unsealed({"x-ms-path": "a\\b"}).destination == "a/b"


@pytest.mark.parametrize(
    "path",
    [
        *("", "/a", "a?b", "x" * 261, "orders/$DeadLetterQueue", "t/Subscriptions/s", "../a"),
        *("p/x-servicebus-transfer/0", "P/X-SERVICEBUS-TRANSFER\\0", "p/x-servicebus-transfer-sessions/3"),
    ],
)
def test_a_destination_that_is_not_an_application_entity_is_rejected(path: str) -> None:
    assert refusal({"x-ms-path": path}) == "DestinationIllegal"
    with pytest.raises(InvalidOperationError):
        seal(encode_message(plain()), path)


@pytest.mark.parametrize(
    ("path", "is_allowed"),
    [("orders", True), ("Orders", True), ("eu/paris", True), ("eu", False), ("orders2", False), ("x/orders", False)],
)
def test_destination_must_match_a_pattern(path: str, is_allowed: bool) -> None:
    sealed = received(plain(application_properties={"x-ms-path": path}))
    found = "allowed"
    try:
        unseal(sealed, now=NOW, time_to_live_mode="remaining", allowed=["ORDERS", "eu/*"])
    except MalformedEnvelopeError as error:
        found = error.reason
    assert found == ("allowed" if is_allowed else "DestinationNotAllowed")


@pytest.mark.parametrize("path", [None, 7, True, MOMENT])
def test_a_destination_that_is_not_a_string_counts_as_missing(path: Any) -> None:
    assert refusal({"x-ms-path": path}) == "DestinationMissing"


def test_a_message_that_was_not_sealed_has_no_destination() -> None:
    assert refusal({}) == "DestinationMissing"
    assert refusal({"x-ms-sessionid": "s"}) == "DestinationMissing"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-ms-sessionid", 7),
        ("x-ms-sessionid", None),
        ("x-ms-sessionid", "x" * 129),
        ("x-ms-user-partitionkey", 7),
        ("x-ms-user-partitionkey", "x" * 129),
        ("x-ms-timetolive", 60),
        ("x-ms-timetolive", None),
        ("x-ms-timetolive", TimeSpan.of_ticks(-1)),
        ("x-ms-timetolive", TimeSpan.of_ticks(-(2**63))),
        ("x-ms-scheduledenqueuetimeutc", "2024-01-01"),
        ("x-ms-scheduledenqueuetimeutc", True),
        ("x-ms-scheduledenqueuetimeutc", None),
        ("x-ms-scheduledenqueuetimeutc", 1.5),
        ("x-ms-scheduledenqueuetimeutc", 2**62),
        ("x-ms-scheduledenqueuetimeutc", -(2**62)),
        ("x-ms-scheduledenqueuetimeutc", datetime.max.replace(tzinfo=timezone(-TIME_TO_LIVE))),
    ],
)
def test_an_alias_that_cannot_be_restored_is_rejected(name: str, value: Any) -> None:
    for mode in ("remaining", "restart"):
        assert refusal({"x-ms-path": "orders", name: value}, time_to_live_mode=mode) == "PropertyMalformed"


@pytest.mark.parametrize(
    "value",
    [
        Described(Symbol("com.microsoft:timespan"), Int(5)),
        Described(Symbol("com.microsoft:timespan"), ULong(2**63)),
        Described(Symbol("com.microsoft:timespan"), "PT5S"),
        Described(Symbol("com.microsoft:time-span"), Long(5)),
        Described(Symbol("com.microsoft:datetime-offset"), Long(5)),
        Symbol("PT5S"),
    ],
)
def test_a_time_to_live_of_another_type_is_rejected(value: Any) -> None:
    raw = b"\x00\x53\x74" + encode_map({"x-ms-path": "orders", "x-ms-timetolive": value}, encode_string)
    with pytest.raises(MalformedEnvelopeError) as caught:
        unseal(received(EncodedMessage(raw)), now=NOW, time_to_live_mode="restart")
    assert caught.value.reason == "PropertyMalformed"
    assert "x-ms-timetolive" in caught.value.description


@pytest.mark.parametrize("name", ["x-ms-timetolive", "x-ms-sessionid", "x-ms-path"])
def test_an_alias_that_is_present_twice_is_rejected(name: str) -> None:
    entries = [("x-ms-path", "orders"), (name, TimeSpan(seconds=9)), (name, "PT9S")]
    content = b"".join(encode_value(part) for entry in entries for part in entry)
    sealed = received(EncodedMessage(b"\x00\x53\x74" + sized_map(content, 6)))
    with pytest.raises(MalformedEnvelopeError) as caught:
        unseal(sealed, now=NOW, time_to_live_mode="restart")
    assert caught.value.reason == "PropertyMalformed"


def test_the_reason_distinguishes_a_missing_from_an_illegal_destination() -> None:
    descriptions = []
    for properties in ({}, {"x-ms-path": 7}):
        with pytest.raises(MalformedEnvelopeError) as caught:
            unsealed(properties)
        descriptions.append(caught.value.description)
    assert "not set" in descriptions[0]
    assert "int" in descriptions[1]


def test_the_error_can_be_pickled() -> None:
    error = MalformedEnvelopeError(SyphonReason.TTL_EXPIRED, "too late")
    again = pickle.loads(pickle.dumps(error))
    assert (again.reason, again.description, str(again)) == ("TTLExpiredException", "too late", str(error))


def test_reasons_are_fixed() -> None:
    """Stored dead letters have them, and programs select by them."""
    assert [str(one) for one in SyphonReason] == [
        *("DestinationMissing", "DestinationIllegal", "DestinationNotAllowed", "PropertyMalformed"),
        *("TTLExpiredException", "MessageSizeExceeded", "DestinationRefused", "DestinationNotFound"),
    ]


@pytest.mark.parametrize("value", [MOMENT, MOMENT.replace(tzinfo=None), 1_704_110_400_000])
def test_the_scheduled_time_is_read_from_a_timestamp_or_milliseconds(value: Any) -> None:
    sealed = received(plain(application_properties={"x-ms-path": "orders", "x-ms-scheduledenqueuetimeutc": value}))
    assert unseal(sealed, now=NOW, time_to_live_mode="remaining").message.scheduled_enqueue_time_utc == MOMENT


@pytest.mark.parametrize(
    ("text", "time_to_live"),
    [
        ("PT0S", timedelta(0)),
        ("P1D", timedelta(days=1)),
        ("P2W", timedelta(weeks=2)),
        ("P1.5W", timedelta(weeks=1.5)),
        ("P1DT2H3M4.5S", timedelta(days=1, hours=2, minutes=3, seconds=4.5)),
        ("PT4,25S", timedelta(seconds=4.25)),
        ("PT0.5H", timedelta(minutes=30)),
        ("PT1H30S", timedelta(hours=1, seconds=30)),
        ("PT90M", timedelta(minutes=90)),
        ("P0.25D", timedelta(hours=6)),
        ("PT0.0000019S", timedelta(microseconds=1)),
        ("P0010D", timedelta(days=10)),
        ("P10675199DT2H48M5.477579S", UNLIMITED_TIME_TO_LIVE - timedelta(microseconds=1)),
    ],
)
def test_durations_of_fixed_length_are_parsed(text: str, time_to_live: timedelta) -> None:
    home = unsealed({"x-ms-path": "orders", "x-ms-timetolive": text}, time_to_live_mode="restart")
    assert home.message.time_to_live == time_to_live


@pytest.mark.parametrize(
    "text", ["P10675199DT2H48M5.4775807S", "P10675199DT2H48M5.47758S", "P99999999999999999999D", "PT" + "9" * 20 + "S"]
)
def test_a_time_to_live_of_the_service_maximum_or_more_is_unlimited(text: str) -> None:
    assert unsealed({"x-ms-path": "orders", "x-ms-timetolive": text}).message.time_to_live is None


@pytest.mark.parametrize(
    ("ticks", "time_to_live"),
    [
        (0, timedelta(0)),
        (9, timedelta(0)),
        (90_000_000_000, timedelta(hours=2.5)),
        (2**63 - 18, UNLIMITED_TIME_TO_LIVE - timedelta(microseconds=1)),
        (2**63 - 1, None),
    ],
)
def test_a_time_to_live_is_read_from_a_timespan(ticks: int, time_to_live: timedelta | None) -> None:
    home = unsealed({"x-ms-path": "orders", "x-ms-timetolive": TimeSpan.of_ticks(ticks)}, time_to_live_mode="restart")
    assert home.message.time_to_live == time_to_live


@pytest.mark.parametrize("time_to_live", [timedelta.max, UNLIMITED_TIME_TO_LIVE])
def test_an_unlimited_time_to_live_is_not_stored(time_to_live: timedelta) -> None:
    sealed = seal(encode_message(plain(time_to_live=time_to_live)), "orders")
    assert sealed.application_properties == {"x-ms-path": "orders"}
    assert sealed.time_to_live is None


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "P",
            "PT",
            "P1DT",
            "1D",
            "P1",
            "P1H",
            "PT1D",
            "-PT1S",
            "PT-1S",
            "+PT1S",
            "pt1s",
            "PT1S ",
            " PT1S",
            "PT1S\n",
        ),
        *("P1Y", "P1M", "P1Y2M3D", "P1W2D", "P1WT1H", "PT1S1M", "PT.5S", "PT1.S", "PT1.5.5S", "PT1.5H30M", "P1.5DT1S"),
        *("PT١S", "00:00:10", "P0001-01-01T00:00:00", "PT" + "9" * 21 + "S", "PT" + "9" * 100_000 + "S"),
    ],
)
def test_other_durations_are_rejected(text: str) -> None:
    assert refusal({"x-ms-path": "orders", "x-ms-timetolive": text}, time_to_live_mode="restart") == "PropertyMalformed"


def test_the_error_truncates_a_long_duration() -> None:
    with pytest.raises(MalformedEnvelopeError) as caught:
        unsealed({"x-ms-path": "orders", "x-ms-timetolive": "x" * 30_000})
    assert len(str(caught.value)) < 200


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=10_675_199) - timedelta(microseconds=1)))
def test_a_time_to_live_is_stored_with_microseconds(time_to_live: timedelta) -> None:
    sealed = seal(encode_message(plain(time_to_live=time_to_live)), "orders")
    assert unseal(received(sealed), now=NOW, time_to_live_mode="restart").message.time_to_live == time_to_live


@pytest.mark.parametrize(
    ("passed_s", "left_s"),
    [(0, 600), (-5, 600), (0.001, 599), (1, 599), (1.5, 598), (598.999999, 1), (599, 1)],
)
def test_the_remaining_time_to_live_is_in_whole_seconds(passed_s: float, left_s: int) -> None:
    assert remaining(TIME_TO_LIVE, passed_s) == timedelta(seconds=left_s)


@pytest.mark.parametrize("passed_s", [599.000001, 599.5, 600, 601, 1e9])
def test_a_message_with_less_than_a_second_left_has_expired(passed_s: float) -> None:
    with pytest.raises(MalformedEnvelopeError) as caught:
        remaining(TIME_TO_LIVE, passed_s)
    assert caught.value.reason == "TTLExpiredException"


def test_a_time_to_live_below_a_second_has_always_expired() -> None:
    with pytest.raises(MalformedEnvelopeError) as caught:
        remaining(timedelta(seconds=0.999), 0)
    assert caught.value.reason == "TTLExpiredException"


def test_the_time_to_live_starts_at_the_scheduled_time_if_later() -> None:
    late = BACKLOG_AT + timedelta(minutes=5)
    assert remaining(TIME_TO_LIVE, 60, schedule=late) == TIME_TO_LIVE
    assert remaining(TIME_TO_LIVE, 300, schedule=late) == TIME_TO_LIVE
    assert remaining(TIME_TO_LIVE, 360, schedule=late) == timedelta(minutes=9)
    assert remaining(TIME_TO_LIVE, 60, schedule=BACKLOG_AT - timedelta(minutes=5)) == timedelta(minutes=9)


def test_a_time_to_live_that_restarts_does_not_expire_in_the_backlog() -> None:
    sealed = seal(encode_message(plain(time_to_live=TIME_TO_LIVE)), "orders")
    assert unseal(received(sealed), now=NOW + 1e6, time_to_live_mode="restart").message.time_to_live == TIME_TO_LIVE


def test_a_message_without_a_time_to_live_does_not_expire_in_the_backlog() -> None:
    assert (
        unseal(
            received(seal(encode_message(plain()), "orders")), now=NOW + 1e9, time_to_live_mode="remaining"
        ).message.time_to_live
        is None
    )


@given(st.integers(0, 10**12), st.integers(-(10**12), 10**12), st.none() | st.integers(-(10**9), 10**9))
def test_the_remaining_time_to_live_is_the_unused_part(
    time_to_live_us: int, passed_us: int, schedule_ms: int | None
) -> None:
    schedule = None if schedule_ms is None else BACKLOG_AT + timedelta(milliseconds=schedule_ms)
    used_us = max(0, passed_us - max(0, schedule_ms or 0) * 1000)
    left_s = (time_to_live_us - used_us) // 1_000_000
    if left_s < 1:
        with pytest.raises(MalformedEnvelopeError):
            remaining(timedelta(microseconds=time_to_live_us), passed_us / 1e6, schedule=schedule)
    else:
        left = remaining(timedelta(microseconds=time_to_live_us), passed_us / 1e6, schedule=schedule)
        assert left == timedelta(seconds=left_s)


# -- the original client -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recorded", BACKLOG, ids=str)
def test_a_message_that_the_original_client_diverted_is_restored(recorded: Recorded) -> None:
    home = unseal(received(recorded.message), now=NOW, time_to_live_mode="restart")
    assert home.destination == healthy(recorded).path
    assert comparable(home.message.payload) == comparable(healthy(recorded).payload)


@pytest.mark.parametrize("recorded", BACKLOG, ids=str)
def test_a_message_is_diverted_as_by_the_original_client(recorded: Recorded) -> None:
    sealed = comparable(seal(healthy(recorded).message, healthy(recorded).path).payload)
    theirs = comparable(recorded.payload)
    if recorded.number % 4 == 1:  # ours keeps the partition key, which equals the session id
        assert sealed.pop("message-annotations") == {"x-opt-partition-key": "'s#'"}
    if recorded.number % 4 == 2:  # theirs sets the longest time to live in the backlog queue, ours none
        assert theirs.pop("header") == {"2": "uint(1566804069)"}
    assert sealed == theirs
