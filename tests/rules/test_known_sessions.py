"""What a client remembers of sessions, and what it takes for granted of those that it has forgotten."""

from __future__ import annotations

from random import Random

import pytest

from sbclient.rules import known_sessions
from sbclient.rules.known_sessions import ClearedSessions, KnownSessions, ListedSessions


def test_a_session_is_clear_in_the_generation_in_which_it_was_added() -> None:
    known = KnownSessions()
    cleared, of_another = ClearedSessions(known), ClearedSessions(known)
    cleared.add("a", 3)
    assert cleared.has("a", 3)
    assert not cleared.has("a", 4)
    assert not cleared.has("b", 3)
    assert not of_another.has("a", 3)


def test_diversion_of_a_session_revokes_its_clearance() -> None:
    known = KnownSessions()
    cleared = ClearedSessions(known)
    cleared.add("a", 1)
    known.diverted("a")
    assert known.may_wait("a")
    assert known.is_diverted("a")
    assert not cleared.has("a", 1)
    cleared.add("a", 1)
    assert not known.may_wait("a")
    assert cleared.has("a", 1)


def test_a_secondary_that_did_not_answer_is_left_alone_for_a_while() -> None:
    known = KnownSessions()
    assert known.may_ask(0.0)
    known.not_answered(5.0)
    assert not known.may_ask(34.9)
    assert known.may_ask(35.0)


def test_memory_is_bounded_and_evicted_entries_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_sessions, "SESSIONS_KEPT", 2)
    known = KnownSessions()
    cleared = ClearedSessions(known)
    for session in "abc":
        cleared.add(session, 1)
    assert [cleared.has(session, 1) for session in "abc"] == [False, True, True]
    for session in "abd":
        known.diverted(session)
    assert known.size == 2
    assert known.may_wait("a")
    assert known.may_wait("never seen")
    assert not cleared.has("c", 1), "it may be among those that were forgotten"


def test_a_session_that_is_diverted_again_is_not_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_sessions, "SESSIONS_KEPT", 2)
    known = KnownSessions()
    for session in "abac":
        known.diverted(session)
    assert [known.is_diverted(session) for session in "abc"] == [True, False, True]


def test_a_list_clears_sessions_until_they_are_diverted_or_the_generation_ends() -> None:
    known = KnownSessions()
    known.diverted("b")
    listed = ListedSessions(known, 3)
    assert listed.is_empty()
    listed.set(["native a"])
    assert not listed.is_clear("a", "native a")
    assert listed.is_clear("b", "native b"), "the list is newer than the diversion"
    known.diverted("c")
    assert not listed.is_clear("c", "native c")
    assert not listed.is_empty()
    assert listed.is_current(3)
    assert not listed.is_current(4)


def test_a_list_is_empty_only_until_the_next_diversion() -> None:
    known = KnownSessions()
    listed = ListedSessions(known, 0)
    known.diverted("a")
    assert not listed.is_empty()


def test_a_list_is_not_current_after_a_diverted_session_was_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_sessions, "SESSIONS_KEPT", 1)
    known = KnownSessions()
    listed = ListedSessions(known, 0)
    known.diverted("a")
    known.diverted("b")
    assert not listed.is_current(0)


def test_what_is_known_of_a_session_is_what_happened_last_to_it() -> None:
    """Random histories of two sessions: diverted, cleared, or absent from a list or in it."""
    for seed in range(200):
        random, known = Random(seed), KnownSessions()
        cleared, listed = ClearedSessions(known), ListedSessions(known, 1)
        is_diverted = dict.fromkeys("ab", False)  # as far as the client remembers
        is_clear = dict.fromkeys("ab", True)  # by the list, and unless diverted since
        was_added = dict.fromkeys("ab", 0)  # in this generation
        for _ in range(12):
            session = random.choice("ab")
            match random.randrange(4):
                case 0:
                    known.diverted(session)
                    is_diverted[session], is_clear[session] = True, False
                case 1:
                    known.cleared(session)
                    is_diverted[session] = False
                case 2:
                    was_added[session], is_diverted[session] = random.choice([1, 2]), False
                    cleared.add(session, was_added[session])
                case _:
                    listed, native = ListedSessions(known, 1), random.choice([(), ("a",), ("a", "b")])
                    listed.set(native)
                    is_clear = {each: each not in native for each in "ab"}
            for each in "ab":
                assert known.is_diverted(each) == known.may_wait(each) == is_diverted[each], seed
                for generation in (1, 2):
                    is_known = was_added[each] == generation and not is_diverted[each]
                    assert cleared.has(each, generation) == is_known, seed
                assert listed.is_clear(each, each) <= (is_clear[each] or not is_diverted[each]), seed
                if is_clear[each] or is_diverted[each]:
                    assert listed.is_clear(each, each) == is_clear[each], seed
            assert not listed.is_empty() or all(is_clear.values()), seed


def test_as_many_sessions_are_remembered_as_are_kept_those_used_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random histories over generations, beside two dictionaries in the order of use."""
    monkeypatch.setattr(known_sessions, "SESSIONS_KEPT", 2)
    for seed in range(300):
        random, known = Random(seed), KnownSessions()
        cleared = ClearedSessions(known)
        diverted, added = dict[str, None](), dict[str, tuple[int, int]]()
        forgotten = generation = 0
        for _ in range(25):
            session = random.choice("abcd")
            match random.randrange(7):
                case 0:
                    known.diverted(session)
                    diverted.pop(session, None)
                    diverted[session] = None
                    if len(diverted) > 2:
                        del diverted[next(iter(diverted))]
                        forgotten += 1
                case 1 | 2:
                    cleared.add(session, generation)
                    diverted.pop(session, None)
                    added.pop(session, None)
                    added[session] = generation, forgotten
                    if len(added) > 2:
                        del added[next(iter(added))]
                case 3:
                    generation += 1
                case _:
                    is_clear = session not in diverted and added.get(session) == (generation, forgotten)
                    assert cleared.has(session, generation) is is_clear, seed
                    if is_clear:
                        added[session] = added.pop(session)
            assert (known.forgotten, known.size) == (forgotten, len(diverted)), seed
            assert all(known.may_wait(each) is (forgotten > 0 or each in diverted) for each in "abcd"), seed
