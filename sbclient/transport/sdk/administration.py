"""Manages the entities of a namespace through the administration client of azure-servicebus."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any, Final, TypeVar

from sbclient import clock
from sbclient.entities import (
    PROPERTIES_OF,
    EntityAddress,
    EntityKind,
    EntityProperties,
    EntityStatus,
    NamespaceProperties,
    RuleProperties,
    RuntimeProperties,
    TrueRuleFilter,
)
from sbclient.errors import (
    InvalidOperationError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
)
from sbclient.rules.entity_path import canonical
from sbclient.transport.base import Administration
from sbclient.transport.sdk.entities import (
    action_to_sdk,
    creation_options,
    filter_to_sdk,
    from_sdk_namespace,
    from_sdk_properties,
    from_sdk_rule,
    from_sdk_runtime,
    to_sdk_properties,
)
from sbclient.transport.sdk.errors import translated
from sbclient.transport.sdk.link import Owner

R = TypeVar("R")
TIMEOUT_S: Final = 60.0

_TWINS: Final = {EntityKind.QUEUE: EntityKind.TOPIC, EntityKind.TOPIC: EntityKind.QUEUE}
"""Queues and topics share one set of names and addresses in the management API."""


class SdkAdministration(Administration):
    """The entities of one namespace, through one client of the SDK, which supports concurrent calls."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._sdk: Any = None
        self._calls: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def create(self, address: EntityAddress, properties: EntityProperties) -> EntityProperties:
        async def make(sdk: Any) -> Any:
            if isinstance(properties, RuleProperties):
                # the SDK has no argument for a filter that matches everything, but this default
                chosen = properties.filter
                options: dict[str, Any] = {"action": action_to_sdk(properties.action)}
                if not isinstance(chosen, TrueRuleFilter):
                    options["filter"] = filter_to_sdk(chosen)
                return await sdk.create_rule(*address.names, **options)
            return await _method(sdk, "create", address.kind)(*address.names, **creation_options(properties))

        made = self._from_sdk(address.kind, await self._ask(make, f"create {address}"))
        status = getattr(properties, "status", None)
        if status in (None, EntityStatus.ACTIVE) or isinstance(made, RuleProperties):
            return made
        made.status = status
        return await self.update(address, made)

    async def get(self, address: EntityAddress) -> EntityProperties:
        sdk_properties = await self._ask(lambda sdk: _get(sdk, address), f"describe {address}")
        return self._from_sdk(address.kind, sdk_properties)

    async def update(self, address: EntityAddress, properties: EntityProperties) -> EntityProperties:
        wanted = to_sdk_properties(properties)
        await self._ask(
            lambda sdk: _method(sdk, "update", address.kind)(*address.names[:-1], wanted), f"update {address}"
        )
        return await self.get(address)

    async def delete(self, address: EntityAddress) -> None:
        async def remove(sdk: Any) -> None:
            if address.kind in _TWINS:
                await _get(sdk, address)  # the request would also delete an entity of the other kind
            await _method(sdk, "delete", address.kind)(*address.names)

        await self._ask(remove, f"delete {address}")

    async def list(self, kind: EntityKind, parents: tuple[str, ...] = (), prefix: str = "") -> list[EntityProperties]:
        async def gather(sdk: Any) -> list[EntityProperties]:
            listed: AsyncIterator[Any] = getattr(sdk, f"list_{kind}s")(*parents)
            return [self._from_sdk(kind, each) async for each in listed]

        entities = await self._ask(gather, f"list {kind}s of {'/'.join(parents) or 'the namespace'}")
        wanted = [each for each in entities if canonical(each.name).startswith(canonical(prefix))]
        return sorted(wanted, key=lambda each: canonical(each.name))

    async def runtime(self, address: EntityAddress) -> RuntimeProperties:
        if address.kind is EntityKind.RULE:
            raise InvalidOperationError(f"{address} has no counts: get those of its subscription")
        found = await self._ask(lambda sdk: _get(sdk, address, "_runtime_properties"), f"describe {address}")
        return from_sdk_runtime(address.names[-1], found)

    async def namespace(self) -> NamespaceProperties:
        return from_sdk_namespace(await self._ask(lambda sdk: sdk.get_namespace_properties(), "describe the namespace"))

    async def disconnect(self) -> None:
        sdk = self._sdk
        if sdk is not None and all(call.cancelling() for call in self._calls):
            self._sdk = None
            await sdk.close()

    def leave_loop(self) -> None:
        """Use a new client of the SDK, because the event loop of this one has ended."""
        self._sdk = None
        self._calls.clear()

    async def close(self) -> None:
        """Close the SDK's client, if there is one. Safe to call twice."""
        self._is_closed = True
        if self._sdk is not None:
            await self._sdk.close()
            self._sdk = None

    def _from_sdk(self, kind: EntityKind, sdk_properties: Any) -> EntityProperties:
        if kind is EntityKind.RULE:
            return from_sdk_rule(sdk_properties)
        described: EntityProperties = from_sdk_properties(PROPERTIES_OF[kind], sdk_properties)
        return described

    async def _ask(self, work: Callable[[Any], Awaitable[R]], doing: str) -> R:
        """Run `work` in its own task, which is cancelled with the caller or after 60 s."""
        if self._is_closed:
            raise InvalidOperationError(f"{doing}: the client is closed: open a new one")
        self._owner.enter_loop()
        if self._sdk is None:
            self._sdk = self._owner.sdk_administration()
        sdk = self._sdk

        async def working() -> R:
            try:
                return await _Quiet(work(sdk))
            except Exception as error:
                own = translated(error, doing, self._owner.place)
                if own is error:
                    raise
                raise own from error

        task: asyncio.Task[R] = self._owner.tasks.start(working(), name=doing)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        try:
            late = await clock.wait({task}, TIMEOUT_S)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if late:
            task.cancel()
            raise OperationTimeoutError(f"{doing}: no answer within {TIMEOUT_S:g} s, the result is unknown")
        try:
            return task.result()
        except ServiceBusAuthenticationError:
            await self.disconnect()  # the next call reads the credential again
            raise


class _Quiet(Awaitable[R]):
    """Awaits a call of the SDK without the warning that it tests an XML element for truth, as it does for rules.

    The test has the same result where every element is true. Each step has its own filter: what other tasks do while
    the call waits still warns.
    """

    def __init__(self, call: Awaitable[R]) -> None:
        self._call = call

    def __await__(self) -> Generator[Any, Any, R]:
        call = self._call.__await__()
        error: BaseException | None = None
        while True:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Testing an element's truth value", DeprecationWarning)
                try:
                    waits_for = next(call) if error is None else call.throw(error)
                except StopIteration as end:
                    result: R = end.value
                    return result
                finally:
                    error = None  # it refers to this frame
            try:
                yield waits_for
            except BaseException as thrown:
                error = thrown


def _method(sdk: Any, verb: str, kind: EntityKind, what: str = "") -> Callable[..., Awaitable[Any]]:
    method: Callable[..., Awaitable[Any]] = getattr(sdk, f"{verb}_{kind}{what}")
    return method


async def _get(sdk: Any, address: EntityAddress, what: str = "") -> Any:
    """Return what the SDK reports of an entity.

    Args:
        what: the end of the name of the SDK's method; empty = the description.

    Raises:
        MessagingEntityNotFoundError: the entity of that name is of the other kind.
    """
    try:
        found = await _method(sdk, "get", address.kind, what)(*address.names)
        if what:
            _ = found.created_at_utc  # the SDK parses counts on access
        return found
    except AttributeError:
        # The SDK fails to parse a reply that describes the other kind.
        if (other := _TWINS.get(address.kind)) is None:
            raise
        await _method(sdk, "get", other)(*address.names)
        raise MessagingEntityNotFoundError(
            f"{address.names[0]!r} is a {other}, not a {address.kind}: use the methods for a {other}"
        ) from None
