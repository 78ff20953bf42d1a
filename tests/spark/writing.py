"""A writer of one task in virtual time, for the tests of what it sends and of what it cannot send."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from sbclient import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.client.sender import ServiceBusSender
from sbclient.options import PairedNamespaceOptions
from sbclient.testing import MemoryPair, memory_pair
from sbclient_spark.options import Destination
from sbclient_spark.write.encoded_rows import EncodedRows
from sbclient_spark.write.options import WriteOptions, write_options
from sbclient_spark.write.partition_writer import PartitionWriter
from sbclient_spark.write.reports import TaskReport
from sbclient_spark.write.row_errors import BadRecords
from tests.client.scene import make_queue, options, taken
from tests.spark.encoding import encoded_row, encoded_rows

ORDERS: Final = Destination("orders")
PAIRED: Final = options(failover_interval=60)


@dataclass
class Scene:
    """A pair in virtual time, and writers for it."""

    pair: MemoryPair
    report: TaskReport = field(default_factory=lambda: TaskReport(partition=3))

    @asynccontextmanager
    async def writer(
        self,
        *,
        pairing: PairedNamespaceOptions | None = None,
        mixes_keys: bool = True,
        directory: Path | None = None,
        entity: str | None = "orders",
        **changes: str,
    ) -> AsyncIterator[PartitionWriter]:
        chosen = self.options(paired=pairing is not None, entity=entity, **changes)
        if pairing is not None and chosen.ordering == "session":
            pairing = replace(pairing, ordering="session")
        client: ServiceBusClient = self.pair.client(pairing) if pairing else self.pair.unpaired_client()
        senders: dict[Destination, ServiceBusSender] = {}

        def sender_for(destination: Destination) -> ServiceBusSender:
            if destination not in senders:
                senders[destination] = client.get_queue_sender(destination.path)
            return senders[destination]

        async def is_mixing(destination: Destination) -> bool:
            return mixes_keys

        bad_records = BadRecords(str(directory) if directory else None, "part-3")
        async with client:
            yield PartitionWriter(
                client, sender_for, chosen, mixes_keys=is_mixing, report=self.report, bad_records=bad_records
            )
        bad_records.close()

    @staticmethod
    def options(*, paired: bool, entity: str | None, **changes: str) -> WriteOptions:
        given = {"connectionString": "memory://contoso", **changes}
        if paired:
            given["secondaryConnectionString"] = "memory://contoso-backup"
        if entity is not None:
            given["queue"] = entity
        return write_options(given)

    @classmethod
    async def made(cls) -> Scene:
        """A scene with a queue `orders`."""
        pair = memory_pair(seed=1)
        await make_queue(pair)
        return cls(pair)

    async def arrived(self, name: str = "orders", *, secondary: bool = False) -> list[str]:
        return [str(message) for message in await self.messages(name, secondary=secondary)]

    async def messages(self, name: str = "orders", *, secondary: bool = False) -> list[ServiceBusReceivedMessage]:
        return await taken(self.pair, name, secondary=secondary)


def rows(
    count: int, *, first: int = 0, destination: Destination = ORDERS, size: int = 0, **attributes: Any
) -> list[EncodedRows]:
    """Rows whose body is their position, padded to a size; an attribute may be a function of the position."""
    found = []
    for position in range(first, first + count):
        chosen = {name: value(position) if callable(value) else value for name, value in attributes.items()}
        body = str(position).ljust(size)
        message = ServiceBusMessage(body, message_id=chosen.pop("message_id", f"id {position}"), **chosen)
        found.append(encoded_row(position, message))
    return [encoded_rows(destination, found)]


def bodies(count: int) -> list[str]:
    return [str(position) for position in range(count)]


def by_session(messages: Sequence[ServiceBusReceivedMessage]) -> dict[str | None, list[int]]:
    found: dict[str | None, list[int]] = {}
    for message in messages:
        found.setdefault(message.session_id, []).append(int(str(message)))
    return found


def written(scene: Scene) -> list[dict[str, Any]]:
    """The bad records of a task."""
    assert scene.report.bad_records is not None
    return [json.loads(line) for line in Path(scene.report.bad_records).read_text().splitlines()]
