"""Two emulated namespaces in a thread of the test's process: workers reach them by port, tests from the inside."""

from __future__ import annotations

import os
from collections.abc import Coroutine
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from sbclient import ServiceBusClient, ServiceBusReceivedMessage
from sbclient.delivery import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode
from sbclient.emulator import Emulator
from sbclient.emulator.faults import WireFault, WireFaultKind
from sbclient.errors import OperationTimeoutError
from sbclient.transport.memory.transport import MemoryTransport
from tests.stage.serving import ServingThread

T = TypeVar("T")

PRIMARY: Final = "contoso"
SECONDARY: Final = "contoso-backup"


class EmulatedPair:
    """An emulator with a primary and a secondary namespace; `with` starts and ends it."""

    def __init__(self) -> None:
        self._thread = ServingThread()
        self._emulator = Emulator(PRIMARY, SECONDARY)
        self._numbers = count(1)

    def __enter__(self) -> Self:
        self.run(self._emulator.start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self._emulator.close())
        self._thread.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the emulator's loop."""
        return self._thread.run(work)

    # -- where it is ---------------------------------------------------------------------------------------------

    @property
    def primary(self) -> str:
        return self._emulator.connection_strings[PRIMARY]

    @property
    def secondary(self) -> str:
        return self._emulator.connection_strings[SECONDARY]

    @property
    def certificate(self) -> Path:
        return self._emulator.certificate_path

    def options(self, **more: Any) -> dict[str, str]:
        """Options of the data source for this pair; spans short enough for a test."""
        chosen = {
            "connectionString": self.primary,
            "secondaryConnectionString": self.secondary,
            "backlogQueueCount": 2,
            "failoverInterval": "1 s",
            "pingInterval": "1 s",
            "sendTimeout": "20 s",
            "retryBackoff": "100 ms",
            "retryMaxBackoff": "500 ms",
            "sbclient.retry_total": 1,
            "sbclient.retry_backoff_factor": "100 ms",
            "requireDuplicateDetection": "off",
        }
        return {name: str(value) for name, value in {**chosen, **more}.items()}

    def reading(self, **more: Any) -> dict[str, str]:
        """Options of a read or a drain of this pair."""
        chosen = {
            "connectionString": self.primary,
            "secondaryConnectionString": self.secondary,
            "backlogQueueCount": 2,
        }
        return {name: str(value) for name, value in {**chosen, **more}.items()}

    # -- what is in it -------------------------------------------------------------------------------------------

    def client(self, namespace: str = PRIMARY) -> ServiceBusClient:
        """A client inside the emulator's own process, independent of wire faults."""
        return ServiceBusClient(transport=MemoryTransport(self._emulator.context(namespace).host))

    def create_queue(self, stem: str, **properties: Any) -> str:
        """A queue of the primary that no other test has; returns its name. Clients of earlier tests are still there."""
        name = f"{stem}-{next(self._numbers)}"

        self._emulator.create_queue(name, **properties)
        return name

    def create_topic(self, stem: str, subscription: str) -> str:
        """A topic of the primary with one subscription; returns its name."""
        name = f"{stem}-{next(self._numbers)}"

        self._emulator.create_topic(name)
        self._emulator.create_subscription(name, subscription)
        return name

    def count(self, name: str) -> int:
        async def count() -> int:
            async with self.client() as client:
                return (await client.administration.get_queue_runtime_properties(name)).active_message_count

        return self.run(count())

    def backlog(self) -> int:
        """Messages in all backlog queues."""

        async def count() -> int:
            async with self.client(SECONDARY) as client:
                queues = client.administration.list_queues_runtime_properties()
                return sum([queue.active_message_count async for queue in queues])

        return self.run(count())

    def take(self, name: str, *, sessions: bool = False) -> list[ServiceBusReceivedMessage]:
        """Everything in a queue, which is empty then; sessions one after the other."""

        async def take() -> list[ServiceBusReceivedMessage]:
            found: list[ServiceBusReceivedMessage] = []
            async with self.client() as client:
                # By the count: on a busy machine a short wait may be over before it has begun.
                while (await client.administration.get_queue_runtime_properties(name)).active_message_count:
                    receiver = client.get_queue_receiver(
                        name,
                        session_id=NEXT_AVAILABLE_SESSION if sessions else None,
                        receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE,
                        max_wait_time=0.2,
                    )
                    with suppress(OperationTimeoutError):
                        async with receiver:
                            while some := await receiver.receive_messages(max_message_count=1000, max_wait_time=0.05):
                                found += some
            return found

        return self.run(take())

    # -- what is wrong with it -----------------------------------------------------------------------------------

    def cut(self, namespace: str = PRIMARY) -> None:
        """Reset every connection and refuse new ones; what is stored stays."""
        self._emulator.inject(WireFault(WireFaultKind.RESET), namespace)

    def busy(self, count: int, namespace: str = PRIMARY) -> None:
        """Answer so many sends with server-busy."""
        self._emulator.inject(WireFault(WireFaultKind.SERVER_BUSY, count=count), namespace)

    def senders(self) -> set[int]:
        """The processes with a connection to the primary, other than this one."""
        return connected_to(self._emulator.ports[PRIMARY])

    def heal(self) -> None:
        for namespace in (PRIMARY, SECONDARY):
            self._emulator.heal(namespace=namespace)

    def clear(self) -> None:
        """Heal everything and empty the backlog, so that a test finds nothing of the one before."""
        self.heal()
        self._emulator.purge(namespace=SECONDARY)


def connected_to(port: int) -> set[int]:
    """The processes, other than this one, with a connection to a port of this machine."""
    hexadecimal = f":{port:04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{fields[9]}]" for fields in lines if fields[2].endswith(hexadecimal)}
    found: set[int] = set()
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            with suppress(OSError):
                if any(os.readlink(handle) in sockets for handle in (process / "fd").iterdir()):
                    found.add(int(process.name))
    return found
