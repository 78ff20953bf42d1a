"""The emulator in a process of its own, with the counters that a benchmark reads from it."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from sbclient.broker.faults import Fault
from sbclient.broker.namespace import Namespace
from sbclient.cli import collect_less
from sbclient.emulator import Emulator

PRIMARY: Final = "contoso"
SECONDARY: Final = "contoso-backup"

_ANSWER_S: Final = 60.0


class EmulatorProcess:
    """A primary and a secondary namespace in one process. Use it with `with`.

    Each method asks the process and blocks until it answers. Call `asyncio.to_thread` while messages are in flight.

    Attributes:
        primary, secondary: connection strings.
        port: port of the primary.
    """

    def __enter__(self) -> EmulatorProcess:
        context = multiprocessing.get_context("spawn")
        self._pipe, remote = context.Pipe()
        self._process = context.Process(target=_serve, args=(remote,), name="emulator", daemon=True)
        self._process.start()
        remote.close()
        self.primary, self.secondary, self.port = self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join(_ANSWER_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def create_queue(self, name: str, **settings: Any) -> str:
        """Create a queue in the primary; return its name."""
        self._ask("create_queue", name, **settings)
        return name

    def empty(self) -> None:
        """Remove all messages of both namespaces, and the counts of deliveries."""
        self._ask("empty")

    def heal(self) -> None:
        """Remove all faults of the primary."""
        self._ask("heal")

    def inject(self, fault: Fault) -> None:
        """Inject a fault into the primary."""
        self._ask("inject", fault)

    def counts(self) -> dict[str, int]:
        """Return the messages of each namespace that are not settled."""
        counts: dict[str, int] = self._ask("counts")
        return counts

    def deliveries(self) -> dict[str, int]:
        """Return the deliveries of each namespace to receivers since `empty`, by the broker's own count."""
        deliveries: dict[str, int] = self._ask("deliveries")
        return deliveries

    def backlog_queues(self) -> list[str]:
        """Return the names of the queues of the secondary."""
        names: list[str] = self._ask("backlog_queues")
        return names

    def processor_s(self) -> float:
        """Return the processor time that the process has used."""
        seconds: float = self._ask("processor_s")
        return seconds

    def reset_peak(self) -> None:
        """Begin a new measurement of the peak memory."""
        self._ask("reset_peak")

    def peak_mib(self) -> float:
        """Return the peak memory since `reset_peak`."""
        peak: float = self._ask("peak_mib")
        return peak

    def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        self._pipe.send((method, args, kwargs))
        return self._answer()

    def _answer(self) -> Any:
        if not self._pipe.poll(_ANSWER_S):
            raise TimeoutError(f"the emulator process did not answer within {_ANSWER_S:g} s")
        error, answer = self._pipe.recv()
        if error is not None:
            raise error
        return answer


def reset_peak() -> None:
    """Begin a new measurement of the peak memory of this process."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_mib() -> float:
    """Return the peak memory of this process since `reset_peak`, in MiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def rss_mib() -> float:
    """Return the memory of this process now, in MiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


class _Server:
    """Answers the parent process, in the event loop of the emulator."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self._namespaces = {name: emulator.context(name).host.namespace for name in (PRIMARY, SECONDARY)}
        self._deliveries: Counter[str] = Counter()
        for namespace in self._namespaces.values():
            self._count_deliveries(namespace)

    def create_queue(self, name: str, **settings: Any) -> None:
        self._emulator.create_queue(name, PRIMARY, **settings)

    def empty(self) -> None:
        for name in self._namespaces:
            self._emulator.purge(namespace=name)
        self._deliveries.clear()

    def heal(self) -> None:
        self._emulator.heal(namespace=PRIMARY)

    def inject(self, fault: Fault) -> None:
        self._emulator.inject(fault, PRIMARY)

    def counts(self) -> dict[str, int]:
        return {
            name: sum(len(namespace.queue(entity.path)) for entity in namespace.directory.all())
            for name, namespace in self._namespaces.items()
        }

    def deliveries(self) -> dict[str, int]:
        return {name: self._deliveries[name] for name in self._namespaces}

    def backlog_queues(self) -> list[str]:
        return [entity.path for entity in self._namespaces[SECONDARY].directory.all()]

    def processor_s(self) -> float:
        return time.process_time()

    def reset_peak(self) -> None:
        reset_peak()

    def peak_mib(self) -> float:
        return peak_mib()

    def _count_deliveries(self, namespace: Namespace) -> None:
        receive, receive_deferred = namespace.receive, namespace.receive_deferred

        def counted_receive(*args: Any, **kwargs: Any) -> Any:
            entries = receive(*args, **kwargs)
            self._deliveries[namespace.name] += len(entries)
            return entries

        def counted_receive_deferred(*args: Any, **kwargs: Any) -> Any:
            entries = receive_deferred(*args, **kwargs)
            self._deliveries[namespace.name] += len(entries)
            return entries

        vars(namespace).update(receive=counted_receive, receive_deferred=counted_receive_deferred)


def _serve(pipe: Any) -> None:
    collect_less()  # as the command `sbclient emulator` does

    async def serve() -> None:
        async with Emulator(PRIMARY, SECONDARY) as emulator:
            server = _Server(emulator)
            strings = emulator.connection_strings
            pipe.send((None, (strings[PRIMARY], strings[SECONDARY], emulator.ports[PRIMARY])))
            while True:
                try:
                    method, args, kwargs = await asyncio.to_thread(pipe.recv)
                except EOFError:  # the parent has closed the pipe, or has ended
                    return
                try:
                    pipe.send((None, getattr(server, method)(*args, **kwargs)))
                except Exception as error:
                    pipe.send((error, None))

    asyncio.run(serve())
