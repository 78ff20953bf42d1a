"""The account finds what is broken, and bears with what is explained."""

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
class Story:
    """What the programs of a run wrote, and what else is known of it; moments are seconds after `T`."""

    sending: dict[tuple[str, int], list[Line]] = field(default_factory=dict)
    receiving: dict[tuple[str, int], list[Line]] = field(default_factory=dict)
    crossings: dict[str, list[Crossing]] = field(default_factory=dict)
    injected: list[InjectedFault] = field(default_factory=list)
    syphon_log: list[Line] = field(default_factory=list)

    def sends(self, uid: str, at: float = 1.0, outcome: str = "ok", *, end: float | None = None, **facts: Any) -> Story:
        """A try of sender-1; without an outcome it never got an answer."""
        letter = {"uid": uid, "entity": "orders", "size": 10, "color": "red", **facts}
        lines = self.sending.setdefault(("sender-1", 0), [])
        lines.append({"at": T + at, "event": "sending", "group": uid, "number": 1, "letters": [letter]})
        if outcome:
            lines.append({"at": T + (end or at + 0.1), "event": "sent", "group": uid, "outcome": outcome})
        return self

    def passes(self, uid: str, *ways: tuple[float, str, str]) -> Story:
        """It passed towards a namespace: moment, program, side."""
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
    ) -> Story:
        copy = {"path": path, "number": number, "stored_at": T + stored}
        lines = self.receiving.setdefault((program, 0), [])
        told = {
            "uid": uid,
            "is_whole": True,
            "message_id": uid,
            "session_id": None,
            "partition_key": None,
            "properties": {"color": "red"},
            "reason": None,
            "locked_until": T + at + LOCK_S,
        }
        lines.append({"at": T + at, "event": "received", "origin": origin, **copy, **told, **facts})
        if settled is not None:
            lines.append({"at": T + at + 0.1, "event": "settling", "mode": settled, **copy})
            if outcome is not None:
                lines.append({"at": T + at + 0.2, "event": "settled", "mode": settled, "outcome": outcome, **copy})
        return self

    def faults(self, kind: Kind, whom: str, begin: float, end: float) -> Story:
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


def honest() -> Story:
    return Story().sends("a").passes("a", (1.05, "sender-1", PRIMARY)).receives("a")


def test_an_honest_story_breaks_nothing() -> None:
    account = honest().account()
    assert account.violations == []
    assert (account.accepted, account.delivered, account.lost, account.unexpected) == (1, 1, 0, 0)


# -- lost and unexpected -----------------------------------------------------------------------------------------------


def test_an_accepted_message_that_never_arrives_is_lost() -> None:
    account = Story().sends("a").account()
    assert [one.invariant for one in account.violations] == ["I1"]
    assert account.lost == 1


def test_so_is_one_that_arrives_at_one_of_its_two_destinations() -> None:
    story = Story().sends("a").receives("a", path="orders/Subscriptions/red")
    paths = ["orders/Subscriptions/red", "orders/Subscriptions/all"]
    evidence = Evidence(
        sending=story.sending,
        receiving=story.receiving,
        explanations=Explanations({}, [], [], timeout_s=TIMEOUT_S),
        expected_paths=lambda facts: paths,
    )
    assert [one.invariant for one in account_of(evidence).violations] == ["I1"]


@pytest.mark.parametrize("outcome", ["refused", "in doubt", ""])
def test_what_was_not_accepted_need_not_arrive(outcome: str) -> None:
    account = Story().sends("a", outcome=outcome).account()
    assert account.violations == []
    assert (account.accepted, account.refused, account.open) == (
        0,
        int(outcome == "refused"),
        int(outcome != "refused"),
    )


@pytest.mark.parametrize("outcome", ["in doubt", ""])
def test_what_is_in_doubt_may_arrive(outcome: str) -> None:
    assert Story().sends("a", outcome=outcome).receives("a").broken() == []


def test_what_was_refused_must_not_arrive() -> None:
    assert Story().sends("a", outcome="refused").receives("a").broken() == ["I3"]


def test_what_was_refused_once_and_accepted_then_may() -> None:
    assert Story().sends("a", 1.0, "refused").sends("a", 2.0).receives("a", 3.0).broken() == []


def test_what_nobody_sent_must_not_arrive() -> None:
    assert honest().receives("b", number=2).broken() == ["I3"]


def test_nothing_arrives_where_it_does_not_belong() -> None:
    assert honest().receives("a", path="invoices", number=2).broken() == ["I3"]


def test_what_is_left_somewhere_is_told() -> None:
    assert honest().broken(left={"contoso/orders": 3}) == ["I14"]


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
def test_what_was_changed_on_the_way_is_told(facts: dict[str, Any]) -> None:
    assert Story().sends("a").receives("a", **facts).broken() == ["I4"]


def test_a_key_that_was_lost_is_told() -> None:
    assert Story().sends("a", key="k").receives("a").broken() == ["I4"]
    assert Story().sends("a", key="k").receives("a", session_id="k").broken() == []


def test_one_key_in_two_fragments_is_told() -> None:
    story = Story().sends("a", key="k").sends("b", key="k")
    story.receives("a", partition_key="k", number=1).receives("b", partition_key="k", number=(1 << 48) + 1)
    assert story.broken(is_partitioned=True) == ["I5"]
    assert story.broken() == []


def test_what_comes_before_its_time_is_told() -> None:
    assert Story().sends("a", appears_at=T + 1.5).receives("a", stored=1.4).broken() == ["I4"]
    assert Story().sends("a", appears_at=T + 1.5).receives("a", stored=1.5).broken() == []


# -- dead letters ------------------------------------------------------------------------------------------------------


def dead(story: Story, reason: str | None, origin: str = DEAD_LETTERS) -> Story:
    return story.receives("a", 9.0, origin=origin, reason=reason, settled=None, program="drain-1")


def test_a_dead_letter_needs_a_true_reason() -> None:
    unwanted = Story().sends("a").receives("a", settled="dead_letter")
    assert dead(unwanted, "unwanted").broken() == []
    assert dead(Story().sends("a"), "unwanted").broken() == ["I1"]
    assert dead(Story().sends("a"), "MaxDeliveryCountExceeded").broken() == ["I1"]
    assert dead(Story().sends("a"), None).broken() == ["I1"]
    assert dead(Story().sends("a"), "TTLExpiredException").broken() == ["I1"]
    assert dead(Story().sends("a", life_s=4.0), "TTLExpiredException").broken() == []


def test_so_it_does_in_the_backlog() -> None:
    assert dead(Story().sends("a", life_s=4.0), "TTLExpiredException", BACKLOG_DEAD_LETTERS).broken() == []
    assert dead(Story().sends("a"), "DestinationRefused", BACKLOG_DEAD_LETTERS).broken() == ["I1"]


# -- copies ------------------------------------------------------------------------------------------------------------


def twice(story: Story) -> Story:
    return story.receives("a", 8.0, number=2, stored=7.0)


def test_a_second_copy_without_a_second_sending_is_not_explained() -> None:
    account = twice(honest()).account()
    assert [one.invariant for one in account.violations] == ["I6"]
    assert (account.unexplained_duplicates, account.explained_duplicates) == (1, 0)


def test_a_second_sending_needs_a_reason() -> None:
    story = twice(honest()).passes("a", (3.0, "sender-1", PRIMARY))
    assert story.broken() == ["I6"]


@pytest.mark.parametrize("whom", ["sender-1", "sender-1>primary", PRIMARY])
def test_what_injected_its_way_meanwhile_is_one(whom: str) -> None:
    story = twice(honest()).passes("a", (3.0, "sender-1", PRIMARY))
    account = story.faults(Kind.LOST_ANSWERS, whom, 1.0, 2.9).account()
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
    story = twice(honest()).passes("a", (3.0, "sender-1", PRIMARY))
    assert story.faults(kind, whom, begin, end).broken() == ["I6"]


def test_an_answer_that_did_not_come_in_time_is_one() -> None:
    assert twice(honest()).passes("a", (1.05 + TIMEOUT_S, "sender-1", PRIMARY)).broken() == []


def test_an_application_that_was_left_in_doubt_is_one() -> None:
    story = Story().sends("a", 1.0, "in doubt").sends("a", 3.0).receives("a")
    story.passes("a", (1.05, "sender-1", PRIMARY), (3.05, "sender-1", PRIMARY))
    assert twice(story).broken() == []


def test_one_that_was_refused_for_certain_is_none() -> None:
    story = Story().sends("a", 1.0, "refused").sends("a", 3.0).receives("a")
    story.passes("a", (1.05, "sender-1", PRIMARY), (3.05, "sender-1", PRIMARY))
    assert twice(story).broken() == ["I6"]


def test_where_duplicates_are_detected_there_is_one_copy_whatever_happened() -> None:
    story = twice(honest()).passes("a", (3.0, "sender-1", PRIMARY)).faults(Kind.RESET, PRIMARY, 1.0, 2.9)
    assert story.broken(detects_duplicates=True) == ["I7"]


# -- copies by way of the backlog --------------------------------------------------------------------------------------


def diverted() -> Story:
    story = Story().sends("a").receives("a")
    return story.passes("a", (1.05, "sender-1", SECONDARY), (5.0, "syphon-1", PRIMARY))


def test_a_diverted_message_comes_once() -> None:
    account = diverted().account()
    assert (account.violations, account.diverted) == ([], 1)
    assert twice(diverted()).broken() == ["I6"]


def test_a_syphon_that_was_killed_explains_a_second_move() -> None:
    story = twice(diverted()).passes("a", (9.0, "syphon-2", PRIMARY))
    assert story.broken() == ["I6"]
    assert story.faults(Kind.KILL, "syphon-1", 5.1, 6.0).broken() == []


def test_a_syphon_that_was_told_to_end_explains_nothing() -> None:
    story = twice(diverted()).passes("a", (9.0, "syphon-2", PRIMARY))
    assert story.faults(Kind.TERMINATE, "syphon-1", 5.1, 6.0).broken() == ["I6"]


def test_a_lock_that_a_syphon_lost_explains_a_second_move() -> None:
    story = twice(diverted()).passes("a", (9.0, "syphon-2", PRIMARY))
    story.syphon_log.append({"event": "syphon.lock_lost", "timestamp": "2023-11-14T22:13:27Z"})
    assert story.broken() == []


def test_a_message_in_the_primary_and_in_the_backlog_needs_a_reason_too() -> None:
    ways = [(1.05, "sender-1", PRIMARY), (3.0, "sender-1", SECONDARY), (6.0, "syphon-1", PRIMARY)]
    story = twice(Story().sends("a", end=3.1).receives("a").passes("a", *ways))
    assert story.broken() == ["I6"]
    assert story.faults(Kind.RESET, "sender-1>primary", 1.0, 2.5).broken() == []


# -- one copy again ----------------------------------------------------------------------------------------------------


def again(story: Story, at: float) -> Story:
    return story.receives("a", at, program="receiver-2")


def test_a_copy_that_was_completed_never_comes_again() -> None:
    assert again(honest(), 60.0).broken() == ["I6"]


@pytest.mark.parametrize(("settled", "outcome"), [("abandon", "ok"), ("complete", "in doubt"), ("complete", None)])
def test_one_that_was_given_back_or_is_in_doubt_may(settled: str, outcome: str | None) -> None:
    assert again(Story().sends("a").receives("a", settled=settled, outcome=outcome), 5.0).broken() == []


def test_one_that_was_not_settled_comes_again_when_its_lock_has_ended() -> None:
    story = Story().sends("a").receives("a", settled=None)
    assert again(story, 2.0 + LOCK_S).broken() == []
    story = Story().sends("a").receives("a", settled=None)
    assert again(story, 5.0).broken() == ["I6"]
    assert story.broken(has_sessions=True) == []


# -- order -------------------------------------------------------------------------------------------------------------


def in_session(*arrivals: float) -> Story:
    story = Story()
    for number, at in enumerate(arrivals):
        uid = f"m{number}"
        story.sends(uid, 1.0 + number, key="s").receives(uid, at, number=number + 1, session_id="s")
    return story


def test_messages_of_a_session_arrive_in_order() -> None:
    assert in_session(10.0, 11.0, 12.0).broken(keeps_order=True) == []
    assert in_session(10.0, 12.0, 11.0).broken(keeps_order=True) == ["I8"]
    assert in_session(10.0, 12.0, 11.0).broken() == []


def test_what_was_sent_before_the_other_was_accepted_may_overtake_it() -> None:
    story = Story().sends("a", 1.0, end=3.0, key="s").sends("b", 2.0, key="s")
    story.receives("b", 4.0, number=2, session_id="s").receives("a", 5.0, session_id="s")
    assert story.broken(keeps_order=True) == []
