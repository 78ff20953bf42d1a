"""The names, arguments, attributes and errors of azure-servicebus; `docs/moving.md` lists the differences."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import fields
from datetime import timedelta
from fnmatch import fnmatchcase
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
from azure.servicebus.amqp import AmqpMessageBodyType

import sbclient
from sbclient import administration
from tests.fresh_process import output_of
from tests.pages import differences


def public_names(owner: type) -> list[str]:
    return [name for name in dir(owner) if not name.startswith("_")]


def test_every_difference_has_a_reason() -> None:
    found = differences.differences()
    assert {each for each in found if differences.reason_of(each) is None} == set()
    for pattern in differences.REASONS:
        assert any(fnmatchcase(each, pattern) for each in found), pattern


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


@pytest.mark.parametrize("member", sbclient.AmqpMessageBodyType)
def test_a_body_type_equals_the_one_of_the_sdk(member: sbclient.AmqpMessageBodyType) -> None:
    theirs: object = AmqpMessageBodyType[member.name]
    assert member == theirs
    assert theirs == member
    assert hash(member) == hash(theirs)


@pytest.mark.parametrize("name", differences.error_names())
def test_an_error_is_created_as_in_the_sdk(name: str) -> None:
    theirs, kind = getattr(sdk_exceptions, name), getattr(sbclient, name)
    if "message" not in inspect.signature(theirs).parameters:  # the SDK requires a message there
        assert str(kind())
        assert str(theirs(message="text"))
    assert str(kind(message="text")) == "text"
    if issubclass(kind, sbclient.ServiceBusError):
        cause = OSError("gone")
        assert kind(message="text", error=cause).inner_exception is cause


def test_an_error_without_a_text_says_what_its_class_means() -> None:
    assert str(pickle.loads(pickle.dumps(sbclient.SessionLockLostError()))).startswith("The lock on the session")
    assert str(sbclient.MessageAlreadySettled(action="complete")).startswith("cannot complete the message")


@pytest.mark.parametrize("name", differences.error_names())
def test_every_error_is_caught_as_in_the_sdk(name: str) -> None:
    theirs, ours = getattr(sdk_exceptions, name), getattr(sbclient, name)
    with pytest.raises(theirs, match=r"^text$") as caught:
        raise ours("text")
    assert type(caught.value) is ours
    assert issubclass(ours, sbclient.ServiceBusError) is issubclass(theirs, sdk_exceptions.ServiceBusError)
    assert issubclass(ours, ValueError) or not issubclass(theirs, ValueError)
    assert issubclass(ours, AzureError) is issubclass(theirs, AzureError)


def test_errors_are_caught_as_those_of_the_sdk_whichever_is_imported_first() -> None:
    """Also one from before, and nothing imports azure-servicebus for it."""
    program = """
import pickle, sys
import sbclient
before = [sbclient.OperationTimeoutError(), sbclient.MessageAlreadySettled(), sbclient.InvalidOperationError("a")]
assert "azure.servicebus" not in sys.modules
from azure.servicebus import exceptions
after = pickle.loads(pickle.dumps([*before, sbclient.BacklogUnavailableError("all failed", {"q": OSError("b")})]))
assert isinstance(after[0], exceptions.OperationTimeoutError) and isinstance(before[0], exceptions.ServiceBusError)
assert isinstance(after[1], exceptions.MessageAlreadySettled) and isinstance(after[1], ValueError)
assert isinstance(after[2], exceptions.ServiceBusError) and isinstance(after[2], ValueError)
assert isinstance(after[3], exceptions.ServiceBusError)
print(*after, sep="|")
"""
    said = output_of(program).split("|")
    assert said[2:] == ["a", "all failed [q: OSError: b]"]
    assert said[:2] == [str(sbclient.OperationTimeoutError()), str(sbclient.MessageAlreadySettled())]


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
