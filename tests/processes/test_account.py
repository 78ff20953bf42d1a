"""The account reports violations and accepts explained duplicates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.processes.account import BACKLOG_DEAD_LETTERS, DEAD_LETTERS, Account, Evidence, account_of
from tests.processes.chaos import InjectedFault
from tests.processes.explanations import Explanations
from tests.processes.faults import PRIMARY, SECONDARY, Fault, Kind
from tests.processes.record import Line
from tests.processes.scene import Crossing

T = 1_700_000_000.0
LOCK_S = 8.0
TIMEOUT_S = 4.5


@dataclass
class RunRecord:
    """The records of a run; times are seconds after `T`."""

    sending: dict[tuple[str, int], list[Line]] = field(default_factory=dict)
    receiving: dict[tuple[str, int], list[Line]] = field(default_factory=dict)
    crossings: dict[str, list[Crossing]] = field(default_factory=dict)
    injected: list[InjectedFault] = field(default_factory=list)
    syphon_log: list[Line] = field(default_factory=list)

    def sends(
        self, uid: str, at: float = 1.0, outcome: str = "ok", *, end: float | None = None, **facts: Any
    ) -> RunRecord:
        """Record a send of sender-1; without an outcome it did not return."""
        facts = {"uid": uid, "entity": "orders", "size": 10, "color": "red", **facts}
        lines = self.sending.setdefault(("sender-1", 0), [])
        lines.append({"at": T + at, "event": "sending", "group": uid, "number": 1, "messages": [facts]})
        if outcome:
            lines.append({"at": T + (end or at + 0.1), "event": "sent", "group": uid, "outcome": outcome})
        return self

    def passes(self, uid: str, *ways: tuple[float, str, str]) -> RunRecord:
        """Record that the message passed towards a namespace: time, program, side."""
        self.crossings.setdefault(uid, []).extend(Crossing(T + at, program, side) for at, program, side in ways)
        return self

    def receives(
        self,
        uid: str,
        at: float = 2.0,
        *,
        number: int = 1,
        stored: float = 1.05,
        settled: str | None = "complete",
        outcome: str | None = "ok",
        program: str = "receiver-1",
        path: str = "orders",
        origin: str = "queue",
        **facts: Any,
    ) -> RunRecord:
        copy = {"path": path, "number": number, "stored_at": T + stored}
        lines = self.receiving.setdefault((program, 0), [])
        received = {
            "uid": uid,
            "is_whole": True,
            "message_id": uid,
            "session_id": None,
            "partition_key": None,
            "properties": {"color": "red"},
            "reason": None,
            "locked_until": T + at + LOCK_S,
        }
        lines.append({"at": T + at, "event": "received", "origin": origin, **copy, **received, **facts})
        if settled is not None:
            lines.append({"at": T + at + 0.1, "event": "settling", "mode": settled, **copy})
            if outcome is not None:
                lines.append({"at": T + at + 0.2, "event": "settled", "mode": settled, "outcome": outcome, **copy})
        return self

    def faults(self, kind: Kind, whom: str, begin: float, end: float) -> RunRecord:
        self.injected.append(InjectedFault(Fault(begin, end - begin, kind, whom), T + begin, T + end))
        return self

    def account(self, **more: Any) -> Account:
        logs = [self.syphon_log]
        evidence = Evidence(
            sending=self.sending,
            receiving=self.receiving,
            explanations=Explanations(self.crossings, self.injected, logs, timeout_s=TIMEOUT_S),
            expected_paths=lambda facts: ["orders"],
            **more,
        )
        return account_of(evidence)

    def broken(self, **more: Any) -> list[str]:
        return [violation.invariant for violation in self.account(**more).violations]


def normal() -> RunRecord:
    return RunRecord().sends("a").passes("a", (1.05, "sender-1", PRIMARY)).receives("a")


def test_normal_run_has_no_violations() -> None:
    account = normal().account()
    assert account.violations == []
    assert (account.accepted, account.delivered, account.lost, account.unexpected) == (1, 1, 0, 0)


# -- lost and unexpected -----------------------------------------------------------------------------------------------


def test_accepted_message_that_does_not_arrive_is_lost() -> None:
    account = RunRecord().sends("a").account()
    assert [one.invariant for one in account.violations] == ["I1"]
    assert account.lost == 1


def test_message_that_misses_one_of_two_destinations_is_lost() -> None:
    record = RunRecord().sends("a").receives("a", path="orders/Subscriptions/red")
    paths = ["orders/Subscriptions/red", "orders/Subscriptions/all"]
    evidence = Evidence(
        sending=record.sending,
        receiving=record.receiving,
        explanations=Explanations({}, [], [], timeout_s=TIMEOUT_S),
        expected_paths=lambda facts: paths,
    )
    assert [one.invariant for one in account_of(evidence).violations] == ["I1"]


@pytest.mark.parametrize("outcome", ["refused", "in doubt", ""])
def test_message_that_was_not_accepted_may_be_absent(outcome: str) -> None:
    account = RunRecord().sends("a", outcome=outcome).account()
    assert account.violations == []
    assert (account.accepted, account.refused, account.open) == (
        0,
        int(outcome == "refused"),
        int(outcome != "refused"),
    )


@pytest.mark.parametrize("outcome", ["in doubt", ""])
def test_message_in_doubt_may_arrive(outcome: str) -> None:
    assert RunRecord().sends("a", outcome=outcome).receives("a").broken() == []


def test_rejected_message_that_arrives_is_a_violation() -> None:
    assert RunRecord().sends("a", outcome="refused").receives("a").broken() == ["I3"]


def test_message_that_was_rejected_then_accepted_may_arrive() -> None:
    assert RunRecord().sends("a", 1.0, "refused").sends("a", 2.0).receives("a", 3.0).broken() == []


def test_message_that_was_never_sent_is_a_violation() -> None:
    assert normal().receives("b", number=2).broken() == ["I3"]


def test_message_at_a_wrong_destination_is_a_violation() -> None:
    assert normal().receives("a", path="invoices", number=2).broken() == ["I3"]


def test_message_left_in_a_queue_is_a_violation() -> None:
    assert normal().broken(left={"contoso/orders": 3}) == ["I14"]


# -- changed -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "facts",
    [
        {"is_whole": False},
        {"message_id": "another"},
        {"properties": {"color": "blue"}},
        {"properties": {"color": "red", "x-ms-path": "orders"}},
    ],
)
def test_changed_message_is_a_violation(facts: dict[str, Any]) -> None:
    assert RunRecord().sends("a").receives("a", **facts).broken() == ["I4"]


def test_lost_key_is_a_violation() -> None:
    assert RunRecord().sends("a", key="k").receives("a").broken() == ["I4"]
    assert RunRecord().sends("a", key="k").receives("a", session_id="k").broken() == []


def test_key_in_two_fragments_is_a_violation() -> None:
    record = RunRecord().sends("a", key="k").sends("b", key="k")
    record.receives("a", partition_key="k", number=1).receives("b", partition_key="k", number=(1 << 48) + 1)
    assert record.broken(is_partitioned=True) == ["I5"]
    assert record.broken() == []


def test_scheduled_message_that_arrives_early_is_a_violation() -> None:
    assert RunRecord().sends("a", appears_at=T + 1.5).receives("a", stored=1.4).broken() == ["I4"]
    assert RunRecord().sends("a", appears_at=T + 1.5).receives("a", stored=1.5).broken() == []


# -- dead letters ------------------------------------------------------------------------------------------------------


def dead(record: RunRecord, reason: str | None, origin: str = DEAD_LETTERS) -> RunRecord:
    return record.receives("a", 9.0, origin=origin, reason=reason, settled=None, program="drain-1")


def test_dead_letter_with_a_wrong_reason_is_a_violation() -> None:
    unwanted = RunRecord().sends("a").receives("a", settled="dead_letter")
    assert dead(unwanted, "unwanted").broken() == []
    assert dead(RunRecord().sends("a"), "unwanted").broken() == ["I1"]
    assert dead(RunRecord().sends("a"), "MaxDeliveryCountExceeded").broken() == ["I1"]
    assert dead(RunRecord().sends("a"), None).broken() == ["I1"]
    assert dead(RunRecord().sends("a"), "TTLExpiredException").broken() == ["I1"]
    assert dead(RunRecord().sends("a", life_s=4.0), "TTLExpiredException").broken() == []


def test_backlog_dead_letter_with_a_wrong_reason_is_a_violation() -> None:
    assert dead(RunRecord().sends("a", life_s=4.0), "TTLExpiredException", BACKLOG_DEAD_LETTERS).broken() == []
    assert dead(RunRecord().sends("a"), "DestinationRefused", BACKLOG_DEAD_LETTERS).broken() == ["I1"]


# -- copies ------------------------------------------------------------------------------------------------------------


def twice(record: RunRecord) -> RunRecord:
    return record.receives("a", 8.0, number=2, stored=7.0)


def test_second_copy_after_one_send_is_unexplained() -> None:
    account = twice(normal()).account()
    assert [one.invariant for one in account.violations] == ["I6"]
    assert (account.unexplained_duplicates, account.explained_duplicates) == (1, 0)


def test_second_send_without_a_reason_is_a_violation() -> None:
    record = twice(normal()).passes("a", (3.0, "sender-1", PRIMARY))
    assert record.broken() == ["I6"]


@pytest.mark.parametrize("whom", ["sender-1", "sender-1>primary", PRIMARY])
def test_fault_between_two_sends_explains_a_duplicate(whom: str) -> None:
    record = twice(normal()).passes("a", (3.0, "sender-1", PRIMARY))
    account = record.faults(Kind.LOST_ANSWERS, whom, 1.0, 2.9).account()
    assert account.violations == []
    assert account.explained_duplicates == 1


@pytest.mark.parametrize(
    ("kind", "whom", "begin", "end"),
    [
        (Kind.LOST_ANSWERS, "sender-2>primary", 1.0, 2.9),
        (Kind.LOST_ANSWERS, "sender-1>primary", 4.0, 6.0),
        (Kind.LATENCY, "sender-1>primary", 1.0, 2.9),
    ],
)
def test_unrelated_fault_explains_no_duplicate(kind: Kind, whom: str, begin: float, end: float) -> None:
    record = twice(normal()).passes("a", (3.0, "sender-1", PRIMARY))
    assert record.faults(kind, whom, begin, end).broken() == ["I6"]


def test_response_timeout_explains_a_duplicate() -> None:
    assert twice(normal()).passes("a", (1.05 + TIMEOUT_S, "sender-1", PRIMARY)).broken() == []


def test_send_in_doubt_explains_a_duplicate() -> None:
    record = RunRecord().sends("a", 1.0, "in doubt").sends("a", 3.0).receives("a")
    record.passes("a", (1.05, "sender-1", PRIMARY), (3.05, "sender-1", PRIMARY))
    assert twice(record).broken() == []


def test_rejected_send_explains_no_duplicate() -> None:
    record = RunRecord().sends("a", 1.0, "refused").sends("a", 3.0).receives("a")
    record.passes("a", (1.05, "sender-1", PRIMARY), (3.05, "sender-1", PRIMARY))
    assert twice(record).broken() == ["I6"]


def test_second_copy_despite_duplicate_detection_is_a_violation() -> None:
    record = twice(normal()).passes("a", (3.0, "sender-1", PRIMARY)).faults(Kind.RESET, PRIMARY, 1.0, 2.9)
    assert record.broken(detects_duplicates=True) == ["I7"]


# -- diverted copies ---------------------------------------------------------------------------------------------------


def diverted() -> RunRecord:
    record = RunRecord().sends("a").receives("a")
    return record.passes("a", (1.05, "sender-1", SECONDARY), (5.0, "syphon-1", PRIMARY))


def test_diverted_message_arrives_once() -> None:
    account = diverted().account()
    assert (account.violations, account.diverted) == ([], 1)
    assert twice(diverted()).broken() == ["I6"]


def test_killed_syphon_explains_a_second_transfer() -> None:
    record = twice(diverted()).passes("a", (9.0, "syphon-2", PRIMARY))
    assert record.broken() == ["I6"]
    assert record.faults(Kind.KILL, "syphon-1", 5.1, 6.0).broken() == []


def test_terminated_syphon_explains_no_second_transfer() -> None:
    record = twice(diverted()).passes("a", (9.0, "syphon-2", PRIMARY))
    assert record.faults(Kind.TERMINATE, "syphon-1", 5.1, 6.0).broken() == ["I6"]


def test_lost_lock_of_a_syphon_explains_a_second_transfer() -> None:
    record = twice(diverted()).passes("a", (9.0, "syphon-2", PRIMARY))
    record.syphon_log.append({"event": "syphon.lock_lost", "timestamp": "2023-11-14T22:13:27Z"})
    assert record.broken() == []


def test_copies_in_primary_and_backlog_without_a_reason_are_a_violation() -> None:
    ways = [(1.05, "sender-1", PRIMARY), (3.0, "sender-1", SECONDARY), (6.0, "syphon-1", PRIMARY)]
    record = twice(RunRecord().sends("a", end=3.1).receives("a").passes("a", *ways))
    assert record.broken() == ["I6"]
    assert record.faults(Kind.RESET, "sender-1>primary", 1.0, 2.5).broken() == []


# -- redeliveries ------------------------------------------------------------------------------------------------------


def again(record: RunRecord, at: float) -> RunRecord:
    return record.receives("a", at, program="receiver-2")


def test_redelivery_of_a_completed_copy_is_a_violation() -> None:
    assert again(normal(), 60.0).broken() == ["I6"]


@pytest.mark.parametrize(("settled", "outcome"), [("abandon", "ok"), ("complete", "in doubt"), ("complete", None)])
def test_copy_that_was_abandoned_or_is_in_doubt_may_be_redelivered(settled: str, outcome: str | None) -> None:
    assert again(RunRecord().sends("a").receives("a", settled=settled, outcome=outcome), 5.0).broken() == []


def test_unsettled_copy_is_redelivered_after_its_lock_ends() -> None:
    record = RunRecord().sends("a").receives("a", settled=None)
    assert again(record, 2.0 + LOCK_S).broken() == []
    record = RunRecord().sends("a").receives("a", settled=None)
    assert again(record, 5.0).broken() == ["I6"]
    assert record.broken(has_sessions=True) == []


# -- order -------------------------------------------------------------------------------------------------------------


def in_session(*arrivals: float) -> RunRecord:
    record = RunRecord()
    for number, at in enumerate(arrivals):
        uid = f"m{number}"
        record.sends(uid, 1.0 + number, key="s").receives(uid, at, number=number + 1, session_id="s")
    return record


def test_session_messages_out_of_order_are_a_violation() -> None:
    assert in_session(10.0, 11.0, 12.0).broken(keeps_order=True) == []
    assert in_session(10.0, 12.0, 11.0).broken(keeps_order=True) == ["I8"]
    assert in_session(10.0, 12.0, 11.0).broken() == []


def test_messages_sent_concurrently_may_arrive_in_any_order() -> None:
    record = RunRecord().sends("a", 1.0, end=3.0, key="s").sends("b", 2.0, key="s")
    record.receives("b", 4.0, number=2, session_id="s").receives("a", 5.0, session_id="s")
    assert record.broken(keeps_order=True) == []
