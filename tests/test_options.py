from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from azure.servicebus.aio import ServiceBusClient as AzureClient

from sbclient import ServiceBusClient
from sbclient.errors import InvalidOperationError
from sbclient.options import (
    BACKLOG_HEADROOM_BYTES,
    OWN_OPTIONS,
    PAIR_OPTIONS,
    PARTNER_CLOSE_GRACE,
    RETRY_OPTIONS,
    SERVER_BUSY_PAUSE,
    SYPHON_LIMITS,
    TRANSPORT_OPTIONS,
    PairedNamespaceOptions,
    RetryOptions,
    SyphonLimits,
    check_known,
    without_ignored,
)
from sbclient.settings.table import settings_of
from sbclient.worker.settings import SETTINGS as WORKER_SETTINGS
from sbclient_spark.drain.options import DRAIN_TABLE
from sbclient_spark.read.options import READ_TABLE
from sbclient_spark.write.options import WRITE_TABLE

ROOT: Final = Path(__file__).parents[1]


def test_something_reads_each_option() -> None:
    """Every field of a class of options, settings or limits is read where it is not declared or checked."""
    declared, read = dict[str, str](), set[str]()
    for path in (path for package in ("sbclient", "sbclient_spark") for path in (ROOT / package).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        nodes = list(ast.walk(tree))
        checks = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == "__post_init__"]
        checked = {inner for node in checks for inner in ast.walk(node)}
        loaded = (node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load))
        read |= {node.attr for node in loaded if node not in checked}
        for kind in (node for node in nodes if isinstance(node, ast.ClassDef)):
            if re.search(r"(Options|Settings|Limits|Policy)$", kind.name):
                for field in (field for field in kind.body if isinstance(field, ast.AnnAssign)):
                    assert isinstance(field.target, ast.Name)
                    repeated = re.search(r"^same_as\(\w+\['(\w+)'\]", ast.unparse(field.value)) if field.value else None
                    declared[f"{kind.name}.{field.target.id}"] = repeated[1] if repeated else field.target.id
    assert len(declared) > 150
    unread = {option for option, name in declared.items() if name not in read}
    by_side = {"WorkerSettings.primary_file", "WorkerSettings.secondary_file"}
    assert unread == by_side, f"nothing reads {', '.join(unread ^ by_side)}: it has no effect"


def test_a_test_names_each_option() -> None:
    files = [path for path in (ROOT / "tests").rglob("*.py") if "pages" not in path.parts]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files).lower().replace("-", "_")
    words = set(re.findall(r"\w+", text))
    tables = (PAIR_OPTIONS, RETRY_OPTIONS, SYPHON_LIMITS, WORKER_SETTINGS, WRITE_TABLE, READ_TABLE, DRAIN_TABLE)
    rows = [row for table in tables for row in table.values()]
    untested = [row.name for row in rows if not {row.name.lower(), row.attribute} & words]
    assert untested == [], f"no test names {', '.join(untested)}: test what it does"


@pytest.mark.deviation("pairing.headroom", "pairing.missing-destinations")
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
    limits = SyphonLimits()
    assert (limits.max_messages_per_second, limits.max_queues_polled) == (None, None)
    assert (limits.max_messages_in_flight, limits.max_bytes_in_flight) == (300, 64 * 1024 * 1024)


def test_f3_defaults_of_the_retry_policy() -> None:
    retry = RetryOptions()
    assert (retry.retry_total, retry.retry_backoff_factor, retry.retry_backoff_max, retry.timeout) == (3, 0.8, 30, 60)


WRONG: Final[dict[str, Any]] = {
    "failover_interval": timedelta(minutes=61),
    "ping_primary_interval": timedelta(0),
    "backlog_queue_count": 0,
    "enable_syphon": 1,
    "divert_while_suspect": "true",
    "pings_to_recover": 0,
    "probe": "ping",
    "backlog_time_to_live": None,
    "ordering": "SESSION",
    "provision": True,
    "primary_name": "",
    "reserve_backlog_headroom": None,
    "missing_entity_grace": 60,
    "syphon_long_poll": timedelta(hours=25),
    "syphon_destinations": "a",
    "receive_from": "secondary",
    "redirect_after": 60,
    "redirect_sessions": "true",
    "is_outage": "timeout",
    "max_messages_per_second": 0,
    "max_messages_per_second_per_destination": float("nan"),
    "max_queues_polled": 0,
    "max_messages_in_flight": 5001,
    "max_bytes_in_flight": 0,
    "retry_total": -1,
    "retry_backoff_factor": -0.1,
    "retry_backoff_max": float("nan"),
    "timeout": 0,
}
"""A value of each option that is not allowed. What a kind allows is tested in settings/test_kinds.py."""


@pytest.mark.parametrize("options", [PairedNamespaceOptions, SyphonLimits, RetryOptions])
def test_every_option_is_checked_and_documented(options: Any) -> None:
    for row in settings_of(options).values():
        assert row.name in WRONG, f"add a wrong value of {row.name} to WRONG"
        with pytest.raises(InvalidOperationError, match=rf"^{row.name} is "):
            options(**{row.name: WRONG[row.name]})
        options(**{row.name: row.default})
        assert f"{row.name}: {row.about}" in options.__doc__
    assert settings_of(options).keys() == {each.name for each in dataclasses.fields(options)}


OF_SENDERS_AND_RECEIVERS: Final = """
    divert_while_suspect failover_interval ping_primary_interval pings_to_recover probe receive_from
    reserve_backlog_headroom
"""
NO_TEXT: Final = ("enable_syphon", "is_outage")
OTHER_WORDS: Final = {"ordering": "sessions", "provision": "provision"}


def test_the_worker_has_every_option_that_concerns_a_syphon() -> None:
    of_worker = {row.origin.name for row in WORKER_SETTINGS.values() if row.origin is not None}
    assert set(OTHER_WORDS.values()) <= WORKER_SETTINGS.keys()
    others = {*OF_SENDERS_AND_RECEIVERS.split(), *NO_TEXT, *OTHER_WORDS}
    assert PAIR_OPTIONS.keys() - others <= of_worker, "add same_as to worker/settings.py, or name it here"
    assert SYPHON_LIMITS.keys() <= of_worker, "add same_as to worker/settings.py"


def test_ends_of_the_ranges_are_allowed() -> None:
    PairedNamespaceOptions(failover_interval=timedelta(0), ping_primary_interval=timedelta(seconds=1))
    PairedNamespaceOptions(failover_interval=timedelta(minutes=60), ping_primary_interval=timedelta(minutes=30))


def test_options_cannot_be_changed_after_they_were_checked() -> None:
    for options in (PairedNamespaceOptions(), RetryOptions()):
        field = dataclasses.fields(options)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(options, field, None)


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
