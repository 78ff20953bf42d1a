"""Some hostile connections; more of them by `python -m tests.fuzz.amqp_engine`."""

from __future__ import annotations

from collections import Counter

import pytest

from sbclient.amqp import (
    AttachRequested,
    ConnectionClosed,
    ConnectionOpened,
    CreditGranted,
    DeliveryReceived,
    DispositionReceived,
    LinkDetached,
    SessionBegun,
    SessionEnded,
)
from tests.fuzz.amqp_engine import run_case

pytestmark = pytest.mark.slow  # thousands of inputs

CASES = 1_500
EXPECTED = {
    "amqp:connection:framing-error",
    "amqp:decode-error",
    "amqp:invalid-field",
    "amqp:not-allowed",
    "amqp:resource-limit-exceeded",
    "amqp:session:handle-in-use",
    "amqp:session:unattached-handle",
    "amqp:unauthorized-access",
}


@pytest.mark.promise("client.malformed-amqp", "emulator.bytes")
def test_hostile_connections_are_closed() -> None:
    counts: Counter[type] = Counter()
    conditions: Counter[str] = Counter()
    for number in range(CASES):
        for event in run_case(20_240_506, number):
            counts[type(event)] += 1
            error = getattr(event, "error", None)
            if error is not None:
                conditions[error.condition] += 1
    assert counts[ConnectionClosed] == CASES
    reached = (
        ConnectionOpened,
        SessionBegun,
        AttachRequested,
        DeliveryReceived,
        LinkDetached,
        SessionEnded,
        CreditGranted,
    )
    assert min(counts[kind] for kind in (*reached, DispositionReceived)) > CASES // 100, (
        f"the cases stop too early: {counts}"
    )
    assert conditions.keys() >= EXPECTED


def test_case_number_reproduces_a_case() -> None:
    first = [type(event) for event in run_case(1, 17)]
    assert first == [type(event) for event in run_case(1, 17)]
