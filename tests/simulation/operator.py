"""The operator of the world: makes its entities, applies the incidents to them, and heals everything."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any, Final

from sbclient import clock
from sbclient.amqp import encode_message
from sbclient.broker.faults import Call, NoAnswer
from sbclient.emulator.faults import WireFault, WireFaultKind
from sbclient.entities import (
    DEFAULT_RULE_NAME,
    EntityAddress,
    EntityAvailabilityStatus,
    EntityKind,
    EntityProperties,
    EntityStatus,
    QueueProperties,
    RuleProperties,
    SqlRuleAction,
    SubscriptionProperties,
    TopicProperties,
    TrueRuleFilter,
)
from sbclient.errors import ServiceBusError
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage
from sbclient.pairing.provisioning import backlog_queue
from sbclient.rules.backlog import backlog_queue_names, session_backlog_queue_names
from sbclient.testing import Fault, FaultKind, MemoryPair, Operation
from tests.simulation.census import count_of, stored, uids_in
from tests.simulation.consumer import AUDIT, SUBSCRIPTION
from tests.simulation.history import CANARY, FORGED, History, uid_of
from tests.simulation.network import Network
from tests.simulation.plan import Lane, Plan
from tests.simulation.strangers import VANDALIZED, own_rule
from tests.simulation.weather import Incident

FORGERIES: Final[Sequence[dict[str, Any]]] = (
    {},
    {"x-ms-path": 7},
    {"x-ms-path": "pair-7/x-servicebus-transfer/0"},
    {"x-ms-path": "//"},
    {"x-ms-path": "orders", "x-ms-timetolive": "a while"},
    {"x-ms-path": "orders", "x-ms-sessionid": 5},
    {"x-ms-path": "orders", "x-ms-scheduledenqueuetimeutc": "tomorrow"},
)

GAP_BYTES: Final = 110
"""The gap of a full entity: a ping fits into it, and most messages do not."""

CREATED_AFTER: Final = 8
"""Tries of a management request that only some faults swallow."""

Undo = Callable[[], bool]
"""Puts something right again; False if the management side could not be reached."""


class Operator:
    """One for each run; it asks the broker directly, by no wire.

    Attributes:
        backlog_queues: the plain ones, by name; `session_backlog_queues` the others.
        forged: how many forged messages lie in the backlog.
        slowest_s: the longest that an answer is held up.
    """

    def __init__(
        self, plan: Plan, pair: MemoryPair, history: History, networks: Mapping[str, Network] | None = None
    ) -> None:
        self._networks = networks or {}
        self._plan = plan
        self._pair = pair
        self._history = history
        self._random = Random(f"operator {plan.seed}")
        self._undo: dict[Incident, Undo] = {}
        self._active: dict[Incident, list[Fault]] = {}
        name = plan.options.primary_name or pair.primary.namespace.name
        count = plan.options.backlog_queue_count
        self.backlog_queues = backlog_queue_names(name, count)
        self.session_backlog_queues = session_backlog_queue_names(name, count) if plan.is_ordered else []
        self.forged = 0
        self._unaudited: set[str] = set()

    # -- entities ------------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Make every destination, and the backlog queues where clients may not."""
        for lane in self._plan.lanes:
            self._create(lane, self._pair.primary)
            if lane.name in self._plan.elsewhere:
                self._create(lane, self._pair.secondary)
        if "malformed_frames" in self._plan.kinds:
            for name in VANDALIZED:
                self._manage(self._pair.primary, "create", _queue(name), QueueProperties(name))
        for incident in self._plan.incidents:
            if incident.what == "odd":
                self._make_odd(incident)
        plan = self._plan
        if plan.options.provision != "create" or plan.has_partitioned_backlog or plan.backlog_lock_s is not None:
            self._build_backlog()

    def _build_backlog(self) -> None:
        plan = self._plan
        for names, sessions in ((self.backlog_queues, False), (self.session_backlog_queues, True)):
            for name in names:
                usual = backlog_queue(name, requires_session=sessions)
                lock = usual.lock_duration if plan.backlog_lock_s is None else timedelta(seconds=plan.backlog_lock_s)
                made = replace(usual, enable_partitioning=plan.has_partitioned_backlog, lock_duration=lock)
                self._manage(self._pair.secondary, "create", _queue(name), made)

    def _create(self, lane: Lane, host: BrokerHost) -> None:
        """Make the entities of a lane."""
        for address, properties in descriptions(lane):
            is_made = self._made(host, address, properties)
            if address.names[-1] == AUDIT:
                for name in lane.rules:
                    action = SqlRuleAction(f"SET tag = '{name}'") if name.startswith("tag-") else None
                    rule = RuleProperties(name, filter=TrueRuleFilter(), action=action)
                    is_made &= self._made(host, EntityAddress(EntityKind.RULE, (*address.names, name)), rule)
                default = EntityAddress(EntityKind.RULE, (*address.names, DEFAULT_RULE_NAME))
                self._manage(host, "delete", default)
                if not is_made:  # messages may have come before the last rule
                    self._unaudited.add(lane.name)

    def _made(self, host: BrokerHost, address: EntityAddress, properties: EntityProperties) -> bool:
        """Create an entity; a topic without its subscription would drop what it gets, so it is tried often."""
        return any(self._manage(host, "create", address, properties) is not None for _ in range(CREATED_AFTER))

    def remove_audits(self) -> dict[str, Counter[object]]:
        """Delete the audited subscriptions; return for each uid how many copies each rule made."""
        copies: dict[str, Counter[object]] = defaultdict(Counter)
        for lane in self._plan.lanes:
            for host in (self._pair.primary, self._pair.secondary) if lane.rules else ():
                is_audited = lane.name not in self._unaudited
                for one in stored(host, f"{lane.name}/Subscriptions/{AUDIT}") if is_audited else ():
                    properties = one.entry.content.application_properties
                    copies[uid_of(one.entry.content)][properties.get("RuleName"), properties.get("tag")] += 1
                address = EntityAddress(EntityKind.SUBSCRIPTION, (lane.name, AUDIT))
                self._manage(host, "delete", address)
        return copies

    def _manage(self, host: BrokerHost, what: str, *arguments: Any) -> Any:
        """Ask the management side; None if it cannot be reached, or refuses."""
        call = Call(Operation.MANAGE, clock.true_now())
        try:
            return getattr(host.namespace.management, what)(call, *arguments)
        except (ServiceBusError, NoAnswer):
            return None

    # -- weather -------------------------------------------------------------------------------------------------

    def begin(self, incident: Incident) -> None:
        """Let something go wrong."""
        self._history.note("weather", incident)
        if isinstance(incident.what, FaultKind):
            self._inject(incident, incident.what)
        elif incident.what == "disable":
            self._undo[incident] = self._changed(incident, status=self._random.choice(_CLOSED))
        elif incident.what == "update":
            lock_s = self._random.choice((5, 30, 120))
            self._undo[incident] = self._changed(
                incident, lock_duration=timedelta(seconds=lock_s), max_delivery_count=20
            )
        elif incident.what == "delete":
            self._delete(incident)
        elif incident.what == "fill":
            self._undo[incident] = self._filled(incident)
        elif incident.what == "lose_front_end":
            self._host(incident).namespace.lose_front_end(self._random.randrange(self._plan.front_ends))
        elif incident.what == "forge":
            self._forge(incident)
        elif incident.what == "cut":
            self._history.cuts[incident.side] = incident.probability
            self._undo[incident] = self._healed(incident.side)
        elif incident.what == "miss":
            for name in self._names(incident)[:1]:
                self._lose(self._host(incident), name)
        elif incident.what in _EMULATED:
            context = self._networks[incident.side].context
            fault = WireFault(
                _EMULATED[incident.what],
                incident.path,
                probability=incident.probability,
                until_at=clock.true_now() + max(incident.span_s, 1e-6),
            )
            context.inject(fault)
        elif incident.side in self._networks:
            self._networks[incident.side].begin(incident)

    def end(self, incident: Incident) -> None:
        """Put it right again."""
        for fault in self._active.pop(incident, []):
            self._host(incident).heal(fault)
        if incident.side in self._networks:
            self._networks[incident.side].end(incident)
        undo = self._undo.pop(incident, None)
        if undo is not None and not undo():
            self._undo[incident] = undo

    def end_all(self) -> None:
        self._pair.primary.heal()
        self._pair.secondary.heal()
        for network in self._networks.values():
            network.heal()
        for incident in [*self._active, *self._undo]:
            self.end(incident)
        self._history.note("weather ends")

    def clear_up(self) -> None:
        """Remove what was there for vandals."""
        if "malformed_frames" in self._plan.kinds:
            for name in VANDALIZED:
                self._manage(self._pair.primary, "delete", _queue(name))

    def _host(self, incident: Incident) -> BrokerHost:
        return self._pair.primary if incident.side == "primary" else self._pair.secondary

    def _names(self, incident: Incident) -> list[str]:
        """Return the entities of an incident; a backlog queue stands for the session queue with its index too."""
        if incident.path is None:
            return []
        if not incident.path.startswith("#"):
            return [incident.path]
        index = int(incident.path[1:])
        return [names[index] for names in (self.backlog_queues, self.session_backlog_queues) if index < len(names)]

    def _inject(self, incident: Incident, kind: FaultKind) -> None:
        host = self._host(incident)
        paths: list[str | None] = [*self._names(incident)] or [None]
        fragments = incident.fragments
        for path in paths:
            entity = host.namespace.directory.get(path) if path is not None else None
            if fragments is not None and entity is not None and not entity.is_partitioned:
                fragments = (0,)
            fault = incident.fault(path, math.inf)
            fault.fragments = fragments
            self._active.setdefault(incident, []).append(host.inject(fault))

    def _lane(self, incident: Incident) -> Lane | None:
        return next((lane for lane in self._plan.lanes if lane.name == incident.path), None)

    def _changed(self, incident: Incident, **changes: Any) -> Undo:
        """Change an entity's description; returns what changes it back."""
        lane, host = self._lane(incident), self._host(incident)
        changed: list[tuple[EntityAddress, EntityProperties]] = []
        for address, properties in descriptions(lane) if lane is not None else []:
            fitting = {name: value for name, value in changes.items() if hasattr(properties, name)}
            if self._manage(host, "update", address, replace(properties, **fitting)) is not None:
                changed.append((address, properties))  # as it was made: active

        def undo() -> bool:
            return None not in [self._manage(host, "update", address, properties) for address, properties in changed]

        return undo

    def _filled(self, incident: Incident) -> Undo:
        """Make entities so small that they are full, but for a gap."""
        entities = [self._host(incident).namespace.directory.get(path) for path in self._names(incident)]
        policies = [entity.body.policy for entity in entities if entity is not None]
        sizes_bytes = [policy.max_size_bytes for policy in policies]

        def resize(sizes_bytes: Sequence[int]) -> bool:
            for policy, size_bytes in zip(policies, sizes_bytes, strict=True):
                policy.max_size_bytes = size_bytes
            return True

        resize([GAP_BYTES] * len(policies))
        return lambda: resize(sizes_bytes)

    def _healed(self, side: str) -> Undo:
        def undo() -> bool:
            self._history.cuts.pop(side, None)
            return True

        return undo

    def _delete(self, incident: Incident) -> None:
        lane, host = self._lane(incident), self._host(incident)
        if lane is None:
            return
        self._lose(host, lane.name, EntityKind.TOPIC if lane.kind == "topic" else EntityKind.QUEUE)

        def undo() -> bool:
            self._create(lane, host)
            return all(self._manage(host, "get", address) is not None for address, _ in descriptions(lane))

        self._undo[incident] = undo

    def _lose(self, host: BrokerHost, path: str, kind: EntityKind = EntityKind.QUEUE) -> None:
        """Delete an entity with all that is in it."""
        below = [one.path for one in host.namespace.directory.all() if one.path.startswith(f"{path}/")]
        lost = sum((uids_in(host, each) for each in [path, *below]), uids_in(host, "-"))
        self._manage(host, "delete", EntityAddress(kind, (path,)))
        if host.namespace.directory.get(path) is None:
            for uid, count in lost.items():
                self._history.deleted[uid] += count
            side = "primary" if host is self._pair.primary else "secondary"
            for each in (path, *below):
                self._history.deleted_at[side, each] = self._history.now()
            for hold in self._history.session_holds:
                if hold.side == side and hold.path in (path, *below):
                    hold.ended_at = min(hold.ended_at, self._history.now())

    def _make_odd(self, incident: Incident) -> None:
        """Create a backlog queue in advance, with unusual options."""
        for name, sessions in zip(self._names(incident), (False, True), strict=False):
            odd = replace(
                backlog_queue(name, requires_session=sessions),
                lock_duration=timedelta(seconds=self._random.choice((5, 20))),
                enable_partitioning=self._random.random() < 0.5,
            )
            self._manage(self._host(incident), "create", _queue(name), odd)

    def _forge(self, incident: Incident) -> None:
        host, path = self._host(incident), self._names(incident)[0]
        message = ServiceBusMessage(
            f"{FORGED}-{self.forged}|{CANARY}", application_properties=self._random.choice(FORGERIES), message_id="f"
        )
        call = Call(Operation.SEND, clock.true_now())
        try:
            host.namespace.send(call, path, [encode_message(message)])
        except (ServiceBusError, NoAnswer):
            return
        self.forged += 1

    # -- what the management side says ---------------------------------------------------------------------------

    def survey(self) -> None:
        """Compare the counts and the status that the broker tells with what is there."""
        for lane in self._plan.lanes:
            for address, _ in descriptions(lane):
                path = "/Subscriptions/".join(address.names)
                entity = self._pair.primary.namespace.directory.get(path)
                if entity is None:
                    continue
                lost = self._unreachable(lane.name, len(entity.body.fragments))
                self._survey_counts(address, path, [n for n in range(len(entity.body.fragments)) if n not in lost])
                self._survey_status(address, path, lost)

    def _survey_counts(self, address: EntityAddress, path: str, reached: list[int]) -> None:
        result = self._manage(self._pair.primary, "runtime", address)
        if result is None:
            return
        for name, count in count_of(self._pair.primary, path, reached).items():
            if getattr(result, name) != count:
                self._history.violated("I17", f"{path} reports {name} {getattr(result, name)} and holds {count}")

    def _survey_status(self, address: EntityAddress, path: str, lost: set[int]) -> None:
        result = self._manage(self._pair.primary, "get", address)
        expected = EntityAvailabilityStatus.LIMITED if lost else EntityAvailabilityStatus.AVAILABLE
        if result is not None and result.availability_status is not expected:
            self._history.violated(
                "I17", f"{path} reports {result.availability_status} while fragments {sorted(lost)} cannot be reached"
            )

    def _unreachable(self, path: str, fragment_count: int) -> set[int]:
        dead = (FaultKind.DOWN, FaultKind.HANG)
        return {
            index
            for incident, faults in self._active.items()
            if incident.what in dead
            and incident.operations is None
            and incident.side == "primary"
            and incident.path == path
            for fault in faults
            for index in fault.fragments or ()
            if index < fragment_count
        }


_EMULATED: Final = {
    "detach": WireFaultKind.DETACH,
    "unanswered": WireFaultKind.DROP_ACKNOWLEDGEMENT,
    "busy": WireFaultKind.SERVER_BUSY,
}

_CLOSED: Final = (EntityStatus.DISABLED, EntityStatus.SEND_DISABLED, EntityStatus.RECEIVE_DISABLED)


def _audit(lane: Lane) -> list[tuple[EntityAddress, SubscriptionProperties]]:
    """A subscription whose copies are counted at the end, and never received."""
    properties = SubscriptionProperties(AUDIT, dead_lettering_on_message_expiration=True)
    return [(EntityAddress(EntityKind.SUBSCRIPTION, (lane.name, AUDIT)), properties)]


def _queue(name: str) -> EntityAddress:
    return EntityAddress(EntityKind.QUEUE, (name,))


def descriptions(lane: Lane) -> list[tuple[EntityAddress, QueueProperties | TopicProperties | SubscriptionProperties]]:
    """The entities of a lane, as they are created."""
    lock = timedelta(seconds=lane.lock_s)
    window = timedelta(minutes=10) if lane.window_s is None else timedelta(seconds=lane.window_s)
    if lane.kind == "topic":
        return [
            (
                EntityAddress(EntityKind.TOPIC, (lane.name,)),
                TopicProperties(
                    lane.name, authorization_rules=[own_rule(lane.name)], enable_partitioning=lane.is_partitioned
                ),
            ),
            (
                EntityAddress(EntityKind.SUBSCRIPTION, (lane.name, SUBSCRIPTION)),
                SubscriptionProperties(
                    SUBSCRIPTION,
                    lock_duration=lock,
                    max_delivery_count=lane.max_deliveries,
                    dead_lettering_on_message_expiration=lane.dead_letters_expired,
                ),
            ),
            *(_audit(lane) if lane.rules else ()),
        ]
    return [
        (
            _queue(lane.name),
            QueueProperties(
                lane.name,
                authorization_rules=[own_rule(lane.name)],
                enable_partitioning=lane.is_partitioned,
                requires_session=lane.requires_session,
                requires_duplicate_detection=lane.detects_duplicates,
                duplicate_detection_history_time_window=window,
                lock_duration=lock,
                max_delivery_count=lane.max_deliveries,
                dead_lettering_on_message_expiration=lane.dead_letters_expired,
            ),
        )
    ]
