from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sbclient.errors import (
    InvalidOperationError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusError,
    ServiceBusInternalError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)
from sbclient.options import ORIGINAL_OUTAGE_ERRORS
from sbclient.retry import NotTriedError
from sbclient.rules.failover import (
    TRANSITIONS,
    EntityFailover,
    FailoverEvent,
    FailoverState,
    PingKeys,
    Transition,
    is_outage,
)

HEALTHY, SUSPECT, FAILED_OVER = FailoverState.HEALTHY, FailoverState.SUSPECT, FailoverState.FAILED_OVER
KEYLESS = PingKeys()
KEYED = PingKeys(session_id="s", partition_key="s")


def entity(*, interval_s: float = 60, ping_s: float = 60, pings: int = 1) -> EntityFailover:
    return EntityFailover(
        failover_interval_s=interval_s, ping_interval_s=ping_s, pings_to_recover=pings, random=Random(7), now=0
    )


def failed_over(**options: Any) -> EntityFailover:
    """An entity that is failed over since 60 s."""
    subject = entity(**options)
    subject.outage(0, keys=KEYED)
    subject.advance(60)
    return subject


def ping(subject: EntityFailover, now: float, *, accepted: bool) -> Transition | None:
    return subject.ping_answered(now, accepted=accepted, generation=subject.ping_started())


def test_the_table_names_every_event_that_can_happen() -> None:
    impossible = {
        (HEALTHY, FailoverEvent.DEADLINE_PASSED),
        (HEALTHY, FailoverEvent.PINGS_ACCEPTED),
        (SUSPECT, FailoverEvent.PINGS_ACCEPTED),
        (HEALTHY, FailoverEvent.ENTITY_MISSING),
        (SUSPECT, FailoverEvent.ENTITY_MISSING),
        (FAILED_OVER, FailoverEvent.DEADLINE_PASSED),
    }
    assert set(TRANSITIONS) | impossible == {(state, event) for state in FailoverState for event in FailoverEvent}
    assert set(TRANSITIONS).isdisjoint(impossible)


def test_only_a_deadline_or_an_operator_fails_an_entity_over() -> None:
    causes = {event for (state, event), after in TRANSITIONS.items() if after is FAILED_OVER is not state}
    assert causes == {FailoverEvent.DEADLINE_PASSED, FailoverEvent.MARKED_UNHEALTHY, FailoverEvent.FORCED}


def test_a_ping_to_an_entity_that_never_existed_ends_the_failover() -> None:
    subject = entity(pings=3)
    subject.mark_unhealthy(10)
    transition = subject.ping_answered(11, accepted=False, generation=subject.ping_started(), is_unknown_entity=True)
    assert transition == Transition(FAILED_OVER, HEALTHY, FailoverEvent.ENTITY_MISSING, 11)


def test_a_missing_entity_does_not_end_a_forced_failover() -> None:
    subject = entity()
    subject.force(10)
    assert subject.ping_answered(11, accepted=False, generation=subject.generation, is_unknown_entity=True) is None
    assert subject.is_failed_over


def test_an_outage_arms_a_deadline_that_later_ones_do_not_move() -> None:
    subject = entity()
    assert subject.outage(10, keys=KEYLESS) == Transition(HEALTHY, SUSPECT, FailoverEvent.OUTAGE, 10)
    assert subject.outage(40, keys=KEYLESS) is None
    assert subject.next_deadline() == 70
    assert subject.advance(69.9) is None
    assert subject.advance(70) == Transition(SUSPECT, FAILED_OVER, FailoverEvent.DEADLINE_PASSED, 70)
    assert subject.is_failed_over
    assert subject.since_at == 70


def test_any_success_disarms_the_deadline() -> None:
    subject = entity()
    subject.outage(0, keys=KEYLESS)
    assert subject.success(59, generation=0) == Transition(SUSPECT, HEALTHY, FailoverEvent.SUCCESS, 59)
    assert subject.next_deadline() is None
    assert subject.advance(1000) is None
    subject.outage(1000, keys=KEYLESS)
    assert subject.next_deadline() == 1060


def test_a_success_changes_nothing_in_a_healthy_entity() -> None:
    subject = entity()
    assert subject.success(1, generation=0) is None
    assert (subject.state, subject.since_at) == (HEALTHY, 0)


def test_an_outage_after_the_deadline_fails_over_without_waiting_for_the_timer() -> None:
    subject = entity()
    subject.outage(0, keys=KEYLESS)
    changed = subject.outage(61, keys=KEYLESS)
    assert changed is not None
    assert changed.after is FAILED_OVER


def test_an_interval_of_zero_fails_over_at_the_first_outage() -> None:
    subject = entity(interval_s=0)
    changed = subject.outage(5, keys=KEYLESS)
    assert changed == Transition(SUSPECT, FAILED_OVER, FailoverEvent.DEADLINE_PASSED, 5)


def test_outages_and_successes_do_not_touch_an_entity_that_is_failed_over() -> None:
    subject = failed_over()
    assert subject.outage(61, keys=KEYLESS) is None
    assert subject.success(62, generation=1) is None
    assert (subject.state, subject.ping_keys) == (FAILED_OVER, KEYED)


def test_the_first_ping_is_due_at_once_and_the_next_after_the_interval() -> None:
    subject = failed_over(ping_s=100)
    assert subject.is_ping_due(60)
    assert ping(subject, 61, accepted=False) is None
    due_at = subject.next_deadline()
    assert due_at is not None
    assert 150 <= due_at <= 170
    assert not subject.is_ping_due(due_at - 0.001)
    assert subject.is_ping_due(due_at)


def test_pauses_between_pings_are_spread_both_ways() -> None:
    subject = failed_over(ping_s=100)
    pauses = []
    due_at = subject.next_deadline() or 0
    for _ in range(200):
        ping(subject, due_at + 20, accepted=False)
        pauses.append((subject.next_deadline() or 0) - due_at)
        due_at += pauses[-1]
    assert 90 <= min(pauses) < 92
    assert 108 < max(pauses) <= 110


def test_a_ping_that_hangs_for_longer_than_the_interval_delays_the_next_one_no_further() -> None:
    subject = failed_over(ping_s=10)
    ping(subject, 80, accepted=False)
    assert subject.next_deadline() == 80
    ping(subject, 81, accepted=False)
    assert 89 <= (subject.next_deadline() or 0) <= 91


def test_only_one_ping_is_pending() -> None:
    subject = failed_over()
    generation = subject.ping_started()
    assert not subject.is_ping_due(10_000)
    assert subject.next_deadline() is None
    subject.ping_answered(100, accepted=False, generation=generation)
    assert subject.next_deadline() is not None


def test_one_accepted_ping_ends_the_failover() -> None:
    subject = failed_over()
    changed = ping(subject, 70, accepted=True)
    assert changed == Transition(FAILED_OVER, HEALTHY, FailoverEvent.PINGS_ACCEPTED, 70)
    assert subject.next_deadline() is None
    assert not subject.is_ping_due(1000)


def test_pings_must_be_accepted_in_a_row() -> None:
    subject = failed_over(pings=2)
    answers = [ping(subject, now, accepted=now != 62) for now in (61, 62, 63)]
    assert answers == [None, None, None]
    assert ping(subject, 64, accepted=True) is not None


def test_a_success_begun_before_the_failover_is_ignored() -> None:
    subject = entity()
    begun = subject.generation
    subject.outage(0, keys=KEYLESS)
    subject.advance(60)
    assert subject.success(61, generation=begun) is None
    subject.mark_healthy(62)
    subject.outage(63, keys=KEYLESS)
    assert subject.success(64, generation=begun) is None
    assert subject.state is SUSPECT


def test_a_ping_begun_before_the_last_failover_is_ignored() -> None:
    subject = failed_over()
    begun = subject.ping_started()
    subject.mark_healthy(61)
    subject.mark_unhealthy(62)
    assert subject.ping_answered(63, accepted=True, generation=begun) is None
    assert subject.is_failed_over
    assert subject.is_ping_due(63)


def test_a_ping_answered_after_the_recovery_is_ignored() -> None:
    subject = entity()
    assert subject.ping_answered(1, accepted=True, generation=0) is None
    assert subject.state is HEALTHY


def test_a_ping_carries_the_last_failing_key() -> None:
    subject = entity()
    subject.outage(0, keys=PingKeys(partition_key="a"))
    subject.outage(1, keys=PingKeys(partition_key="b"))
    subject.outage(2, keys=KEYLESS)
    subject.advance(60)
    assert subject.ping_keys == PingKeys(partition_key="b")


def test_keys_of_an_earlier_suspicion_are_forgotten() -> None:
    subject = entity()
    subject.outage(0, keys=PingKeys(partition_key="a"))
    subject.success(1, generation=0)
    subject.outage(2, keys=KEYLESS)
    assert subject.ping_keys == KEYLESS


def test_marking_works_at_once_and_both_ways() -> None:
    subject = entity()
    assert subject.mark_healthy(1) is None
    assert subject.mark_unhealthy(2) == Transition(HEALTHY, FAILED_OVER, FailoverEvent.MARKED_UNHEALTHY, 2)
    assert subject.mark_unhealthy(3) is None
    assert subject.is_ping_due(2)
    assert subject.mark_healthy(4) == Transition(FAILED_OVER, HEALTHY, FailoverEvent.MARKED_HEALTHY, 4)
    assert subject.generation == 2


def test_marking_a_suspect_clears_its_deadline() -> None:
    for mark, after in (("mark_healthy", HEALTHY), ("mark_unhealthy", FAILED_OVER), ("force", FAILED_OVER)):
        subject = entity()
        subject.outage(0, keys=KEYLESS)
        changed = getattr(subject, mark)(1)
        assert changed.after is after
        assert subject.advance(1000) is None


def test_a_forced_failover_is_not_pinged_and_lasts() -> None:
    subject = entity()
    assert subject.force(1) == Transition(HEALTHY, FAILED_OVER, FailoverEvent.FORCED, 1)
    assert subject.is_forced
    assert subject.next_deadline() is None
    assert not subject.is_ping_due(10_000)
    assert subject.success(2, generation=1) is None
    assert subject.mark_healthy(3) is not None
    assert not subject.is_forced


def test_a_pending_ping_does_not_undo_force() -> None:
    subject = failed_over()
    begun = subject.ping_started()
    assert subject.force(61) is None
    assert subject.ping_answered(62, accepted=True, generation=begun) is None
    assert subject.is_failed_over
    assert subject.next_deadline() is None


def test_marking_a_forced_entity_unhealthy_lets_pings_count_again_from_zero() -> None:
    subject = failed_over(pings=2)
    ping(subject, 61, accepted=True)
    subject.force(62)
    assert subject.mark_unhealthy(63) is None
    assert not subject.is_forced
    assert subject.is_ping_due(63)
    assert ping(subject, 63, accepted=True) is None
    assert ping(subject, 64, accepted=True) is not None


def test_a_second_failover_needs_as_many_pings_as_the_first() -> None:
    subject = failed_over(pings=3)
    for now in (61, 62):
        assert ping(subject, now, accepted=True) is None
    assert ping(subject, 63, accepted=True) is not None
    subject.outage(100, keys=KEYED)
    subject.advance(160)
    assert subject.is_failed_over
    for now in (161, 162):
        assert ping(subject, now, accepted=True) is None
    assert ping(subject, 163, accepted=True) is not None


def test_the_error_class_says_whether_it_is_an_outage() -> None:
    for outage in (OperationTimeoutError("late"), ServiceBusServerBusyError("busy")):
        assert is_outage(outage, has_sent_before=False)
    assert not is_outage(InvalidOperationError("typing error"), has_sent_before=True)


@pytest.mark.deviation("pairing.outage-errors")
def test_a_missing_entity_is_an_outage_only_if_it_was_there() -> None:
    missing = MessagingEntityNotFoundError("gone")
    assert is_outage(missing, has_sent_before=True)
    assert not is_outage(missing, has_sent_before=False)


@pytest.mark.parametrize("verdict", [True, False])
def test_the_applications_judgement_is_the_only_one(verdict: bool) -> None:
    for error in (OperationTimeoutError("late"), InvalidOperationError("x"), MessagingEntityNotFoundError("gone")):
        assert is_outage(error, has_sent_before=True, override=lambda _: verdict) is verdict


@pytest.mark.deviation("pairing.outage-errors")
def test_the_original_client_fails_over_for_five_kinds_of_errors() -> None:
    def counts(error: ServiceBusError) -> bool:
        return is_outage(error, has_sent_before=True, override=ORIGINAL_OUTAGE_ERRORS)

    assert counts(OperationTimeoutError("late"))
    assert counts(ServiceBusInternalError("?"))
    assert counts(ServiceBusServerBusyError("busy"))
    for ours in (MessagingEntityDisabledError, ServiceBusQuotaExceededError, MessagingEntityNotFoundError):
        assert is_outage(ours("x"), has_sent_before=True)
        assert not counts(ours("x"))
    assert not counts(NotTriedError("queued"))


class Model:
    """The laws in ten lines: an outage arms, a success disarms, time engages, pings or a word recover."""

    def __init__(self, interval_s: int, pings: int) -> None:
        self.interval_s, self.pings = interval_s, pings
        self.is_over = self.is_forced = False
        self.armed_at: int | None = None
        self.changes = self.accepted = 0
        self.keys = KEYLESS

    @property
    def state(self) -> FailoverState:
        return FAILED_OVER if self.is_over else HEALTHY if self.armed_at is None else SUSPECT

    def become(self, is_over: bool, is_forced: bool = False) -> None:
        self.changes += is_over != self.is_over
        self.is_over, self.is_forced, self.armed_at, self.accepted = is_over, is_forced, None, 0

    def settle(self, now: int) -> None:
        if self.armed_at is not None and now >= self.armed_at + self.interval_s:
            self.become(is_over=True)


class FailoverAgainstItsModel(RuleBasedStateMachine):
    """Sends and pings begin and end in any order while time passes and operators intervene."""

    @initialize(interval_s=st.sampled_from([0, 60]), pings=st.integers(1, 3))
    def start(self, interval_s: int, pings: int) -> None:
        self.now = 0
        self.entity = entity(interval_s=interval_s, ping_s=20, pings=pings)
        self.model = Model(interval_s, pings)
        self.sends: list[tuple[int, int]] = []
        self.ping: tuple[int, int, float] | None = None
        self.since = HEALTHY, 0

    @rule(span_s=st.integers(1, 40))
    def time_passes(self, span_s: int) -> None:
        self.now += span_s
        self.entity.advance(self.now)
        self.model.settle(self.now)

    @rule(keys=st.sampled_from([KEYLESS, KEYED, PingKeys(None, "s2")]))
    def a_send_fails(self, keys: PingKeys) -> None:
        self.entity.outage(self.now, keys=keys)
        if self.model.state is HEALTHY or (self.model.state is SUSPECT and keys is not KEYLESS):
            self.model.keys = keys
        if not self.model.is_over and self.model.armed_at is None:
            self.model.armed_at = self.now
        self.model.settle(self.now)

    @rule()
    def a_send_begins(self) -> None:
        self.sends.append((self.entity.generation, self.model.changes))

    @precondition(lambda self: self.sends)
    @rule(choice=st.integers(0, 9))
    def a_send_succeeds(self, choice: int) -> None:
        generation, changes = self.sends.pop(choice % len(self.sends))
        self.entity.success(self.now, generation=generation)
        if changes == self.model.changes and not self.model.is_over:
            self.model.armed_at = None

    @precondition(lambda self: self.ping is None and self.entity.is_ping_due(self.now))
    @rule()
    def a_ping_begins(self) -> None:
        assert self.model.is_over
        assert not self.model.is_forced
        due_at = self.entity.next_deadline() or 0
        self.ping = self.entity.ping_started(), self.model.changes, due_at

    @precondition(lambda self: self.ping is not None)
    @rule(accepted=st.booleans())
    def a_ping_ends(self, accepted: bool) -> None:
        assert self.ping is not None
        (generation, changes, due_at), self.ping = self.ping, None
        counts = changes == self.model.changes and self.model.is_over and not self.model.is_forced
        self.entity.ping_answered(self.now, accepted=accepted, generation=generation)
        if not counts:
            return
        self.model.accepted = self.model.accepted + 1 if accepted else 0
        if self.model.accepted == self.model.pings:
            self.model.become(is_over=False)
        else:
            next_at = self.entity.next_deadline() or 0
            assert max(due_at + 18, self.now) <= next_at <= max(due_at + 22, self.now)

    @rule()
    def somebody_marks_it_healthy(self) -> None:
        self.entity.mark_healthy(self.now)
        self.model.become(is_over=False)

    @rule()
    def somebody_marks_it_unhealthy(self) -> None:
        self.entity.mark_unhealthy(self.now)
        if not self.model.is_over or self.model.is_forced:
            self.model.become(is_over=True)

    @rule()
    def somebody_forces_it(self) -> None:
        self.entity.force(self.now)
        self.model.become(is_over=True, is_forced=True)

    @invariant()
    def both_agree(self) -> None:
        if self.model.state is not self.since[0]:
            self.since = self.model.state, self.now
        assert (self.entity.state, self.entity.since_at) == self.since
        assert self.entity.ping_keys == self.model.keys
        assert self.entity.is_forced is self.model.is_forced
        assert self.entity.generation == self.model.changes
        if self.model.armed_at is not None:
            assert self.entity.next_deadline() == self.model.armed_at + self.model.interval_s
        elif self.model.is_forced or not self.model.is_over:
            assert self.entity.next_deadline() is None


TestFailoverAgainstItsModel = FailoverAgainstItsModel.TestCase
