"""The page of `sbclient demo --page`: the two namespaces, and the state of the pair as the client sees it."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from random import Random
from types import TracebackType
from typing import Any, Final, Self

from sbclient import clock
from sbclient.cli.outage import OUTAGE_AT_S, RECOVERY_AT_S, TRAFFIC_S, OutageRun
from sbclient.emulator.context import NamespaceContext, ServerSettings
from sbclient.emulator.faults import WireFaults
from sbclient.emulator.listener import Listener
from sbclient.emulator.page.namespace_registry import NamespaceRegistry
from sbclient.emulator.page.namespace_watcher import INTERVAL_S, ClientReport
from sbclient.emulator.router import Router
from sbclient.emulator.sas import AuthorizationMode, Authorizer
from sbclient.errors import InvalidOperationError
from sbclient.hosting.host import BrokerHost
from sbclient.pairing.status import PairStatus
from sbclient.testing import MemoryPair
from sbclient.transport.memory.connection import SCHEME

EVENTS_SHOWN: Final = 100


class DemoPage:
    """Serves the page on localhost during a run.

    Args:
        outage: a run on the current event loop.
        pair: the namespaces of the run.
        speed: virtual seconds per real second.
        port: 0 = any free port.

    Attributes:
        port: the port of the page.
    """

    def __init__(self, outage: OutageRun, pair: MemoryPair, speed: float, port: int) -> None:
        self.port = port
        self._outage = outage
        self._speed = speed
        self._started_at = clock.now()
        # The page needs no authorization: the messages are made up and the page is local.
        self._registry = registry = NamespaceRegistry(report=self._client_report, interval_s=INTERVAL_S * speed)
        # The limits are in virtual time, like everything else on this clock.
        limits = ServerSettings(handshake_timeout_s=30 * speed, request_timeout_s=30 * speed)
        first, second = (_context(host, limits) for host in (pair.primary, pair.secondary))
        for context in (first, second):
            registry.add(context, lambda: None)
        self._server = Listener(first, Router(first, registry, reports_all=True).answer, tls=None)

    async def __aenter__(self) -> Self:
        try:
            self.port = await self._server.start("127.0.0.1", self.port)
        except OSError as error:
            raise InvalidOperationError(
                f"the page cannot be served on port {self.port} ({error.strerror}): choose another port, or 0 for any "
                "free one"
            ) from error
        self._recording = asyncio.create_task(self._record(), name="record history")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._recording.cancel()
        await asyncio.wait([self._recording])
        await self._server.close()

    async def _record(self) -> None:
        """Keep recording while no browser is connected, so that one opened later shows the history."""
        seen = 0
        while True:
            seen = (await self._registry.watch.watcher.next(seen)).number

    async def until_interrupted(self) -> None:
        """Serve the page until Ctrl-C."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(NotImplementedError):  # Windows: Ctrl-C ends the loop
                loop.add_signal_handler(number, ended.set)
        while not ended.is_set():
            await clock.sleep(self._speed / 4)

    def _client_report(self) -> ClientReport:
        outage, status = self._outage, self._outage.status
        return ClientReport([] if status is None else [self._pair(status())], self._facts(outage))

    def _pair(self, status: PairStatus) -> dict[str, Any]:
        return {
            "primary": status.primary.removeprefix(SCHEME),
            "secondary": status.secondary.removeprefix(SCHEME),
            "entities": [
                {
                    "path": entity.path,
                    "state": entity.state.value,
                    "since_at": entity.since_utc.timestamp(),
                    "diverted": entity.diverted,
                    "is_forced": entity.is_forced,
                }
                for entity in status.entities.values()
            ],
            "quarantined": list(status.quarantined),
            "provisioning_error": status.provisioning_error,
            "never_reached": status.never_reached,
            "events": [
                {"at": event.at_utc.timestamp(), "name": event.name, "path": event.path, "facts": dict(event.facts)}
                for event in self._outage.events()[-EVENTS_SHOWN:]
            ],
        }

    def _facts(self, outage: OutageRun) -> dict[str, Any]:
        tallies = outage.tallies.values()
        is_over = outage.phase == "over"
        numbers = {
            "sent": sum(len(tally.sent) for tally in tallies),
            "accepted": sum(len(tally.accepted) for tally in tallies),
            "diverted": sum(outage.diverted.values()),
            "drained": outage.drained,
            "delivered": sum(len(tally.delivered) for tally in tallies),
        }
        if is_over:
            numbers["lost"] = outage.account().lost
        return {
            "phase": outage.phase,
            "started_at": self._started_at,
            "elapsed_s": round(outage.elapsed_s, 1),
            "total_s": max(TRAFFIC_S, outage.elapsed_s),
            "outage": {"from_at": self._started_at + OUTAGE_AT_S, "to_at": self._started_at + RECOVERY_AT_S},
            "speed": self._speed,
            "is_over": is_over,
            "numbers": [{"name": name, "value": value} for name, value in numbers.items()],
        }


def _context(host: BrokerHost, limits: ServerSettings) -> NamespaceContext:
    return NamespaceContext(host, Authorizer(AuthorizationMode.NONE), WireFaults(Random(0)), settings=limits)
