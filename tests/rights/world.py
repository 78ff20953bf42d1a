"""A namespace that holds something of everything that a right protects, and a print of all of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from random import Random
from typing import Any, Final
from uuid import UUID

from sbclient import clock
from sbclient.amqp import encode_message
from sbclient.broker.entry import Entry
from sbclient.broker.faults import Call, Operation
from sbclient.delivery import ServiceBusReceiveMode, Settlement, SettleMode
from sbclient.emulator.context import NamespaceContext, entity_rules_of
from sbclient.emulator.control.namespace_state import state_of
from sbclient.emulator.faults import WireFaults
from sbclient.emulator.page.namespace_registry import NamespaceRegistry
from sbclient.emulator.router import Router
from sbclient.emulator.sas import AuthorizationMode, Authorizer
from sbclient.entities import AccessRights, AuthorizationRule, CorrelationRuleFilter, EntityKind
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage
from sbclient.rules.entity_path import subscription_path
from tests.emulator.amqp.client import create

QUEUE: Final = "q1"
DESTINATION: Final = "q2"
SESSIONS: Final = "s1"
TOPIC: Final = "t1"
SUBSCRIPTION: Final = subscription_path(TOPIC, "sub")
BACKLOG: Final = "contoso/x-servicebus-transfer/0"
BELOW: Final = QUEUE + "/x"

OTHER: Final = "other"
NEIGHBOURS: Final = tuple(
    neighbour for path in (QUEUE, SESSIONS, TOPIC, BACKLOG) for neighbour in (path + "0", path + "/x")
)
"""Queues whose names begin as others do, or lie below them."""

SHORTER: Final = (QUEUE[:-1], SESSIONS[:-1], TOPIC[:-1])
QUEUES: Final = (QUEUE, DESTINATION, SESSIONS, BACKLOG, OTHER, *NEIGHBOURS, *SHORTER)
SUBSCRIPTIONS: Final = ("sub", "sub0", "su")
TOP_ENTITIES: Final = (*QUEUES, TOPIC)
"""Queues and topics: what may have keys of its own."""

KEY_NAME: Final = "k"
SECONDARY: Final = "secondary "
SESSION: Final = "a"
RULE: Final = "protected"
LATER: Final = datetime(2023, 12, 24, tzinfo=UTC)


def key_of(home: str) -> str:
    """The primary key of an entity's rule; of the namespace's for the empty path."""
    return f"key of {home or 'the namespace'}"


def rule_of(home: str, rights: Iterable[AccessRights]) -> AuthorizationRule:
    return AuthorizationRule(
        key_name=KEY_NAME,
        rights=sorted(rights),
        primary_key=key_of(home),
        secondary_key=SECONDARY + key_of(home),
    )


class World:
    """The namespace, with a rule of the same rights in every place that may have one.

    Attributes:
        locked: the lock token of a message of `QUEUE`; `locked_number` is its sequence number.
        deferred, scheduled: sequence numbers there.
    """

    def __init__(self, rights: frozenset[AccessRights], mode: AuthorizationMode) -> None:
        self.host = BrokerHost("contoso", random=Random(1))
        self.context = NamespaceContext(
            host=self.host,
            authorizer=Authorizer(
                mode, rules=[rule_of("", rights)], entity_rules=lambda path: entity_rules_of(self.host, path)
            ),
            wire_faults=WireFaults(Random(2)),
        )
        self.resets = 0
        registry = NamespaceRegistry()
        registry.add(self.context, self._reset)
        self.front = Router(self.context, registry)
        # Manage alone cannot be given to an entity; to the namespace it can, by a configuration.
        self._make_entities(frozenset(AccessRights) if AccessRights.MANAGE in rights else rights)
        self._fill()
        self.at_first = self.print()

    def _reset(self) -> None:
        self.resets += 1

    def _make_entities(self, rights: frozenset[AccessRights]) -> None:
        for path in QUEUES:
            create(
                self.host,
                EntityKind.QUEUE,
                path,
                authorization_rules=[rule_of(path, rights)],
                requires_session=path == SESSIONS,
            )
        create(self.host, EntityKind.TOPIC, TOPIC, authorization_rules=[rule_of(TOPIC, rights)])
        for name in SUBSCRIPTIONS:
            create(self.host, EntityKind.SUBSCRIPTION, TOPIC, name)
        create(self.host, EntityKind.RULE, TOPIC, "sub", RULE, filter=CorrelationRuleFilter(label="x"))

    def _fill(self) -> None:
        for path in (QUEUE, QUEUE, QUEUE, QUEUE, TOPIC, TOPIC, BACKLOG, BACKLOG, BELOW):
            self._send(path, ServiceBusMessage(f"secret of {path}"))
        for session in (SESSION, "b"):
            self._send(SESSIONS, ServiceBusMessage("secret", session_id=session))
        number, token = self._take(QUEUE)
        self._settle(QUEUE, token, SettleMode.DEFER)
        self.deferred = number
        for path in (QUEUE, SUBSCRIPTION, BACKLOG):
            self._settle(path, self._take(path)[1], SettleMode.DEAD_LETTER)
        self.locked_number, self.locked = self._take(QUEUE)
        later = ServiceBusMessage("secret", scheduled_enqueue_time_utc=LATER)
        (self.scheduled,) = self.host.namespace.schedule(self._call(Operation.SCHEDULE), QUEUE, [encode_message(later)])
        lock = self.host.namespace.accept_session(self._call(Operation.SESSION), SESSIONS, SESSION)
        assert lock is not None
        self.host.namespace.set_session_state(self._call(Operation.SESSION), SESSIONS, lock, b"secret state")
        self.host.namespace.release_session(self._call(Operation.SESSION), SESSIONS, lock)

    def _call(self, operation: Operation) -> Call:
        return Call(operation, clock.now())

    def _send(self, path: str, message: ServiceBusMessage) -> None:
        self.host.namespace.send(self._call(Operation.SEND), path, [encode_message(message)])

    def _take(self, path: str) -> tuple[int, UUID]:
        (entry,) = self.host.namespace.receive(
            self._call(Operation.RECEIVE), path, max_message_count=1, mode=ServiceBusReceiveMode.PEEK_LOCK
        )
        return entry.number, UUID(int=entry.token)

    def _settle(self, path: str, token: UUID, mode: SettleMode) -> None:
        self.host.namespace.settle(self._call(Operation.SETTLE), path, [token], Settlement(mode))

    # ------------------------------------------------------------------ what there is

    def print(self) -> str:
        """Everything: entities, descriptions, rules, messages with their states and locks, session states, faults."""
        namespace, now = self.host.namespace, clock.now()
        state = state_of(namespace, now)
        del state["operation_count"]
        found: list[Any] = [state, self.resets]
        for entity in namespace.directory.all():
            found.append(repr(entity.description))
            if entity.subscription is not None:
                found.append([repr(rule.properties) for rule in entity.subscription.rules.values()])
            for fragment in (fragment for body in entity.queues() for fragment in body.fragments):
                found.append([_print_of(entry) for entry in fragment.browse(now, 0)])
                if fragment.has_sessions:
                    ids = fragment.session_ids(now, state_set_after=None)
                    found.append(
                        [(session.state, session.token) for session in map(fragment._sessions.get, ids) if session]
                    )
        found += [repr(fault) for fault in namespace.faults.active(now)]
        found += [repr(fault) for fault in self.context.wire_faults.active(now)]
        return json.dumps(found, default=str)


def _print_of(entry: Entry) -> tuple[Any, ...]:
    return (
        entry.number,
        entry.state,
        entry.token,
        entry.locked_until,
        entry.delivery_count,
        bytes(entry.content).decode(),
    )
