"""A user of azure.servicebus.aio finds every name, argument and default again; what is not there is listed here."""

from __future__ import annotations

import inspect
from typing import Any, Final

import azure.servicebus as sdk
import azure.servicebus.exceptions as sdk_exceptions
import pytest
from azure.servicebus import aio
from azure.servicebus.aio import management

import sbclient

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

ENUMS: Final = ["ServiceBusReceiveMode", "ServiceBusSubQueue", "ServiceBusMessageState"]

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
