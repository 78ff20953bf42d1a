"""`sbclient admin export` and `import`: a namespace as a file, in both forms, and back."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sbclient import ServiceBusClient
from sbclient.administration import ServiceBusAdministrationClient
from sbclient.entities import (
    AccessRights,
    AuthorizationRule,
    CorrelationRuleFilter,
    EntityStatus,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
)
from sbclient.errors import InvalidOperationError
from sbclient.testing import served
from sbclient.transport.memory.administration import MemoryAdministration
from tests import commands
from tests.cli.calling import PRIMARY, call, lines, on


async def fill(administration: ServiceBusAdministrationClient) -> None:
    """Create what both forms hold."""
    await administration.create_queue("b", enable_partitioning=True, max_size_in_megabytes=2048, user_metadata="é")
    disabled = await administration.create_queue("z", requires_session=True)
    disabled.status = EntityStatus.SEND_DISABLED
    await administration.update_queue(disabled)
    await administration.create_queue("a", forward_to="b", forward_dead_lettered_messages_to="z", lock_duration="PT30S")
    await administration.create_topic("t/x", enable_partitioning=True, auto_delete_on_idle=timedelta(days=1))
    await administration.create_subscription("t/x", "plain", default_message_time_to_live=timedelta(hours=3))
    await administration.create_subscription("t/x", "both", max_delivery_count=4)
    await administration.create_rule(
        "t/x", "both", "r", filter=SqlRuleFilter("a = 5"), action=SqlRuleAction("SET b = 1")
    )
    await administration.create_subscription("t/x", "other", forward_to="b")
    rule = await administration.get_rule("t/x", "other", "$Default")
    rule.filter = CorrelationRuleFilter(label="x", properties={"n": 3, "yes": True})
    await administration.update_rule("t/x", "other", rule)
    await administration.create_subscription("t/x", "one")
    await administration.delete_rule("t/x", "one", "$Default")
    await administration.create_rule("t/x", "one", "never", filter=FalseRuleFilter())


async def fill_more(administration: ServiceBusAdministrationClient) -> None:
    """Create what Config.json does not hold."""
    await administration.create_queue("odd", enable_batched_operations=False)
    await administration.create_subscription("t/x", "none")
    await administration.delete_rule("t/x", "none", "$Default")
    parameters = {"@b": timedelta(seconds=2)}
    await administration.create_rule("t/x", "plain", "p", filter=SqlRuleFilter("a = @b", parameters))
    typed = CorrelationRuleFilter(properties={"d": timedelta(seconds=2)})
    await administration.create_rule("t/x", "plain", "typed", filter=typed)


async def descriptions(administration: ServiceBusAdministrationClient) -> list[Any]:
    found: list[Any] = [each async for each in administration.list_queues()]
    async for topic in administration.list_topics():
        found.append(topic)
        async for subscription in administration.list_subscriptions(topic.name):
            found.append(subscription)
            async for rule in administration.list_rules(topic.name, subscription.name):
                rule.created_at_utc = None
                found.append(rule)
    return found


def ask(connection_string: str, *works: Any) -> Any:
    async def work(client: ServiceBusClient) -> Any:
        return [await each(client.administration) for each in works][-1]

    return on(connection_string, work)


@pytest.mark.parametrize("profile", ["std-2021", "prem-2021"])
@pytest.mark.parametrize(("form", "works"), [("config", [fill]), ("sbclient", [fill, fill_more])])
def test_an_exported_namespace_is_imported_into_an_empty_one_with_equal_descriptions(
    form: str, works: list[Any], profile: str, tmp_path: Path
) -> None:
    file = tmp_path / "file.json"
    with served("contoso", profile=profile) as one, served("fabrikam", profile=profile) as other:
        ask(one.connection_string, *works)
        exported = commands.call("admin", "export", "--format", form, "--primary", one.connection_string)
        assert exported.stderr == ""
        file.write_text(exported.stdout)
        again = ("admin", "import", str(file), "--primary", other.connection_string)
        made = commands.call(*again).stdout.splitlines()
        expected = ask(one.connection_string, descriptions)
        assert ask(other.connection_string, descriptions) == expected
        assert commands.call(*again).stdout == made[-1].replace("created", "equal") + "\n"


def test_what_config_json_cannot_hold_is_named() -> None:
    ask(PRIMARY, fill, fill_more)
    exported = call("admin", "export", "--format", "config", status=1)
    assert exported.stderr.splitlines() == [
        "not exported: queue odd: enable_batched_operations",
        "not exported: rule t/x/plain/p: parameters of its filter; the rule is left out",
        "not exported: rule t/x/plain/typed: the type of property d; the rule is left out",
        "not exported: subscription t/x/none: no rules; the file gives it the rule that accepts everything",
    ]
    (namespace,) = json.loads(exported.stdout)["UserConfig"]["Namespaces"]
    assert namespace["Queues"][2] == {
        "Name": "odd",
        "Properties": {
            "DeadLetteringOnMessageExpiration": False,
            "DefaultMessageTimeToLive": "P10675199DT2H48M5.4775807S",
            "DuplicateDetectionHistoryTimeWindow": "PT10M",
            "LockDuration": "PT1M",
            "MaxDeliveryCount": 10,
            "RequiresDuplicateDetection": False,
            "RequiresSession": False,
        },
    }, "it has the fields that Microsoft documents"


@pytest.mark.parametrize("form", ["config", "sbclient"])
def test_keys_are_not_exported_and_that_is_said(form: str) -> None:
    async def work(client: ServiceBusClient) -> None:
        rule = AuthorizationRule(key_name="k", rights=[AccessRights.SEND], primary_key="c2VjcmV0LXNlY3JldA==")
        await client.administration.create_queue("q", authorization_rules=[rule])

    on(PRIMARY, work)
    exported = call("admin", "export", "--format", form, status=1)
    assert exported.stderr == "not exported: queue q: authorization_rules\n"
    assert "c2VjcmV0" not in exported.stdout


def entities(*each: dict[str, Any]) -> str:
    return json.dumps({"entities": each})


def queue(name: str, **settings: Any) -> dict[str, Any]:
    return {"kind": "queue", "names": [name], "settings": settings}


def subscription(*rules: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "subscription", "names": ["t", "s"], "rules": rules}


def test_what_differs_is_reported_and_stays(tmp_path: Path) -> None:
    ask(PRIMARY, fill)
    before = ask(PRIMARY, descriptions)
    file = tmp_path / "file.json"
    rules = [{"name": "R", "filter": {"type": "sql", "sql_expression": "a = 6"}}]
    both = {"kind": "subscription", "names": ["T/X", "both"], "rules": rules}
    file.write_text(entities(queue("A", lock_duration="PT40S"), queue("t/x"), queue("new"), both))
    assert call("admin", "import", str(file), "--dry-run", status=1).stdout.splitlines() == [
        'differs: queue A: lock_duration is "PT30S", in the file "PT40S"',
        "differs: queue t/x: kind is a topic",
        "would be created: queue new",
        "differs: subscription T/X/both: rules has also $Default",
        'differs: rule T/X/both/R: filter is {"type": "sql", "sql_expression": "a = 5"}, in the file '
        '{"type": "sql", "sql_expression": "a = 6"}; action is {"sql_expression": "SET b = 1"}, in the file not set',
        "1 created, 4 differs",
    ]
    assert ask(PRIMARY, descriptions) == before
    results = lines(call("admin", "import", str(file), "--json", status=1))
    assert [each["result"] for each in results] == ["differs", "differs", "created", "differs", "differs"]
    assert [each for each in ask(PRIMARY, descriptions) if each.name != "new"] == before


def test_a_refused_entity_does_not_stop_the_others(tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    file.write_text(entities(queue("a", forward_to="nowhere"), queue("big", max_size_in_megabytes=7), queue("c")))
    done = lines(call("admin", "import", str(file), "--json", status=1))
    assert [(each["result"], each["names"][0]) for each in done] == [
        ("created", "a"),
        ("refused", "big"),
        ("created", "c"),
        ("refused", "a"),
    ]
    assert "nowhere" in done[3]["details"]["error"]


def test_the_default_rule_stays_when_another_rule_was_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file.json"
    rules = [{"name": name, "filter": {"type": "true"}} for name in ("good", "bad")]
    file.write_text(entities({"kind": "topic", "names": ["t"]}, subscription(*rules)))
    create = MemoryAdministration.create

    async def refusing(self: Any, address: Any, properties: Any) -> Any:
        if address.names[-1] == "bad":
            raise InvalidOperationError("too many")
        return await create(self, address, properties)

    monkeypatch.setattr(MemoryAdministration, "create", refusing)
    call("admin", "import", str(file), status=1)
    assert {each.name for each in ask(PRIMARY, descriptions)} == {"t", "s", "good", "$Default"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "bad.json, line 1"),
        (entities(queue("q", lock="PT1M")), "$.entities[0].settings.lock is unknown"),
        (entities(queue("q", lock_duration="1 minute")), "lock_duration is not allowed"),
        (entities(queue("q"), queue("Q")), "has the name 'Q' of $.entities[0]"),
        (entities({"kind": "queue", "names": ["q", "r"]}), "is a queue with 2 names"),
        (entities({"kind": "queue", "names": ["q"], "rules": []}), "a queue has no rules"),
        (
            entities(subscription({"name": "r", "filter": {"type": "x"}})),
            "it is one of sql, correlation, true, false",
        ),
        (
            entities(
                {"kind": "subscription", "names": ["t", "s"], "rules": [{"name": "r", "filter": {"type": "sql"}}]}
            ),
            "has no sql_expression",
        ),
        ('{"UserConfig": {"Namespaces": [{"Name": "a"}, {"Name": "b"}]}}', "has the namespaces a, b, none is"),
        ('{"UserConfig": {"Namespaces": [{"Name": "a", "Queues": [{"Name": "q", "Propertys": {}}]}]}}', "is unknown"),
        ("\udcff", "is not UTF-8"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_the_place(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text, encoding="utf-8", errors="surrogateescape")
    assert words in call("admin", "import", str(file), status=2).stderr
    assert ask(PRIMARY, descriptions) == []


def test_of_several_namespaces_the_one_with_the_name_is_imported(tmp_path: Path) -> None:
    file = tmp_path / "Config.json"
    name = ask(PRIMARY, lambda administration: administration.get_namespace_properties()).name
    namespaces = [{"Name": each, "Queues": [{"Name": f"of-{each}"}]} for each in ("other", name)]
    file.write_text(json.dumps({"UserConfig": {"Namespaces": namespaces}}))
    assert call("admin", "import", str(file)).stdout == f"created: queue of-{name}\n1 created\n"
