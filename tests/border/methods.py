"""The public methods with arguments: how each is called with arguments that it takes."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial
from typing import Any, Final

import sbclient
from sbclient import (
    AutoLockRenewer,
    PairedNamespaceOptions,
    RetryOptions,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageBatch,
    SyphonLimits,
    parse_connection_string,
)
from sbclient.testing import MemoryNamespace
from sbclient.transport.memory.transport import MemoryTransport
from tests.border.scene import Scene

CONNECTION: Final = "Endpoint=sb://contoso.example;SharedAccessKeyName=n;SharedAccessKey=k"
LATER: Final = datetime(2100, 1, 1, tzinfo=UTC)

MADE_BY_CLIENTS: Final = {"Pair", "ServiceBusReceivedMessage", "ServiceBusReceiver", "ServiceBusSender"} | {
    *("ServiceBusSession", "Transaction")
}
"""Classes whose constructors applications do not call."""

NOT_FOR_APPLICATIONS: Final = {
    "ServiceBusReceivedMessage.of": "for transports",
    "ServiceBusSender.send_encoded": "takes what the package has encoded",
    "Transaction.counting": "for senders and receivers",
    "Transaction.key_of": "for senders and receivers",
    "Transaction.pin": "for senders and receivers",
    "Transaction.settled": "for senders and receivers",
    "ServiceBusConnectionStringProperties.with_credential": "for transports",
    "ServiceBusConnectionStringProperties.without_credential": "for the worker",
    "ServiceBusMessage.copy": "sets attributes, as the constructor does",
    "ServiceBusReceivedMessage.copy": "sets attributes, as the constructor does",
}


class Fresh:
    """An argument that each call needs anew."""

    def __init__(self, make: Callable[[Scene], Any]) -> None:
        self.make = make


@dataclass
class Row:
    """A public method.

    Attributes:
        of: returns the method.
        arguments: that it takes, by the name of the parameter.
        is_pure: whether it needs no namespace, so that the transport makes no difference.
        then: is called with the result.
    """

    of: Callable[[Scene], Callable[..., Any]]
    arguments: Mapping[str, Any]
    is_pure: bool = False
    then: Callable[[Scene, Any], Awaitable[Any]] | None = None


def _row(of: Callable[[Scene], Callable[..., Any]], **arguments: Any) -> Row:
    return Row(of, arguments)


def _pure(call: Callable[..., Any], **arguments: Any) -> Row:
    return Row(lambda scene: call, arguments, is_pure=True)


async def _sent(scene: Scene, message: Any) -> Any:
    """Send a message and return what arrives of it."""
    await scene.keeper.send_messages(message)
    ttl = message.time_to_live
    if ttl is not None and ttl < timedelta(seconds=10):
        return None  # it may have expired
    async with scene.client.get_queue_receiver("kept") as receiver:
        while page := await receiver.peek_messages(100):
            came = page[-1]
    return [type(came.subject), bytes(came), *(repr(getattr(came, each)) for each in SHOWN)]


async def _dead_letter(scene: Scene, _: None) -> Any:
    """Return the reason and description of the message that was dead-lettered."""
    async with scene.client.get_queue_receiver(
        "orders", sub_queue="deadletter", receive_mode="receiveanddelete"
    ) as receiver:
        (dead,) = await receiver.receive_messages(max_wait_time=1)
    return [repr(dead.dead_letter_reason), repr(dead.dead_letter_error_description)]


def _settling(**more: Any) -> dict[str, Any]:
    return {"message": Fresh(Scene.locked), **more, "transaction": None}


LOCKED: Final = Fresh(Scene.locked)
MESSAGE: Final = {
    "body": b"body",
    "application_properties": None,
    "session_id": None,
    "message_id": "id",
    "scheduled_enqueue_time_utc": None,
    "time_to_live": None,
    "content_type": None,
    "correlation_id": None,
    "subject": None,
    "partition_key": None,
    "to": None,
    "reply_to": None,
    "reply_to_session_id": None,
    "encoding": "UTF-8",
}
SHOWN: Final = tuple(name for name in MESSAGE if name not in ("body", "encoding"))
RECEIVING: Final = {
    "session_id": None,
    "sub_queue": None,
    "receive_mode": "peeklock",
    "max_wait_time": None,
    "auto_lock_renewer": None,
    "prefetch_count": 0,
    "receive_from": None,
}
RULE: Final = {"topic_name": "prices", "subscription_name": "eu", "rule_name": "$Default"}


def _settings(method: Callable[..., Any]) -> dict[str, Any]:
    return {name: None for name, each in inspect.signature(method).parameters.items() if each.kind is each.KEYWORD_ONLY}


def _fields(kind: type[Any]) -> dict[str, Any]:
    return {name: each.default for name, each in inspect.signature(kind).parameters.items()}


_admin = sbclient.ServiceBusAdministrationClient

ROWS: Final[dict[str, Row]] = {
    "AutoLockRenewer": _pure(AutoLockRenewer, max_lock_renewal_duration=1, on_lock_renew_failure=None, loop=None),
    "AutoLockRenewer.register": _row(
        lambda scene: AutoLockRenewer().register,
        receiver=Fresh(lambda scene: scene.receiver),
        renewable=LOCKED,
        max_lock_renewal_duration=1,
        on_lock_renew_failure=None,
    ),
    "PairedNamespaceOptions": _pure(PairedNamespaceOptions, **_fields(PairedNamespaceOptions)),
    "RetryOptions": _pure(RetryOptions, **_fields(RetryOptions)),
    "SyphonLimits": _pure(SyphonLimits, **_fields(SyphonLimits)),
    "parse_connection_string": _pure(parse_connection_string, conn_str=CONNECTION),
    "ServiceBusClient": _pure(
        ServiceBusClient,
        fully_qualified_namespace=None,
        credential=None,
        transport=Fresh(lambda scene: MemoryTransport(MemoryNamespace("other"))),
        **{
            name: each.default
            for name, each in inspect.signature(ServiceBusClient).parameters.items()
            if each.kind is each.KEYWORD_ONLY and name != "transport"
        },
    ),
    "ServiceBusClient.from_connection_string": _pure(
        ServiceBusClient.from_connection_string, conn_str=CONNECTION, secondary=None, options=None
    ),
    "ServiceBusAdministrationClient": _pure(
        _admin,
        fully_qualified_namespace=None,
        credential=None,
        transport=Fresh(lambda scene: MemoryTransport(MemoryNamespace("other"))),
    ),
    "ServiceBusAdministrationClient.from_connection_string": _pure(
        _admin.from_connection_string, conn_str="memory://border"
    ),
    "ServiceBusClient.get_queue_receiver": _row(
        lambda scene: scene.client.get_queue_receiver, queue_name="orders", **RECEIVING
    ),
    "ServiceBusClient.get_subscription_receiver": _row(
        lambda scene: scene.client.get_subscription_receiver,
        topic_name="prices",
        subscription_name="eu",
        **RECEIVING,
    ),
    "ServiceBusClient.get_queue_sender": _row(
        lambda scene: scene.client.get_queue_sender, queue_name="orders", partitioned=None
    ),
    "ServiceBusClient.get_topic_sender": _row(
        lambda scene: scene.client.get_topic_sender, topic_name="prices", partitioned=None
    ),
    "ServiceBusClient.list_queue_sessions": _row(
        lambda scene: scene.client.list_queue_sessions, queue_name="visits", state_updated_after=None, timeout=5
    ),
    "ServiceBusClient.list_subscription_sessions": _row(
        lambda scene: scene.client.list_subscription_sessions,
        topic_name="prices",
        subscription_name="eu",
        state_updated_after=None,
        timeout=5,
    ),
    "ServiceBusClient.run_syphon": _row(lambda scene: scene.client.run_syphon, until="empty", limits=None),
    "ServiceBusClient.transaction": _row(
        lambda scene: scene.client.transaction, partition_key=None, namespace="primary"
    ),
    "ServiceBusMessage": Row(lambda scene: ServiceBusMessage, MESSAGE, then=_sent),
    "ServiceBusMessageBatch": _pure(ServiceBusMessageBatch, max_size_in_bytes=None, growth_bytes=0, new_id=None),
    "ServiceBusMessageBatch.add_message": _row(
        lambda scene: ServiceBusMessageBatch().add_message, message=Fresh(lambda scene: ServiceBusMessage("m"))
    ),
    "ServiceBusReceiver.abandon_message": _row(lambda scene: scene.receiver.abandon_message, **_settling()),
    "ServiceBusReceiver.complete_message": _row(lambda scene: scene.receiver.complete_message, **_settling()),
    "ServiceBusReceiver.defer_message": _row(lambda scene: scene.receiver.defer_message, **_settling()),
    "ServiceBusReceiver.dead_letter_message": Row(
        lambda scene: scene.receiver.dead_letter_message,
        _settling(reason="why", error_description=None),
        then=_dead_letter,
    ),
    "ServiceBusReceiver.renew_message_lock": _row(
        lambda scene: scene.receiver.renew_message_lock, message=LOCKED, timeout=5
    ),
    "ServiceBusReceiver.peek_messages": _row(
        lambda scene: scene.receiver.peek_messages,
        max_message_count=1,
        sequence_number=0,
        namespace="primary",
        timeout=5,
    ),
    "ServiceBusReceiver.receive_deferred_messages": _row(
        lambda scene: scene.receiver.receive_deferred_messages,
        sequence_numbers=Fresh(Scene.deferred),
        namespace="primary",
        timeout=5,
    ),
    "ServiceBusReceiver.receive_messages": _row(
        lambda scene: scene.receiver.receive_messages, max_message_count=1, max_wait_time=0.1
    ),
    "ServiceBusSender.cancel_scheduled_messages": _row(
        lambda scene: scene.sender.cancel_scheduled_messages, sequence_numbers=Fresh(Scene.scheduled), timeout=5
    ),
    "ServiceBusSender.create_message_batch": _row(
        lambda scene: scene.sender.create_message_batch, max_size_in_bytes=None
    ),
    "ServiceBusSender.schedule_messages": _row(
        lambda scene: scene.sender.schedule_messages,
        messages=Fresh(lambda scene: ServiceBusMessage("m")),
        schedule_time_utc=LATER,
        timeout=5,
        transaction=None,
    ),
    "ServiceBusSender.send_messages": _row(
        lambda scene: scene.sender.send_messages,
        message=Fresh(lambda scene: ServiceBusMessage("m")),
        timeout=5,
        transaction=None,
    ),
    "ServiceBusSession.get_state": _row(lambda scene: scene.session.get_state, timeout=5),
    "ServiceBusSession.renew_lock": _row(lambda scene: scene.session.renew_lock, timeout=5),
    "ServiceBusSession.set_state": _row(lambda scene: scene.session.set_state, state=b"state", timeout=5),
    "Transaction.commit": Row(lambda scene: _begun(scene, "commit"), {"timeout": 5}),
    "Transaction.rollback": Row(lambda scene: _begun(scene, "rollback"), {"timeout": 5}),
    "ServiceBusAdministrationClient.create_queue": _row(
        lambda scene: scene.administration.create_queue, queue_name="orders", **_settings(_admin.create_queue)
    ),
    "ServiceBusAdministrationClient.create_topic": _row(
        lambda scene: scene.administration.create_topic, topic_name="prices", **_settings(_admin.create_topic)
    ),
    "ServiceBusAdministrationClient.create_subscription": _row(
        lambda scene: scene.administration.create_subscription,
        topic_name="prices",
        subscription_name="eu",
        **_settings(_admin.create_subscription),
    ),
    "ServiceBusAdministrationClient.create_rule": _row(
        lambda scene: scene.administration.create_rule, **RULE, filter=None, action=None, transaction=None
    ),
    "ServiceBusAdministrationClient.delete_rule": _row(
        lambda scene: scene.administration.delete_rule, **{**RULE, "rule_name": "absent"}, transaction=None
    ),
    "ServiceBusAdministrationClient.get_rule": _row(lambda scene: scene.administration.get_rule, **RULE),
    "ServiceBusAdministrationClient.update_rule": _row(
        lambda scene: scene.administration.update_rule,
        topic_name="prices",
        subscription_name="eu",
        rule=Fresh(lambda scene: scene.administration.get_rule(*RULE.values())),
    ),
    "ServiceBusAdministrationClient.list_rules": _row(
        lambda scene: scene.administration.list_rules, topic_name="prices", subscription_name="eu"
    ),
    "ServiceBusAdministrationClient.update_queue": _row(
        lambda scene: scene.administration.update_queue,
        queue=Fresh(lambda scene: scene.administration.get_queue("orders")),
    ),
    "ServiceBusAdministrationClient.update_topic": _row(
        lambda scene: scene.administration.update_topic,
        topic=Fresh(lambda scene: scene.administration.get_topic("prices")),
    ),
    "ServiceBusAdministrationClient.update_subscription": _row(
        lambda scene: scene.administration.update_subscription,
        topic_name="prices",
        subscription=Fresh(lambda scene: scene.administration.get_subscription("prices", "eu")),
    ),
}


def _begun(scene: Scene, name: str) -> Callable[..., Any]:
    async def call(**arguments: Any) -> None:
        transaction = await scene.transaction()
        try:
            await getattr(transaction, name)(**arguments)
        finally:
            await transaction.__aexit__(ValueError, None, None)

    return call


def _add_plain_rows() -> None:
    """Add the methods that take only names: `get_queue`, `delete_topic`, ..."""
    names = {"topic_name": "prices", "subscription_name": "eu", "queue_name": "orders"}
    for name, method in _methods_of(_admin):
        parameters = [each for each in inspect.signature(method).parameters if each != "self"]
        if name.startswith(("get_", "list_", "delete_")) and parameters and f"{_admin.__name__}.{name}" not in ROWS:
            arguments = {each: names[each] for each in parameters}
            if name.startswith("delete_"):
                arguments[parameters[-1]] = "absent"
            ROWS[f"{_admin.__name__}.{name}"] = Row(partial(_method_of_administration, name), arguments)
    for name in ("force_failover", "mark_healthy", "mark_unhealthy"):
        ROWS[f"Pair.{name}"] = Row(partial(_method_of_pair, name), {"path": "orders"}, is_pure=True)


def _method_of_administration(name: str, scene: Scene) -> Callable[..., Any]:
    method: Callable[..., Any] = getattr(scene.administration, name)
    return method


def _method_of_pair(name: str, scene: Scene) -> Callable[..., Any]:
    one, two = (MemoryTransport(MemoryNamespace(each)) for each in ("one", "two"))
    method: Callable[..., Any] = getattr(ServiceBusClient(transport=one, secondary_transport=two).pair, name)
    return method


def _methods_of(kind: type[Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in dir(kind):
        static = inspect.getattr_static(kind, name)
        if not name.startswith("_") and (inspect.isfunction(static) or isinstance(static, classmethod)):
            yield name, getattr(kind, name)


def public_parameters() -> dict[str, list[str]]:
    """Return the parameters of every public method and constructor that has some, by inspection of the classes."""
    found: dict[str, list[str]] = {}
    for name in sbclient.__all__:
        value = getattr(sbclient, name)
        if inspect.isclass(value) and (
            issubclass(value, Exception | Enum) or name.endswith(("Event", "Status", "Report"))
        ):
            continue
        callables = dict(_methods_of(value)) if inspect.isclass(value) else {}
        calls = {f"{name}.{method}": each for method, each in callables.items()}
        is_made = name not in MADE_BY_CLIENTS and not name.endswith("StringProperties")
        if inspect.isfunction(value) or (inspect.isclass(value) and is_made):
            calls[name] = value
        for method, each in calls.items():
            parameters = inspect.signature(each).parameters.values()
            names = [one.name for one in parameters if one.kind is not one.VAR_KEYWORD and one.name != "self"]
            if names and method not in NOT_FOR_APPLICATIONS:
                found[method] = names
    return found


_add_plain_rows()
