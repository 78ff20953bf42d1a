"""Clients recover from links that the emulator detaches because they are idle, as the service does after 10 minutes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage as SdkMessage
from azure.servicebus.aio import ServiceBusClient as SdkClient

from sbclient import ServiceBusClient, ServiceBusMessage
from sbclient.emulator import Emulator
from sbclient.emulator.context import ServerSettings
from tests.limit import HANG_S

pytestmark = pytest.mark.real_time

IDLE_S = 1.5


@pytest.mark.parametrize(("client_of", "message_of"), [(SdkClient, SdkMessage), (ServiceBusClient, ServiceBusMessage)])
async def test_a_client_recovers_from_idle_links(client_of: Any, message_of: Any) -> None:
    async with Emulator("contoso", settings=ServerSettings(idle_link_timeout_s=IDLE_S)) as emulator:
        emulator.create_queue("q")
        client = client_of.from_connection_string(emulator.connection_string)
        async with client, client.get_queue_sender("q") as sender, client.get_queue_receiver("q") as receiver:
            await sender.send_messages(message_of("first"))
            (first,) = await receiver.receive_messages(max_wait_time=HANG_S)
            await receiver.complete_message(first)
            waiting = asyncio.create_task(receiver.receive_messages(max_wait_time=HANG_S))
            await asyncio.sleep(2 * IDLE_S)  # both links are detached
            await sender.send_messages(message_of("second"))
            (second,) = await waiting
            await receiver.complete_message(second)
            assert [str(message) for message in (first, second)] == ["first", "second"]
        assert len(emulator.context().host.namespace.queue("q")) == 0
