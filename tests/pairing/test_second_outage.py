"""A second outage takes its course as the first: nothing of the first is counted, reported or kept again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any, Final

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from sbclient import clock
from sbclient.client.client import ServiceBusClient
from sbclient.errors import ServiceBusConnectionError, ServiceBusError, ServiceBusQuotaExceededError
from sbclient.message import ServiceBusMessage
from sbclient.pairing.pair import Pair
from sbclient.rules.failover import FailoverState, PingKeys
from sbclient.telemetry import metrics
from sbclient.testing import Fault, FaultKind, MemoryPair
from tests.client.scene import BACKLOG, QUEUE, options
from tests.measured import values
from tests.syphon.test_whole_state import shape

CHOSEN: Final = options(failover_interval=20, ping_primary_interval=5, pings_to_recover=2, backlog_queue_count=1)


async def send_for(client: ServiceBusClient, seconds: float) -> None:
    """Send a message each second, whatever becomes of it."""
    async with client.get_queue_sender(QUEUE) as sender:
        sends = []
        for _ in range(int(seconds)):
            sends.append(asyncio.ensure_future(sender.send_messages(ServiceBusMessage("x"), timeout=2)))
            await clock.sleep(1)
        for outcome in await asyncio.gather(*sends, return_exceptions=True):
            assert outcome is None or isinstance(outcome, ServiceBusError)


async def failover(pair: MemoryPair, client: ServiceBusClient) -> None:
    pair.primary.inject(Fault(FaultKind.DOWN))
    await send_for(client, 40)
    pair.primary.heal()
    await clock.sleep(60)
    await send_for(client, 2)


async def suspicion(pair: MemoryPair, client: ServiceBusClient) -> None:
    pair.primary.inject(Fault(FaultKind.DOWN))
    await send_for(client, 10)
    pair.primary.heal()
    await send_for(client, 2)


async def forced(_: MemoryPair, client: ServiceBusClient) -> None:
    client.pair.force_failover(QUEUE)
    await send_for(client, 5)
    client.pair.mark_healthy(QUEUE)
    await send_for(client, 2)


async def full_backlog(pair: MemoryPair, client: ServiceBusClient) -> None:
    client.pair.mark_unhealthy(QUEUE)
    pair.primary.inject(Fault(FaultKind.DOWN))
    pair.secondary.inject(Fault(FaultKind.ERROR, BACKLOG[0], error=ServiceBusQuotaExceededError))
    await send_for(client, 5)
    pair.secondary.heal()
    await clock.sleep(40)
    await send_for(client, 5)
    pair.primary.heal()
    await clock.sleep(60)


COURSES: Final[list[Callable[[MemoryPair, ServiceBusClient], Awaitable[None]]]] = [
    failover,
    suspicion,
    forced,
    full_backlog,
]


@pytest.mark.parametrize("course", COURSES)
async def test_a_second_outage_is_reported_as_the_first(
    pair: MemoryPair,
    metric_reader: InMemoryMetricReader,
    course: Callable[[MemoryPair, ServiceBusClient], Awaitable[None]],
) -> None:
    async with pair.client(CHOSEN, retry_total=0) as client:
        await send_for(client, 2)
        reported: list[list[tuple[str, str, dict[str, Any]]]] = []
        at_rest: list[dict[str, Any]] = []
        spans: list[list[float]] = []
        diverted = [0]
        for _ in range(3):
            before = len(client.pair.events())
            await course(pair, client)
            events = client.pair.events()[before:]
            facts = [{name: fact for name, fact in event.facts.items() if name != "seconds"} for event in events]
            reported.append([(event.name, event.path, fact) for event, fact in zip(events, facts, strict=True)])
            spans.append([event.facts.get("seconds", 0.0) for event in events])
            status = client.pair.status()
            diverted.append(status.entities[QUEUE].diverted)
            assert (status.entities[QUEUE].state, status.quarantined) == ("healthy", ())
            recovered = [fact["diverted"] for name, _, fact in reported[-1] if name == "failover.recovered"]
            assert recovered in ([], [diverted[-1] - diverted[-2]])
            check_measured(metric_reader, client)
            at_rest.append(kept(client))
            for each in reported[-1]:
                each[2].pop("diverted", None)
        assert reported[0]
        assert reported == [reported[0]] * 3
        assert at_rest == [at_rest[0]] * 3
        assert spans == [pytest.approx(spans[0], abs=4)] * 3


async def test_outages_of_all_kinds_leave_a_pair_as_it_was(pair: MemoryPair) -> None:
    for seed in range(6):
        async with pair.client(CHOSEN, retry_total=0) as client:
            await send_for(client, 2)
            await forced(pair, client)
            at_rest = kept(client)
            for course in Random(seed).choices(COURSES, k=6):
                await course(pair, client)
                assert kept(client) == at_rest


def kept(client: ServiceBusClient) -> dict[str, Any]:
    """What a pair at rest knows, without totals."""
    state, entity = client.pair.state, client.pair.state.entity(QUEUE)
    parts = (entity, entity.failover, state, state.backlog, state.backlog_links, state.backlog_links._tasks)
    shapes = {type(part).__name__: shape(part) for part in parts}
    for name in ("diverted", "events", "generation"):
        for each in shapes.values():
            each.pop(name, None)
    return {
        **shapes,
        "keys": entity.failover.ping_keys,
        "quarantined": state.quarantine.terms,
        "uses": [link.uses for link in state.backlog_links._not_closed],
        "links": state.backlog_links._not_closed.keys() == set(state.backlog_links._links.values()),
        "tasks": sorted(task.get_name() for task in asyncio.all_tasks()),
        "is failed over": entity.failed_over.is_set(),
    }


def check_measured(reader: InMemoryMetricReader, client: ServiceBusClient) -> None:
    """Check that metrics, status and events say the same."""
    events, shown = client.pair.events(), client.pair.status().entities[QUEUE]
    changes = Counter(event.facts["reason"] for event in events if event.name.startswith("failover."))
    assert values(reader, metrics.TRANSITIONS, metrics.REASON) == changes
    assert values(reader, metrics.QUARANTINES).get(None, 0) == len(
        [event for event in events if event.name == "backlog.quarantined"]
    )
    assert values(reader, metrics.DIVERTED, metrics.DESTINATION).get(QUEUE, 0) == shown.diverted
    assert values(reader, metrics.FAILOVER_STATE, metrics.STATE) == {
        str(state): float(state is shown.state) for state in FailoverState
    }
    changed_at = max(event.at_utc for event in events if event.name.startswith("failover."))
    age_s = clock.now() - changed_at.timestamp()
    assert values(reader, metrics.FAILOVER_AGE, metrics.STATE) == {str(shown.state): pytest.approx(age_s, abs=0.1)}
    assert sum(values(reader, metrics.QUARANTINED, metrics.DESTINATION).values()) == 0


@pytest.mark.parametrize("is_set", [False, True])
async def test_what_waits_in_an_event_loop_that_has_ended_is_not_called_from_the_next(
    pair: MemoryPair, is_set: bool
) -> None:
    async with pair.client(CHOSEN) as client:
        state, entity = client.pair.state, client.pair.state.entity(QUEUE)
        parts = (state, state.backlog, entity)
        if is_set:
            entity.apply(entity.failover.force(clock.monotonic()))
        else:
            state.backlog.provisioned.clear()
        before = {(part, name): value for part in parts for name, value in vars(part).items()}
        events = {key: event for key, event in before.items() if isinstance(event, asyncio.Event)}
        flags = {key: event.is_set() for key, event in events.items()}
        state.leave_loop()
        assert len(events) == 5
        for (part, name), event in events.items():
            assert vars(part)[name] is not event
            assert vars(part)[name].is_set() is flags[part, name] or name == "changed"


async def test_the_state_of_an_entity_is_whole_after_each_event(pair: MemoryPair) -> None:
    """Also after the end of the event loop that the client was used in, and whatever came before."""
    for seed in range(50):
        await live_through(Random(seed), pair.client(CHOSEN).pair)


async def live_through(random: Random, shown: Pair) -> None:
    entity = shown.state.entity(QUEUE)
    events: list[Callable[[], object]] = [
        lambda: entity.failed(ServiceBusConnectionError("down"), PingKeys()),
        lambda: entity.succeeded(entity.failover.generation),
        lambda: entity.failover.is_ping_due(clock.monotonic()) and entity.failover.ping_started(),
        shown.state.leave_loop,
        *(partial(each, QUEUE) for each in (shown.mark_healthy, shown.mark_unhealthy, shown.force_failover)),
    ]
    for event in random.choices(events, k=40):
        event()
        is_failed_over = entity.is_failed_over
        assert entity.failed_over.is_set() == is_failed_over  # it ends the pauses of senders
        if event == shown.state.leave_loop:
            assert entity in shown.state.take_changed()
            is_pinged = is_failed_over and not entity.failover.is_forced
            assert (entity.failover.next_deadline() is not None) >= is_pinged
        await clock.sleep(random.choice([0, 5, 25]))
