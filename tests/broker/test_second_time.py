"""What holds the first time holds the second time: after an update, after a deletion, after a rollback."""

from __future__ import annotations

import math
from collections import Counter, deque
from contextlib import suppress
from copy import deepcopy
from dataclasses import fields, replace
from datetime import timedelta
from functools import partial
from gc import get_referents
from random import Random
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final, get_type_hints

import pytest

from sbclient import entities
from sbclient.broker.directory import path_of
from sbclient.broker.entry import Entry
from sbclient.broker.faults import FaultKind, Operation
from sbclient.broker.namespace import Namespace
from sbclient.broker.profile import BASIC_2021, PREM_2021, STD_2021, Profile
from sbclient.broker.transactions import Transaction
from sbclient.entities import (
    AccessRights,
    AuthorizationRule,
    CorrelationRuleFilter,
    EntityAddress,
    EntityKind,
    EntityProperties,
    EntityStatus,
    FalseRuleFilter,
    QueueProperties,
    RuleFilter,
    RuleProperties,
    SqlRuleAction,
    SqlRuleFilter,
    SubscriptionProperties,
    TopicProperties,
    TrueRuleFilter,
)
from sbclient.errors import MessageNotFoundError, ServiceBusError, ServiceBusInternalError, ServiceBusQuotaExceededError
from sbclient.message import ServiceBusMessageState
from tests.broker.driver import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    Driver,
    address,
    at,
    message,
    seconds,
    topic_address,
)
from tests.broker.test_atomic import fragment_state
from tests.payloads import encoded

RULES: Final = [AuthorizationRule(key_name=f"r{number}", rights=[AccessRights.SEND]) for number in range(13)]
REFUSED: Final[dict[str, list[Any]]] = {
    "auto_delete_on_idle": [seconds(299), 60],
    "authorization_rules": [RULES, [replace(RULES[0], rights=[AccessRights.MANAGE])], [RULES[0], RULES[0]]],
    "default_message_time_to_live": [timedelta(0), 5],
    "duplicate_detection_history_time_window": [seconds(19), timedelta(days=8)],
    "forward_dead_lettered_messages_to": ["nowhere"],
    "forward_to": ["nowhere", "e"],
    "lock_duration": [seconds(4), seconds(301)],
    "max_delivery_count": [0, 2**31, True],
    "max_message_size_in_kilobytes": [255, 1_000_000],
    "max_size_in_megabytes": [1000, 0],
    "status": [EntityStatus.CREATING],
    "user_metadata": ["x" * 1025],
}
DESCRIBED: Final = {
    EntityKind.QUEUE: (QueueProperties, EntityAddress(EntityKind.QUEUE, ("e",))),
    EntityKind.TOPIC: (TopicProperties, topic_address("e")),
    EntityKind.SUBSCRIPTION: (SubscriptionProperties, EntityAddress(EntityKind.SUBSCRIPTION, ("t", "s"))),
}


def test_a_value_of_each_setting_that_is_no_flag_is_refused() -> None:
    kinds = {name: kind for described, _ in DESCRIBED.values() for name, kind in get_type_hints(described).items()}
    free = [name for name, setting in entities.SETTINGS.items() if not setting.is_answer and kinds[name] != bool | None]
    assert [name for name in free if name not in REFUSED] == [], "add values beyond its range to REFUSED"


@pytest.mark.parametrize("kind", DESCRIBED)
@pytest.mark.parametrize("profile", [STD_2021, PREM_2021, BASIC_2021], ids=lambda profile: profile.name)
def test_an_update_is_refused_as_the_creation_is(profile: Profile, kind: EntityKind) -> None:
    described, where = DESCRIBED[kind]
    for name, value in ((name, value) for name, values in REFUSED.items() for value in values):
        if not hasattr(described("e"), name):
            continue
        broker = Driver(profile)
        if profile is not BASIC_2021:
            broker.topic()
        with pytest.raises(ServiceBusError) as first:
            broker.management.create(broker.call(Operation.MANAGE), where, described(where.names[-1], **{name: value}))
        if profile is BASIC_2021 and kind is not EntityKind.QUEUE:
            continue
        before = broker.management.create(broker.call(Operation.MANAGE), where, described(where.names[-1]))
        with pytest.raises(ServiceBusError) as second:
            broker.update(where, replace(before, **{name: value}))
        assert (type(second.value), str(second.value)) == (type(first.value), str(first.value))
        assert broker.get(where) == before, f"{name}={value!r}"


@pytest.mark.parametrize("kind", DESCRIBED)
@pytest.mark.parametrize("profile", [STD_2021, PREM_2021], ids=lambda profile: profile.name)
def test_an_update_leaves_the_rules_of_the_creation(profile: Profile, kind: EntityKind) -> None:
    """Also those that a subscription has from its topic, which is larger than others here."""
    described, where = DESCRIBED[kind]
    size = 4096 if profile is PREM_2021 else None
    broker = Driver(profile)
    broker.topic(max_message_size_in_kilobytes=size)
    given = {"max_message_size_in_kilobytes": size} if kind is not EntityKind.SUBSCRIPTION else {}
    made = broker.management.create(broker.call(Operation.MANAGE), where, described(where.names[-1], **given))

    def rules() -> dict[str, Any]:
        policy = broker.namespace.directory.find(path_of(where))[0].body.policy
        return {name: getattr(policy, name) for name in policy.__slots__}

    created = rules()
    for _ in range(2):
        broker.update(where, made)
        assert rules() == created


SETTINGS: Final[dict[str, list[Any]]] = {
    "auto_delete_on_idle": [None, seconds(300), seconds(700)],
    "dead_lettering_on_filter_evaluation_exceptions": [False, True],
    "dead_lettering_on_message_expiration": [False, True],
    "default_message_time_to_live": [None, seconds(15), seconds(90)],
    "duplicate_detection_history_time_window": [seconds(20), seconds(100), seconds(700)],
    "forward_dead_lettered_messages_to": [None, None, "end"],
    "forward_to": [None, None, None, "end"],
    "lock_duration": [seconds(5), seconds(30), seconds(300)],
    "max_delivery_count": [1, 2, 10],
    "max_size_in_megabytes": [1024, 2048],
    "status": [EntityStatus.ACTIVE, EntityStatus.ACTIVE, EntityStatus.SEND_DISABLED, EntityStatus.RECEIVE_DISABLED],
    "user_metadata": ["", "x"],
}
"""What an update may change: values whose effects differ within some minutes."""

STORED_ONLY = {
    *("authorization_rules", "enable_batched_operations", "enable_express", "filtering_messages_before_publishing"),
    *("max_message_size_in_kilobytes", "support_ordering"),
}
"""Settings that have no effect on what a broker of the Standard tier does with messages."""


def test_each_setting_that_can_be_updated_is_tried() -> None:
    settable = {name for name, each in entities.SETTINGS.items() if not (each.is_answer or each.is_fixed)}
    assert settable == SETTINGS.keys() | STORED_ONLY, "name it in SETTINGS, or in STORED_ONLY"


@pytest.mark.parametrize("seed", range(30))
def test_a_setting_has_the_effect_of_the_creation_when_it_is_updated(seed: int) -> None:
    random = Random(seed)
    detects, has_sessions = random.random() < 0.5, random.random() < 0.3
    of_queues = {"requires_session": has_sessions}
    kinds: list[tuple[type[Any], EntityAddress, dict[str, Any]]] = [
        (QueueProperties, address("q"), of_queues | {"requires_duplicate_detection": detects}),
        (TopicProperties, topic_address("t"), {"requires_duplicate_detection": detects}),
        (SubscriptionProperties, address("t/Subscriptions/s"), of_queues),
    ]
    wanted = [(*each, _settings(random, *each), _settings(random, *each)) for each in kinds]
    created, updated = Driver(seed=seed), Driver(seed=seed)
    for broker in (created, updated):
        broker.queue("end")
    for kind, where, fixed, settings, earlier in wanted:
        for broker, given in ((created, settings), (updated, earlier)):
            broker.management.create(broker.call(Operation.MANAGE), where, kind(where.names[-1], **fixed, **given))
    for _, where, _, settings, _ in wanted:
        updated.update(where, replace(updated.get(where), **settings))
    assert _policies(updated) == _policies(created)
    for step in range(60):
        choices = random.getrandbits(64)
        results = []
        for broker in (created, updated):
            try:
                results.append(_step(broker, Random(choices), has_sessions=has_sessions))
            except ServiceBusError as error:
                results.append((type(error), str(error)))
        assert results[1] == results[0], (step, wanted)


def _settings(random: Random, kind: type[Any], _: EntityAddress, fixed: dict[str, Any]) -> dict[str, Any]:
    known = {each.name for each in fields(kind)} - ({"forward_to"} if fixed.get("requires_session") else set())
    return {name: random.choice(values) for name, values in SETTINGS.items() if name in known}


def _policies(broker: Driver) -> dict[str, dict[str, Any]]:
    bodies = [body for path in SOURCES for body in broker.namespace.directory.find(path)[0].queues()]
    return {body.path: {name: getattr(body.policy, name) for name in body.policy.__slots__} for body in bodies}


def _step(broker: Driver, random: Random, *, has_sessions: bool) -> Any:
    path = random.choice(["q", "t/Subscriptions/s", "end", "q/$DeadLetterQueue", "t/Subscriptions/s/$DeadLetterQueue"])
    target = path.split("/")[0]
    match random.randrange(6):
        case 0 | 1:
            sent = message(f"{random.randrange(99)}", message_id=f"{random.randrange(9)}", session_id="s")
            return broker.send(target, sent).now
        case 2:
            broker.wait(random.choice((1.0, 10.0, 40.0, 350.0)))
            return broker.namespace.advance(broker.now)
        case 3:
            return [(str(each), each.state, each.delivery_count, each.expires_at_utc) for each in broker.browse(path)]
        case _:
            lock = broker.accept(path, "s") if has_sessions and path in ("q", "t/Subscriptions/s") else None
            how = random.choice((COMPLETE, ABANDON, ABANDON, DEFER, DEAD_LETTER, None))
            received = broker.receive(path, 2, lock=lock)
            if how is not None:
                broker.settle(path, *received, how=how, lock=lock)
            if lock is not None:
                broker.release(path, lock)
            return [(str(each), each.delivery_count, each.locked_until_utc) for each in received]


SPELLINGS: Final = ("Orders", "ORDERS", "orders", "orders/$DeadLetterQueue", "Orders/$deadletterqueue")


def test_an_entity_that_is_created_again_is_new_in_every_spelling() -> None:
    broker = Driver()
    for cycle in range(3):
        broker.queue("Orders")
        for path in SPELLINGS:
            assert broker.receive(path) == [], (cycle, path)
        for path in SPELLINGS[:3]:
            broker.send(path, message(path))
        assert sorted(map(str, broker.drain("oRDERS"))) == sorted(SPELLINGS[:3])
        broker.send("orders", message("left"))
        broker.delete(address("orders"))


FILTERS: Final[list[RuleFilter]] = [
    SqlRuleFilter("x = 1"),
    CorrelationRuleFilter(label="x"),
    TrueRuleFilter(),
    FalseRuleFilter(),
]
BAD_RULES: Final[list[dict[str, Any]]] = [
    {"filter": SqlRuleFilter("x = ")},
    {"filter": SqlRuleFilter("x" * 2000)},
    {"action": SqlRuleAction("SET = 1")},
]


@pytest.mark.parametrize("bad", BAD_RULES)
def test_an_update_of_a_rule_is_refused_as_the_creation_is(bad: dict[str, Any]) -> None:
    broker = Driver()
    broker.topic()
    broker.subscription()
    where = address("t/Subscriptions/s/$Rules/r")
    with pytest.raises(ServiceBusError) as first:
        broker.rule("t/Subscriptions/s", "r", **bad)
    good = broker.rule("t/Subscriptions/s", "r", filter=SqlRuleFilter("x = 1"))
    with pytest.raises(ServiceBusError) as second:
        broker.update(where, RuleProperties("r", **bad))
    assert (type(second.value), str(second.value)) == (type(first.value), str(first.value))
    assert broker.get(where) == good


def test_every_change_of_an_entity_needs_all_its_fragments() -> None:
    broker = Driver()
    broker.queue(enable_partitioning=True)
    broker.topic(enable_partitioning=True)
    broker.subscription()
    broker.rule("t/Subscriptions/s", "r", filter=SqlRuleFilter("x = 1"))
    described = listed(broker)
    entities: list[tuple[EntityAddress, Any]] = [
        (address("q"), QueueProperties("q", enable_partitioning=True)),
        (topic_address("t"), TopicProperties("t", enable_partitioning=True)),
        (address("t/Subscriptions/s"), SubscriptionProperties("s")),
        (address("t/Subscriptions/s/$Rules/r"), RuleProperties("r", filter=SqlRuleFilter("x = 2"))),
    ]
    broker.down(None, 3)
    for where, properties in entities:
        new = EntityAddress(where.kind, (*where.names[:-1], "new"))
        changes = [
            partial(broker.management.create, broker.call(Operation.MANAGE), new, replace(properties, name="new")),
            partial(broker.update, where, properties),
            partial(broker.delete, where),
        ]
        for change in changes:
            with pytest.raises(ServiceBusInternalError, match="needs all fragments"):
                change()
    broker.heal()
    assert listed(broker) == described


SIZES: Final = [(profile, size) for profile in (STD_2021, PREM_2021) for size in profile.sizes_in_megabytes]


@pytest.mark.parametrize(("profile", "size"), SIZES, ids=lambda value: getattr(value, "name", value))
def test_an_entity_that_is_updated_with_its_own_description_keeps_it(profile: Profile, size: int) -> None:
    broker = Driver(profile)
    rule = AuthorizationRule(key_name="r", rights=[AccessRights.SEND])
    for is_partitioned in (False, True):
        path = f"q{is_partitioned}"
        broker.queue(path, max_size_in_megabytes=size, enable_partitioning=is_partitioned, authorization_rules=[rule])
        created = broker.get(address(path))
        for _ in range(2):
            broker.wait(10)
            broker.update(address(path), broker.get(address(path)))
            assert broker.get(address(path)) == created
        (old,) = created.authorization_rules
        for number in (1, 2):
            broker.wait(10)
            more = [replace(old, rights=[AccessRights.LISTEN]), AuthorizationRule(key_name=f"n{number}", rights=[])]
            first, second = broker.update(address(path), replace(created, authorization_rules=more)).authorization_rules
            assert first.created_at_utc == old.created_at_utc
            assert second.created_at_utc == at(broker.now)
            assert (first.modified_at_utc == at(broker.now)) is (number == 1)


def test_a_description_is_the_broker_s_own_after_it_was_given_and_shown() -> None:
    broker = Driver()
    rights = [AccessRights.SEND]
    given = QueueProperties("q", authorization_rules=[AuthorizationRule(key_name="r", rights=rights)])
    shown = [broker.create("q", given)]
    stored = deepcopy(shown[0])
    for _ in range(2):
        shown += [broker.get(address("q")), *broker.management.listed(broker.call(Operation.MANAGE), EntityKind.QUEUE)]
        for each in (given, *shown):
            for rule in each.authorization_rules or ():
                rule.rights.append(AccessRights.LISTEN)
                rule.primary_key = "other"
            each.authorization_rules.append(RULES[3])
            each.lock_duration = seconds(5)
        assert broker.get(address("q")) == stored
        given = deepcopy(stored)
        shown = [broker.update(address("q"), given)]


def test_a_rule_is_the_broker_s_own_after_it_was_given_and_shown() -> None:
    broker = Driver()
    broker.topic()
    broker.subscription()
    where = address("t/Subscriptions/s/$Rules/r")
    for chosen in (CorrelationRuleFilter(properties={"x": 1}), SqlRuleFilter("x = @y", parameters={"@y": 1})):
        given: Any = RuleProperties("r", filter=chosen)
        shown: list[Any] = [broker.create("t/Subscriptions/s/$Rules/r", given)]
        stored = deepcopy(shown[0])
        for _ in range(2):
            listed = broker.management.listed(broker.call(Operation.MANAGE), EntityKind.RULE, ("t", "s"))
            shown += [broker.get(where), *(each for each in listed if each.name == "r")]
            for each in (given, *shown):
                values = each.filter.properties if isinstance(chosen, CorrelationRuleFilter) else each.filter.parameters
                values.clear()
            assert broker.get(where) == stored
            given = deepcopy(stored)
            shown = [broker.update(where, given)]
        broker.delete(where)


def test_a_copy_of_a_message_keeps_all_but_what_belongs_to_its_place() -> None:
    of_its_place: dict[str, Any] = {"number": 0, "token": 0, "was_scheduled": False}
    of_its_place |= {"state": ServiceBusMessageState.ACTIVE, "expires_at": math.inf, "locked_until": math.inf}
    entry = Entry(encoded(message()), 5)
    given = {name: f"{name} of the first" for name in Entry.__slots__ if name not in ("content", "size_bytes")}
    for name, value in given.items():
        setattr(entry, name, value)
    for copy in (entry.moved(), entry.moved().moved()):
        assert {name: getattr(copy, name) for name in given} == given | of_its_place
        assert (copy.content, copy.size_bytes) == (entry.content, 5)


def hanging_on(namespace: Namespace) -> Counter[str]:
    """How many objects of each class, and entries in containers, a namespace refers to."""
    counts: Counter[str] = Counter()
    seen: set[int] = set()
    todo: list[Any] = [namespace]
    while todo:
        each = todo.pop()
        if id(each) in seen or isinstance(each, type | ModuleType | FunctionType | MethodType | Random | Profile):
            continue
        seen.add(id(each))
        if isinstance(each, dict | list | set | deque):
            counts[type(each).__name__] += 1
            counts["entries"] += len(each)
        elif type(each).__module__.startswith("sbclient."):
            counts[type(each).__name__] += 1
        todo += get_referents(each)
    return counts


@pytest.mark.parametrize("front_end_count", [1, 2])
def test_what_is_deleted_leaves_nothing(front_end_count: int) -> None:
    for seed in range(4):
        random = Random(seed)
        broker = Driver(front_end_count=front_end_count, seed=seed)
        empty = hanging_on(broker.namespace)
        for cycle in range(3):
            _use_and_delete(broker, random, f"e{cycle}")
            assert hanging_on(broker.namespace) == empty


def _use_and_delete(broker: Driver, random: Random, name: str) -> None:
    """Entities with all that a namespace keeps of them, in any state when they are deleted."""
    topic, queue, end, sub = f"t{name}", f"q{name}", f"z{name}", f"t{name}/Subscriptions/s"
    is_partitioned = random.random() < 0.5
    broker.queue(end, requires_duplicate_detection=True)
    broker.queue(queue, enable_partitioning=is_partitioned, requires_session=True)
    broker.topic(topic, enable_partitioning=is_partitioned)
    broker.subscription(topic, requires_session=random.random() < 0.5)
    broker.subscription(topic, "on", forward_to=end)
    broker.rule(sub, "r", filter=SqlRuleFilter("x = 1"), action=SqlRuleAction("SET y = 2"))
    broker.down(random.choice((queue, topic, None)), kind=FaultKind.SLOW, count=3, operations=[Operation.SEND])
    fault = broker.down(end, operations=[Operation.PEEK])
    for number in range(random.randrange(12)):
        for path in (queue, topic):
            broker.send(path, message("m", session_id=f"s{number % 3}", message_id=f"{number % 5}"))
        broker.schedule(queue, message("later", session_id="s", scheduled_enqueue_time_utc=at(broker.now + 50)))
        broker.send(end, message("m", message_id=f"{number % 5}"), front_end=number % 2)
        broker.wait(random.choice((0.0, 20.0, 40.0)))
        broker.namespace.advance(broker.now)
    for path, session in ((queue, True), (sub, random.random() < 0.5)):
        with suppress(ServiceBusError):  # there may be no session, or none is needed
            lock = broker.accept(path) if session else None
            for received in broker.receive(path, 3, lock=lock):
                if how := random.choice((COMPLETE, ABANDON, DEFER, DEAD_LETTER, None)):
                    broker.settle(path, received, how=how, lock=lock)
            if lock is not None:
                broker.set_state(path, lock, b"state")
    transaction = broker.begin()
    broker.send(end, message("in doubt"), transaction=transaction)
    broker.peek(queue)
    deleted = [topic_address(topic), address(queue), address(end)]
    random.shuffle(deleted)
    for where in deleted:
        broker.delete(where)
    broker.rollback(transaction)
    broker.heal(fault)
    broker.heal()
    broker.wait(86_400)
    broker.namespace.advance(broker.now)


SOURCES: Final = ("q", "t/Subscriptions/s")


@pytest.mark.parametrize("front_end_count", [1, 2])
def test_an_entity_from_which_all_was_taken_is_as_a_new_one(front_end_count: int) -> None:
    for seed in range(20):
        random = Random(seed)
        broker = Driver(front_end_count=front_end_count, seed=seed)
        is_partitioned, has_sessions = random.random() < 0.5, random.random() < 0.5
        broker.queue("q", enable_partitioning=is_partitioned, requires_session=has_sessions, max_delivery_count=3)
        broker.topic("t", enable_partitioning=is_partitioned, requires_duplicate_detection=True)
        broker.subscription("t", requires_session=has_sessions, max_delivery_count=3)
        new = _state(broker)
        for _ in range(3):
            for _ in range(40):
                for path in SOURCES:
                    _use(broker, random, path, has_sessions=has_sessions)
                broker.wait(random.choice([0.0, 1.0, 45.0]))
            broker.wait(3600.0)
            for path in SOURCES:
                _empty(broker, path, has_sessions=has_sessions)
                _empty(broker, f"{path}/$DeadLetterQueue", has_sessions=False)
            assert _state(broker) == new


def _state(broker: Driver) -> dict[str, Any]:
    """Of all fragments, without the number of messages that have arrived."""
    bodies = [body for path in SOURCES for body in broker.namespace.directory.find(path)[0].queues()]
    found = {f"{body.path} {each.index}": fragment_state(each) for body in bodies for each in body.fragments}
    for state in found.values():
        scheduled, _, deferred = state.pop("counts")
        state["counts"] = scheduled, deferred
    return found | {path: broker.sessions(path) for path in SOURCES if broker.body(path).requires_session}


def _use(broker: Driver, random: Random, path: str, *, has_sessions: bool) -> None:
    session_id = random.choice("xyz") if has_sessions else None
    sent = message("m" * random.randrange(9), message_id=f"{random.randrange(50)}", session_id=session_id)
    target = path.split("/")[0]
    match random.randrange(5):
        case 0:
            sent.scheduled_enqueue_time_utc = at(broker.now + random.choice([1.0, 60.0]))
            numbers = broker.schedule(target, sent)
            if random.random() < 0.5:
                with suppress(MessageNotFoundError):  # it was a duplicate
                    broker.cancel(target, *numbers)
        case 1 | 2:
            sent.time_to_live = seconds(random.choice([20.0, 100.0, 1e6]))
            broker.send(target, sent, front_end=random.randrange(2))
        case _:
            lock = broker.accept(path) if has_sessions else None
            if has_sessions and lock is None:
                return
            for received in broker.receive(path, random.randrange(1, 4), lock=lock, front_end=random.randrange(2)):
                if how := random.choice((COMPLETE, ABANDON, DEFER, DEAD_LETTER, None)):
                    broker.settle(path, received, how=how, lock=lock)
            if lock is not None:
                broker.set_state(path, lock, random.choice([b"state", b"", None]))
                if random.random() < 0.5:
                    broker.release(path, lock)


def _empty(broker: Driver, path: str, *, has_sessions: bool) -> None:
    """Take every message, and delete the states of sessions, in one way or the other."""
    for session_id in broker.sessions(path) if has_sessions else [None]:
        lock = broker.held(path, session_id) if session_id is not None else None
        broker.drain(path, lock=lock)
        left = [each.sequence_number for each in broker.browse(path) if each.session_id == session_id or not lock]
        for number in left:
            with suppress(MessageNotFoundError):  # it has expired
                broker.settle(path, *broker.deferred(path, number, lock=lock), lock=lock)
        if lock is not None:
            broker.set_state(path, lock, None if broker.state(path, lock) == b"state" else b"")
            broker.release(path, lock)


def test_rules_and_bytes_are_counted_whatever_was_there_before() -> None:
    for seed in range(60):
        _change_rules(Random(seed))


def _change_rules(random: Random) -> None:
    profile = replace(STD_2021, max_sql_filters=4, max_correlation_filters=2, max_subscriptions=2)
    limits = profile.max_sql_filters, profile.max_correlation_filters
    broker = Driver(profile)
    broker.topic()
    for name in "ab":
        broker.subscription("t", name)
    for _ in range(40):
        before = counted(broker)
        transaction = broker.begin() if random.random() < 0.5 else None
        works = [partial(_change, broker, random, each, transaction) for each in random.choices(FILTERS, k=3)]
        if transaction is not None:  # a later change may undo the earlier ones
            works.append(partial(broker.commit if random.random() < 0.8 else broker.rollback, transaction))
        for count, work in enumerate(works if transaction is not None else works[:1]):
            rules = listed(broker)
            try:
                work()
            except ServiceBusError as error:
                assert listed(broker) == rules  # what fails undoes all that it did
                if isinstance(error, ServiceBusQuotaExceededError):
                    assert any(here + count >= limit for here, limit in zip(before, limits, strict=False))
        sql, correlation, size = counted(broker)
        assert sql <= profile.max_sql_filters
        assert correlation <= profile.max_correlation_filters
        topic = broker.management.runtime(broker.call(Operation.MANAGE), topic_address("t"))
        assert (topic.sql_filter_count, topic.correlation_filter_count) == (sql, correlation)
        assert topic.size_in_bytes == size


def _change(broker: Driver, random: Random, filter_: RuleFilter, transaction: Transaction | None) -> None:
    subscription = f"t/Subscriptions/{random.choice('ab')}"
    where = address(f"{subscription}/$Rules/{random.choice('rs')}")
    match random.randrange(11):
        case 0:
            broker.subscription("t", subscription[-1])
        case 1:
            broker.delete(address(subscription))
        case 2:
            broker.update(where, RuleProperties(where.names[-1], filter=filter_))
        case 3:
            broker.delete(where, transaction)
        case 4:
            broker.send("t", message("a" * random.randrange(99)))
        case 5:
            broker.drain(subscription)
        case _:
            broker.rule(subscription, where.names[-1], transaction, filter=filter_)


def listed(broker: Driver) -> dict[str, list[EntityProperties]]:
    """The rules of each subscription."""
    management, call = broker.management, broker.call(Operation.MANAGE)
    subscriptions = management.listed(call, EntityKind.SUBSCRIPTION, ("t",))
    return {each.name: [*management.listed(call, EntityKind.RULE, ("t", each.name))] for each in subscriptions}


def counted(broker: Driver) -> tuple[int, int, int]:
    """The SQL filters, the correlation filters and the bytes of the topic, from what is listed."""
    found = listed(broker)
    rules = [rule for each in found.values() for rule in each]
    correlation = sum(isinstance(rule.filter, CorrelationRuleFilter) for rule in rules)  # type: ignore[union-attr]
    sizes = [broker.counts(f"t/Subscriptions/{name}").size_in_bytes or 0 for name in found]
    return len(rules) - correlation, correlation, sum(sizes)
