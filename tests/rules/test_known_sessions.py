"""What a client remembers of sessions, and what it takes for granted of those that it has forgotten."""

from __future__ import annotations

import pytest

from sbclient.rules import known_sessions
from sbclient.rules.known_sessions import ASK_AGAIN_S, KnownSessions


def test_a_session_is_clear_in_the_generation_in_which_it_was_found_so() -> None:
    known = KnownSessions()
    known.cleared("a", 3)
    assert known.is_clear("a", 3)
    assert not known.is_clear("a", 4)
    assert not known.is_clear("b", 3)


def test_what_was_diverted_may_wait_until_it_is_found_to_be_gone() -> None:
    known = KnownSessions()
    known.cleared("a", 1)
    known.diverted("a")
    assert known.may_wait("a")
    assert not known.is_clear("a", 1)
    known.cleared("a", 1)
    assert not known.may_wait("a")


def test_a_secondary_that_did_not_answer_is_left_alone_for_a_while() -> None:
    known = KnownSessions()
    assert known.may_ask(0.0)
    known.not_answered(5.0)
    assert not known.may_ask(4.9 + ASK_AGAIN_S)
    assert known.may_ask(5.0 + ASK_AGAIN_S)


def test_the_memory_is_bounded_and_what_was_forgotten_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_sessions, "SESSIONS_KEPT", 2)
    known = KnownSessions()
    for session in "abc":
        known.cleared(session, 1)
    assert [known.is_clear(session, 1) for session in "abc"] == [False, True, True]
    for session in "abc":
        known.diverted(session)
    assert known.size == 2
    assert known.may_wait("a")
    assert known.may_wait("never seen")
