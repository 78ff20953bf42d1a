"""The differences between this package and the installed azure-servicebus, found by comparison, each with its reason.

`docs/moving.md` has them as a table. `tests/test_sdk_names.py` fails if a difference has no reason, or a reason has no
difference.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any, Final
from uuid import UUID

import azure.servicebus as sdk
import azure.servicebus.amqp as sdk_amqp
import azure.servicebus.exceptions as sdk_exceptions
import azure.servicebus.management as sdk_management
from azure.servicebus import aio
from azure.servicebus.aio import management

import sbclient
import sbclient.aio.management
import sbclient.amqp
import sbclient.exceptions
import sbclient.management
from tests.pages.table import page_table

MODULES: Final = [
    (sdk, sbclient),
    (aio, sbclient.aio),
    (sdk_exceptions, sbclient.exceptions),
    (sdk_management, sbclient.management),
    (management, sbclient.aio.management),
    (sdk_amqp, sbclient.amqp),
]

CLASSES: Final = [
    (aio.ServiceBusClient, sbclient.ServiceBusClient),
    (aio.ServiceBusSender, sbclient.ServiceBusSender),
    (aio.ServiceBusReceiver, sbclient.ServiceBusReceiver),
    (aio.ServiceBusSession, sbclient.ServiceBusSession),
    (aio.AutoLockRenewer, sbclient.AutoLockRenewer),
    (sdk.ServiceBusMessage, sbclient.ServiceBusMessage),
    (sdk.ServiceBusReceivedMessage, sbclient.ServiceBusReceivedMessage),
    (sdk.ServiceBusMessageBatch, sbclient.ServiceBusMessageBatch),
    (management.ServiceBusAdministrationClient, sbclient.ServiceBusAdministrationClient),
    (sdk_management.AuthorizationRule, sbclient.management.AuthorizationRule),
]

REASONS: Final = {
    "*.client_identifier is missing": "names one AMQP link; links are shared and replaced here",
    "*.message is missing": "deprecated in azure-servicebus",
    "ServiceBusMessage(partition_key='a', session_id='b') *": "the send raises it, since both can be set later",
    "ServiceBusMessage.raw_amqp_message is missing": "received messages have it; `AmqpAnnotatedMessage` can be sent",
    "ServiceBusReceivedMessage.from_bytes is missing": "receivers create received messages",
    "ServiceBusSender(*=) is missing": "a client creates its senders",
    "ServiceBusReceiver(*=) is missing": "a client creates its receivers",
    "ServiceBusSession(*=) is missing": "a receiver creates its session",
    "ServiceBusMessage('a').application_properties is {}": "a dict that can be changed; azure-servicebus has None",
    "ServiceBusMessage('a').message_id is None": "the first send sets it; azure-servicebus sets it at once",
    "ServiceBusMessage(application_properties={'a': *}) *": "AMQP has simple types only there; send JSON text",
    "ServiceBusMessage(nope=1) raises TypeError": "a misspelled argument; azure-servicebus ignores it, in mappings too",
    "ServiceBusMessage(subject=5) raises ArgumentTypeError": "azure-servicebus sends a map instead of a text",
    "str() of * is the value": "the text of a member is its value, as the service writes it",
    "AuthorizationRule(*=) has the default *": "the only value that the service knows; None there",
    "AuthorizationRule(*=) is required": "the service refuses a rule without it",
    "ApiVersion is missing": "the default of the installed azure-servicebus, or `api_version=` as text",
    "MessageCountDetails is missing": "the counts are attributes of the runtime properties",
    "ServiceBusAdministrationClient.create_rule(filter=) has the default None": "None means the same, a true filter",
    "ServiceBusClient(retry_backoff_max=) has the default 30.0": "the default timeout of a call is 60 s",
}
"""Reasons by difference, or by a pattern for several."""


def differences() -> set[str]:
    """Return the differences, one sentence each."""
    return {*_modules(), *_classes(), *_messages(), *_values(), *_texts(), *_bases()}


def reason_of(difference: str) -> str | None:
    """Return the reason of a difference, None if there is none."""
    return next((reason for pattern, reason in REASONS.items() if fnmatchcase(difference, pattern)), None)


def _modules() -> Iterator[str]:
    for theirs, ours in MODULES:
        for name in getattr(theirs, "__all__", error_names()):
            if not hasattr(ours, name):
                yield f"{name} is missing"


def error_names() -> list[str]:
    """Return the names of the errors of azure-servicebus."""
    return [
        name
        for name, error in vars(sdk_exceptions).items()
        if inspect.isclass(error) and error.__module__ == sdk_exceptions.__name__ and not name.startswith("_")
    ]


def public_names(owner: object) -> set[str]:
    """Return the names of the attributes of a class or an instance."""
    return {name for name in dir(owner) if not name.startswith("_")}


def _classes() -> Iterator[str]:
    for theirs, ours in CLASSES:
        name = ours.__name__
        yield from (f"{name}.{each} is missing" for each in public_names(theirs) - public_names(ours))
        if theirs is not sdk.ServiceBusReceivedMessage:  # applications do not create one
            yield from _arguments(name, theirs, ours)
        for each in public_names(theirs) & public_names(ours):
            if callable(getattr(theirs, each)):
                yield from _arguments(f"{name}.{each}", getattr(theirs, each), getattr(ours, each))


def _arguments(name: str, theirs: Any, ours: Any) -> Iterator[str]:
    found = inspect.signature(ours).parameters
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in found.values())
    for argument, wanted in inspect.signature(theirs).parameters.items():
        if argument == "self" or wanted.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        if argument not in found:
            if not takes_any or wanted.kind is not inspect.Parameter.KEYWORD_ONLY:
                yield f"{name}({argument}=) is missing"
        elif found[argument].kind is not wanted.kind:
            yield f"{name}({argument}=) is {found[argument].kind.description}"
        elif found[argument].default != wanted.default and wanted.default is not inspect.Parameter.empty:
            default = found[argument].default
            is_required = default is inspect.Parameter.empty
            yield f"{name}({argument}=) {'is required' if is_required else f'has the default {default}'}"


def _messages() -> Iterator[str]:
    """Compare the attributes of a new message."""
    theirs, ours = sdk.ServiceBusMessage("a"), sbclient.ServiceBusMessage("a")
    for name in public_names(theirs) & public_names(ours):
        expected, found = getattr(theirs, name), getattr(ours, name)
        if name not in ("body", "body_type") and not callable(expected) and expected != found:
            yield f"ServiceBusMessage('a').{name} is {found!r}"


VALUES: Final[list[dict[str, Any]]] = [
    {"time_to_live": 5},
    *({name: value} for name in ("message_id", "correlation_id") for value in (5, b"a", UUID(int=7))),
    *({name: b"a"} for name in ("content_type", "partition_key", "reply_to", "session_id", "subject", "to")),
    {"application_properties": {b"a": b"b"}},
    {"application_properties": {"a": [1]}},
    {"application_properties": {"a": {"b": 1}}},
    {"partition_key": "a", "session_id": "b"},
    {"nope": 1},
    {"subject": 5},
]
"""Arguments that azure-servicebus accepts or refuses whatever its type hints say."""


def _values() -> Iterator[str]:
    """Compare which values a message accepts."""
    for arguments in VALUES:
        theirs, ours = (_refusal(kind, arguments) for kind in (sdk.ServiceBusMessage, sbclient.ServiceBusMessage))
        if (theirs is None) is not (ours is None):
            shown = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
            yield f"ServiceBusMessage({shown}) " + (f"raises {ours}" if ours else f"is accepted, {theirs} there")


def _refusal(kind: type, arguments: dict[str, Any]) -> str | None:
    try:
        kind("a", **arguments)
    except (TypeError, ValueError) as error:
        return type(error).__name__
    return None


def _texts() -> Iterator[str]:
    for theirs, ours in MODULES:
        for name in getattr(theirs, "__all__", ()):
            kind = getattr(theirs, name)
            if inspect.isclass(kind) and issubclass(kind, Enum) and hasattr(ours, name):
                members = {each.name: each.value for each in kind}
                if {each.name: each.value for each in getattr(ours, name)} != members:
                    yield f"{name} has other members"
                if any(str(getattr(getattr(ours, name), each)) != str(getattr(kind, each)) for each in members):
                    yield f"str() of {name} is the value"


def _bases() -> Iterator[str]:
    for name in error_names():
        theirs, ours = getattr(sdk_exceptions, name), getattr(sbclient, name)
        bases = {each.__name__ for each in theirs.__mro__} - {each.__name__ for each in ours.__mro__}
        yield from (f"{name} is no {base}" for base in sorted(bases))


def rows() -> list[tuple[str, str | None]]:
    """Return the differences and their reasons."""
    return [(f"`{difference}`", reason_of(difference)) for difference in sorted(differences())]


TABLE: Final = page_table("moving.md", "differences", ("difference", "reason"), rows)
