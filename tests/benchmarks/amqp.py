"""What each step of the AMQP engine costs, beside the SDK's codec: `python -m tests.benchmarks.amqp`.

Aims for each message in pure Python: read a frame 2 µs, find the sections of a message and read its properties 4 µs,
write a message 5 µs. What the steps gave, each measured with and without:

* a transfer reader that knows the usual codes of handle, id and tag, and remembers what the bytes behind the tag mean:
  2.9 → 1.3 µs; the same for dispositions: 3.5 → 1.2 µs;
* sections found by their sizes: 1.2 µs, where decoding everything takes 8.8 µs;
* a time to live read without its header, absent ids not checked: a message for the broker 8.3 → 6.6 µs;
* encoded names of application properties remembered: 4.6 → 4.2 µs to write a message with three of them;
* what all deliveries of a message share kept from the first, the sender's part a slice of what came in: 6.8 → 1.3 µs.
"""

from __future__ import annotations

import argparse
import time
import timeit
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

from azure.servicebus._pyamqp import _decode, _encode, message, performatives

from sbclient.amqp import (
    ACCEPTED,
    BrokerAnnotations,
    Connection,
    ConnectionOptions,
    DeliveryReceived,
    EncodedMessage,
    IncomingLink,
    Sections,
    Target,
    encode_delivery,
)
from sbclient.amqp.frames import FrameReader
from sbclient.amqp.transfers import write_disposition, write_transfers
from sbclient.message import ServiceBusMessage
from tests.payloads import payload_of

TOKEN = UUID("00112233-4455-6677-8899-aabbccddeeff")
MESSAGE = ServiceBusMessage(
    b"x" * 500,
    application_properties={"tenant": "contoso", "priority": 7, "weight": 1.5},
    message_id="6f1c2f9e-8d8c-4c9e-9a37-6f1c2f9e8d8c",
    partition_key="customer-17",
    content_type="application/json",
    subject="order",
    correlation_id="corr-1",
    time_to_live=timedelta(hours=1),
)
BURST = 1_000
ROUNDS = 5


def microseconds(work: Callable[[], Any], operations: int = 1, number: int = 20_000) -> float:
    """The best of some rounds, for one operation, in processor time: neighbours on the machine count less."""
    count = max(1, number // operations)
    return min(timeit.repeat(work, number=count, repeat=ROUNDS, timer=time.process_time)) / count / operations * 1e6


def read_frames(stream: bytes) -> None:
    reader = FrameReader(65_536)
    reader.feed(stream)
    while reader.next_frame(0) is not None:
        pass


def sdk_transfer() -> Any:
    fields: dict[str, Any] = dict.fromkeys(performatives.TransferFrame._fields)
    said = {"handle": 3, "delivery_id": 1_234, "delivery_tag": b"\0\0\0\1", "message_format": 0, "settled": False}
    return performatives.TransferFrame(**(fields | said | {"more": False, "payload": payload_of(MESSAGE)}))


def sdk_message() -> Any:
    application_properties: Any = dict(MESSAGE.application_properties)
    properties = message.Properties(
        message_id=MESSAGE.message_id,
        content_type=MESSAGE.content_type,
        subject=MESSAGE.subject,
        correlation_id=MESSAGE.correlation_id,
    )
    return message.Message(
        header=message.Header(ttl=3_600_000),
        message_annotations={b"x-opt-partition-key": MESSAGE.partition_key},
        properties=properties,
        application_properties=application_properties,
        data=[bytes(MESSAGE)],
    )


class Loop:
    """A client and a server in one process; one burst is sent, received, accepted and confirmed."""

    def __init__(self) -> None:
        options = ConnectionOptions(container_id="benchmark", incoming_window=2**20)
        self._client = Connection.client(options, now=0.0)
        self._server = Connection.server(options, now=0.0)
        link = self._client.begin().attach_sender("s", target=Target("q"))
        self._carry()
        end = self._server.sessions[0].links[0]
        assert isinstance(end, IncomingLink)
        end.accept(credit=10 * BURST)
        self._carry()
        self._link = link

    def burst(self) -> None:
        payload = payload_of(MESSAGE)
        for number in range(BURST):
            self._link.send(payload, tag=number.to_bytes(4, "big"))
        self._carry()
        assert not self._link.unsettled

    def _carry(self) -> None:
        pairs = ((self._client, self._server), (self._server, self._client))
        while sum(self._one_way(source, sink) for source, sink in pairs):
            pass

    def _one_way(self, source: Connection, sink: Connection) -> bool:
        output = source.bytes_to_send(now=0.0)
        sink.receive_bytes(output, now=0.0)
        while (event := sink.next_event()) is not None:
            if isinstance(event, DeliveryReceived):
                event.delivery.settle(ACCEPTED)
        return bool(output)


def main() -> None:
    """Print one line for each step: ours, the SDK's, and how many times faster ours is."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    encoded = payload_of(MESSAGE)
    transfer = sdk_transfer()
    header, body = _encode.encode_frame(transfer)
    assert body is not None
    frame = bytes(header) + b"\0\0" + bytes(body)
    view, payload_view = memoryview(frame), memoryview(encoded)
    sections = Sections(encoded)
    annotations = BrokerAnnotations(5, 1_700_000_000_000, 0, 3_600_000, 1_700_000_060_000, TOKEN)
    disposition = write_disposition(1, True, 1_234, None, settled=True, state=ACCEPTED)
    disposition_view = memoryview(disposition)
    theirs = sdk_message()
    said: dict[str, Any] = {"settled": False, "state": None, "max_frame_size": 65_536}
    loop = Loop()
    rows: list[tuple[str, float, float | None, float | None]] = [
        (
            "read a transfer frame",
            microseconds(lambda: read_frames(frame * BURST), BURST),
            microseconds(lambda: _decode.decode_frame(view[8:])),
            2.0,
        ),
        (
            "read a disposition frame",
            microseconds(lambda: read_frames(disposition * BURST), BURST),
            microseconds(lambda: _decode.decode_frame(disposition_view[8:])),
            2.0,
        ),
        (
            "write a transfer frame",
            microseconds(lambda: list(write_transfers(1, 3, 1_234, b"\0\0\0\1", 0, encoded, **said))),
            microseconds(lambda: _encode.encode_frame(transfer)),
            None,
        ),
        ("find the sections of a message", microseconds(lambda: Sections(encoded)), None, None),
        (
            "find sections, read properties",
            microseconds(lambda: Sections(encoded).properties),
            microseconds(lambda: _decode.decode_payload(payload_view)),
            4.0,
        ),
        ("read a message for the broker", microseconds(lambda: EncodedMessage.of(encoded)), None, None),
        (
            "write a message",
            microseconds(lambda: payload_of(MESSAGE)),
            microseconds(lambda: _encode.encode_payload(bytearray(), theirs)),
            5.0,
        ),
        (
            "write a delivery of a stored message",
            microseconds(lambda: encode_delivery(sections, annotations)),
            None,
            None,
        ),
        ("send, receive and accept, both sides", microseconds(loop.burst, BURST, 5 * BURST), None, None),
    ]
    print(f"{'µs of processor time for one':40} {'ours':>7} {'SDK':>7} {'ratio':>7} {'aim':>6}")
    for name, ours, sdk, aim in rows:
        beside = f"{sdk:7.2f} {sdk / ours:6.1f}x" if sdk is not None else f"{'':7} {'':7}"
        print(f"{name:40} {ours:7.2f} {beside} {'' if aim is None else f'{aim:6.1f}'}")


if __name__ == "__main__":
    main()
