"""A program of the world: it runs clients, may be killed at any call on the wire, and is started again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from random import Random
from typing import Any

from sbclient import clock
from sbclient.client.client import ServiceBusClient
from sbclient.emulator.sas import ROOT_KEY, ROOT_KEY_NAME
from sbclient.errors import ServiceBusError
from sbclient.options import PairedNamespaceOptions
from sbclient.rules.shared_access_signature import sign
from sbclient.testing import MemoryPair
from sbclient.transport.amqp.connection import Sink, Stream
from sbclient.transport.amqp.credentials import SAS_TOKEN, Token
from sbclient.transport.amqp.transport import AmqpTransport
from sbclient.transport.base import Transport
from sbclient.transport.memory.transport import MemoryTransport
from tests.simulation.history import History
from tests.simulation.lifeline import Lifeline
from tests.simulation.network import Network
from tests.simulation.plan import Death, Plan
from tests.simulation.timing import STOPS_WITHIN_S
from tests.simulation.wire import Wire


@contextmanager
def skewed(skew_s: float) -> Iterator[None]:
    """Let the wall clock of what is started here be ahead of, or behind, the true one; durations are true."""
    token = clock.SKEW_S.set(skew_s)
    yield
    clock.SKEW_S.reset(token)


class Signer:
    """Signs tokens that expire as the plan says; with a wrong key while a fault of the network says so."""

    def __init__(self, network: Network) -> None:
        self._network = network

    async def __call__(self, audience: str) -> Token:
        expires_at = int(clock.true_now() + self._network.line.token_s)
        key = "wrong" if self._network.is_struck("bad_tokens") else ROOT_KEY
        return Token(sign(audience, ROOT_KEY_NAME, key, expires_at), SAS_TOKEN, expires_at + clock.SKEW_S.get())


class Program:
    """One program.

    Args:
        name: of the program; each life of it has a number behind it.
        pair: the namespaces.
        work: what it does in one life, until it returns or is killed.
        networks: in front of the namespaces, by side; empty = it calls them directly.
    """

    def __init__(
        self,
        name: str,
        plan: Plan,
        pair: MemoryPair,
        history: History,
        work: Callable[[Program], Awaitable[None]],
        networks: Mapping[str, Network] | None = None,
    ) -> None:
        self.name = name
        self.plan = plan
        self.pair = pair
        self.history = history
        self.random = Random(f"{name} {plan.seed}")
        self.run_count = 0
        self.client_name = name
        self._work = work
        self._networks = networks or {}
        self._deaths = [death for death in plan.deaths if death.program == name]
        self._life = Lifeline(name)
        self._stopped_at: float | None = None

    def client(self, *, paired: bool, options: PairedNamespaceOptions | None = None) -> ServiceBusClient:
        """A client whose wires belong to this life of the program."""
        plan = self.plan
        arguments: dict[str, Any] = {
            "transport": self._wire("primary"),
            "random": Random(self.random.getrandbits(64)),
            "timeout": plan.timeout_s,
            "retry_total": plan.retries,
        }
        if paired:
            arguments |= {"secondary_transport": self._wire("secondary"), "options": options or plan.options}
        return ServiceBusClient(**arguments)

    def _wire(self, side: str) -> Wire:
        host = self.pair.primary if side == "primary" else self.pair.secondary
        random = Random(self.random.getrandbits(64))
        inner: Transport = MemoryTransport(host)
        if side in self._networks:
            inner = self._remote(self._networks[side], MemoryTransport(host), random)
        return Wire(
            inner,
            side,
            self.history,
            self._life,
            random,
            latency_s=self.plan.latency_s,
            is_remote=side in self._networks,
        )

    def _remote(self, network: Network, management: Transport, random: Random) -> AmqpTransport:
        """A transport over the network, for this life of the program."""
        life = self._life

        async def connect(sink: Sink) -> Stream:
            return await network.connect(sink, lambda: not life.is_dead)

        name = network.context.name
        return AmqpTransport(
            name, name, connect, Signer(network), random=Random(random.getrandbits(64)), management=lambda: management
        )

    async def run(self) -> None:
        """Run, and run again after each death, until the work is done."""
        while True:
            death = self._deaths.pop(0) if self._deaths else None
            self._begin_life(death)
            with skewed(self.plan.skew_s):
                life = asyncio.ensure_future(self._work(self))
            self._life.on_death = partial(self._die, life)
            end = None
            if death is not None and death.at_call is None:
                end_life = partial(self._stop, life) if death.is_stop else self._life.end
                end = clock.call_later(death.at_s, end_life)
            try:
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([life])
            finally:
                if end is not None:
                    end.cancel()
                if not life.done():
                    life.cancel()
                    await asyncio.wait([life])
            if self._life.is_dead:
                self.history.deaths.append((self.history.now(), self.client_name))
                self.history.note(self.client_name, "killed")
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise asyncio.CancelledError
            if self._stopped_at is not None:
                self._check_stop(self._stopped_at)
            elif not self._life.is_dead:
                if life.cancelled():
                    return
                error = life.exception()
                if error is None:
                    return
                if not isinstance(error, ServiceBusError):
                    raise error
                self.history.refused(error)  # it could not begin; an operator starts it again
                await clock.sleep(5.0)
                continue
            await clock.sleep(death.pause_s if death is not None else 1.0)

    def _stop(self, life: asyncio.Future[None]) -> None:
        """Let it end as its operator would: what it calls is still answered."""
        self._stopped_at = self.history.now()
        life.cancel()

    def _check_stop(self, stopped_at: float) -> None:
        took_s = self.history.now() - stopped_at
        self.history.note(self.client_name, "stopped")
        if took_s > STOPS_WITHIN_S:
            self.history.violated("I15", f"{self.client_name} took {took_s:.1f} s to stop")

    def _begin_life(self, death: Death | None) -> None:
        self.run_count += 1
        self._stopped_at = None
        self.client_name = f"{self.name}.{self.run_count}"
        self._life = Lifeline(
            self.client_name,
            dies_at_call=death.at_call if death is not None else None,
            counts_sends_only=death is not None and death.only_sends,
            dies_after_work=death is not None and death.after_work,
        )

    def _die(self, life: asyncio.Future[None]) -> None:
        life.cancel()
        for network in self._networks.values():
            network.bury()

    def kill(self) -> None:
        """End this life."""
        self._life.end()

    def rename(self, suffix: str) -> None:
        """Tell one run of a syphon from the next within the same life."""
        self._life.name = self.client_name = f"{self.name}.{self.run_count}.{suffix}"
