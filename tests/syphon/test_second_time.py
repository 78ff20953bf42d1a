"""What a syphon remembers of a message, a queue, a session or a destination is what happened last, or most of all."""

from __future__ import annotations

import asyncio
from itertools import groupby, permutations, product
from random import Random

import pytest

from sbclient import clock
from sbclient.broker.faults import Operation
from sbclient.errors import MessagingEntityDisabledError, ServiceBusError
from sbclient.message import ServiceBusMessage
from sbclient.options import SyphonLimits
from sbclient.rate_limit import RateLimits
from sbclient.rules.refusal import Refusal
from sbclient.syphon import destination_table
from sbclient.syphon.destination import FORGET_AFTER_S
from sbclient.syphon.destination_table import Destinations
from sbclient.syphon.status import DOUBTS_KEPT, Progress
from sbclient.syphon.syphon import Syphon
from sbclient.testing import Fault, FaultKind, MemoryPair
from tests.client.scene import cancel, make_queue, options, taken, texts
from tests.syphon.test_queue_source import divert, source_alone


def test_both_sides_of_a_message_in_doubt_are_kept_and_the_oldest_messages_are_forgotten() -> None:
    random, progress = Random(1), Progress()
    sides: dict[tuple[str, int], frozenset[bool]] = {}
    for _ in range(1_000):
        message, is_redirected = (random.choice("ab"), random.randrange(5)), random.random() < 0.5
        progress.doubt(*message, is_redirected=is_redirected)
        sides[message] = sides.get(message, frozenset()) | {is_redirected}
        assert progress.doubts == sides
    for number in range(DOUBTS_KEPT):
        progress.doubt("c", number, is_redirected=False)
    assert list(progress.doubts) == [("c", number) for number in range(DOUBTS_KEPT)]


async def test_each_time_that_parked_messages_cannot_be_received_is_one_event(pair: MemoryPair) -> None:
    async with pair.client(options(backlog_queue_count=1)) as client:
        await divert(client, "x")
        source, _ = source_alone(client)
        (message,) = await source.receive(max_message_count=1, max_wait_time_s=1.0)
        number = await message.park()
        assert isinstance(number, int)
        for course in product([True, False], repeat=5):
            before = len(client.pair.events())
            for is_failing in (False, *course, False):
                if is_failing:
                    fault = Fault(FaultKind.ERROR, operations=[Operation.RECEIVE_DEFERRED])
                    pair.secondary.inject(fault)
                    with pytest.raises(ServiceBusError):
                        await source.receive_parked([number])
                    pair.secondary.heal(fault)
                else:
                    for one in await source.receive_parked([number]):
                        assert await one.park() == number
            events = [each.name for each in client.pair.events()[before:]]
            outages = sum(is_failing for is_failing, _ in groupby(course))
            assert events == ["syphon.parked_not_received"] * outages, course
        await source.close()


async def test_a_session_that_gets_messages_again_is_drained_while_another_one_rests(pair: MemoryPair) -> None:
    for queue in ("up", "down"):
        await make_queue(pair, queue, requires_session=True)
    async with pair.client(options(ordering="session", backlog_queue_count=1)) as client:
        for queue in ("up", "down"):
            client.pair.force_failover(queue)
        async with client.get_queue_sender("up") as up, client.get_queue_sender("down") as down:
            await down.send_messages(ServiceBusMessage("d", session_id="d"))
            pair.primary.inject(Fault(FaultKind.DOWN, "down"))
            running = asyncio.ensure_future(Syphon(client.pair).run())
            for number in range(4):
                await clock.sleep(130.0)
                await up.send_messages(ServiceBusMessage(f"u{number}", session_id="u"))
                await clock.sleep(130.0)
                assert texts(await taken(pair, "up")) == [f"u{number}"]
            await cancel(running)


async def test_forgotten_destinations_do_not_make_a_syphon_stalled(pair: MemoryPair) -> None:
    """The last acceptance is the latest of all, in whatever order destinations are forgotten."""
    async with pair.client(options(backlog_queue_count=1)) as client:
        for times in permutations([3.0, float("-inf"), 7.0]):
            rates = RateLimits(SyphonLimits())
            table = Destinations(client.pair.state, rates, Progress(), [], on_failure=lambda _: None)
            for accepted_at in times:
                known = table._get("orders")
                assert known is not None
                known.accepted_at = accepted_at
                table._forget(known)
                await known.close()
            assert table._forgotten_accepted_at == 7.0
            await table.stop()


async def test_a_destination_without_a_place_is_remembered_as_long_as_messages_wait_for_it(
    pair: MemoryPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destination_table, "DESTINATIONS_KEPT", 1)
    async with pair.client(options(backlog_queue_count=1)) as client:
        for seed in range(10):
            random, rates = Random(seed), RateLimits(SyphonLimits())
            table = Destinations(client.pair.state, rates, Progress(), [], on_failure=lambda _: None)
            needed_at: dict[str, float] = {}
            for _ in range(60):
                await clock.sleep(random.choice([1.0, 100.0, 300.0]))
                path = random.choice("abcde"[: random.randrange(2, 6)])
                known = table._get(path)
                now = needed_at[path] = clock.monotonic()
                if known is not None:  # the one before has given up its place
                    known.refusal = known.refusal or Refusal()
                    known.refusal.add(MessagingEntityDisabledError("disabled"), now, asked_at=now)
                    known.refusal.retry_at = now + 2_000.0
                for each, at in needed_at.items():
                    if at > now - FORGET_AFTER_S:
                        assert table.failures_of(each) > 0, (seed, each)
                        assert each in table.refusing()
            await table.stop()
            await table.close()
