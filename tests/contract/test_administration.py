from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sbclient import (
    InvalidOperationError,
    MessagingEntityAlreadyExistsError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusClient,
    ServiceBusMessage,
    clock,
)
from sbclient.entities import (
    SETTINGS,
    UNLIMITED,
    AccessRights,
    AuthorizationRule,
    CorrelationRuleFilter,
    EntityKind,
    EntityStatus,
    FalseRuleFilter,
    RuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
    settings_of,
)
from tests.contract.kinds import NamespaceKind
from tests.descriptions import another_value

QUEUE: dict[str, Any] = {
    "auto_delete_on_idle": timedelta(hours=1),
    "dead_lettering_on_message_expiration": True,
    "default_message_time_to_live": timedelta(minutes=30),
    "duplicate_detection_history_time_window": timedelta(minutes=5),
    "lock_duration": timedelta(seconds=30),
    "max_delivery_count": 7,
    "max_size_in_megabytes": 2048,
    "requires_duplicate_detection": True,
    "requires_session": True,
    "user_metadata": "kept & <safe>",
}
SUBSCRIPTION: dict[str, Any] = {
    "lock_duration": timedelta(seconds=45),
    "requires_session": True,
    "default_message_time_to_live": timedelta(minutes=20),
    "dead_lettering_on_message_expiration": True,
    "dead_lettering_on_filter_evaluation_exceptions": False,
    "max_delivery_count": 3,
    "user_metadata": "m",
}


async def test_get_queue_returns_the_created_description(kind: NamespaceKind) -> None:
    queue = await kind.queue(**QUEUE)
    described = await kind.administration.get_queue(queue)
    assert {name: getattr(described, name) for name in QUEUE} == QUEUE
    assert (described.name, described.status) == (queue, EntityStatus.ACTIVE)


async def test_unset_properties_get_the_default_of_the_service(kind: NamespaceKind) -> None:
    described = await kind.administration.get_queue(await kind.queue())
    assert described.default_message_time_to_live == UNLIMITED
    assert described.auto_delete_on_idle == UNLIMITED
    assert described.lock_duration == timedelta(minutes=1)
    assert (described.max_delivery_count, described.requires_session) == (10, False)
    assert (described.forward_to, described.user_metadata) == (None, None)


def without_keys(value: Any) -> Any:
    """Return a value without the keys that the service makes."""
    return [(rule.key_name, rule.rights) for rule in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("entity", "setting"),
    [
        (entity, name)
        for entity in (EntityKind.QUEUE, EntityKind.TOPIC, EntityKind.SUBSCRIPTION)
        for name in settings_of(entity)
        if not SETTINGS[name].is_answer and name != "max_message_size_in_kilobytes"  # Premium alone can change it
    ],
)
async def test_every_setting_is_created_and_updated_as_it_is_given(
    kind: NamespaceKind, entity: EntityKind, setting: str
) -> None:
    lacks = f"name {setting} in LACKING of transport/sdk/entities.py if azure-servicebus lacks it"
    administration, outer = kind.administration, await kind.topic()
    create, get, update, delete = (
        getattr(administration, f"{each}_{entity}") for each in ("create", "get", "update", "delete")
    )
    name = kind.new_name(entity)
    names = (outer, name) if entity is EntityKind.SUBSCRIPTION else (name,)
    await create(*names)
    before = await get(*names)
    value = another_value(entity, setting, getattr(before, setting), await kind.queue())
    assert without_keys(getattr(before, setting)) != without_keys(value)
    if not SETTINGS[setting].is_fixed:
        await update(*names[:-1], replace(before, **{setting: value}))
        assert without_keys(getattr(await get(*names), setting)) == without_keys(value), lacks
    await delete(*names)
    if setting != "status":  # the service ignores it at a creation
        created = await create(*names, **{setting: value})
        assert without_keys(created[setting]) == without_keys(value)
        assert without_keys(getattr(await get(*names), setting)) == without_keys(value)
        await delete(*names)


async def test_get_distinguishes_queues_and_topics(kind: NamespaceKind) -> None:
    administration = kind.administration
    queue, topic = await kind.queue(), await kind.topic()
    for calls in (
        administration.get_topic(queue),
        administration.get_topic_runtime_properties(queue),
        administration.delete_topic(queue),
        administration.get_queue(topic),
        administration.get_queue_runtime_properties(topic),
        administration.delete_queue(topic),
    ):
        with pytest.raises(MessagingEntityNotFoundError):
            await calls
    assert (await administration.get_queue(queue)).name == queue
    assert (await administration.get_topic(topic)).name == topic


async def test_update_queue_changes_a_queue(kind: NamespaceKind) -> None:
    administration = kind.administration
    queue, target = await kind.queue(), await kind.queue()
    described = await administration.get_queue(queue)
    described.max_delivery_count = 4
    await administration.update_queue(described, forward_dead_lettered_messages_to=target, user_metadata="new")
    after = await administration.get_queue(queue)
    assert (after.max_delivery_count, after.forward_dead_lettered_messages_to, after.user_metadata) == (
        4,
        target,
        "new",
    )
    assert after.default_message_time_to_live == UNLIMITED
    after.forward_dead_lettered_messages_to = None
    await administration.update_queue(after)
    assert (await administration.get_queue(queue)).forward_dead_lettered_messages_to is None


async def test_a_disabled_queue_rejects_sends_until_it_is_enabled(kind: NamespaceKind) -> None:
    administration = kind.administration
    queue = await kind.queue()
    await administration.update_queue(await administration.get_queue(queue), status=EntityStatus.SEND_DISABLED)
    assert (await administration.get_queue(queue)).status is EntityStatus.SEND_DISABLED
    await administration.update_queue(await administration.get_queue(queue), status=EntityStatus.ACTIVE)
    async with kind.plain.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("x"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"lock_duration": timedelta(minutes=6)},
        {"duplicate_detection_history_time_window": timedelta(days=25), "requires_duplicate_detection": True},
        {"max_delivery_count": 0},
    ],
)
async def test_a_value_out_of_range_is_rejected(kind: NamespaceKind, wrong: dict[str, Any]) -> None:
    name = kind.new_name("queue")
    with pytest.raises(InvalidOperationError):
        await kind.administration.create_queue(name, **wrong)
    with pytest.raises(MessagingEntityNotFoundError):
        await kind.administration.get_queue(name)


async def test_fixed_properties_cannot_be_changed(kind: NamespaceKind) -> None:
    described = await kind.administration.get_queue(await kind.queue())
    with pytest.raises(InvalidOperationError):
        await kind.administration.update_queue(described, requires_session=True)


async def test_existing_and_missing_entities_raise_different_errors(kind: NamespaceKind) -> None:
    administration = kind.administration
    queue = await kind.queue()
    missing = kind.new_name("queue")
    with pytest.raises(MessagingEntityAlreadyExistsError):
        await administration.create_queue(queue)
    for call in (administration.get_queue, administration.delete_queue, administration.get_queue_runtime_properties):
        with pytest.raises(MessagingEntityNotFoundError):
            await call(missing)
    with pytest.raises(MessagingEntityNotFoundError):
        await administration.create_subscription(missing, "s")


async def test_queues_and_topics_are_listed_by_name(kind: NamespaceKind) -> None:
    queues = [await kind.queue() for _ in range(3)]
    topic = await kind.topic("b", "a")
    listed = [queue.name async for queue in kind.administration.list_queues()]
    assert set(queues) <= set(listed)
    assert listed == sorted(listed, key=str.casefold)
    assert topic in [each.name async for each in kind.administration.list_topics()]
    assert [each.name async for each in kind.administration.list_subscriptions(topic)] == ["a", "b"]


async def test_names_may_be_paths(kind: NamespaceKind) -> None:
    name = f"{kind.new_name('folder')}/sub/queue"
    await kind.administration.create_queue(name)
    async with kind.plain.get_queue_sender(name) as sender:
        await sender.send_messages(ServiceBusMessage("x"))
    assert (await kind.administration.get_queue_runtime_properties(name)).active_message_count == 1
    assert name in [queue.name async for queue in kind.administration.list_queues()]
    await kind.administration.delete_queue(name)


async def test_runtime_properties_count_the_messages(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    async with kind.plain.get_queue_sender(queue) as sender, kind.plain.get_queue_receiver(queue) as receiver:
        await sender.send_messages([ServiceBusMessage(str(number)) for number in range(3)])
        (message,) = await receiver.receive_messages(1, max_wait_time=kind.patience_s)
        await receiver.dead_letter_message(message)
        runtime = await kind.administration.get_queue_runtime_properties(queue)
    assert (runtime.name, runtime.active_message_count, runtime.dead_letter_message_count) == (queue, 2, 1)
    assert runtime.total_message_count == 3
    assert abs(runtime.created_at_utc.timestamp() - clock.now()) < 60.0


async def test_get_subscription_returns_the_created_description(kind: NamespaceKind) -> None:
    topic = await kind.topic()
    await kind.administration.create_subscription(topic, "s", **SUBSCRIPTION)
    described = await kind.administration.get_subscription(topic, "s")
    assert {name: getattr(described, name) for name in SUBSCRIPTION} == SUBSCRIPTION
    await kind.administration.update_subscription(topic, described, max_delivery_count=5)
    assert (await kind.administration.get_subscription(topic, "s")).max_delivery_count == 5
    await kind.administration.delete_subscription(topic, "s")
    with pytest.raises(MessagingEntityNotFoundError):
        await kind.administration.get_subscription(topic, "s")


async def test_get_rule_returns_the_created_description(kind: NamespaceKind) -> None:
    topic = await kind.topic("s")
    administration = kind.administration
    filters: dict[str, RuleFilter] = {
        "correlation": CorrelationRuleFilter(label="l", session_id="9", properties={"n": 5, "t": "x", "b": True}),
        "none": FalseRuleFilter(),
        "sql": SqlRuleFilter("n > @n AND t = 'a''b'", {"@n": 5}),
        "all": TrueRuleFilter(),
    }
    action = SqlRuleAction("SET n = 7")
    for name, rule_filter in filters.items():
        await administration.create_rule(topic, "s", name, filter=rule_filter, action=action)
    rules = {rule.name: rule async for rule in administration.list_rules(topic, "s")}
    assert {name: rules[name].filter for name in filters} == filters
    assert rules["$Default"].filter == TrueRuleFilter()
    assert all(rules[name].action == action for name in filters)
    sql = await administration.get_rule(topic, "s", "sql")
    await administration.update_rule(topic, "s", sql, filter=SqlRuleFilter("n = 1"), action=None)
    after = await administration.get_rule(topic, "s", "sql")
    assert (after.filter, after.action) == (SqlRuleFilter("n = 1"), None)
    await administration.delete_rule(topic, "s", "sql")
    with pytest.raises(MessagingEntityNotFoundError):
        await administration.get_rule(topic, "s", "sql")


async def test_authorization_rules_have_keys_that_no_repr_shows(kind: NamespaceKind) -> None:
    rule = AuthorizationRule(
        key_name="Sender", rights=[AccessRights.SEND], primary_key="cHJpbWFyeQ==", secondary_key="c2Vjb25kYXJ5"
    )
    queue = await kind.queue(authorization_rules=[rule])
    described = await kind.administration.get_queue(queue)
    (kept,) = described.authorization_rules or []
    assert (kept.key_name, kept.rights, kept.primary_key) == ("Sender", [AccessRights.SEND], "cHJpbWFyeQ==")
    assert "cHJpbWFyeQ" not in repr(described)


async def test_the_namespace_is_described(kind: NamespaceKind) -> None:
    described = await kind.administration.get_namespace_properties()
    assert described.name
    assert described.messaging_sku


# -- keys --------------------------------------------------------------------------------------------------------------


def with_key(connection_string: str, name: str, key: str) -> str:
    kept = [part for part in connection_string.split(";") if not part.startswith("SharedAccessKey")]
    return ";".join([*filter(None, kept), f"SharedAccessKeyName={name}", f"SharedAccessKey={key}"])


@pytest.mark.needs("keys")
async def test_a_wrong_key_raises_without_showing_it(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    wrong = with_key(kind.connection_string(), "RootManageSharedAccessKey", "bm90IHRoZSBrZXk=")
    async with ServiceBusClient.from_connection_string(wrong, **kind.client_options()) as client:
        with pytest.raises(ServiceBusAuthenticationError) as caught:
            await client.get_queue_sender(queue).send_messages(ServiceBusMessage("x"))
        assert "bm90IHRoZSBrZXk" not in f"{caught.value!r} {caught.value} {client!r}"
        with pytest.raises(ServiceBusAuthenticationError):
            await client.administration.get_queue(queue)
    async with kind.plain.get_queue_receiver(queue) as receiver:
        assert await receiver.peek_messages(1) == []


@pytest.mark.needs("keys")
async def test_key_allows_its_rights(kind: NamespaceKind) -> None:
    rule = AuthorizationRule(
        key_name="Listener", rights=[AccessRights.LISTEN], primary_key="bGlzdGVu", secondary_key="bGlzdGVuMg=="
    )
    queue = await kind.queue(authorization_rules=[rule])
    text = with_key(kind.connection_string(), "Listener", "bGlzdGVu")
    async with ServiceBusClient.from_connection_string(text, **kind.client_options()) as client:
        with pytest.raises(ServiceBusAuthorizationError):
            await client.get_queue_sender(queue).send_messages(ServiceBusMessage("x"))
        async with client.get_queue_receiver(queue) as receiver:
            assert await receiver.receive_messages(1, max_wait_time=kind.moment_s) == []
