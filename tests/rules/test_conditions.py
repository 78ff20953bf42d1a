from __future__ import annotations

import inspect

import pytest

from sbclient import errors
from sbclient.errors import (
    MessageLockLostError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusInternalError,
)
from sbclient.rules.conditions import BY_CONDITION, error_class, error_of, plain_text


def test_every_condition_of_an_error_class_leads_back_to_that_class() -> None:
    classes = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, ServiceBusError)]
    stated = {kind.condition: kind for kind in classes if "condition" in vars(kind) and kind.condition is not None}
    assert len(stated) > 10
    for condition, kind in stated.items():
        assert BY_CONDITION[condition] is kind


@pytest.mark.parametrize(
    "condition", ["amqp:link:redirect", "amqp:session:window-violation", "amqp:connection:redirect"]
)
def test_unknown_conditions_of_links_and_connections_mean_a_lost_connection(condition: str) -> None:
    assert error_class(condition) is ServiceBusConnectionError


@pytest.mark.parametrize("condition", ["com.microsoft:new", "amqp:linked", "x"])
def test_other_unknown_conditions_are_internal_errors(condition: str) -> None:
    assert error_class(condition, 404) is ServiceBusInternalError


def test_status_decides_only_without_condition() -> None:
    assert error_class(None, 404) is MessagingEntityNotFoundError
    assert error_class("", 401) is ServiceBusAuthenticationError
    assert error_class("com.microsoft:message-lock-lost", 404) is MessageLockLostError
    assert error_class(None, 599) is ServiceBusInternalError
    assert error_class(None) is ServiceBusInternalError


def test_error_names_subject_and_description() -> None:
    error = error_of("send to 'orders'", "amqp:not-found", "no such entity")
    assert isinstance(error, MessagingEntityNotFoundError)
    assert error.message == "send to 'orders': no such entity"
    assert "status 404" in error_of("put a token", None, None, 404).message
    assert "amqp:not-found" in error_of("attach", "amqp:not-found", None).message


@pytest.mark.parametrize(
    "text",
    [
        "bad SharedAccessSignature sr=x&sig=SECRET%3d&se=1",
        "Endpoint=sb://x/;SharedAccessKey=SECRET=;EntityPath=q",
        "Authorization: Bearer SECRET",
        "signature=SECRET\nand more",
        "sig = SECRET",
        "SharedAccessSignature skn=SECRET",
    ],
)
def test_text_hides_secrets(text: str) -> None:
    assert "SECRET" not in plain_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "the token is neither a SharedAccessSignature nor a JSON web token",
        "The signature is invalid. SharedAccessKey and SharedAccessSignature are both set",
    ],
)
def test_words_that_are_no_secrets_stay(text: str) -> None:
    assert plain_text(text) == text


def test_text_is_one_short_line() -> None:
    assert plain_text("a\n b\t" + "c" * 1000) == "a b " + "c" * 596
