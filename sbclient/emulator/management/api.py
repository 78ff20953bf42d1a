"""The management API: HTTP requests that create, read, update and delete the entities of a namespace.

Laws (source: the service's documents and recorded answers, unless said otherwise):

1. A request needs the Manage right on its entity. Requests about the namespace and about lists need it on the
   namespace; a token for the address of the list, such as `$Resources/Queues`, is sufficient as well.
2. PUT creates an entity; with an If-Match header it updates one. Creating an entity that exists is a conflict.
3. Forwarding also needs Manage on the destination, by the token of the request or by a supplementary one.
4. An error has a status and a sub-code; 500 and 503 mean "try again". A namespace that is down does not answer.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from secrets import token_bytes
from typing import Final, TypeVar

from sbclient.broker.faults import Call, Operation
from sbclient.broker.management import Management
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.management.atom import (
    ENTRY_TYPE,
    FEED_TYPE,
    described,
    entry_document,
    entry_of,
    feed_document,
    kind_of,
    read_default_rule,
    read_properties,
)
from sbclient.emulator.management.atom_descriptions import Shown
from sbclient.emulator.management.errors import refusal_of
from sbclient.emulator.management.paths import (
    Target,
    bounds_of,
    check_method,
    check_right,
    list_url,
    target_of,
    title_of,
    url,
    version_of,
)
from sbclient.emulator.net.http_messages import NoResponse, Request, Response
from sbclient.emulator.sas import Grant
from sbclient.entities import (
    DEFAULT_RULE_NAME,
    AccessRights,
    AuthorizationRule,
    EntityAddress,
    EntityKind,
    EntityProperties,
    QueueProperties,
    RuleProperties,
    SubscriptionProperties,
    TopicProperties,
)
from sbclient.errors import (
    InvalidOperationError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

T = TypeVar("T")

TIMEOUT_S: Final = 60.0
NAMESPACE_INFO: Final = "$namespaceinfo"

_SUPPLEMENTARY: Final = {
    "forward_to": "servicebussupplementaryauthorization",
    "forward_dead_lettered_messages_to": "servicebusdlqsupplementaryauthorization",
}


class _MissingDestinationError(InvalidOperationError):
    """The destination of forwarding does not exist: status 400, while a missing entity itself is a 404."""


class ManagementApi:
    """The management API of one namespace."""

    def __init__(self, context: NamespaceContext) -> None:
        self._context = context
        self._host = context.host
        self._management: Management = context.host.namespace.management

    async def answer(self, request: Request) -> Response:
        """Carry out one request.

        Raises:
            NoResponse: the namespace is down, or a fault drops its answer.
        """
        try:
            answer = await self._respond(request)
        except ServiceBusConnectionError as error:
            raise NoResponse from error
        except ServiceBusError as error:
            return refusal_of(error, self._now())
        if self._context.wire_faults.drops_acknowledgement("/".join(request.segments), self._context.clock.now()):
            raise NoResponse
        return answer

    async def _respond(self, request: Request) -> Response:
        if self._context.wire_faults.is_busy("/".join(request.segments), self._context.clock.now()):
            raise ServiceBusServerBusyError(f"{self._context.name} is too busy: wait 10 seconds and try again")
        grant = self._grant(request)
        version = version_of(request)
        if [segment.casefold() for segment in request.segments] == [NAMESPACE_INFO]:
            return await self._namespace(request, grant)
        if not request.segments and request.method == "GET":
            return self._public_list(request, grant)
        target = target_of(request.segments)
        self._check_right(request, target, grant)
        if target.is_list:
            check_method(request, "GET")
            return await self._list(request, target)
        check_method(request, "GET", "PUT", "DELETE")
        if request.method == "PUT":
            return await self._put(request, target, grant, version)
        if request.method == "DELETE":
            return await self._delete(target)
        return await self._get(request, target)

    def _check_right(self, request: Request, target: Target, grant: Grant) -> None:
        try:
            check_right(grant, target, request.method)
        except ServiceBusAuthorizationError:
            if request.method == "GET" and target.kind is None and grant.covers(target.names[0]):
                # Without the right to manage, too, the service reports a queue or topic as missing.
                self._host.namespace.directory.at(self._existing(target))
            raise

    def _grant(self, request: Request) -> Grant:
        authorizer, token = self._context.authorizer, request.headers.get("authorization", "")
        if not token and not authorizer.is_open:
            raise ServiceBusAuthenticationError(
                "SubCode=40102. The request has no Authorization header: send a token that grants Manage"
            )
        return authorizer.authenticate(token, self._context.clock.now())

    # ------------------------------------------------------------------ get and list

    async def _namespace(self, request: Request, grant: Grant) -> Response:
        grant.check(_covered(grant, ("", NAMESPACE_INFO)), AccessRights.MANAGE)
        check_method(request, "GET")
        namespace = await self._ask(None, self._management.namespace)
        entry = entry_of(namespace, url(request, NAMESPACE_INFO), self._now())
        return Response(200, entry_document(entry, self._context.name), ENTRY_TYPE)

    def _public_list(self, request: Request, grant: Grant) -> Response:
        """The list of public services, which the root of a namespace shows; there are none."""
        grant.check(_covered(grant, ("",)), AccessRights.MANAGE)
        document = feed_document("Publicly Listed Services", url(request), None, (), self._context.name)
        return Response(200, document, FEED_TYPE)

    async def _get(self, request: Request, target: Target) -> Response:
        def get(call: Call) -> Shown | RuleProperties:
            return self._shown(call, self._management.get(call, self._existing(target)), target, request)

        return self._entry(200, await self._ask(target, get), request)

    async def _list(self, request: Request, target: Target) -> Response:
        skip, top = bounds_of(request)
        kind = target.kind
        assert kind is not None  # every list has one kind

        def listed(call: Call) -> tuple[list[Shown | RuleProperties], bool]:
            found = self._management.listed(call, kind, target.names)
            page = found[skip : skip + top]
            shown = [self._shown(call, each, target.below(each.name), request) for each in page]
            return shown, top > 0 and len(found) > skip + top

        page, has_more = await self._ask(target, listed)
        above = request.segments if target.names else ()
        entries = [entry_of(each, url(request, *above, _name_of(each)), self._now()) for each in page]
        document = feed_document(
            title_of(kind),
            list_url(request, skip, top),
            list_url(request, skip + top, top) if has_more else None,
            entries,
            self._context.name,
        )
        return Response(200, document, FEED_TYPE)

    # ------------------------------------------------------------------ change

    async def _put(self, request: Request, target: Target, grant: Grant, version: str | None) -> Response:
        element = described(request.body)
        kind = kind_of(element)
        if (target.kind or kind) is not kind or len(target.names) != kind.name_count:
            raise InvalidOperationError(
                f"SubCode=40000. {'/'.join(target.names)} is not a {kind}: send a description of the kind in the path"
            )
        address = EntityAddress(kind, target.names)
        properties = read_properties(element, target.names[-1])
        self._check_supplementary(request, properties, grant)
        properties = _with_keys(properties)
        if "if-match" in request.headers:
            return await self._update(request, address, properties)
        if version is None and isinstance(properties, QueueProperties | TopicProperties):
            properties = replace(properties, enable_partitioning=None)  # the oldest version does not know it
        rule = read_default_rule(element) if kind is EntityKind.SUBSCRIPTION else None

        def create(call: Call) -> Shown | RuleProperties:
            made = self._checked(lambda: self._created(call, address, properties, rule, version), properties)
            return self._shown(call, made, target, request, is_new=True)

        shown = await self._ask(target, create)
        self._context.publish_change("entity.created", address)
        return self._entry(201, shown, request)

    async def _update(self, request: Request, address: EntityAddress, properties: EntityProperties) -> Response:
        target = Target(address.names, address.kind)

        def update(call: Call) -> Shown | RuleProperties:
            made = self._checked(lambda: self._management.update(call, address, properties), properties)
            return self._shown(call, made, target, request)

        shown = await self._ask(target, update)
        self._context.publish_change("entity.updated", address)
        return self._entry(200, shown, request)

    async def _delete(self, target: Target) -> Response:
        def delete(call: Call) -> EntityAddress:
            address = self._existing(target)
            self._management.delete(call, address)
            return address

        self._context.publish_change("entity.deleted", await self._ask(target, delete))
        return Response(200)

    def _created(
        self,
        call: Call,
        address: EntityAddress,
        properties: EntityProperties,
        rule: RuleProperties | None,
        version: str | None,
    ) -> EntityProperties:
        made = self._management.create(call, address, properties, api_version=version)
        if rule is None:
            return made
        try:
            self._management.delete(call, EntityAddress(EntityKind.RULE, (*address.names, DEFAULT_RULE_NAME)))
            self._management.create(call, EntityAddress(EntityKind.RULE, (*address.names, rule.name)), rule)
        except ServiceBusError:
            self._management.delete(call, address)
            raise
        return made

    def _checked(self, work: Callable[[], T], properties: EntityProperties) -> T:
        """Call `work`; report a missing destination as an error of the description."""
        try:
            return work()
        except MessagingEntityNotFoundError as error:
            directory = self._host.namespace.directory
            paths = (getattr(properties, name, None) for name in _SUPPLEMENTARY)
            if any(path is not None and directory.get(path) is None for path in paths):
                raise _MissingDestinationError(error.message) from error
            raise

    def _check_supplementary(self, request: Request, properties: EntityProperties, grant: Grant) -> None:
        for attribute, header in _SUPPLEMENTARY.items():
            path, token = getattr(properties, attribute, None), request.headers.get(header)
            if path is not None and token:
                given = self._context.authorizer.authenticate(token, self._context.clock.now())
                given.check(path, AccessRights.MANAGE)
            elif path is not None:
                grant.check(path, AccessRights.MANAGE)

    # ------------------------------------------------------------------ shared

    async def _ask(self, target: Target | None, work: Callable[[Call], T]) -> T:
        path = "/".join(target.names[:1]) if target is not None else ""
        return await self._host.perform(Operation.MANAGE, path or None, work, timeout_s=TIMEOUT_S)

    def _existing(self, target: Target) -> EntityAddress:
        """The address of a target. Whether a path alone names a queue or a topic depends on the existing entity."""
        if target.kind is not None:
            return EntityAddress(target.kind, target.names)
        entity = self._host.namespace.directory.get(target.names[0])
        is_topic = entity is not None and isinstance(entity.description, TopicProperties)
        return EntityAddress(EntityKind.TOPIC if is_topic else EntityKind.QUEUE, target.names)

    def _shown(
        self, call: Call, properties: EntityProperties, target: Target, request: Request, *, is_new: bool = False
    ) -> Shown | RuleProperties:
        if isinstance(properties, RuleProperties):
            return properties
        runtime = self._management.runtime(call, self._existing(target))
        return Shown(properties, runtime, f"sb://{request.authority}/", is_new)

    def _entry(self, status: int, shown: Shown | RuleProperties, request: Request) -> Response:
        entry = entry_of(shown, url(request, *request.segments), self._now())
        return Response(status, entry_document(entry, self._context.name), ENTRY_TYPE)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._context.clock.now(), UTC)


def _covered(grant: Grant, scopes: Sequence[str]) -> str:
    """The first path that a token covers; the first of all if it covers none."""
    return next((scope for scope in scopes if grant.covers(scope)), scopes[0])


def _name_of(shown: Shown | RuleProperties) -> str:
    return shown.description.name if isinstance(shown, Shown) else shown.name


def _with_keys(properties: EntityProperties) -> EntityProperties:
    """The description with keys in its authorization rules; missing keys are generated, times are not."""
    if isinstance(properties, RuleProperties | SubscriptionProperties) or not properties.authorization_rules:
        return properties
    return replace(properties, authorization_rules=[_with_key(rule) for rule in properties.authorization_rules])


def _with_key(rule: AuthorizationRule) -> AuthorizationRule:
    return replace(
        rule,
        primary_key=rule.primary_key or b64encode(token_bytes(32)).decode(),
        secondary_key=rule.secondary_key or b64encode(token_bytes(32)).decode(),
    )
