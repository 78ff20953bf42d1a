"""The control API for entities: create, show, change and delete them, with settings as text."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sbclient.broker.faults import Fault, FaultKind
from sbclient.emulator.context import NamespaceContext
from sbclient.entities import EntityKind
from sbclient.hosting.host import BrokerHost
from tests.emulator.amqp.client import create
from tests.emulator.control.scene import Control

EU = "prices/Subscriptions/eu"


def new(kind: str, *names: str, **settings: Any) -> dict[str, Any]:
    return {"kind": kind, "names": list(names), "settings": settings}


def description(host: BrokerHost, path: str) -> Any:
    entity = host.namespace.directory.get(path)
    assert entity is not None
    return entity.description


async def test_an_entity_of_each_kind_is_created_with_its_settings(control: Control, host: BrokerHost) -> None:
    made = await control.ask("POST", "entities", new("queue", "orders", lock_duration="30s", max_delivery_count=3))
    assert (made["kind"], made["names"], made["path"]) == ("queue", ["orders"], "orders")
    assert (made["settings"]["lock_duration"], made["settings"]["max_delivery_count"]) == ("30 s", "3")
    assert description(host, "orders").lock_duration == timedelta(seconds=30)
    await control.ask("POST", "entities", new("topic", "prices", enable_partitioning=True))
    assert description(host, "prices").enable_partitioning
    await control.ask("POST", "entities", new("subscription", "prices", "eu", forward_to="orders"))
    assert description(host, EU).forward_to == "orders"
    rule = await control.ask(
        "POST", "entities", new("rule", "prices", "eu", "cheap", sql="price < 10", action="SET a=1")
    )
    assert rule["settings"] == {"sql": "price < 10", "action": "SET a=1"}
    rule = await control.ask("POST", "entities", new("rule", "prices", "eu", "irish", **{"property.country": "IE"}))
    assert rule["settings"] == {"property.country": "IE", "action": ""}


async def test_shown_settings_can_be_sent_back(control: Control, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "orders", requires_session=True, user_metadata="of the shop")
    before = description(host, "orders")
    shown = await control.ask("GET", "entities?entity=ORDERS")
    assert shown["settings"]["default_message_time_to_live"] == "unlimited"
    assert shown["fixed"] == ["enable_partitioning", "requires_duplicate_detection", "requires_session"]
    await control.ask("PUT", "entities?entity=orders", {"settings": shown["settings"]})
    assert description(host, "orders") == before


async def test_a_change_keeps_the_other_settings(control: Control, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "other")
    create(host, EntityKind.QUEUE, "orders", max_delivery_count=5, forward_to="other")
    await control.ask("PUT", "entities?entity=orders", {"settings": {"lock_duration": "20 s", "forward_to": ""}})
    changed = description(host, "orders")
    assert (changed.lock_duration, changed.max_delivery_count) == (timedelta(seconds=20), 5)
    assert changed.forward_to is None


async def test_rules_are_changed_and_deleted(control: Control, host: BrokerHost) -> None:
    create(host, EntityKind.TOPIC, "prices")
    await control.ask("POST", "entities", new("subscription", "prices", "eu"))
    target = f"entities?entity={EU.replace('/', '%2F')}&rule=$default".replace("%2F", "/")
    assert (await control.ask("GET", target))["settings"] == {"sql": "1=1", "action": ""}
    changed = await control.ask("PUT", target, {"settings": {"label": "new", "property.price:": "5"}})
    assert changed["settings"] == {"label": "new", "property.price:": "5", "action": ""}
    assert (await control.ask("DELETE", target)) == {"deleted": EU, "kind": "rule"}
    await control.ask("GET", target, status=404)


async def test_a_topic_is_deleted_with_its_subscriptions(
    control: Control, host: BrokerHost, context: NamespaceContext
) -> None:
    create(host, EntityKind.TOPIC, "prices")
    await control.ask("POST", "entities", new("subscription", "prices", "eu"))
    events = context.events.subscribe()
    await control.ask("DELETE", "entities?entity=prices")
    assert list(host.namespace.directory.all()) == []
    assert [(each["event"], each["path"]) for each in events.take_all()] == [("entity.deleted", "prices")]
    await control.ask("DELETE", "entities?entity=prices", status=404)


@pytest.mark.parametrize(
    ("said", "status", "text"),
    [
        (new("queue", "orders"), 409, "The messaging entity 'orders' already exists"),
        (new("queue", "a b"), 400, "'a b' cannot name a queue: use letters, digits"),
        (new("queue", ""), 400, "the name of the queue is empty: give one"),
        (new("queue", "q", lock_duration="1s"), 400, "lock_duration of q is 0:00:01: it must be between"),
        (new("queue", "q", lock_duration="soon"), 400, "lock_duration is 'soon': it must be a duration"),
        (new("queue", "q", colour="red"), 400, "a queue has no setting 'colour'"),
        (new("queue", "q", forward_to="gone"), 404, "q cannot forward to 'gone', which is not a queue or topic"),
        (new("rule", "prices", "eu"), 400, "a rule has a list of 3, each text"),
        (new("river", "r"), 400, "kind is 'river': give one of queue, topic, subscription, rule"),
        ({"kind": "queue", "names": ["q"], "settings": []}, 400, "settings is not an object"),
    ],
)
async def test_an_error_names_the_setting_and_the_remedy(
    control: Control, host: BrokerHost, said: Any, status: int, text: str
) -> None:
    create(host, EntityKind.QUEUE, "orders")
    refused = await control.ask("POST", "entities", said, status=status)
    assert text in refused["error"]
    assert "SubCode" not in refused["error"]


async def test_a_fixed_setting_cannot_be_changed(control: Control, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "orders")
    said = {"settings": {"requires_session": True}}
    refused = await control.ask("PUT", "entities?entity=orders", said, status=400)
    assert refused["error"].startswith("The value for the RequiresSession property of an existing Queue cannot be")


async def test_faults_affect_changes_but_not_reads(control: Control, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "orders")
    host.inject(Fault(FaultKind.DOWN))
    refused = await control.ask("DELETE", "entities?entity=orders", status=400)
    assert "contoso refuses the connection: it is down" in refused["error"]
    assert (await control.ask("GET", "entities?entity=orders"))["path"] == "orders"
