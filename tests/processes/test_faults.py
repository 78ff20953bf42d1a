"""The schedules of the runs."""

from __future__ import annotations

import pytest

from tests.processes.configurations import CONFIGURATIONS, Configuration, named
from tests.processes.faults import PRIMARY, QUIET_FROM, SECONDARY, FaultSource, Kind, draw_faults

PROGRAMS = ["sender-1", "sender-2", "receiver-1", "receiver-2", "syphon-1", "syphon-2", "syphon-3"]

each_configuration = pytest.mark.parametrize(
    "configuration", [pytest.param(one, id=one.name) for one in CONFIGURATIONS]
)


@each_configuration
def test_seed_determines_the_schedule(configuration: Configuration) -> None:
    def drawn(seed: int) -> list[str]:
        return [str(one) for one in draw_faults(seed, 60.0, configuration.outages, configuration.sources, PROGRAMS)]

    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


@each_configuration
@pytest.mark.parametrize("seconds", [15.0, 60.0])
def test_schedule_has_an_outage_for_a_failover_and_a_quiet_end(configuration: Configuration, seconds: float) -> None:
    faults = draw_faults(3, seconds, configuration.outages, configuration.sources, PROGRAMS)
    for outage in configuration.outages:
        first = [one for one in faults if one.kind is outage.kind and one.whom == outage.whom and one.span_s >= 5.0]
        assert first
        assert first[0].at_s < 0.2 * seconds
    assert all(one.at_s < QUIET_FROM * seconds for one in faults)
    assert faults == sorted(faults, key=lambda one: one.at_s)
    assert len(faults) >= seconds / 4


@each_configuration
def test_faults_affect_existing_programs(configuration: Configuration) -> None:
    for seed in range(20):
        for fault in draw_faults(seed, 60.0, configuration.outages, configuration.sources, PROGRAMS):
            program, _, end = fault.whom.partition(">")
            assert program in (*PROGRAMS, PRIMARY, SECONDARY)
            assert end in ("", PRIMARY, SECONDARY)


def test_there_are_ten_distinct_configurations() -> None:
    assert len({one.name for one in CONFIGURATIONS}) == len(CONFIGURATIONS) >= 10
    assert len({one.purpose for one in CONFIGURATIONS}) == len(CONFIGURATIONS)


def test_configurations_cover_every_kind_of_fault() -> None:
    injected = {source.kind for one in CONFIGURATIONS for source in (*one.outages, *one.sources)}
    assert injected == set(Kind)


def test_configuration_is_found_by_name() -> None:
    assert named("sessions").ordering == "session"
    with pytest.raises(LookupError, match="plain, partitioned"):
        named("session")


def test_fault_has_its_own_copy_of_its_facts() -> None:
    switch = {"kind": "down", "entity": "orders"}
    (fault,) = draw_faults(1, 15.0, [FaultSource(Kind.FAULT, PRIMARY, switches=(switch,))], [], PROGRAMS)
    assert fault.facts == switch
    assert fault.facts is not switch
