"""What `checkers.failover` accepts as the outage before a failover, on attempts written by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sbclient.errors import OperationTimeoutError, ServiceBusAuthorizationError, ServiceBusServerBusyError
from sbclient.options import PairedNamespaceOptions
from sbclient.pairing.status import PairEvent
from tests.simulation.checkers.failover import check_failovers
from tests.simulation.history import Attempt, Outcome
from tests.simulation.plan import draw_plan
from tests.simulation.world import World

BEGIN = 1_700_000_000.0
CLIENT, PATH = "producer-0", "orders"


def attempt(what: str, *, took_s: float, error: type[Exception] | None = None) -> Attempt:
    """An attempt with a timeout of 30 s, at the end of which the entity fails over."""
    return Attempt(
        number=0,
        client=CLIENT,
        side="primary",
        what=what,
        path=PATH,
        uids=(),
        ids=(),
        keys=(None, None),
        begin=BEGIN,
        timeout_s=30.0,
        end=BEGIN + took_s,
        outcome=Outcome.OK if error is None else Outcome.DOUBT,
        error=error,
    )


def found(one: Attempt) -> list[str]:
    """The invariants that a failover at the end of the attempt breaks, with a failover interval of 0."""
    options = PairedNamespaceOptions(failover_interval=timedelta(0))
    world = World(replace(draw_plan(0), options=options, skew_s=0.0))
    at = datetime.fromtimestamp(one.end, UTC)
    world.history.attempts = [one]
    world.history.pair_events = {CLIENT: [PairEvent(at, "failover.engaged", PATH)]}
    return [violation.invariant for violation in check_failovers(world)]


@pytest.mark.parametrize(
    "one",
    [
        attempt("send", took_s=30.0, error=OperationTimeoutError),
        attempt("limits", took_s=30.0, error=OperationTimeoutError),
        attempt("limits", took_s=30.003),
        attempt("send", took_s=1.0, error=ServiceBusServerBusyError),
    ],
    ids=["send times out", "opening times out", "opening takes all the time of the send", "busy"],
)
def test_an_outage_allows_a_failover(one: Attempt) -> None:
    assert found(one) == []


@pytest.mark.parametrize(
    "one",
    [
        attempt("send", took_s=1.0, error=ServiceBusAuthorizationError),
        attempt("send", took_s=30.003),
        attempt("limits", took_s=29.0),
    ],
    ids=["not allowed", "accepted late", "opened in time"],
)
def test_failover_without_an_outage_is_a_violation(one: Attempt) -> None:
    assert found(one) == ["I16"]
