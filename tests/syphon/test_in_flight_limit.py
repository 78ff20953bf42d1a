from __future__ import annotations

from sbclient.syphon.budget import InFlightLimit

MIB = 1024 * 1024


def test_room_is_bounded_by_number() -> None:
    window = InFlightLimit(10, 100 * MIB)
    assert window.room == 10
    for _ in range(9):
        window.add(100)
    assert window.room == 1
    window.add(100)
    assert window.room == 0
    window.remove(100)
    assert (window.room, window.count, window.size_bytes) == (1, 9, 900)


def test_messages_are_assumed_to_be_large_before_the_first_one() -> None:
    assert InFlightLimit(100, 5 * MIB).room == 5


def test_the_average_size_starts_with_the_first_message() -> None:
    window = InFlightLimit(100, 1000)
    window.add(10)
    window.remove(10)
    assert window.room == 100
    for _ in range(50):
        window.add(100)
        window.remove(100)
    assert window.room == 10


def test_the_average_size_follows_the_messages_up_and_down() -> None:
    window = InFlightLimit(1000, 10_000)
    for size, room in ((10, 1000), (1000, 10), (10, 995), (100, 100)):
        for _ in range(100):
            window.add(size)
            window.remove(size)
        assert abs(window.room - room) <= room / 20


def test_one_message_has_room_however_large_it_is() -> None:
    window = InFlightLimit(100, 10)
    assert window.room == 1
    window.add(5000)
    assert window.room == 0
    window.remove(5000)
    assert window.room == 1


def test_messages_in_flight_leave_less_room_for_bytes() -> None:
    window = InFlightLimit(100, 1000)
    for _ in range(9):
        window.add(100)
    assert window.room == 1
    window.add(100)
    assert window.room == 0
