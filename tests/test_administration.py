"""The administration client: every operation, on every kind of entity, with the SDK's names."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import azure.servicebus.management as sdk
import pytest

from sbclient.administration import EntityStatus, ServiceBusAdministrationClient
from sbclient.client.client import ServiceBusClient
from sbclient.entities import (
    CorrelationRuleFilter,
    EntityAddress,
    QueueProperties,
    SqlRuleFilter,
    TopicProperties,
    TrueRuleFilter,
)
from sbclient.errors import (
    InvalidOperationError,
    MessagingEntityAlreadyExistsError,
    MessagingEntityNotFoundError,
    ServiceBusConnectionError,
)
from sbclient.message import ServiceBusMessage
from sbclient.testing import Fault, FaultKind, MemoryPair
from sbclient.transport.memory.transport import MemoryTransport
from tests.client.scene import QUEUE


@pytest.fixture
def administration(pair: MemoryPair) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient(transport=MemoryTransport(pair.primary))


async def test_queues(administration: ServiceBusAdministrationClient, pair: MemoryPair) -> None:
    made = await administration.create_queue("bills", lock_duration=timedelta(seconds=30), max_delivery_count=3)
    assert (made.name, made.max_delivery_count) == ("bills", 3)
    assert await administration.get_queue("bills") == made
    await administration.update_queue(made, max_delivery_count=5)
    assert (await administration.get_queue("bills")).max_delivery_count == 5
    await administration.update_queue({"name": "bills", "lock_duration": timedelta(seconds=20)})
    assert (await administration.get_queue("bills")).lock_duration == timedelta(seconds=20)
    async with pair.unpaired_client() as client, client.get_queue_sender("bills") as sender:
        await sender.send_messages(ServiceBusMessage("a"))
    assert (await administration.get_queue_runtime_properties("bills")).active_message_count == 1
    assert [queue.name async for queue in administration.list_queues()] == ["bills", QUEUE]
    counts = [queue.active_message_count async for queue in administration.list_queues_runtime_properties()]
    assert counts == [1, 0]
    with pytest.raises(MessagingEntityAlreadyExistsError):
        await administration.create_queue("bills")
    await administration.delete_queue("bills")
    with pytest.raises(MessagingEntityNotFoundError):
        await administration.get_queue("bills")


async def test_topics_subscriptions_and_rules(administration: ServiceBusAdministrationClient) -> None:
    topic = await administration.create_topic("prices", max_size_in_megabytes=2048)
    assert await administration.get_topic("prices") == topic
    await administration.update_topic(topic, default_message_time_to_live=timedelta(hours=1))
    assert (await administration.get_topic("prices")).default_message_time_to_live == timedelta(hours=1)
    assert (await administration.get_topic_runtime_properties("prices")).subscription_count == 0
    subscription = await administration.create_subscription("prices", "eu", max_delivery_count=2)
    counts = await administration.get_topic_runtime_properties("prices")
    assert (counts.subscription_count, counts.sql_filter_count, counts.correlation_filter_count) == (1, 1, 0)
    assert await administration.get_subscription("prices", "eu") == subscription
    await administration.update_subscription("prices", subscription, max_delivery_count=4)
    assert (await administration.get_subscription("prices", "eu")).max_delivery_count == 4
    assert (await administration.get_subscription_runtime_properties("prices", "eu")).total_message_count == 0
    rule = await administration.create_rule("prices", "eu", "cheap", filter=SqlRuleFilter("price < 5"))
    assert await administration.get_rule("prices", "eu", "cheap") == rule
    await administration.update_rule("prices", "eu", rule, filter=CorrelationRuleFilter(label="cheap"))
    assert (await administration.get_rule("prices", "eu", "cheap")).filter == CorrelationRuleFilter(label="cheap")
    assert (await administration.create_rule("prices", "eu", "all")).filter == TrueRuleFilter()
    assert [one.name async for one in administration.list_rules("prices", "eu")] == ["$Default", "all", "cheap"]
    assert [one.name async for one in administration.list_topics()] == ["prices"]
    assert [one.subscription_count async for one in administration.list_topics_runtime_properties()] == [1]
    assert [one.name async for one in administration.list_subscriptions("prices")] == ["eu"]
    assert [one.name async for one in administration.list_subscriptions_runtime_properties("prices")] == ["eu"]
    await administration.delete_rule("prices", "eu", "all")
    await administration.delete_subscription("prices", "eu")
    await administration.delete_topic("prices")
    assert [one async for one in administration.list_topics()] == []


async def test_attributes_that_do_not_exist_are_refused(administration: ServiceBusAdministrationClient) -> None:
    for properties, changes in ((await administration.get_queue(QUEUE), {"colour": 1}), ({"name": QUEUE, "x": 1}, {})):
        with pytest.raises(InvalidOperationError):
            await administration.update_queue(properties, **changes)


async def test_a_rule_needs_a_filter_and_an_action_of_this_package(
    administration: ServiceBusAdministrationClient,
) -> None:
    await administration.create_topic("prices")
    await administration.create_subscription("prices", "eu")
    wrong: Any
    for wrong in ("a > 1", sdk.SqlRuleFilter("a > 1")):
        with pytest.raises(InvalidOperationError, match="give SqlRuleFilter"):
            await administration.create_rule("prices", "eu", "r", filter=wrong)
    for wrong in ("SET a = 1", SqlRuleFilter("a > 1")):
        with pytest.raises(InvalidOperationError, match="give SqlRuleAction"):
            await administration.create_rule("prices", "eu", "r", action=wrong)
    rule = await administration.get_rule("prices", "eu", "$Default")
    with pytest.raises(InvalidOperationError, match="give SqlRuleFilter"):
        await administration.update_rule("prices", "eu", rule, filter="a > 1")


async def test_the_properties_of_the_namespace_have_its_name(administration: ServiceBusAdministrationClient) -> None:
    async with administration as entered:
        assert (await entered.get_namespace_properties()).name == "contoso"


async def test_an_operation_fails_while_the_namespace_is_down(
    administration: ServiceBusAdministrationClient, pair: MemoryPair
) -> None:
    pair.primary.inject(Fault(FaultKind.DOWN))
    with pytest.raises(ServiceBusConnectionError):
        await administration.get_queue(QUEUE)


async def test_properties_of_another_kind_from_the_transport_are_a_type_error(
    administration: ServiceBusAdministrationClient, pair: MemoryPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def describing(self: object, address: EntityAddress) -> TopicProperties:
        return TopicProperties(address.names[0])

    monkeypatch.setattr(type(administration._transport.administration), "get", describing)
    with pytest.raises(TypeError, match=QueueProperties.__name__):
        await administration.get_queue(QUEUE)


async def test_close_leaves_the_transport_of_a_service_bus_client_open() -> None:
    async with ServiceBusAdministrationClient.from_connection_string("memory://administered") as own:
        await own.create_queue("bills")
    async with ServiceBusClient.from_connection_string("memory://administered") as client:
        shared = client.administration
        assert (await shared.get_queue("bills")).name == "bills"
        await shared.close()
        assert (await client.administration.get_queue("bills")).name == "bills"


def test_a_namespace_without_a_credential_is_refused() -> None:
    with pytest.raises(InvalidOperationError, match="from_connection_string"):
        ServiceBusAdministrationClient("contoso.servicebus.windows.net")


@pytest.mark.deviation("client.management")
async def test_durations_may_be_texts(administration: ServiceBusAdministrationClient) -> None:
    duration: Any = "PT5S"
    made = await administration.create_queue("bills", lock_duration=duration)
    assert made.lock_duration == timedelta(seconds=5)
    await administration.update_queue({"name": "bills", "lock_duration": "PT1M"})
    assert (await administration.get_queue("bills")).lock_duration == timedelta(minutes=1)
    with pytest.raises(InvalidOperationError, match="5 seconds"):
        await administration.update_queue({"name": "bills", "lock_duration": "5 seconds"})


async def test_a_status_may_be_a_text(administration: ServiceBusAdministrationClient) -> None:
    await administration.create_queue("bills")
    await administration.update_queue({"name": "bills", "status": "SendDisabled"})
    assert (await administration.get_queue("bills")).status is EntityStatus.SEND_DISABLED
    await administration.update_queue({"name": "bills", "status": "Active"})
    assert (await administration.get_queue("bills")).status is EntityStatus.ACTIVE
    with pytest.raises(InvalidOperationError, match="'Asleep': give one of Active"):
        await administration.update_queue({"name": "bills", "status": "Asleep"})
