"""Opening a paired client while the secondary, or the primary, is unavailable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from sbclient import clock
from sbclient.broker.faults import Operation
from sbclient.broker.profile import PREM_2021, STD_2021
from sbclient.client.client import ServiceBusClient
from sbclient.entities import EntityProperties
from sbclient.errors import (
    BacklogUnavailableError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    PairedClientError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)
from sbclient.message import ServiceBusMessage
from sbclient.options import SyphonLimits
from sbclient.rules.failover import FailoverState
from sbclient.rules.partition_key import fragment_of
from sbclient.tasks import OwnedTasks
from sbclient.telemetry import metrics
from sbclient.testing import Fault, FaultKind, MemoryNamespace, MemoryPair
from tests.client.scene import (
    AT_ONCE,
    BACKLOG,
    QUEUE,
    SESSION_BACKLOG,
    cancel,
    diverted,
    make_queue,
    options,
    taken,
    texts,
    until,
)
from tests.measured import values

UNRESOLVABLE = Fault(FaultKind.ERROR, error=ServiceBusConnectionError)
"""What the transports over a network make of a host name that DNS does not know."""
UNAVAILABLE = [
    Fault(FaultKind.DOWN),
    Fault(FaultKind.HANG),
    UNRESOLVABLE,
    Fault(FaultKind.ERROR, error=ServiceBusServerBusyError),
]


# -- the secondary is unavailable --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", UNAVAILABLE, ids=lambda fault: fault.kind.value)
async def test_an_unavailable_secondary_does_not_delay_the_primary(
    pair: MemoryPair, caplog: pytest.LogCaptureFixture, fault: Fault
) -> None:
    pair.secondary.inject(fault)
    async with pair.client() as client, client.get_queue_sender(QUEUE) as sender:
        assert clock.monotonic() <= 2.0
        opened_at = clock.monotonic()
        await sender.send_messages(ServiceBusMessage("a"))
        await sender.schedule_messages(ServiceBusMessage("b"), datetime.fromtimestamp(clock.now() - 1, UTC))
        assert (await sender.create_message_batch()).max_size_in_bytes > 200_000
        async with client.get_queue_receiver(QUEUE) as receiver:
            assert len(await receiver.receive_messages(2)) == 2
        assert clock.monotonic() == opened_at
        status = client.pair.status()
        assert (status.is_provisioned, status.backlog_queues) == (False, ())
        assert status.provisioning_error
        assert not status.never_reached
    assert [vars(record)["event_name"] for record in caplog.records] == ["pair.not_provisioned"]


async def test_a_send_with_a_short_timeout_opens_the_client_in_time(pair: MemoryPair) -> None:
    pair.secondary.inject(Fault(FaultKind.HANG))
    client = pair.client()
    await client.get_queue_sender(QUEUE).send_messages(ServiceBusMessage("a"), timeout=1.0)
    assert clock.monotonic() == 0.25
    await client.close()


@pytest.mark.parametrize("fault", UNAVAILABLE, ids=lambda fault: fault.kind.value)
async def test_queues_are_provisioned_when_the_secondary_answers(pair: MemoryPair, fault: Fault) -> None:
    pair.secondary.inject(fault)
    async with pair.client(AT_ONCE) as client, client.get_queue_sender(QUEUE) as sender:
        await asyncio.gather(*(sender.send_messages(ServiceBusMessage(str(number))) for number in range(1000)))
        async with client.get_queue_receiver(QUEUE) as receiver:
            received = await receiver.receive_messages(1000)
            await asyncio.gather(*map(receiver.complete_message, received))
        assert sorted(map(int, texts(received))) == list(range(1000))
        assert clock.monotonic() <= 2.0
        await clock.sleep(600.0)
        pair.secondary.heal()
        await until(lambda: client.pair.status().is_provisioned, at_most_s=90.5)
        status = client.pair.status()
        assert (status.backlog_queues, status.provisioning_error) == (tuple(BACKLOG), None)
        pair.primary.inject(Fault(FaultKind.DOWN))
        await sender.send_messages(ServiceBusMessage("a"))
    assert texts(await diverted(pair)) == ["a"]


async def test_messages_must_fit_the_backlog_as_soon_as_its_queues_are_provisioned() -> None:
    primary = MemoryNamespace("contoso", random=Random(1), profile=PREM_2021)
    secondary = MemoryNamespace("contoso-backup", random=Random(1), profile=STD_2021)
    pair = MemoryPair(primary, secondary, Random(1))
    await make_queue(pair)
    pair.secondary.inject(Fault(FaultKind.DOWN))
    large = b"x" * 300_000
    async with pair.client() as client, client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage(large))
        pair.secondary.heal()
        await until(lambda: client.pair.status().is_provisioned, at_most_s=60)
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages(ServiceBusMessage(large))
        await sender.send_messages(ServiceBusMessage(b"x" * 200_000))


def attempts_of(client: ServiceBusClient) -> list[float]:
    """The times at which the queues are listed from now on; each takes a second."""
    attempts: list[float] = []
    listed = client.pair.state.secondary.administration.list

    async def counted(*args: Any, **kwargs: Any) -> AsyncIterator[EntityProperties]:
        attempts.append(clock.monotonic())
        await clock.sleep(1.0)
        async for queue in listed(*args, **kwargs):
            yield queue

    client.pair.state.secondary.administration.list = counted  # type: ignore[method-assign]  # observed
    return attempts


async def test_the_pauses_between_attempts_grow(pair: MemoryPair) -> None:
    pair.secondary.inject(Fault(FaultKind.DOWN))
    client = pair.client()
    attempts = attempts_of(client)
    async with client:
        await clock.sleep(300.0)
    pauses = [later - earlier - 1.0 for earlier, later in pairwise(attempts)]
    assert all(0.5 * 2**n <= pause <= 2**n for n, pause in enumerate(pauses[:5]))
    assert all(15.0 <= pause <= 30.0 for pause in pauses[5:])


async def test_a_diversion_begins_an_attempt_at_once(pair: MemoryPair) -> None:
    pair.secondary.inject(Fault(FaultKind.DOWN))
    async with pair.client(AT_ONCE) as client, client.get_queue_sender(QUEUE) as sender:
        await clock.sleep(600.0)
        pair.secondary.heal()
        pair.primary.inject(Fault(FaultKind.DOWN))
        began_at = clock.monotonic()
        await sender.send_messages(ServiceBusMessage("a"))
        assert clock.monotonic() == began_at


async def test_after_a_diversion_the_attempts_pause_again(pair: MemoryPair) -> None:
    pair.secondary.inject(Fault(FaultKind.DOWN))
    client = pair.client(AT_ONCE)
    attempts = attempts_of(client)
    async with client, client.get_queue_sender(QUEUE) as sender:
        await clock.sleep(100.0)
        pair.primary.inject(Fault(FaultKind.DOWN))
        before = len(attempts)
        with pytest.raises(BacklogUnavailableError):
            await sender.send_messages(ServiceBusMessage("a"))
        assert len(attempts) == before + 1
        await clock.sleep(100.0)
        assert before + 3 <= len(attempts) <= before + 8


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (Fault(FaultKind.DOWN), ServiceBusConnectionError),
        (Fault(FaultKind.HANG), OperationTimeoutError),
        (Fault(FaultKind.ERROR, error=ServiceBusAuthorizationError, operations=[Operation.MANAGE]), None),
    ],
    ids=["down", "hang", "the right is lost later"],
)
async def test_a_diversion_raises_the_cause(pair: MemoryPair, fault: Fault, cause: type[Exception] | None) -> None:
    pair.secondary.inject(Fault(FaultKind.DOWN))
    async with pair.client(AT_ONCE) as client, client.get_queue_sender(QUEUE) as sender:
        pair.secondary.heal()
        pair.secondary.inject(fault)
        await clock.sleep(60.0)
        pair.primary.inject(Fault(FaultKind.DOWN))
        with pytest.raises(BacklogUnavailableError, match=r"not provisioned") as caught:
            await sender.send_messages(ServiceBusMessage("a"))
        assert isinstance(caught.value.__cause__, cause or ServiceBusAuthorizationError)
        assert ("grant the Manage right" in str(client.pair.status().provisioning_error)) is (cause is None)


async def test_a_slow_secondary_is_provisioned_in_the_background(pair: MemoryPair) -> None:
    pair.secondary.inject(Fault(FaultKind.SLOW, latency_s=3.0))
    async with pair.client(AT_ONCE) as client:
        assert not client.pair.status().is_provisioned
        await clock.sleep(10.0)
        assert client.pair.status().is_provisioned
        assert client.pair.status().provisioning_error is None


async def test_a_batch_made_before_provisioning_fits_the_backlog_afterwards(pair: MemoryPair) -> None:
    """The limits of an open link are narrowed when those of the backlog become known."""
    pair.secondary.inject(Fault(FaultKind.DOWN))
    async with pair.client() as client, client.get_queue_sender(QUEUE) as sender:
        before = (await sender.create_message_batch()).max_size_in_bytes
        pair.secondary.heal()
        await clock.sleep(60.0)
        limits = client.pair.state.backlog.limits
        assert limits is not None
        client.pair.state.backlog.limits = replace(limits, max_batch_size_bytes=10_000)
        await sender.send_messages(ServiceBusMessage("a"))
        assert (await sender.create_message_batch()).max_size_in_bytes < 10_000 < before


async def test_the_metric_counts_clients_without_backlog_queues(pair: MemoryPair, metric_reader: object) -> None:
    pair.secondary.inject(Fault(FaultKind.DOWN))
    async with pair.client():
        unavailable = values(metric_reader, metrics.UNPROVISIONED)  # type: ignore[arg-type]  # imported lazily
        pair.secondary.heal()
        await clock.sleep(60.0)
        assert (unavailable, values(metric_reader, metrics.UNPROVISIONED)) == ({None: 1}, {None: 0})  # type: ignore[arg-type]  # as above


async def test_closing_ends_the_attempts(pair: MemoryPair) -> None:
    pair.secondary.inject(Fault(FaultKind.HANG))
    client = pair.client()
    await client.__aenter__()
    await client.close()  # the fixture checks that no task is left


async def test_an_opening_that_is_cancelled_leaves_no_task(pair: MemoryPair) -> None:
    pair.secondary.inject(Fault(FaultKind.HANG))
    opening = asyncio.ensure_future(pair.client().__aenter__())
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait([opening])


async def test_an_opening_that_fails_leaves_no_connection(pair: MemoryPair) -> None:
    pair.secondary.inject(Fault(FaultKind.ERROR, error=ServiceBusAuthorizationError))
    client = pair.client()
    closed: list[bool] = []

    async def disconnect() -> None:
        closed.append(True)

    client.pair.state.secondary.administration.disconnect = disconnect  # type: ignore[method-assign]  # observed
    with pytest.raises(BacklogUnavailableError, match="Manage"):
        await client.__aenter__()
    assert closed == [True]


# -- whatever came before ----------------------------------------------------------------------------------------------

CAUSES: list[tuple[Fault | None, type[ServiceBusError]]] = [
    (None, ServiceBusError),
    (Fault(FaultKind.DOWN), ServiceBusConnectionError),
    (Fault(FaultKind.HANG), OperationTimeoutError),
    (Fault(FaultKind.ERROR, error=ServiceBusServerBusyError), ServiceBusServerBusyError),
    (Fault(FaultKind.ERROR, error=ServiceBusAuthorizationError), ServiceBusAuthorizationError),
]
"""A state of the secondary, and what a diversion raises from."""


async def test_the_queues_are_provisioned_in_any_course_as_in_the_first(
    pair: MemoryPair, caplog: pytest.LogCaptureFixture
) -> None:
    """After outages, cancelled openings and diversions, and the ends of event loops."""
    caplog.set_level(logging.INFO, "sbclient")
    for seed in range(100):
        caplog.clear()
        await _provision(Random(seed), pair, caplog)


async def _provision(random: Random, pair: MemoryPair, caplog: pytest.LogCaptureFixture) -> None:
    backlog = pair.client(options(ordering="session")).pair.state.backlog
    tasks, is_open = OwnedTasks(), False
    (fault, cause), hangs_until_at = CAUSES[0], 0.0

    def warnings() -> int:
        return sum(vars(record)["event_name"] == "pair.not_provisioned" for record in caplog.records)

    acts = random.choices(["fault", "fault", "open", "open", "cancel", "wait", "sleep", "loop"], k=16)
    for act in [*acts, "heal", "open", "wait", "loop", "wait", "open", "wait"]:
        was_provisioned, error = backlog.provisioned.is_set(), backlog.error
        said, began_at = warnings(), clock.monotonic()
        works, may_hang = was_provisioned or fault is None, cause is OperationTimeoutError or began_at < hangs_until_at
        match act:
            case "fault" | "heal":
                if cause is OperationTimeoutError:
                    hangs_until_at = began_at + 60.0
                pair.secondary.heal()
                fault, cause = random.choice(CAUSES[1:]) if act == "fault" else CAUSES[0]
                if fault is not None:
                    pair.secondary.inject(fault)
            case "open" if not is_open:
                is_refused = cause is ServiceBusAuthorizationError and not was_provisioned
                with pytest.raises(BacklogUnavailableError) if is_refused else nullcontext():
                    await backlog.open(tasks, 60)
                is_open = not is_refused
                assert backlog.provisioned.is_set() is works
                assert warnings() - said == (is_open and not works)
                assert clock.monotonic() - began_at == (2.0 if cause is OperationTimeoutError and not works else 0.0)
            case "cancel":
                waiting = asyncio.ensure_future(backlog.wait(9) if is_open else backlog.open(tasks, 9))
                for _ in range(random.randrange(6)):
                    await asyncio.sleep(0)
                if not waiting.done():
                    await cancel(waiting)
                else:
                    is_open = waiting.exception() is None or is_open
            case "wait" if is_open:
                with nullcontext() if works else pytest.raises(BacklogUnavailableError) as no:
                    await backlog.wait(121)  # also after an attempt that hangs
                assert no is None or isinstance(no.value.__cause__, cause)
                assert clock.monotonic() - began_at <= (121 if may_hang else 0)
            case "sleep":
                await clock.sleep(random.choice([0.5, 200.0]))
                assert backlog.provisioned.is_set() >= (clock.monotonic() - began_at > 100 and is_open and works)
            case "loop":
                await tasks.close()
                tasks, is_open = OwnedTasks(), False
                backlog.leave_loop()
        assert was_provisioned <= backlog.provisioned.is_set()
        if backlog.provisioned.is_set():
            assert (backlog.error, backlog.plain, backlog.with_sessions) == (None, BACKLOG, SESSION_BACKLOG)
            assert backlog.limits is not None
        elif is_open and act in ("wait", "sleep") and began_at >= hangs_until_at:
            assert warnings() - said == (type(backlog.error) is not type(error))
        assert sum(not task.done() for task in tasks._tasks) == (is_open and not backlog.provisioned.is_set())
    await tasks.close()


# -- syphons -----------------------------------------------------------------------------------------------------------


async def test_a_syphon_waits_for_the_secondary(pair: MemoryPair) -> None:
    async with pair.client() as client, client.get_queue_sender(QUEUE) as sender:
        client.pair.force_failover(QUEUE)
        await sender.send_messages(ServiceBusMessage("a"))
    pair.secondary.inject(Fault(FaultKind.DOWN))
    async with pair.client(options(enable_syphon=True)) as client:
        run = asyncio.ensure_future(client.run_syphon(limits=SyphonLimits()))
        await clock.sleep(60.0)
        assert not run.done()
        pair.secondary.heal()
        await clock.sleep(60.0)
        assert texts(await taken(pair)) == ["a"]
        run.cancel()
        await asyncio.wait([run])


async def test_a_syphon_until_empty_raises_if_the_secondary_is_unavailable(pair: MemoryPair) -> None:
    pair.secondary.inject(Fault(FaultKind.DOWN))
    async with pair.client() as client:
        with pytest.raises(BacklogUnavailableError) as caught:
            await client.run_syphon(until="empty")
    assert isinstance(caught.value.__cause__, ServiceBusConnectionError)


# -- the primary was never reached -------------------------------------------------------------------------------------


async def test_the_first_diversion_warns_if_the_primary_was_never_reached(
    pair: MemoryPair, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "sbclient")
    pair.primary.inject(Fault(FaultKind.DOWN))
    async with pair.client(AT_ONCE) as client, client.get_queue_sender(QUEUE) as sender:
        for _ in range(3):
            await sender.send_messages(ServiceBusMessage("a"))
        assert client.pair.status().never_reached
        assert [event.name for event in client.pair.events()].count("failover.never_reached") == 1
    assert "check its host name" in caplog.text


@pytest.mark.parametrize("use", ["send", "receive", "peek", "rejected send", "hanging send", "administration"])
async def test_any_answer_shows_that_the_primary_was_reached(pair: MemoryPair, use: str) -> None:
    async with pair.client(AT_ONCE) as client, client.get_queue_sender(QUEUE) as sender:
        assert client.pair.status().never_reached
        match use:
            case "send":
                await sender.send_messages(ServiceBusMessage("a"))
            case "receive":
                await client.get_queue_receiver(QUEUE).receive_messages(max_wait_time=1.0)
            case "peek":
                await client.get_queue_receiver(QUEUE).peek_messages()
            case "rejected send":
                with pytest.raises(MessagingEntityNotFoundError):
                    await client.get_queue_sender("missing").send_messages(ServiceBusMessage("a"))
            case "hanging send":
                pair.primary.inject(Fault(FaultKind.HANG, operations=[Operation.SEND]))
                await sender.send_messages(ServiceBusMessage("a"))
            case "administration":
                await client.administration.get_queue(QUEUE)
        assert not client.pair.status().never_reached
        pair.primary.inject(Fault(FaultKind.DOWN))
        await sender.send_messages(ServiceBusMessage("a"))
        assert "failover.never_reached" not in [event.name for event in client.pair.events()]


# -- a misspelled entity -----------------------------------------------------------------------------------------------


async def test_a_misspelled_entity_raises_once_the_primary_answers(pair: MemoryPair) -> None:
    pair.primary.inject(Fault(FaultKind.DOWN))
    async with pair.client(AT_ONCE) as client, client.get_queue_sender("ordres") as sender:
        await sender.send_messages(ServiceBusMessage("a"))
        pair.primary.heal()
        await until(lambda: client.pair.status().entities["ordres"].state is FailoverState.HEALTHY, at_most_s=70.0)
        with pytest.raises(MessagingEntityNotFoundError):
            await sender.send_messages(ServiceBusMessage("b"))
        assert client.pair.status().entities["ordres"].diverted == 1
        assert client.pair.events()[-1].name == "failover.entity_missing"


async def test_an_entity_that_vanished_stays_failed_over(pair: MemoryPair) -> None:
    async with pair.client(AT_ONCE) as client, client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage("a"))
        await client.administration.delete_queue(QUEUE)
        for _ in range(3):
            await sender.send_messages(ServiceBusMessage("b"))
            await clock.sleep(100.0)
        assert client.pair.status().entities[QUEUE].diverted == 3


# -- partitioned backlog queues ----------------------------------------------------------------------------------------


async def test_a_list_with_several_keys_is_diverted_to_a_partitioned_queue(pair: MemoryPair) -> None:
    await make_queue(pair, BACKLOG[0], secondary=True, enable_partitioning=True)
    async with pair.client(options(backlog_queue_count=1)) as client, client.get_queue_sender(QUEUE) as sender:
        client.pair.force_failover(QUEUE)
        keys = ("x", None, "y", "x", "y", None)
        await sender.send_messages([ServiceBusMessage(str(n), partition_key=key) for n, key in enumerate(keys)])
        await sender.send_messages([ServiceBusMessage(str(n + 6), session_id=str(n)) for n in range(3)])
        client.pair.mark_healthy(QUEUE)
        assert (await client.run_syphon(until="empty")).drained == 9
    found = await taken(pair)
    assert sorted(texts(found)) == [str(n) for n in range(9)]
    assert [str(message) for message in found if message.partition_key == "x"] == ["0", "3"]


async def test_a_list_of_which_the_backlog_accepts_a_part_is_in_doubt(pair: MemoryPair) -> None:
    await make_queue(pair, BACKLOG[0], secondary=True, enable_partitioning=True)
    async with pair.client(options(backlog_queue_count=1)) as client, client.get_queue_sender(QUEUE) as sender:
        client.pair.force_failover(QUEUE)
        pair.secondary.inject(Fault(FaultKind.DOWN, BACKLOG[0], fragments=[fragment_of("y", 16)]))
        for keys, is_in_doubt in (("xy", True), ("yx", False)):
            with pytest.raises(BacklogUnavailableError) as caught:
                await sender.send_messages([ServiceBusMessage(key, partition_key=key) for key in keys])
            assert caught.value.is_in_doubt is is_in_doubt
        assert texts(await taken(pair, BACKLOG[0], secondary=True)) == ["x"]


# -- the partner -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_closed_before", [True, False])
async def test_run_syphon_ends_5_s_after_its_partner_was_closed(pair: MemoryPair, is_closed_before: bool) -> None:
    lender = pair.unpaired_client(secondary=True)
    client = pair.client(secondary=lender)
    await client.__aenter__()
    if is_closed_before:
        await lender.close()
    run = asyncio.ensure_future(client.run_syphon())
    await asyncio.sleep(0)
    if not is_closed_before:
        await lender.close()
    await clock.sleep(4.9)
    assert not run.done()
    await clock.sleep(0.2)
    with pytest.raises(PairedClientError):
        await run
    await client.close()
