"""Watching all namespaces: one look for everybody, everything at first and then what changes, at little cost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from sbclient import clock
from sbclient.broker.faults import Call, Fault, FaultKind, Operation
from sbclient.delivery import Settlement, SettleMode
from sbclient.emulator.context import NamespaceContext, entity_rules_of
from sbclient.emulator.events import MAX_QUEUED, MAX_SUBSCRIBERS
from sbclient.emulator.faults import WireFaults
from sbclient.emulator.net.http_messages import Response
from sbclient.emulator.page.namespace_registry import NamespaceRegistry
from sbclient.emulator.page.namespace_watcher import INTERVAL_S, ClientReport, NamespaceWatcher
from sbclient.emulator.page.watch_api import MAX_VIEWERS, WatchApi
from sbclient.emulator.sas import Authorizer, root_rule
from sbclient.entities import AccessRights, AuthorizationRule, EntityAddress, EntityKind
from sbclient.errors import ServiceBusConnectionError
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage, ServiceBusReceivedMessage
from tests.broker.driver import DELETE, KEYS
from tests.emulator.amqp.client import create, put
from tests.emulator.requests import request, token

BACKLOG = "contoso/x-servicebus-transfer/0"


def served(name: str, key: str = "SAS_KEY_VALUE") -> NamespaceContext:
    host = BrokerHost(name, random=Random(1))
    rules = [
        root_rule(key),
        AuthorizationRule(key_name="listener", rights=[AccessRights.LISTEN], primary_key="SAS_KEY_VALUE"),
    ]
    authorizer = Authorizer(rules=rules, entity_rules=lambda path: entity_rules_of(host, path))
    return NamespaceContext(host=host, authorizer=authorizer, wire_faults=WireFaults(Random(2)))


class Emulated:
    """Two namespaces that are watched."""

    def __init__(self, report: Callable[[], ClientReport] = ClientReport) -> None:
        self.primary = served("contoso")
        self.secondary = served("contoso-backup")
        self.registry = NamespaceRegistry(report=report)
        for context in (self.primary, self.secondary):
            self.registry.add(context, lambda: None)
        self.registry.ports.update({"contoso": 5672, "contoso-backup": 5673})

    @property
    def api(self) -> WatchApi:
        return self.registry.watch

    def queue(self, path: str, **described: Any) -> None:
        create(self.primary.host, EntityKind.QUEUE, path, **described)

    def send(self, path: str, *messages: ServiceBusMessage, context: NamespaceContext | None = None) -> None:
        put((context or self.primary).host, path, *messages)

    async def overview(self, **how: Any) -> Any:
        answer = await self.api.answer(request("GET", "/$control/overview", **how))
        assert answer.status == 200, answer.body
        return json.loads(answer.body)

    async def viewer(self, query: str = "", **how: Any) -> Viewer:
        return Viewer(await self.api.answer(request("GET", f"/$control/watch{query}", **how)))


class Viewer:
    """One who watches."""

    def __init__(self, answer: Response) -> None:
        assert answer.status == 200, answer.body
        assert answer.events is not None
        self.greeting = answer.body
        self._events = answer.events

    async def next(self) -> Any:
        lines = (await anext(self._events)).decode().splitlines()
        assert lines[0] == "event: snapshot"
        return json.loads(lines[1].removeprefix("data: "))

    async def close(self) -> None:
        await self._events.aclose()


@pytest.fixture
def emulated() -> Emulated:
    return Emulated()


def settle(host: BrokerHost, path: str, received: ServiceBusReceivedMessage, mode: SettleMode) -> None:
    assert received.lock_token is not None
    call = Call(Operation.SETTLE, clock.now())
    host.namespace.settle(call, path, [received.lock_token], Settlement(mode))


def entities(said: Any, name: str = "contoso") -> dict[str, Any]:
    found = [each for each in said["namespaces"] if each["name"] == name]
    return {row["path"]: row for each in found for row in each["entities"]}


class TestOverview:
    async def test_each_entity_has_a_row_of_counts(self, emulated: Emulated) -> None:
        emulated.queue("orders", enable_partitioning=True)
        emulated.queue("jobs", requires_session=True)
        emulated.send("orders", *(ServiceBusMessage(b"x", partition_key=KEYS[3]) for _ in range(3)))
        emulated.send("jobs", ServiceBusMessage(b"x", session_id="a"))
        await emulated.primary.host.receive("orders", max_message_count=2, max_wait_time_s=1)
        said = await emulated.overview()
        assert said["at"] == clock.now()
        assert said["about"] == {"http_port": None, "ports": {"contoso": 5672, "contoso-backup": 5673}}
        rows = entities(said)
        orders = rows["orders"]
        assert (orders["active"], orders["locked"], orders["scheduled"], orders["dead"]) == (3, 2, 0, 0)
        assert (orders["arrived"], orders["left"], orders["fragments"], orders["state"]) == (3, 0, 16, "up")
        assert (rows["jobs"]["requires_session"], rows["jobs"]["sessions"]) == (True, 1)
        assert [each["name"] for each in said["namespaces"]] == ["contoso", "contoso-backup"]

    async def test_faults_show_as_states(self, emulated: Emulated) -> None:
        emulated.queue("orders", enable_partitioning=True)
        emulated.primary.host.inject(Fault(FaultKind.DOWN, "orders", fragments=[3]))
        said = await emulated.overview()
        assert (entities(said)["orders"]["state"], entities(said)["orders"]["is_partial"]) == ("down", True)
        (contoso, _) = said["namespaces"]
        assert contoso["state"] == "up"
        assert contoso["faults"] == [{"id": 1, "kind": "down", "entity": "orders", "fragments": [3]}]

    async def test_a_full_fragment_shows_as_full(self, emulated: Emulated) -> None:
        emulated.queue("orders")
        emulated.primary.host.namespace.directory.find("orders")[0].body.policy.max_size_bytes = 1_100
        assert entities(await emulated.overview())["orders"]["state"] == "up"
        emulated.send("orders", ServiceBusMessage(b"x" * 100))
        await clock.sleep(1)
        assert entities(await emulated.overview())["orders"]["state"] == "full"

    async def test_deferred_messages_are_not_active(self, emulated: Emulated) -> None:
        emulated.queue("orders")
        emulated.send("orders", *(ServiceBusMessage(b"x") for _ in range(3)))
        host = emulated.primary.host
        taken = await host.receive("orders", max_message_count=2, max_wait_time_s=1)
        deferred = [entry.received() for entry in taken]
        for received in deferred:
            settle(host, "orders", received, SettleMode.DEFER)
        row = entities(await emulated.overview())["orders"]
        assert (row["active"], row["deferred"], row["locked"]) == (1, 2, 0)
        call = Call(Operation.RECEIVE_DEFERRED, clock.now())
        for each, mode in zip(deferred, (SettleMode.COMPLETE, SettleMode.DEAD_LETTER), strict=True):
            assert each.sequence_number is not None
            (entry,) = host.namespace.receive_deferred(call, "orders", [each.sequence_number])
            settle(host, "orders", entry.received(), mode)
        await clock.sleep(1)
        row = entities(await emulated.overview())["orders"]
        assert (row["active"], row["deferred"], row["dead"]) == (1, 0, 1)

    async def test_timed_changes_are_shown(self, emulated: Emulated) -> None:
        emulated.queue("orders")
        emulated.send("orders", ServiceBusMessage(b"x", scheduled_enqueue_time_utc=_utc(clock.now() + 10)))
        row = entities(await emulated.overview())["orders"]
        assert (row["active"], row["scheduled"], row["arrived"], row["left"]) == (0, 1, 1, 0)
        await clock.sleep(11)
        row = entities(await emulated.overview())["orders"]
        assert (row["active"], row["scheduled"], row["arrived"], row["left"]) == (1, 0, 1, 0)

    async def test_namespaces_are_shown_to_those_who_may_manage_them(self) -> None:
        emulated = Emulated()
        other = served("other", key="another key")
        emulated.registry.add(other, lambda: None)
        assert [each["name"] for each in (await emulated.overview())["namespaces"]] == ["contoso", "contoso-backup"]
        theirs = await emulated.overview(authorization=token(key="another key"))
        assert [each["name"] for each in theirs["namespaces"]] == ["other"]
        for authorization in ("", token(key="wrong"), token("orders"), token(key_name="listener")):
            for what in ("overview", "watch"):
                answer = await emulated.api.answer(request("GET", f"/$control/{what}", authorization=authorization))
                assert answer.status == 401

    @pytest.mark.parametrize(("method", "target"), [("POST", "overview"), ("GET", "watch/1"), ("DELETE", "watch")])
    async def test_it_is_read_only(self, emulated: Emulated, method: str, target: str) -> None:
        assert (await emulated.api.answer(request(method, f"/$control/{target}"))).status == 405


class TestWatch:
    async def test_first_event_has_everything_later_ones_only_changes(self, emulated: Emulated) -> None:
        for path in ("orders", "jobs"):
            emulated.queue(path)
        viewer = await emulated.viewer()
        assert viewer.greeting.startswith(b"event: about\ndata: {")
        first = await viewer.next()
        assert first["is_whole"]
        assert sorted(entities(first)) == ["jobs", "orders"]
        assert not (await viewer.next())["namespaces"]
        emulated.send("orders", ServiceBusMessage(b"x"))
        changed = await viewer.next()
        assert (changed["is_whole"], list(entities(changed))) == (False, ["orders"])
        (contoso,) = changed["namespaces"]
        assert (contoso["arrived"], contoso["left"], contoso["removed"]) == (1, 0, [])
        await viewer.close()

    async def test_entities_come_and_go(self, emulated: Emulated) -> None:
        viewer = await emulated.viewer()
        await viewer.next()
        emulated.queue("orders")
        assert list(entities(await viewer.next())) == ["orders"]
        call = Call(Operation.MANAGE, clock.now())
        emulated.primary.host.namespace.management.delete(call, EntityAddress(EntityKind.QUEUE, ("orders",)))
        assert (await viewer.next())["namespaces"][0]["removed"] == ["orders"]
        await viewer.close()

    async def test_the_selected_entity_is_shown_in_detail(self, emulated: Emulated) -> None:
        emulated.queue("orders", enable_partitioning=True, max_delivery_count=7)
        viewer = await emulated.viewer("?namespace=contoso&entity=Orders")
        detail = (await viewer.next())["detail"]
        assert (detail["namespace"], detail["path"], detail["max_delivery_count"]) == ("contoso", "orders", 7)
        assert [part["index"] for part in detail["parts"]] == list(range(16))
        assert "detail" not in await viewer.next()
        emulated.primary.host.inject(Fault(FaultKind.HANG, "orders", fragments=[5]))
        emulated.send("orders", ServiceBusMessage(b"x", partition_key=KEYS[2]))
        parts = (await viewer.next())["detail"]["parts"]
        assert [part["index"] for part in parts if part["state"] == "hanging"] == [5]
        assert [part["index"] for part in parts if part["active"]] == [2]
        await viewer.close()

    async def test_an_entity_that_is_not_there_has_no_detail(self, emulated: Emulated) -> None:
        for query in ("?entity=nowhere", "?namespace=nowhere&entity=orders"):
            viewer = await emulated.viewer(query)
            assert (await viewer.next()).get("detail") is None
            await viewer.close()

    async def test_a_subscription_shows_its_rules_and_a_topic_its_subscriptions(self, emulated: Emulated) -> None:
        create(emulated.primary.host, EntityKind.TOPIC, "prices")
        create(emulated.primary.host, EntityKind.SUBSCRIPTION, "prices", "eu")
        viewer = await emulated.viewer("?entity=prices/Subscriptions/eu")
        rule = (await viewer.next())["detail"]["rules"][0]
        assert (rule["name"], rule["action"]) == ("$Default", None)
        await viewer.close()
        viewer = await emulated.viewer("?entity=prices")
        (subscription,) = (await viewer.next())["detail"]["subscriptions"]
        assert (subscription["path"], subscription["rules"]) == ("prices/Subscriptions/eu", [rule])
        await viewer.close()

    async def test_events_are_sent_except_those_of_connections(self, emulated: Emulated) -> None:
        viewer = await emulated.viewer()
        await viewer.next()
        emulated.secondary.events.publish("connection.opened", 1.0)
        emulated.secondary.events.publish("entity.created", 2.0, path="q")
        assert (await viewer.next())["events"] == [
            {"event": "entity.created", "at": 2.0, "path": "q", "namespace": "contoso-backup"}
        ]
        await viewer.close()

    async def test_every_event_has_a_time_after_more_connections_than_are_queued(self, emulated: Emulated) -> None:
        viewer = await emulated.viewer()
        await viewer.next()
        for _ in range(MAX_QUEUED):
            emulated.primary.events.publish("connection.opened", 1.0)
        emulated.primary.events.publish("entity.created", 2.0, path="q")
        assert [each["at"] for each in (await viewer.next())["events"]] == [2.0]
        await viewer.close()

    async def test_a_slow_viewer_gets_the_changes_of_a_longer_time_at_once(self, emulated: Emulated) -> None:
        slow, quick = await emulated.viewer(), await emulated.viewer()
        await slow.next()
        for path in ("a", "b", "c"):
            await quick.next()
            emulated.queue(path)
            await clock.sleep(5)
        assert list(entities(await slow.next())) == ["a", "b", "c"]
        for viewer in (slow, quick):
            await viewer.close()

    async def test_all_viewers_share_one_snapshot(self, emulated: Emulated) -> None:
        viewers = [await emulated.viewer() for _ in range(5)]
        began_at = clock.now()
        times = [(await viewer.next())["at"] for viewer in viewers]
        assert times == [began_at] * 5
        again = await asyncio.gather(*(viewer.next() for viewer in viewers))
        assert {said["at"] for said in again} == {began_at + INTERVAL_S}
        for viewer in viewers:
            await viewer.close()

    async def test_a_viewer_that_disconnects_during_a_snapshot_delays_no_other(self, emulated: Emulated) -> None:
        going, staying = await emulated.viewer(), await emulated.viewer()
        await going.next()
        await staying.next()
        waiting = asyncio.create_task(going.next())
        await asyncio.sleep(0)
        also_waiting = asyncio.create_task(staying.next())
        await asyncio.sleep(0)
        waiting.cancel()
        assert "at" in await also_waiting
        for viewer in (going, staying):
            await viewer.close()

    async def test_number_of_viewers_is_bounded(self, emulated: Emulated) -> None:
        viewers = [await emulated.viewer() for _ in range(MAX_VIEWERS)]
        assert (await emulated.api.answer(request("GET", "/$control/watch"))).status == 503
        for viewer in viewers:
            await viewer.close()
        for _ in range(MAX_SUBSCRIBERS):
            await (await emulated.viewer()).close()

    async def test_viewers_need_room_among_the_event_subscribers(self, emulated: Emulated) -> None:
        watchers = [emulated.secondary.events.subscribe() for _ in range(MAX_SUBSCRIBERS)]
        assert (await emulated.api.answer(request("GET", "/$control/watch"))).status == 503
        for watcher in watchers:
            watcher.close()

    async def test_a_late_viewer_gets_the_history(self, emulated: Emulated) -> None:
        emulated.queue("orders")
        first = await emulated.viewer()
        began_at = (await first.next())["at"]
        emulated.queue("late")
        for path in ("orders", "late"):
            emulated.send(path, ServiceBusMessage(b"x"))
        await first.next()
        await clock.sleep(5)
        await emulated.primary.host.receive("orders", max_message_count=5, max_wait_time_s=1, mode=DELETE)
        await first.next()
        late = await emulated.viewer()
        said = await late.next()
        assert said["namespaces"][0]["history"] == [
            [began_at, 0, 0],
            [began_at + 0.5, 2, 0],
            [began_at + 5.5, 2, 1],
        ]
        assert "detail_history" not in said
        for viewer in (first, late):
            await viewer.close()

    async def test_the_history_of_the_selected_entity_is_in_the_first_event_with_it(self, emulated: Emulated) -> None:
        emulated.queue("orders")
        first = await emulated.viewer("?entity=orders")
        began_at = (await first.next())["at"]
        emulated.send("orders", ServiceBusMessage(b"x"))
        changed = await first.next()
        assert "detail" in changed
        assert "detail_history" not in changed
        late = await emulated.viewer("?entity=orders")
        assert (await late.next())["detail_history"] == [[began_at, 0, 0], [began_at + 0.5, 1, 0]]
        for viewer in (first, late):
            await viewer.close()

    async def test_totals_never_fall_while_entities_come_and_go(self, emulated: Emulated) -> None:
        viewer, random, last = await emulated.viewer(), Random(1), (0, 0)
        sent, there = 0, set[str]()
        await viewer.next()
        call = Call(Operation.MANAGE, clock.now())
        for _ in range(40):
            for _ in range(random.randrange(1, 4)):
                name = random.choice("ab")
                if name not in there:
                    emulated.queue(name)
                    there.add(name)
                elif random.random() < 0.3:
                    address = EntityAddress(EntityKind.QUEUE, (name,))
                    emulated.primary.host.namespace.management.delete(call, address)
                    there.discard(name)
                elif random.random() < 0.3:
                    how: dict[str, Any] = {"max_message_count": 2, "mode": DELETE}
                    emulated.primary.host.namespace.receive(Call(Operation.RECEIVE, clock.now()), name, **how)
                else:
                    emulated.send(name, ServiceBusMessage(b"x"))
                    sent += 1
            (facts,) = (await viewer.next())["namespaces"] or [{}]
            now = facts.get("arrived", last[0]), facts.get("left", last[1])
            assert last[0] <= now[0] <= sent
            assert last[1] <= now[1] <= now[0]
            last = now
        assert last[0] > 10
        assert last[1] > 5
        await viewer.close()

    async def test_a_message_of_a_topic_arrives_once_and_each_copy_leaves(self, emulated: Emulated) -> None:
        create(emulated.primary.host, EntityKind.TOPIC, "t")
        for name in ("x", "y"):
            create(emulated.primary.host, EntityKind.SUBSCRIPTION, "t", name)
        viewer = await emulated.viewer()
        await viewer.next()
        for count in range(1, 4):
            emulated.send("t", ServiceBusMessage(b"x"))
            (facts,) = (await viewer.next())["namespaces"]
            assert facts["arrived"] == count
            for name in ("x", "y"):
                how: dict[str, Any] = {"max_message_count": 1, "mode": DELETE}
                path = f"t/Subscriptions/{name}"
                emulated.primary.host.namespace.receive(Call(Operation.RECEIVE, clock.now()), path, **how)
            (facts,) = (await viewer.next())["namespaces"]
            assert (facts["arrived"], facts["left"]) == (count, 2 * count)
        await viewer.close()

    async def test_an_entity_that_was_created_again_has_a_history_of_its_own(self, emulated: Emulated) -> None:
        for _ in range(3):
            emulated.queue("orders")
            created_at = clock.now()
            viewer = await emulated.viewer("?entity=orders")
            await viewer.next()
            emulated.send("orders", ServiceBusMessage(b"x"))
            await viewer.next()
            late = await emulated.viewer("?entity=orders")
            points = (await late.next())["detail_history"]
            assert points[0][0] >= created_at
            assert points[-1][1:] == [1, 0]
            call = Call(Operation.MANAGE, clock.now())
            emulated.primary.host.namespace.management.delete(call, EntityAddress(EntityKind.QUEUE, ("orders",)))
            await viewer.next()
            await viewer.close()
            await late.close()

    async def test_a_time_without_viewers_is_a_gap(self, emulated: Emulated) -> None:
        first = await emulated.viewer()
        began_at = (await first.next())["at"]
        await first.close()
        await clock.sleep(100)
        late = await emulated.viewer()
        assert (await late.next())["gaps"] == [[0, began_at], [began_at, began_at + 100]]
        assert "gaps" not in await late.next()
        await late.close()

    async def test_states_have_the_times_of_the_faults_also_without_viewers(self, emulated: Emulated) -> None:
        emulated.primary.note_faults()
        began_at = clock.now()
        await clock.sleep(10)
        emulated.primary.inject(Fault(FaultKind.BUSY, until_at=began_at + 30))
        await clock.sleep(10)
        down = Fault(FaultKind.DOWN)
        emulated.primary.inject(down)
        await clock.sleep(5)
        emulated.primary.heal(down)
        await clock.sleep(20)
        assert (await emulated.overview())["namespaces"][0]["states"] == [
            {"from": began_at, "state": "up"},
            {"from": began_at + 10, "state": "busy"},
            {"from": began_at + 20, "state": "down"},
            {"from": began_at + 25, "state": "busy"},
            {"from": began_at + 30, "state": "up"},
        ]

    async def test_a_late_viewer_gets_the_last_events(self, emulated: Emulated) -> None:
        emulated.secondary.events.publish("entity.created", 2.0, path="q")
        emulated.primary.events.publish("entity.created", 1.0, path="p")
        emulated.primary.events.publish("connection.opened", 1.5)
        first, late = await emulated.viewer(), await emulated.viewer()
        await first.next()
        assert [(each["at"], each["path"]) for each in (await late.next())["events"]] == [(1.0, "p"), (2.0, "q")]
        assert "events" not in await late.next()
        for viewer in (first, late):
            await viewer.close()

    async def test_a_cancelled_snapshot_counts_nothing_twice(self, emulated: Emulated) -> None:
        emulated.queue("q0")
        for number in range(100):
            create(emulated.secondary.host, EntityKind.QUEUE, f"q{number}", enable_partitioning=True)
        watcher = NamespaceWatcher(emulated.registry.controls, ports={}, interval_s=0.001)
        seen = (await watcher.next(0)).number
        emulated.send("q0", ServiceBusMessage(b"x"))
        broken = asyncio.create_task(watcher.next(seen))
        await asyncio.sleep(0.001)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not broken.done()
        broken.cancel()
        assert (await watcher.next(seen)).namespaces["contoso"].facts["arrived"] == 1


class TestPairs:
    async def test_a_pair_is_seen_by_its_backlog(self, emulated: Emulated) -> None:
        create(emulated.secondary.host, EntityKind.QUEUE, BACKLOG)
        diverted = ServiceBusMessage(b"x", application_properties={"x-ms-path": "orders"})
        emulated.send(BACKLOG, diverted, context=emulated.secondary)
        (pair,) = (await emulated.overview())["pairs"]
        assert (pair["primary"], pair["secondary"], pair["is_primary_here"]) == ("contoso", "contoso-backup", True)
        assert [(each["path"], each["waiting"]) for each in pair["destinations"]] == [("orders", 1)]
        viewer = await emulated.viewer()
        assert (await viewer.next())["pairs"] == [pair]
        assert "pairs" not in await viewer.next()
        await viewer.close()

    async def test_what_has_left_the_backlog_stays_known(self, emulated: Emulated) -> None:
        create(emulated.secondary.host, EntityKind.QUEUE, BACKLOG)
        for number in (1, 2):
            diverted = ServiceBusMessage(b"x", application_properties={"x-ms-path": "orders"})
            diverted.time_to_live = timedelta(seconds=5)
            emulated.send(BACKLOG, diverted, context=emulated.secondary)
            for waiting in (1, 0):
                (pair,) = (await emulated.overview())["pairs"]
                (seen,) = pair["destinations"]
                assert (seen["path"], seen["waiting"], seen["arrived"]) == ("orders", waiting, number)
                await clock.sleep(10)

    async def test_the_report_of_a_client_is_added_to_the_observation(self) -> None:
        client = {"primary": "contoso", "secondary": "contoso-backup", "entities": [{"path": "orders"}], "events": []}
        emulated = Emulated(lambda: ClientReport([client], {"phase": "healthy"}))
        (pair,) = (await emulated.overview())["pairs"]
        assert (pair["client"], pair["destinations"]) == (client, [])
        create(emulated.secondary.host, EntityKind.QUEUE, BACKLOG)
        await clock.sleep(1)
        (pair,) = (await emulated.overview())["pairs"]
        assert pair["client"] == client
        assert len(pair["queues"]) == 1
        viewer = await emulated.viewer()
        assert (await viewer.next())["story"] == {"phase": "healthy"}
        assert "story" not in await viewer.next()
        await viewer.close()

    async def test_a_pair_is_shown_only_with_both_its_namespaces(self) -> None:
        emulated = Emulated()
        other = served("other", key="another key")
        emulated.registry.add(other, lambda: None)
        create(other.host, EntityKind.QUEUE, BACKLOG)
        assert (await emulated.overview())["pairs"] == []
        assert (await emulated.overview(authorization=token(key="another key")))["pairs"] == []


class TestCost:
    async def test_without_viewers_there_is_no_snapshot(self, emulated: Emulated) -> None:
        viewer = await emulated.viewer()
        await viewer.next()
        await viewer.close()
        assert len(asyncio.all_tasks()) == 1

    async def test_other_tasks_run_during_a_large_snapshot(self, emulated: Emulated) -> None:
        for number in range(100):
            emulated.queue(f"q{number}", enable_partitioning=True)
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        running = asyncio.create_task(other())
        await NamespaceWatcher(emulated.registry.controls, ports={}).next(0)
        running.cancel()
        assert turns > 5

    async def test_a_snapshot_uses_no_random_numbers_and_locks_nothing(self, emulated: Emulated) -> None:
        emulated.queue("orders", enable_partitioning=True)
        emulated.send("orders", ServiceBusMessage(b"x"))
        namespace = emulated.primary.host.namespace
        before = emulated.primary.random.getstate(), namespace.operation_count
        viewer = await emulated.viewer("?entity=orders")
        await viewer.next()
        await viewer.close()
        assert (emulated.primary.random.getstate(), namespace.operation_count) == before

    async def test_rows_that_have_not_changed_are_the_same(self, emulated: Emulated) -> None:
        emulated.queue("orders")
        emulated.queue("jobs")
        watcher = NamespaceWatcher(emulated.registry.controls, ports={})
        first = await watcher.next(0)
        emulated.send("orders", ServiceBusMessage(b"x"))
        second = await watcher.next(first.number)
        rows = first.namespaces["contoso"].rows, second.namespaces["contoso"].rows
        assert rows[0]["jobs"] is rows[1]["jobs"]
        assert rows[0]["orders"] is not rows[1]["orders"]
        assert first.namespaces["contoso-backup"].facts is second.namespaces["contoso-backup"].facts


async def test_a_down_namespace_is_still_seen(emulated: Emulated) -> None:
    emulated.queue("orders")
    emulated.send("orders", ServiceBusMessage(b"x"))
    emulated.primary.host.inject(Fault(FaultKind.DOWN))
    with pytest.raises(ServiceBusConnectionError):
        emulated.send("orders", ServiceBusMessage(b"x"))
    said = await emulated.overview()
    assert (said["namespaces"][0]["state"], entities(said)["orders"]["active"]) == ("down", 1)


def _utc(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
