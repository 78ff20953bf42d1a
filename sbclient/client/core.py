"""What the senders, receivers and transactions of one client share: the namespace, the pair, the policy, the state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Protocol
from uuid import UUID
from weakref import WeakKeyDictionary

from sbclient.clock import Clock
from sbclient.errors import InvalidOperationError, PairedClientError, ServiceBusError
from sbclient.options import RetryOptions
from sbclient.pairing.state import PairState
from sbclient.retry import RetryPolicy
from sbclient.tasks import OwnedTasks
from sbclient.transport.base import Transport


class Closeable(Protocol):
    """A sender or a receiver."""

    async def close(self) -> None: ...


class ClientCore:
    """One client's inside.

    Attributes:
        primary: the namespace the client works with.
        pair: the pairing, or None.
        retry: the one retry policy.
        tasks: owns whatever runs in the background.
        links: the senders and receivers that were handed out and are still known to somebody.

    Args:
        on_open: called once, when the client is open.
    """

    def __init__(
        self,
        primary: Transport,
        pair: PairState | None,
        retry_options: RetryOptions,
        clock: Clock,
        random: Random,
        *,
        on_open: Callable[[], None],
    ) -> None:
        self.primary = primary
        self.pair = pair
        self.clock = clock
        self.random = random
        self.retry = RetryPolicy(retry_options, clock, random)
        self.tasks = OwnedTasks()
        self.is_closed = False
        self.fault_cause: BaseException | None = None
        self.links: WeakKeyDictionary[Closeable, None] = WeakKeyDictionary()  # in order, as they are closed
        self._on_open = on_open
        self._is_open = False
        self._opening = asyncio.Lock()

    @property
    def is_open(self) -> bool:
        """Whether the namespaces are paired, or there is nothing to pair."""
        return self._is_open

    def check(self) -> None:
        """Raise if the client can no longer be used.

        Raises:
            PairedClientError: the pair is broken.
            InvalidOperationError: the client is closed.
        """
        if self.fault_cause is not None:
            raise PairedClientError(
                f"the client of {self.primary.namespace} is unusable since its partner ended: open a new pair"
            ) from self.fault_cause
        if self.is_closed:
            raise InvalidOperationError(f"the client of {self.primary.namespace} is closed: open a new one")

    async def open(self) -> None:
        """Pair the namespaces, once; what failed can be tried again."""
        self.check()
        if self._is_open:
            return
        async with self._opening:
            self.check()
            if self._is_open:
                return
            if self.pair is not None:
                try:
                    await self.pair.open(timeout_s=self.retry.options.timeout)
                except ServiceBusError:
                    self.check()  # closed meanwhile: that is what the caller is to hear
                    raise
                self.check()
            self._is_open = True
            self._on_open()

    def fault(self, cause: BaseException) -> None:
        """Make every later operation raise `PairedClientError` from this cause, and end what runs in the background."""
        if self.fault_cause is None and not self.is_closed:
            self.fault_cause = cause
            self.tasks.cancel()

    def new_id(self) -> str:
        """A fresh UUID, as text."""
        return str(UUID(int=self.random.getrandbits(128), version=4))
