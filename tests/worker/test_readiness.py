from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest

from sbclient import clock
from sbclient.errors import MessagingEntityNotFoundError, ServiceBusAuthenticationError, ServiceBusConnectionError
from sbclient.rules.refusal import OngoingError
from sbclient.syphon.status import QueueStatus, SyphonStatus
from sbclient.testing import Fault, FaultKind, MemoryPair
from sbclient.worker.readiness import GRACE_S, NamespaceHealth, WorkerState, reasons_against
from tests.worker.scene import Run, make_backlog

PRIMARY = NamespaceHealth("contoso", 100.0, None)
SECONDARY = NamespaceHealth("contoso-backup", 100.0, None)
DOWN = OngoingError.of(ServiceBusConnectionError("it is down"), 40.0)


def queue(name: str = "q/0", *, answered_at: float | None = 100.0, error: OngoingError | None = None) -> QueueStatus:
    return QueueStatus(name, 0, answered_at, 100.0, error)


def syphon(
    *queues: QueueStatus, refusing: dict[str, OngoingError] | None = None, is_stalled: bool = False
) -> SyphonStatus:
    return SyphonStatus(queues or (queue(),), refusing or {}, is_stalled, None, longest_pause_s=900.0)


def reasons(
    state: WorkerState = WorkerState.RUNNING,
    primary: NamespaceHealth = PRIMARY,
    secondary: NamespaceHealth = SECONDARY,
    status: SyphonStatus | None = None,
    *,
    now: float = 100.0,
    since_at: float = 0.0,
) -> Sequence[str]:
    found = reasons_against(state, primary, secondary, status or syphon(), now=now, since_at=since_at)
    assert all(reason.code for reason in found)
    return [reason.text for reason in found]


def test_worker_that_can_move_everything_has_no_reason() -> None:
    assert reasons() == []


@pytest.mark.parametrize("state", [WorkerState.STARTING, WorkerState.PAUSED, WorkerState.STOPPING])
def test_a_worker_that_does_not_run_is_not_ready(state: WorkerState) -> None:
    assert reasons(state) == [f"the worker is {state}"]


def test_a_namespace_that_cannot_be_reached_is_named_with_its_error_and_for_how_long() -> None:
    expected = "has been unreachable for 60 s: ServiceBusConnectionError: it is down"
    assert reasons(primary=NamespaceHealth("contoso", 30.0, DOWN)) == [f"the primary contoso {expected}"]
    assert reasons(secondary=NamespaceHealth("b", None, DOWN)) == [f"the secondary b {expected}"]
    rejected = NamespaceHealth("b", None, replace(DOWN, kind=ServiceBusAuthenticationError, text="wrong key"))
    assert reasons(secondary=rejected) == ["the secondary b has rejected the credential for 60 s: wrong key"]


def test_namespace_without_any_response_is_unreachable() -> None:
    unknown = NamespaceHealth("contoso", None, None)
    assert reasons(primary=unknown) == ["the primary contoso has not answered yet"]
    assert reasons(WorkerState.STARTING, primary=unknown) == ["the worker is starting"]


def test_while_it_stops_nothing_else_is_of_interest() -> None:
    assert len(reasons(WorkerState.STOPPING, primary=NamespaceHealth("contoso", 30.0, DOWN))) == 1


def test_only_rejection_by_all_entities_is_a_reason() -> None:
    refusing = {"orders": DOWN}
    assert reasons(status=syphon(refusing=refusing)) == []
    (reason,) = reasons(status=syphon(refusing=refusing, is_stalled=True))
    assert "orders (ServiceBusConnectionError: it is down)" in reason


def test_a_queue_in_error_is_named_and_of_many_the_first_ones() -> None:
    failing = [queue(f"q/{number}", error=DOWN) for number in range(10)]
    (reason,) = reasons(status=syphon(queue(), *failing))
    assert reason.startswith("backlog queues are unavailable: q/0 (ServiceBusConnectionError: it is down), q/1")
    assert reason.endswith(" and 7 more")


def test_a_queue_is_silent_when_its_answer_is_late_by_more_than_the_grace() -> None:
    status = syphon(queue(answered_at=100.0))
    assert reasons(status=status, now=100.0 + 900.0 + GRACE_S) == []
    (reason,) = reasons(status=status, now=100.0 + 900.0 + GRACE_S + 0.1)
    assert reason == "backlog queues have not answered recently: q/0 (for 960 s)"


def test_a_queue_that_never_answered_is_measured_from_the_start_of_the_syphon() -> None:
    status = syphon(queue(answered_at=None))
    assert reasons(status=status, now=1000.0, since_at=100.0) == []
    assert len(reasons(status=status, now=1100.0, since_at=100.0)) == 1


def test_while_every_entity_refuses_queues_may_be_silent() -> None:
    status = syphon(queue(answered_at=100.0), refusing={"orders": DOWN}, is_stalled=True)
    assert len(reasons(status=status, now=1e6)) == 1


WRONG: Final[dict[str, dict[str, Any]]] = {
    "primary_unreachable": {"primary": NamespaceHealth("contoso", 30.0, DOWN)},
    "secondary_silent": {"secondary": NamespaceHealth("b", None, None)},
    "queues_missing": {"queues": queue("q/1", error=replace(DOWN, kind=MessagingEntityNotFoundError))},
    "queues_unavailable": {"queues": queue("q/2", error=DOWN)},
    "queues_silent": {"queues": queue("q/3", answered_at=None)},
    "destinations_refuse": {"is_stalled": True},
}


def test_each_reason_is_given_whatever_else_is_wrong() -> None:
    for chosen in product([False, True], repeat=len(WRONG)):
        given = {code: WRONG[code] for code, is_chosen in zip(WRONG, chosen, strict=True) if is_chosen}
        queues = [facts["queues"] for facts in given.values() if "queues" in facts]
        is_stalled = "destinations_refuse" in given
        status = SyphonStatus((queue("q/0", answered_at=5_000.0), *queues), {"o": DOWN}, is_stalled, None, 900.0)
        sides = {"primary": PRIMARY, "secondary": SECONDARY}
        for facts in given.values():
            sides |= {side: health for side, health in facts.items() if side in sides}
        found = reasons_against(
            WorkerState.RUNNING, sides["primary"], sides["secondary"], status, now=5_000.0, since_at=0.0
        )
        expected = given.keys() - ({"queues_silent"} if is_stalled else set())
        assert {reason.code for reason in found} == expected
        assert len(found) == len(expected)


async def test_the_side_that_delays_the_start_is_named(pair: MemoryPair, tmp_path: Path) -> None:
    await make_backlog(pair)
    text = f"Endpoint=sb://contoso.servicebus.windows.net/;CredentialFile={tmp_path / 'key'}"
    for side, namespace in (("primary", pair.primary), ("secondary", pair.secondary)):
        namespace.inject(Fault(FaultKind.ERROR, error=ServiceBusAuthenticationError))
        run = Run(pair, primary=text, secondary=text)
        await clock.sleep(20.0)
        assert {reason.code for reason in run.worker.reasons_against()} == {"starting", f"{side}_rejects_credential"}
        namespace.heal()
        await clock.sleep(60.0)
        assert run.worker.reasons_against() == []
        await run.ended()
