"""Failures of an entity, the pauses between attempts, and how long the entity is known to be missing."""

from __future__ import annotations

from datetime import timedelta
from math import inf

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
from sbclient.rules.refusal import Refusal

MISSING = MessagingEntityNotFoundError("there is no such queue")
LOST = ServiceBusConnectionError("the connection is lost")


def test_pauses_double_up_to_a_minute() -> None:
    refusal = Refusal()
    pauses = []
    for _ in range(9):
        refusal.add(LOST, 100.0, asked_at=100.0)
        pauses.append(refusal.retry_at - 100.0)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert refusal.failures == 9


def test_jitter_scales_the_pause() -> None:
    refusal = Refusal()
    refusal.add(LOST, 100.0, asked_at=100.0, jitter=1.1)
    assert refusal.retry_at == 101.1


def test_error_keeps_the_time_of_the_first_failure_and_the_text_of_the_last() -> None:
    refusal = Refusal()
    refusal.add(LOST, 1.0, asked_at=1.0)
    refusal.add(MISSING, 2.0, asked_at=2.0)
    assert (refusal.error.since_at, refusal.error.kind) == (1.0, MessagingEntityNotFoundError)
    assert refusal.error.text == "MessagingEntityNotFoundError: there is no such queue"


def test_time_between_two_answers_that_the_entity_is_missing_counts() -> None:
    refusal = Refusal()
    for now in (100.0, 140.0, 199.0):
        refusal.add(MISSING, now, asked_at=now)
        assert not refusal.is_missing_for(100.0)
    refusal.add(MISSING, 200.0, asked_at=200.0)
    assert refusal.is_missing_for(100.0)


def test_the_time_of_a_slow_answer_does_not_count() -> None:
    refusal = Refusal()
    refusal.add(MISSING, 100.0, asked_at=70.0)
    refusal.add(MISSING, 150.0, asked_at=120.0)
    assert refusal.is_missing_for(20.0)
    assert not refusal.is_missing_for(20.5)
    refusal.add(MISSING, 151.0, asked_at=140.0)  # sent together with the request before
    assert refusal.is_missing_for(20.0)
    assert not refusal.is_missing_for(20.5)


def test_without_a_grace_the_first_answer_is_enough() -> None:
    refusal = Refusal()
    assert not refusal.is_missing_for(0.0)
    refusal.add(MISSING, 1.0, asked_at=1.0)
    assert refusal.is_missing_for(0.0)


@pytest.mark.parametrize("kind", [ServiceBusConnectionError, OperationTimeoutError, ServiceBusAuthorizationError])
def test_an_answer_that_proves_nothing_interrupts_the_time_missing(kind: type[ServiceBusError]) -> None:
    refusal = Refusal()
    refusal.add(MISSING, 0.0, asked_at=0.0)
    refusal.add(MISSING, 60.0, asked_at=60.0)
    refusal.add(kind("nothing is known"), 70.0, asked_at=70.0)
    refusal.add(kind("nothing is known"), 1000.0, asked_at=1000.0)
    assert not refusal.is_missing_for(60.0)
    refusal.add(MISSING, 1001.0, asked_at=1001.0)
    assert refusal.is_missing_for(60.0)
    assert not refusal.is_missing_for(60.5)
    refusal.add(MISSING, 1002.0, asked_at=1002.0)
    assert refusal.is_missing_for(61.0)


def test_a_busy_service_interrupts_the_time_missing() -> None:
    refusal = Refusal()
    refusal.add(MISSING, 0.0, asked_at=0.0)
    refusal.add(MISSING, 60.0, asked_at=60.0)
    refusal.interrupt()
    refusal.add(MISSING, 1000.0, asked_at=1000.0)
    assert refusal.is_missing_for(60.0)
    assert not refusal.is_missing_for(60.5)
    assert refusal.failures == 3


@pytest.mark.parametrize("kind", [MessagingEntityDisabledError, ServiceBusQuotaExceededError])
def test_an_answer_that_proves_that_the_entity_exists_resets_the_time_missing(kind: type[ServiceBusError]) -> None:
    refusal = Refusal()
    refusal.add(MISSING, 0.0, asked_at=0.0)
    refusal.add(MISSING, 60.0, asked_at=60.0)
    refusal.add(kind("it exists"), 70.0, asked_at=70.0)
    refusal.add(MISSING, 80.0, asked_at=80.0)
    assert not refusal.is_missing_for(1.0)


@pytest.mark.parametrize(
    ("failures", "since"),
    [
        ([True], 10.0),
        ([True, True, True], 10.0),
        ([False], None),
        ([False, True], 20.0),
        ([True, False], None),
        ([True, False, True], 30.0),
    ],
)
def test_messages_are_redirected_a_time_after_the_first_of_consecutive_outage_errors(
    failures: list[bool], since: float | None
) -> None:
    refusal = Refusal()
    for number, is_outage in enumerate(failures, 1):
        refusal.add(LOST, 10.0 * number, asked_at=0.0, is_outage=is_outage)
    assert refusal.redirect_at(timedelta(minutes=1)) == (inf if since is None else since + 60.0)
    assert refusal.redirect_at(timedelta(0)) == (inf if since is None else since)
    assert refusal.redirect_at(None) == inf


def test_an_outage_begins_without_what_is_known_of_the_one_before() -> None:
    refusal = Refusal()
    refusal.add(LOST, 1.0, asked_at=1.0, is_outage=True)
    refusal.redirected_at, refusal.redirected = 2.0, 5
    refusal.elsewhere, refusal.is_elsewhere_named = Refusal(), True
    refusal.add(LOST, 3.0, asked_at=3.0, is_outage=True)
    assert (refusal.outage_at, refusal.redirected_at, refusal.is_elsewhere_named) == (1.0, 2.0, True)
    refusal.add(MISSING, 4.0, asked_at=4.0)
    refusal.add(LOST, 5.0, asked_at=5.0, is_outage=True)
    fresh = Refusal()
    fresh.add(LOST, 5.0, asked_at=5.0, is_outage=True)
    of_outage = ("outage_at", "elsewhere", "is_elsewhere_named", "redirected_at")
    assert [getattr(refusal, name) for name in of_outage] == [getattr(fresh, name) for name in of_outage]
    assert refusal.redirected == 5
