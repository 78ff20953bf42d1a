"""How long an entity is known to be missing."""

from __future__ import annotations

import pytest

from sbclient.errors import (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)
from sbclient.rules.absence import Absence

MISSING = MessagingEntityNotFoundError("there is no such queue")


def test_the_time_between_two_answers_that_say_so_counts() -> None:
    absence = Absence()
    for now in (100.0, 140.0, 199.0):
        absence.note(MISSING, now)
        assert not absence.has_lasted(100.0)
    absence.note(MISSING, 200.0)
    assert absence.has_lasted(100.0)


def test_without_a_grace_the_first_answer_is_enough() -> None:
    absence = Absence()
    assert not absence.has_lasted(0.0)
    absence.note(MISSING, 1.0)
    assert absence.has_lasted(0.0)


@pytest.mark.parametrize("kind", [ServiceBusConnectionError, OperationTimeoutError, ServiceBusAuthorizationError])
def test_an_answer_that_says_nothing_of_it_interrupts_it_and_does_not_count(kind: type[ServiceBusError]) -> None:
    absence = Absence()
    absence.note(MISSING, 0.0)
    absence.note(MISSING, 60.0)
    absence.note(kind("nothing is known"), 70.0)
    absence.note(kind("nothing is known"), 1000.0)
    assert not absence.has_lasted(60.0)
    absence.note(MISSING, 1001.0)
    assert absence.has_lasted(60.0)
    assert not absence.has_lasted(60.5)
    absence.note(MISSING, 1002.0)
    assert absence.has_lasted(61.0)


@pytest.mark.parametrize("kind", [MessagingEntityDisabledError, ServiceBusQuotaExceededError])
def test_an_answer_that_proves_that_the_entity_is_there_ends_it(kind: type[ServiceBusError]) -> None:
    absence = Absence()
    absence.note(MISSING, 0.0)
    absence.note(MISSING, 60.0)
    absence.note(kind("it is there"), 70.0)
    absence.note(MISSING, 80.0)
    assert not absence.has_lasted(1.0)
