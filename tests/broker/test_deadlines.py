"""Moments by key."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from sbclient.broker.deadlines import Deadlines

MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 5), st.integers(0, 20)),
        st.tuples(st.just("drop"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("pop"), st.just(0), st.integers(0, 20)),
    ),
    max_size=60,
)


@given(MOVES)
def test_deadlines_behave_like_a_dict_of_times(moves: list[tuple[str, int, int]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    model: dict[int, float] = {}
    for move, key, at in moves:
        if move == "set":
            deadlines.set(key, at)
            model[key] = at
        elif move == "drop":
            deadlines.drop(key)
            model.pop(key, None)
        else:
            due = min(((when, who) for who, when in model.items() if when <= at), default=None)
            assert deadlines.pop_due(at) == (None if due is None else (due[1], due[0]))
            if due is not None:
                del model[due[1]]
        earliest = min(model.values(), default=math.inf)
        assert deadlines.earliest.at <= earliest
        assert deadlines.next_at() == earliest
        assert len(deadlines) == len(model)


def test_replaced_deadlines_do_not_accumulate() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for at in range(10_000):
        deadlines.set("lock", at)
    assert len(deadlines._rising) + len(deadlines._heap) <= 70
    assert deadlines.pop_due(9_999) == ("lock", 9_999)
    for number in range(1000):
        deadlines.set(f"k{number}", number)
    for number in range(1000):
        deadlines.drop(f"k{number}")
    assert len(deadlines._rising) + len(deadlines._heap) <= 70
