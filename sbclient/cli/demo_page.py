"""The page of `sbclient demo --page`: the two namespaces of the story, and what the client itself knows of the pair."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from random import Random
from types import TracebackType
from typing import Any, Final, Self

from sbclient.cli.outage import HEALED_AT_S, OUTAGE_AT_S, TRAFFIC_S, Story
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.faults import WireFaults
from sbclient.emulator.net.http_port import HttpPort
from sbclient.emulator.page.namespace_registry import NamespaceRegistry
from sbclient.emulator.page.namespace_watcher import INTERVAL_S, ClientReport
from sbclient.emulator.router import Router
from sbclient.emulator.sas import AuthorizationMode, Authorizer
from sbclient.errors import InvalidOperationError
from sbclient.hosting.host import BrokerHost
from sbclient.pairing.status import PairStatus
from sbclient.testing import MemoryPair
from sbclient.transport.memory.connection import SCHEME

EVENTS_TOLD: Final = 100


class DemoPage:
    """Serves the page, on this machine only, while a story is told.

    Args:
        story: told on the running loop.
        pair: its namespaces.
        speed: virtual seconds in a real one.
        port: 0 = any that is free.

    Attributes:
        port: on which it listens.
    """

    def __init__(self, story: Story, pair: MemoryPair, speed: float, port: int) -> None:
        self.port = port
        self._story = story
        self._speed = speed
        self._started_at = story.clock.now()
        # Everybody on this machine may look, for there is nothing to be kept from anybody: made-up messages, gone soon.
        self._registry = registry = NamespaceRegistry(tell=self._told, interval_s=INTERVAL_S * speed)
        first, second = (_context(host) for host in (pair.primary, pair.secondary))
        for context in (first, second):
            registry.add(context, lambda: None)
        self._server = HttpPort(Router(first, registry, reports_all=True).answer, story.clock)

    async def __aenter__(self) -> Self:
        try:
            self.port = await self._server.start("127.0.0.1", self.port)
        except OSError as error:
            raise InvalidOperationError(
                f"the page cannot be served on port {self.port} ({error.strerror}): choose another, 0 for any that is "
                "free"
            ) from error
        self._looking = asyncio.create_task(self._look(), name="look for late viewers")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._looking.cancel()
        await asyncio.wait([self._looking])
        await self._server.close()

    async def _look(self) -> None:
        """Look on also while nobody watches, so that who comes late sees how it began."""
        seen = 0
        while True:
            seen = (await self._registry.watch.namespace_watcher.next(seen)).number

    async def until_interrupted(self) -> None:
        """Keep the page until Ctrl-C."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(NotImplementedError):  # Windows has no handlers; there Ctrl-C ends the loop
                loop.add_signal_handler(number, ended.set)
        while not ended.is_set():
            await self._story.clock.sleep(self._speed / 4)

    def _told(self) -> ClientReport:
        story, status = self._story, self._story.status
        return ClientReport([] if status is None else [self._pair(status())], self._facts(story))

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
            "events": [
                {"at": event.at_utc.timestamp(), "name": event.name, "path": event.path, "facts": dict(event.facts)}
                for event in self._story.events()[-EVENTS_TOLD:]
            ],
        }

    def _facts(self, story: Story) -> dict[str, Any]:
        tallies = story.tallies.values()
        is_over = story.phase == "over"
        numbers = {
            "sent": sum(tally.sent for tally in tallies),
            "accepted": sum(len(tally.accepted) for tally in tallies),
            "diverted": sum(story.diverted.values()),
            "brought home": story.drained,
            "delivered": sum(len(tally.delivered) for tally in tallies),
        }
        if is_over:
            numbers["lost"] = story.account().lost
        return {
            "phase": story.phase,
            "started_at": self._started_at,
            "elapsed_s": round(story.elapsed_s, 1),
            "total_s": max(TRAFFIC_S, story.elapsed_s),
            "outage": {"from_at": self._started_at + OUTAGE_AT_S, "to_at": self._started_at + HEALED_AT_S},
            "speed": self._speed,
            "is_over": is_over,
            "numbers": [{"name": name, "value": value} for name, value in numbers.items()],
        }


def _context(host: BrokerHost) -> NamespaceContext:
    return NamespaceContext(host, Authorizer(AuthorizationMode.NONE), WireFaults(Random(0)))
