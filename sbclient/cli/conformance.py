"""The checks of `sbclient verify`: small scenarios, each with the one result that Service Bus documents.

A check gets an empty entity of its own and returns what it observed as text. The contract tests run the same checks on
every transport.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from sbclient import clock
from sbclient.client.client import ServiceBusClient
from sbclient.client.receiver import ServiceBusReceiver
from sbclient.delivery import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode, ServiceBusSubQueue
from sbclient.entities import SqlRuleFilter
from sbclient.errors import MessageSizeExceededError, OperationTimeoutError, ServiceBusError
from sbclient.message import (
    AmqpAnnotatedMessage,
    AmqpMessageBodyType,
    AmqpMessageHeader,
    AmqpMessageProperties,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
)

SUBSCRIPTION: Final = "all"
FILTERED: Final = "red"
TOO_LARGE_BYTES: Final = 1_100_000
"""More than a new entity accepts in any tier."""

_LATER_S: Final = 3600.0
_SHORT_S: Final = 1.0


class NotAvailableError(Exception):
    """The namespace lacks what a check needs."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What a check works with.

    Attributes:
        client: of the namespace, over the transport under test.
        entity: the name of the check's own queue or topic.
        patience_s: how long to wait for a message that must arrive.
        with_key: opens another client with another key; None if the credential has no key.
    """

    client: ServiceBusClient
    entity: str
    patience_s: float
    with_key: Callable[[str], ServiceBusClient] | None = None

    async def send(self, *messages: ServiceBusMessage) -> None:
        """Send messages one after another."""
        async with self.client.get_queue_sender(self.entity) as sender:
            for message in messages:
                await sender.send_messages(message)

    def receiver(self, **options: Any) -> ServiceBusReceiver:
        """Return a receiver of the queue."""
        return self.client.get_queue_receiver(self.entity, **options)

    async def next_one(self, receiver: ServiceBusReceiver) -> ServiceBusReceivedMessage:
        """Return the next message.

        Raises:
            OperationTimeoutError: none arrives.
        """
        messages = await receiver.receive_messages(1, max_wait_time=self.patience_s)
        if not messages:
            raise OperationTimeoutError(f"no message arrived within {self.patience_s:g} s")
        return messages[0]

    async def left(self) -> list[str]:
        """Return the bodies of the messages in the queue."""
        async with self.receiver() as receiver:
            return _bodies(await receiver.peek_messages(50, sequence_number=1))

    async def taken(self, receiver: ServiceBusReceiver, count: int) -> list[ServiceBusReceivedMessage]:
        """Receive and complete so many messages."""
        messages = []
        for _ in range(count):
            messages.append(await self.next_one(receiver))
            await receiver.complete_message(messages[-1])
        return messages

    def in_seconds(self, seconds: float) -> datetime:
        """Return a time from now."""
        return datetime.fromtimestamp(clock.now() + seconds, tz=UTC)


@dataclass(frozen=True, slots=True)
class Check:
    """One scenario.

    Attributes:
        name: for people.
        run: performs it and returns what it observed.
        expected: what it observes if the namespace and the transport behave as documented.
        description: of the entity that it needs; with `is_topic` a topic with two subscriptions.
        is_for_sdk: False for what azure-servicebus cannot do.
    """

    name: str
    run: Callable[[Scene], Awaitable[str]]
    expected: str
    description: Mapping[str, Any] = field(default_factory=dict, repr=False)
    is_topic: bool = False
    is_for_sdk: bool = True


def _bodies(messages: Iterable[ServiceBusReceivedMessage]) -> list[str]:
    return [str(message) for message in messages]


def _left(bodies: list[str]) -> str:
    return f"{' '.join(bodies) or 'nothing'} left"


def _words(*facts: object) -> str:
    return ", ".join(" ".join(fact) if isinstance(fact, list) else str(fact) for fact in facts)


async def _send(scene: Scene) -> str:
    await scene.send(
        ServiceBusMessage("a", message_id="1", subject="s", application_properties={"n": 7}, correlation_id="c")
    )
    async with scene.receiver() as receiver:
        (message,) = await scene.taken(receiver, 1)
    fields = (message.message_id, message.subject, message.correlation_id, message.application_properties["n"])
    return _words(message, *fields, f"deliveries {message.delivery_count}")


async def _sections(scene: Scene) -> str:
    """Send all sections, and bodies that are not bytes. The result lists the sections that changed on their way."""
    bodies: dict[AmqpMessageBodyType, Any] = {
        AmqpMessageBodyType.DATA: b"a",
        AmqpMessageBodyType.VALUE: 7,
        AmqpMessageBodyType.SEQUENCE: [[1, 2]],
    }
    sent = [
        AmqpAnnotatedMessage(
            properties=AmqpMessageProperties(message_id=body_type.value, user_id=b"u", content_encoding="gzip"),
            header=AmqpMessageHeader(durable=True, priority=7),
            footer={"f": 1},
            annotations={"mine": "a"},
            application_properties={"p": 2},
            content=content,
            body_type=body_type,
        )
        for body_type, content in bodies.items()
    ]
    async with scene.client.get_queue_sender(scene.entity) as sender:
        for message in sent:
            await sender.send_messages(message)
    async with scene.receiver() as receiver:
        arrived = [message.raw_amqp_message for message in await scene.taken(receiver, len(sent))]
    return _words([each.body_type.value for each in arrived], _differences(sent, arrived))


def _differences(sent: Iterable[AmqpAnnotatedMessage], arrived: Iterable[AmqpAnnotatedMessage]) -> str:
    """Return the sections that arrived unlike they were sent."""
    found: dict[str, None] = {}
    for ours, theirs in zip(sent, arrived, strict=True):
        facts = {
            "header": (ours.header.durable, ours.header.priority) == (theirs.header.durable, theirs.header.priority),
            "footer": ours.footer == theirs.footer,
            "annotations": ours.annotations.items() <= theirs.annotations.items(),
            "properties": (ours.properties.user_id, ours.properties.content_encoding)
            == (theirs.properties.user_id, theirs.properties.content_encoding),
            "application properties": ours.application_properties == theirs.application_properties,
            "body": ours.content == theirs.content,
        }
        found |= {f"{ours.body_type.value} {name}": None for name, is_equal in facts.items() if not is_equal}
    return f"changed: {', '.join(found) or 'nothing'}"


async def _send_list(scene: Scene) -> str:
    async with scene.client.get_queue_sender(scene.entity) as sender, scene.receiver() as receiver:
        await sender.send_messages([ServiceBusMessage(body) for body in "abc"])
        return _words(_bodies(await scene.taken(receiver, 3)))


async def _send_batch(scene: Scene) -> str:
    async with scene.client.get_queue_sender(scene.entity) as sender, scene.receiver() as receiver:
        batch = await sender.create_message_batch()
        for body in "abc":
            batch.add_message(ServiceBusMessage(body))
        await sender.send_messages(batch)
        return _words(_bodies(await scene.taken(receiver, 3)))


async def _schedule(scene: Scene) -> str:
    async with scene.client.get_queue_sender(scene.entity) as sender, scene.receiver() as receiver:
        await sender.create_message_batch()  # attaches, so that a slow network does not use up the time to the peek
        await receiver.peek_messages(1, sequence_number=1)
        at = scene.in_seconds(2 * _SHORT_S)
        await sender.schedule_messages(ServiceBusMessage("a"), at)
        (waiting,) = await receiver.peek_messages(1, sequence_number=1)
        await scene.taken(receiver, 1)
    is_early = clock.now() < at.timestamp() - 0.1
    return _words(waiting.state.name.lower(), "early" if is_early else "on time")


async def _cancel_scheduled(scene: Scene) -> str:
    async with scene.client.get_queue_sender(scene.entity) as sender:
        messages = [ServiceBusMessage(body) for body in "abc"]
        numbers = await sender.schedule_messages(messages, scene.in_seconds(_LATER_S))
        await sender.cancel_scheduled_messages([numbers[0], numbers[2]])
        left = _left(await scene.left())
        await sender.cancel_scheduled_messages(numbers[1])
        try:
            await sender.cancel_scheduled_messages(numbers[1])
        except ServiceBusError as error:
            return _words(left, f"then {type(error).__name__}")
    return _words(left, "then cancelled twice")


async def _peek(scene: Scene) -> str:
    await scene.send(*(ServiceBusMessage(body) for body in "abc"))
    async with scene.receiver() as receiver:
        first = await receiver.peek_messages(2, sequence_number=1)
        rest = await receiver.peek_messages(5, sequence_number=first[-1].sequence_number + 1)
        return _words(_bodies(first), _bodies(rest), f"deliveries {rest[0].delivery_count}")


async def _complete(scene: Scene) -> str:
    await scene.send(ServiceBusMessage("a"), ServiceBusMessage("b"))
    async with scene.receiver() as receiver:
        await receiver.complete_message(await scene.next_one(receiver))
    return _left(await scene.left())


async def _abandon(scene: Scene) -> str:
    await scene.send(ServiceBusMessage("a"))
    async with scene.receiver() as receiver:
        message = await scene.next_one(receiver)
        await receiver.abandon_message(message)
        again = await scene.next_one(receiver)
        await receiver.complete_message(again)
        is_same = again.sequence_number == message.sequence_number
        return _words(again, "same number" if is_same else "new number", f"deliveries {again.delivery_count}")


async def _defer(scene: Scene) -> str:
    await scene.send(ServiceBusMessage("a"), ServiceBusMessage("b"))
    async with scene.receiver() as receiver:
        first = await scene.next_one(receiver)
        await receiver.defer_message(first)
        (second,) = await scene.taken(receiver, 1)
        (deferred,) = await receiver.receive_deferred_messages(first.sequence_number)
        await receiver.complete_message(deferred)
        return _words(second, f"then deferred {deferred}", _left(await scene.left()))


async def _dead_letter(scene: Scene) -> str:
    await scene.send(ServiceBusMessage("a", application_properties={"n": 7}))
    async with scene.receiver() as receiver:
        await receiver.dead_letter_message(await scene.next_one(receiver), reason="r", error_description="d")
    async with scene.receiver(sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        (dead,) = await scene.taken(receiver, 1)
        number = dead.application_properties["n"]
        return _words(dead, number, dead.dead_letter_reason, dead.dead_letter_error_description)


async def _receive_and_delete(scene: Scene) -> str:
    await scene.send(ServiceBusMessage("a"))
    async with scene.receiver(receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
        message = await scene.next_one(receiver)
    return _words(message, "locked" if message.lock_token else "not locked", _left(await scene.left()))


async def _renew_lock(scene: Scene) -> str:
    await scene.send(ServiceBusMessage("a"))
    async with scene.receiver() as receiver:
        message = await scene.next_one(receiver)
        before = message.locked_until_utc
        await clock.sleep(_SHORT_S)
        until = await receiver.renew_message_lock(message)
        await receiver.complete_message(message)
        return "extended" if before is not None and until > before else "not extended"


async def _session(scene: Scene) -> str:
    await scene.send(*(ServiceBusMessage(body, session_id=session) for body, session in ("1a", "2b", "3a")))
    async with scene.receiver(session_id="a") as receiver:
        messages = await scene.taken(receiver, 2)
        session = receiver.session
        assert session is not None  # the receiver was opened with a session id
        await session.renew_lock()
        await session.set_state("page 7")
    async with scene.receiver(session_id="a") as receiver:
        assert receiver.session is not None
        state = await receiver.session.get_state()
        await receiver.session.set_state(None)
        return _words(_bodies(messages), state, await receiver.session.get_state())


async def _locked_session(scene: Scene) -> str:
    await scene.send(ServiceBusMessage("1", session_id="a"))
    async with scene.receiver(session_id="a"):
        try:
            async with scene.receiver(session_id="a"):
                return "accepted twice"
        except ServiceBusError as error:
            refused = type(error).__name__
    async with scene.receiver(session_id="a") as receiver:
        return _words(refused, _bodies(await scene.taken(receiver, 1)))


async def _next_session(scene: Scene) -> str:
    await scene.send(ServiceBusMessage("1", session_id="a"))
    async with scene.receiver(session_id=NEXT_AVAILABLE_SESSION, max_wait_time=scene.patience_s) as receiver:
        session = receiver.session
        await scene.taken(receiver, 1)
        try:
            async with scene.receiver(session_id=NEXT_AVAILABLE_SESSION, max_wait_time=_SHORT_S):
                return "two receivers of one session"
        except OperationTimeoutError:
            return _words(session.session_id if session is not None else None, "then none")


async def _rules(scene: Scene) -> str:
    rules = scene.client.administration
    await rules.create_rule(scene.entity, FILTERED, "colour", filter=SqlRuleFilter("colour = 'red'"))
    await rules.delete_rule(scene.entity, FILTERED, "$Default")
    async with scene.client.get_topic_sender(scene.entity) as sender:
        for colour in ("red", "blue"):
            await sender.send_messages(ServiceBusMessage(colour, application_properties={"colour": colour}))
    found = []
    for subscription in (SUBSCRIPTION, FILTERED):
        async with scene.client.get_subscription_receiver(scene.entity, subscription) as receiver:
            await scene.next_one(receiver)
            found.append(_bodies(await receiver.peek_messages(5, sequence_number=1)))
    return _words(*found)


async def _duplicates(scene: Scene) -> str:
    await scene.send(*(ServiceBusMessage(body, message_id=number) for body, number in ("a1", "b1", "c2")))
    return _left(await scene.left())


async def _partitioned(scene: Scene) -> str:
    await scene.send(*(ServiceBusMessage(body, partition_key="k") for body in "abc"))
    async with scene.receiver() as receiver:
        return _words(_bodies(await scene.taken(receiver, 3)))


async def _transaction_of_sends(scene: Scene) -> str:
    async with scene.client.get_queue_sender(scene.entity, partitioned=False) as sender:
        async with scene.client.transaction() as undone:
            await sender.send_messages(ServiceBusMessage("a"), transaction=undone)
            await undone.rollback()
        async with scene.client.transaction() as done:
            await sender.send_messages(ServiceBusMessage("b"), transaction=done)
            await sender.send_messages(ServiceBusMessage("c"), transaction=done)
            before = await scene.left()
    return _words(f"before the commit {_left(before)}", _left(await scene.left()))


async def _transaction(scene: Scene) -> str:
    await scene.send(ServiceBusMessage("a"))
    async with scene.client.get_queue_sender(scene.entity, partitioned=False) as sender, scene.receiver() as receiver:
        message = await scene.next_one(receiver)
        left = []
        for is_committed in (False, True):
            async with scene.client.transaction() as transaction:
                await receiver.complete_message(message, transaction=transaction)
                await sender.send_messages(ServiceBusMessage("b"), transaction=transaction)
                if not is_committed:
                    await transaction.rollback()
            left.append(_left(await scene.left()))
    return _words(*left)


async def _missing_entity(scene: Scene) -> str:
    async with scene.client.get_queue_sender(f"{scene.entity}-missing") as sender:
        try:
            await sender.send_messages(ServiceBusMessage("a"))
        except ServiceBusError as error:
            return type(error).__name__
    return "accepted"


async def _wrong_key(scene: Scene) -> str:
    if scene.with_key is None:
        raise NotAvailableError("the credential has no key")
    async with (
        scene.with_key("d3JvbmcgLSBub3QgdGhlIGtleSBvZiBhbnkgbmFtZXM=") as client,
        client.get_queue_sender(scene.entity) as sender,
    ):
        try:
            await sender.send_messages(ServiceBusMessage("a"))
        except ServiceBusError as error:
            return type(error).__name__
    return "accepted"


async def _too_large(scene: Scene) -> str:
    async with scene.client.get_queue_sender(scene.entity) as sender:
        try:
            await sender.send_messages(ServiceBusMessage(bytes(TOO_LARGE_BYTES)))
        except MessageSizeExceededError as error:
            refused = type(error).__name__
        else:
            refused = "accepted"
        await sender.send_messages(ServiceBusMessage("a"))
    return _words(refused, _left(await scene.left()))


_SESSIONS: Final = {"requires_session": True}

CHECKS: Final = (
    Check("send", _send, "a, 1, s, c, 7, deliveries 0"),
    Check("all sections", _sections, "data value sequence, changed: nothing"),
    Check("send a list", _send_list, "a b c"),
    Check("send a batch", _send_batch, "a b c"),
    Check("schedule", _schedule, "scheduled, on time"),
    Check("cancel scheduled", _cancel_scheduled, "b left, then MessageNotFoundError"),
    Check("peek", _peek, "a b, c, deliveries 0"),
    Check("complete", _complete, "b left"),
    Check("abandon", _abandon, "a, same number, deliveries 1"),
    Check("defer", _defer, "b, then deferred a, nothing left"),
    Check("dead-letter", _dead_letter, "a, 7, r, d"),
    Check("receive and delete", _receive_and_delete, "a, not locked, nothing left"),
    Check("renew a lock", _renew_lock, "extended"),
    Check("session with state", _session, "1 3, b'page 7', None", _SESSIONS),
    Check("locked session", _locked_session, "SessionCannotBeLockedError, 1", _SESSIONS),
    Check("next session", _next_session, "a, then none", _SESSIONS),
    Check("rules", _rules, "red blue, red", is_topic=True),
    Check("duplicate detection", _duplicates, "a c left", {"requires_duplicate_detection": True}),
    Check("partitioned queue", _partitioned, "a b c", {"enable_partitioning": True}),
    Check("transaction of sends", _transaction_of_sends, "before the commit nothing left, b c left"),
    Check("transaction", _transaction, "a left, b left", is_for_sdk=False),
    Check("missing entity", _missing_entity, "MessagingEntityNotFoundError"),
    Check("wrong key", _wrong_key, "ServiceBusAuthenticationError"),
    Check("message too large", _too_large, "MessageSizeExceededError, a left"),
)
