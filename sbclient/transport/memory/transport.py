"""The transport to a broker in this process.

Transports share a namespace by its name: every transport on `memory_host("contoso")` has the same entities. Each
transport is a connection to one front end of the namespace.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import count
from random import Random
from weakref import WeakValueDictionary

from sbclient.broker.faults import Call, Operation
from sbclient.broker.profile import STD_2021, Profile, profile_of
from sbclient.broker.transactions import Transaction
from sbclient.delivery import ServiceBusReceiveMode, SessionChoice
from sbclient.hosting.host import BrokerHost
from sbclient.transport.base import Check, Transport
from sbclient.transport.memory.administration import MemoryAdministration
from sbclient.transport.memory.connection import SCHEME, MemoryConnection, MemoryTransaction
from sbclient.transport.memory.receiver import MemoryReceiver
from sbclient.transport.memory.sender import MemorySender

_hosts: dict[str, BrokerHost] = {}
_shared: WeakValueDictionary[str, BrokerHost] = WeakValueDictionary()
_numbers = count(1)


def memory_host(
    name: str, *, random: Random | None = None, profile: Profile | str = STD_2021, front_end_count: int = 1
) -> BrokerHost:
    """Return the namespace of that name in this process, creating it on the first call.

    Args:
        name: `contoso` or `memory://contoso`; not case-sensitive.
        random, profile, front_end_count: of a new namespace, ignored for an existing one; see `BrokerHost`.
            `profile` may be a name.
    """
    key = _key(name)
    host = _hosts.get(key) or _shared.get(key)
    if host is None:
        bare = name.strip().removeprefix(SCHEME).rstrip("/")
        host = _hosts[key] = BrokerHost(
            bare, random=random, profile=profile_of(profile), front_end_count=front_end_count
        )
    return host


def drop_memory_host(name: str) -> None:
    """Forget the namespace of that name, if there is one. Open transports keep using it."""
    _hosts.pop(_key(name), None)
    _shared.pop(_key(name), None)


def share_memory_host(host: BrokerHost) -> str:
    """Make a namespace available to all clients of this process for as long as it exists; returns `memory://…`."""
    key = f"{_key(host.namespace.name)}-{next(_numbers)}"
    while key in _hosts:
        key = f"{_key(host.namespace.name)}-{next(_numbers)}"
    _shared[key] = host
    return SCHEME + key


def _key(name: str) -> str:
    return name.strip().casefold().removeprefix(SCHEME).rstrip("/")


class MemoryTransport(MemoryConnection, Transport):
    """A connection to a namespace in this process.

    Args:
        host: the namespace.
        is_cross_entity: whether transactions may span entities.
    """

    def __init__(self, host: BrokerHost, *, is_cross_entity: bool = False) -> None:
        super().__init__(host, is_cross_entity=is_cross_entity)
        self._administration = MemoryAdministration(self)

    @property
    def administration(self) -> MemoryAdministration:
        return self._administration

    def open_sender(self, entity_path: str, check: Check | None = None) -> MemorySender:
        return MemorySender(self, entity_path, check)

    def open_receiver(
        self,
        entity_path: str,
        *,
        session: SessionChoice = None,
        receive_mode: ServiceBusReceiveMode = ServiceBusReceiveMode.PEEK_LOCK,
        prefetch_count: int = 0,
    ) -> MemoryReceiver:
        return MemoryReceiver(self, entity_path, session, receive_mode, prefetch_count)

    async def begin_transaction(self, *, timeout_s: float, partition_key: str | None = None) -> MemoryTransaction:
        def work(call: Call) -> Transaction:
            return self._host.namespace.begin_transaction(call, self.via)

        return MemoryTransaction(self, await self.ask(Operation.TRANSACTION, None, work, timeout_s), partition_key)

    async def list_sessions(
        self, entity_path: str, *, state_updated_after: datetime | None, timeout_s: float
    ) -> Sequence[str]:
        def work(call: Call) -> list[str]:
            return self._host.namespace.list_sessions(call, entity_path, state_updated_after=state_updated_after)

        return await self.ask(Operation.SESSION, entity_path, work, timeout_s)

    async def renew_credential(self) -> None:
        """A namespace in this process has no credential."""
