"""A user of azure.servicebus.aio finds every name, argument and default again; what is not there is listed here."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import fields
from datetime import timedelta
from typing import Any, Final

import azure.servicebus as sdk
import azure.servicebus.exceptions as sdk_exceptions
import azure.servicebus.management as sdk_management
import pytest
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseTimeoutError,
)
from azure.servicebus import aio
from azure.servicebus.aio import management

import sbclient
from sbclient import administration

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
]

NOT_HERE: Final = {
    "raw_amqp_message",  # the SDK's own encoding
    "message",
    "client_identifier",  # of one link; links are shared and replaced here
    "ServiceBusAdministrationClient.from_connection_string",  # it is `client.administration`
    "ServiceBusReceivedMessage.from_bytes",
}

ARGUMENTS_NOT_HERE: Final = {
    "kwargs",
    "client_identifier",
    "socket_timeout",
    "retry_total",  # named by the class, handed on by `from_connection_string`
    "retry_backoff_factor",
    "retry_backoff_max",
    "retry_mode",  # always exponential
}

OTHER_DEFAULTS: Final = {("create_rule", "filter")}
"""A shared object there, None with the same meaning here."""

MODULES: Final = [(sdk, sbclient), (aio, sbclient), (sdk_management, administration), (management, administration)]

NAMES_NOT_HERE: Final = {
    "MessageCountDetails",  # nothing of the SDK's own hands one out; the counts are in the runtime properties
    "ApiVersion",  # of the management documents; the SDK underneath has its own
}

ENUMS: Final = ["ServiceBusReceiveMode", "ServiceBusSubQueue", "ServiceBusMessageState", "TransportType"]

MANAGEMENT_ENUMS: Final = [
    "AccessRights",
    "EntityAvailabilityStatus",
    "EntityStatus",
    "MessagingSku",
    "NamespaceType",
]

ERRORS: Final = [
    name
    for name, error in vars(sdk_exceptions).items()
    if inspect.isclass(error) and error.__module__ == sdk_exceptions.__name__ and not name.startswith("_")
]


def public_names(owner: type) -> list[str]:
    return [name for name in dir(owner) if not name.startswith("_")]


@pytest.mark.parametrize(("theirs", "ours"), CLASSES, ids=lambda each: each.__module__.split(".")[0])
def test_every_name_is_found_again(theirs: type, ours: type) -> None:
    missing = set(public_names(theirs)) - set(public_names(ours))
    assert {name for name in missing if name not in NOT_HERE and f"{ours.__name__}.{name}" not in NOT_HERE} == set()


def arguments_of(function: Any) -> dict[str, inspect.Parameter]:
    return {
        name: each
        for name, each in inspect.signature(function).parameters.items()
        if each.kind is not inspect.Parameter.VAR_KEYWORD
    }


@pytest.mark.parametrize(("theirs", "ours"), CLASSES, ids=lambda each: each.__module__.split(".")[0])
def test_every_argument_has_its_place_and_its_default(theirs: type, ours: type) -> None:
    for name in set(public_names(theirs)) & set(public_names(ours)):
        if not callable(getattr(theirs, name)):
            continue
        found = arguments_of(getattr(ours, name))
        for argument, asked in arguments_of(getattr(theirs, name)).items():
            if argument in ARGUMENTS_NOT_HERE:
                continue
            assert found[argument].kind is asked.kind, f"{name}({argument})"
            if (name, argument) not in OTHER_DEFAULTS:
                assert found[argument].default == asked.default, f"{name}({argument})"


@pytest.mark.parametrize(("theirs", "ours"), MODULES, ids=lambda each: each.__name__)
def test_every_name_of_a_module_is_found_in_ours(theirs: Any, ours: Any) -> None:
    assert set(theirs.__all__) - NAMES_NOT_HERE <= set(ours.__all__)
    assert all(hasattr(ours, name) for name in ours.__all__)


@pytest.mark.parametrize("name", MANAGEMENT_ENUMS)
def test_enumerations_of_the_management_side_have_the_same_members(name: str) -> None:
    assert {each.name: each.value for each in getattr(administration, name)} == {
        each.name: each.value for each in getattr(sdk_management, name)
    }


DESCRIPTIONS: Final = ["QueueProperties", "TopicProperties", "SubscriptionProperties", "RuleProperties"]
RUNTIMES: Final = ["QueueRuntimeProperties", "TopicRuntimeProperties", "SubscriptionRuntimeProperties"]


@pytest.mark.parametrize("name", [*DESCRIPTIONS, *RUNTIMES, "NamespaceProperties"])
def test_descriptions_have_the_same_attributes(name: str) -> None:
    theirs, ours = getattr(sdk_management, name), getattr(administration, name)
    attributes = {each for each in public_names(theirs) if isinstance(getattr(theirs, each), property)}
    attributes |= set(inspect.signature(theirs.__init__).parameters) - {"self"}
    assert len(attributes) > 3
    assert attributes - {each.name for each in fields(ours)} == set()


def test_descriptions_are_mappings_of_their_attributes_as_in_the_sdk() -> None:
    names = [name for name in inspect.signature(sdk_management.QueueProperties).parameters if name != "name"]
    values: dict[str, Any] = dict.fromkeys(names, timedelta(minutes=1))
    theirs = sdk_management.QueueProperties("orders", **values)
    ours = administration.QueueProperties("orders", lock_duration=timedelta(minutes=1))
    assert ours["lock_duration"] == theirs["lock_duration"] == timedelta(minutes=1)
    assert set(theirs.keys()) <= set(ours.keys())
    assert dict(ours.items())["name"] == dict(ours)["name"] == ours.get("name") == "orders"
    assert len(ours) == len(ours.values()) == len(list(ours))
    ours.update({"max_delivery_count": 3}, forward_to="other")
    ours["user_metadata"] = "text"
    assert (ours.max_delivery_count, ours.forward_to, ours.user_metadata) == (3, "other", "text")
    assert ours.get("color", 7) == 7
    assert "color" not in ours
    with pytest.raises(KeyError, match="color"):
        ours["color"] = "red"
    assert administration.QueueRuntimeProperties(name="orders", active_message_count=4)["active_message_count"] == 4


def test_a_connection_string_reads_as_in_the_sdk() -> None:
    for text in (
        "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=k=;EntityPath=q",
        "Endpoint=sb://localhost:5672;SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true",
        "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessSignature=SharedAccessSignature sr=a&sig=b",
    ):
        theirs, ours = sdk.parse_connection_string(text), sbclient.parse_connection_string(text)
        assert isinstance(ours, sbclient.ServiceBusConnectionStringProperties)
        for name in public_names(sdk.ServiceBusConnectionStringProperties):
            if isinstance(getattr(sdk.ServiceBusConnectionStringProperties, name), property):
                assert getattr(ours, name) == getattr(theirs, name), name
    assert "k=" not in repr(ours)


@pytest.mark.parametrize("name", ENUMS)
def test_enumerations_have_the_same_members(name: str) -> None:
    assert {each.name: each.value for each in getattr(sbclient, name)} == {
        each.name: each.value for each in getattr(sdk, name)
    }


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_is_found_again_below_the_same_root(name: str) -> None:
    theirs, ours = getattr(sdk_exceptions, name), getattr(sbclient, name)
    assert issubclass(ours, sbclient.ServiceBusError) is issubclass(theirs, sdk_exceptions.ServiceBusError)
    assert issubclass(ours, ValueError) or not issubclass(theirs, ValueError)
    assert issubclass(ours, AzureError) is issubclass(theirs, AzureError)


@pytest.mark.parametrize(
    ("error", "caught_as", "status"),
    [
        (sbclient.MessagingEntityNotFoundError, ResourceNotFoundError, 404),
        (sbclient.MessagingEntityAlreadyExistsError, ResourceExistsError, 409),
        (sbclient.ServiceBusAuthenticationError, ClientAuthenticationError, 401),
        (sbclient.ServiceBusAuthorizationError, HttpResponseError, 403),
        (sbclient.InvalidOperationError, HttpResponseError, 400),
        (sbclient.ServiceBusQuotaExceededError, HttpResponseError, 403),
        (sbclient.ServiceBusServerBusyError, HttpResponseError, 503),
        (sbclient.ServiceBusInternalError, HttpResponseError, 500),
        (sbclient.ServiceBusConnectionError, ServiceRequestError, None),
        (sbclient.OperationTimeoutError, ServiceResponseTimeoutError, None),
    ],
)
def test_errors_of_the_administration_client_are_caught_as_in_the_sdk(
    error: type[sbclient.ServiceBusError], caught_as: type[AzureError], status: int | None
) -> None:
    cause = OSError("gone")
    with pytest.raises(caught_as) as caught:
        raise error("text") from cause
    raised = pickle.loads(pickle.dumps(caught.value))
    assert (str(raised), raised.message, raised.status_code) == ("text", "text", status)
    assert caught.value.inner_exception is cause
