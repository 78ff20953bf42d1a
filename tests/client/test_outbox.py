"""Outbox: which messages share a transfer, their order, and the result of each caller."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from sbclient import clock
from sbclient.amqp import EncodedBatch, EncodedMessage, encode_message
from sbclient.client.outbox import KEY_GROUPS, Outbox, Sending
from sbclient.errors import (
    BacklogUnavailableError,
    InvalidOperationError,
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusConnectionError,
)
from sbclient.message import ServiceBusMessage
from sbclient.rules.partition_key import fragment_of

ROUTE = "the route"


class Wire:
    """Takes transfers, each as long as `takes_s` says; refuses those that `refuse` names."""

    def __init__(self, *, takes_s: float = 1.0) -> None:
        self.takes_s = takes_s
        self.transfers: list[list[str]] = []
        self.began: list[list[str]] = []
        self.deadlines: list[float] = []
        self.refuse: dict[str, Exception] = {}
        self.refuse_shared: Exception | None = None

    def send(self, batch: EncodedBatch, deadline: float) -> asyncio.Future[str]:
        names = [bytes(copy).decode() for copy in batch]
        self.began.append(names)
        self.deadlines.append(deadline)
        return asyncio.ensure_future(self._answer(names))

    async def _answer(self, names: list[str]) -> str:
        await clock.sleep(self.takes_s)
        if self.refuse_shared is not None and len(names) > 1:
            raise self.refuse_shared
        for name in names:
            if name in self.refuse:
                raise self.refuse[name]
        self.transfers.append(names)
        return ROUTE


class PromptWire(Wire):
    """Answers at once."""

    def send(self, batch: EncodedBatch, deadline: float) -> asyncio.Future[str]:
        self.transfers.append([bytes(copy).decode() for copy in batch])
        answered = Sending()
        answered.set_result(ROUTE)
        return answered


def outgoing(text: str, key: str | None = None) -> EncodedMessage:
    message = ServiceBusMessage(text, message_id=text[:100], partition_key=key)
    return encode_message(message)


def sending(
    outbox: Outbox, *texts: str, key: str | None = None, deadline: float = 60.0, may_share: bool = True
) -> asyncio.Future[str]:
    return outbox.send([outgoing(text, key) for text in texts], deadline=deadline, may_share=may_share)


def started(outbox: Outbox, *texts: str, key: str | None = None, may_share: bool = True) -> list[asyncio.Future[str]]:
    return [sending(outbox, text, key=key, may_share=may_share) for text in texts]


async def behind(outbox: Outbox, *sends: tuple[str, float]) -> list[str | BaseException]:
    """Send messages, with their deadlines, that wait together behind a first one; return their results."""
    first = sending(outbox, "0")
    answers = await all_of(*(sending(outbox, text, deadline=deadline) for text, deadline in sends))
    assert await first == ROUTE
    return answers


async def all_of(*sends: asyncio.Future[str]) -> list[str | BaseException]:
    return list(await asyncio.gather(*sends, return_exceptions=True))


@pytest.mark.deviation("client.concurrent-sends")
async def test_messages_that_wait_together_share_a_transfer() -> None:
    wire = Wire()
    outbox = Outbox(wire, "orders")
    assert await all_of(*(sending(outbox, text) for text in "abcde")) == [ROUTE] * 5
    assert wire.transfers == [["a"], ["b", "c", "d", "e"]]
    assert clock.monotonic() == 2.0


async def test_lists_are_never_merged_or_split() -> None:
    wire = Wire()
    outbox = Outbox(wire, "orders")
    await all_of(sending(outbox, "a"), sending(outbox, "b", "c", may_share=False), sending(outbox, "d"))
    assert wire.transfers == [["a"], ["b", "c"], ["d"]]


async def test_messages_with_one_key_are_sent_in_call_order() -> None:
    wire = Wire()
    outbox = Outbox(wire, "orders")
    first = sending(outbox, "1", key="k")
    await clock.sleep(0.5)
    await all_of(sending(outbox, "2", key="k"), sending(outbox, "3", key="k"))
    await first
    assert wire.transfers == [["1"], ["2", "3"]]


async def test_different_keys_do_not_wait_for_each_other() -> None:
    wire = Wire()
    outbox = Outbox(wire, "orders")
    await all_of(*(sending(outbox, text, key=text) for text in "abc"), sending(outbox, "d"))
    assert clock.monotonic() == 1.0
    assert sorted(wire.transfers) == [["a"], ["b"], ["c"], ["d"]]


def two_keys_of_one_group() -> tuple[str, str]:
    by_group: dict[int, str] = {}
    for key in map(str, count()):
        if (other := by_group.setdefault(fragment_of(key, KEY_GROUPS), key)) != key:
            return other, key
    raise AssertionError


async def test_keys_of_one_group_share_a_transfer_and_keep_their_order_when_keys_are_mixed() -> None:
    one, other = two_keys_of_one_group()
    calls = [("a", one), ("b", other), ("c", one), ("d", None), ("e", other)]
    wire = Wire()
    outbox = Outbox(wire, "orders", mixes_keys=True)
    assert await all_of(*(sending(outbox, text, key=key) for text, key in calls)) == [ROUTE] * 5
    assert wire.transfers == [["a"], ["d"], ["b", "c", "e"]]
    assert not outbox._lanes


async def test_a_rejected_transfer_of_mixed_keys_is_sent_message_by_message_before_later_messages() -> None:
    one, other = two_keys_of_one_group()
    wire = Wire()
    wire.refuse["c"] = InvalidOperationError("c is not welcome")
    outbox = Outbox(wire, "orders", mixes_keys=True)
    sends = [sending(outbox, text, key=key) for text, key in [("a", one), ("b", other), ("c", one), ("d", other)]]
    await clock.sleep(1.5)  # b, c and d have left together
    sends.append(sending(outbox, "e", key=other))
    answers = await all_of(*sends)
    assert [answer == ROUTE for answer in answers] == [True, True, False, True, True]
    assert wire.transfers == [["a"], ["b"], ["d"], ["e"]]


async def test_a_rejected_shared_transfer_is_sent_again_message_by_message() -> None:
    wire = Wire()
    wire.refuse["b"] = InvalidOperationError("b is not welcome")
    outbox = Outbox(wire, "orders")
    answers = await behind(outbox, *((text, 60.0) for text in "abc"))
    assert answers[0] == ROUTE
    assert isinstance(answers[1], InvalidOperationError)
    assert answers[2] == ROUTE
    assert wire.transfers == [["0"], ["a"], ["c"]]


async def test_one_rejected_message_does_not_end_sharing() -> None:
    wire = Wire()
    wire.refuse["b"] = MessageSizeExceededError("b is too large")
    outbox = Outbox(wire, "orders")
    await behind(outbox, *((text, 60.0) for text in "abc"))
    await behind(outbox, *((text, 60.0) for text in "de"))
    assert wire.transfers[-1] == ["d", "e"]


async def test_sharing_ends_when_only_shared_transfers_are_rejected() -> None:
    wire = Wire()
    wire.refuse_shared = InvalidOperationError("one message id for each batch")
    outbox = Outbox(wire, "orders")
    assert await behind(outbox, *((text, 60.0) for text in "abc")) == [ROUTE] * 3
    assert await behind(outbox, *((text, 60.0) for text in "de")) == [ROUTE] * 2
    assert wire.began == [["0"], ["a", "b", "c"], ["a"], ["b"], ["c"], ["0"], ["d"], ["e"]]


async def test_sharing_continues_when_callers_are_cancelled_before_their_result() -> None:
    wire = Wire()
    wire.refuse_shared = InvalidOperationError("one message id for each batch")
    outbox = Outbox(wire, "orders")
    tasks = [sending(outbox, text) for text in "0abc"]
    await clock.sleep(1.5)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await clock.sleep(1.0)
    wire.refuse_shared = None
    await behind(outbox, *((text, 60.0) for text in "de"))
    assert wire.transfers == [["0"], ["0"], ["d", "e"]]


async def test_a_transfer_in_doubt_is_in_doubt_for_all_its_messages() -> None:
    wire = Wire()
    wire.refuse["b"] = OperationTimeoutError("no answer")
    outbox = Outbox(wire, "orders")
    answers = await behind(outbox, *((text, 60.0) for text in "abc"))
    assert [type(answer) for answer in answers] == [OperationTimeoutError] * 3
    assert wire.began == [["0"], ["a", "b", "c"]]
    assert len({id(answer) for answer in answers}) == 3


async def test_each_caller_gets_the_causes_of_a_shared_error() -> None:
    wire = Wire()
    cause = ServiceBusConnectionError("down")
    wire.refuse["a"] = BacklogUnavailableError("nowhere", {"backlog/0": cause})
    wire.refuse["a"].__cause__ = cause
    outbox = Outbox(wire, "orders")
    answers = await behind(outbox, *((text, 60.0) for text in "ab"))
    for answer in answers:
        assert isinstance(answer, BacklogUnavailableError)
        assert (answer.causes, answer.__cause__) == ({"backlog/0": cause}, cause)
    assert len(set(map(id, answers))) == len(answers)


async def test_cancelling_one_caller_does_not_end_a_shared_transfer() -> None:
    wire = Wire()
    outbox = Outbox(wire, "orders")
    tasks = [sending(outbox, text) for text in "0abc"]
    await clock.sleep(1.5)
    tasks[1].cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(answers[1], asyncio.CancelledError)
    assert answers[2:] == [ROUTE, ROUTE]
    assert wire.transfers == [["0"], ["a", "b", "c"]]


async def test_a_message_cancelled_while_waiting_is_never_sent() -> None:
    wire = Wire()
    outbox = Outbox(wire, "orders")
    first = sending(outbox, "a")
    await clock.sleep(0.5)
    second, third = (sending(outbox, text) for text in "bc")
    await clock.sleep(0.1)
    second.cancel()
    await asyncio.gather(first, third)
    assert wire.transfers == [["a"], ["c"]]


async def test_the_timeout_of_one_caller_does_not_shorten_a_shared_transfer() -> None:
    wire = Wire(takes_s=10.0)
    outbox = Outbox(wire, "orders")
    answers = await behind(outbox, ("a", 12.0), ("b", 60.0))
    assert isinstance(answers[0], OperationTimeoutError)
    assert answers[0].is_in_doubt
    assert answers[1] == ROUTE
    assert wire.deadlines == [60.0, 60.0]
    assert clock.monotonic() == 20.0


async def test_a_message_that_times_out_while_waiting_is_never_sent() -> None:
    wire = Wire(takes_s=10.0)
    outbox = Outbox(wire, "orders")
    answers = await all_of(sending(outbox, "a", "b", may_share=False), sending(outbox, "c", deadline=5.0))
    assert answers[0] == ROUTE
    assert isinstance(answers[1], OperationTimeoutError)
    assert not answers[1].is_in_doubt
    await clock.sleep(20.0)
    assert wire.began == [["a", "b"]]


async def test_a_message_without_time_left_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire()
    outbox = Outbox(wire, "orders")
    answer: asyncio.Future[str] = asyncio.Future()
    monkeypatch.setattr(wire, "_answer", lambda _: answer)
    sends = sending(outbox, "a", "b", may_share=False), sending(outbox, "c", deadline=clock.monotonic())
    answer.set_result(ROUTE)  # its callers hear of it before the timer of the deadline runs
    answers = await all_of(*sends)
    assert isinstance(answers[1], OperationTimeoutError)
    assert wire.began == [["a", "b"]]


async def test_shared_transfers_are_bounded_in_number() -> None:
    wire = Wire()
    outbox = Outbox(wire, "orders")
    wire.refuse["0"] = ServiceBusConnectionError("lost")
    await all_of(*started(outbox, *(str(number) for number in range(1102)), key="k"))
    assert [len(names) for names in wire.began] == [1, 1000, 101]


@pytest.mark.parametrize(("growth_bytes", "expected"), [(0, [1, 2, 1]), (50_000, [1, 1, 1, 1])])
async def test_shared_transfers_are_bounded_in_bytes_including_growth(growth_bytes: int, expected: list[int]) -> None:
    wire = Wire()
    outbox = Outbox(wire, "orders", growth_bytes=growth_bytes)
    await all_of(*(sending(outbox, letter * 100_000) for letter in "0abc"))
    assert [len(names) for names in wire.transfers] == expected


async def test_a_message_too_large_for_sharing_is_sent_alone() -> None:
    wire = Wire()
    outbox = Outbox(wire, "orders")
    await all_of(sending(outbox, "x" * 500_000), sending(outbox, "y"))
    assert [len(names) for names in wire.transfers] == [1, 1]


async def test_an_unexpected_error_reaches_only_its_callers() -> None:
    wire = Wire()
    wire.refuse["a"] = RuntimeError("a bug")
    outbox = Outbox(wire, "orders")
    first = sending(outbox, "a")
    await clock.sleep(0.5)
    assert await all_of(sending(outbox, "b")) == [ROUTE]
    with pytest.raises(RuntimeError):
        await first


async def test_closing_reports_whether_each_message_was_sent() -> None:
    wire = Wire()
    outbox = Outbox(wire, "orders")
    first = sending(outbox, "a")
    await clock.sleep(0.5)
    second = sending(outbox, "b")
    await clock.sleep(0.1)
    outbox.close()
    answers = await asyncio.gather(first, second, return_exceptions=True)
    assert all(isinstance(answer, ServiceBusConnectionError) for answer in answers)
    assert [getattr(answer, "is_in_doubt", None) for answer in answers] == [True, False]
    assert clock.monotonic() == 0.6


@pytest.mark.parametrize("ends", ["closed", "late"])
@pytest.mark.parametrize("is_in_doubt", [False, True])
async def test_a_message_that_waits_to_be_sent_alone_keeps_the_doubt_of_its_transfer(
    ends: str, is_in_doubt: bool
) -> None:
    wire = Wire()
    wire.refuse_shared = InvalidOperationError("not all of them", is_in_doubt=is_in_doubt)
    outbox = Outbox(wire, "orders")
    sends = [
        sending(outbox, text, key="k", deadline=deadline) for text, deadline in zip("0abc", (9, 9, 9, 2.5), strict=True)
    ]
    await clock.sleep(2.2)  # "a" is under way
    if ends == "closed":
        outbox.close()
    *_, answer = await all_of(*sends)
    assert getattr(answer, "is_in_doubt", None) is is_in_doubt


async def test_a_lane_ends_when_it_is_empty() -> None:
    wire = Wire()
    outbox = Outbox(wire, "orders")
    for number in range(50):
        await sending(outbox, "a", key=str(number))
    await asyncio.sleep(0)
    assert not outbox._lanes
    assert len(asyncio.all_tasks()) == 1


async def test_messages_leave_at_once_when_the_link_is_ready() -> None:
    wire = Wire()
    outbox = Outbox(wire, "orders")
    texts = [str(number) for number in range(202)]
    tasks = started(outbox, *texts)
    await asyncio.sleep(0.5)
    sizes = [len(names) for names in wire.began]
    assert sizes == [1, 100, 100], "the last one waits for an answer"
    assert await asyncio.gather(*tasks) == [ROUTE] * len(texts)
    assert [name for names in wire.transfers for name in names] == texts
    assert clock.monotonic() == 2.0
    assert not outbox._lanes


async def test_lists_without_a_key_do_not_wait_for_each_other() -> None:
    wire = Wire()
    outbox = Outbox(wire, "orders")
    await asyncio.gather(*started(outbox, "a", "b", may_share=False))
    assert clock.monotonic() == 1.0


async def test_one_transfer_of_a_key_is_in_flight_when_the_link_is_ready() -> None:
    wire = Wire()
    outbox = Outbox(wire, "orders")
    await asyncio.gather(*started(outbox, "a", "b", key="k", may_share=False))
    assert wire.transfers == [["a"], ["b"]]
    assert clock.monotonic() == 2.0


@pytest.mark.parametrize("after_s", [0.0, 0.5])
async def test_closing_reports_a_transfer_that_has_left_as_in_doubt_and_sends_nothing_that_waits(
    after_s: float,
) -> None:
    wire = Wire()
    outbox = Outbox(wire, "orders")
    tasks = started(outbox, "a", "b", key="k", may_share=False)
    if after_s:
        await clock.sleep(after_s)
    outbox.close()
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert [getattr(error, "is_in_doubt", None) for error in errors] == [True, False]
    await clock.sleep(5)  # the answer arrives too late
    assert wire.began == [["a"]]


async def test_a_cancelled_caller_does_not_end_a_transfer_that_has_left() -> None:
    wire = Wire()
    outbox = Outbox(wire, "orders")
    tasks = started(outbox, "a")
    await asyncio.sleep(0.5)
    tasks[0].cancel()
    await asyncio.sleep(1.0)
    assert wire.transfers == [["a"]]
    assert not outbox._lanes


async def test_messages_of_one_key_keep_their_order_when_callers_in_between_are_cancelled() -> None:
    wire = Wire()
    outbox = Outbox(wire, "orders")
    tasks = started(outbox, *"abcd", key="k", may_share=False)
    await clock.sleep(0.5)
    tasks[1].cancel()
    tasks += started(outbox, "e", key="k")
    await asyncio.gather(*tasks, return_exceptions=True)
    assert wire.transfers == [["a"], ["c"], ["d"], ["e"]]
    assert not outbox._lanes


@pytest.mark.parametrize("key", [None, "k"])
async def test_messages_of_one_step_share_a_transfer_behind_one_that_is_answered_at_once(key: str | None) -> None:
    wire = PromptWire()
    outbox = Outbox(wire, "q")

    async def send(text: str) -> str:
        return await sending(outbox, text, key=key)

    assert await asyncio.gather(*(send(text) for text in "abcd")) == [ROUTE] * 4
    assert [await send(text) for text in "ef"] == [ROUTE] * 2
    assert wire.transfers == [["a"], ["b", "c", "d"], ["e"], ["f"]]
    assert not outbox._lanes


async def test_a_list_does_not_wait_for_the_step_of_an_answered_message_and_keeps_the_order() -> None:
    wire = PromptWire()
    outbox = Outbox(wire, "q")
    sends = [sending(outbox, *texts, key="k", may_share=len(texts) == 1) for texts in ("a", "b", "cd", "e")]
    assert wire.transfers == [["a"], ["b"]]
    assert await all_of(*sends) == [ROUTE] * 4
    assert wire.transfers == [["a"], ["b"], ["c", "d"], ["e"]]


async def test_a_loop_of_sends_that_are_answered_at_once_lets_others_run() -> None:
    outbox = Outbox(PromptWire(), "q")
    steps = 0

    async def other() -> None:
        nonlocal steps
        while True:
            steps += 1
            await clock.step()

    running = asyncio.create_task(other())
    for sent in range(1, 6):
        await sending(outbox, "a")
        assert steps >= sent
    running.cancel()
