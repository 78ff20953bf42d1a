"""The control API: state, reset, purge, faults and events, in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from sbclient import ServiceBusAdministrationClient, ServiceBusSender, clock
from sbclient.broker.faults import Call, Fault, FaultKind, NoAnswer, Operation
from sbclient.cli import dead_letter
from sbclient.emulator import Emulator
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.control.api import ITEM, ROUTES
from sbclient.emulator.control.fault_json import KINDS
from sbclient.emulator.events import MAX_SUBSCRIBERS
from sbclient.emulator.faults import OF_CONNECTIONS, WireFault, WireFaultKind, WireFaults
from sbclient.entities import EntityKind
from sbclient.errors import ServiceBusError, ServiceBusInternalError
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage
from tests.emulator.amqp.client import create, put
from tests.emulator.control.scene import Control
from tests.emulator.requests import request

USES: Final[Mapping[str, Callable[[WireFaults, float], object]]] = {
    WireFaultKind.REFUSE: WireFaults.refuses,
    WireFaultKind.RESET: WireFaults.resets,
    WireFaultKind.BLACK_HOLE: WireFaults.black_hole,
    WireFaultKind.LATENCY: WireFaults.latency_s,
    WireFaultKind.DROP_ACKNOWLEDGEMENT: lambda faults, now: faults.drops_acknowledgement("orders", now),
    WireFaultKind.DETACH: lambda faults, now: faults.detaching("orders", now),
    WireFaultKind.SERVER_BUSY: lambda faults, now: faults.is_busy("orders", now),
}
"""What applies each fault of the wire."""


WITHOUT_HTTP: Final[Mapping[str, object]] = {
    "entities": ServiceBusAdministrationClient.create_queue,
    "faults": Emulator.inject,
    f"faults{ITEM}": Emulator.heal,
    "messages": ServiceBusSender.send_messages,
    "resubmit": dead_letter.resubmit,
}
"""What does the same as a request that changes a namespace, where it is no method of `Emulator` with the same name."""


def test_each_change_can_be_made_without_http_too() -> None:
    changes = {name for name, methods in ROUTES.items() if methods.keys() - {"GET"}}
    assert changes - vars(Emulator).keys() - WITHOUT_HTTP.keys() == set(), (
        "add a method of that name to Emulator, or to WITHOUT_HTTP what a client calls instead"
    )
    assert WITHOUT_HTTP.keys() - changes == set(), "remove them from WITHOUT_HTTP"


class TestState:
    async def test_counts_every_fragment(self, control: Control, host: BrokerHost) -> None:
        create(host, EntityKind.QUEUE, "orders", enable_partitioning=True, requires_duplicate_detection=True)
        put(host, "orders", *(ServiceBusMessage(b"x", message_id=f"m{index}", partition_key="a") for index in range(3)))
        (received, *_) = await host.receive("orders", max_message_count=1, max_wait_time_s=1)
        state = await control.ask("GET", "state")
        assert (state["namespace"], state["profile"], state["auth"]) == ("contoso", "std-2021", "sas")
        (orders,) = state["entities"]
        assert (orders["path"], orders["kind"], orders["is_partitioned"]) == ("orders", "queue", True)
        assert len(orders["fragments"]) == 16
        (used,) = [fragment for fragment in orders["fragments"] if fragment["message_count"]]
        assert (used["message_count"], used["locked_count"], used["duplicate_window_count"]) == (3, 1, 3)
        assert used["locks"] == [
            {
                "sequence_number": received.number,
                "locked_until": clock.now() + 60,
                "delivery_count": 0,
            }
        ]
        assert used["size_bytes"] > 0
        assert used["is_complete"]

    async def test_shows_sessions_and_sub_queues(self, control: Control, host: BrokerHost) -> None:
        create(host, EntityKind.QUEUE, "jobs", requires_session=True)
        put(host, "jobs", *(ServiceBusMessage(b"x", session_id=session) for session in "aab"))
        (jobs,) = (await control.ask("GET", "state?entity=jobs"))["entities"]
        assert (jobs["fragments"][0]["sessions"], jobs["fragments"][0]["session_count"]) == (["a", "b"], 2)
        assert jobs["sub_queues"]["deadletter"]["fragments"][0]["message_count"] == 0

    async def test_shows_no_bodies(self, control: Control, host: BrokerHost) -> None:
        create(host, EntityKind.QUEUE, "orders")
        put(host, "orders", ServiceBusMessage(b"the body", application_properties={"secret": "value"}))
        assert "the body" not in json.dumps(await control.ask("GET", "state"))

    async def test_of_one_entity_that_is_missing(self, control: Control) -> None:
        assert "nowhere" in (await control.ask("GET", "state?entity=nowhere", status=404))["error"]


class TestPurgeAndReset:
    @pytest.mark.deviation("emulator.control")
    async def test_purge_removes_messages_in_every_state(self, control: Control, host: BrokerHost) -> None:
        create(host, EntityKind.QUEUE, "orders")
        create(host, EntityKind.QUEUE, "other")
        later = datetime.fromtimestamp(clock.now() + 60, UTC)
        put(host, "orders", ServiceBusMessage(b"1"), ServiceBusMessage(b"2"))
        put(host, "orders", ServiceBusMessage(b"3", scheduled_enqueue_time_utc=later))
        put(host, "other", ServiceBusMessage(b"4"))
        await host.receive("orders", max_message_count=1, max_wait_time_s=1)
        assert await control.ask("POST", "purge", {"entity": "orders"}) == {"purged": 3}
        (orders, other) = (await control.ask("GET", "state"))["entities"]
        assert (orders["fragments"][0]["message_count"], other["fragments"][0]["message_count"]) == (0, 1)
        assert orders["fragments"][0]["size_bytes"] == orders["fragments"][0]["scheduled_count"] == 0
        await clock.sleep(120)
        assert await host.receive("orders", max_message_count=5, max_wait_time_s=0) == []
        assert await control.ask("POST", "purge") == {"purged": 1}

    async def test_purged_queue_works_on(self, control: Control, host: BrokerHost) -> None:
        create(host, EntityKind.QUEUE, "jobs", requires_session=True)
        put(host, "jobs", ServiceBusMessage(b"1", session_id="a"))
        await control.ask("POST", "purge")
        put(host, "jobs", ServiceBusMessage(b"2", session_id="a"))
        lock = await host.accept_session("jobs", "a", timeout_s=1)
        (found,) = await host.receive("jobs", max_message_count=5, max_wait_time_s=1, lock=lock)
        assert bytes(found.content) == b"2"

    @pytest.mark.parametrize("said", [{"entity": 5}, {"queue": "q"}, []])
    async def test_purge_of_nonsense_is_refused(self, control: Control, said: Any) -> None:
        await control.ask("POST", "purge", said, status=400)

    async def test_purge_of_a_missing_entity(self, control: Control) -> None:
        await control.ask("POST", "purge", {"entity": "nowhere"}, status=404)

    async def test_reset_is_done_by_the_emulator(self, control: Control) -> None:
        assert await control.ask("POST", "reset") == {"reset": "contoso"}
        assert control.reset_count == 1


class TestFaults:
    async def test_injected_fault_is_active_until_it_is_healed(self, control: Control, host: BrokerHost) -> None:
        create(host, EntityKind.QUEUE, "orders")
        (fault,) = (await control.ask("POST", "faults", {"kind": "down", "entity": "orders"}))["faults"]
        with pytest.raises(ServiceBusInternalError):
            put(host, "orders", ServiceBusMessage(b"1"))
        assert await control.ask("GET", "faults") == {"faults": [fault]}
        assert await control.ask("DELETE", f"faults/{fault['id']}") == {"faults": []}
        put(host, "orders", ServiceBusMessage(b"1"))
        await control.ask("DELETE", f"faults/{fault['id']}", status=404)

    @pytest.mark.parametrize(("what", "said"), [("faults?id=99", None), ("faults", {"id": 99})])
    async def test_request_with_the_id_in_the_wrong_place_heals_nothing(
        self, control: Control, what: str, said: Any
    ) -> None:
        thrown = await control.ask("POST", "faults", {"kind": "busy"})
        assert "DELETE faults/<id>" in (await control.ask("DELETE", what, said, status=400))["error"]
        assert await control.ask("GET", "faults") == thrown
        assert await control.ask("DELETE", "faults?namespace=contoso") == {"faults": []}

    async def test_put_replaces_all_of_them(self, control: Control, context: NamespaceContext) -> None:
        await control.ask("POST", "faults", {"kind": "busy"})
        said = [{"kind": "latency", "latency_s": 0.5}, {"kind": "hang", "entity": "q", "fragments": [1]}]
        found = (await control.ask("PUT", "faults", said))["faults"]
        assert sorted(each["kind"] for each in found) == ["hang", "latency"]
        assert context.wire_faults.latency_s(clock.now()) == 0.5
        assert await control.ask("PUT", "faults", []) == {"faults": []}

    async def test_one_invalid_message_changes_nothing(self, control: Control) -> None:
        await control.ask("POST", "faults", {"kind": "busy"})
        await control.ask("PUT", "faults", [{"kind": "down"}, {"kind": "nonsense"}], status=400)
        assert [each["kind"] for each in (await control.ask("GET", "faults"))["faults"]] == ["busy"]

    async def test_those_thrown_in_process_are_listed_and_healed_too(
        self, control: Control, context: NamespaceContext
    ) -> None:
        context.host.inject(Fault(FaultKind.SLOW, latency_s=2))
        context.wire_faults.inject(WireFault(WireFaultKind.REFUSE))
        found = (await control.ask("GET", "faults"))["faults"]
        assert [each["kind"] for each in found] == ["slow", "refuse"]
        await control.ask("DELETE", f"faults/{found[1]['id']}")
        assert not context.wire_faults.refuses(clock.now())
        await control.ask("DELETE", "faults")
        assert context.host.namespace.faults.active(clock.now()) == []

    async def test_numbers_are_never_reused(self, control: Control) -> None:
        first = (await control.ask("POST", "faults", {"kind": "busy"}))["faults"][0]["id"]
        await control.ask("DELETE", "faults")
        assert (await control.ask("POST", "faults", {"kind": "busy"}))["faults"][0]["id"] != first

    @pytest.mark.parametrize("kind", KINDS)
    async def test_answer_has_the_injected_fault_also_when_it_is_spent(
        self, control: Control, context: NamespaceContext, kind: str
    ) -> None:
        """With a count that is used up at once, used up later, and without a count."""

        def strike() -> None:
            for fault in context.active_faults():
                if isinstance(fault, Fault):
                    with suppress(ServiceBusError, NoAnswer):
                        context.host.namespace.faults.check(Call(Operation.SEND, clock.now()), "orders")
                else:
                    USES[fault.kind](context.wire_faults, clock.now())

        said = {"kind": kind} if kind in OF_CONNECTIONS else {"kind": kind, "entity": "orders"}
        (other,) = (await control.ask("POST", "faults", {"kind": "slow", "entity": "other"}))["faults"]
        for method in ("POST", "PUT") if kind in USES else ():
            forget = context.wire_faults.listen(strike)  # as open links and connections do
            body = {**said, "count": 1} if method == "POST" else [{**said, "count": 1}]
            *_, spent = (await control.ask(method, "faults", body))["faults"]
            forget()
            assert (spent["kind"], spent["count"], spent["applied"]) == (kind, 0, 1)
            assert spent["id"] > other["id"]
            assert spent not in (await control.ask("GET", "faults"))["faults"]
        await control.ask("DELETE", "faults")
        *_, later = (await control.ask("POST", "faults", {**said, "count": 1}))["faults"]
        *_, never = (await control.ask("POST", "faults", said))["faults"]
        assert [later["count"], "applied" in later, "applied" in never] == [1, False, False]
        assert [each["id"] for each in (await control.ask("GET", "faults"))["faults"]] == [later["id"], never["id"]]
        strike()
        assert [each["id"] for each in (await control.ask("GET", "faults"))["faults"]] == [never["id"]]
        strike()
        answer = (await control.ask("POST", "faults", {"kind": "slow", "entity": "other"}))["faults"]
        assert ["applied" in each for each in answer] == [False, False]  # only of what this request has injected

    async def test_black_hole_that_is_spent_is_healed_by_its_number(
        self, control: Control, context: NamespaceContext
    ) -> None:
        (fault,) = (await control.ask("POST", "faults", {"kind": "black_hole", "count": 1}))["faults"]
        hole = context.wire_faults.black_hole(clock.now())
        assert hole is not None
        assert (await control.ask("GET", "faults"))["faults"] == []
        await control.ask("DELETE", f"faults/{fault['id']}")
        assert hole.is_healed
        await control.ask("DELETE", f"faults/{fault['id']}", status=404)

    async def test_fault_ends_by_itself(self, control: Control) -> None:
        await control.ask("POST", "faults", {"kind": "busy", "duration_s": 10})
        await clock.sleep(4)
        assert (await control.ask("GET", "faults"))["faults"][0]["duration_s"] == 6.0
        await clock.sleep(6)
        assert await control.ask("GET", "faults") == {"faults": []}

    @pytest.mark.parametrize("seed", [7, 0, -1, 2**64])
    async def test_seed_repeats_random_choices(self, control: Control, context: NamespaceContext, seed: int) -> None:
        async def drawn(**body: Any) -> float:
            await control.ask("PUT", "faults", body)
            return context.random.random()

        first = await drawn(seed=seed, faults=[])
        assert await drawn(seed=seed) == first == await drawn(seed=seed, faults=[])
        assert await drawn(faults=[]) != first

    @pytest.mark.parametrize(
        "body", [b"{", b"nonsense", b"[" * 100_000, b"5", b'{"seed": "x"}', b'{"seed": 1, "x": 2}']
    )
    async def test_invalid_body_is_rejected(self, control: Control, body: bytes) -> None:
        answer = await control.api.answer(request("PUT", "/$control/faults", body))
        assert answer.status == 400


class TestEvents:
    async def test_events_are_streamed(self, control: Control, context: NamespaceContext) -> None:
        answer = await control.api.answer(request("GET", "/$control/events"))
        assert (answer.status, answer.content_type) == (200, "text/event-stream")
        assert answer.events is not None
        await control.ask("POST", "faults", {"kind": "busy"})
        await control.ask("DELETE", "faults")
        await control.ask("POST", "purge")
        lines = (await anext(answer.events)).split(b"\n")
        assert lines[:-1:3] == [b"event: fault.thrown", b"event: fault.all_healed", b"event: namespace.purged"]
        await answer.events.aclose()
        assert context.events.has_room

    async def test_too_many_subscribers_are_rejected(self, control: Control, context: NamespaceContext) -> None:
        watchers = [context.events.subscribe() for _ in range(MAX_SUBSCRIBERS)]
        answer = await control.api.answer(request("GET", "/$control/events"))
        assert answer.status == 503
        for watcher in watchers:
            watcher.close()


class TestRefusals:
    @pytest.mark.parametrize("target", ["", "other", "state/x", "faults/1/2"])
    async def test_unknown_resource_is_not_found(self, control: Control, target: str) -> None:
        await control.ask("GET", target, status=404)

    @pytest.mark.parametrize(
        ("method", "target"), [("POST", "state"), ("GET", "reset"), ("PATCH", "faults"), ("GET", "faults/1")]
    )
    async def test_other_methods_are_refused(self, control: Control, method: str, target: str) -> None:
        await control.ask(method, target, status=405)


async def test_nothing_is_left_behind(control: Control) -> None:
    answer = await control.api.answer(request("GET", "/$control/events"))
    assert answer.events is not None
    await answer.events.aclose()
    assert len(asyncio.all_tasks()) == 1
