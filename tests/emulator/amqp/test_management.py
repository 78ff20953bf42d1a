"""The management node: every operation on a partitioned queue and a partitioned subscription, and what each refuses."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import permutations
from typing import Any
from uuid import UUID

import pytest

from sbclient import clock
from sbclient.amqp import (
    ACCEPTED,
    DeliveryReceived,
    EncodedMessage,
    LinkDrained,
    Modified,
    Rejected,
    Sections,
)
from sbclient.amqp.types import Described, Int, Long, Timestamp, UInt, longs, moment_of, uuids
from sbclient.broker.entity import Queue
from sbclient.broker.faults import Call, Fault, FaultKind, Operation
from sbclient.emulator.amqp import management
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.faults import WireFault, WireFaultKind
from sbclient.entities import (
    CorrelationRuleFilter,
    EntityKind,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
)
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage
from tests.emulator.amqp.client import Client, connected, create
from tests.payloads import payload_of

DEFER = Modified(True, True)
SUBSCRIPTION = "t/Subscriptions/s"
SESSION_FILTER = "com.microsoft:session-filter"
WHOLE_TIME = 253_402_300_800_000


@pytest.fixture(params=["q", SUBSCRIPTION])
async def path(host: BrokerHost, request: pytest.FixtureRequest) -> str:
    """A partitioned queue, and a subscription of a partitioned topic."""
    make(host, request.param, requires_session=False)
    return str(request.param)


@pytest.fixture(params=["q", SUBSCRIPTION])
async def sessions(host: BrokerHost, request: pytest.FixtureRequest) -> str:
    """The same with sessions."""
    make(host, request.param, requires_session=True)
    return str(request.param)


def make(host: BrokerHost, path: str, *, requires_session: bool) -> None:
    if path == SUBSCRIPTION:
        create(host, EntityKind.TOPIC, "t", enable_partitioning=True)
        create(host, EntityKind.SUBSCRIPTION, "t", "s", requires_session=requires_session)
    else:
        create(host, EntityKind.QUEUE, path, enable_partitioning=True, requires_session=requires_session)


def target_of(path: str) -> str:
    return path.partition("/")[0]


async def put(client: Client, path: str, *messages: ServiceBusMessage) -> None:
    link = await client.sender(target_of(path))
    for message in messages:
        assert await client.send(link, message) == ACCEPTED


async def one(client: Client, path: str, **options: Any) -> Any:
    link = await client.receiver(path, credit=1, **options)
    return (await client.event(DeliveryReceived, link)).delivery


async def deferred(client: Client, path: str, **options: Any) -> int:
    """Defer the next message; returns its number."""
    delivery = await one(client, path, **options)
    await client.settle(delivery, DEFER)
    number: int = Sections(delivery.payload).message_annotations["x-opt-sequence-number"]
    return number


def texts(body: Any) -> list[str]:
    return [bytes(EncodedMessage.of(each["message"])).decode() for each in body["messages"]]


# ---------------------------------------------------------------------- each operation on partitioned entities


async def test_send_and_receive(context: NamespaceContext, path: str) -> None:
    async with connected(context, "") as client:
        await put(client, path, ServiceBusMessage("x"))
        delivery = await one(client, path)
        assert bytes(EncodedMessage.of(delivery.payload)).decode() == "x"
        assert await client.settle(delivery, ACCEPTED) == ACCEPTED


async def test_receive_by_sequence_number(context: NamespaceContext, path: str) -> None:
    async with connected(context, "") as client:
        await put(client, path, ServiceBusMessage("x"))
        number = await deferred(client, path)
        status, body = await client.ask(
            path, "receive-by-sequence-number", {"sequence-numbers": longs([number]), "receiver-settle-mode": UInt(1)}
        )
        assert status == 200
        assert texts(body) == ["x"]
        (message,) = body["messages"]
        assert isinstance(message["lock-token"], UUID)
        assert Sections(message["message"]).header.delivery_count == 1
        request = {"disposition-status": "completed", "lock-tokens": uuids([message["lock-token"]])}
        assert (await client.ask(path, "update-disposition", request))[0] == 200
        assert len(context.host.namespace.queue(path)) == 0


async def test_receive_by_sequence_number_can_delete(context: NamespaceContext, path: str) -> None:
    async with connected(context, "") as client:
        await put(client, path, ServiceBusMessage("x"))
        number = await deferred(client, path)
        status, body = await client.ask(
            path, "receive-by-sequence-number", {"sequence-numbers": longs([number]), "receiver-settle-mode": UInt(0)}
        )
        assert status == 200
        assert "lock-token" not in body["messages"][0]
        assert len(context.host.namespace.queue(path)) == 0


async def test_an_unknown_deferred_message_is_not_found(context: NamespaceContext, path: str) -> None:
    async with connected(context, "") as client:
        answer = await client.ask(path, "receive-by-sequence-number", {"sequence-numbers": longs([7])})
        assert answer == (404, "com.microsoft:message-not-found")


async def test_peek_shows_a_held_message_without_its_lock(context: NamespaceContext, path: str) -> None:
    async with connected(context, "") as client:
        await put(client, path, ServiceBusMessage("x"))
        await one(client, path)
        _, body = await client.ask(path, "peek-message", {"from-sequence-number": 0, "message-count": 1})
        sections = Sections(body["messages"][0]["message"])
        assert "x-opt-lock-token" not in sections.delivery_annotations
        assert "x-opt-locked-until" not in sections.message_annotations


async def test_renew_lock(context: NamespaceContext, path: str) -> None:
    async with connected(context, "") as client:
        await put(client, path, ServiceBusMessage("x"))
        delivery = await one(client, path)
        await asyncio.sleep(50)
        status, body = await client.ask(path, "renew-lock", {"lock-tokens": uuids([UUID(bytes_le=delivery.tag)])})
        assert status == 200
        (until,) = body["expirations"]
        assert abs(until.timestamp() - clock.now() - 60) < 1
        await asyncio.sleep(50)
        assert await client.settle(delivery, ACCEPTED) == ACCEPTED


async def test_renewing_an_ended_lock_is_refused(context: NamespaceContext, path: str) -> None:
    async with connected(context, "") as client:
        await put(client, path, ServiceBusMessage("x"))
        delivery = await one(client, path)
        await asyncio.sleep(61)
        answer = await client.ask(path, "renew-lock", {"lock-tokens": uuids([UUID(bytes_le=delivery.tag)])})
        assert answer == (410, "com.microsoft:message-lock-lost")


async def test_tokens_of_several_fragments_are_refused(context: NamespaceContext, path: str) -> None:
    async with connected(context, "") as client:
        await put(client, path, ServiceBusMessage("a"), ServiceBusMessage("b"))
        link = await client.receiver(path, credit=2)
        tags = [(await client.event(DeliveryReceived, link)).delivery.tag for _ in range(2)]
        answer = await client.ask(path, "renew-lock", {"lock-tokens": uuids([UUID(bytes_le=tag) for tag in tags])})
        assert answer == (400, "amqp:not-allowed")


async def test_a_message_without_a_time_cannot_be_scheduled(context: NamespaceContext, path: str) -> None:
    async with connected(context, "") as client:
        messages = [{"message": payload_of(ServiceBusMessage("x"))}]
        answer = await client.ask(target_of(path), "schedule-message", {"messages": messages})
        assert answer == (400, "amqp:not-allowed")


@pytest.mark.deviation("emulator.oversized-schedules")
async def test_a_message_above_the_limit_cannot_be_scheduled(context: NamespaceContext, path: str) -> None:
    async with connected(context, "") as client:
        due = datetime.fromtimestamp(clock.now() + 60, UTC)
        messages = [{"message": payload_of(ServiceBusMessage(b"x" * 2**18, scheduled_enqueue_time_utc=due))}]
        answer = await client.ask(target_of(path), "schedule-message", {"messages": messages})
        assert answer == (403, "amqp:link:message-size-exceeded")


async def session(client: Client, path: str, session_id: str | None = "a") -> Any:
    return await client.receiver(path, filters={SESSION_FILTER: session_id}, credit=1)


@pytest.mark.parametrize("operation", ["renew-session-lock", "get-session-state", "set-session-state"])
async def test_without_the_session_its_operations_are_refused(
    context: NamespaceContext, sessions: str, operation: str
) -> None:
    async with connected(context, "") as client, connected(context, "") as other:
        lost = (410, "com.microsoft:session-lock-lost")
        assert await client.ask(sessions, operation, {"session-id": "a"}) == lost
        await session(other, sessions)
        assert await client.ask(sessions, operation, {"session-id": "a"}) == lost
        await asyncio.sleep(61)
        assert await other.ask(sessions, operation, {"session-id": "a"}) == lost


@pytest.mark.deviation("emulator.last-session-id")
async def test_enumerate_sessions(context: NamespaceContext, sessions: str) -> None:
    async with connected(context, "") as client:
        request = {"last-updated-time": Timestamp(WHOLE_TIME), "skip": Int(0), "top": Int(2)}
        assert await client.ask(sessions, "get-message-sessions", request) == (204, None)
        await put(client, sessions, *(ServiceBusMessage("", session_id=each) for each in "abc"))
        status, body = await client.ask(sessions, "get-message-sessions", request)
        assert status == 200
        assert body["sessions-ids"] == ["a", "b"]
        for last in ({}, {"last-session-id": "c"}):
            _, body = await client.ask(sessions, "get-message-sessions", {**request, "skip": Int(2), **last})
            assert body["sessions-ids"] == ["c"]


async def test_later_pages_of_sessions_are_of_one_time(context: NamespaceContext, sessions: str) -> None:
    """A session that is new or gone does not move the others to another page."""
    async with connected(context, "") as client:
        await put(client, sessions, *(ServiceBusMessage("", session_id=each) for each in "bcdefg"))

        async def page(skip: int, entity: str = sessions) -> list[str]:
            request = {"last-updated-time": Timestamp(WHOLE_TIME), "skip": Int(skip), "top": Int(2)}
            _, body = await client.ask(entity, "get-message-sessions", request)
            return body["sessions-ids"] if body else []

        assert [await page(0), await page(2)] == [["b", "c"], ["d", "e"]]
        await put(client, sessions, ServiceBusMessage("", session_id="a"))
        assert [await page(4), await page(6)] == [["f", "g"], []]
        assert await page(2) == ["c", "d"]  # the list has ended, so this is another one
        await put(client, sessions, ServiceBusMessage("", session_id="aa"))
        await asyncio.sleep(59)
        assert await page(2) == ["c", "d"]
        await asyncio.sleep(2)
        assert await page(2) == ["b", "c"]


async def test_pages_of_several_lists_are_read_in_turns(context: NamespaceContext, host: BrokerHost) -> None:
    for entity in "xy":
        create(host, EntityKind.QUEUE, entity, requires_session=True)
    times = {"all": Timestamp(WHOLE_TIME), "by state": datetime(2020, 1, 1, tzinfo=UTC)}
    async with connected(context, "") as client:
        expected: dict[tuple[str, str], list[str]] = {}
        for entity in "xy":
            await put(client, entity, *(ServiceBusMessage("", session_id=f"{entity}{number}") for number in range(6)))
            expected[entity, "all"] = [f"{entity}{number}" for number in range(6)]
            expected[entity, "by state"] = [f"{entity}{number}" for number in range(5)]
            for name in expected[entity, "by state"]:
                await session(client, entity, name)
                await client.ask(entity, "set-session-state", {"session-id": name, "session-state": b"1"})
        for lists in permutations(expected, 2):
            found: dict[tuple[str, str], list[str]] = {each: [] for each in lists}
            for skip in (0, 2, 4, 6):
                for each in lists:
                    request = {"last-updated-time": times[each[1]], "skip": Int(skip), "top": Int(2)}
                    _, body = await client.ask(each[0], "get-message-sessions", request)
                    found[each] += body["sessions-ids"] if body else []
            assert found == {each: expected[each] for each in lists}


@pytest.mark.parametrize("since", [Timestamp(WHOLE_TIME), datetime(2020, 1, 1, tzinfo=UTC)], ids=["all", "by time"])
async def test_cost_of_a_list_of_sessions_grows_with_the_sessions(
    context: NamespaceContext, host: BrokerHost, since: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, gathered, ids_of = 2_000, 0, Queue.session_ids

    def counted(queue: Queue, call: Call, **options: Any) -> list[str]:
        nonlocal gathered
        found = ids_of(queue, call, **options)
        gathered += len(found)
        return found

    monkeypatch.setattr(Queue, "session_ids", counted)
    make(host, "many", requires_session=True)
    for number in range(count):
        lock = host.namespace.accept_session(Call(Operation.SESSION, clock.now()), "many", f"{number:04}")
        assert lock is not None
        host.namespace.set_session_state(Call(Operation.SESSION, clock.now()), "many", lock, b"state")
    async with connected(context, "") as client:
        names: list[str] = []
        while len(names) < count:
            request = {"last-updated-time": since, "skip": Int(len(names)), "top": Int(100)}
            names += (await client.ask("many", "get-message-sessions", request))[1]["sessions-ids"]
    assert names == sorted(set(names))
    assert gathered <= 2 * count


@pytest.mark.parametrize("milliseconds", [WHOLE_TIME, 2**62, -(2**62)])
async def test_outside_of_all_years_a_session_with_only_a_state_is_listed(
    context: NamespaceContext, sessions: str, milliseconds: int
) -> None:
    async with connected(context, "") as client:
        await session(client, sessions, "a")
        await client.ask(sessions, "set-session-state", {"session-id": "a", "session-state": b"1"})
        _, body = await client.ask(sessions, "get-message-sessions", {"last-updated-time": Timestamp(milliseconds)})
        assert body["sessions-ids"] == ["a"]


async def test_sessions_are_listed_by_the_time_of_their_state(context: NamespaceContext, sessions: str) -> None:
    async with connected(context, "") as client:
        await session(client, sessions, "old")
        await client.ask(sessions, "set-session-state", {"session-id": "old", "session-state": b"1"})
        await asyncio.sleep(10)
        since = datetime.fromtimestamp(clock.now(), UTC)
        await asyncio.sleep(10)
        await session(client, sessions, "new")
        await client.ask(sessions, "set-session-state", {"session-id": "new", "session-state": b"1"})
        _, body = await client.ask(sessions, "get-message-sessions", {"last-updated-time": since})
        assert body["sessions-ids"] == ["new"]


async def test_deferred_messages_of_a_session_are_taken_under_its_lock(
    context: NamespaceContext, sessions: str
) -> None:
    async with connected(context, "") as client:
        await put(client, sessions, ServiceBusMessage("x", session_id="a"))
        number = await deferred(client, sessions, filters={SESSION_FILTER: "a"})
        status, body = await client.ask(
            sessions, "receive-by-sequence-number", {"sequence-numbers": longs([number]), "session-id": "a"}
        )
        assert status == 200
        request = {
            "disposition-status": "suspended",
            "lock-tokens": uuids([body["messages"][0]["lock-token"]]),
            "session-id": "a",
            "deadletter-reason": "why",
            "deadletter-description": "how",
        }
        assert (await client.ask(sessions, "update-disposition", request))[0] == 200
        dead = Sections((await one(client, f"{sessions}/$DeadLetterQueue")).payload)
        assert dead.application_properties["DeadLetterReason"] == "why"
        assert dead.application_properties["DeadLetterErrorDescription"] == "how"


# Settling ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "left", "dead"), [("completed", 0, 0), ("abandoned", 1, 0), ("defered", 1, 0), ("suspended", 0, 1)]
)
async def test_update_disposition_settles_what_another_connection_received(
    context: NamespaceContext, path: str, status: str, left: int, dead: int
) -> None:
    async with connected(context, "") as client, connected(context, "") as other:
        await put(client, path, ServiceBusMessage("x"))
        token = UUID(bytes_le=(await one(client, path)).tag)
        request = {"disposition-status": status, "lock-tokens": uuids([token])}
        assert (await other.ask(path, "update-disposition", request))[0] == 200
    namespace = context.host.namespace
    assert len(namespace.queue(path)) == left
    assert len(namespace.queue(f"{path}/$DeadLetterQueue")) == dead


EMPTY = 204, "com.microsoft:message-not-found"


async def test_batch_delete_removes_only_earlier_messages(context: NamespaceContext, path: str) -> None:
    async with connected(context, "") as client:
        await put(client, path, *(ServiceBusMessage("old") for _ in range(20)))
        await asyncio.sleep(10)
        before = datetime.fromtimestamp(clock.now(), UTC)  # and not at that time
        await put(client, path, *(ServiceBusMessage("new") for _ in range(5)))
        request = {"message-count": Int(100), "enqueued-time-utc": before}
        assert await client.ask(path, "batch-delete-messages", request) == (200, {"message-count": 20})
        assert await client.ask(path, "batch-delete-messages", request) == EMPTY
        assert len(context.host.namespace.queue(path)) == 5
        assert Sections((await one(client, path)).payload).header.delivery_count == 0


@pytest.mark.parametrize(
    ("before", "answer", "left"),
    [
        (Timestamp(WHOLE_TIME), (200, {"message-count": 2}), 0),
        (Timestamp(2**62), (200, {"message-count": 2}), 0),
        (Timestamp(-(2**62)), EMPTY, 2),
        (Long(0), (400, "com.microsoft:argument-error"), 2),
    ],
)
async def test_batch_delete_before_a_time_outside_of_all_years(
    context: NamespaceContext, path: str, before: object, answer: object, left: int
) -> None:
    async with connected(context, "") as client:
        await put(client, path, ServiceBusMessage("a"), ServiceBusMessage("b"))
        request = {"message-count": Int(9), "enqueued-time-utc": before}
        assert await client.ask(path, "batch-delete-messages", request) == answer
        assert len(context.host.namespace.queue(path)) == left


async def test_batch_delete_removes_at_most_the_requested_count(context: NamespaceContext, path: str) -> None:
    async with connected(context, "") as client:
        await put(client, path, *(ServiceBusMessage("") for _ in range(5)))
        answer = await client.ask(path, "batch-delete-messages", {"message-count": Int(3)})
        assert answer == (200, {"message-count": 3})
        assert await client.ask(path, "batch-delete-messages", {"message-count": Int(0)}) == EMPTY


# Rules ---------------------------------------------------------------------------------------------------------------

SQL = {"sql-filter": {"expression": "a = 1"}, "sql-rule-action": {"expression": "SET b = 2"}}
CORRELATION = {
    "correlation-filter": {
        "correlation-id": "c",
        "message-id": "m",
        "to": "to",
        "reply-to": "r",
        "label": "l",
        "session-id": "s",
        "reply-to-session-id": "rs",
        "content-type": "ct",
        "properties": {"p": 1},
    }
}


@pytest.fixture
async def subscription(host: BrokerHost) -> str:
    make(host, SUBSCRIPTION, requires_session=False)
    return SUBSCRIPTION


async def test_add_and_remove_rules(context: NamespaceContext, subscription: str) -> None:
    async with connected(context, "") as client:
        assert (await client.ask(subscription, "remove-rule", {"rule-name": "$Default"}))[0] == 200
        assert await client.ask(subscription, "enumerate-rules", {"top": 10, "skip": 0}) == (204, None)
        assert (await client.ask(subscription, "add-rule", {"rule-name": "sql", "rule-description": SQL}))[0] == 200
        await put(client, subscription, ServiceBusMessage("no"))
        await put(client, subscription, ServiceBusMessage("yes", application_properties={"a": 1}))
        delivery = await one(client, subscription)
        assert bytes(EncodedMessage.of(delivery.payload)).decode() == "yes"
        properties = Sections(delivery.payload).application_properties
        assert properties["b"] == 2
        assert properties["RuleName"] == "sql"


async def test_enumerate_rules_describes_each_filter_and_action(
    context: NamespaceContext, host: BrokerHost, subscription: str
) -> None:
    filters = {
        "a": (FalseRuleFilter(), None),
        "b": (SqlRuleFilter("x = 1"), SqlRuleAction("SET y = 2")),
        "c": (CorrelationRuleFilter(label="l", properties={"p": 1}), None),
    }
    for name, (rule_filter, action) in filters.items():
        create(host, EntityKind.RULE, "t", "s", name, filter=rule_filter, action=action)
    async with connected(context, "") as client:
        status, body = await client.ask(subscription, "enumerate-rules", {"top": 100, "skip": 0})
        assert status == 200
        fields = {each["rule-description"].value[2]: each["rule-description"].value for each in body["rules"]}
        assert all(each["rule-description"].descriptor == 0x13700000004 for each in body["rules"])
        empty = Described(0x13700000005, [])
        assert fields["$Default"][:2] == [Described(0x1370000007, []), empty]
        assert fields["a"][:2] == [Described(0x1370000008, []), empty]
        assert fields["b"][:2] == [Described(0x1370000006, ["x = 1", 20]), Described(0x13700000006, ["SET y = 2", 20])]
        correlation = [None, None, None, None, "l", None, None, None, {"p": 1}]
        assert fields["c"][:2] == [Described(0x1370000009, correlation), empty]
        assert isinstance(fields["a"][3], datetime)
        _, body = await client.ask(subscription, "enumerate-rules", {"top": 2, "skip": 1})
        assert [each["rule-description"].value[2] for each in body["rules"]] == ["a", "b"]


async def test_a_correlation_rule_keeps_every_field(context: NamespaceContext, subscription: str) -> None:
    async with connected(context, "") as client:
        request = {"rule-name": "c", "rule-description": CORRELATION}
        assert (await client.ask(subscription, "add-rule", request))[0] == 200
        _, body = await client.ask(subscription, "enumerate-rules", {"skip": 1})
        (rule,) = body["rules"]
        assert rule["rule-description"].value[0].value == ["c", "m", "to", "r", "l", "s", "rs", "ct", {"p": 1}]


@pytest.mark.parametrize(
    ("body", "condition"),
    [
        ({"rule-name": "$Default", "rule-description": SQL}, "com.microsoft:entity-already-exists"),
        ({"rule-name": "x", "rule-description": {"sql-filter": {"expression": "a ="}}}, "amqp:not-allowed"),
        ({"rule-name": "x", "rule-description": {}}, "com.microsoft:argument-error"),
        ({"rule-name": "x", "rule-description": 5}, "com.microsoft:argument-error"),
        ({"rule-name": "x", "rule-description": {"sql-filter": {}}}, "com.microsoft:argument-error"),
        ({"rule-name": "x", "rule-description": {**SQL, "sql-rule-action": 1}}, "com.microsoft:argument-error"),
        ({"rule-name": "x", "rule-description": {"correlation-filter": {"label": 1}}}, "com.microsoft:argument-error"),
        (
            {"rule-name": "x", "rule-description": {"correlation-filter": {"properties": 1}}},
            "com.microsoft:argument-error",
        ),
        ({"rule-description": SQL}, "com.microsoft:argument-error"),
    ],
)
async def test_an_invalid_rule_is_rejected(
    context: NamespaceContext, subscription: str, body: dict[str, Any], condition: str
) -> None:
    async with connected(context, "") as client:
        assert (await client.ask(subscription, "add-rule", body))[1] == condition


@pytest.mark.parametrize(("kind", "descriptor"), [("true-filter", 0x1370000007), ("false-filter", 0x1370000008)])
async def test_true_and_false_filters_are_understood(
    context: NamespaceContext, subscription: str, kind: str, descriptor: int
) -> None:
    async with connected(context, "") as client:
        await client.ask(subscription, "add-rule", {"rule-name": "x", "rule-description": {kind: {}}})
        _, body = await client.ask(subscription, "enumerate-rules", {"skip": 1})
        assert body["rules"][0]["rule-description"].value[0] == Described(descriptor, [])


async def test_only_subscriptions_have_rules(context: NamespaceContext, host: BrokerHost) -> None:
    make(host, "q", requires_session=False)
    async with connected(context, "") as client:
        assert await client.ask("q", "enumerate-rules", {}) == (400, "amqp:not-allowed")


# Refusals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "body", "answer"),
    [
        ("purge-everything", {}, (501, "amqp:not-implemented")),
        ("renew-lock", {}, (400, "com.microsoft:argument-error")),
        ("renew-lock", {"lock-tokens": []}, (400, "com.microsoft:argument-error")),
        ("renew-lock", {"lock-tokens": ["x"]}, (400, "com.microsoft:argument-error")),
        ("renew-lock", "text", (400, "com.microsoft:argument-error")),
        ("peek-message", {"message-count": -1}, (400, "com.microsoft:argument-error")),
        ("peek-message", {"from-sequence-number": "x"}, (400, "com.microsoft:argument-error")),
        ("peek-message", {"session-id": 1}, (400, "com.microsoft:argument-error")),
        ("schedule-message", {"messages": [{}]}, (400, "com.microsoft:argument-error")),
        ("schedule-message", {"messages": [{"message": b"\xff"}]}, (400, "amqp:decode-error")),
        ("update-disposition", {"disposition-status": "eaten"}, (400, "com.microsoft:argument-error")),
        ("receive-by-sequence-number", {"receiver-settle-mode": 7}, (400, "com.microsoft:argument-error")),
        ("get-message-sessions", {"last-updated-time": "now"}, (400, "com.microsoft:argument-error")),
        ("get-message-sessions", {"last-updated-time": Long(0)}, (400, "com.microsoft:argument-error")),
        ("get-message-sessions", {}, (400, "amqp:not-allowed")),
        ("renew-session-lock", {}, (400, "com.microsoft:argument-error")),
    ],
)
async def test_an_invalid_request_gets_an_error(
    context: NamespaceContext, host: BrokerHost, operation: str, body: Any, answer: tuple[int, str]
) -> None:
    make(host, "q", requires_session=False)
    async with connected(context, "") as client:
        assert await client.ask("q", operation, body) == answer


async def test_session_state_must_be_binary(context: NamespaceContext, host: BrokerHost) -> None:
    make(host, "q", requires_session=True)
    async with connected(context, "") as client:
        await session(client, "q")
        answer = await client.ask("q", "set-session-state", {"session-id": "a", "session-state": "text"})
        assert answer == (400, "com.microsoft:argument-error")


async def test_an_invalid_message_is_rejected_on_the_request_link(context: NamespaceContext, host: BrokerHost) -> None:
    make(host, "q", requires_session=False)
    async with connected(context, "") as client:
        requests, _ = await client.node("q/$management")
        outcome = await client.transfer(requests, b"\xff\xff")
        assert isinstance(outcome, Rejected)
        assert outcome.error is not None
        assert outcome.error.condition == "amqp:decode-error"
        assert (await client.ask("q", "peek-message", {}))[0] == 204


async def test_a_hanging_request_is_answered_within_the_timeout_of_the_client(
    context: NamespaceContext, host: BrokerHost
) -> None:
    make(host, "q", requires_session=False)
    async with connected(context, "") as client:
        await client.node("q/$management")
        host.inject(Fault(FaultKind.HANG, "q", operations=(Operation.PEEK,)))
        began_at = clock.monotonic()
        arguments = {"com.microsoft:server-timeout": UInt(7_000)}
        assert await client.ask("q", "peek-message", {}, arguments=arguments) == (408, "com.microsoft:timeout")
        assert clock.monotonic() - began_at == pytest.approx(7, abs=0.5)
        assert (await client.ask("q", "peek-message", {}))[0] == 408
        assert clock.monotonic() - began_at == pytest.approx(67, abs=0.5)


async def test_a_busy_fault_rejects_requests(context: NamespaceContext, host: BrokerHost) -> None:
    make(host, "q", requires_session=False)
    context.wire_faults.inject(WireFault(WireFaultKind.SERVER_BUSY, "q", count=1))
    async with connected(context, "") as client:
        assert await client.ask("q", "peek-message", {}) == (503, "com.microsoft:server-busy")


async def test_a_dropped_acknowledgement_leaves_a_request_unanswered(
    context: NamespaceContext, host: BrokerHost
) -> None:
    make(host, "q", requires_session=False)
    async with connected(context, "") as client:
        await client.node("q/$management")
        context.wire_faults.inject(WireFault(WireFaultKind.DROP_ACKNOWLEDGEMENT, "q", count=1))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.ask("q", "peek-message", {}), 100)
        assert (await client.ask("q", "peek-message", {}))[0] == 204


@pytest.mark.parametrize(("milliseconds", "is_all"), [(-1, False), (0, True), (1, True)])
async def test_times_from_the_year_10000_mean_all_sessions(
    context: NamespaceContext, host: BrokerHost, milliseconds: int, is_all: bool
) -> None:
    make(host, "q", requires_session=True)
    async with connected(context, "") as client:
        await put(client, "q", ServiceBusMessage("", session_id="a"))
        request = {"last-updated-time": moment_of(253_402_300_800_000 + milliseconds)}
        body = (await client.ask("q", "get-message-sessions", request))[1]
        assert (body["sessions-ids"] if is_all else body) == (["a"] if is_all else None)


async def test_the_least_recently_used_peek_position_is_dropped(
    context: NamespaceContext, host: BrokerHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(management, "MAX_CURSORS", 2)
    create(host, EntityKind.QUEUE, "p", enable_partitioning=True)
    async with connected(context, "") as client:
        await put(client, "p", *(ServiceBusMessage(str(number)) for number in range(8)))
        seen: dict[str, list[str]] = {name: [] for name in "abc"}
        numbers = dict.fromkeys(seen, 0)
        for name in "ababbcbcbbcccc":  # the position of `b` is always one of the last two
            body = {"from-sequence-number": Long(numbers[name]), "message-count": Int(1)}
            status, found = await client.ask("p", "peek-message", body, arguments={"associated-link-name": name})
            assert status == 200
            seen[name] += texts(found)
            last = Sections(found["messages"][0]["message"]).message_annotations["x-opt-sequence-number"]
            numbers[name] = last + 1
        assert {name: len(set(each)) for name, each in seen.items()} == {"a": 2, "b": 6, "c": 6}


async def test_invalid_link_name_is_ignored(context: NamespaceContext, host: BrokerHost) -> None:
    make(host, "q", requires_session=False)
    async with connected(context, "") as client:
        arguments = {"associated-link-name": ["no", "name"]}
        assert (await client.ask("q", "peek-message", {}, arguments=arguments))[0] == 204


async def test_a_drain_of_an_empty_reply_link_is_answered(context: NamespaceContext, host: BrokerHost) -> None:
    make(host, "q", requires_session=False)
    async with connected(context, "") as client:
        _, replies = await client.node("q/$management")
        replies.grant(10, drain=True)
        client.flush()
        await client.event(LinkDrained, replies)
        assert (await client.ask("q", "peek-message", {}))[0] == 204


async def test_each_reader_has_its_own_peek_position(context: NamespaceContext, host: BrokerHost) -> None:
    make(host, "q", requires_session=False)
    async with connected(context, "") as client:
        await put(client, "q", *(ServiceBusMessage(str(number)) for number in range(4)))
        seen: dict[str, list[str]] = {"one": [], "two": []}
        numbers = {"one": 0, "two": 0}
        for _ in range(4):
            for name in seen:
                status, body = await client.ask(
                    "q",
                    "peek-message",
                    {"from-sequence-number": Long(numbers[name]), "message-count": Int(1)},
                    arguments={"associated-link-name": name},
                )
                assert status == 200
                seen[name] += texts(body)
                last = Sections(body["messages"][0]["message"]).message_annotations["x-opt-sequence-number"]
                numbers[name] = last + 1
        assert {name: sorted(each) for name, each in seen.items()} == {name: list("0123") for name in seen}


async def test_a_time_to_live_that_the_queue_limits_is_reported(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "short", default_message_time_to_live=timedelta(seconds=30))
    async with connected(context, "") as client:
        await put(client, "short", ServiceBusMessage("x", time_to_live=timedelta(hours=1)))
        assert Sections((await one(client, "short")).payload).header.ttl == 30_000
