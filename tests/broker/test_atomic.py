"""An operation that raises has changed nothing, wherever it raises: in encoding, in a rule, or in the journal.

Each operation is run once for each call of a function that may fail, which raises at that call. A callback that raises
does not fail the operation, which is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import pytest

from sbclient.amqp import EncodedMessage
from sbclient.broker import admission, forwarding, topic
from sbclient.broker.entity import Queue
from sbclient.broker.entry import Entry
from sbclient.broker.faults import Operation as FaultOperation
from sbclient.broker.fragment import Fragment
from sbclient.broker.rule import Rule
from sbclient.broker.session import SessionLock
from sbclient.broker.storage import Storage
from sbclient.entities import CorrelationRuleFilter, QueueProperties, RuleProperties, SqlRuleAction, SqlRuleFilter
from tests.broker.driver import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    DELETE,
    KEYS,
    Driver,
    address,
    at,
    message,
    seconds,
    topic_address,
)

SUBS: Final = [f"t/Subscriptions/{name}" for name in ("plain", "changed", "sessions")]


class PlantedError(Exception):
    """Not of the service: a defect."""


class Planted:
    """Counts the calls that may fail, and lets one of them raise.

    Attributes:
        fail_at: the number of the call, from 1; 0 = none.
        where: the function that raised.
    """

    def __init__(self) -> None:
        self.count = 0
        self.fail_at = 0
        self.where = ""

    def meet(self, where: str) -> None:
        self.count += 1
        if self.count == self.fail_at:
            self.where = where
            raise PlantedError(where)

    def around(self, where: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.meet(where)
            return function(*arguments, **options)

        return call


POINTS: Final[list[tuple[Any, str]]] = [
    (EncodedMessage, "with_added"),
    (EncodedMessage, "rewritten"),
    (Rule, "matches"),
    (Rule, "changed"),
    (Storage, "_set_expiry"),
    (admission, "identity_of"),
    (admission, "check_headers"),
    (forwarding, "admit"),
    (topic, "system_properties_of"),
    (topic, "_copy"),
    (Entry, "received"),
]


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Planted:
    planted = Planted()
    for owner, name in POINTS:
        monkeypatch.setattr(owner, name, planted.around(name, getattr(owner, name)))
    return planted


class Scene(Driver):
    """One entity of each kind, with messages in each state, and their locks.

    Attributes:
        locked: a message of `q` that is locked; `many` are two of them.
        lock: on a session of `s`, from which `of_session` was received.
    """

    def __init__(self, planted: Planted) -> None:
        super().__init__()
        self.changes = self.namespace.record_changes(lambda: planted.meet("journal"))
        self.queue("q", requires_duplicate_detection=True, lock_duration=seconds(30))
        self.partitioned("p")
        self.queue("s", requires_session=True, lock_duration=seconds(300))
        self.queue("full-of-scheduled")
        self.topic("t")
        for sub in SUBS:
            self.subscription("t", sub.rpartition("/")[2], requires_session=sub.endswith("sessions"))
        self.rule(SUBS[0], "also", filter=CorrelationRuleFilter(correlation_id="c"))
        self.rule(SUBS[1], "act", filter=SqlRuleFilter("n > 0"), action=SqlRuleAction("SET m = n + 1"))
        self.queue("f", forward_to="q")
        for number in range(6):
            self.send("q", message(f"{number}", message_id=f"id-{number}"))
            self.send("p", message(f"{number}", partition_key=KEYS[number % 2]))
            self.send("s", message(f"{number}", session_id=f"{number % 2}"))
        self.send("t", self.for_topic())
        self.scheduled = self.schedule(
            "q", message("late", message_id="l", scheduled_enqueue_time_utc=at(self.now + 99))
        )
        self.schedule("t", message("late", session_id="a", scheduled_enqueue_time_utc=at(self.now + 60)))
        self.locked, *self.many = self.receive("q", 3)
        self.settle("q", self.many.pop(), how=DEFER)
        self.receive("p")
        self.lock: SessionLock = self.held("s", "0")
        (self.of_session,) = self.receive("s", lock=self.lock)
        self.wait(0.0)
        self.changes.clear()

    def for_topic(self) -> Any:
        return message("x", session_id="a", correlation_id="c", application_properties={"n": 1})

    @property
    def deferred_numbers(self) -> list[int]:
        return [each.sequence_number for each in self.peek("q", 20) if str(each.state.name) == "DEFERRED"]


def state_of(driver: Driver) -> dict[Any, Any]:
    """Everything that an operation can change, but the time of the last access and gaps of sequence numbers."""
    found: dict[Any, Any] = {}
    for entity in driver.namespace.directory.all():
        rules = [] if entity.subscription is None else list(entity.subscription.rules.items())
        found[entity.path] = (entity.description, rules, entity.updated_at)
        if isinstance(entity.body, topic.Topic):
            found[entity.path, "subscriptions"] = list(entity.body.subscriptions)
        for body in entity.queues():
            found[body.path, "forward"] = body.forward_to if isinstance(body, Queue) else None
            for fragment in body.fragments:
                if len(fragment) or fragment.size_bytes or fragment.arrived_count:
                    found[body.path, fragment.index, type(fragment).__name__] = fragment_state(fragment)
    return found


def fragment_state(fragment: Fragment) -> dict[str, Any]:
    return {
        "entries": [{name: getattr(entry, name) for name in Entry.__slots__} for entry in fragment._entries.values()],
        "bytes": (fragment.size_bytes, fragment.usage.size_bytes),
        "counts": (fragment.scheduled_count, fragment.arrived_count, fragment.deferred_count),
        "locks": sorted((token, entry.number) for token, entry in fragment._locks.entries.items()),
        "lock ends": sorted(fragment._locks.ends._at.items()),
        "ready": (
            [n for n in fragment._fresh if n in fragment],
            sorted(n for n in fragment._returned if n in fragment),
        ),
        "scheduled": sorted(fragment._schedule._at.items()),
        "expiries": sorted(fragment._expiries._at.items()),
        "seen": list(fragment.seen._in_order),
        "sessions": sorted(
            (name, one.token, one.locked_until, one.state, sorted(one.held), one.message_count, one.ready_count)
            for name, one in fragment._sessions.all()
        ),
    }


Operation: TypeAlias = Callable[[Scene], object]


def transact(scene: Scene) -> None:
    transaction = scene.begin()
    scene.send("q", message("in", message_id="in"), transaction=transaction)
    scene.settle("q", scene.locked, how=DEAD_LETTER, transaction=transaction)
    scene.commit(transaction)


def transact_on_topic(scene: Scene) -> None:
    transaction = scene.begin()
    for _ in range(3):
        scene.send("t", scene.for_topic(), transaction=transaction)
    scene.rule(SUBS[0], "new", transaction)
    scene.send("t", scene.for_topic(), transaction=transaction)
    scene.commit(transaction)


def settled(scene: Scene, how: Any) -> None:
    scene.settle("q", scene.locked, *scene.many, how=how)


OPERATIONS: Final[dict[str, Operation]] = {
    "send": lambda scene: scene.send("q", message("new", message_id="new")),
    "send several": lambda scene: scene.send("q", *[message(f"{n}", message_id=f"new-{n}") for n in range(4)]),
    "send a mixture": lambda scene: scene.send(
        "q",
        message("now", message_id="a"),
        message("later", message_id="b", scheduled_enqueue_time_utc=at(scene.now + 5), time_to_live=seconds(9)),
        message("now", message_id="a"),
        message("now", message_id="c"),
    ),
    "send to a partitioned queue": lambda scene: scene.send("p", message("x", partition_key=KEYS[1])),
    "send to a session": lambda scene: scene.send("s", message("x", session_id="0"), message("y", session_id="0")),
    "send to a topic": lambda scene: scene.send("t", scene.for_topic(), scene.for_topic()),
    "send to a queue that forwards": lambda scene: scene.send("f", message("x", message_id="f")),
    "schedule": lambda scene: scene.schedule(
        "q", *[message("x", message_id=f"{n}", scheduled_enqueue_time_utc=at(scene.now + 9)) for n in range(3)]
    ),
    "cancel": lambda scene: scene.cancel("q", *scene.scheduled),
    "receive": lambda scene: scene.namespace.receive(scene.call(FaultOperation.RECEIVE), "q", max_message_count=2),
    "receive and delete": lambda scene: scene.namespace.receive(
        scene.call(FaultOperation.RECEIVE),
        "p",
        max_message_count=1,
        mode=DELETE,
    ),
    "receive deferred": lambda scene: scene.namespace.receive_deferred(
        scene.call(FaultOperation.RECEIVE_DEFERRED),
        "q",
        scene.deferred_numbers,
    ),
    "complete": lambda scene: settled(scene, COMPLETE),
    "abandon": lambda scene: settled(scene, ABANDON),
    "defer": lambda scene: settled(scene, DEFER),
    "dead-letter": lambda scene: settled(scene, DEAD_LETTER),
    "settle each": lambda scene: scene.namespace.settle_each(
        scene.call(FaultOperation.SETTLE),
        "q",
        [each.lock_token for each in (scene.locked, *scene.many) if each.lock_token],
        DEAD_LETTER,
    ),
    "dead-letter of a session": lambda scene: scene.settle("s", scene.of_session, how=DEAD_LETTER, lock=scene.lock),
    "renew": lambda scene: scene.renew("q", scene.locked, *scene.many),
    "accept a session": lambda scene: scene.accept("s", "1"),
    "set the state of a session": lambda scene: scene.set_state("s", scene.lock, b"state"),
    "release a session": lambda scene: scene.release("s", scene.lock),
    "a transaction": transact,
    "a transaction on a topic": transact_on_topic,
    "create a queue": lambda scene: scene.queue("new"),
    "create a queue that forwards": lambda scene: scene.queue("new", forward_to="q"),
    "create a subscription": lambda scene: scene.subscription("t", "new"),
    "create a rule": lambda scene: scene.rule(SUBS[0], "new", filter=SqlRuleFilter("n = 1")),
    "update a queue": lambda scene: scene.update(address("q"), QueueProperties("q", lock_duration=seconds(60))),
    "update a rule": lambda scene: scene.update(
        address(f"{SUBS[1]}/$Rules/act"), RuleProperties("act", filter=SqlRuleFilter("n = 1"))
    ),
    "delete a queue": lambda scene: scene.delete(address("q")),
    "delete a topic": lambda scene: scene.delete(topic_address("t")),
    "delete a rule": lambda scene: scene.delete(address(f"{SUBS[1]}/$Rules/act")),
}

TIMED: Final[dict[str, tuple[float, Operation]]] = {
    "a scheduled message of a topic is due": (
        61,
        lambda scene: scene.namespace.directory.find("t")[0].advance(scene.now),
    ),
    "a scheduled message is due": (100, lambda scene: scene.namespace.directory.find("q")[0].advance(scene.now)),
    "locks end": (31, lambda scene: scene.namespace.directory.find("q")[0].advance(scene.now)),
    "the lock of a session ends": (301, lambda scene: scene.namespace.directory.find("s")[0].advance(scene.now)),
}
"""Timed changes, and after how many seconds."""


@contextmanager
def failing_at(planted: Planted, number: int) -> Iterator[None]:
    planted.count, planted.fail_at = 0, number
    yield
    planted.fail_at = 0


@pytest.mark.parametrize("name", [*OPERATIONS, *TIMED])
def test_an_operation_that_raises_has_changed_nothing(name: str, planted: Planted) -> None:
    waits_s, operation = TIMED[name] if name in TIMED else (0.0, OPERATIONS[name])
    scene = Scene(planted)
    scene.wait(waits_s)
    with failing_at(planted, 0):
        operation(scene)
        call_count = planted.count
    done = state_of(scene)
    for number in range(1, call_count + 1):
        scene = Scene(planted)
        scene.wait(waits_s)
        before = state_of(scene)
        with failing_at(planted, number), pytest.raises(PlantedError):
            operation(scene)
        assert state_of(scene) == before, planted.where
        operation(scene)
        assert sizes(state_of(scene)) == sizes(done), planted.where


def sizes(state: dict[Any, Any]) -> dict[Any, Any]:
    """What is the same after an operation that failed before: all but tokens and sequence numbers."""
    return {
        path: (value["bytes"], value["counts"], len(value["entries"]), len(value["locks"]))
        for path, value in state.items()
        if isinstance(value, dict)
    }


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_callback_that_raises_fails_no_operation(name: str, planted: Planted) -> None:
    scene, other = Scene(planted), Scene(planted)
    OPERATIONS[name](other)

    class Refusing(list[Any]):
        def append(self, _: object) -> None:
            raise PlantedError("callback")

    scene.ready, scene.removed = Refusing(), Refusing()
    OPERATIONS[name](scene)
    assert sizes(state_of(scene)) == sizes(state_of(other))
    assert all(isinstance(error, PlantedError) for error in scene.namespace.defects)
