"""What is noted of the changes, and the namespace that is put back from what they name: `changes`, `put_back`."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace

import pytest

from sbclient.broker.changes import FragmentAddress
from sbclient.broker.deduplication import Identity
from sbclient.broker.directory import Entity
from sbclient.broker.entry import Entry
from sbclient.broker.faults import Operation
from sbclient.broker.fragment import Fragment
from sbclient.broker.rule import Rule
from sbclient.delivery import Settlement, SettleMode
from sbclient.entities import Description, EntityKind, RuleProperties, SqlRuleFilter
from sbclient.errors import MessageNotFoundError, ServiceBusQuotaExceededError
from sbclient.rules.entity_path import canonical
from tests.broker.driver import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    KEYS,
    START,
    Driver,
    address,
    at,
    bodies,
    message,
    seconds,
    topic_address,
)

SUB = "t/Subscriptions/s"
TRIED = Settlement(SettleMode.ABANDON, properties={"tried": 1})


class Stored:
    """What a store holds that reads only what the changes name, and only when it is called."""

    def __init__(self, broker: Driver) -> None:
        self.broker = broker
        self.calls = 0
        self.changes = broker.namespace.record_changes(self._called)
        self.entities: dict[str, tuple[str | None, Description]] = {}
        self.rules: dict[tuple[str, str], Rule] = {}
        self.counters: dict[FragmentAddress, tuple[int, int]] = {}
        self.entries: dict[FragmentAddress, dict[int, Entry]] = {}
        self.states: dict[tuple[FragmentAddress, str], tuple[bytes, float]] = {}
        self.seen: dict[FragmentAddress, list[tuple[Identity, float]]] = {}

    def _called(self) -> None:
        self.calls += 1

    def write(self) -> None:
        if not self.calls:
            return
        directory = self.broker.namespace.directory
        for path in self.changes.removed:
            self.entities.pop(path, None)
            for kept in (self.counters, self.entries, self.seen):
                for where in [one for one in kept if canonical(one.path) == path]:
                    del kept[where]
            self.states = {key: state for key, state in self.states.items() if canonical(key[0].path) != path}
            self.rules = {key: rule for key, rule in self.rules.items() if key[0] != path}
        for path in self.changes.defined:
            entity = directory.find(path)[0]
            self.entities[path] = (entity.topic.path if entity.topic else None), entity.description
        for path, key in self.changes.rules:
            found = directory.get(path)
            rule = found and found.subscription and found.subscription.rules.get(key)
            self.rules.pop((path, key), None)
            if rule:
                self.rules[path, key] = rule
        for log in self.changes.fragments:
            where = log.address
            fragment = directory.find(where.path)[0].fragment(where.sub_queue, where.fragment_index)
            self.counters[where] = fragment.counter, fragment.arrived_count
            entries = self.entries.setdefault(where, {})
            for number in log.numbers:
                entries.pop(number, None)
                if number in fragment:
                    entry = entries[number] = copy(fragment._entries[number])
                    entry.token = 0
            for session_id in log.sessions:
                self.states.pop((where, session_id), None)
                state, set_at = fragment.state_of(session_id)
                if state is not None:
                    self.states[where, session_id] = state, set_at
            self.seen.setdefault(where, []).extend(log.seen)
        self.changes.clear()
        self.calls = 0

    def put_back(self) -> Driver:
        """The namespace of a second process at the same moment."""
        again = Driver(seed=2)
        again.now = self.broker.now
        management = again.namespace.management
        made = {
            path: management.put_back(topic, description, again.now)
            for path, (topic, description) in self.entities.items()
        }
        for (path, key), rule in self.rules.items():
            subscription = made[path].subscription
            assert subscription is not None
            subscription.put(key, rule)
        for where, counts in self.counters.items():
            fragment = self._fragment(made, where)
            fragment.counter, fragment.arrived_count = counts
            for number in sorted(self.entries.get(where, ())):
                fragment.put_back(self.entries[where][number])
            for identity, seen_at in self.seen.get(where, ()):
                fragment.seen.remember(identity, seen_at)
        for (where, session_id), (state, set_at) in self.states.items():
            self._fragment(made, where).put_back_state(session_id, state, set_at)
        management.direct_all()
        return again

    @staticmethod
    def _fragment(made: dict[str, Entity], where: FragmentAddress) -> Fragment:
        return made[canonical(where.path)].fragment(where.sub_queue, where.fragment_index)


class Kept(Driver):
    """Writes what has changed after each request to its messages."""

    def __init__(self) -> None:
        super().__init__()
        self.stored = Stored(self)

    def wait(self, span_s: float) -> None:
        self.stored.write()
        super().wait(span_s)
        self.namespace.advance(self.now)
        for entity in self.namespace.directory.all():
            entity.advance(self.now)
        self.stored.write()

    def again(self) -> Driver:
        self.wait(0.0)
        return self.stored.put_back()


@pytest.fixture
def kept() -> Kept:
    return Kept()


def seen_in(broker: Driver) -> dict[FragmentAddress, tuple[object, ...]]:
    """All that a later request could observe."""
    found: dict[FragmentAddress, tuple[object, ...]] = {}
    for entity in broker.namespace.directory.all():
        for name, queue in [("", entity.body), *entity.sub_queues.items()]:
            for fragment in queue.fragments:
                content = [
                    (
                        entry.number,
                        str(entry.peeked()),
                        entry.shown_state,
                        entry.delivery_count,
                        entry.expires_at,
                        entry.hops,
                        entry.added_properties,
                    )
                    for entry in fragment.browse(broker.now, 0)
                ]
                states = [
                    (one, session.state, session.state is not None and fragment.state_of(one))
                    for one, session in fragment.sessions(broker.now)
                ]
                counts = (fragment.counter, fragment.arrived_count, fragment.deferred_count, fragment.scheduled_count)
                usage = (fragment.size_bytes, fragment.usage.size_bytes, list(fragment.seen._in_order))
                found[FragmentAddress(entity.path, name, fragment.index)] = content, states, counts, usage
    return found


def _deliveries(kept: Kept) -> None:
    kept.queue("q", lock_duration=seconds(30), max_delivery_count=3)
    kept.send("q", *(message(text) for text in "abcdef"))
    for _ in range(2):
        kept.settle("q", kept.one(), how=TRIED)
        kept.wait(1)
    kept.settle("q", *kept.receive(count=2), how=DEFER)
    kept.wait(1)
    kept.settle("q", kept.one(), how=DEAD_LETTER)
    kept.wait(1)
    kept.receive(count=1)
    kept.wait(31)  # its lock ends


def _deferred(kept: Kept) -> None:
    kept.queue()
    kept.send("q", *(message(text) for text in "abc"))
    taken = kept.receive(count=3)
    kept.settle("q", *taken, how=DEFER)
    kept.wait(1)
    for how in (ABANDON, DEFER, TRIED):
        kept.settle("q", *kept.deferred("q", taken[0].sequence_number), how=how)
        kept.wait(1)
    kept.settle("q", *kept.deferred("q", taken[1].sequence_number))


def _times(kept: Kept) -> None:
    kept.queue(dead_lettering_on_message_expiration=True, default_message_time_to_live=seconds(100))
    kept.send("q", message("brief", time_to_live=seconds(1)), message("long"))
    numbers = kept.schedule(
        "q", *(message(str(delay), scheduled_enqueue_time_utc=at(START + delay)) for delay in (5, 50, 60))
    )
    kept.wait(1)
    kept.cancel("q", numbers[1])
    kept.wait(5)


def _sessions(kept: Kept) -> None:
    kept.queue(requires_session=True)
    kept.send("q", *(message(text, session_id=text) for text in "abca"))
    session_states: dict[str, list[bytes | None]] = {
        "a": [b"12", b"1"],
        "b": [b"1", None],
        "d": [b"alone"],
        "c": [b""],
    }
    for session, states in session_states.items():
        for state in states:
            lock = kept.held("q", session)
            kept.set_state("q", lock, state)
            kept.release("q", lock)
            kept.wait(1.25)
    kept.receive(lock=kept.held("q", "a"))
    kept.wait(61)  # its lock ends


def _copies(kept: Kept) -> None:
    kept.partitioned(requires_duplicate_detection=True)
    for key in (KEYS[3], KEYS[3], KEYS[9]):
        kept.send("q", message("x", message_id="same", partition_key=key))
        kept.wait(1)


def _topic(kept: Kept) -> None:
    kept.topic()
    for name in ("s", "gone", "default"):
        kept.subscription("t", name)
    kept.wait(1)
    kept.rule(SUB, "One", filter=SqlRuleFilter("n = 1"))
    kept.rule(SUB, "Two", filter=SqlRuleFilter("n = 2"))
    kept.delete(address(f"{SUB}/$Rules/$default"))
    kept.wait(1)
    kept.update(address(f"{SUB}/$Rules/one"), RuleProperties("One", filter=SqlRuleFilter("n = 3")))
    kept.delete(address("t/Subscriptions/gone"))
    kept.send("t", message("3", application_properties={"n": 3}))


def _made_again(kept: Kept) -> None:
    for size in (1024, 2048):
        kept.queue(max_size_in_megabytes=size, requires_session=size == 1024)
        kept.send("q", message("x", session_id="s"))
        kept.wait(1)
        if size == 1024:
            kept.delete(address("q"))
    kept.queue("other")
    kept.send("other", message("x"))
    kept.delete(address("other"))  # what was not written yet is forgotten
    kept.wait(1)
    kept.queue("third", requires_session=True)
    kept.send("third", message("x", session_id="s"))
    kept.wait(1)
    kept.delete(address("third"))  # and made again before that is written
    kept.queue("third")
    kept.wait(1)
    kept.update(address("q"), replace(kept.get(address("q")), max_delivery_count=3))


def _sent_via(kept: Kept) -> None:
    for path in ("via", "gone", "down"):
        kept.partitioned(path)
    for path in ("gone", "down"):
        kept.send(path, message("x"), via="via", via_partition_key=KEYS[2])
        kept.wait(1)
    kept.delete(address("gone"))
    kept.down("down")
    kept.send("down", message("y"), via="via", via_partition_key=KEYS[3])
    kept.queue("dead", forward_dead_lettered_messages_to="via")
    kept.send("dead", message("z"))
    kept.delete(address("via"))
    kept.settle("dead", kept.one("dead"), how=DEAD_LETTER)


def _forwarded(kept: Kept) -> None:
    kept.queue("end", max_size_in_megabytes=1024)
    kept.queue("middle", forward_to="end")
    kept.queue("q", forward_to="middle")
    kept.send("q", message("far"))
    kept.wait(1)
    kept.delete(address("end"))
    kept.wait(1)
    kept.send("q", message("refused"))


HISTORIES: list[Callable[[Kept], None]] = [
    _deliveries,
    _deferred,
    _times,
    _sessions,
    _copies,
    _topic,
    _made_again,
    _sent_via,
    _forwarded,
]


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__.strip("_"))
def test_what_the_changes_name_makes_the_same_namespace(kept: Kept, history: Callable[[Kept], None]) -> None:
    history(kept)
    again = kept.again()
    assert seen_in(again) == seen_in(kept)
    for each, other in zip(kept.namespace.directory.all(), again.namespace.directory.all(), strict=True):
        assert each.description == other.description
        if each.subscription is not None and other.subscription is not None:
            assert list(each.subscription.rules.items()) == list(other.subscription.rules.items())


def test_a_change_is_announced_once_until_it_is_written(kept: Kept) -> None:
    kept.queue("q")
    kept.partitioned("p")
    kept.wait(0)
    for _ in range(2):
        for path, fragment_count in (("q", 1), ("p", 2)):
            for number in range(4):
                kept.send(path, message("x", partition_key=KEYS[number % 2]))
            assert (kept.stored.calls, len(kept.stored.changes.fragments)) == (1, fragment_count)
            kept.wait(0)
    kept.peek("q")
    (locked,) = kept.receive("q")
    kept.renew("q", locked)
    assert kept.stored.calls == 0  # locks are not noted


def test_after_a_restart_everything_goes_on(kept: Kept) -> None:
    kept.queue(dead_lettering_on_message_expiration=True, requires_duplicate_detection=True)
    kept.queue("sessions", requires_session=True)
    kept.send("q", *(message(text, message_id=text) for text in "abcd"))
    kept.send("q", message("brief", message_id="brief", time_to_live=seconds(20)))
    (late,) = kept.schedule("q", message("late", message_id="late", scheduled_enqueue_time_utc=at(START + 30)))
    first, second = kept.receive(count=2)
    kept.settle("q", first, how=ABANDON)
    kept.settle("q", second, how=DEFER)
    kept.send("sessions", *(message(text, session_id=text[0]) for text in ("b1", "a1", "b2")))
    lock = kept.held("sessions", "b")
    kept.receive("sessions", lock=lock)
    kept.set_state("sessions", lock, b"state")
    kept.wait(10)
    again = kept.again()

    assert (again.counts("q").scheduled_message_count, again.counts("q").active_message_count) == (1, 5)
    again.send("q", message("a", message_id="a"), message("e", message_id="e"))
    assert bodies(again.drain()) == ["a", "c", "d", "brief", "e"]
    again.settle("q", *again.deferred("q", second.sequence_number))
    again.wait(20)
    (activated,) = again.drain()
    assert str(activated) == "late"
    assert activated.sequence_number > late + 1
    with pytest.raises(MessageNotFoundError):
        again.cancel("q", late)

    assert again.sessions("sessions") == ["a", "b"]
    assert [again.accept("sessions").session_id, again.accept("sessions").session_id] == ["b", "a"]  # type: ignore[union-attr]
    assert again.accept("sessions") is None
    again.wait(61)
    lock = again.held("sessions", "b")
    assert again.state("sessions", lock) == b"state"
    assert bodies(again.drain("sessions", lock=lock)) == ["b1", "b2"]
    used = again.body("sessions").fragments[0].usage.size_bytes
    again.set_state("sessions", lock, None)
    assert again.body("sessions").fragments[0].usage.size_bytes == used - len(b"state")


def test_an_expiry_after_a_restart_is_work_of_its_moment(kept: Kept) -> None:
    kept.queue(dead_lettering_on_message_expiration=True)
    kept.send("q", message("brief", time_to_live=seconds(20)), message("long"))
    again = kept.again()
    (entity,) = again.namespace.directory.all()
    assert entity.next_change_at() == START + 20
    again.wait(20)
    assert bodies(again.drain()) == ["long"]
    assert bodies(again.drain("q/$DeadLetterQueue")) == ["brief"]


def test_a_full_queue_is_full_after_a_restart_too(kept: Kept) -> None:
    kept.queue()
    kept.send("q", message("x" * 200_000))
    again = kept.again()
    again.body().policy.max_size_bytes = 400_000
    again.send("q", message("x" * 190_000))
    with pytest.raises(ServiceBusQuotaExceededError):
        again.send("q", message("x" * 20_000))


def test_forwarding_and_idle_times_begin_after_the_last_entity(kept: Kept) -> None:
    kept.queue("a", forward_to=None)
    kept.queue("z", auto_delete_on_idle=seconds(300))
    kept.update(address("a"), replace(kept.get(address("a")), forward_to="z"))
    kept.wait(200)
    again = kept.again()
    again.send("a", message("x"))
    assert bodies(again.drain("z")) == ["x"]
    again.wait(299)
    again.namespace.advance(again.now)
    assert {each.name for each in again.management.listed(again.call(Operation.MANAGE), EntityKind.QUEUE)} == {"a", "z"}
    again.wait(2)
    again.namespace.advance(again.now)
    assert {each.name for each in again.management.listed(again.call(Operation.MANAGE), EntityKind.QUEUE)} == {"a"}


def test_changes_of_a_deleted_entity_do_not_exist_for_others(kept: Kept) -> None:
    kept.topic("t")
    kept.subscription()
    kept.send("t", message("x"))
    (locked,) = kept.receive(SUB)
    fragment = kept.body(SUB).fragments[0]
    kept.delete(topic_address("t"))
    assert not kept.stored.changes.fragments
    fragment.settle(locked.lock_token.int, COMPLETE, kept.now)  # type: ignore[union-attr]
    assert not kept.stored.changes.fragments
    assert list(kept.stored.changes.removed) == ["t/subscriptions/s", "t"]
