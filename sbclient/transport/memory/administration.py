"""Management of the entities of a namespace in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from itertools import count
from typing import Final, TypeVar

from sbclient.broker.directory import path_of
from sbclient.broker.faults import Call, Operation
from sbclient.entities import EntityAddress, EntityKind, EntityProperties, NamespaceProperties, RuntimeProperties
from sbclient.rules.entity_path import canonical
from sbclient.transport.base import Administration
from sbclient.transport.memory.connection import MemoryConnection

T = TypeVar("T")

ADMINISTRATION_TIMEOUT_S: Final = 60.0
PAGE: Final = 100
"""Entities of one request for a list."""


class MemoryAdministration(Administration):
    """Manages entities through one connection."""

    def __init__(self, connection: MemoryConnection) -> None:
        self._connection = connection
        self._management = connection.host.namespace.management

    async def create(self, address: EntityAddress, properties: EntityProperties) -> EntityProperties:
        return await self._ask(address, lambda call: self._management.create(call, address, properties))

    async def get(self, address: EntityAddress) -> EntityProperties:
        return await self._ask(address, lambda call: self._management.get(call, address))

    async def update(self, address: EntityAddress, properties: EntityProperties) -> None:
        await self._ask(address, lambda call: self._management.update(call, address, properties))

    async def delete(self, address: EntityAddress) -> None:
        await self._ask(address, lambda call: self._management.delete(call, address))

    async def list(
        self, kind: EntityKind, parents: tuple[str, ...] = (), prefix: str = ""
    ) -> AsyncIterator[EntityProperties]:
        async for page in self._pages(partial(self._page, kind=kind, parents=parents)):
            for each in page:
                if canonical(each.name).startswith(canonical(prefix)):
                    yield each

    async def list_runtime(self, kind: EntityKind, parents: tuple[str, ...] = ()) -> AsyncIterator[RuntimeProperties]:
        def counted(call: Call, skip: int) -> Sequence[RuntimeProperties]:
            addresses = (EntityAddress(kind, (*parents, each.name)) for each in self._page(call, kind, parents, skip))
            return [self._management.runtime(call, address) for address in addresses]

        async for page in self._pages(counted):
            for each in page:
                yield each

    def _page(self, call: Call, kind: EntityKind, parents: tuple[str, ...], skip: int) -> Sequence[EntityProperties]:
        return self._management.listed(call, kind, parents, skip=skip, most=PAGE)

    async def _pages(self, work: Callable[..., Sequence[T]]) -> AsyncIterator[Sequence[T]]:
        for skip in count(0, PAGE):
            page = await self._ask(None, partial(work, skip=skip))
            yield page
            if len(page) < PAGE:
                return

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
