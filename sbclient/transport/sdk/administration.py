"""Manages the entities of a namespace through the administration client of azure-servicebus."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar
from xml.etree.ElementTree import Element

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
    added_elements,
    creation_options,
    filter_to_sdk,
    from_sdk_namespace,
    from_sdk_properties,
    from_sdk_rule,
    lacking,
    to_sdk_properties,
)
from sbclient.transport.sdk.errors import translated
from sbclient.transport.sdk.feeds import blank, descriptions, has_next_page, kind_in, runtimes
from sbclient.transport.sdk.http import ADDED_ELEMENTS

if TYPE_CHECKING:
    from sbclient.transport.sdk.transport import SdkTransport

R = TypeVar("R")
T = TypeVar("T")
TIMEOUT_S: Final = 60.0
PAGE: Final = 100
"""Entities of one request for a list. Source: the most that the service returns."""

_TWINS: Final = {EntityKind.QUEUE: EntityKind.TOPIC, EntityKind.TOPIC: EntityKind.QUEUE}
"""Queues and topics share one set of names and addresses in the management API."""


class SdkAdministration(Administration):
    """The entities of one namespace, through one client of the SDK, which supports concurrent calls."""

    def __init__(self, owner: SdkTransport) -> None:
        self._owner = owner
        self._sdk: Any = None
        self._calls: set[asyncio.Task[Any]] = set()

    async def create(self, address: EntityAddress, properties: EntityProperties) -> EntityProperties:
        async def make(sdk: Any) -> Any:
            if isinstance(properties, RuleProperties):
                # the SDK has no argument for a filter that matches everything, but this default
                chosen = properties.filter
                options: dict[str, Any] = {"action": action_to_sdk(properties.action)}
                if not isinstance(chosen, TrueRuleFilter):
                    options["filter"] = filter_to_sdk(chosen)
                return await sdk.create_rule(*address.names, **options)
            ADDED_ELEMENTS.set(added_elements(properties))
            return await _method(sdk, "create", address.kind)(*address.names, **creation_options(properties))

        made = self._from_sdk(address.kind, await self._ask(make, f"create {address}"))
        if isinstance(made, RuleProperties) or isinstance(properties, RuleProperties):
            return made
        unread = {name: value for name, value in lacking(properties).items() if made[name] is None}
        made.update(unread)
        has_status = properties.status not in (None, EntityStatus.ACTIVE)
        if has_status:
            made.status = properties.status
            await self.update(address, made)
        return await self.get(address) if has_status or unread else made

    async def get(self, address: EntityAddress) -> EntityProperties:
        if address.kind is EntityKind.RULE:
            return from_sdk_rule(await self._ask(lambda sdk: sdk.get_rule(*address.names), f"describe {address}"))

        async def get(sdk: Any) -> EntityProperties:
            (described,) = descriptions(address.kind, await _document(sdk, address))
            described.name = address.names[-1]
            return described

        return await self._ask(get, f"describe {address}")

    async def update(self, address: EntityAddress, properties: EntityProperties) -> None:
        wanted = to_sdk_properties(properties)

        async def change(sdk: Any) -> None:
            ADDED_ELEMENTS.set(added_elements(properties))
            await _method(sdk, "update", address.kind)(*address.names[:-1], wanted)

        await self._ask(change, f"update {address}")

    async def delete(self, address: EntityAddress) -> None:
        async def remove(sdk: Any) -> None:
            if address.kind in _TWINS:
                await _document(sdk, address)  # the request would also delete an entity of the other kind
            await _method(sdk, "delete", address.kind)(*address.names)

        await self._ask(remove, f"delete {address}")

    async def list(
        self, kind: EntityKind, parents: tuple[str, ...] = (), prefix: str = ""
    ) -> AsyncIterator[EntityProperties]:
        async for page in self._rules(parents) if kind is EntityKind.RULE else self._pages(kind, parents, descriptions):
            for each in page:
                if canonical(each.name).startswith(canonical(prefix)):
                    yield each

    async def list_runtime(self, kind: EntityKind, parents: tuple[str, ...] = ()) -> AsyncIterator[RuntimeProperties]:
        async for page in self._pages(kind, parents, runtimes):
            for each in page:
                yield each

    async def _rules(self, parents: tuple[str, ...]) -> AsyncIterator[Sequence[EntityProperties]]:
        """The rules of a subscription, page by page, read by the SDK."""

        async def gather(sdk: Any) -> tuple[Sequence[EntityProperties], str | None]:
            pages = sdk.list_rules(*parents).by_page(next_page)
            page = [self._from_sdk(EntityKind.RULE, each) async for each in await anext(pages)]
            return page, pages.continuation_token if page else None

        next_page, has_more = None, True
        while has_more:
            page, next_page = await self._ask(gather, f"list rules of {'/'.join(parents)}")
            has_more = next_page is not None
            yield page

    async def _pages(
        self, kind: EntityKind, parents: tuple[str, ...], read: Callable[[EntityKind, Element], Sequence[T]]
    ) -> AsyncIterator[Sequence[T]]:
        """The pages of a list, as `read` makes them from its documents."""

        async def gather(sdk: Any) -> tuple[Sequence[T], bool]:
            feeds: list[Element] = []

            def keep(_response: Any, feed: Element, _headers: Any) -> Element:
                feeds.append(feed)
                return blank("feed")  # the SDK needs long to read a page

            async for _ in getattr(sdk, f"list_{kind}s")(*parents, cls=keep, start_index=skip, max_page_size=PAGE):
                pass
            (feed,) = feeds
            return read(kind, feed), has_next_page(feed)

        skip, has_more = 0, True
        while has_more:
            page, has_more = await self._ask(gather, f"list {kind}s of {'/'.join(parents) or 'the namespace'}")
            skip += len(page)
            yield page

    async def runtime(self, address: EntityAddress) -> RuntimeProperties:
        if address.kind is EntityKind.RULE:
            raise InvalidOperationError(f"{address} has no counts: get those of its subscription")

        async def get(sdk: Any) -> RuntimeProperties:
            (runtime,) = runtimes(address.kind, await _document(sdk, address))
            runtime.name = address.names[-1]
            return runtime

        return await self._ask(get, f"describe {address}")

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


def _method(sdk: Any, verb: str, kind: EntityKind) -> Callable[..., Awaitable[Any]]:
    method: Callable[..., Awaitable[Any]] = getattr(sdk, f"{verb}_{kind}")
    return method


async def _document(sdk: Any, address: EntityAddress) -> Element:
    """Return the document that describes a queue, topic or subscription.

    Raises:
        MessagingEntityNotFoundError: there is none, or the entity of that name is of the other kind.
    """
    from azure.core.exceptions import ResourceNotFoundError

    kind, documents = address.kind, list[Element]()

    def keep(_response: Any, document: Element, _headers: Any) -> Element:
        documents.append(document)
        return blank("entry")  # the SDK needs long to read a description, and takes this for a missing one

    try:
        await _method(sdk, "get", kind)(*address.names, cls=keep)
    except ResourceNotFoundError:
        if not documents:
            raise
    (document,) = documents
    found = kind_in(document)
    if found is None:
        raise MessagingEntityNotFoundError(f"{address} does not exist: create it, or check its name")
    if found is not kind:
        raise MessagingEntityNotFoundError(
            f"{address.names[0]!r} is a {found}, not a {kind}: use the methods for a {found}"
        )
    return document
