"""Public operations and their failures leave nothing behind: no object, task, timer, link, lock or session.

Each row is repeated, and what is there is counted by type before and after, on the side of the
client and of the broker. `python -m tests.lifetimes` repeats each row 2,000 times, over AMQP too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial

import pytest

from sbclient.emulator import Emulator
from sbclient.errors import ServiceBusError
from sbclient.testing import MemoryNamespace, served
from tests.border.scene import Scene as BorderScene
from tests.lifetimes.counting import grown_by
from tests.lifetimes.rows import ROWS, Scene, amqp_scene, memory_scene

REPEATS = int(os.environ.get("LIFETIMES_REPEATS", "100"))


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with memory_scene(MemoryNamespace("contoso")) as scene:
        yield scene


OVER_VIRTUAL_AMQP = [name for name in ROWS if name != "open and close"]  # each client has an emulator of its own


@pytest.mark.parametrize("row", ROWS)
async def test_operation_leaves_nothing_behind(scene: Scene, row: str) -> None:
    grown = await grown_by(lambda: ROWS[row](scene), scene.count_broker, REPEATS)
    assert not grown, f"{row}: {grown}"


@pytest.mark.parametrize("row", OVER_VIRTUAL_AMQP)
async def test_operation_over_amqp_without_sockets_leaves_nothing_behind(row: str) -> None:
    wire = BorderScene("amqp")
    async with memory_scene(MemoryNamespace("contoso"), wire.transport_to) as scene:
        grown = await grown_by(lambda: ROWS[row](scene), scene.count_broker, 20)
    await wire.close_networks()
    assert not grown, f"{row}: {grown}"


LONG_OVER_AMQP = ("be cancelled", "be closed meanwhile", "get no answer")


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with served("contoso", "contoso-backup") as emulator:
        yield emulator


@pytest.mark.real_time
@pytest.mark.slow
async def test_operations_over_amqp_leave_nothing_behind(emulator: Emulator) -> None:
    async with amqp_scene(emulator) as scene:
        for name, row in ROWS.items():
            if name not in LONG_OVER_AMQP:
                grown = await grown_by(partial(row, scene), scene.count_broker, 20)
                assert not grown, f"{name}: {grown}"


async def test_a_leak_of_one_object_per_call_is_found(scene: Scene) -> None:
    kept: list[object] = []

    class Leaked:
        __module__ = "sbclient.planted"

    async def leaking() -> None:
        await ROWS["send"](scene)
        kept.append(Leaked())

    assert await grown_by(leaking, scene.count_broker, REPEATS) == {"Leaked": REPEATS}


# -- a closed receiver takes nothing -----------------------------------------------------------------------------------

ENDS_IN_S = 2.0
"""Over AMQP a close waits for the answers of the other end."""


async def waits(scene: Scene) -> None:
    """Let the broker see that a receiver waits."""
    while not scene.count_broker()["waiting"]:  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0.01)


async def closes_while_it_receives(scene: Scene, what: str, prefetch_count: int) -> None:
    client = scene.new_client()
    receiver = client.get_queue_receiver("empty", prefetch_count=prefetch_count)
    waiting = asyncio.ensure_future(receiver.receive_messages(5, max_wait_time=60))
    await waits(scene)
    await (receiver if what == "receiver" else client).close()
    with pytest.raises(ServiceBusError):
        await asyncio.wait_for(waiting, ENDS_IN_S)
    await scene.send("empty")
    async with scene.client.get_queue_receiver("empty") as other:
        (message,) = await other.receive_messages(1, max_wait_time=ENDS_IN_S)
        assert message.delivery_count == 0
        await other.complete_message(message)
    await client.close()


async def closes_while_it_accepts(scene: Scene, what: str, session: str | None) -> None:
    client = scene.new_client()
    receiver = scene.session_receiver(client, session, max_wait_time=60)
    waiting = asyncio.ensure_future(receiver.__aenter__())
    await (waits(scene) if session is None else asyncio.sleep(0))
    await (receiver if what == "receiver" else client).close()
    with pytest.raises(ServiceBusError):
        await asyncio.wait_for(waiting, ENDS_IN_S)
    await scene.send("sessions", session_id="z")
    async with scene.session_receiver(scene.client, "z") as other:
        (message,) = await other.receive_messages(1, max_wait_time=ENDS_IN_S)
        await other.complete_message(message)
    await client.close()


async def closes_while_it_receives_from_a_session(scene: Scene) -> None:
    receiver = scene.session_receiver(scene.client, "z")
    await receiver.__aenter__()
    waiting = asyncio.ensure_future(receiver.receive_messages(5, max_wait_time=60))
    await waits(scene)
    await receiver.close()
    with pytest.raises(ServiceBusError):
        await asyncio.wait_for(waiting, ENDS_IN_S)
    async with scene.session_receiver(scene.client, "z"):
        pass  # the lock was released


CLOSES: dict[str, Callable[[Scene], Awaitable[None]]] = {
    **{
        f"{what} with a prefetch count of {count}": partial(closes_while_it_receives, what=what, prefetch_count=count)
        for what in ("receiver", "client")
        for count in (0, 5)
    },
    **{
        f"{what} of session {session}": partial(closes_while_it_accepts, what=what, session=session)
        for what in ("receiver", "client")
        for session in ("z", None)
    },
    "receiver that has a session": closes_while_it_receives_from_a_session,
}


@pytest.mark.parametrize("case", CLOSES)
async def test_what_is_closed_while_it_waits_takes_nothing(scene: Scene, case: str) -> None:
    await CLOSES[case](scene)


@pytest.mark.real_time
@pytest.mark.slow
async def test_what_is_closed_while_it_waits_over_amqp_takes_nothing() -> None:
    with served("contoso", "contoso-backup") as emulator:
        async with amqp_scene(emulator) as scene:
            for close in CLOSES.values():
                await close(scene)
