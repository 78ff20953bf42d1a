"""`sbclient admin`: entities, from argument to exit status."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sbclient import ServiceBusClient
from sbclient.entities import AccessRights, AuthorizationRule
from tests.cli.calling import PRIMARY, call, lines, on


def one(*arguments: str) -> dict[str, Any]:
    (result,) = lines(call("admin", *arguments, "--json"))
    return result


def test_create_show_update_list_and_delete_a_queue() -> None:
    made = one("create", "queue", "q", "--set", "lock_duration=30s", "--set", "requires_session=true")
    assert (made["name"], made["requires_session"], made["lock_duration"]) == ("q", True, "PT30S")
    assert made["default_message_time_to_live"] is None
    assert one("update", "queue", "q", "--set", "max_delivery_count=3")["max_delivery_count"] == 3
    shown = one("show", "queue", "q")
    assert shown["runtime"]["total_message_count"] == 0
    assert shown["runtime"]["accessed_at_utc"] is None or shown["runtime"]["accessed_at_utc"].endswith("Z")
    assert one("list", "queue") == one("update", "queue", "q")
    assert one("list", "queue", "--counts")["runtime"]["active_message_count"] == 0
    assert one("delete", "queue", "q", "--yes") == {"deleted": "q", "kind": "queue"}
    assert lines(call("admin", "list", "queue", "--json")) == []


def test_creating_an_existing_entity_has_its_own_status() -> None:
    call("admin", "create", "queue", "q")
    call("admin", "create", "queue", "q", status=6)


def test_if_not_exists_leaves_an_existing_entity_as_it_is() -> None:
    create = ("admin", "create", "queue", "q", "--if-not-exists")
    assert call(*create, "--set", "lock_duration=30s").stdout == "created queue q\n"
    again = call(*create, "--set", "lock_duration=40s", "--set", "requires_session=false")
    assert again.stdout == "exists: queue q\n"
    assert again.stderr == "it has other values of lock_duration: `sbclient admin update` changes settings\n"
    assert call(*create, "--set", "lock_duration=30s").stderr == ""
    assert one("show", "queue", "q")["lock_duration"] == "PT30S"


def test_text_output_without_json() -> None:
    assert call("admin", "create", "queue", "q").stdout == "created queue q\n"
    assert call("admin", "update", "queue", "q", "--set", "lock_duration=PT20S").stdout == "changed queue q\n"
    shown = dict(line.split() for line in call("admin", "show", "queue", "q").stdout.splitlines())
    assert (shown["lock_duration"], shown["max_size_in_megabytes"]) == ("PT20S", "1024")
    assert shown["active_message_count"] == "0"
    assert "auto_delete_on_idle" not in shown
    header, row = call("admin", "list", "queue", "--counts").stdout.splitlines()
    assert header.split()[:2] == ["name", "status"]
    assert row.split()[:2] == ["q", "Active"]
    assert call("admin", "delete", "queue", "q", "-y").stdout == "deleted queue q\n"
    assert call("admin", "list", "queue").stdout == ""


def test_subscription_with_a_rule() -> None:
    one("create", "topic", "prices")
    one("create", "subscription", "prices", "eu")
    rule = one("create", "rule", "prices", "eu", "cheap", "--set", "sql=price < 10", "--set", "action=SET a = 1")
    assert rule["filter"] == {"type": "sql", "sql_expression": "price < 10"}
    assert rule["action"] == {"type": "sql", "sql_expression": "SET a = 1"}
    assert len(lines(call("admin", "list", "rule", "prices", "eu", "--json"))) == 2
    listed = call("admin", "list", "rule", "prices", "eu").stdout
    assert re.search(r"^cheap +price < 10 +SET a = 1$", listed, re.M)
    assert "true" in listed


def test_correlation_filter_takes_typed_properties() -> None:
    one("create", "topic", "prices")
    one("create", "subscription", "prices", "eu")
    rule = one(
        "create", "rule", "prices", "eu", "irish", "--set", "property.country=IE", "--set", "property.price:=5",
        "--set", "label=new",
    )  # fmt: skip
    assert rule["filter"] == {"type": "correlation", "label": "new", "properties": {"country": "IE", "price": 5}}


@pytest.mark.parametrize("text", ["SendDisabled", "SEND_DISABLED", "senddisabled"])
def test_status_is_accepted_by_value_and_by_name(text: str) -> None:
    assert one("create", "queue", "q", "--set", f"status={text}")["status"] == "SendDisabled"


def test_error_lists_the_values_of_a_setting() -> None:
    error = call("admin", "create", "queue", "q", "--set", "status=closed", status=2).stderr
    listed = re.findall(r"it must be one of (.*)", error)[0].split(", ")
    for value in ("Active", "Disabled", "SendDisabled", "ReceiveDisabled"):
        assert value in listed
        assert one("create", "queue", f"q-{value}", "--set", f"status={value}")["status"] == value


def test_empty_name_is_rejected() -> None:
    assert "empty" in call("admin", "create", "queue", "", status=2).stderr


def test_keys_are_never_printed() -> None:
    rule = AuthorizationRule(key_name="mine", rights=[AccessRights.SEND], primary_key="SECRET", secondary_key="SECRET")

    async def work(client: ServiceBusClient) -> None:
        await client.administration.create_queue("q", authorization_rules=[rule])

    on(PRIMARY, work)
    assert "SECRET" not in call("admin", "show", "queue", "q", "--json").stdout
    assert "mine" not in call("admin", "show", "queue", "q").stdout


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("create", "queue", "a", "b"), 2),
        (("create", "queue", ""), 2),
        (("create", "rule", "t", "", "r"), 2),
        (("show", "queue", ""), 2),
        (("list", "subscription", ""), 2),
        (("create", "rule", "t", "s", "r", "--set", "property.price:=x"), 2),
        (("create", "queue", "q", "--set", "colour=red"), 2),
        (("create", "queue", "q", "--set", "lock_duration=soon"), 2),
        (("create", "queue", "q", "--set", "requires_session=perhaps"), 2),
        (("create", "queue", "q", "--set", "requires_session"), 2),
        (("create", "queue", "q", "--set", "authorization_rules=x"), 2),
        (("create", "rule", "t", "s", "r", "--set", "sql=1=1", "--set", "label=x"), 2),
        (("create", "rule", "t", "s", "r", "--set", "colour=x"), 2),
        (("list", "subscription"), 2),
        (("show", "queue", "missing"), 5),
        (("delete", "queue", "missing", "--yes"), 5),
        (("delete", "queue", "a", "b", "--yes"), 2),
        (("delete", "queue", "a"), 2),
    ],
)
def test_invalid_input_is_one_line_and_an_exit_status(arguments: tuple[str, ...], status: int) -> None:
    result = call("admin", *arguments, status=status)
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "Traceback" not in result.stderr
