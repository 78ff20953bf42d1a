"""azure-servicebus, its asyncio client, unmodified: what the contract suite, which runs on it too, does not show."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.aio import AutoLockRenewer, ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
)

from tests.stage.serving import ServingThread
from tests.wire.checks import Checks, Names, Outcomes
from tests.wire.programs import MODES
from tests.wire.serving import ServedNamespace, seconds

check = Checks()
names = Names("aio")

DEAD = ServiceBusSubQueue.DEAD_LETTER


@pytest.fixture(scope="module", params=MODES)
def site(thread: ServingThread, request: pytest.FixtureRequest) -> Iterator[Site]:
    namespaces = [ServedNamespace(thread, profile, request.param) for profile in ("std-2021", "prem-2021")]
    yield Site(*namespaces)
    for each in namespaces:
        each.close()


@pytest.fixture(scope="module")
def outcomes(site: Site) -> Outcomes:
    return check.run_async(site, at_once=16)


class Site:
    """What a check is given."""

    def __init__(self, namespace: ServedNamespace, premium: ServedNamespace) -> None:
        self.namespace = namespace
        self.premium = premium

    def client(self, namespace: ServedNamespace | None = None, **options: Any) -> ServiceBusClient:
        served = namespace or self.namespace
        return self.client_of(served.connection_string, **options | served.client_options)

    def client_of(self, connection_string: str, **options: Any) -> ServiceBusClient:
        options = self.namespace.client_options | options
        return ServiceBusClient.from_connection_string(connection_string, retry_total=0, **options)

    @asynccontextmanager
    async def queue(self, **description: Any) -> AsyncIterator[tuple[str, ServiceBusSender, ServiceBusReceiver]]:
        """A queue of its own, with a sender and a receiver that are open."""
        path = self.namespace.queue(names.new(), **description)
        client = self.client()
        async with client, client.get_queue_sender(path) as sender, client.get_queue_receiver(path) as receiver:
            yield path, sender, receiver

    @asynccontextmanager
    async def sessions(self, **description: Any) -> AsyncIterator[tuple[str, ServiceBusSender, ServiceBusClient]]:
        """A session queue of its own, with a sender that is open."""
        path = self.namespace.queue(names.new(), requires_session=True, **description)
        client = self.client()
        async with client, client.get_queue_sender(path) as sender:
            yield path, sender, client


async def one(receiver: ServiceBusReceiver, wait_s: float = 10) -> Any:
    (message,) = await receiver.receive_messages(max_message_count=1, max_wait_time=wait_s)
    return message


async def several(receiver: ServiceBusReceiver, count: int) -> list[Any]:
    got: list[Any] = []
    while len(got) < count:
        batch = await receiver.receive_messages(max_message_count=count - len(got), max_wait_time=10)
        assert batch, f"{len(got)} of {count} came"
        got += batch
    return got


# Sending --------------------------------------------------------------------------------------------------------------


@check
async def check_a_decimal_comes_back_in_both_receive_modes(site: Site) -> None:
    for mode in ServiceBusReceiveMode:
        async with site.queue() as (path, sender, _):
            for number in (Decimal("-1.25"), Decimal("12345.678")):
                await sender.send_messages(ServiceBusMessage("x", application_properties={"d": number}))  # type: ignore[dict-item]
                client = site.client()
                async with client, client.get_queue_receiver(path, receive_mode=mode) as receiver:
                    (message,) = await several(receiver, 1)
                    assert message.application_properties == {b"d": number}


@check
async def check_a_message_without_a_body_survives(site: Site) -> None:
    async with site.queue() as (_, sender, receiver):
        await sender.send_messages(ServiceBusMessage(None))
        message = await one(receiver)
        await receiver.complete_message(message)


@check
async def check_batch_limits_follow_the_tier(site: Site) -> None:
    async with site.client() as client:
        path = site.namespace.queue(names.new())
        async with client.get_queue_sender(path) as sender:
            assert (await sender.create_message_batch()).max_size_in_bytes == 256 * 1024
            with pytest.raises(MessageSizeExceededError):
                await sender.send_messages(ServiceBusMessage(b"x" * 300_000))
            await sender.send_messages(ServiceBusMessage("the link stays"))
    async with site.client(site.premium) as client:
        path = site.premium.queue(names.new())
        async with client.get_queue_sender(path) as sender:
            assert (await sender.create_message_batch()).max_size_in_bytes == 2**20


@check
async def check_large_messages_pass_in_premium(site: Site) -> None:
    path = site.premium.queue(names.new(), max_message_size_in_kilobytes=102_400)
    client = site.client(site.premium)
    async with client, client.get_queue_sender(path) as sender, client.get_queue_receiver(path) as receiver:
        for megabytes in (1, 5, 20):
            body = bytes(range(256)) * (megabytes * 4096)
            await sender.send_messages(ServiceBusMessage(body))
            message = await one(receiver, 30)
            assert b"".join(message.body) == body
            await receiver.complete_message(message)


# Settling -------------------------------------------------------------------------------------------------------------


@check
async def check_the_sdks_own_renewer_keeps_the_lock(site: Site) -> None:
    async with site.queue(lock_duration=seconds(5)) as (path, sender, receiver), AutoLockRenewer() as renewer:
        await sender.send_messages(ServiceBusMessage("x"))
        message = await one(receiver)
        renewer.register(receiver, message, max_lock_renewal_duration=30)
        await asyncio.sleep(8)
        await receiver.complete_message(message)
        assert site.namespace.count(path) == 0


# Receiving ------------------------------------------------------------------------------------------------------------


@check
async def check_several_receivers_share_the_work(site: Site) -> None:
    path = site.namespace.queue(names.new())
    async with site.client() as client, client.get_queue_sender(path) as sender:
        await sender.send_messages([ServiceBusMessage(str(number)) for number in range(40)])

        async def work() -> list[str]:
            done = []
            async with client.get_queue_receiver(path) as receiver:
                while batch := await receiver.receive_messages(max_message_count=5, max_wait_time=2):
                    for message in batch:
                        await receiver.complete_message(message)
                        done.append(str(message))
            return done

        shares = await asyncio.gather(*(work() for _ in range(4)))
    assert sorted((each for share in shares for each in share), key=int) == [str(number) for number in range(40)]


# Sessions -------------------------------------------------------------------------------------------------------------


@check
async def check_a_waiting_receiver_gets_the_next_session_that_comes(site: Site) -> None:
    async with site.sessions() as (path, sender, client):

        async def accept() -> str:
            async with client.get_queue_receiver(path, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=15) as receiver:
                return str(receiver.session.session_id)

        waiting = asyncio.ensure_future(accept())
        await asyncio.sleep(2)
        await sender.send_messages(ServiceBusMessage("x", session_id="late"))
        assert await waiting == "late"


# Topics ---------------------------------------------------------------------------------------------------------------


@check
async def check_a_subscription_has_its_dead_letter_queue(site: Site) -> None:
    topic = site.namespace.topic(names.new(), "s")
    async with site.client() as client, client.get_topic_sender(topic) as sender:
        await sender.send_messages(ServiceBusMessage("x"))
        async with client.get_subscription_receiver(topic, "s") as receiver:
            await receiver.dead_letter_message(await one(receiver), reason="r")
        async with client.get_subscription_receiver(topic, "s", sub_queue=DEAD) as dead:
            assert (await one(dead)).dead_letter_reason == "r"


@pytest.mark.parametrize("name", check.names)
def test_sdk_aio(name: str, outcomes: Outcomes) -> None:
    error = outcomes[name]
    if error is not None:
        raise error


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the client does not close what was reset
async def test_the_same_sender_and_receiver_work_after_an_outage(site: Site) -> None:
    path = site.namespace.queue(names.new())
    client = ServiceBusClient.from_connection_string(site.namespace.connection_string, **site.namespace.client_options)
    async with client, client.get_queue_sender(path) as sender, client.get_queue_receiver(path) as receiver:
        await sender.send_messages(ServiceBusMessage("before"))
        await receiver.complete_message(await one(receiver))
        await asyncio.to_thread(site.namespace.reset_connections)
        await sender.send_messages(ServiceBusMessage("after"))
        (message,) = await several(receiver, 1)
        assert str(message) == "after"
        await receiver.complete_message(message)
    assert site.namespace.count(path) == 0
    del client, sender, receiver
    gc.collect()
