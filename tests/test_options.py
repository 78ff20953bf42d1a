from __future__ import annotations

import dataclasses
import inspect
import re
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus.aio import ServiceBusClient as AzureClient

from sbclient import ServiceBusClient
from sbclient.errors import InvalidOperationError
from sbclient.options import (
    BACKLOG_HEADROOM_BYTES,
    OWN_OPTIONS,
    PARTNER_CLOSE_GRACE,
    SERVER_BUSY_PAUSE,
    TRANSPORT_OPTIONS,
    PairedNamespaceOptions,
    RetryOptions,
    SyphonLimits,
    check_known,
    without_ignored,
)


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


def test_defaults_are_the_documented_ones() -> None:
    options = PairedNamespaceOptions()
    assert options.failover_interval == timedelta(minutes=1)
    assert options.ping_primary_interval == timedelta(minutes=1)
    assert options.backlog_queue_count == 10
    assert options.enable_syphon is False
    assert options.syphon_long_poll == timedelta(minutes=15)
    assert (options.ordering, options.pings_to_recover, options.probe) == ("none", 1, "message")
    assert options.missing_entity_grace == timedelta(hours=24)
    assert (options.divert_while_suspect, options.reserve_backlog_headroom) == (False, True)
    assert (options.provision, options.backlog_time_to_live) == ("create", "remaining")
    assert (timedelta(seconds=5), timedelta(seconds=10)) == (PARTNER_CLOSE_GRACE, SERVER_BUSY_PAUSE)
    assert BACKLOG_HEADROOM_BYTES == 1024


def test_f3_defaults_of_the_retry_policy() -> None:
    retry = RetryOptions()
    assert (retry.retry_total, retry.retry_backoff_factor, retry.retry_backoff_max, retry.timeout) == (3, 0.8, 30, 60)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("failover_interval", timedelta(0), timedelta(minutes=60)),
        ("ping_primary_interval", seconds(1), timedelta(minutes=30)),
        ("missing_entity_grace", timedelta(0), timedelta(days=3650)),
        ("syphon_long_poll", seconds(1), timedelta(hours=24)),
    ],
)
def test_spans_keep_their_ranges(name: str, least: timedelta, most: timedelta) -> None:
    for value in (least, most):
        assert getattr(options_with(name, value), name) == value
    for wrong in (least - timedelta(microseconds=1), most + timedelta(microseconds=1), timedelta.max, 60, None, "1"):
        with pytest.raises(InvalidOperationError) as caught:
            options_with(name, wrong)
        assert name in str(caught.value)


@pytest.mark.parametrize("name", ["backlog_queue_count", "pings_to_recover"])
def test_counts_are_whole_numbers_from_one(name: str) -> None:
    assert getattr(options_with(name, 1), name) == 1
    for wrong in (0, -1, 1.0, True, "1", None):
        with pytest.raises(InvalidOperationError):
            options_with(name, wrong)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("probe", ("message", "link")),
        ("backlog_time_to_live", ("remaining", "restart")),
        ("ordering", ("none", "session")),
        ("provision", ("create", "verify", "none")),
    ],
)
def test_choices_are_among_the_named_ones(name: str, allowed: tuple[str, ...]) -> None:
    for value in allowed:
        assert getattr(options_with(name, value), name) == value
    for wrong in ("", allowed[0].upper(), None, 1):
        with pytest.raises(InvalidOperationError) as caught:
            options_with(name, wrong)
        assert all(repr(value) in str(caught.value) for value in allowed)


def test_options_cannot_be_changed_after_they_were_checked() -> None:
    for options in (PairedNamespaceOptions(), RetryOptions()):
        field = dataclasses.fields(options)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(options, field, None)


@pytest.mark.parametrize("name", ["retry_total", "retry_backoff_factor", "retry_backoff_max", "timeout"])
def test_no_number_of_the_retry_policy_is_negative_or_not_a_number(name: str) -> None:
    for wrong in (-1, float("nan"), None, "1", True):
        settings: dict[str, Any] = {name: wrong}
        with pytest.raises(InvalidOperationError) as caught:
            RetryOptions(**settings)
        assert name in str(caught.value)


def test_a_timeout_of_nothing_is_refused_but_no_retries_are_fine() -> None:
    assert RetryOptions(retry_total=0, retry_backoff_factor=0, retry_backoff_max=0, timeout=0.5).timeout == 0.5
    with pytest.raises(InvalidOperationError):
        RetryOptions(timeout=0)


def test_destinations_of_a_syphon_are_a_list_of_names() -> None:
    assert options_with("syphon_destinations", ["a", "b/*"]).syphon_destinations == ["a", "b/*"]
    for wrong in (5, "a", b"a", [], ["a", ""], [1], (name for name in ("a", "b"))):
        with pytest.raises(InvalidOperationError, match="syphon_destinations"):
            options_with("syphon_destinations", wrong)


@pytest.mark.parametrize("wrong", ["", 5])
def test_primary_name_is_a_text_that_is_not_empty(wrong: Any) -> None:
    with pytest.raises(InvalidOperationError, match="primary_name"):
        options_with("primary_name", wrong)


def options_with(name: str, value: Any) -> PairedNamespaceOptions:
    return PairedNamespaceOptions(**{name: value})


def test_limits_of_a_syphon_at_their_ends() -> None:
    limits = SyphonLimits()
    assert (limits.max_messages_per_second, limits.max_queues_polled) == (None, None)
    assert (limits.max_messages_in_flight, limits.max_bytes_in_flight) == (300, 64 * 1024 * 1024)
    SyphonLimits(max_messages_per_second=0.001, max_queues_polled=1, max_messages_in_flight=5000, max_bytes_in_flight=1)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("max_messages_per_second", [0, -1.0, float("nan"), float("inf"), "10", True]),
        ("max_messages_per_second_per_destination", [0, -1.0, float("nan"), float("inf"), "10"]),
        ("max_queues_polled", [0, 1.5, True]),
        ("max_messages_in_flight", [0, 5001, None]),
        ("max_bytes_in_flight", [0, None, 1e6]),
    ],
)
def test_limits_of_a_syphon_keep_their_ranges(name: str, wrong: list[Any]) -> None:
    for value in wrong:
        with pytest.raises(InvalidOperationError) as caught:
            SyphonLimits(**{name: value})
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        (
            "retry_totl",
            "'retry_totl' is not an option of a client: did you mean 'retry_total'? The options are ",
        ),
        (
            "colour",
            "'colour' is not an option of a client: use one of enable_cross_entity_transactions, options, ",
        ),
    ],
)
def test_error_for_an_unknown_option_lists_all_valid_ones(name: str, advice: str) -> None:
    with pytest.raises(InvalidOperationError) as caught:
        check_known(["user_agent", name], ["user_agent"])
    assert str(caught.value).startswith(advice)
    assert str(caught.value).endswith("transport, user_agent")
    assert not caught.value.is_outage


def test_every_option_of_a_client_is_known() -> None:
    signature = inspect.signature(ServiceBusClient).parameters.values()
    assert {each.name for each in signature if each.kind is each.KEYWORD_ONLY} == set(OWN_OPTIONS)
    documented = set(re.findall(r":keyword .*?(\w+):", AzureClient.__doc__ or ""))
    assert documented - TRANSPORT_OPTIONS.keys() - set(OWN_OPTIONS) == set()
    assert len(documented) > 12


def test_options_without_an_effect_are_dropped_with_one_warning() -> None:
    given = {"retry_mode": "fixed", "logging_enable": True, "uamqp_transport": False, "user_agent": "mine"}
    with pytest.warns(UserWarning, match="logging_enable .* 'sbclient'.*retry_mode") as caught:
        assert without_ignored(given, "amqp", stacklevel=1) == {"user_agent": "mine"}
    assert len(caught) == 1
    assert "uamqp_transport" not in str(caught[0].message)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(("transport", "kept"), [("sdk", {"socket_timeout": 5}), ("amqp", {}), (None, {})])
def test_option_that_a_transport_passes_on_is_kept(transport: str | None, kept: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match="retry_mode"):
        assert without_ignored({"socket_timeout": 5, "retry_mode": "fixed"}, transport, stacklevel=1) == kept
