"""Random histories against a model of a list and a dict, for each kind of queue.

The model knows nothing of fragments: it keeps what was accepted, by name, and what has become of it. Order is compared
where the documents promise it: on a plain queue, and inside a session.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sbclient.broker.session import SessionLock
from sbclient.errors import MessageLockLostError, MessageNotFoundError, SessionCannotBeLockedError, SessionLockLostError
from sbclient.message import ServiceBusReceivedMessage
from tests.broker.driver import ABANDON, COMPLETE, DEAD_LETTER, DEFER, Driver, bodies, message, seconds

LOCK_S = 60.0
WINDOW_S = 600.0
MAX_DELIVERIES = 3
KEYS = st.sampled_from([None, "a", "b", "c"])
IDS = st.sampled_from(["m1", "m2", "m3"])
SPANS = st.sampled_from([1.0, 20.0, 59.0, 61.0, 601.0])


@dataclass
class Kept:
    """What the model knows of a message that was accepted and has not ended."""

    name: str
    state: str = "ready"  # ready, held, deferred
    failed: int = 0
    dies_at: float = float("inf")
    held: ServiceBusReceivedMessage | None = None
    held_until: float = float("inf")
    number: int = 0


@dataclass
class Model:
    """The model: the active messages in order of arrival, and the dead letters."""

    alive: list[Kept] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)

    def named(self, name: str) -> Kept:
        return next(kept for kept in self.alive if kept.name == name)

    def end(self, kept: Kept, *, dead: bool = False) -> None:
        self.alive.remove(kept)
        if dead:
            self.dead.append(kept.name)

    def fail(self, kept: Kept, at: float) -> None:
        """A delivery ended without success."""
        kept.held, was_deferred = None, kept.number != 0
        kept.failed += 1
        kept.state = "deferred" if was_deferred else "ready"
        if kept.failed >= MAX_DELIVERIES:
            self.end(kept, dead=True)
        elif not was_deferred and kept.dies_at <= at:
            self.end(kept)

    def pass_time(self, now: float) -> None:
        for kept in sorted(self.alive, key=lambda each: each.held_until):
            if kept.state == "held" and kept.held_until <= now:
                self.fail(kept, kept.held_until)
        for kept in list(self.alive):
            if kept.state == "ready" and kept.dies_at <= now:
                self.end(kept)


class QueueMachine(RuleBasedStateMachine):
    """Sends, receives and settles on one queue without sessions."""

    is_partitioned = False

    def __init__(self) -> None:
        super().__init__()
        self.broker = Driver()
        self.broker.queue(enable_partitioning=self.is_partitioned, max_delivery_count=MAX_DELIVERIES)
        self.model = Model()
        self.count = 0

    @rule(key=KEYS, life_s=st.sampled_from([None, 30.0]), size=st.integers(1, 3))
    def send(self, key: str | None, life_s: float | None, size: int) -> None:
        batch = []
        for _ in range(size):
            self.count += 1
            name = str(self.count)
            life = None if life_s is None else seconds(life_s)
            batch.append(message(name, partition_key=key, time_to_live=life))
            self.model.alive.append(Kept(name, dies_at=self.broker.now + (life_s or float("inf"))))
        self.broker.send("q", *batch)

    @rule(count=st.integers(1, 4))
    def receive(self, count: int) -> None:
        received = self.broker.receive("q", count)
        ready = [kept for kept in self.model.alive if kept.state == "ready"]
        assert len(received) == min(count, len(ready))
        if not self.is_partitioned:
            assert bodies(received) == [kept.name for kept in ready[:count]]
        for each in received:
            kept = self.model.named(str(each))
            assert kept in ready
            assert each.delivery_count == kept.failed
            kept.state, kept.held, kept.held_until = "held", each, self.broker.now + LOCK_S

    def held(self) -> list[Kept]:
        return [kept for kept in self.model.alive if kept.state == "held"]

    @precondition(lambda self: self.held())
    @rule(choice=st.randoms(use_true_random=False), how=st.sampled_from([COMPLETE, ABANDON, DEFER, DEAD_LETTER]))
    def settle(self, choice: st.DataObject, how: object) -> None:
        kept = choice.choice(self.held())  # type: ignore[attr-defined]
        assert kept.held is not None
        self.broker.settle("q", kept.held, how=how)  # type: ignore[arg-type]
        number = kept.held.sequence_number
        if how is COMPLETE:
            self.model.end(kept)
        elif how is ABANDON:
            self.model.fail(kept, self.broker.now)
        elif how is DEFER:
            kept.state, kept.failed, kept.number, kept.held = "deferred", kept.failed + 1, number, None
        else:
            self.model.end(kept, dead=True)

    @precondition(lambda self: self.held())
    @rule()
    def renew(self) -> None:
        kept = self.held()[0]
        assert kept.held is not None
        assert self.broker.renew("q", kept.held) == [self.broker.now + LOCK_S]
        kept.held_until = self.broker.now + LOCK_S

    @precondition(lambda self: any(kept.state == "deferred" for kept in self.model.alive))
    @rule()
    def fetch(self) -> None:
        kept = next(kept for kept in self.model.alive if kept.state == "deferred")
        if kept.dies_at <= self.broker.now:
            try:
                self.broker.deferred("q", kept.number)
            except MessageNotFoundError:
                self.model.end(kept)
                return
            raise AssertionError("an expired message was given")
        (fetched,) = self.broker.deferred("q", kept.number)
        assert (str(fetched), fetched.delivery_count) == (kept.name, kept.failed)
        kept.state, kept.held, kept.held_until = "held", fetched, self.broker.now + LOCK_S

    @rule(span_s=SPANS)
    def wait(self, span_s: float) -> None:
        stale = [kept.held for kept in self.held() if kept.held_until <= self.broker.now + span_s]
        self.broker.wait(span_s)
        self.model.pass_time(self.broker.now)
        for each in stale:
            assert each is not None
            try:
                self.broker.settle("q", each)
            except MessageLockLostError:
                continue
            raise AssertionError("a stale token settled a message")

    @rule(keep=st.booleans())
    def transact(self, keep: bool) -> None:
        transaction = self.broker.begin()
        self.count += 1
        self.broker.send("q", message(str(self.count), partition_key="a"), transaction=transaction)
        if keep:
            self.broker.commit(transaction)
            self.model.alive.append(Kept(str(self.count)))
        else:
            self.broker.rollback(transaction)

    @invariant()
    def nothing_is_lost_or_invented(self) -> None:
        assert sorted(bodies(self.broker.browse())) == sorted(kept.name for kept in self.model.alive)
        counts = self.broker.counts("q")
        assert counts.active_message_count == len(self.model.alive)
        assert counts.dead_letter_message_count == len(self.model.dead)
        stored = sum(fragment.size_bytes for fragment in self.broker.body().fragments)
        assert (stored > 0) == bool(self.model.alive)

    def teardown(self) -> None:
        dead = bodies(self.broker.drain("q/$DeadLetterQueue"))
        assert sorted(dead) == sorted(self.model.dead)


class PartitionedMachine(QueueMachine):
    is_partitioned = True


class DuplicateMachine(RuleBasedStateMachine):
    """Sends with a few ids and keys on one queue with duplicate detection."""

    is_partitioned = False

    def __init__(self) -> None:
        super().__init__()
        self.broker = Driver()
        self.broker.queue(enable_partitioning=self.is_partitioned, requires_duplicate_detection=True)
        self.seen: dict[object, float] = {}
        self.accepted: list[str] = []
        self.count = 0

    @rule(message_id=IDS, key=KEYS)
    def send(self, message_id: str, key: str | None) -> None:
        self.count += 1
        self.broker.send("q", message(str(self.count), message_id=message_id, partition_key=key))
        identity = (message_id, key) if self.is_partitioned else message_id
        if self.broker.now - self.seen.get(identity, float("-inf")) >= WINDOW_S:
            self.seen[identity] = self.broker.now
            self.accepted.append(str(self.count))

    @rule(span_s=SPANS)
    def wait(self, span_s: float) -> None:
        self.broker.wait(span_s)

    @rule()
    def drain(self) -> None:
        assert sorted(bodies(self.broker.drain())) == sorted(self.accepted)
        self.accepted.clear()

    @invariant()
    def the_first_of_each_is_there(self) -> None:
        assert sorted(bodies(self.broker.browse())) == sorted(self.accepted)


class PartitionedDuplicateMachine(DuplicateMachine):
    is_partitioned = True


class SessionMachine(RuleBasedStateMachine):
    """Sends to a few sessions, which are held, lost and released; order inside each is the model's list."""

    is_partitioned = False

    def __init__(self) -> None:
        super().__init__()
        self.broker = Driver()
        self.broker.queue(enable_partitioning=self.is_partitioned, requires_session=True, max_delivery_count=1000)
        self.waiting: dict[str, list[str]] = {"a": [], "b": [], "c": []}
        self.taken: dict[str, list[ServiceBusReceivedMessage]] = {"a": [], "b": [], "c": []}
        self.locks: dict[str, SessionLock] = {}
        self.with_state: set[str] = set()
        self.count = 0

    SESSIONS = st.sampled_from("abc")

    def free(self, session: str) -> None:
        del self.locks[session]
        self.waiting[session] = bodies(self.taken[session]) + self.waiting[session]
        self.waiting[session].sort(key=int)
        self.taken[session] = []

    @rule(session=SESSIONS, size=st.integers(1, 3))
    def send(self, session: str, size: int) -> None:
        for _ in range(size):
            self.count += 1
            self.broker.send("q", message(str(self.count), session_id=session))
            self.waiting[session].append(str(self.count))

    @rule(session=SESSIONS)
    def accept(self, session: str) -> None:
        try:
            lock = self.broker.held("q", session)
        except SessionCannotBeLockedError:
            assert session in self.locks
        else:
            assert session not in self.locks
            self.locks[session] = lock

    @rule()
    def accept_next(self) -> None:
        lock = self.broker.accept()
        available = [name for name, waiting in self.waiting.items() if waiting and name not in self.locks]
        assert (lock is None) == (not available)
        if lock is not None:
            assert lock.session_id in available
            self.locks[lock.session_id] = lock

    @rule(session=SESSIONS, count=st.integers(1, 4))
    def receive(self, session: str, count: int) -> None:
        if session in self.locks:
            received = self.broker.receive("q", count, lock=self.locks[session])
            assert bodies(received) == self.waiting[session][:count]
            del self.waiting[session][:count]
            self.taken[session] += received

    @rule(session=SESSIONS, completes=st.booleans())
    def settle(self, session: str, completes: bool) -> None:
        if self.taken[session]:
            each = self.taken[session].pop(0)
            self.broker.settle("q", each, how=COMPLETE if completes else ABANDON, lock=self.locks[session])
            if not completes:
                self.waiting[session] = sorted([str(each), *self.waiting[session]], key=int)

    @rule(session=SESSIONS)
    def release(self, session: str) -> None:
        if session in self.locks:
            self.broker.release("q", self.locks[session])
            self.free(session)

    @rule(session=SESSIONS, state=st.binary(max_size=3))
    def remember(self, session: str, state: bytes) -> None:
        if session in self.locks:
            self.broker.set_state("q", self.locks[session], state)
            assert self.broker.state("q", self.locks[session]) == (state or None)
            if state:
                self.with_state.add(session)
            else:
                self.with_state.discard(session)

    @rule(span_s=SPANS, renews=st.booleans())
    def wait(self, span_s: float, renews: bool) -> None:
        if renews:
            for lock in self.locks.values():
                self.broker.renew_session("q", lock)
        self.broker.wait(span_s)
        for session, lock in list(self.locks.items()):
            if lock.locked_until <= self.broker.now:
                self.free(session)
                try:
                    self.broker.receive(lock=lock)
                except SessionLockLostError:
                    continue
                raise AssertionError("a lost session gave a message")

    @invariant()
    def nothing_is_lost_or_invented(self) -> None:
        for session in "abc":
            expected = sorted([*self.waiting[session], *bodies(self.taken[session])], key=int)
            assert bodies(self.broker.peek(count=1000, session_id=session)) == expected
        assert self.broker.sessions() == [
            name for name in "abc" if self.waiting[name] or self.taken[name] or name in self.with_state
        ]


class PartitionedSessionMachine(SessionMachine):
    is_partitioned = True


BUDGET = settings(max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

TestPlainQueue = QueueMachine.TestCase
TestPlainQueue.settings = BUDGET
TestPartitionedQueue = PartitionedMachine.TestCase
TestPartitionedQueue.settings = BUDGET
TestDuplicateDetection = DuplicateMachine.TestCase
TestDuplicateDetection.settings = BUDGET
TestPartitionedDuplicateDetection = PartitionedDuplicateMachine.TestCase
TestPartitionedDuplicateDetection.settings = BUDGET
TestSessions = SessionMachine.TestCase
TestSessions.settings = BUDGET
TestPartitionedSessions = PartitionedSessionMachine.TestCase
TestPartitionedSessions.settings = BUDGET
