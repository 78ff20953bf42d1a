"""The classes of `sbclient.errors`: which are outages, which are tried again, their conditions and their texts."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from sbclient import errors
from sbclient.errors import (
    ArgumentTypeError,
    BacklogUnavailableError,
    InvalidOperationError,
    MessageAlreadySettled,
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusError,
    TransactionNotSupportedError,
)

CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind)
    and issubclass(kind, Exception)
    and kind.__module__ == errors.__name__
    and not name.startswith("_")
}
SERVICE_BUS_ERRORS: dict[str, type[ServiceBusError]] = {
    name: kind for name, kind in CLASSES.items() if issubclass(kind, ServiceBusError)
}
"""All but `MessageAlreadySettled`."""

OUTAGES = {
    "OperationTimeoutError",
    "ServiceBusConnectionError",
    "ServiceBusCommunicationError",
    "ServiceBusInternalError",
    "MessagingEntityDisabledError",
    "ServiceBusQuotaExceededError",
    "ServiceBusServerBusyError",
}
TRANSIENT = {
    "OperationTimeoutError",
    "ServiceBusConnectionError",
    "ServiceBusCommunicationError",
    "ServiceBusInternalError",
    "ServiceBusServerBusyError",
}


def test_exactly_these_errors_are_outages() -> None:
    assert {name for name, kind in SERVICE_BUS_ERRORS.items() if kind.is_outage} == OUTAGES


def test_exactly_these_errors_are_tried_again() -> None:
    assert {name for name, kind in SERVICE_BUS_ERRORS.items() if kind.is_transient} == TRANSIENT


def test_each_error_stands_for_a_condition_of_its_own() -> None:
    own = [vars(kind).get("condition") for kind in SERVICE_BUS_ERRORS.values()]
    conditions = [condition for condition in own if condition is not None]
    assert len(conditions) == len(set(conditions))
    assert all(re.fullmatch(r"(amqp|com\.microsoft):[a-z:-]+", condition) for condition in conditions)


def test_an_invalid_operation_has_the_condition_amqp_not_allowed() -> None:
    assert InvalidOperationError.condition == TransactionNotSupportedError.condition == "amqp:not-allowed"


def test_the_tree_in_the_docstring_shows_every_class_and_every_outage() -> None:
    drawn = re.findall(r"^ {4}[│ ]*(?:[├└]── )?(\w+)", inspect.getdoc(errors) or "", flags=re.MULTILINE)
    assert sorted(drawn) == sorted(CLASSES)
    # a missing entity is an outage only where the client has sent before, so its class is none
    notes = dict(re.findall(r"(\w+)(?: \(ours\))? +(outage|transient)(?:\b)", inspect.getdoc(errors) or ""))
    assert {name for name, note in notes.items() if note == "outage"} - {"MessagingEntityNotFoundError"} == OUTAGES


@pytest.mark.parametrize("name", CLASSES)
def test_every_error_keeps_its_text_and_survives_pickling(name: str) -> None:
    error = CLASSES[name]("orders: no")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is CLASSES[name]
    assert str(again) == str(error) == "orders: no"
    assert getattr(again, "message", None) == getattr(error, "message", None)


def test_the_text_is_an_attribute_as_in_the_sdk() -> None:
    assert all(kind("orders: no").message == "orders: no" for kind in SERVICE_BUS_ERRORS.values())


@pytest.mark.deviation("client.errors")
def test_mistakes_of_the_caller_are_value_errors_too() -> None:
    values = {name for name, kind in CLASSES.items() if issubclass(kind, ValueError)}
    assert values == {
        InvalidOperationError.__name__,
        ArgumentTypeError.__name__,
        TransactionNotSupportedError.__name__,
        MessageSizeExceededError.__name__,
        MessageAlreadySettled.__name__,
    }
    assert not issubclass(MessageAlreadySettled, ServiceBusError)


def test_the_text_names_each_cause_with_its_queue() -> None:
    causes = {"p/x-servicebus-transfer/0": OperationTimeoutError("late"), "p/x-servicebus-transfer/1": OSError("cut")}
    error = BacklogUnavailableError("'orders' was not accepted", causes)
    assert error.causes == causes
    for part in ("'orders' was not accepted", "transfer/0: OperationTimeoutError: late", "transfer/1: OSError: cut"):
        assert part in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert sorted(again.causes) == sorted(causes)


def test_causes_are_a_copy_and_may_be_absent() -> None:
    causes: dict[str, Exception] = {"q": OSError("cut")}
    error = BacklogUnavailableError("no", causes)
    causes.clear()
    assert list(error.causes) == ["q"]
    assert BacklogUnavailableError("no").causes == {}


def test_an_error_does_not_keep_the_one_that_is_being_handled() -> None:
    try:
        raise ValueError("a body")
    except ValueError:
        error = ServiceBusError("damaged")
    assert "a body" not in repr(vars(error))
