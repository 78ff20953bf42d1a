"""What the syphon does over plain backlog queues and over those with sessions alike."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import Final, Literal

import pytest

from sbclient import clock
from sbclient.broker.faults import Operation
from sbclient.options import PairedNamespaceOptions
from sbclient.testing import Fault, FaultKind, MemoryPair
from tests.client.scene import (
    BACKLOG,
    QUEUE,
    SESSION_BACKLOG,
    cancel,
    dead_letters,
    make_queue,
    options,
    taken,
    texts,
)
from tests.syphon.test_session_source import GOOD, divert, numbered

Ordering = Literal["none", "session"]
HOMES: Final[dict[Ordering, str]] = {"none": BACKLOG[0], "session": SESSION_BACKLOG[0]}

pytestmark = pytest.mark.parametrize("ordering", HOMES)


def chosen(ordering: Ordering, **more: object) -> PairedNamespaceOptions:
    return options(ordering=ordering, backlog_queue_count=1, **more)


async def test_enable_syphon_drains_messages_as_they_arrive(pair: MemoryPair, ordering: Ordering) -> None:
    async with pair.client(options(ordering=ordering, enable_syphon=True)) as client:
        for number in range(10):
            await divert(client, f"a{number}")
            await clock.sleep(700.0)
    assert texts(await taken(pair)) == numbered("a", 10)


async def test_a_deleted_backlog_queue_is_empty(pair: MemoryPair, ordering: Ordering) -> None:
    async with pair.client(chosen(ordering)) as client, pair.unpaired_client(secondary=True) as other:
        await other.administration.delete_queue(HOMES[ordering])
        assert (await client.run_syphon(until="empty")).drained == 0


async def test_until_empty_drains_messages_behind_blocked_ones(pair: MemoryPair, ordering: Ordering) -> None:
    await make_queue(pair, GOOD)
    async with pair.client(chosen(ordering)) as client:
        await divert(client, *(f"{session}0" for session in "abcdefghijklmno"))
        await divert(client, *(f"{session}0" for session in "pqrstuvwxyz"), queue=GOOD)
        fault = pair.primary.inject(Fault(FaultKind.DOWN, entity_path=QUEUE))
        assert (await client.run_syphon(until="empty")).drained == 11
        assert clock.monotonic() < 60.0
        assert len(await taken(pair, GOOD)) == 11
        pair.primary.heal(fault)
        assert (await client.run_syphon(until="empty")).drained == 15


@pytest.mark.parametrize("operation", [Operation.SETTLE, Operation.RECEIVE, Operation.SESSION, None])
@pytest.mark.parametrize("kind", [FaultKind.ERROR, FaultKind.LOSE_ACKNOWLEDGEMENT, FaultKind.HANG])
async def test_until_empty_does_not_end_on_errors(
    pair: MemoryPair, ordering: Ordering, operation: Operation | None, kind: FaultKind
) -> None:
    async with pair.client(chosen(ordering)) as client:
        await divert(client, *numbered("a", 5), *numbered("b", 5))
        fault = Fault(kind, operations=[operation], count=6) if operation is not None else Fault(kind)
        pair.secondary.inject(replace(fault, until_at=clock.now() + 200.0))
        report = await client.run_syphon(until="empty")
    assert report.drained == 10  # a lost completion is completed and not sent again
    received = texts(await taken(pair))
    for session in "ab":
        assert [text for text in received if text[0] == session] == numbered(session, 5)
    assert await taken(pair, HOMES[ordering], secondary=True) == []


@pytest.mark.deviation("pairing.missing-destinations")
async def test_a_missing_entity_is_given_up_after_its_grace(pair: MemoryPair, ordering: Ordering) -> None:
    home = HOMES[ordering]
    await make_queue(pair, "gone")
    async with pair.client(chosen(ordering, missing_entity_grace=3600)) as client:
        await divert(client, "a1", "a2", "b1", queue="gone")
        await client.administration.delete_queue("gone")
        run = asyncio.ensure_future(client.run_syphon())
        await clock.sleep(3500.0)
        assert await dead_letters(pair, [home]) == []
        await clock.sleep(300.0)
        assert [one.dead_letter_reason for one in await dead_letters(pair, [home])] == ["DestinationNotFound"] * 3
        await cancel(run)
    assert await taken(pair, home, secondary=True) == []


async def test_time_in_which_the_primary_is_busy_does_not_count_towards_the_grace(
    pair: MemoryPair, ordering: Ordering
) -> None:
    home = HOMES[ordering]
    await make_queue(pair, "gone")
    async with pair.client(chosen(ordering, missing_entity_grace=300)) as client:
        await divert(client, "a1", queue="gone")
        await client.administration.delete_queue("gone")
        run = asyncio.ensure_future(client.run_syphon())
        await clock.sleep(100.0)
        pair.primary.inject(Fault(FaultKind.BUSY, operations=[Operation.OPEN, Operation.SEND]))
        await clock.sleep(500.0)
        pair.primary.heal()
        await clock.sleep(100.0)
        assert await dead_letters(pair, [home]) == []
        await clock.sleep(400.0)
        assert [one.dead_letter_reason for one in await dead_letters(pair, [home])] == ["DestinationNotFound"]
        await cancel(run)


async def test_the_grace_begins_anew_with_each_time_that_an_entity_is_gone(
    pair: MemoryPair, ordering: Ordering
) -> None:
    home = HOMES[ordering]
    async with pair.client(chosen(ordering, missing_entity_grace=300)) as client:
        await make_queue(pair, "gone")
        run = asyncio.ensure_future(client.run_syphon())
        for text in ("a1", "a2", "b1"):
            await client.administration.delete_queue("gone")
            await divert(client, text, queue="gone")
            await clock.sleep(250.0)
            await make_queue(pair, "gone")
            await clock.sleep(70.0)
            assert texts(await taken(pair, "gone")) == [text]
        await client.administration.delete_queue("gone")
        await divert(client, "b2", queue="gone")
        await clock.sleep(290.0)
        assert await dead_letters(pair, [home]) == []
        await clock.sleep(120.0)
        assert texts(await dead_letters(pair, [home])) == ["b2"]
        await cancel(run)


async def test_locks_are_kept_while_a_busy_destination_is_given_10_s_each_time(
    pair: MemoryPair, ordering: Ordering
) -> None:
    async with pair.client(chosen(ordering)) as client:
        await divert(client, *numbered("a", 20))
        pair.primary.inject(Fault(FaultKind.BUSY, operations=[Operation.SEND], count=30))
        assert (await client.run_syphon(until="empty")).drained == 20
    assert clock.monotonic() >= 300.0
    assert texts(await taken(pair)) == numbered("a", 20)


@pytest.mark.parametrize("seed", range(30))
async def test_a_syphon_cancelled_at_any_time_loses_nothing_and_keeps_the_order_of_sessions(
    pair: MemoryPair, ordering: Ordering, seed: int
) -> None:
    chance = Random(seed)
    async with pair.client(options(ordering=ordering, backlog_queue_count=3)) as client:
        for number in range(20):
            await divert(client, *(f"{session}{number}" for session in "abcd"))
        for host in (pair.primary, pair.secondary):
            host.inject(Fault(FaultKind.SLOW, latency_s=0.4, probability=0.5))
        for _ in range(4):
            run = asyncio.ensure_future(client.run_syphon())
            await clock.sleep(chance.uniform(0, 4))
            for _ in range(chance.randrange(10)):
                await asyncio.sleep(0)
            began_at = clock.monotonic()
            await cancel(run)
            assert clock.monotonic() - began_at <= 20.0
        for host in (pair.primary, pair.secondary):
            host.heal()
        await client.run_syphon(until="empty")
    for home in (BACKLOG if ordering == "none" else SESSION_BACKLOG)[:3]:
        assert await taken(pair, home, secondary=True) == []
    received = texts(await taken(pair))
    if ordering == "session":
        for session in "abcd":
            assert [text for text in received if text[0] == session] == numbered(session, 20)
    else:
        assert sorted(received) == sorted(text for session in "abcd" for text in numbered(session, 20))
