"""Browse, remove and resubmit messages through the store."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sbclient.broker.entry import Entry
from sbclient.broker.faults import Operation
from sbclient.emulator.control.message_store import Page, body_at, message_at, page_of, purge, resubmit, sessions_of
from sbclient.errors import InvalidOperationError, MessageNotFoundError, MessagingEntityNotFoundError
from sbclient.message import ServiceBusMessage
from tests.broker.driver import ABANDON, DEAD_LETTER, KEYS, START, Driver, address, at, bodies, message

DEAD = "q/$DeadLetterQueue"


@pytest.fixture
def broker() -> Driver:
    return Driver()


def texts(entries: list[Entry]) -> list[str]:
    return [bytes(entry.content).decode() for entry in entries]


def page(broker: Driver, count: int, **how: Any) -> Page:
    return page_of(body_at(broker.namespace, "q"), broker.now, count, **how)


def all_pages(broker: Driver, count: int, **how: Any) -> list[str]:
    found, places = list[str](), None
    while True:
        entries, places = page(broker, count, places=places, **how)
        assert len(entries) <= count
        found += texts(entries)
        if places is None:
            return found


def dead_letter(broker: Driver, path: str, *sent: ServiceBusMessage) -> None:
    broker.send(path, *sent)
    for received in broker.receive(path, len(sent)):
        broker.settle(path, received, how=DEAD_LETTER)


class TestLook:
    def test_messages_of_all_fragments_are_listed_in_the_order_of_arrival(self, broker: Driver) -> None:
        broker.partitioned()
        for number in range(40):
            broker.send("q", message(str(number), partition_key=KEYS[number * 7 % 16]))
            broker.wait(1)
        expected = [str(number) for number in range(40)]
        assert all_pages(broker, 7) == expected
        assert all_pages(broker, 7, newest_first=True) == expected[::-1]
        assert all_pages(broker, 100) == expected

    def test_last_page_says_so(self, broker: Driver) -> None:
        broker.queue()
        broker.send("q", message("a"))
        broker.send("q", message("b"))
        assert page(broker, 2).places is None
        assert page(broker, 1).places == [2]
        assert page(broker, 1, newest_first=True).places == [1]

    def test_scheduled_messages_and_dead_letters_are_each_seen_once(self, broker: Driver) -> None:
        broker.partitioned()
        for number in range(10):
            broker.send("q", message(str(number)))
            broker.schedule("q", message(f"later {number}", scheduled_enqueue_time_utc=at(START + 1000)))
            broker.wait(1)
        assert len(set(all_pages(broker, 3))) == len(all_pages(broker, 3)) == 20
        assert sorted(all_pages(broker, 3, newest_first=True)) == sorted(all_pages(broker, 3))

    def test_messages_of_one_fragment_are_listed(self, broker: Driver) -> None:
        broker.partitioned()
        broker.send("q", message("a", partition_key=KEYS[3]))
        broker.send("q", message("b", partition_key=KEYS[4]))
        assert all_pages(broker, 5, fragment=3) == ["a"]
        with pytest.raises(InvalidOperationError):
            page(broker, 5, fragment=16)

    @pytest.mark.parametrize("newest_first", [False, True])
    def test_messages_of_one_session_are_listed(self, broker: Driver, newest_first: bool) -> None:
        broker.partitioned(requires_session=True)
        for number in range(6):
            broker.send("q", message(str(number), session_id=f"s{number % 2}"))
        expected = ["1", "3", "5"]
        found = all_pages(broker, 2, session_id="s1", newest_first=newest_first)
        assert found == (expected[::-1] if newest_first else expected)

    def test_listing_is_not_affected_by_faults_and_locks_nothing(self, broker: Driver) -> None:
        broker.queue()
        broker.send("q", message("a"))
        broker.down(None)
        assert texts(page(broker, 5).entries) == ["a"]
        assert texts([message_at(body_at(broker.namespace, "q"), broker.now, 1)]) == ["a"]
        broker.heal()
        assert bodies(broker.receive()) == ["a"]

    def test_a_removed_message_is_not_found(self, broker: Driver) -> None:
        broker.queue()
        broker.send("q", message("a", time_to_live=timedelta(seconds=5)))
        body = body_at(broker.namespace, "q")
        assert message_at(body, broker.now, 1).number == 1
        broker.wait(6)
        for number in (1, 2, 5 << 48):
            with pytest.raises(MessageNotFoundError):
                message_at(body, broker.now, number)

    @pytest.mark.parametrize("path", ["nowhere", "nowhere/$DeadLetterQueue", "q/$Transfer/$DeadLetterQueue"])
    def test_listing_creates_no_sub_queue(self, broker: Driver, path: str) -> None:
        broker.queue()
        with pytest.raises(MessagingEntityNotFoundError):
            body_at(broker.namespace, path)

    def test_positions_of_another_list_are_rejected(self, broker: Driver) -> None:
        broker.partitioned()
        with pytest.raises(InvalidOperationError):
            page(broker, 5, places=[1, 2])

    def test_sessions_come_by_id_with_their_fragment(self, broker: Driver) -> None:
        broker.partitioned(requires_session=True)
        for session in (KEYS[9], KEYS[2]):
            broker.send("q", message(session_id=session))
        found = sessions_of(body_at(broker.namespace, "q"), broker.now)
        assert [(index, name) for index, name, _ in found] == sorted([(9, KEYS[9]), (2, KEYS[2])], key=lambda e: e[1])


class TestPurge:
    def test_locked_messages_are_removed_too(self, broker: Driver) -> None:
        broker.queue()
        for text in "abc":
            broker.send("q", message(text))
        held = broker.one()
        assert purge(broker.namespace, broker.now, "q", [held.sequence_number, 3, 99]) == 2
        assert texts(page(broker, 5).entries) == ["b"]

    def test_dead_letters_alone_are_removed(self, broker: Driver) -> None:
        broker.queue()
        dead_letter(broker, "q", message("dead"))
        broker.send("q", message("a"))
        assert purge(broker.namespace, broker.now, DEAD) == 1
        assert texts(page(broker, 5).entries) == ["a"]

    def test_numbers_are_those_of_the_queue_that_is_named(self, broker: Driver) -> None:
        broker.queue()
        dead_letter(broker, "q", message("dead"))
        broker.send("q", message("a"))
        assert purge(broker.namespace, broker.now, DEAD, [1]) == 1
        assert purge(broker.namespace, broker.now, "q", [1]) == 0

    def test_all_is_removed_from_a_topic_with_its_subscriptions(self, broker: Driver) -> None:
        broker.topic()
        broker.subscription()
        broker.send("t", message("a"))
        broker.schedule("t", message("b", scheduled_enqueue_time_utc=at(START + 10)))
        assert purge(broker.namespace, broker.now, "t") == 2


class TestResubmit:
    def test_resubmitted_dead_letter_is_a_new_message(self, broker: Driver) -> None:
        broker.queue(max_delivery_count=2, requires_duplicate_detection=True)
        broker.send("q", message("a", message_id="m", time_to_live=timedelta(seconds=30)))
        for _ in range(2):
            broker.settle("q", broker.one(), how=ABANDON)
        assert len(body_at(broker.namespace, DEAD).fragments[0]) == 1
        broker.wait(20)
        assert resubmit(broker.namespace, broker.now, DEAD) == (1, 0, 0)
        back = broker.one()
        assert (str(back), back.message_id, back.delivery_count, back.dead_letter_reason) == ("a", "m", 0, None)
        assert back.expires_at_utc == at(START + 50)
        assert broker.receive(DEAD) == []

    def test_resubmitted_dead_letter_returns_to_its_fragment(self, broker: Driver) -> None:
        broker.partitioned()
        dead_letter(broker, "q", message("a", partition_key=KEYS[5]))
        resubmit(broker.namespace, broker.now, DEAD)
        assert broker.one().sequence_number >> 48 == 5

    def test_only_those_that_are_named_go_back(self, broker: Driver) -> None:
        broker.queue()
        dead_letter(broker, "q", message("a"), message("b"))
        assert resubmit(broker.namespace, broker.now, DEAD, [2]) == (1, 0, 0)
        assert bodies(broker.receive("q", 5)) == ["b"]
        assert bodies(broker.receive(DEAD, 5)) == ["a"]

    def test_those_that_a_receiver_holds_stay(self, broker: Driver) -> None:
        broker.queue()
        dead_letter(broker, "q", message("a"), message("b"))
        held = broker.one(DEAD)
        assert resubmit(broker.namespace, broker.now, DEAD) == (1, 1, 0)
        broker.settle(DEAD, held)

    def test_other_subscriptions_see_no_second_copy(self, broker: Driver) -> None:
        broker.topic()
        broker.subscription(name="one")
        broker.subscription(name="two")
        broker.send("t", message("a"))
        broker.settle("t/Subscriptions/one", broker.one("t/Subscriptions/one"), how=DEAD_LETTER)
        resubmit(broker.namespace, broker.now, "t/Subscriptions/one/$DeadLetterQueue")
        assert bodies(broker.receive("t/Subscriptions/one", 5)) == ["a"]
        assert bodies(broker.receive("t/Subscriptions/two", 5)) == ["a"]

    def test_resubmitted_session_message_returns_to_its_session(self, broker: Driver) -> None:
        broker.queue(requires_session=True)
        broker.send("q", message("a", session_id="s"))
        lock = broker.held("q", "s")
        broker.settle("q", broker.one("q", lock=lock), how=DEAD_LETTER, lock=lock)
        resubmit(broker.namespace, broker.now, DEAD)
        assert bodies(broker.receive("q", 5, lock=lock)) == ["a"]

    def test_dead_letter_without_a_required_session_is_not_resubmitted(self, broker: Driver) -> None:
        broker.topic()
        broker.subscription(requires_session=True)
        dead = "t/Subscriptions/s/$DeadLetterQueue"
        broker.send("t", message("a"))
        assert resubmit(broker.namespace, broker.now, dead) == (0, 0, 1)
        (kept,) = broker.receive(dead, 5)
        assert (str(kept), kept.dead_letter_reason) == ("a", "Session ID is null.")
        assert broker.sessions("t/Subscriptions/s") == []
        assert purge(broker.namespace, broker.now, "t") == 1

    def test_waiting_receivers_are_woken(self, broker: Driver) -> None:
        broker.queue()
        dead_letter(broker, "q", message("a"))
        broker.ready.clear()
        resubmit(broker.namespace, broker.now, DEAD)
        assert ("q", None) in broker.ready

    def test_a_resubmitted_message_of_a_forwarding_queue_is_forwarded(self, broker: Driver) -> None:
        broker.queue("end")
        broker.queue("q")
        dead_letter(broker, "q", message("a"))
        broker.update(address("q"), replace(broker.get(address("q")), forward_to="end"))
        resubmit(broker.namespace, broker.now, DEAD)
        assert bodies(broker.receive("end", 5)) == ["a"]

    def test_reasons_that_came_as_properties_are_left_behind(self, broker: Driver) -> None:
        broker.queue("graves")
        broker.queue("q", forward_dead_lettered_messages_to="graves")
        dead_letter(broker, "q", message("a", application_properties={"mine": 1}))
        broker.namespace.advance(broker.now)
        broker.settle("graves", broker.one("graves"), how=DEAD_LETTER)
        assert resubmit(broker.namespace, broker.now, "graves/$DeadLetterQueue") == (1, 0, 0)
        assert broker.one("graves").application_properties == {"mine": 1}

    def test_a_resubmitted_transfer_is_forwarded_again(self, broker: Driver) -> None:
        broker.queue("via")
        broker.queue("end")
        broker.down("end", operations=[Operation.SEND])
        broker.send("end", message("a"), via="via")
        broker.delete(address("end"))
        broker.heal()
        broker.namespace.advance(broker.now)
        broker.queue("end")
        assert resubmit(broker.namespace, broker.now, "via/$Transfer/$DeadLetterQueue") == (1, 0, 0)
        assert bodies(broker.receive("end", 5)) == ["a"]

    def test_only_dead_letters_can_be_resubmitted(self, broker: Driver) -> None:
        broker.queue()
        with pytest.raises(InvalidOperationError):
            resubmit(broker.namespace, broker.now, "q")
