"""A message that cannot be decoded hides no other one from the page."""

from __future__ import annotations

import json

import pytest

from sbclient import clock
from sbclient.amqp import EncodedMessage, encode_message
from sbclient.broker.faults import Call, Operation
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.control.messages_api import MessagesApi
from sbclient.entities import EntityKind
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage
from tests.emulator.amqp.client import create
from tests.emulator.conftest import context, host
from tests.emulator.requests import request
from tests.hostile.keys import KEYS
from tests.hostile.raw_client import encoded_map

__all__ = ["context", "host"]

FLOODED = encoded_map((key, b"\x40") for key in KEYS["uuids"](100))
MESSAGES = {
    "a flooded body": b"\x00\x53\x77" + FLOODED,
    "a value that is not valid": b"\x00\x53\x77\xa1\x01\xff",
    "a large value": b"\x00\x53\x77\xb1\x00\x01\x86\xa0" + b"x" * 100_000,
}


@pytest.mark.parametrize("payload", MESSAGES.values(), ids=MESSAGES)
async def test_other_messages_are_listed(context: NamespaceContext, host: BrokerHost, payload: bytes) -> None:
    create(host, EntityKind.QUEUE, "q")
    for message in (EncodedMessage.of(payload), encode_message(ServiceBusMessage("an order"))):
        host.namespace.send(Call(Operation.SEND, clock.now()), "q", [message])
    api = MessagesApi(context)

    page = await api.list(request("GET", "/$control/messages?entity=q"))
    shown = [
        await api.show(request("GET", f"/$control/messages/{each['sequence_number']}?entity=q"))
        for each in page["messages"]
    ]

    assert [each["preview"] for each in page["messages"]][1] == "an order"
    assert len(shown) == 2
    assert json.dumps(shown, default=str)
