"""Management of the entities of a namespace in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from sbclient.broker.directory import path_of
from sbclient.broker.faults import Call, Operation
from sbclient.entities import EntityAddress, EntityKind, EntityProperties, NamespaceProperties, RuntimeProperties
from sbclient.transport.base import Administration
from sbclient.transport.memory.connection import MemoryConnection

T = TypeVar("T")

ADMINISTRATION_TIMEOUT_S: Final = 60.0


class MemoryAdministration(Administration):
    """Manages entities through one connection."""

    def __init__(self, connection: MemoryConnection) -> None:
        self._connection = connection
        self._management = connection.host.namespace.management

    async def create(self, address: EntityAddress, properties: EntityProperties) -> EntityProperties:
        return await self._ask(address, lambda call: self._management.create(call, address, properties))

    async def get(self, address: EntityAddress) -> EntityProperties:
        return await self._ask(address, lambda call: self._management.get(call, address))

    async def update(self, address: EntityAddress, properties: EntityProperties) -> EntityProperties:
        return await self._ask(address, lambda call: self._management.update(call, address, properties))

    async def delete(self, address: EntityAddress) -> None:
        await self._ask(address, lambda call: self._management.delete(call, address))

    async def list(self, kind: EntityKind, parents: tuple[str, ...] = (), prefix: str = "") -> list[EntityProperties]:
        return await self._ask(None, lambda call: self._management.listed(call, kind, parents, prefix))

    async def runtime(self, address: EntityAddress) -> RuntimeProperties:
        return await self._ask(address, lambda call: self._management.runtime(call, address))

    async def namespace(self) -> NamespaceProperties:
        return await self._ask(None, self._management.namespace)

    async def disconnect(self) -> None:
        """Do nothing: there is no connection."""

    async def _ask(self, address: EntityAddress | None, work: Callable[[Call], T]) -> T:
        self._connection.enter_loop()
        path = None if address is None else path_of(address)
        return await self._connection.ask(Operation.MANAGE, path, work, ADMINISTRATION_TIMEOUT_S)
