from __future__ import annotations

from sbclient import ServiceBusClient, ServiceBusMessage
from sbclient.entities import CorrelationRuleFilter, SqlRuleAction, SqlRuleFilter
from sbclient.message import ServiceBusReceivedMessage
from tests.contract.kinds import NamespaceKind


async def taken(
    kind: NamespaceKind, client: ServiceBusClient, topic: str, subscription: str, count: int
) -> list[ServiceBusReceivedMessage]:
    """So many messages of a subscription, and that there are no more."""
    messages: list[ServiceBusReceivedMessage] = []
    async with client.get_subscription_receiver(topic, subscription) as receiver:
        while len(messages) < count:
            some = await receiver.receive_messages(count, max_wait_time=kind.patience_s)
            assert some
            for message in some:
                await receiver.complete_message(message)
            messages += some
        assert await receiver.peek_messages(5, sequence_number=1) == []
    return messages


async def test_rules_filter_and_change_the_messages_of_a_subscription(kind: NamespaceKind) -> None:
    topic = await kind.topic("cheap", "red")
    rules = kind.administration
    for subscription in ("cheap", "red"):
        await rules.delete_rule(topic, subscription, "$Default")
    await rules.create_rule(
        topic,
        "cheap",
        "price",
        filter=SqlRuleFilter("price < @limit", {"@limit": 10}),
        action=SqlRuleAction("SET sys.Label = 'bargain'; SET seen = 1"),
    )
    await rules.create_rule(
        topic, "red", "colour", filter=CorrelationRuleFilter(label="paint", properties={"colour": "red"})
    )
    async with kind.plain.get_topic_sender(topic) as sender:
        for colour, price in (("red", 5), ("red", 50), ("blue", 5)):
            await sender.send_messages(
                ServiceBusMessage(
                    f"{colour} {price}", subject="paint", application_properties={"colour": colour, "price": price}
                )
            )
    cheap = await taken(kind, kind.plain, topic, "cheap", 2)
    assert [(str(each), each.subject, each.application_properties["seen"]) for each in cheap] == [
        ("red 5", "bargain", 1),
        ("blue 5", "bargain", 1),
    ]
    red = await taken(kind, kind.plain, topic, "red", 2)
    assert [(str(message), message.subject) for message in red] == [("red 5", "paint"), ("red 50", "paint")]


async def test_a_queue_can_forward_to_another(kind: NamespaceKind) -> None:
    target = await kind.queue()
    source = await kind.queue(forward_to=target)
    async with kind.plain.get_queue_sender(source) as sender:
        await sender.send_messages(ServiceBusMessage("on its way"))
    async with kind.plain.get_queue_receiver(target) as receiver:
        (message,) = await receiver.receive_messages(1, max_wait_time=kind.patience_s)
        assert str(message) == "on its way"
        await receiver.complete_message(message)
