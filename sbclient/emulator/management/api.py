"""The management API: HTTP requests that create, read, update and delete the entities of a namespace.

Laws (source: the service's documents and recorded answers, unless said otherwise):

1. A request needs the Manage right on its entity. Requests about the namespace and about lists need it on the
   namespace; a token for the address of the list, such as `$Resources/Queues`, is sufficient as well.
2. PUT creates an entity; with an If-Match header it updates one. Creating an entity that exists is a conflict.
3. Forwarding also needs Manage on the destination, by the token of the request or by a supplementary one.
4. A GET for an entity that does not exist gets an empty list of public services, unless its topic exists.
5. Answers about an entity that existed before the request have an ETag.
6. 500 and 503 mean "try again". A namespace that is down does not answer.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from secrets import token_bytes
from typing import Final, TypeVar
from urllib.parse import quote

from sbclient import clock
from sbclient.broker.descriptions import SettingError
from sbclient.broker.directory import Entity
from sbclient.broker.entry import utc_datetime
from sbclient.broker.faults import Call, Operation, busy
from sbclient.broker.management import Management
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.management.atom import (
    ENTRY_TYPE,
    FEED_TYPE,
    described,
    entry_document,
    entry_of,
    feed_document,
    public_list,
    read_default_rule,
    read_properties,
)
from sbclient.emulator.management.atom_descriptions import Answer, Sent, Shown, read_sent
from sbclient.emulator.management.errors import Asked, refusal_of
from sbclient.emulator.management.filters import Listed, read_filter
from sbclient.emulator.management.paths import (
    Target,
    VerbError,
    bounds_of,
    check_method,
    check_right,
    next_url,
    target_of,
    title_of,
    url,
    version_of,
    version_query,
)
from sbclient.emulator.management.xml import read_xml
from sbclient.emulator.net.http_messages import NoResponse, Request, Response
from sbclient.emulator.sas import Grant
from sbclient.entities import (
    DEFAULT_RULE_NAME,
    NEVER,
    AccessRights,
    AuthorizationRule,
    EntityAddress,
    EntityKind,
    EntityProperties,
    NamespaceProperties,
    QueueProperties,
    RuleProperties,
    SubscriptionProperties,
    TopicProperties,
    kind_of,
)
from sbclient.errors import (
    InvalidOperationError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
)
from sbclient.formats.description_tables import KINDS
from sbclient.rules.entity_path import split_sub_queue
from sbclient.telemetry.log import get_logger

log = get_logger(__name__)

T = TypeVar("T")

TIMEOUT_S: Final = 60.0
NAMESPACE_INFO: Final = "$namespaceinfo"

_ONLY_HTTPS: Final = {"Strict-Transport-Security": "max-age=0"}
"""As the service, but no browser may refuse plain HTTP to this machine from now on."""

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
        asked, entity = self._asked(request)
        headers = {}
        try:
            if entity is not None:
                headers["ETag"] = str((utc_datetime(entity.updated_at) - NEVER) // timedelta(microseconds=1) * 10)
            answer = await self._respond(request, asked)
        except ServiceBusConnectionError as error:
            raise NoResponse from error
        except ServiceBusError as error:
            if isinstance(error, MessagingEntityNotFoundError) and request.method == "GET" and asked.topic is None:
                answer = Response(200, public_list(self._now()), FEED_TYPE)
            else:
                answer = refusal_of(error, self._now(), asked)
            if isinstance(error, SettingError):
                self._context.publish("entity.refused", path="/".join(request.segments), reason=error.reason)
            if isinstance(error, ServiceBusAuthenticationError | ServiceBusAuthorizationError):
                headers = {}  # a client without the right learns nothing of the entity
        if self._context.wire_faults.drops_acknowledgement("/".join(request.segments), clock.now()):
            raise NoResponse
        is_about_namespace = request.segments and (asked.target is None or not asked.target.names)
        if answer.status != 200 or not is_about_namespace:
            headers |= _ONLY_HTTPS
        return replace(answer, headers={**answer.headers, **headers})

    def _asked(self, request: Request) -> tuple[Asked, Entity | None]:
        """What a request is about, and the queue or topic that its path belongs to, if that exists."""
        asked = Asked(request, self._context.name)
        try:
            target = target_of(request.segments)
        except InvalidOperationError:
            return asked, None
        path = split_sub_queue(target.names[0])[0] if target.names else ""
        entity = self._host.namespace.directory.get(path)
        owner = None if entity is None else f"{kind_of(entity.description).capitalize()}:{entity.path}"
        return asked._replace(target=target, owner=owner), entity

    async def _respond(self, request: Request, asked: Asked) -> Response:
        if self._context.wire_faults.is_busy("/".join(request.segments), clock.now()):
            raise busy(self._context.name)
        grant = self._grant(request)
        version = version_of(request)
        if [segment.casefold() for segment in request.segments] == [NAMESPACE_INFO]:
            return await self._namespace(request, grant)
        if not request.segments and request.method == "GET":
            grant.check(_covered(grant, ("",)), AccessRights.MANAGE)
            return Response(200, public_list(self._now()), FEED_TYPE)
        target = target_of(request.segments)
        self._check_right(request, target, grant)
        if target.is_list:
            check_method(request, "GET")
            return await self._list(request, target)
        check_method(request, "GET", "PUT", "DELETE")
        if request.method == "PUT":
            return await self._put(request, target, grant, version)
        if asked.owner is not None and split_sub_queue(target.names[0])[1] is not None:
            raise VerbError(f"{target.names[0]} is a sub-queue, which only {asked.owner} describes")
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
        return authorizer.authenticate(token, clock.now())

    # ------------------------------------------------------------------ get and list

    async def _namespace(self, request: Request, grant: Grant) -> Response:
        grant.check(_covered(grant, ("", NAMESPACE_INFO)), AccessRights.MANAGE)
        check_method(request, "GET")
        namespace = await self._ask(None, self._management.namespace)
        return self._entry(200, namespace, request)

    async def _get(self, request: Request, target: Target) -> Response:
        def get(call: Call) -> Shown | RuleProperties:
            return self._shown(call, self._management.get(call, self._existing(target)), target, request)

        return self._entry(200, await self._ask(target, get), request)

    async def _list(self, request: Request, target: Target) -> Response:
        skip, top = bounds_of(request)
        kind = target.kind
        assert kind is not None  # every list has one kind

        test = read_filter(request.query["$filter"], kind) if request.query.get("$filter") else None

        def listed(call: Call) -> tuple[list[Shown | RuleProperties], bool]:
            if test is None:
                found = self._management.listed(call, kind, target.names, skip=skip, most=top + 1)
            else:
                every = self._management.listed(call, kind, target.names)
                found = [each for each in every if test(self._listed(call, each, target))][skip : skip + top + 1]
            shown = [self._shown(call, each, target.below(each.name), request) for each in found[:top]]
            return shown, len(found) > top

        page, has_more = await self._ask(target, listed)
        query = version_query(request)
        above, link = (request.segments, request.segments[-1]) if target.names else ((), "..")
        entries = []
        for each in page:
            entry = entry_of(each, self._now())
            address = quote(entry.name, safe="$/") + (query and f"?{query}")
            entries.append((entry, url(request, *above, entry.name, query=query), f"{link}/{address}"))
        document = feed_document(
            title_of(kind),
            url(request, *request.segments),
            next_url(request, skip + top) if has_more else None,
            entries,
            self._context.name,
            self._now(),
        )
        return Response(200, document, FEED_TYPE)

    def _listed(self, call: Call, properties: EntityProperties, target: Target) -> Listed:
        address = EntityAddress(kind_of(properties), target.below(properties.name).names)
        return Listed(properties, cache(lambda: self._management.runtime(call, address)))

    # ------------------------------------------------------------------ change

    async def _put(self, request: Request, target: Target, grant: Grant, version: str) -> Response:
        element = described(await read_xml(request.body))
        kind = KINDS[element.name]
        if (target.kind or kind) is not kind or len(target.names) != kind.name_count:
            raise InvalidOperationError(
                f"SubCode=40000. {'/'.join(target.names)} is not a {kind}: send a description of the kind in the path"
            )
        address = EntityAddress(kind, target.names)
        sent = read_sent(element, version)
        properties = read_properties(sent, target.names[-1])
        self._check_supplementary(request, properties, grant)
        properties = _with_keys(properties)
        if "if-match" in request.headers:
            return await self._update(request, address, properties, sent)
        if not version and isinstance(properties, QueueProperties | TopicProperties):
            properties = replace(properties, enable_partitioning=None)  # the oldest version does not know it
        rule = read_default_rule(sent)

        ignored: list[str] = []

        def create(call: Call) -> Shown | RuleProperties:
            made = self._checked(lambda: self._created(call, address, properties, rule, version), properties)
            ignored.extend(self._keep(address, sent))
            return self._shown(call, made, target, request, Answer.CREATION)

        shown = await self._ask(target, create)
        self._context.publish_change("entity.created", address)
        self._report_ignored(address, ignored)
        return self._entry(201, shown, request, Answer.CREATION)

    async def _update(
        self, request: Request, address: EntityAddress, properties: EntityProperties, sent: Sent
    ) -> Response:
        target = Target(address.names, address.kind)
        ignored: list[str] = []

        def update(call: Call) -> Shown | RuleProperties:
            made = self._checked(lambda: self._management.update(call, address, properties), properties)
            ignored.extend(self._keep(address, sent))
            return self._shown(call, made, target, request, Answer.UPDATE)

        shown = await self._ask(target, update)
        self._context.publish_change("entity.updated", address)
        self._report_ignored(address, ignored)
        return self._entry(200, shown, request, Answer.UPDATE)

    def _keep(self, address: EntityAddress, sent: Sent) -> Sequence[str]:
        """Keep what was sent; returns the names of elements that are not applied, if they are not those of before."""
        if address.kind is EntityKind.RULE:
            return sent.ignored_names
        entity = self._host.namespace.directory.at(address)
        before, entity.sent = entity.sent, sent
        is_known = before is not None and sent.ignored_names == before.ignored_names
        return () if is_known else sent.ignored_names

    def _report_ignored(self, address: EntityAddress, names: Sequence[str]) -> None:
        """Report elements that Service Bus would not apply, in the log and to the page."""
        if names:
            log.warning(
                "emulator.elements_ignored",
                "Service Bus would not apply {elements} of {entity}: these elements follow later ones of the schema",
                entity=str(address),
                elements=", ".join(names),
            )
            self._context.publish("entity.elements_ignored", path="/".join(address.names), elements=list(names))

    async def _delete(self, target: Target) -> Response:
        def delete(call: Call) -> EntityAddress:
            address = self._existing(target)
            self._management.delete(call, address)
            return address

        self._context.publish_change("entity.deleted", await self._ask(target, delete))
        return Response(200, content_type="")

    def _created(
        self,
        call: Call,
        address: EntityAddress,
        properties: EntityProperties,
        rule: RuleProperties | None,
        version: str,
    ) -> EntityProperties:
        made = self._management.create(call, address, properties, api_version=version or None)
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
                given = self._context.authorizer.authenticate(token, clock.now())
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
        self,
        call: Call,
        properties: EntityProperties,
        target: Target,
        request: Request,
        answer: Answer = Answer.GET,
    ) -> Shown | RuleProperties:
        if isinstance(properties, RuleProperties):
            return properties
        address = self._existing(target)
        sent = self._host.namespace.directory.at(address).sent
        runtime = self._management.runtime(call, address)
        return Shown(properties, runtime, f"sb://{request.authority}/", version_of(request), sent, answer)

    def _entry(
        self,
        status: int,
        shown: Shown | RuleProperties | NamespaceProperties,
        request: Request,
        answer: Answer = Answer.GET,
    ) -> Response:
        entry = entry_of(shown, self._now(), answer)
        is_read_below_topic = answer is Answer.GET and not entry.has_author
        address = url(request, *request.segments, scheme="sb" if is_read_below_topic else "https")
        return Response(status, entry_document(entry, address, self._context.name), ENTRY_TYPE)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(clock.now(), UTC)


def _covered(grant: Grant, scopes: Sequence[str]) -> str:
    """The first path that a token covers; the first of all if it covers none."""
    return next((scope for scope in scopes if grant.covers(scope)), scopes[0])


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
