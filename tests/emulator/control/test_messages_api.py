"""The control API for messages: look, send, resubmit, remove, sessions; and what it answers when it cannot."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from sbclient import clock
from sbclient.broker.faults import Call, Fault, FaultKind, Operation
from sbclient.delivery import Settlement, SettleMode
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.control import messages_api
from sbclient.emulator.faults import WireFault, WireFaultKind
from sbclient.entities import EntityKind
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage
from tests.emulator.amqp.client import create, put
from tests.emulator.control.scene import Control

DEAD = "orders/$DeadLetterQueue"


@pytest.fixture
async def orders(host: BrokerHost) -> BrokerHost:
    create(host, EntityKind.QUEUE, "orders")
    return host


class TestLook:
    async def test_messages_come_page_by_page(self, control: Control, orders: BrokerHost) -> None:
        put(orders, "orders", *(ServiceBusMessage(str(number)) for number in range(5)))
        first = await control.ask("GET", "messages?entity=orders&count=3")
        assert [each["preview"] for each in first["messages"]] == ["0", "1", "2"]
        second = await control.ask("GET", f"messages?entity=orders&count=3&places={first['next']}")
        assert ([each["preview"] for each in second["messages"]], second["next"]) == (["3", "4"], None)
        newest = await control.ask("GET", "messages?entity=orders&count=1&order=newest")
        assert newest["messages"][0]["preview"] == "4"

    async def test_messages_are_found_by_text_in_properties_or_body(
        self, control: Control, orders: BrokerHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        properties: dict[Any, Any] = {"Country": "IE", "price": 5}
        put(orders, "orders", *(ServiceBusMessage("x" * 300 + " Plum") for _ in range(450)))
        put(orders, "orders", ServiceBusMessage(b"\xff", application_properties=properties, subject="new"))

        async def found(text: str, more: str = "") -> Any:
            said = await control.ask("GET", f"messages?entity=orders&count=100&text={text}{more}")
            return [each["sequence_number"] for each in said["messages"]], said["next"]

        for text in ("country=ie", "price=5", "NEW"):
            assert await found(text) == ([451], None)
        assert 451 in (await found("451"))[0]
        first, place = await found("plum")
        assert first == [*range(1, 201)], "whole parts, so that the next request continues behind them"
        second, place = await found("plum", f"&places={place}")
        assert (second, await found("plum", f"&places={place}")) == ([*range(201, 401)], ([*range(401, 451)], None))
        monkeypatch.setattr(messages_api, "MAX_SEARCHED", 400)
        nothing, place = await found("new")
        assert (nothing, await found("new", f"&places={place}")) == ([], ([451], None))

    async def test_one_message_is_shown_in_full(self, control: Control, orders: BrokerHost) -> None:
        put(orders, "orders", ServiceBusMessage('{"a": 1}', application_properties={"p": 2}, to="x"))
        shown = await control.ask("GET", "messages/1?entity=orders")
        assert shown["body"] == {"type": "data", "size_bytes": 8, "is_cut": False, "text": '{"a": 1}'}
        assert (shown["to"], shown["application_properties"][0]["name"]) == ("x", "p")
        gone = await control.ask("GET", "messages/2?entity=orders", status=404)
        assert gone["type"] == "MessageNotFoundError"

    async def test_sessions_are_listed_with_holder_and_state(self, control: Control, host: BrokerHost) -> None:
        create(host, EntityKind.QUEUE, "jobs", requires_session=True)
        put(host, "jobs", *(ServiceBusMessage(b"x", session_id=session) for session in "aab"))
        lock = await host.accept_session("jobs", "a", timeout_s=1)
        host.namespace.set_session_state(Call(Operation.SESSION, clock.now()), "jobs", lock, b"state")
        await host.receive("jobs", max_message_count=1, max_wait_time_s=1, lock=lock)
        said = await control.ask("GET", "sessions?entity=jobs")
        assert said["count"] == 2
        a, b = said["sessions"]
        assert (a["session_id"], a["message_count"], a["is_locked"], a["held_count"]) == ("a", 2, True, 1)
        assert (a["locked_until"], a["state_bytes"]) == (clock.now() + 60, 5)
        assert (b["session_id"], b["is_locked"], b["locked_until"], b["state_bytes"]) == ("b", False, None, None)
        assert (await control.ask("GET", "sessions?entity=jobs&prefix=b"))["count"] == 1

    @pytest.mark.parametrize(
        ("target", "status"),
        [
            ("messages", 400),
            ("messages?entity=", 400),
            ("messages?entity=nowhere", 404),
            ("messages?entity=orders&order=best", 400),
            ("messages?entity=orders&count=-1", 400),
            ("messages?entity=orders&count=201", 400),
            ("messages?entity=orders&fragment=x", 400),
            ("messages?entity=orders&fragment=1", 400),
            ("messages?entity=orders&places=1.2", 400),
            ("messages?entity=orders&places=a", 400),
            ("messages/x?entity=orders", 400),
            ("messages/1/2?entity=orders", 404),
            ("sessions?entity=nowhere", 404),
        ],
    )
    async def test_invalid_requests_for_messages_are_rejected(
        self, control: Control, orders: BrokerHost, target: str, status: int
    ) -> None:
        assert (await control.ask("GET", target, status=status))["error"]


class TestSend:
    async def test_sent_message_gets_an_id(self, control: Control, orders: BrokerHost) -> None:
        said = await control.send({"body": "hi", "subject": "s"})
        (received,) = await orders.receive("orders", max_message_count=5, max_wait_time_s=1)
        assert (bytes(received.content), received.content.subject) == (b"hi", "s")
        assert said == {"sent": 1, "message_ids": [received.content.message_id]}

    async def test_copies_spread_over_the_fragments(self, control: Control, host: BrokerHost) -> None:
        create(host, EntityKind.QUEUE, "orders", enable_partitioning=True)
        said = await control.send({"body": "hi", "copies": 16})
        assert len(set(said["message_ids"])) == 16
        listed = await control.ask("GET", "messages?entity=orders")
        assert {each["fragment"] for each in listed["messages"]} == set(range(16))

    async def test_a_message_can_be_scheduled(self, control: Control, orders: BrokerHost) -> None:
        at = datetime.fromtimestamp(clock.now() + 10, UTC)
        await control.send({"body": "later", "scheduled_enqueue_time_utc": at.isoformat()})
        (line,) = (await control.ask("GET", "messages?entity=orders"))["messages"]
        assert (line["state"], line["scheduled_at"], line["enqueued_at"]) == ("scheduled", clock.now() + 10, None)
        await clock.sleep(11)
        (received,) = await orders.receive("orders", max_message_count=5, max_wait_time_s=1)
        assert bytes(received.content) == b"later"

    @pytest.mark.parametrize(
        ("fault", "kind"),
        [
            (Fault(FaultKind.DOWN), "ServiceBusConnectionError"),
            (Fault(FaultKind.DOWN, "orders"), "ServiceBusInternalError"),
            (Fault(FaultKind.BUSY), "ServiceBusServerBusyError"),
            (Fault(FaultKind.HANG), "OperationTimeoutError"),
            (WireFault(WireFaultKind.SERVER_BUSY), "ServiceBusServerBusyError"),
        ],
    )
    async def test_a_fault_affects_sending_with_the_error_of_the_broker(
        self, control: Control, orders: BrokerHost, context: NamespaceContext, fault: Any, kind: str
    ) -> None:
        (orders if isinstance(fault, Fault) else context.wire_faults).inject(fault)
        said = await control.send({"body": "hi"}, status=400)
        assert said["type"] == kind
        assert len(said["error"]) > 20

    @pytest.mark.parametrize("sent", range(6))
    async def test_a_refusal_among_copies_says_how_many_were_sent(
        self, control: Control, orders: BrokerHost, sent: int
    ) -> None:
        queue = orders.namespace.directory.find("orders")[0].body
        await control.send({"body": "x" * 50})
        queue.policy.max_size_bytes = queue.fragments[0].size_bytes * (sent + 1)
        said = await control.send({"body": "x" * 50, "copies": 5}, status=400 if sent < 5 else 200)
        assert said.get("type") == (None if sent == 5 else "ServiceBusQuotaExceededError")
        assert (f"{sent} of 5 messages were sent" in said.get("error", "")) is (0 < sent < 5)
        listed = await control.ask("GET", "messages?entity=orders")
        assert len(listed["messages"]) == sent + 1

    async def test_the_brokers_rules_hold(self, control: Control, host: BrokerHost) -> None:
        create(host, EntityKind.QUEUE, "jobs", requires_session=True)
        said = await control.send({"body": "hi"}, entity="jobs", status=400)
        assert "jobs requires sessions: set session_id" in said["error"]
        await control.send({"body": "hi"}, entity="nowhere", status=404)

    async def test_a_message_that_was_sent_cannot_be_changed(self, control: Control, orders: BrokerHost) -> None:
        await control.ask("POST", "messages/1?entity=orders", {"body": "x"}, status=405)


class TestDeadLetters:
    async def _dead_letter(self, host: BrokerHost, *bodies: str) -> None:
        put(host, "orders", *(ServiceBusMessage(body) for body in bodies))
        for received in await host.receive("orders", max_message_count=9, max_wait_time_s=1):
            call = Call(Operation.SETTLE, clock.now())
            settlement = Settlement(SettleMode.DEAD_LETTER, "bad", "very")
            host.namespace.settle(call, "orders", [UUID(int=received.token)], settlement)

    async def test_dead_letters_are_listed_and_resubmitted(
        self, control: Control, orders: BrokerHost, context: NamespaceContext
    ) -> None:
        await self._dead_letter(orders, "a", "b")
        watcher = context.events.subscribe()
        listed = await control.ask("GET", f"messages?entity={DEAD}")
        assert [(each["preview"], each["dead_letter_reason"]) for each in listed["messages"]] == [
            ("a", "bad"),
            ("b", "bad"),
        ]
        said = await control.ask("POST", "resubmit", {"entity": DEAD, "sequence_numbers": [1]})
        assert said == {"resubmitted": 1, "held": 0, "sessionless": 0}
        assert await control.ask("POST", "resubmit", {"entity": DEAD}) == said
        assert [event["count"] for event in watcher.take_all()] == [1, 1]
        received = await orders.receive("orders", max_message_count=9, max_wait_time_s=1)
        assert [bytes(each.content) for each in received] == [b"a", b"b"]

    async def test_some_are_purged(self, control: Control, orders: BrokerHost) -> None:
        await self._dead_letter(orders, "a", "b")
        assert await control.ask("POST", "purge", {"entity": DEAD, "sequence_numbers": [1]}) == {"purged": 1}
        assert await control.ask("POST", "purge", {"entity": DEAD}) == {"purged": 1}

    @pytest.mark.parametrize("what", ["purge", "resubmit"])
    async def test_numbers_choose_only_the_messages_that_they_name(
        self, control: Control, orders: BrokerHost, what: str
    ) -> None:
        await self._dead_letter(orders, *map(str, range(3)))
        done = "purged" if what == "purge" else "resubmitted"
        for numbers, count in (([], 0), ([0], 0), ([9, 2], 1), ([2], 0), (None, 2), ([], 0)):
            said = await control.ask("POST", what, {"entity": DEAD, "sequence_numbers": numbers})
            assert (numbers, said[done]) == (numbers, count)

    @pytest.mark.parametrize(
        ("what", "said"),
        [
            ("resubmit", None),
            ("resubmit", {"entity": 5}),
            ("resubmit", {"entity": "orders"}),
            ("resubmit", {"entity": DEAD, "sequence_numbers": 5}),
            ("resubmit", {"entity": DEAD, "sequence_numbers": [True]}),
            ("purge", {"entity": DEAD, "sequence_numbers": ["1"]}),
            ("purge", {"sequence_numbers": [1]}),
        ],
    )
    async def test_nonsense_is_refused(self, control: Control, orders: BrokerHost, what: str, said: Any) -> None:
        await control.ask("POST", what, said, status=400)
