from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sbclient import ServiceBusMessage, clock
from sbclient.amqp import (
    RELEASED,
    AmqpError,
    ConnectionOptions,
    EncodedBatch,
    IncomingDelivery,
    Rejected,
    Released,
    Sections,
)
from sbclient.amqp.states import Modified
from sbclient.delivery import SenderLimits
from sbclient.errors import (
    InvalidOperationError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusInternalError,
    ServiceBusQuotaExceededError,
)
from sbclient.transport.amqp.transport import AmqpTransport
from tests.payloads import batch_of
from tests.transport.amqp.service import Service, accept, hold, refused


def message(body: str = "x", **fields: Any) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(body, **fields)]


def bodies(service: Service) -> list[str]:
    return [Sections(delivery.payload or b"").data()[0].decode() for end in service.ends for delivery in end.transfers]


async def test_sends_share_a_connection_and_a_token(service: Service, transport: AmqpTransport) -> None:
    one, other = transport.open_sender("orders"), transport.open_sender("orders")
    await asyncio.gather(
        one.send(batch_of(message("a")), timeout_s=10), other.send(batch_of(message("b")), timeout_s=10)
    )
    assert len(service.ends) == 1
    assert service.asked == ["put-token"]
    assert service.end.attached.count("$cbs") == 2
    assert sorted(bodies(service)) == ["a", "b"]
    assert one.is_open
    assert await one.limits(timeout_s=10) == SenderLimits(2**20, 2**20)


async def test_limits_are_read_again_after_the_link_was_lost(service: Service, transport: AmqpTransport) -> None:
    sender = transport.open_sender("orders")
    await sender.send(batch_of(message()), timeout_s=10)
    service.end.cut()
    for size, batch_size in ((2**18, 2**18), (2**21, 2**20)):
        service.max_message_size = size
        assert await sender.limits(timeout_s=10) == sender.known_limits == SenderLimits(size, batch_size)
        service.end.cut()


async def test_connection_lost_before_the_answer_leaves_the_send_in_doubt(
    service: Service, transport: AmqpTransport
) -> None:
    sender = transport.open_sender("orders")
    service.on_transfer = lambda _: service.end.cut()
    with pytest.raises(ServiceBusConnectionError) as caught:
        await sender.send(batch_of(message()), timeout_s=10)
    assert caught.value.is_in_doubt
    assert not sender.is_open
    service.on_transfer = accept
    await sender.send(batch_of(message()), timeout_s=10)
    assert len(service.ends) == 2


async def test_connection_lost_while_waiting_for_credit_sends_nothing(
    service: Service, transport: AmqpTransport
) -> None:
    service.credit = 0
    sender = transport.open_sender("orders")
    sending = sender.send(batch_of(message()), timeout_s=10)
    await clock.sleep(1)
    service.end.cut()
    with pytest.raises(ServiceBusConnectionError) as caught:
        await sending
    assert not caught.value.is_in_doubt
    assert service.end.transfers == []


async def test_each_of_many_callers_gets_its_own_doubt(service: Service, transport: AmqpTransport) -> None:
    service.credit = 3
    service.on_transfer = hold
    sender = transport.open_sender("orders")
    sends = [sender.send(batch_of(message(str(n))), timeout_s=60) for n in range(5)]
    await clock.sleep(1)
    service.end.cut()
    errors = await asyncio.gather(*sends, return_exceptions=True)
    assert len({id(error) for error in errors}) == 5
    assert [isinstance(error, ServiceBusConnectionError) and error.is_in_doubt for error in errors] == [
        True,
        True,
        True,
        False,
        False,
    ]


async def test_connect_refused_sends_nothing(service: Service, transport: AmqpTransport) -> None:
    service.connect_error = refused("connection refused")
    sender = transport.open_sender("orders")
    with pytest.raises(ServiceBusConnectionError) as caught:
        await sender.send(batch_of(message()), timeout_s=10)
    assert not caught.value.is_in_doubt
    service.connect_error = None
    await sender.send(batch_of(message()), timeout_s=10)


@pytest.mark.parametrize(
    ("status", "kind"), [(401, ServiceBusAuthenticationError), (404, MessagingEntityNotFoundError)]
)
async def test_refused_token_decides_the_error(
    service: Service, transport: AmqpTransport, status: int, kind: type[ServiceBusError]
) -> None:
    service.replies["put-token"] = lambda body: (status, None, None)
    sender = transport.open_sender("orders")
    with pytest.raises(kind) as caught:
        await sender.send(batch_of(message()), timeout_s=10)
    assert not caught.value.is_in_doubt
    assert "SharedAccessSignature" not in str(caught.value)
    service.replies["put-token"] = lambda body: (202, None, None)
    await sender.send(batch_of(message()), timeout_s=10)
    assert len(service.ends) == 1


async def test_refused_attach_decides_the_error(service: Service, transport: AmqpTransport) -> None:
    service.refusals["orders"] = AmqpError("amqp:unauthorized-access", "Send is needed")
    sender = transport.open_sender("orders")
    with pytest.raises(ServiceBusAuthorizationError) as caught:
        await sender.open(timeout_s=10)
    assert not caught.value.is_in_doubt
    service.refusals.clear()
    await sender.send(batch_of(message()), timeout_s=10)


async def test_link_detached_for_idleness_is_attached_again_by_the_next_send(
    service: Service, transport: AmqpTransport
) -> None:
    sender = transport.open_sender("orders")
    await sender.send(batch_of(message("a")), timeout_s=10)
    service.end.link("orders").detach(AmqpError("amqp:link:detach-forced", "idle for 10 minutes"))
    service.end.flush()
    assert not sender.is_open
    await sender.send(batch_of(message("b")), timeout_s=10)
    assert bodies(service) == ["a", "b"]
    assert len(service.ends) == 1


async def test_no_credit_in_time_is_a_timeout_without_doubt(service: Service, transport: AmqpTransport) -> None:
    service.credit = 0
    sender = transport.open_sender("orders")
    began_at = clock.monotonic()
    with pytest.raises(OperationTimeoutError) as caught:
        await sender.send(batch_of(message()), timeout_s=10)
    assert not caught.value.is_in_doubt
    assert clock.monotonic() - began_at == pytest.approx(10, abs=0.01)
    service.end.link("orders").grant(5)
    service.end.flush()
    await sender.send(batch_of(message("later")), timeout_s=10)
    assert bodies(service) == ["later"]


async def test_credit_that_is_used_up_is_waited_for_until_the_deadline(
    service: Service, transport: AmqpTransport
) -> None:
    service.credit = 1
    sender = transport.open_sender("orders")
    await sender.send(batch_of([ServiceBusMessage("x")]), timeout_s=7)
    began_at = clock.monotonic()
    with pytest.raises(OperationTimeoutError) as raised:
        await sender.send(batch_of([ServiceBusMessage("x")]), timeout_s=7)
    assert not raised.value.is_in_doubt
    assert clock.monotonic() - began_at == 7


async def test_no_answer_in_time_is_a_timeout_in_doubt(service: Service, transport: AmqpTransport) -> None:
    service.on_transfer = hold
    sender = transport.open_sender("orders")
    with pytest.raises(OperationTimeoutError) as caught:
        await sender.send(batch_of(message()), timeout_s=10)
    assert caught.value.is_in_doubt


async def test_attach_without_answer_ends_at_the_deadline(service: Service, transport: AmqpTransport) -> None:
    service.unanswered.add("orders")
    sender = transport.open_sender("orders")
    with pytest.raises(OperationTimeoutError) as caught:
        await sender.send(batch_of(message()), timeout_s=10)
    assert not caught.value.is_in_doubt
    service.unanswered.clear()
    await sender.send(batch_of(message()), timeout_s=10)
    assert len(service.ends) == 1


async def test_transfers_leave_in_the_order_of_the_calls_and_are_pipelined(
    service: Service, transport: AmqpTransport
) -> None:
    service.on_transfer = hold
    sender = transport.open_sender("orders")
    sends = [sender.send(batch_of(message(f"{n}", session_id="k" if n % 2 else None)), timeout_s=60) for n in range(6)]
    await clock.sleep(1)
    assert bodies(service) == ["0", "1", "2", "3", "4", "5"]
    for delivery in service.end.transfers:
        accept(delivery)
    service.end.flush()
    await asyncio.gather(*sends)


async def test_calls_before_the_link_stands_keep_their_order(service: Service, transport: AmqpTransport) -> None:
    sender = transport.open_sender("orders")
    sends = [sender.send(batch_of(message(str(n), session_id="k")), timeout_s=60) for n in range(20)]
    await asyncio.gather(*sends)
    assert bodies(service) == [str(n) for n in range(20)]


async def test_cancelled_send_that_waits_never_leaves(service: Service, transport: AmqpTransport) -> None:
    service.credit = 0
    sender = transport.open_sender("orders")
    first = sender.send(batch_of(message("first")), timeout_s=60)
    second = sender.send(batch_of(message("second")), timeout_s=60)
    await clock.sleep(1)
    first.cancel()
    await clock.sleep(1)
    service.end.link("orders").grant(5)
    service.end.flush()
    await second
    assert bodies(service) == ["second"]


async def test_cancelled_send_that_left_leaves_the_link_usable(service: Service, transport: AmqpTransport) -> None:
    service.on_transfer = hold
    sender = transport.open_sender("orders")
    sending = sender.send(batch_of(message("a")), timeout_s=60)
    await clock.sleep(1)
    sending.cancel()
    service.on_transfer = accept
    await sender.send(batch_of(message("b")), timeout_s=10)
    accept(service.end.transfers[0])
    service.end.flush()
    assert bodies(service) == ["a", "b"]
    assert len(service.end.links["orders"]) == 1


@pytest.mark.parametrize("stage", ["$cbs", "orders"])
async def test_cancelled_opening_leaves_the_connection_usable(
    service: Service, transport: AmqpTransport, stage: str
) -> None:
    service.unanswered.add(stage)
    sender = transport.open_sender("orders")
    opening = asyncio.create_task(sender.open(timeout_s=60))
    await clock.sleep(1)
    opening.cancel()
    await clock.sleep(1)
    service.unanswered.clear()
    await sender.send(batch_of(message()), timeout_s=10)
    assert len(service.ends) == 1


async def test_cancelled_caller_does_not_end_the_opening_for_others(service: Service, transport: AmqpTransport) -> None:
    service.unanswered.add("orders")
    sender = transport.open_sender("orders")
    one = sender.send(batch_of(message("a")), timeout_s=60)
    other = sender.send(batch_of(message("b")), timeout_s=60)
    await clock.sleep(1)
    one.cancel()
    await clock.sleep(1)
    service.end.link("orders").accept(credit=10)
    service.end.flush()
    await other
    assert bodies(service) == ["b"]
    assert len(service.end.links["orders"]) == 1


@pytest.mark.parametrize("frame_size", [512, 4096])
async def test_large_message_is_split_at_the_frame_size_of_the_service(
    service: Service, transport: AmqpTransport, frame_size: int
) -> None:
    service.options = ConnectionOptions(container_id="service", max_frame_size=frame_size, max_message_size=2**20)
    body = bytes(range(256)) * 100
    sender = transport.open_sender("orders")
    await sender.send(batch_of([ServiceBusMessage(body)]), timeout_s=10)
    assert Sections(service.end.transfers[0].payload).data() == [body]


async def test_transfer_held_by_the_session_window_keeps_later_ones_unsent(
    service: Service, transport: AmqpTransport
) -> None:
    service.options = ConnectionOptions(
        container_id="service", max_frame_size=512, incoming_window=4, max_message_size=2**20
    )
    sender = transport.open_sender("orders")
    await sender.open(timeout_s=10)
    service.end.is_deaf = True
    large = sender.send(batch_of([ServiceBusMessage(b"x" * 5000)]), timeout_s=30)
    small = sender.send(batch_of(message()), timeout_s=10)
    with pytest.raises(OperationTimeoutError) as caught:
        await small
    assert not caught.value.is_in_doubt
    service.end.is_deaf = False
    service.end.work()
    await large
    await sender.send(batch_of(message("after")), timeout_s=10)
    assert bodies(service)[-1] == "after"


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (Rejected(AmqpError("amqp:resource-limit-exceeded", "full")), ServiceBusQuotaExceededError),
        (Rejected(AmqpError("amqp:not-allowed", "no")), InvalidOperationError),
        (Rejected(), ServiceBusInternalError),
        (Released(), ServiceBusInternalError),
        (Modified(), ServiceBusInternalError),
    ],
)
async def test_outcome_decides_the_error(
    service: Service, transport: AmqpTransport, outcome: Rejected | Released | Modified, kind: type[ServiceBusError]
) -> None:
    service.on_transfer = lambda delivery: delivery.settle(outcome)
    sender = transport.open_sender("orders")
    with pytest.raises(kind) as caught:
        await sender.send(batch_of(message()), timeout_s=10)
    assert not caught.value.is_in_doubt
    assert sender.is_open


async def test_unsettled_outcome_is_settled_by_the_client(service: Service, transport: AmqpTransport) -> None:
    from sbclient.amqp import ACCEPTED

    service.on_transfer = lambda delivery: delivery.settle(ACCEPTED, settled=False)
    await transport.open_sender("orders").send(batch_of(message()), timeout_s=10)
    await clock.sleep(1)
    assert service.end.transfers[0].is_settled


async def test_pipelined_sends_need_no_task_and_no_timer_each(service: Service, transport: AmqpTransport) -> None:
    service.credit = 10_000
    service.on_transfer = hold
    sender = transport.open_sender("orders")
    await sender.open(timeout_s=10)
    tasks = len(asyncio.all_tasks())
    writes = service.end.writes
    sends = [sender.send(batch_of(message()), timeout_s=20) for _ in range(500)]
    await clock.sleep(1)
    assert len(asyncio.all_tasks()) == tasks
    assert len(service.end.transfers) == 500
    assert service.end.writes == writes + 1
    timers = [handle for handle in asyncio.get_running_loop()._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]  # asyncio's own list
    assert len(timers) < 10
    for delivery in service.end.transfers:
        accept(delivery)
    service.end.flush()
    await asyncio.gather(*sends)


async def test_list_goes_out_as_one_batch(service: Service, transport: AmqpTransport) -> None:
    from sbclient.amqp import BATCH_FORMAT, split_batch

    sender = transport.open_sender("orders")
    await sender.send(batch_of([ServiceBusMessage(str(n)) for n in range(3)]), timeout_s=10)
    (delivery,) = service.end.transfers
    assert delivery.message_format == BATCH_FORMAT
    assert [Sections(part).data() for part in split_batch(delivery.payload)] == [[b"0"], [b"1"], [b"2"]]


async def test_schedule_returns_the_sequence_numbers(service: Service, transport: AmqpTransport) -> None:
    from sbclient.amqp.types import longs

    service.replies["com.microsoft:schedule-message"] = lambda body: (200, None, {"sequence-numbers": longs([7, 8])})
    sender = transport.open_sender("orders")
    for both, session, key in (
        ([ServiceBusMessage("a", session_id=""), ServiceBusMessage("b", partition_key="k")], [""], ["k"]),
        (message("a") + message("b"), [], []),
    ):
        assert await sender.schedule(batch_of(both), timeout_s=10) == [7, 8]
        entries = service.end.requests[-1][2]["messages"]
        assert [entry["session-id"] for entry in entries if "session-id" in entry] == session
        assert [entry["partition-key"] for entry in entries if "partition-key" in entry] == key
    _, arguments, body = service.end.requests[-1]
    assert arguments["com.microsoft:server-timeout"] <= 10_000
    assert [Sections(entry["message"]).data() for entry in body["messages"]] == [[b"a"], [b"b"]]
    with pytest.raises(ServiceBusCommunicationError):
        await sender.schedule(batch_of(message()), timeout_s=10)  # two numbers come


@pytest.mark.parametrize("link", [0, 1])
async def test_request_fails_at_once_when_one_of_its_two_links_is_lost(
    service: Service, transport: AmqpTransport, link: int
) -> None:
    sender = transport.open_sender("orders")
    for _ in range(2):  # each time both are attached again
        service.replies["com.microsoft:schedule-message"] = lambda body: None
        scheduling = asyncio.create_task(sender.schedule(batch_of(message()), timeout_s=60))
        await clock.sleep(1)
        service.end.links["orders/$management"][-2 + link].detach(AmqpError("amqp:internal-error", "moved"))
        service.end.flush()
        began_at = clock.monotonic()
        with pytest.raises(ServiceBusError) as caught:
            await scheduling
        assert (caught.value.is_in_doubt, clock.monotonic()) == (True, began_at)
        service.replies["com.microsoft:schedule-message"] = lambda body: (200, None, {"sequence-numbers": [7]})
        assert await sender.schedule(batch_of(message()), timeout_s=60) == [7]
    assert service.end.attached.count("orders") == 1


@pytest.mark.parametrize(
    "outcome", [RELEASED, Modified(delivery_failed=True), Rejected(None), Rejected(AmqpError("amqp:not-allowed", "no"))]
)
async def test_request_that_is_not_taken_fails_at_once(
    service: Service, transport: AmqpTransport, outcome: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = transport.open_sender("orders")
    await sender.open(timeout_s=10)
    monkeypatch.setattr(service.end, "_receive", lambda delivery: delivery.settle(outcome))
    began_at = clock.monotonic()
    with pytest.raises(ServiceBusError) as caught:
        await sender.schedule(batch_of(message()), timeout_s=60)
    assert (caught.value.is_in_doubt, clock.monotonic()) == (False, began_at)


async def test_closing_a_sender_fails_its_pending_sends(service: Service, transport: AmqpTransport) -> None:
    service.on_transfer = hold
    service.credit = 2
    sender = transport.open_sender("orders")
    sends = [sender.send(batch_of(message()), timeout_s=60) for _ in range(3)]
    await clock.sleep(1)
    assert len({delivery.tag for delivery in service.end.transfers}) == 2
    await sender.close()
    for sending, is_in_doubt in zip(sends, (True, True, False), strict=True):
        with pytest.raises(ServiceBusError) as caught:
            await sending
        assert caught.value.is_in_doubt == is_in_doubt
    with pytest.raises(InvalidOperationError):
        await sender.send(batch_of(message()), timeout_s=10)


async def test_transfers_are_checked_against_the_limits_of_the_link_that_they_waited_for(
    service: Service, transport: AmqpTransport
) -> None:
    def check(batch: EncodedBatch, limits: SenderLimits) -> None:
        if batch.largest_bytes > limits.max_message_size_bytes / 2:  # the engine itself checks the whole
            raise MessageSizeExceededError("too large")

    sender = transport.open_sender("orders", check)
    for limit in (3_000, 2_000):
        service.max_message_size = 2 * limit
        sends = [sender.send(batch_of(message("x" * size)), timeout_s=10) for size in (limit, 10)]
        for _ in range(2):
            with pytest.raises(MessageSizeExceededError):
                await sends[0]
            await sends[1]
            sends = [sender.send(batch_of(message("x" * size)), timeout_s=10) for size in (limit, limit - 100)]
        with pytest.raises(MessageSizeExceededError):
            await sends[0]
        await sends[1]
        with pytest.raises(MessageSizeExceededError):
            await sender.schedule(batch_of(message("x" * limit)), timeout_s=10)
        assert len(service.end.transfers) == 3
        service.end.cut()


async def test_answers_to_unknown_deliveries_change_nothing(service: Service, transport: AmqpTransport) -> None:
    from sbclient.amqp import ACCEPTED
    from sbclient.amqp.transfers import write_disposition

    def answer(delivery: IncomingDelivery) -> None:
        channel = delivery.link.session.channel
        service.end.engine.write_bytes(write_disposition(channel, True, 500, 90_000, settled=True, state=ACCEPTED))
        accept(delivery)
        accept(delivery)

    service.on_transfer = answer
    sender = transport.open_sender("orders")
    for _ in range(3):
        await sender.send(batch_of(message()), timeout_s=10)
    assert len(service.ends) == 1


async def test_garbage_from_the_service_ends_the_connection_with_doubt(
    service: Service, transport: AmqpTransport
) -> None:
    service.on_transfer = lambda _: service.end.engine.write_bytes(b"\xff" * 64)
    sender = transport.open_sender("orders")
    with pytest.raises(ServiceBusConnectionError) as caught:
        await sender.send(batch_of(message()), timeout_s=10)
    assert caught.value.is_in_doubt
    service.on_transfer = accept
    await sender.send(batch_of(message()), timeout_s=10)


async def test_frames_above_the_announced_size_end_the_connection(service: Service, transport: AmqpTransport) -> None:
    service.on_transfer = lambda _: service.end.engine.write_bytes((70_000).to_bytes(4, "big") + b"\x02\x00\x00\x00")
    with pytest.raises(ServiceBusConnectionError):
        await transport.open_sender("orders").send(batch_of(message()), timeout_s=10)


async def test_large_message_does_not_delay_other_links(service: Service, transport: AmqpTransport) -> None:
    service.options = ConnectionOptions(container_id="service", max_message_size=2**24, max_frame_size=2**16)
    large, small = transport.open_sender("large"), transport.open_sender("small")
    await asyncio.gather(large.open(timeout_s=10), small.open(timeout_s=10))
    end = service.end
    write = end.write

    def write_slowly(data: bytes) -> None:
        assert len(data) < 2**18 + 2**17
        write(data)
        end.sink.on_full(is_full=True)
        clock.call_later(1.0, lambda: end.sink.on_full(is_full=False))

    end.write = write_slowly  # type: ignore[method-assign]  # a network that takes a quarter of a megabyte a second
    body = b"x" * 1_000_000
    sending = large.send(batch_of([ServiceBusMessage(body)]), timeout_s=60)
    await clock.sleep(0.5)
    began_at = clock.monotonic()
    await small.send(batch_of(message("small")), timeout_s=60)
    assert clock.monotonic() - began_at < 3
    assert not sending.done()
    await sending
    assert Sections(end.transfers[-1].payload).data() == [body]
