"""Microsoft's Config.json: read unchanged, with what we add, and every mistake named."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient import clock
from sbclient.broker.faults import Call, Operation
from sbclient.broker.profile import PREM_2021, STD_2021
from sbclient.emulator.config.config import read_config
from sbclient.emulator.config.entities import EntityConfig, NamespaceConfig, make_entities
from sbclient.emulator.config.exchange import read_exchanged, write_entities
from sbclient.emulator.config.located_json import ConfigError
from sbclient.entities import (
    UNLIMITED,
    AccessRights,
    CorrelationRuleFilter,
    EntityAddress,
    EntityKind,
    EntityProperties,
    EntityStatus,
    FalseRuleFilter,
    QueueProperties,
    RuleProperties,
    SqlRuleAction,
    SqlRuleFilter,
    SubscriptionProperties,
    TopicProperties,
    TrueRuleFilter,
)
from sbclient.hosting.host import BrokerHost

MICROSOFT = """
// The entities of our shop.
{
  "UserConfig": {
    "Namespaces": [
      {
        "Name": "sbemulatorns",
        "Queues": [
          {
            "Name": "orders",
            "Properties": {
              "DeadLetteringOnMessageExpiration": false,
              "DefaultMessageTimeToLive": "PT1H",
              "DuplicateDetectionHistoryTimeWindow": "PT20S",
              "ForwardDeadLetteredMessagesTo": "",
              "ForwardTo": "",
              "LockDuration": "PT1M",
              "MaxDeliveryCount": 3,
              "RequiresDuplicateDetection": false,
              "RequiresSession": false
            }
          }
        ],
        "Topics": [
          {
            "Name": "prices",
            "Properties": {
              "DefaultMessageTimeToLive": "PT1H",
              "DuplicateDetectionHistoryTimeWindow": "PT20S",
              "RequiresDuplicateDetection": false
            },
            "Subscriptions": [
              {
                "Name": "eu", // a correlation filter
                "Properties": {
                  "DeadLetteringOnMessageExpiration": false,
                  "DefaultMessageTimeToLive": "PT1H",
                  "LockDuration": "PT1M",
                  "MaxDeliveryCount": 3,
                  "ForwardDeadLetteredMessagesTo": "orders",
                  "ForwardTo": "",
                  "RequiresSession": false
                },
                "Rules": [
                  {
                    "Name": "by-properties",
                    "Properties": {
                      "FilterType": "Correlation",
                      "CorrelationFilter": {
                        "ContentType": "application/json",
                        "CorrelationId": "c",
                        "Label": "l",
                        "MessageId": "m",
                        "ReplyTo": "r",
                        "ReplyToSessionId": "rs",
                        "SessionId": "s",
                        "To": "t",
                        "Properties": { "region": "eu", "size": 5 }
                      }
                    }
                  }
                ]
              },
              {
                "Name": "us",
                "Rules": [
                  {
                    "Name": "by-sql",
                    "Properties": {
                      "FilterType": "Sql",
                      "SqlFilter": { "SqlExpression": "sys.Label = 'x' AND region = 'us'" },
                      "Action": { "SqlExpression": "SET region = 'US'" }
                    }
                  }
                ]
              },
              { "Name": "all" }
            ]
          }
        ]
      }
    ],
    "Logging": { "Type": "File" }
  }
}
"""


def read(namespaces: Any, profile: Any = STD_2021) -> list[NamespaceConfig]:
    return read_config(json.dumps({"UserConfig": {"Namespaces": namespaces}}), "Config.json", profile)


def read_queue(**properties: Any) -> QueueProperties:
    (namespace,) = read([{"Name": "n", "Queues": [{"Name": "q", "Properties": properties}]}])
    found = namespace.entities[0].properties
    assert isinstance(found, QueueProperties)
    return found


def by_names(config: NamespaceConfig) -> dict[tuple[str, ...], EntityConfig]:
    return {entity.address.names: entity for entity in config.entities}


@pytest.fixture
def host() -> BrokerHost:
    return BrokerHost("sbemulatorns", random=Random(1))


class TestMicrosoftsFile:
    @pytest.fixture
    def config(self) -> NamespaceConfig:
        (config,) = read_config(MICROSOFT, "Config.json", STD_2021)
        return config

    def test_names_the_namespace_and_no_port(self, config: NamespaceConfig) -> None:
        assert (config.name, config.port, config.rules) == ("sbemulatorns", None, [])

    def test_queue_is_read(self, config: NamespaceConfig) -> None:
        assert by_names(config)["orders",].properties == QueueProperties(
            "orders",
            dead_lettering_on_message_expiration=False,
            default_message_time_to_live=timedelta(hours=1),
            duplicate_detection_history_time_window=timedelta(seconds=20),
            lock_duration=timedelta(minutes=1),
            max_delivery_count=3,
            requires_duplicate_detection=False,
            requires_session=False,
        )

    def test_topic_and_subscriptions_are_read(self, config: NamespaceConfig) -> None:
        found = by_names(config)
        assert isinstance(found["prices",].properties, TopicProperties)
        eu = found["prices", "eu"].properties
        assert isinstance(eu, SubscriptionProperties)
        assert (eu.forward_to, eu.forward_dead_lettered_messages_to) == (None, "orders")

    def test_rules_are_read(self, config: NamespaceConfig) -> None:
        found = by_names(config)
        assert found["prices", "eu", "by-properties"].properties == RuleProperties(
            "by-properties",
            CorrelationRuleFilter(
                content_type="application/json",
                correlation_id="c",
                label="l",
                message_id="m",
                reply_to="r",
                reply_to_session_id="rs",
                session_id="s",
                to="t",
                properties={"region": "eu", "size": 5},
            ),
        )
        assert found["prices", "us", "by-sql"].properties == RuleProperties(
            "by-sql", SqlRuleFilter("sys.Label = 'x' AND region = 'us'"), SqlRuleAction("SET region = 'US'")
        )

    def test_defaults_are_those_of_microsofts_emulator(self, config: NamespaceConfig) -> None:
        everything = by_names(config)["prices", "all"].properties
        assert isinstance(everything, SubscriptionProperties)
        assert everything.default_message_time_to_live == timedelta(hours=1)
        assert (everything.max_delivery_count, everything.lock_duration) == (3, timedelta(minutes=1))

    async def test_entities_are_made(self, config: NamespaceConfig, host: BrokerHost) -> None:
        make_entities(config, host)
        management, call = host.namespace.management, Call(Operation.MANAGE, clock.now())
        assert [each.name for each in management.listed(call, EntityKind.QUEUE)] == ["orders"]
        eu = management.get(call, EntityAddress(EntityKind.SUBSCRIPTION, ("prices", "eu")))
        assert isinstance(eu, SubscriptionProperties)
        assert eu.forward_dead_lettered_messages_to == "orders"

        def rules(subscription: str) -> list[str]:
            return [each.name for each in management.listed(call, EntityKind.RULE, ("prices", subscription))]

        assert [rules(name) for name in ("eu", "us", "all")] == [["by-properties"], ["by-sql"], ["$Default"]]


class TestOurAdditions:
    def test_entity_may_have_additional_fields(self) -> None:
        found = read_queue(
            EnablePartitioning=True,
            MaxSizeInMegabytes=5120,
            AutoDeleteOnIdle="PT10M",
            Status="senddisabled",
            UserMetadata="ours",
            AuthorizationRules=[{"KeyName": "worker", "Rights": ["Send", "listen"], "PrimaryKey": "k"}],
        )
        assert (found.enable_partitioning, found.max_size_in_megabytes) == (True, 5120)
        assert (found.auto_delete_on_idle, found.status) == (timedelta(minutes=10), EntityStatus.SEND_DISABLED)
        assert found.user_metadata == "ours"
        assert found.authorization_rules is not None
        (rule,) = found.authorization_rules
        assert (rule.key_name, rule.rights) == ("worker", [AccessRights.SEND, AccessRights.LISTEN])
        assert (rule.primary_key, rule.secondary_key) == ("k", None)

    def test_several_namespaces_with_ports_and_keys(self) -> None:
        rules = [{"KeyName": "reader", "Rights": ["Listen"], "PrimaryKey": "k", "SecondaryKey": "l"}]
        first, second = read([{"Name": "a", "Port": 5672, "AuthorizationRules": rules}, {"Name": "b", "Port": 0}])
        assert ((first.name, first.port), (second.name, second.port)) == (("a", 5672), ("b", 0))
        assert first.rules[0].secondary_key == "l"

    def test_limits_are_those_of_the_profile_not_of_microsofts_emulator(self) -> None:
        found = read_queue(MaxDeliveryCount=2000, DefaultMessageTimeToLive="P10675199DT2H48M5.4775807S")
        assert (found.max_delivery_count, found.default_message_time_to_live) == (2000, UNLIMITED)
        read([{"Name": "n", "Queues": [{"Name": "q", "Properties": {"MaxSizeInMegabytes": 81920}}]}], PREM_2021)

    def test_names_of_fields_are_case_insensitive(self) -> None:
        assert read_queue(lockduration="PT5S").lock_duration == timedelta(seconds=5)

    def test_null_means_not_given(self) -> None:
        assert read_queue(ForwardTo=None, LockDuration=None).lock_duration == timedelta(minutes=1)

    @pytest.mark.parametrize(("kind", "expected"), [("True", TrueRuleFilter()), ("False", FalseRuleFilter())])
    def test_filters_of_all_and_nothing(self, kind: str, expected: Any) -> None:
        rules = [{"Name": "r", "Properties": {"FilterType": kind}}]
        (found,) = read([{"Name": "n", "Topics": [{"Name": "t", "Subscriptions": [{"Name": "s", "Rules": rules}]}]}])
        rule = by_names(found)["t", "s", "r"].properties
        assert isinstance(rule, RuleProperties)
        assert rule.filter == expected

    async def test_entities_may_forward_to_each_other_in_any_order(self, host: BrokerHost) -> None:
        queues = [{"Name": "a", "Properties": {"ForwardTo": "b"}}, {"Name": "b"}]
        (config,) = read([{"Name": "n", "Queues": queues}])
        make_entities(config, host)
        found = host.namespace.management.get(
            Call(Operation.MANAGE, clock.now()), EntityAddress(EntityKind.QUEUE, ("a",))
        )
        assert isinstance(found, QueueProperties)
        assert found.forward_to == "b"

    async def test_partitioned_entity_that_forwards_keeps_its_size(self, host: BrokerHost) -> None:
        properties = {"ForwardTo": "b", "EnablePartitioning": True, "MaxSizeInMegabytes": 2048}
        (config,) = read([{"Name": "n", "Queues": [{"Name": "a", "Properties": properties}, {"Name": "b"}]}])
        make_entities(config, host)
        entity = host.namespace.directory.get("a")
        assert entity is not None
        assert isinstance(entity.description, QueueProperties)
        assert entity.description.max_size_in_megabytes == 2048 * 16


def properties_of(**properties: Any) -> dict[str, Any]:
    return {"Name": "n", "Queues": [{"Name": "q", "Properties": properties}]}


def rules_of(*rules: Any) -> dict[str, Any]:
    return {"Name": "n", "Topics": [{"Name": "t", "Subscriptions": [{"Name": "s", "Rules": list(rules)}]}]}


QUEUE = "$.UserConfig.Namespaces[0].Queues[0]"
RULE = "$.UserConfig.Namespaces[0].Topics[0].Subscriptions[0].Rules[0]"


class TestMistakes:
    @pytest.mark.parametrize(
        ("namespace", "path", "allowed"),
        [
            ({}, "$.UserConfig.Namespaces[0]", "Name"),
            ({"Name": "a b"}, "$.UserConfig.Namespaces[0].Name", "letters, digits and hyphens"),
            ({"Name": 5}, "$.UserConfig.Namespaces[0].Name", "a string"),
            ({"Name": "n", "Port": 65536}, "$.UserConfig.Namespaces[0].Port", "0 to 65535"),
            ({"Name": "n", "Queue": []}, "$.UserConfig.Namespaces[0].Queue", "Queues"),
            ({"Name": "n", "Queues": {}}, "$.UserConfig.Namespaces[0].Queues", "an array"),
            ({"Name": "n", "Queues": [5]}, QUEUE, "an object"),
            ({"Name": "n", "Queues": [{}]}, QUEUE, "Name"),
            ({"Name": "n", "Queues": [{"Name": "a?"}]}, f"{QUEUE}.Name", "letters, digits"),
            ({"Name": "n", "Queues": [{"Name": 5}]}, f"{QUEUE}.Name", "a string"),
            ({"Name": "n", "Queues": [{"Name": "q", "Subscriptions": []}]}, f"{QUEUE}.Subscriptions", "Properties"),
            ({"Name": "n", "Queues": [{"Name": "q"}, {"Name": "Q"}]}, "$.UserConfig.Namespaces[0].Queues[1]", "rename"),
            (properties_of(LockDuratoin="PT1M"), f"{QUEUE}.Properties.LockDuratoin", "LockDuration"),
            (properties_of(LockDuration="PT6M"), f"{QUEUE}.Properties.LockDuration", "maximum of '5' minutes"),
            (properties_of(LockDuration="soon"), f"{QUEUE}.Properties.LockDuration", "ISO 8601"),
            (properties_of(LockDuration=60), f"{QUEUE}.Properties.LockDuration", "a string"),
            (properties_of(MaxDeliveryCount=0), f"{QUEUE}.Properties.MaxDeliveryCount", "between 1 and"),
            (properties_of(MaxDeliveryCount="3"), f"{QUEUE}.Properties.MaxDeliveryCount", "a whole number"),
            (properties_of(RequiresSession="true"), f"{QUEUE}.Properties.RequiresSession", "true or false"),
            (properties_of(MaxSizeInMegabytes=1500), f"{QUEUE}.Properties.MaxSizeInMegabytes", "1024, 2048"),
            (properties_of(Status="Asleep"), f"{QUEUE}.Properties.Status", "Active"),
            (properties_of(Status="Creating"), f"{QUEUE}.Properties.Status", "Active"),
            (
                properties_of(DuplicateDetectionHistoryTimeWindow="P8D"),
                f"{QUEUE}.Properties.DuplicateDetectionHistoryTimeWindow",
                "7 days",
            ),
            (
                properties_of(AuthorizationRules=[{"KeyName": "k", "Rights": ["Fly"], "PrimaryKey": "x"}]),
                f"{QUEUE}.Properties.AuthorizationRules[0].Rights[0]",
                "Manage, Send, Listen",
            ),
            (
                properties_of(AuthorizationRules=[{"KeyName": "k", "Rights": ["Send"]}]),
                f"{QUEUE}.Properties.AuthorizationRules[0]",
                "PrimaryKey",
            ),
            (rules_of({"Name": "r"}), RULE, "Properties"),
            (rules_of({"Name": "a/b", "Properties": {"FilterType": "True"}}), f"{RULE}.Name", "without '/'"),
            (rules_of({"Name": "r", "Properties": {}}), f"{RULE}.Properties", "FilterType"),
            (rules_of({"Name": "r", "Properties": {"FilterType": "sql"}}), f"{RULE}.Properties.FilterType", "Sql"),
            (rules_of({"Name": "r", "Properties": {"FilterType": "Sql"}}), f"{RULE}.Properties", "SqlFilter"),
            (
                rules_of({"Name": "r", "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "a = ="}}}),
                f"{RULE}.Properties",
                "cannot be used",
            ),
            (
                rules_of({"Name": "r", "Properties": {"FilterType": "Correlation", "CorrelationFilter": {}}}),
                f"{RULE}.Properties",
                "at least one property",
            ),
            (
                rules_of(
                    {"Name": "r", "Properties": {"FilterType": "Correlation", "CorrelationFilter": {"Colour": "red"}}}
                ),
                f"{RULE}.Properties.CorrelationFilter.Colour",
                "ContentType",
            ),
            (
                rules_of(
                    {
                        "Name": "r",
                        "Properties": {"FilterType": "Correlation", "CorrelationFilter": {"Properties": {"a": []}}},
                    }
                ),
                f"{RULE}.Properties.CorrelationFilter.Properties.a",
                "a string, a number",
            ),
        ],
    )
    def test_is_reported_with_file_line_path_and_allowed_values(
        self, namespace: dict[str, Any], path: str, allowed: str
    ) -> None:
        with pytest.raises(ConfigError) as caught:
            read([namespace])
        text = caught.value.message
        assert text.startswith(f"Config.json, line 1: {path} ")
        assert allowed in text
        assert "SubCode" not in text
        assert text.count("Config.json") == 1

    @pytest.mark.parametrize("key", [5550123, "", None])
    def test_no_error_shows_a_key(self, key: Any) -> None:
        rule = {"KeyName": "k", "Rights": ["Send"], "PrimaryKey": key}
        with pytest.raises(ConfigError, match="PrimaryKey") as caught:
            read([properties_of(AuthorizationRules=[rule])])
        assert "5550123" not in caught.value.message

    def test_line_is_that_of_the_value(self) -> None:
        text = MICROSOFT.replace(
            '"LockDuration": "PT1M",\n              "MaxDeliveryCount": 3', '"LockDuration": "PT9M"', 1
        )
        line = next(number for number, each in enumerate(text.split("\n"), start=1) if "PT9M" in each)
        with pytest.raises(ConfigError, match=rf"^Config\.json, line {line}: "):
            read_config(text, "Config.json", STD_2021)

    @pytest.mark.parametrize(
        ("document", "named"),
        [
            ("{}", "UserConfig"),
            ("[]", "an object"),
            ('{"UserConfig": {}}', "Namespaces"),
            ('{"UserConfig": {"Namespaces": []}}', "Namespaces"),
            ('{"UserConfig": {"Namespaces": [{"Name": "a"}, {"Name": "A"}]}}', "rename"),
            ('{"UserConfig": {"Namespaces": [{"Name": "a"}], "Logging": {"Level": 1}}}', "Level"),
            ('{"Userconfig": {"namespaces": [{"name": "a", "Name": "b"}]}}', "twice"),
            ('{"Other": 1}', "UserConfig"),
        ],
    )
    def test_document_that_is_not_a_configuration_is_rejected(self, document: str, named: str) -> None:
        with pytest.raises(ConfigError, match=named):
            read_config(document, "Config.json", STD_2021)

    @pytest.mark.parametrize(
        ("queues", "named"),
        [
            ([{"Name": "a", "Properties": {"ForwardTo": "nowhere"}}], "nowhere"),
        ],
    )
    async def test_entity_that_cannot_be_made_is_named(self, queues: Any, named: str, host: BrokerHost) -> None:
        (config,) = read([{"Name": "n", "Queues": queues}])
        with pytest.raises(ConfigError, match=named) as caught:
            make_entities(config, host)
        assert caught.value.message.startswith(f"Config.json, line 1: {QUEUE} cannot be created: ")
        assert "SubCode" not in caught.value.message


TEXTS: Final = st.none() | st.sampled_from(["", " ", "a"])
VALUES: Final = st.sampled_from(["", "a", 0, 5, -(2**63), 1.5, True, False, datetime(2024, 1, 1, tzinfo=UTC)])
RULES: Final = st.builds(
    RuleProperties,
    st.just("r"),
    st.builds(
        CorrelationRuleFilter,
        **dict.fromkeys(
            [
                "correlation_id",
                "message_id",
                "to",
                "reply_to",
                "label",
                "session_id",
                "reply_to_session_id",
                "content_type",
            ],
            TEXTS,
        ),
        properties=st.dictionaries(st.sampled_from(["x", "y"]), VALUES, min_size=1),
    )
    | st.builds(SqlRuleFilter, st.just("x = @p"), parameters=st.fixed_dictionaries({"@p": VALUES})),
    st.none() | st.builds(SqlRuleAction, st.just("SET x = @q"), parameters=st.fixed_dictionaries({"@q": VALUES})),
)


@given(st.lists(RULES, max_size=2))
def test_rules_are_the_same_again_after_an_export(rules: list[RuleProperties]) -> None:
    rules = [replace(rule, name=f"r{number}") for number, rule in enumerate(rules)]
    subscription = EntityAddress(EntityKind.SUBSCRIPTION, ("t", "s"))
    described: dict[EntityAddress, EntityProperties] = {
        EntityAddress(EntityKind.TOPIC, ("t",)): TopicProperties("t"),
        subscription: SubscriptionProperties("s"),
        **{EntityAddress(EntityKind.RULE, ("t", "s", rule.name)): rule for rule in rules},
    }
    text, left_out = write_entities(described)
    (read,) = read_exchanged(text, "entities.json")
    again = by_names(read)
    assert left_out == []
    assert again[subscription.names].replaces_default
    assert {names[2]: each.properties for names, each in again.items() if len(names) == 3} == {
        rule.name: rule for rule in rules
    }
