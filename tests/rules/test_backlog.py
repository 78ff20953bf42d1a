from __future__ import annotations

from collections import Counter
from hashlib import sha256
from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sbclient.errors import BacklogUnavailableError, InvalidOperationError, ServiceBusConnectionError
from sbclient.rules.backlog import (
    BacklogChoice,
    Quarantine,
    backlog_queue_names,
    is_backlog_path,
    may_recover,
    native_session_id_of,
    primary_name_of,
    session_backlog_queue_names,
    session_backlog_queue_of,
)
from sbclient.rules.entity_path import is_entity_path

QUEUES = ["a", "b", "c"]


@pytest.mark.parametrize(
    ("namespace", "name"),
    [
        ("contoso.servicebus.windows.net", "contoso"),
        ("Contoso-2.servicebus.windows.net:5671", "Contoso-2"),
        ("contoso", "contoso"),
        ("localhost", "localhost"),
        ("LocalHost:5672", "LocalHost-5672"),
        ("127.0.0.1:5672", "127.0.0.1-5672"),
        ("127.0.0.1", "127.0.0.1"),
        ("memory://contoso", "contoso"),
    ],
)
def test_a_primary_names_its_backlog_queues(namespace: str, name: str) -> None:
    assert primary_name_of(namespace) == name
    assert all(is_entity_path(queue) for queue in backlog_queue_names(name, 2))


@pytest.mark.parametrize("namespace", ["", "memory://", ".servicebus.windows.net", "a b", "-x", "a/b", "ä.net"])
def test_a_primary_without_a_usable_name_is_refused(namespace: str) -> None:
    with pytest.raises(InvalidOperationError) as caught:
        primary_name_of(namespace)
    assert "primary_name" in str(caught.value)


def test_backlog_queues_are_numbered_from_zero() -> None:
    assert backlog_queue_names("contoso", 3) == [f"contoso/x-servicebus-transfer/{i}" for i in (0, 1, 2)]
    assert session_backlog_queue_names("contoso", 1) == ["contoso/x-servicebus-transfer-sessions/0"]


def test_every_client_takes_the_same_queue_for_a_session() -> None:
    queues = session_backlog_queue_names("contoso", 10)
    assert session_backlog_queue_of(queues, "123456789") == queues[0xCBF43926 % 10]  # the check value of CRC-32
    assert len({session_backlog_queue_of(queues, f"{i}") for i in range(200)}) == 10


def test_a_session_of_an_entity_is_one_session_of_the_backlog() -> None:
    native = native_session_id_of("Orders/EU", "s")
    assert native == sha256(b"orders/eu\ns").hexdigest()
    assert native == native_session_id_of("orders/eu", "s")
    others = [("orders/eu", "S"), ("orders", "s"), ("s", "")]
    others += [
        ("orders/eu", f"{before}s{after}") for before in ("", " ", "\n", "\0") for after in (" ", "\n", "\t", "\0")
    ]
    assert len({native, *(native_session_id_of(*other) for other in others)}) == len(others) + 1
    assert len(native_session_id_of("x" * 260, "ü" * 128)) <= 128


@pytest.mark.parametrize(
    ("path", "is_backlog"),
    [
        ("contoso/x-servicebus-transfer/0", True),
        ("contoso\\X-ServiceBus-Transfer\\0", True),
        ("x-servicebus-transfer", True),
        ("contoso/x-servicebus-transfer-sessions/0/$DeadLetterQueue", True),
        ("contoso/x-servicebus-transfers/0", False),
        ("orders", False),
        ("", False),
    ],
)
def test_paths_of_backlog_queues_are_recognized(path: str, is_backlog: bool) -> None:
    assert is_backlog_path(path) is is_backlog


@pytest.mark.deviation("pairing.quarantine")
def test_a_failed_queue_is_left_out_for_30_seconds() -> None:
    quarantine = Quarantine()
    assert not quarantine.is_in("a", 0)
    assert quarantine.due_at("a") == float("-inf")
    quarantine.failed("a", 100)
    assert quarantine.is_in("a", 129.9)
    assert not quarantine.is_in("a", 130)
    assert quarantine.due_at("a") == 130


@pytest.mark.deviation("pairing.quarantine")
def test_the_term_doubles_up_to_five_minutes_however_late_the_next_failure_is() -> None:
    for pause_s in (0, 1, 10_000):
        quarantine = Quarantine()
        now = 0.0
        terms = []
        for _ in range(6):
            quarantine.failed("a", now)
            terms.append(quarantine.due_at("a") - now)
            now = quarantine.due_at("a") + pause_s
        assert terms == [30, 60, 120, 240, 300, 300]


def test_failing_again_in_quarantine_changes_nothing() -> None:
    quarantine = Quarantine()
    quarantine.failed("a", 0)
    quarantine.failed("a", 29)
    assert quarantine.due_at("a") == 30


def test_only_the_first_failure_since_a_success_withdraws_a_queue() -> None:
    quarantine = Quarantine()
    assert [quarantine.failed("a", now) for now in (0, 29, 31)] == [True, False, False]
    quarantine.succeeded("a")
    assert quarantine.failed("a", 32)


def test_a_success_forgets_everything() -> None:
    quarantine = Quarantine()
    quarantine.failed("a", 0)
    quarantine.failed("a", 30)
    assert quarantine.succeeded("a")
    assert not quarantine.succeeded("a")
    assert not quarantine.succeeded("b")
    assert not quarantine.is_in("a", 31)
    quarantine.failed("a", 40)
    assert quarantine.due_at("a") == 70


def test_queues_in_quarantine_are_listed_by_name() -> None:
    quarantine = Quarantine()
    quarantine.failed("b", 0)
    quarantine.failed("a", 10)
    quarantine.failed("c", 20)
    assert quarantine.queues(25) == ["a", "b", "c"]
    assert quarantine.queues(30) == ["a", "c"]


def test_the_choice_is_kept_and_balances_over_many_senders() -> None:
    random = Random(3)
    drawn = Counter[str | None]()
    for _ in range(3000):
        choice = BacklogChoice(QUEUES, Quarantine(), random)
        first = choice.pick(0)
        assert {choice.pick(now) for now in range(5)} == {first}
        drawn[first] += 1
    assert all(900 < drawn[queue] < 1100 for queue in QUEUES)


def test_a_failed_queue_is_left_by_every_sender() -> None:
    quarantine = Quarantine()
    senders = [BacklogChoice(QUEUES, quarantine, Random(seed)) for seed in range(20)]
    for sender in senders:
        sender.pick(0)
    quarantine.failed("a", 0)
    assert {sender.pick(1) for sender in senders} == {"b", "c"}


def test_a_message_is_not_tried_twice_at_one_queue() -> None:
    choice = BacklogChoice(QUEUES, Quarantine(), Random(0))
    tried: list[str] = []
    while (queue := choice.pick(0, tried=tried)) is not None:
        tried.append(queue)
    assert sorted(tried) == QUEUES


def test_with_all_in_quarantine_the_one_due_soonest_is_tried() -> None:
    quarantine = Quarantine()
    for queue, now in (("b", 0), ("c", 5), ("a", 10)):
        quarantine.failed(queue, now)
    choice = BacklogChoice(QUEUES, quarantine, Random(0))
    assert choice.pick(11) == "b"
    assert choice.pick(11, tried=["b"]) == "c"
    assert choice.pick(11, tried=["a", "b", "c"]) is None
    assert choice.pick(31) == "b"


class ChoiceAgainstItsLaws(RuleBasedStateMachine):
    """Two senders share a quarantine while queues fail and recover."""

    @initialize(seed=st.integers(0, 100))
    def start(self, seed: int) -> None:
        self.now = 0.0
        self.quarantine = Quarantine()
        self.choices = [BacklogChoice(QUEUES, self.quarantine, Random(seed + i)) for i in range(2)]
        self.picked: list[str | None] = [None, None]
        self.out_until: dict[str, float] = {}

    @rule(span_s=st.integers(1, 200))
    def time_passes(self, span_s: int) -> None:
        self.now += span_s

    @rule(queue=st.sampled_from(QUEUES))
    def a_queue_fails(self, queue: str) -> None:
        self.quarantine.failed(queue, self.now)
        if self.out_until.get(queue, 0) <= self.now:
            self.out_until[queue] = self.quarantine.due_at(queue)
        assert self.now < self.out_until[queue] <= self.now + 300

    @rule(queue=st.sampled_from(QUEUES))
    def a_queue_succeeds(self, queue: str) -> None:
        self.quarantine.succeeded(queue)
        self.out_until.pop(queue, None)

    @rule(sender=st.integers(0, 1), tried=st.sets(st.sampled_from(QUEUES)))
    def a_sender_picks(self, sender: int, tried: set[str]) -> None:
        queue = self.choices[sender].pick(self.now, tried=sorted(tried))
        usable = {queue for queue in QUEUES if self.out_until.get(queue, 0) <= self.now} - tried
        if usable:
            kept = self.picked[sender]
            assert queue == kept if kept in usable else queue in usable
            self.picked[sender] = queue
        else:
            left = [queue for queue in QUEUES if queue not in tried]
            assert queue == min(left, key=lambda queue: self.out_until[queue], default=None)

    @invariant()
    def the_quarantine_agrees(self) -> None:
        assert self.quarantine.queues(self.now) == [q for q in QUEUES if self.out_until.get(q, 0) > self.now]


TestChoiceAgainstItsLaws = ChoiceAgainstItsLaws.TestCase


@pytest.mark.parametrize("name", ["", "a/b", "-a", "a b", "ä"])
def test_a_primary_name_must_be_a_segment_of_a_path(name: str) -> None:
    with pytest.raises(InvalidOperationError):
        backlog_queue_names(name, 1)
    with pytest.raises(InvalidOperationError):
        session_backlog_queue_names(name, 1)


def test_a_namespace_may_recover_if_one_of_its_errors_may() -> None:
    lasting, passing = InvalidOperationError("x"), ServiceBusConnectionError("x")
    for error, expected in (
        (passing, True),
        (lasting, False),
        (ValueError(), False),
        (None, False),
        (BacklogUnavailableError("x", {}), False),
        (BacklogUnavailableError("x", {"a": lasting, "b": passing}), True),
        (BacklogUnavailableError("x", {"a": lasting, "b": BacklogUnavailableError("y", {"c": lasting})}), False),
    ):
        assert may_recover(error) is expected
    outer = BacklogUnavailableError("x", {"a": lasting})
    outer.__cause__ = passing
    assert may_recover(outer)
