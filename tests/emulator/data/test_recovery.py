"""Random histories of a namespace, cut off at any byte: what is restored is the state after some request."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from sbclient.amqp import WireMessage, encode_message
from sbclient.broker import recovery
from sbclient.broker.changes import Change
from sbclient.broker.namespace import Namespace
from sbclient.broker.recovery import StoredNamespace
from sbclient.broker.session import SessionLock
from sbclient.broker.transactions import Transaction
from sbclient.delivery import Settlement, SettleMode
from sbclient.emulator.control.message_store import purge, resubmit
from sbclient.emulator.data.codec import decode_changes, encode_changes
from sbclient.emulator.data.data_file import END_OF_SNAPSHOT, DataFile, read
from sbclient.entities import CorrelationRuleFilter, QueueProperties, SqlRuleAction, SqlRuleFilter
from sbclient.errors import ServiceBusError
from sbclient.message import ServiceBusMessage, ServiceBusReceivedMessage
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

QUEUES = ("plain", "partitioned", "sessions", "remembering")
SUBSCRIPTIONS = ("t/Subscriptions/all", "t/Subscriptions/some")
SOURCES = (*QUEUES, *SUBSCRIPTIONS, "plain/$DeadLetterQueue", "sessions/$DeadLetterQueue")
ALTER = Settlement(SettleMode.ABANDON, properties={"tried": 1})
KEYS = st.sampled_from([None, "a", "b"])
SPANS = st.sampled_from([1.0, 30.0, 61.0, 700.0])


def restored(changes: Iterator[Change], now: float) -> Namespace:
    stored = StoredNamespace()
    for change in changes:
        stored.apply(change)
    namespace = Namespace("contoso", random=Random(2))
    namespace.management.restore(stored, now)
    return namespace


class History(RuleBasedStateMachine):
    """Requests to one namespace, whose changes are written to a file after each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver()
        self.changes = self.driver.namespace.record_changes(lambda: None)
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "contoso.sbdata"
        self.file = DataFile.create(self.path, "std-2021")
        self.file.append(END_OF_SNAPSHOT)
        self.ends: list[tuple[int, dict[str, Any]]] = []
        self.held: list[tuple[str, ServiceBusReceivedMessage, SessionLock | None]] = []
        self.locks: list[SessionLock] = []
        self.transaction: Transaction | None = None
        self.scheduled: list[tuple[str, int]] = []
        self.deferred: list[tuple[str, int, SessionLock | None]] = []
        self.counts = itertools.count()
        self.pieces: Iterator[list[Change]] | None = None
        self.replacement: list[bytes] = []
        driver = self.driver
        driver.queue("plain", max_delivery_count=2, dead_lettering_on_message_expiration=True)
        driver.partitioned("partitioned")
        driver.queue("sessions", requires_session=True, enable_partitioning=True)
        driver.queue("remembering", requires_duplicate_detection=True)
        driver.topic()
        driver.subscription(name="all")
        driver.subscription(name="some", forward_to="plain")
        driver.rule(
            "t/Subscriptions/some", "r", filter=SqlRuleFilter("sys.Label = 'x'"), action=SqlRuleAction("SET n = 1")
        )
        self.note()

    def teardown(self) -> None:
        self.file.close()
        self.folder.cleanup()

    def note(self) -> None:
        """Write the changes of a request."""
        frame = encode_changes(self.changes.take())
        if frame:
            self.file.append(frame)
            self.replacement.append(frame)
        self.ends.append((self.file.size_bytes, described(self.driver.namespace, self.driver.now)))

    def message(self, key: str | None, **attributes: Any) -> ServiceBusMessage:
        number = next(self.counts)
        sent = ServiceBusMessage(
            f"{number}",
            session_id=key,
            subject="x" if number % 2 else None,
            application_properties={"n": number},
            **attributes,
        )
        return WireMessage.of(encode_message(sent)) if number % 3 else sent

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
        if self.transaction is not None and path == "plain":
            self.driver.send(path, sent, transaction=self.transaction)
        else:
            self.driver.send(path, sent)
        self.note()

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

    @precondition(lambda self: self.held)
    @rule(how=st.sampled_from([COMPLETE, COMPLETE, ABANDON, DEFER, DEAD_LETTER, ALTER]))
    def settle(self, how: Settlement) -> None:
        path, received, lock = self.held.pop(0)
        transaction = self.transaction if path == "plain" else None
        self.attempt(lambda: self.driver.settle(path, received, how=how, lock=lock, transaction=transaction))
        if how is DEFER:
            self.deferred.append((path, received.sequence_number, lock))

    @precondition(lambda self: self.deferred)
    @rule()
    def receive_deferred(self) -> None:
        path, number, lock = self.deferred.pop()

        def take() -> None:
            self.held += [(path, received, lock) for received in self.driver.deferred(path, number, lock=lock)]

        self.attempt(take)

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

    @rule(purges=st.booleans())
    def operate(self, purges: bool) -> None:
        if purges:
            purge(self.driver.namespace, self.driver.now, "plain")
        else:
            resubmit(self.driver.namespace, self.driver.now, "plain/$DeadLetterQueue")
        self.note()

    # ------------------------------------------------------------------ recovery

    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        """Cut the file at any byte behind the snapshot: the state is that after the last request that fits."""
        whole = self.path.read_bytes()
        first = next(end for end, _ in self.ends)
        cut = data.draw(st.integers(first, len(whole)), label="cut")
        other = self.path.with_name("cut")
        other.write_bytes(whole[:cut])
        contents = read(other)
        changes = (change for frame in contents.changes for change in decode_changes(frame))
        now = self.driver.now
        survivor = restored(changes, now)
        end, expected = max((each for each in self.ends if each[0] <= cut), key=lambda each: each[0])
        expected = [state for size, state in self.ends if size == end][-1]
        assert contents.good_bytes == end
        assert without_old_ids(described(survivor, now), now) == without_old_ids(expected, now)

    @rule(count=st.integers(1, 5))
    def replace(self, count: int) -> None:
        """Write some pieces of a snapshot; behind the last one it describes the present state."""
        if self.pieces is None:
            self.pieces, self.replacement = self.driver.namespace.snapshot(), []
        for _ in range(count):
            piece = next(self.pieces, None)
            if piece is None:
                self.pieces = None
                changes = (change for frame in self.replacement for change in decode_changes(frame))
                survivor = restored(changes, self.driver.now)
                present = described(self.driver.namespace, self.driver.now)
                assert described(survivor, self.driver.now) == present
                return
            self.replacement.append(encode_changes(piece))

    def attempt(self, work: Any) -> None:
        """Do something that the broker may reject; then nothing, or only timed changes, happened."""
        with suppress(ServiceBusError):
            work()
        self.note()


def without_old_ids(state: dict[str, Any], now: float) -> dict[str, Any]:
    """The state without the ids whose window has ended since."""
    for entity in state.values():
        window_s = getattr(entity["definition"].description, "duplicate_detection_history_time_window", seconds(0))
        for key, fragment in entity.items():
            if isinstance(key, tuple):
                kept = {each for each in fragment["seen"] if each[1] + window_s.total_seconds() > now}
                entity[key] = {**fragment, "seen": kept}
    return state


TestHistory = pytest.mark.usefixtures("small_pieces")(History.TestCase)
History.TestCase.settings = settings(
    max_examples=12, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_snapshot_needs_no_session_without_state_and_messages(small_pieces: None) -> None:
    history = History()
    try:
        history.replace(count=3)
        history.accept(session="a")
        history.set_state(state=None, releases=False)
        while history.pieces is not None:
            history.replace(count=1)
    finally:
        history.teardown()


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots of many pieces."""
    monkeypatch.setattr(recovery, "PIECE_COUNT", 1)
