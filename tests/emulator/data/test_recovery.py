"""Random histories of a namespace, killed at any byte: what is restored is the state after some request."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from inspect import signature
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sbclient.amqp import EncodedMessage
from sbclient.amqp.types import Int, Long, Symbol
from sbclient.broker.faults import Operation
from sbclient.broker.management import Management
from sbclient.broker.namespace import Namespace
from sbclient.broker.session import SessionLock
from sbclient.broker.transactions import Transaction
from sbclient.delivery import Settlement, SettleMode
from sbclient.emulator.control.api import ITEM, ROUTES
from sbclient.emulator.control.message_store import purge, resubmit
from sbclient.emulator.control.namespace_state import clear
from sbclient.emulator.data.directory import open_database
from sbclient.emulator.data.rows import NamespaceRows
from sbclient.entities import CorrelationRuleFilter, QueueProperties, SqlRuleAction, SqlRuleFilter
from sbclient.errors import ServiceBusError
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage, ServiceBusMessageState, ServiceBusReceivedMessage
from tests.broker.driver import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    DELETE,
    Driver,
    address,
    at,
    seconds,
    topic_address,
)
from tests.emulator.data.described import described
from tests.payloads import payload_of

QUEUES = ("plain", "partitioned", "sessions", "remembering")
SUBSCRIPTIONS = ("t/Subscriptions/all", "t/Subscriptions/some")
SOURCES = (*QUEUES, *SUBSCRIPTIONS, "plain/$DeadLetterQueue", "sessions/$DeadLetterQueue")
ALTER = Settlement(SettleMode.ABANDON, properties={"tried": Int(1), "at": Long(2), "by": Symbol("x"), "last": True})
KEYS = st.sampled_from([None, "a", "b"])
SPANS = st.sampled_from([1.0, 30.0, 61.0, 700.0])


def restored(path: Path, now: float) -> Namespace:
    namespace = Namespace("contoso", random=Random(2))
    database = open_database(path, fsync=False)
    NamespaceRows(database, namespace, now, lambda: None)
    database.close()
    return namespace


CONTROL: Final[Mapping[str, str | Callable[[Namespace, float], object]]] = {
    "POST purge": lambda namespace, now: purge(namespace, now, "plain"),
    "POST resubmit": lambda namespace, now: resubmit(namespace, now, "plain/$DeadLetterQueue"),
    "POST messages": "sends as `send` and `schedule` do",
    **dict.fromkeys(["POST entities", "PUT entities", "DELETE entities"], "call the management of the broker"),
    **dict.fromkeys(["POST faults", "PUT faults", "DELETE faults", f"DELETE faults{ITEM}"], "faults are not kept"),
    "POST reset": "leaves no entity to the other requests; it is the last one of CHANGES",
}
"""What each request of the control API changes, or why it is not made here."""

NOT_KEPT: Final = """
    begin_transaction get get_session_state list_sessions listed locked namespace open_receiver open_sender peek release
    release_session renew_locks renew_session rollback runtime
"""
"""The operations of the broker after which a restart finds what it found before: locks end with the process."""


class History(RuleBasedStateMachine):
    """Requests to one namespace, whose changes are one transaction each."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "emulator.db"
        self.log = self.path.with_name("emulator.db-wal")
        self.database = open_database(self.path, fsync=False)
        self.database.execute("PRAGMA wal_autocheckpoint = 0")
        self.rows = NamespaceRows(self.database, self.driver.namespace, self.driver.now, lambda: None)
        self.ends: list[tuple[int, dict[str, Any]]] = []
        self.held: list[tuple[str, ServiceBusReceivedMessage, SessionLock | None]] = []
        self.locks: list[SessionLock] = []
        self.transaction: Transaction | None = None
        self.scheduled: list[tuple[str, int]] = []
        self.deferred: list[tuple[str, int, SessionLock | None]] = []
        self.counts = itertools.count()
        driver = self.driver
        driver.queue("plain", max_delivery_count=2, dead_lettering_on_message_expiration=True)
        driver.partitioned("partitioned")
        driver.queue("sessions", requires_session=True, enable_partitioning=True, auto_delete_on_idle=seconds(777_777))
        driver.queue("remembering", requires_duplicate_detection=True)
        driver.topic()
        driver.subscription(name="all")
        driver.subscription(name="some", forward_to="plain")
        driver.rule(
            "t/Subscriptions/some", "r", filter=SqlRuleFilter("sys.Label = 'x'"), action=SqlRuleAction("SET n = 1")
        )
        self.note()

    def teardown(self) -> None:
        self.database.close()
        self.folder.cleanup()

    def note(self) -> None:
        """Write the changes of a request."""
        self.database.execute("BEGIN")
        self.rows.write()
        self.database.execute("COMMIT")
        self.ends.append((self.log.stat().st_size, described(self.driver.namespace, self.driver.now)))

    def message(self, key: str | None, **attributes: Any) -> EncodedMessage:
        number = next(self.counts)
        sent = ServiceBusMessage(
            f"{number}",
            session_id=key,
            subject="x" if number % 2 else None,
            application_properties={"n": number},
            **attributes,
        )
        return EncodedMessage.of(payload_of(sent))

    # ------------------------------------------------------------------ messages

    @rule(
        path=st.sampled_from([*QUEUES, "t"]),
        key=KEYS,
        message_id=st.sampled_from([None, "m1", "m2"]),
        ttl_s=st.sampled_from([None, 40.0]),
        later_s=st.sampled_from([None, None, 50.0]),
    )
    def send(
        self, path: str, key: str | None, message_id: str | None, ttl_s: float | None, later_s: float | None
    ) -> None:
        sent = self.message(
            key or ("a" if path == "sessions" else None),
            message_id=message_id,
            time_to_live=None if ttl_s is None else seconds(ttl_s),
            scheduled_enqueue_time_utc=None if later_s is None else at(self.driver.now + later_s),
        )
        # A transaction may have ended by its age.
        transaction = self.transaction if path == "plain" else None
        self.attempt(lambda: self.driver.send(path, sent, transaction=transaction))

    @rule(path=st.sampled_from(["plain", "partitioned", "t"]))
    def schedule(self, path: str) -> None:
        later = self.message(None, scheduled_enqueue_time_utc=at(self.driver.now + 45))
        self.scheduled += [(path, number) for number in self.driver.schedule(path, later)]
        self.note()

    @precondition(lambda self: self.scheduled)
    @rule()
    def cancel(self) -> None:
        path, number = self.scheduled.pop()
        self.attempt(lambda: self.driver.cancel(path, number))

    @rule(path=st.sampled_from(SOURCES), count=st.integers(1, 3), deletes=st.booleans())
    def receive(self, path: str, count: int, deletes: bool) -> None:
        def take() -> None:
            for lock in self.locks if path == "sessions" else [None]:
                how: dict[str, Any] = {"mode": DELETE} if deletes else {}
                for received in self.driver.receive(path, count, lock=lock, **how):
                    self.held += [] if deletes else [(path, received, lock)]

        self.attempt(take)

    @rule(path=st.sampled_from(QUEUES), how=st.sampled_from([COMPLETE, COMPLETE, ABANDON, DEFER, DEAD_LETTER, ALTER]))
    def settle(self, path: str, how: Settlement) -> None:
        if not self.held:
            self.driver.send(path, self.message("a"))
            if path == "sessions":
                self.accept("a")
            self.receive(path, 1, deletes=False)
        if not self.held:  # its session is locked with an earlier token
            return
        path, received, lock = self.held.pop(0)
        transaction = self.transaction if path == "plain" else None
        self.attempt(lambda: self.driver.settle(path, received, how=how, lock=lock, transaction=transaction))
        if how is DEFER:
            self.deferred.append((path, received.sequence_number, lock))

    @rule(path=st.sampled_from(QUEUES))
    def receive_deferred(self, path: str) -> None:
        if not self.deferred:
            self.settle(path, DEFER)
            return
        path, number, lock = self.deferred.pop()

        def take() -> None:
            self.held += [(path, received, lock) for received in self.driver.deferred(path, number, lock=lock)]

        self.attempt(take)
        self.held.reverse()  # it is settled next

    @rule(session=st.sampled_from(["a", "b"]))
    def accept(self, session: str) -> None:
        self.attempt(lambda: self.locks.append(self.driver.held("sessions", session)))

    @precondition(lambda self: self.locks)
    @rule(state=st.sampled_from([None, b"one", b"twice"]), releases=st.booleans())
    def set_state(self, state: bytes | None, releases: bool) -> None:
        self.attempt(lambda: self.driver.set_state("sessions", self.locks[-1], state))
        if releases:
            self.driver.release("sessions", self.locks.pop())
            self.note()

    @rule(span_s=SPANS)
    def wait(self, span_s: float) -> None:
        self.driver.wait(span_s)
        for path in ("plain", "t"):
            self.driver.namespace.directory.find(path)[0].advance(self.driver.now)
        self.driver.namespace.advance(self.driver.now)
        self.note()

    # ------------------------------------------------------------------ transactions

    @rule(commits=st.booleans())
    def transact(self, commits: bool) -> None:
        if self.transaction is None:
            self.transaction = self.driver.begin()
            return
        transaction, self.transaction = self.transaction, None
        self.attempt(lambda: (self.driver.commit if commits else self.driver.rollback)(transaction))

    # ------------------------------------------------------------------ entities

    @rule(path=st.sampled_from(QUEUES), creates=st.booleans())
    def delete(self, path: str, creates: bool) -> None:
        """An entity is always there after the request, because the other requests need it."""
        before = replace(self.driver.get(address(path)), max_size_in_megabytes=None)
        self.driver.delete(address(path))
        if not creates:
            self.note()
        self.driver.create(path, before)
        self.driver.send(path, self.message("a"))
        self.note()

    @rule()
    def delete_topic(self) -> None:
        self.driver.delete(topic_address("t"))
        self.note()
        self.driver.topic(requires_duplicate_detection=True)
        for name in ("all", "some"):
            self.driver.subscription(name=name)
        self.note()

    @rule(count=st.integers(1, 9))
    def update(self, count: int) -> None:
        known: QueueProperties = self.driver.get(address("plain"))
        known.max_delivery_count, known.user_metadata = count, f"{count}"
        known.forward_dead_lettered_messages_to = "partitioned" if count > 5 else None
        self.driver.update(address("plain"), known)
        self.note()

    @rule(name=st.sampled_from(["r", "s"]), creates=st.booleans())
    def change_rule(self, name: str, creates: bool) -> None:
        path = "t/Subscriptions/all"
        if creates:
            chosen = CorrelationRuleFilter(label="x", properties={"n": 1})
            self.attempt(lambda: self.driver.rule(path, name, filter=chosen))
        else:
            self.attempt(lambda: self.driver.delete(address(f"{path}/$Rules/{name}")))

    @rule(request=st.sampled_from(sorted(name for name, made in CONTROL.items() if not isinstance(made, str))))
    def operate(self, request: str) -> None:
        made = CONTROL[request]
        assert not isinstance(made, str)
        made(self.driver.namespace, self.driver.now)
        self.note()

    @rule()
    def settle_each(self) -> None:
        found = self.driver.receive("plain", 2)
        tokens = [each.lock_token for each in found if each.lock_token is not None]
        self.driver.namespace.settle_each(self.driver.call(Operation.SETTLE), "plain", tokens, COMPLETE)
        self.note()

    @rule(selector=st.sampled_from([None, "n > 3"]))
    def subscribe(self, selector: str | None) -> None:
        call = self.driver.call(Operation.MANAGE)
        self.driver.management.subscribe(call, "t", "jms", is_durable=True, selector=selector)
        self.note()

    # ------------------------------------------------------------------ recovery

    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        """Cut the log of the database at any byte: the state is that after the last request that fits."""
        self.compare(data.draw(st.integers(self.ends[0][0], self.log.stat().st_size), label="cut"))

    @invariant()
    def die_now(self) -> None:
        self.compare(self.log.stat().st_size)

    def compare(self, cut: int) -> None:
        """Compare what a restart finds with the state after the last request whose changes fit into the log."""
        whole = self.log.read_bytes()
        copy = self.path.with_name("copy.db")
        copy.write_bytes(self.path.read_bytes())
        copy.with_name("copy.db-wal").write_bytes(whole[:cut])
        now = self.driver.now
        survivor = restored(copy, now)
        expected = [state for end, state in self.ends if end <= cut][-1]
        assert without_old_ids(described(survivor, now), now) == without_old_ids(expected, now)
        for found in survivor.directory.all():  # an access is written with the next update
            live = self.driver.namespace.directory.get(found.path)
            if live is not None and live.accessed_at < live.updated_at == found.updated_at:
                assert found.accessed_at == live.accessed_at
        for later in (now + 50, now + 1000):  # what is due happens
            for found in survivor.directory.all():
                found.advance(later)
                for fragment in itertools.chain(*(body.fragments for body in found.queues()[:1])):
                    for entry in fragment.browse(-math.inf, 0):
                        assert entry.expires_at > later or entry.state is ServiceBusMessageState.DEFERRED
                        assert entry.state is not ServiceBusMessageState.SCHEDULED or entry.enqueued_at > later

    @rule()
    def checkpoint(self) -> None:
        """Move the contents of the log to the database, and empty the log."""
        self.database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self.ends = [(0, self.ends[-1][1])]

    def attempt(self, work: Any) -> None:
        """Do something that the broker may reject; then nothing, or only timed changes, happened."""
        with suppress(ServiceBusError):
            work()
        self.note()


def without_old_ids(state: dict[str, Any], now: float) -> dict[str, Any]:
    """The state without the ids whose window has ended since."""
    for entity in (each for each in state.values() if isinstance(each, dict)):
        window_s = getattr(entity["definition"][0], "duplicate_detection_history_time_window", seconds(0))
        for key, fragment in entity.items():
            if isinstance(key, tuple):
                kept = {each for each in fragment["seen"] if each[1] + window_s.total_seconds() > now}
                entity[key] = {**fragment, "seen": kept}
    return state


TestHistory = History.TestCase
History.TestCase.settings = settings(
    max_examples=6, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture
def history() -> Iterator[History]:
    history = History()
    yield history
    history.teardown()


def reset(history: History) -> None:
    namespace = history.driver.namespace
    clear(cast(BrokerHost, SimpleNamespace(namespace=namespace, heal=namespace.faults.heal)))
    history.driver.queue("plain")
    history.note()


def replace_rule(history: History) -> None:
    """Delete a rule and create another one of the same name before the changes are written."""
    history.driver.delete(address("t/Subscriptions/some/$Rules/r"))
    history.driver.rule("t/Subscriptions/some", "r", filter=SqlRuleFilter("sys.Label = 'y'"))
    history.note()


CHANGES: Sequence[Callable[[History], None]] = (
    lambda history: history.accept("a"),
    lambda history: history.set_state(b"one", releases=False),
    lambda history: history.set_state(None, releases=False),
    lambda history: history.change_rule("r", creates=True),
    lambda history: history.change_rule("r", creates=False),
    replace_rule,
    *(lambda history, name=name: history.send("remembering", None, name, None, None) for name in ("m2", "m1")),
    lambda history: history.send("plain", None, None, None, None),
    lambda history: history.wait(1.0),
    lambda history: history.send("remembering", None, "m0", None, None),
    lambda history: history.update(7),
    lambda history: history.send("plain", None, None, None, 50.0),
    lambda history: history.wait(60.0),
    lambda history: history.settle("plain", ALTER),
    lambda history: history.send("t", None, None, None, None),
    lambda history: history.delete_topic(),  # the rows of the new one have the same ids
    lambda history: history.delete("plain", creates=False),
    lambda history: history.settle_each(),
    lambda history: history.schedule("plain"),
    lambda history: history.cancel(),
    lambda history: history.settle("plain", DEFER),
    lambda history: history.receive_deferred("plain"),
    lambda history: history.subscribe("n > 3"),
    lambda history: history.transact(commits=True),
    lambda history: history.send("plain", None, None, None, None),
    lambda history: history.transact(commits=True),
    reset,
)


def test_restart_finds_each_kind_of_change(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    made, expected = set[str](), set[str]()

    def noted(name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            made.add(name)
            return operation(*arguments, **named)

        return call

    for kind in (Namespace, Management):
        for name, operation in vars(kind).items():
            if callable(operation) and name[0] != "_" and "call" in signature(operation).parameters:
                expected.add(name)
                monkeypatch.setattr(kind, name, noted(name, operation))
    for change in CHANGES:
        change(history)
        history.die_now()
    not_kept = set(NOT_KEPT.split())
    assert expected - made <= not_kept, "add it to CHANGES, or to NOT_KEPT if a restart finds nothing of it"
    assert not_kept <= expected


def test_each_request_that_is_not_get_is_made_or_needs_not_be() -> None:
    routes = {f"{method} {name}" for name, methods in ROUTES.items() for method in methods if method != "GET"}
    assert routes == set(CONTROL), "name it in CONTROL of tests/emulator/data/test_recovery.py"


def test_ids_whose_window_has_ended_are_removed(history: History) -> None:
    for number in range(5):
        history.send("remembering", None, f"m{number}", None, None)
        history.wait(1000.0)
    ((count,),) = history.database.execute("SELECT count(*) FROM seen")
    assert count == 1
