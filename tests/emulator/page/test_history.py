"""The line through the points of a history has the numbers of each look."""

from __future__ import annotations

from random import Random

from sbclient.emulator.page.history import CountHistory
from sbclient.emulator.page.namespace_watcher import MAX_ENTITY_HISTORIES, NamespaceSnapshot


def numbers_at(history: CountHistory, at: float) -> tuple[float, ...]:
    """The numbers on the line through the points."""
    before = max((point for point in history.points if point[0] <= at), key=lambda point: point[0])
    after = min((point for point in history.points if point[0] > at), default=None, key=lambda point: point[0])
    if after is None:
        return tuple(before[1:])
    part = (at - before[0]) / (after[0] - before[0])
    return tuple(one + part * (other - one) for one, other in zip(before[1:], after[1:], strict=True))


def test_the_line_through_the_points_has_the_numbers_of_each_look() -> None:
    for seed in range(50):
        random, history, looks = Random(seed), CountHistory(1000), []
        arrived = left = changes = 0
        before_at = at = 0.0
        for _ in range(30):
            before_at, at = at, at + random.choice([1.0, 1.0, 5.0])
            more = random.choice([(0, 0), (0, 0), (3, 0), (0, 1)])
            changes += more != (0, 0)
            arrived, left = arrived + more[0], left + more[1]
            history.note(before_at, at, arrived, left)
            looks.append((at, (arrived, left)))
        assert [numbers_at(history, at) for at, _ in looks] == [numbers for _, numbers in looks]
        assert len(history.points) <= 1 + 2 * changes
        assert list(history.points) == sorted(history.points)


def test_the_histories_of_entities_are_limited_to_those_that_changed_last() -> None:
    snapshot = NamespaceSnapshot()
    paths = [f"q{number}" for number in range(MAX_ENTITY_HISTORIES + 10)]
    for cycle in range(2):
        for at, path in enumerate(paths, cycle * len(paths)):
            snapshot.note_row({"path": path, "arrived": at, "left": 0}, at - 1.0, float(at))
            assert len(snapshot.histories) <= MAX_ENTITY_HISTORIES
    assert list(snapshot.histories) == paths[-MAX_ENTITY_HISTORIES:]
