"""The limits of the broker, each with its source and with what a client meets behind it.

`test_limits.py` tries each one; the rows become the table of docs/emulator.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random
from typing import Any, Final

from sbclient.amqp import AttachRequested, EncodedBatch, EncodedMessage, Target
from sbclient.broker.descriptions import MAX_AUTHORIZATION_RULES, MAX_USER_METADATA
from sbclient.broker.entity import MAX_PEEKED, PEEK_LIMIT_BYTES
from sbclient.broker.entry import MAX_DEAD_LETTER_TEXT
from sbclient.broker.headers import MAX_HEADERS_BYTES, MAX_PROPERTY_BYTES
from sbclient.broker.profile import STD_2021, Profile
from sbclient.broker.sql.parser import MAX_EXPRESSION_LENGTH, MAX_STATEMENTS
from sbclient.delivery import MAX_BATCH_MESSAGES, Settlement, SettleMode
from sbclient.emulator.context import NamespaceContext, ServerSettings
from sbclient.emulator.faults import WireFaults
from sbclient.emulator.management.paths import MAX_PAGE, bounds_of
from sbclient.emulator.sas import AuthorizationMode, Authorizer
from sbclient.entities import (
    SETTINGS,
    AccessRights,
    AuthorizationRule,
    CorrelationRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
)
from sbclient.errors import ServiceBusError
from sbclient.hosting.host import BrokerHost
from sbclient.hosting.wait_queues import WaitQueues
from sbclient.message import MAX_ID_LENGTH
from sbclient.rules.entity_path import MAX_NAME_LENGTH, MAX_PATH_LENGTH
from sbclient.rules.transaction_key import MAX_DURATION_S, MAX_OPERATIONS
from tests.amqp.pipe import SERVER, Pipe
from tests.broker.driver import Driver, message
from tests.emulator.requests import request
from tests.payloads import encoded

Attempt = Callable[[Driver, int], int | None]
"""Tries a number; returns how much of it was granted, None for all of it. Raises the error of the broker."""


@dataclass(frozen=True)
class Limit:
    """One limit.

    Attributes:
        subject: what is limited.
        most: the largest number that is allowed; the smallest one if `is_least`.
        source: of the limit.
        beyond: what happens behind it.
        attempt: tries a number in a new namespace.
        shown: the limit as the documentation shows it; None = the number.
        profile: of the namespace; one with a low limit where the real one takes too long to reach.
        tried: the limit of that profile; None = `most`.
        is_least: whether smaller numbers are not allowed, instead of larger ones.
    """

    subject: str
    most: int
    source: str
    beyond: str
    attempt: Attempt
    shown: str | None = None
    profile: Profile = STD_2021
    tried: int | None = None
    is_least: bool = False


QUOTAS: Final = "Service Bus quotas"
LOW: Final = replace(
    STD_2021,
    max_entities=5,
    max_partitioned_entities=5,
    max_subscriptions=5,
    max_sql_filters=5,
    max_correlation_filters=5,
)


def _transfer(broker: Driver, count: int) -> None:
    broker.queue()
    broker.send("q", *[message() for _ in range(count)])


def _peeked(broker: Driver, count: int) -> int:
    broker.queue()
    for _ in range(3):
        broker.send("q", *[message("x") for _ in range(100)])
    return len(broker.peek(count=count))


def _of_size(size_bytes: int) -> EncodedMessage:
    padding = size_bytes - encoded(message("x" * 1000)).size_bytes + 1000
    made = encoded(message("x" * padding))
    assert made.size_bytes == size_bytes
    return made


def _peeked_bytes(broker: Driver, count: int) -> int:
    broker.queue()
    broker.send("q", first := _of_size(PEEK_LIMIT_BYTES // 2))
    broker.send("q", second := _of_size(count - first.size_bytes))
    return sum(size.size_bytes for size, _ in zip((first, second), broker.peek(), strict=False))


def _message_size(broker: Driver, count: int) -> None:
    broker.queue()
    broker.send("q", _of_size(count))


def _transfer_size(broker: Driver, count: int) -> None:
    broker.queue()
    first = _of_size(count // 2)
    alone = EncodedBatch([first, _of_size(count // 3)]).size_bytes
    second = _of_size(count // 3 + count - alone)
    assert EncodedBatch([first, second]).size_bytes == count
    broker.send("q", first, second)


def _property(broker: Driver, count: int) -> None:
    broker.queue()
    broker.send("q", message(application_properties={"p": "x" * count}))


def _headers(broker: Driver, count: int) -> None:
    broker.queue()
    texts = {"a": "x" * 30_000, "b": "x" * 30_000, "c": "x" * 1_000}
    missing = count - encoded(message(application_properties=texts)).header_bytes
    sent = encoded(message(application_properties=texts | {"c": "x" * (1_000 + missing)}))
    assert sent.header_bytes == count
    broker.send("q", sent)


def _id(name: str) -> Attempt:
    def attempt(broker: Driver, count: int) -> None:
        broker.queue()
        broker.send("q", message(**{name: "x" * count}))

    return attempt


def _state(broker: Driver, count: int) -> None:
    broker.queue(requires_session=True)
    broker.set_state("q", broker.held("q", "s"), b"x" * count)


def _dead_letter_text(broker: Driver, count: int) -> int:
    broker.queue()
    broker.send("q", message())
    broker.settle("q", broker.one(), how=Settlement(SettleMode.DEAD_LETTER, "r", "x" * count))
    return len(broker.one("q/$DeadLetterQueue").dead_letter_error_description or "")


def _hops(broker: Driver, count: int) -> int:
    broker.queue(f"q{count}")
    for number in reversed(range(count)):
        broker.queue(f"q{number}", forward_to=f"q{number + 1}")
    broker.send("q0", message())
    return count if broker.receive(f"q{count}") else count - 1


def _operations(broker: Driver, count: int) -> None:
    broker.queue()
    transaction = broker.begin()
    for _ in range(count):
        broker.send("q", message(), transaction=transaction)
    broker.commit(transaction)


def _duration(broker: Driver, count: int) -> None:
    broker.queue()
    transaction = broker.begin()
    broker.send("q", message(), transaction=transaction)
    broker.wait(count)
    broker.commit(transaction)


def _described(name: str, value: Callable[[int], Any]) -> Attempt:
    def attempt(broker: Driver, count: int) -> None:
        broker.queue(**{name: value(count)})

    return attempt


def _rules(count: int) -> list[AuthorizationRule]:
    return [AuthorizationRule(key_name=f"r{number}", rights=[AccessRights.SEND]) for number in range(count)]


def _path(broker: Driver, count: int) -> None:
    broker.queue("q" * count)


def _subscription_name(broker: Driver, count: int) -> None:
    broker.topic()
    broker.subscription("t", "s" * count)


def _expression(broker: Driver, count: int) -> None:
    broker.topic()
    broker.subscription()
    broker.rule("t/Subscriptions/s", "r", filter=SqlRuleFilter("a='" + "x" * (count - 4) + "'"))


def _statements(broker: Driver, count: int) -> None:
    broker.topic()
    broker.subscription()
    broker.rule("t/Subscriptions/s", "r", action=SqlRuleAction("; ".join(f"SET a{n}=1" for n in range(count))))


def _entities(*, partitioned: bool) -> Attempt:
    def attempt(broker: Driver, count: int) -> None:
        for number in range(count):
            broker.queue(f"q{number}", enable_partitioning=partitioned)

    return attempt


def _subscriptions(broker: Driver, count: int) -> None:
    broker.topic()
    for number in range(count):
        broker.subscription("t", f"s{number}")


def _sql_filters(broker: Driver, count: int) -> None:
    broker.topic()
    broker.subscription()  # whose default rule counts
    for number in range(count - 1):
        broker.rule("t/Subscriptions/s", f"r{number}", filter=SqlRuleFilter("1=1"))


def _correlation_filters(broker: Driver, count: int) -> None:
    broker.topic()
    broker.subscription()
    for number in range(count):
        broker.rule("t/Subscriptions/s", f"r{number}", filter=CorrelationRuleFilter(label="x"))


def _page(_: Driver, count: int) -> int:
    return bounds_of(request("GET", f"/$Resources/queues?$top={count}"))[1]


def _links(_: Driver, count: int) -> int:
    pipe = Pipe(server=replace(SERVER, handle_max=ServerSettings().handle_max))
    session = pipe.session()
    for number in range(count):
        if session.has_room:
            session.attach_sender(f"link{number}", target=Target("q"))
    pipe.flow()
    return sum(isinstance(event, AttachRequested) for event in pipe.server_events)


def _connections(_: Driver, count: int) -> None:
    host = BrokerHost("contoso")
    NamespaceContext(host, Authorizer(AuthorizationMode.NONE), WireFaults(Random(0))).check_connections(count)


def _waiting(_: Driver, count: int) -> None:
    async def wait() -> None:
        queues = WaitQueues(STD_2021.max_concurrent_receives)
        for _ in range(count):
            queues.join("q", None, 0)

    asyncio.run(wait())


def _seconds(name: str) -> Attempt:
    return _described(name, lambda count: timedelta(seconds=count))


def _least(subject: str, source: str, name: str) -> Limit:
    """The smallest value of a duration of an entity."""
    least = SETTINGS[name].least
    assert least is not None
    return Limit(subject, int(least.total_seconds()), source, "rejected", _seconds(name), is_least=True)


LIMITS: Final = (
    Limit("messages of one transfer", MAX_BATCH_MESSAGES, "reported by users", "an internal error", _transfer),
    Limit("bytes of one message", 2**18, f"{QUOTAS}; 1 MiB in the Premium tier", "rejected", _message_size, "256 KiB"),
    Limit(
        "bytes of one transfer", 2**18, f"{QUOTAS}; 1 MiB in the Premium tier", "rejected", _transfer_size, "256 KiB"
    ),
    Limit("bytes of the headers of a message", MAX_HEADERS_BYTES, QUOTAS, "rejected", _headers, "64 KiB"),
    Limit("bytes of one property", MAX_PROPERTY_BYTES, QUOTAS, "rejected", _property, "32 KiB"),
    Limit("characters of a message id", MAX_ID_LENGTH, QUOTAS, "rejected", _id("message_id")),
    Limit("characters of a session id", MAX_ID_LENGTH, QUOTAS, "rejected", _id("session_id")),
    Limit("characters of a partition key", MAX_ID_LENGTH, QUOTAS, "rejected", _id("partition_key")),
    Limit(
        "bytes of the state of a session", 2**18, "sessions; 1 MiB in the Premium tier", "rejected", _state, "256 KiB"
    ),
    Limit("messages of one peek", MAX_PEEKED, "message browsing", "the others come with the next peek", _peeked),
    Limit(
        "bytes of one peek",
        PEEK_LIMIT_BYTES,
        "partitioned entities",
        "the others come with the next peek",
        _peeked_bytes,
        "256 KiB",
    ),
    Limit(
        "characters of a dead-letter reason or description",
        MAX_DEAD_LETTER_TEXT,
        "the clients of the service",
        "cut",
        _dead_letter_text,
    ),
    Limit("forwards of one message", STD_2021.max_hops, "dead-letter queues", "dead-lettered", _hops),
    Limit("operations of a transaction", MAX_OPERATIONS, QUOTAS, "rejected", _operations),
    Limit("seconds of a transaction", int(MAX_DURATION_S) - 1, QUOTAS, "rolled back", _duration, "120"),
    Limit("characters of the path of a queue or topic", MAX_PATH_LENGTH, QUOTAS, "rejected", _path),
    Limit("characters of the name of a subscription or rule", MAX_NAME_LENGTH, QUOTAS, "rejected", _subscription_name),
    Limit(
        "authorization rules of an entity",
        MAX_AUTHORIZATION_RULES,
        QUOTAS,
        "rejected",
        _described("authorization_rules", _rules),
    ),
    Limit(
        "characters of user metadata",
        MAX_USER_METADATA,
        "the clients of the service",
        "rejected",
        _described("user_metadata", lambda count: "x" * count),
    ),
    Limit(
        "seconds of a lock",
        300,
        QUOTAS,
        "rejected",
        _seconds("lock_duration"),
    ),
    _least("seconds of a lock", "the clients of the service", "lock_duration"),
    Limit(
        "seconds of the duplicate detection window",
        604_800,
        "duplicate detection",
        "rejected",
        _seconds("duplicate_detection_history_time_window"),
    ),
    _least(
        "seconds of the duplicate detection window", "duplicate detection", "duplicate_detection_history_time_window"
    ),
    _least("seconds of the default time to live", "the clients of the service", "default_message_time_to_live"),
    _least("seconds until an idle entity is deleted", "the reference of queues", "auto_delete_on_idle"),
    Limit("characters of a SQL filter or action", MAX_EXPRESSION_LENGTH, QUOTAS, "rejected", _expression),
    Limit("statements of a SQL action", MAX_STATEMENTS, QUOTAS, "rejected", _statements),
    Limit("entities of a page of a list", MAX_PAGE, "recorded answers", "the others are on the next page", _page),
    Limit(
        "links of an AMQP session",
        ServerSettings().handle_max + 1,
        "the answers of the service",
        "the session ends",
        _links,
    ),
    Limit(
        "AMQP connections of a namespace",
        ServerSettings().max_amqp_connections,
        QUOTAS,
        "a quota error",
        _connections,
    ),
    Limit(
        "receivers that wait for messages of a queue, or of all subscriptions of a topic",
        STD_2021.max_concurrent_receives,
        QUOTAS,
        "a quota error",
        _waiting,
    ),
    Limit(
        "queues and topics of a namespace",
        STD_2021.max_entities or 0,
        f"{QUOTAS}; no limit in the Premium tier",
        "a quota error",
        _entities(partitioned=False),
        profile=replace(LOW, max_partitioned_entities=None),
        tried=5,
    ),
    Limit(
        "partitioned queues and topics of a namespace",
        STD_2021.max_partitioned_entities or 0,
        "partitioned entities",
        "a quota error",
        _entities(partitioned=True),
        profile=replace(LOW, max_entities=None),
        tried=5,
    ),
    Limit(
        "subscriptions of a topic",
        STD_2021.max_subscriptions,
        QUOTAS,
        "a quota error",
        _subscriptions,
        profile=replace(LOW, max_sql_filters=100),
        tried=5,
    ),
    Limit(
        "SQL filters of a topic", STD_2021.max_sql_filters, QUOTAS, "a quota error", _sql_filters, profile=LOW, tried=5
    ),
    Limit(
        "correlation filters of a topic",
        STD_2021.max_correlation_filters,
        QUOTAS,
        "a quota error",
        _correlation_filters,
        profile=LOW,
        tried=5,
    ),
)


def granted(limit: Limit, count: int) -> int:
    """How much of a number the broker grants; less than none if it raises an error."""
    try:
        found = limit.attempt(Driver(limit.profile), count)
    except ServiceBusError:
        return -1
    return count if found is None else found
