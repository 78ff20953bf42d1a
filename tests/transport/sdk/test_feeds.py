"""Documents of the management API are read as azure-servicebus reads them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import pytest

from sbclient import clock
from sbclient.administration import ServiceBusAdministrationClient
from sbclient.amqp import encode_message
from sbclient.broker.faults import Call, Operation
from sbclient.emulator import Emulator
from sbclient.entities import (
    PROPERTIES_OF,
    UNLIMITED,
    AccessRights,
    AuthorizationRule,
    EntityKind,
    EntityStatus,
    RuntimeProperties,
)
from sbclient.errors import MessagingEntityNotFoundError, ServiceBusCommunicationError
from sbclient.message import ServiceBusMessage
from sbclient.transport.sdk.administration import PAGE, SdkAdministration
from sbclient.transport.sdk.entities import from_sdk_properties
from sbclient.transport.sdk.feeds import descriptions, has_next_page, runtimes

RULE: Final = AuthorizationRule(key_name="k", rights=[AccessRights.SEND, AccessRights.LISTEN])
DAY: Final = timedelta(days=1)


@pytest.fixture
async def emulator(tmp_path: Path) -> AsyncIterator[Emulator]:
    """A namespace with entities that have all settings, and some that have none."""
    async with Emulator("contoso", http_port=None, certificate_directory=tmp_path) as emulator:
        emulator.create_queue("plain")
        emulator.create_queue(
            "all/settings",
            authorization_rules=[RULE],
            auto_delete_on_idle=DAY,
            dead_lettering_on_message_expiration=True,
            default_message_time_to_live=timedelta(hours=1.5),
            duplicate_detection_history_time_window=timedelta(minutes=1),
            enable_batched_operations=False,
            enable_partitioning=True,
            lock_duration=timedelta(seconds=5),
            max_delivery_count=3,
            max_size_in_megabytes=2048,
            requires_duplicate_detection=True,
            requires_session=True,
            status=EntityStatus.SEND_DISABLED,
            user_metadata="<é & ö>",
        )
        emulator.create_queue("forwarding", forward_to="plain", forward_dead_lettered_messages_to="plain")
        emulator.create_topic("topic", authorization_rules=[RULE], support_ordering=True, user_metadata="")
        emulator.create_subscription("topic", "plain", default_message_time_to_live=UNLIMITED)
        emulator.create_subscription("topic", "other", forward_to="plain", dead_lettering_on_message_expiration=True)
        yield emulator


@pytest.fixture
async def client(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServiceBusAdministrationClient]:
    monkeypatch.setenv("SSL_CERT_FILE", str(emulator.certificate_path))
    async with ServiceBusAdministrationClient.from_connection_string(emulator.connection_string) as client:
        yield client


def sdk_of(client: ServiceBusAdministrationClient) -> Any:
    """The client of azure-servicebus behind ours."""
    administration = client._transport.administration
    assert isinstance(administration, SdkAdministration)
    return administration._owner.sdk_administration()


@pytest.mark.real_time
async def test_lists_and_descriptions_are_those_of_azure_servicebus(
    client: ServiceBusAdministrationClient, emulator: Emulator
) -> None:
    administration = client._transport.administration
    async with sdk_of(client) as sdk:
        for kind, parents in ((EntityKind.QUEUE, ()), (EntityKind.TOPIC, ()), (EntityKind.SUBSCRIPTION, ("topic",))):
            theirs = [
                from_sdk_properties(PROPERTIES_OF[kind], each) async for each in getattr(sdk, f"list_{kind}s")(*parents)
            ]
            ours = [each async for each in administration.list(kind, parents)]
            assert ours == theirs
            one = await getattr(sdk, f"get_{kind}")(*parents, theirs[0].name)
            ours = await getattr(client, f"get_{kind}")(*parents, theirs[0].name)
            assert ours == from_sdk_properties(PROPERTIES_OF[kind], one) == theirs[0]


@pytest.mark.real_time
async def test_counts_are_those_of_azure_servicebus(client: ServiceBusAdministrationClient, emulator: Emulator) -> None:

    namespace = emulator.context().host.namespace
    for path in ("plain", "plain", "topic"):
        namespace.send(Call(Operation.SEND, clock.now()), path, [encode_message(ServiceBusMessage("an order"))])
    async with sdk_of(client) as sdk:
        for kind, parents in ((EntityKind.QUEUE, ()), (EntityKind.TOPIC, ()), (EntityKind.SUBSCRIPTION, ("topic",))):
            found = getattr(client, f"list_{kind}s_runtime_properties")(*parents)
            ours = {each.name: each async for each in found}
            theirs = [each async for each in getattr(sdk, f"list_{kind}s_runtime_properties")(*parents)]
            assert list(ours) == [each.name for each in theirs]
            for each in theirs:
                for name in RuntimeProperties.__dataclass_fields__:
                    if hasattr(each, name):
                        assert getattr(ours[each.name], name) == getattr(each, name), name
                got = await getattr(client, f"get_{kind}_runtime_properties")(*parents, each.name)
                assert got == ours[each.name]
    assert ours["plain"].active_message_count == 1


@pytest.mark.real_time
@pytest.mark.parametrize("count", [PAGE - 4, PAGE - 3, PAGE - 2])
async def test_lists_of_whole_pages_are_complete(
    client: ServiceBusAdministrationClient, emulator: Emulator, count: int
) -> None:
    for number in range(count):
        emulator.create_queue(f"queue-{number:03}")
    names = sorted([*(f"queue-{number:03}" for number in range(count)), "plain", "all/settings", "forwarding"])
    assert [each.name async for each in client.list_queues()] == names
    assert [each.name async for each in client.list_queues_runtime_properties()] == names


@pytest.mark.real_time
async def test_lists_of_shorter_pages_are_complete(
    client: ServiceBusAdministrationClient, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbclient.emulator.management.paths.MAX_PAGE", 3)
    for number in range(7):
        await client.create_queue(f"queue-{number}")
        await client.create_rule("topic", "plain", f"rule-{number}")
    assert [each.name async for each in client.list_queues()][-7:] == [f"queue-{number}" for number in range(7)]
    rules = [each.name async for each in client.list_rules("topic", "plain")]
    assert rules == ["$Default", *(f"rule-{number}" for number in range(7))]


@pytest.mark.real_time
async def test_a_list_arrives_page_by_page(client: ServiceBusAdministrationClient, emulator: Emulator) -> None:
    """An entity that is created behind the first page, while that page is read, is found."""
    for number in range(2 * PAGE):
        emulator.create_queue(f"queue-{number:03}")
    names: list[str] = []
    async for queue in client.list_queues():
        if not names:
            emulator.create_queue("zz-late")
        names.append(queue.name)
    assert names[-1] == "zz-late"


@pytest.mark.real_time
async def test_missing_entities_and_those_of_the_other_kind_are_not_found(
    client: ServiceBusAdministrationClient,
) -> None:
    for get in (client.get_queue, client.get_queue_runtime_properties, client.delete_queue):
        with pytest.raises(MessagingEntityNotFoundError, match=r"missing.* does not exist"):
            await get("missing")
        with pytest.raises(MessagingEntityNotFoundError, match="'topic' is a topic, not a queue"):
            await get("topic")
    with pytest.raises(MessagingEntityNotFoundError):
        await client.get_subscription("topic", "missing")
    assert (await client.get_topic("topic")).name == "topic"


@pytest.mark.real_time
async def test_requests_share_connections(client: ServiceBusAdministrationClient, emulator: Emulator) -> None:
    subscription = emulator.context().events.subscribe()
    for _ in range(50):
        await client.get_queue("plain")
    opened = [event for event in subscription.take_all() if event["event"] == "connection.opened"]
    assert len(opened) == 1


FEED: Final = (
    '<feed xmlns="http://www.w3.org/2005/Atom"><link rel="self" href="a"/>{}<entry><title>q</title><content>'
    '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" '
    'xmlns:i="http://www.w3.org/2001/XMLSchema-instance">{}</QueueDescription></content></entry></feed>'
)


@pytest.mark.parametrize(
    "element",
    [
        "<LockDuration>soon</LockDuration>",
        "<MaxDeliveryCount>many</MaxDeliveryCount>",
        "<MaxDeliveryCount/>",
        "<RequiresSession>perhaps</RequiresSession>",
        "<AuthorizationRules><AuthorizationRule><Rights><AccessRights>All</AccessRights></Rights></AuthorizationRule>"
        "</AuthorizationRules>",
    ],
)
def test_a_value_that_cannot_be_read_is_an_error_with_its_name(element: str) -> None:
    with pytest.raises(ServiceBusCommunicationError, match="is not a value of"):
        descriptions(EntityKind.QUEUE, ElementTree.fromstring(FEED.format("", element)))


@pytest.mark.parametrize("element", ["<CreatedAt>soon</CreatedAt>", "<MessageCount>x</MessageCount>"])
def test_a_count_that_cannot_be_read_is_an_error_with_its_name(element: str) -> None:
    with pytest.raises(ServiceBusCommunicationError, match="is not a value of"):
        runtimes(EntityKind.QUEUE, ElementTree.fromstring(FEED.format("", element)))


def test_unknown_elements_states_and_nil_are_accepted() -> None:
    feed = FEED.format("", '<Status>Melting</Status><New>x</New><MaxDeliveryCount i:nil="true"/>')
    (queue,) = descriptions(EntityKind.QUEUE, ElementTree.fromstring(feed))
    assert queue == PROPERTIES_OF[EntityKind.QUEUE]("q", status=EntityStatus.UNKNOWN)


def test_an_entry_without_its_description_is_an_error() -> None:
    with pytest.raises(ServiceBusCommunicationError, match="an entry of the list of topics has no topic"):
        descriptions(EntityKind.TOPIC, ElementTree.fromstring(FEED.format("", "")))


def test_a_page_without_entries_is_the_last_one() -> None:
    """A list would never end otherwise."""
    next_link = '<link rel="next" href="b"/>'
    assert has_next_page(ElementTree.fromstring(FEED.format(next_link, "")))
    assert not has_next_page(ElementTree.fromstring(FEED.format("", "")))
    empty = f'<feed xmlns="http://www.w3.org/2005/Atom">{next_link}</feed>'
    assert not has_next_page(ElementTree.fromstring(empty))
