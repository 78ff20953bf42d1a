"""Wire faults: which connections they affect, how often and until when."""

from __future__ import annotations

from random import Random

import pytest

from sbclient.emulator.faults import OF_CONNECTIONS, WireFault, WireFaultKind, WireFaults
from sbclient.errors import InvalidOperationError

NOW = 1_700_000_000.0


@pytest.fixture
def faults() -> WireFaults:
    return WireFaults(Random(1))


def test_there_are_no_faults_at_first(faults: WireFaults) -> None:
    assert not faults.refuses(NOW)
    assert not faults.resets(NOW)
    assert faults.black_hole(NOW) is None
    assert faults.latency_s(NOW) == 0
    assert not faults.drops_acknowledgement("orders", NOW)
    assert not faults.is_busy("orders", NOW)
    assert faults.detaching("orders", NOW) is None


def test_reset_also_refuses_new_connections(faults: WireFaults) -> None:
    faults.inject(WireFault(WireFaultKind.RESET))
    assert faults.refuses(NOW)
    assert faults.resets(NOW)


def test_refuse_keeps_open_connections(faults: WireFaults) -> None:
    faults.inject(WireFault(WireFaultKind.REFUSE))
    assert faults.refuses(NOW)
    assert not faults.resets(NOW)


@pytest.mark.parametrize("path", ["orders", "Orders", "orders/$DeadLetterQueue", "orders/Subscriptions/eu"])
def test_fault_of_an_entity_covers_its_parts(faults: WireFaults, path: str) -> None:
    faults.inject(WireFault(WireFaultKind.DETACH, "orders", condition="amqp:link:stolen"))
    struck = faults.detaching(path, NOW)
    assert struck is not None
    assert struck.condition == "amqp:link:stolen"


@pytest.mark.parametrize("path", ["orders2", "order", "", "x/orders"])
def test_fault_of_an_entity_does_not_affect_others(faults: WireFaults, path: str) -> None:
    faults.inject(WireFault(WireFaultKind.SERVER_BUSY, "orders"))
    assert not faults.is_busy(path, NOW)


def test_count_heals_by_itself(faults: WireFaults) -> None:
    faults.inject(WireFault(WireFaultKind.DROP_ACKNOWLEDGEMENT, count=2))
    assert [faults.drops_acknowledgement("q", NOW) for _ in range(4)] == [True, True, False, False]
    assert faults.active(NOW) == []


def test_fault_ends_at_its_time(faults: WireFaults) -> None:
    faults.inject(WireFault(WireFaultKind.LATENCY, latency_s=0.25, until_at=NOW + 10))
    assert faults.latency_s(NOW + 9.9) == 0.25
    assert faults.latency_s(NOW + 10) == 0


def test_probability_is_repeated_by_the_seed() -> None:
    def hits(seed: int) -> list[bool]:
        faults = WireFaults(Random(seed))
        faults.inject(WireFault(WireFaultKind.SERVER_BUSY, probability=0.5))
        return [faults.is_busy("q", NOW) for _ in range(200)]

    assert 60 < sum(hits(7)) < 140
    assert hits(7) == hits(7) != hits(8)


def test_healing_one_leaves_the_other(faults: WireFaults) -> None:
    first = faults.inject(WireFault(WireFaultKind.LATENCY, latency_s=1))
    faults.inject(WireFault(WireFaultKind.LATENCY, latency_s=2))
    faults.heal(first)
    assert faults.latency_s(NOW) == 2
    faults.heal(first)
    faults.heal()
    assert faults.latency_s(NOW) == 0


def test_a_connection_stays_in_its_black_hole_until_that_is_healed(faults: WireFaults) -> None:
    hole = faults.inject(WireFault(WireFaultKind.BLACK_HOLE, count=1))
    assert faults.black_hole(NOW) is hole
    assert faults.black_hole(NOW) is None, "it has struck as often as it may"
    assert faults.is_active(hole, NOW), "but not healed for the one it struck"
    faults.heal()
    assert not faults.is_active(hole, NOW)
    assert not faults.is_active(WireFault(WireFaultKind.BLACK_HOLE, until_at=NOW), NOW)


@pytest.mark.parametrize("ends", ["time", "heal", "heal all"])
def test_a_fault_that_is_over_is_in_no_list(faults: WireFaults, ends: str) -> None:
    """Whether its count is used up or not; its last moment is no part of it."""
    used, other = (
        faults.inject(WireFault(WireFaultKind.BLACK_HOLE, count=count, until_at=NOW + 10)) for count in (1, None)
    )
    assert faults.black_hole(NOW) is used
    assert (faults.active(NOW + 9.9), faults.spent(NOW + 9.9)) == ([other], [used])
    for fault in (used, other) if ends == "heal" else [None]:
        if ends != "time":
            faults.heal(fault)
    later = NOW + 10 * (ends == "time")
    assert (faults.active(later), faults.spent(later)) == ([], [])


def test_listeners_are_called_for_every_change_until_they_stop(faults: WireFaults) -> None:
    heard: list[int] = []
    stop = faults.listen(lambda: heard.append(len(faults.active(NOW))))
    faults.inject(WireFault(WireFaultKind.REFUSE))
    faults.heal()
    stop()
    stop()
    faults.inject(WireFault(WireFaultKind.REFUSE))
    assert heard == [1, 0]


@pytest.mark.parametrize("kind", OF_CONNECTIONS)
def test_faults_of_connections_reject_an_entity(kind: WireFaultKind) -> None:
    with pytest.raises(InvalidOperationError):
        WireFault(kind, "orders")


@pytest.mark.parametrize("wrong", [{"probability": 0}, {"probability": 1.1}, {"count": 0}, {"latency_s": -1}])
def test_values_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidOperationError):
        WireFault(WireFaultKind.LATENCY, **wrong)  # type: ignore[arg-type]  # what a caller without types may do


def test_a_kind_may_be_given_by_its_value_and_a_misspelt_one_is_refused() -> None:
    assert WireFault("reset").kind is WireFaultKind.RESET  # type: ignore[arg-type]  # what a caller without types may do
    with pytest.raises(InvalidOperationError, match="kind of a fault is 'rezet': give one of refuse, reset"):
        WireFault("rezet")  # type: ignore[arg-type]  # the same
