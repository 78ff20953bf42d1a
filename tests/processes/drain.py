"""What is left at the end: takes it out of every queue, dead-letter queue and backlog queue, and says what stays."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

from sbclient import ServiceBusClient
from sbclient.errors import OperationTimeoutError
from tests.processes.account import BACKLOG_DEAD_LETTERS, DEAD_LETTERS
from tests.processes.faults import PRIMARY, SECONDARY
from tests.processes.receiving import note_delivery, open_receiver
from tests.processes.record import Record
from tests.processes.scene import Scene

AT_ONCE: Final = 500
WAIT_S: Final = 0.5
PAUSE_S: Final = 0.5
DRAIN: Final = "drain-1"


async def drain_everything(
    scene: Scene, paths: Sequence[str], *, has_sessions: bool = False, within_s: float
) -> dict[str, int]:
    """Receive and write down all that there is; what is locked is waited for.

    Returns: how many messages are left in which queue, when nothing more comes or the time is over.
    """
    drain = await scene.add(DRAIN)
    drain.life = 0
    record = Record(drain.file("jsonl"))
    deadline = time.monotonic() + within_s
    async with scene.namespaces[PRIMARY].client() as primary, scene.namespaces[SECONDARY].client() as secondary:
        while True:
            for path in paths:
                await _take(primary, record, path, "queue", has_sessions=has_sessions)
                await _take(primary, record, path, DEAD_LETTERS, sub_queue="deadletter")
            for path in [queue.name async for queue in secondary.administration.list_queues()]:
                await _take(secondary, record, path, BACKLOG_DEAD_LETTERS, sub_queue="deadletter")
            left = await left_in(scene)
            if not left or time.monotonic() > deadline:
                break
            await asyncio.sleep(PAUSE_S)
    record.close()
    return left


async def _take(
    client: ServiceBusClient, record: Record, path: str, origin: str, *, has_sessions: bool = False, **more: Any
) -> None:
    while True:
        receiver = open_receiver(client, path, has_sessions=has_sessions, receive_mode="receiveanddelete", **more)
        try:
            async with receiver:
                while messages := await receiver.receive_messages(AT_ONCE, max_wait_time=WAIT_S):
                    for message in messages:
                        note_delivery(record, path, message, origin)
        except OperationTimeoutError:
            return  # no session is left
        if not has_sessions:
            return


async def left_in(scene: Scene) -> dict[str, int]:
    """How many messages lie in each queue and dead-letter queue of both namespaces; none of those that are empty."""
    left: dict[str, int] = {}
    for namespace in scene.namespaces.values():
        for entity in (await namespace.control("GET", "state"))["entities"]:
            bodies = {"": entity, **entity["sub_queues"]}
            for name, body in bodies.items():
                if number := sum(fragment["message_count"] for fragment in body["fragments"]):
                    left["/".join(filter(None, (namespace.name, entity["path"], name)))] = number
    return left
