"""Links to backlog queues that concurrent transfers share."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest

from sbclient import clock
from sbclient.errors import (
    MessageSizeExceededError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage
from sbclient.pairing.backlog_links import BacklogLinks
from sbclient.transport.memory.sender import MemorySender
from sbclient.transport.memory.transport import MemoryTransport
from tests.payloads import batch_of

NOTHING = batch_of([ServiceBusMessage(None)])


class Links(MemoryTransport):
    """Links whose transfers are answered by the test."""

    def __init__(self) -> None:
        super().__init__(BrokerHost("contoso"))
        self.answers: list[asyncio.Future[None]] = []
        self.opened = 0
        self.closed = 0

    def open_sender(self, entity_path: str, check: object = None) -> MemorySender:
        links = self
        links.opened += 1

        class Sender(MemorySender):
            def send(self, *_: object, **__: object) -> asyncio.Future[None]:
                links.answers.append(asyncio.get_running_loop().create_future())
                return links.answers[-1]

            async def close(self) -> None:
                links.closed += 1

        return Sender(self, entity_path, None)


@pytest.mark.parametrize("is_lost_again", [False, True])
async def test_a_failed_link_is_replaced_and_closes_when_its_last_transfer_ends(is_lost_again: bool) -> None:
    secondary, answers = Links(), list[tuple[str, ServiceBusError | None]]()
    links = BacklogLinks(secondary, lambda queue, error: answers.append((queue, error)))
    error = ServiceBusConnectionError("reset")
    for _ in range(2):
        links.send("backlog", NOTHING, timeout_s=1.0)
    secondary.answers[0].set_exception(error)
    await clock.sleep(1)
    assert (secondary.opened, secondary.closed) == (1, 0)
    links.send("backlog", NOTHING, timeout_s=1.0)
    if is_lost_again:  # which says nothing about the new link
        secondary.answers[1].set_exception(error)
    else:
        secondary.answers[1].set_result(None)
    await clock.sleep(1)
    links.send("backlog", NOTHING, timeout_s=1.0)
    assert (secondary.opened, secondary.closed) == (2, 1)
    assert answers == [("backlog", error), ("backlog", error if is_lost_again else None)]
    for answer in secondary.answers[2:]:
        answer.set_result(None)
    await links.close()
    assert secondary.closed == 2


async def test_a_busy_queue_keeps_its_link(caplog: pytest.LogCaptureFixture) -> None:
    secondary, answers = Links(), list[tuple[str, ServiceBusError | None]]()
    links = BacklogLinks(secondary, lambda queue, error: answers.append((queue, error)))
    links.send("backlog", NOTHING, timeout_s=1.0)
    secondary.answers[0].set_exception(ServiceBusServerBusyError("busy"))
    await clock.sleep(1)
    links.send("backlog", NOTHING, timeout_s=1.0).cancel()
    await clock.sleep(1)
    assert (secondary.opened, secondary.closed, answers) == (1, 0, [])
    links.send("backlog", NOTHING, timeout_s=1.0)
    await links.close()
    secondary.answers[-1].cancel()  # its answer after the end starts nothing
    await clock.sleep(1)
    assert (secondary.closed, answers, caplog.records) == (1, [], [])


@pytest.mark.parametrize("left_behind", [0, 1, 2])
async def test_a_failed_link_closes_with_its_last_transfer_however_that_ends(left_behind: int) -> None:
    for ends in product(["accepted", "lost", "refused", "cancelled"], repeat=3):
        await end_transfers(ends, left_behind)


async def end_transfers(ends: tuple[str, ...], left_behind: int) -> None:
    """End transfers of a link, after so many others whose event loop ended before they did."""
    secondary = Links()
    links = BacklogLinks(secondary, lambda queue, error: None)
    for _ in range(left_behind):
        links.send("backlog", NOTHING, timeout_s=1.0)
    links.leave_loop()
    secondary.answers.clear()
    for _ in ends:
        links.send("backlog", NOTHING, timeout_s=1.0)
    for end, answer in zip(ends, list(secondary.answers), strict=True):
        if end == "accepted":
            answer.set_result(None)
        elif end == "cancelled":
            answer.cancel()
        else:
            answer.set_exception(ServiceBusConnectionError("x") if end == "lost" else MessageSizeExceededError("x"))
        await clock.sleep(1)
    assert (secondary.opened, secondary.closed) == (1, int("lost" in ends))
    links.send("backlog", NOTHING, timeout_s=1.0)
    assert secondary.opened == 1 + ("lost" in ends)
    await links.close()
    assert secondary.closed == secondary.opened
