"""Profiles, descriptions, management and limits."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sbclient.broker.faults import FaultKind, Operation
from sbclient.broker.profile import BASIC_2021, PREM_2017, PREM_2021, PROFILES, STD_2021, Profile, profile_of
from sbclient.entities import (
    NEVER,
    SETTINGS,
    AccessRights,
    AuthorizationRule,
    EntityAddress,
    EntityAvailabilityStatus,
    EntityKind,
    EntityStatus,
    MessagingSku,
    QueueProperties,
    RuleProperties,
    SubscriptionProperties,
    TopicProperties,
)
from sbclient.errors import (
    InvalidOperationError,
    MessageSizeExceededError,
    MessagingEntityAlreadyExistsError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusConnectionError,
    ServiceBusInternalError,
    ServiceBusQuotaExceededError,
)
from tests.broker.driver import (
    DEAD_LETTER,
    KEYS,
    NO_LIFE,
    START,
    Driver,
    address,
    at,
    bodies,
    message,
    seconds,
    topic_address,
)

MINUTES_5 = timedelta(minutes=5)
ALL_RIGHTS = [AccessRights.MANAGE, AccessRights.SEND, AccessRights.LISTEN]


# ---------------------------------------------------------------------- partitioning, sizes, counts of entities


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_the_flag_enables_partitioning(broker: Driver, kind: str) -> None:
    made = (
        broker.queue("a", enable_partitioning=True) if kind == "queue" else broker.topic("a", enable_partitioning=True)
    )
    assert made.enable_partitioning is True
    assert broker.namespace.directory.find("a")[0].is_partitioned


@pytest.mark.parametrize(("version", "is_fit"), [("2013-08", False), ("2013-10", True), ("2021-05", True)])
def test_the_flag_needs_its_api_version(broker: Driver, version: str, is_fit: bool) -> None:
    def create(is_partitioned: bool, name: str) -> None:
        broker.management.create(
            broker.call(Operation.MANAGE),
            address(name),
            QueueProperties(name, enable_partitioning=is_partitioned),
            api_version=version,
        )

    create(False, "plain")
    if is_fit:
        create(True, "q")
    else:
        with pytest.raises(InvalidOperationError):
            create(True, "q")


@pytest.mark.parametrize("field", ["enable_partitioning", "requires_session", "requires_duplicate_detection"])
@pytest.mark.parametrize("was", [False, True])
def test_some_flags_are_set_at_creation_only(broker: Driver, field: str, was: bool) -> None:
    flag: dict[str, Any] = {field: was}
    description = broker.queue(**flag)
    changed = replace(description, **{**flag, field: not was})
    with pytest.raises(InvalidOperationError, match="40000"):
        broker.update(address("q"), changed)
    assert getattr(broker.get(address("q")), field) is was
    left_out = broker.update(address("q"), replace(description, **{**flag, field: None}))
    assert getattr(left_out, field) is was


def test_profile_is_selected_by_its_name() -> None:
    assert {name: profile_of(name).name for name in PROFILES} == {name: name for name in PROFILES}


@pytest.mark.deviation("broker.premium-partitions")
def test_unknown_profile_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(InvalidOperationError, match=r"'std-2015' .* basic-2021, std-2021, prem-2017, prem-2021$"):
        profile_of("std-2015")


def test_premium_2017_is_always_partitioned_and_has_no_large_messages() -> None:
    assert Driver(PREM_2021).queue(max_message_size_in_kilobytes=2048).max_message_size_in_kilobytes == 2048
    with pytest.raises(InvalidOperationError, match="prem-2017 has 1024 only"):
        Driver(PREM_2017).queue(max_message_size_in_kilobytes=2048)


@pytest.mark.deviation("broker.partitioning-default")
def test_in_the_standard_tier_entities_are_plain_by_default() -> None:
    broker = Driver(STD_2021)
    assert broker.queue().enable_partitioning is False
    assert broker.queue("p", enable_partitioning=True).enable_partitioning is True


@pytest.mark.deviation("broker.partitioning-default")
@pytest.mark.parametrize("asked", [None, False, True])
def test_in_premium_2017_every_entity_is_partitioned(asked: bool | None) -> None:
    broker = Driver(PREM_2017)
    assert broker.queue(enable_partitioning=asked).enable_partitioning is True
    assert broker.topic(enable_partitioning=asked).enable_partitioning is True


@pytest.mark.parametrize("sku", [MessagingSku.BASIC, MessagingSku.STANDARD])
def test_in_2021_basic_and_standard_take_the_flag(sku: MessagingSku) -> None:
    assert Driver(replace(STD_2021, sku=sku)).partitioned().enable_partitioning is True


def test_in_premium_2021_the_flag_has_no_effect() -> None:
    broker = Driver(PREM_2021)
    for made in (broker.queue("plain"), broker.partitioned()):
        assert made.enable_partitioning is False
        assert len(broker.body(made.name).fragments) == 1


def test_every_profile_takes_the_flag_in_our_interface() -> None:
    for profile in PROFILES.values():
        Driver(profile).partitioned()


def test_standard_sizes() -> None:
    broker = Driver(STD_2021)
    assert broker.queue().max_size_in_megabytes == 1024
    for size in (1024, 2048, 3072, 4096, 5120):
        assert broker.queue(f"q{size}", max_size_in_megabytes=size).max_size_in_megabytes == size
    for size in (1023, 1025, 6144, 10240):
        with pytest.raises(InvalidOperationError, match="40000"):
            broker.queue("bad", max_size_in_megabytes=size)


@pytest.mark.parametrize("size", [None, 1024, 5120])
def test_sixteen_fragments_for_every_size(broker: Driver, size: int | None) -> None:
    broker.partitioned(max_size_in_megabytes=size)
    assert len(broker.body().fragments) == 16


@pytest.mark.parametrize(("asked", "shown"), [(None, 16384), (1024, 16384), (3072, 49152), (5120, 81920)])
def test_the_maximum_is_the_size_times_sixteen(broker: Driver, asked: int | None, shown: int) -> None:
    broker.partitioned(max_size_in_megabytes=asked)
    broker.topic(enable_partitioning=True, max_size_in_megabytes=asked)
    assert broker.get(address("q")).max_size_in_megabytes == shown
    assert broker.get(topic_address("t")).max_size_in_megabytes == shown
    assert broker.body().policy.max_size_bytes == shown // 16 * 2**20


def test_the_shown_maximum_may_be_given_back(broker: Driver) -> None:
    description = broker.partitioned(max_size_in_megabytes=2048)
    assert broker.update(address("q"), description).max_size_in_megabytes == 32768
    assert broker.update(address("q"), replace(description, max_size_in_megabytes=5120)).max_size_in_megabytes == 81920
    with pytest.raises(InvalidOperationError):
        broker.update(address("q"), replace(description, max_size_in_megabytes=16384 + 16))
    with pytest.raises(InvalidOperationError):
        broker.update(address("q"), replace(description, max_size_in_megabytes=16385))


@pytest.mark.parametrize("profile", [PREM_2017, PREM_2021])
def test_premium_sizes(profile: Profile) -> None:
    broker = Driver(profile)
    fragments = len((broker.queue(), broker.body().fragments)[1])
    for gigabytes in (1, 2, 3, 4, 5, 10, 20, 40, 80):
        made = broker.queue(f"q{gigabytes}", max_size_in_megabytes=gigabytes * 1024)
        assert made.max_size_in_megabytes == gigabytes * 1024 * fragments
    with pytest.raises(InvalidOperationError):
        broker.queue("bad", max_size_in_megabytes=6 * 1024)


def test_two_fragments_in_premium_2017() -> None:
    broker = Driver(PREM_2017)
    broker.queue()
    assert len(broker.body().fragments) == 2


def test_a_hundred_partitioned_entities_and_no_more() -> None:
    broker = Driver(replace(STD_2021, fragment_count=2))
    for number in range(99):
        broker.partitioned(f"p{number}")
    broker.topic("p99", enable_partitioning=True)
    with pytest.raises(ServiceBusQuotaExceededError, match="40300"):
        broker.partitioned("p100")
    broker.queue("plain")
    broker.delete(address("p0"))
    broker.partitioned("p100")


def test_each_entity_counts_as_one_toward_the_namespace() -> None:
    broker = Driver(replace(STD_2021, max_entities=4))
    broker.partitioned("a")
    broker.topic("b")
    broker.subscription("b", "s")
    broker.queue("c")
    broker.queue("d")
    with pytest.raises(ServiceBusQuotaExceededError):
        broker.queue("e")
    with pytest.raises(ServiceBusQuotaExceededError):
        broker.partitioned("e")
    assert STD_2021.max_entities == 10_000


def test_premium_has_no_such_limits() -> None:
    assert (PREM_2017.max_entities, PREM_2017.max_partitioned_entities) == (None, None)
    broker = Driver(PREM_2017)
    for number in range(101):
        broker.queue(f"q{number}")


# ---------------------------------------------------------------------- management and fragments that are down


def test_an_update_reaches_every_fragment(broker: Driver) -> None:
    description = broker.partitioned()
    broker.update(address("q"), replace(description, lock_duration=seconds(7)))
    for key in KEYS:
        broker.send("q", message(partition_key=key))
    assert {each.locked_until_utc for each in broker.receive("q", 16)} == {at(START + 7)}


def test_a_larger_size_applies_to_messages_waiting_for_transfer() -> None:
    broker = Driver(replace(STD_2021, sizes_in_megabytes=(1, 2)))
    description = broker.queue("via", max_size_in_megabytes=1)
    broker.queue("end", max_size_in_megabytes=1)
    broker.down("end")
    for _ in range(5):
        broker.send("end", message("x" * 200_000), via="via")
    with pytest.raises(ServiceBusQuotaExceededError):
        broker.send("end", message("x" * 200_000), via="via")
    broker.update(address("via"), replace(description, max_size_in_megabytes=2))
    broker.send("end", message("x" * 200_000), via="via")
    assert broker.counts("via").transfer_message_count == 6


def test_a_larger_size_of_a_topic_reaches_its_subscriptions() -> None:
    broker = Driver(replace(STD_2021, sizes_in_megabytes=(1, 2)))
    description = broker.topic(max_size_in_megabytes=1)
    broker.subscription(requires_session=True, lock_duration=seconds(7))
    for _ in range(5):
        broker.send("t", message("x" * 200_000, session_id="a"))
    with pytest.raises(ServiceBusQuotaExceededError):
        broker.send("t", message("x" * 200_000, session_id="a"))
    broker.update(topic_address("t"), replace(description, max_size_in_megabytes=2))
    broker.send("t", message("x" * 200_000, session_id="a"))
    lock = broker.held("t/Subscriptions/s", "a")
    assert lock.locked_until == START + 7
    broker.set_state("t/Subscriptions/s", lock, b"x" * 1_000)


def test_a_deleted_subscription_gives_its_bytes_back_to_its_topic() -> None:
    broker = Driver(replace(STD_2021, sizes_in_megabytes=(1,)))
    broker.topic(max_size_in_megabytes=1)
    for _ in range(3):
        broker.subscription(requires_session=True)
        for _ in range(4):
            broker.send("t", message("x" * 200_000, session_id="a", time_to_live=seconds(60)))
        lock = broker.held("t/Subscriptions/s", "a")
        broker.set_state("t/Subscriptions/s", lock, b"x" * 100_000)
        (first,) = broker.receive("t/Subscriptions/s", lock=lock)
        broker.settle("t/Subscriptions/s", first, how=DEAD_LETTER, lock=lock)
        broker.delete(address("t/Subscriptions/s"))
    topic = broker.management.runtime(broker.call(Operation.MANAGE), topic_address("t"))
    assert topic.size_in_bytes == 0


@pytest.mark.deviation("broker.partial-management")
@pytest.mark.parametrize("kind", [FaultKind.DOWN, FaultKind.HANG])
def test_management_is_refused_whole_while_a_fragment_is_down(broker: Driver, kind: FaultKind) -> None:
    description = broker.partitioned()
    fault = broker.down("q", 9, kind=kind)
    other = broker.down("new", 0, kind=kind)
    with pytest.raises(ServiceBusInternalError):
        broker.update(address("q"), replace(description, max_delivery_count=3))
    with pytest.raises(ServiceBusInternalError):
        broker.delete(address("q"))
    with pytest.raises(ServiceBusInternalError):
        broker.queue("new")
    assert broker.get(address("q")).max_delivery_count == 10
    broker.heal(fault)
    broker.heal(other)
    assert broker.update(address("q"), replace(description, max_delivery_count=3)).max_delivery_count == 3
    broker.queue("new")
    broker.delete(address("q"))


def test_rules_cannot_change_while_a_fragment_is_down(broker: Driver) -> None:
    broker.topic(enable_partitioning=True)
    broker.subscription()
    broker.down("t", 3)
    with pytest.raises(ServiceBusInternalError):
        broker.rule("t/Subscriptions/s", "r")


def test_counts_are_sums_over_the_fragments(broker: Driver) -> None:
    broker.queue("end")
    broker.partitioned(forward_dead_lettered_messages_to=None)
    for index in range(8):
        broker.send("q", message(partition_key=KEYS[index]))
    broker.settle("q", broker.one(), how=DEAD_LETTER)
    broker.schedule("q", message(scheduled_enqueue_time_utc=at(START + 60)))
    counts = broker.counts("q")
    assert (counts.active_message_count, counts.dead_letter_message_count, counts.scheduled_message_count) == (7, 1, 1)
    assert (counts.total_message_count, counts.transfer_message_count) == (9, 0)
    assert counts.size_in_bytes == sum(fragment.usage.size_bytes for fragment in broker.body().fragments) > 0


def test_transfer_counts(broker: Driver) -> None:
    broker.queue("end")
    broker.queue("dead", requires_session=True)
    broker.partitioned()
    broker.down("end", kind=FaultKind.DOWN, operations=[Operation.SEND])
    for key in KEYS[:3]:
        broker.send("end", message(), via="q", via_partition_key=key)
    counts = broker.counts("q")
    assert (counts.transfer_message_count, counts.transfer_dead_letter_message_count) == (3, 0)
    broker.delete(address("end"))
    broker.heal()
    counts = broker.counts("q")
    assert (counts.transfer_message_count, counts.transfer_dead_letter_message_count) == (0, 3)


def test_a_lost_fragment_makes_the_entity_limited(broker: Driver) -> None:
    broker.partitioned()
    assert broker.get(address("q")).availability_status is EntityAvailabilityStatus.AVAILABLE
    fault = broker.down("q", 4)
    assert broker.get(address("q")).availability_status is EntityAvailabilityStatus.LIMITED
    broker.heal(fault)
    assert broker.get(address("q")).availability_status is EntityAvailabilityStatus.AVAILABLE


def test_a_subscription_is_limited_with_its_topic(broker: Driver) -> None:
    broker.topic(enable_partitioning=True)
    broker.subscription()
    broker.down("t", 4)
    assert broker.get(address("t/Subscriptions/s")).availability_status is EntityAvailabilityStatus.LIMITED


def test_counts_of_a_limited_entity_cover_reachable_fragments(broker: Driver) -> None:
    broker.partitioned()
    for key in KEYS:
        broker.send("q", message(partition_key=key))
    broker.down("q", 0, 1, 2)
    assert broker.counts("q").active_message_count == 13
    broker.heal()
    assert broker.counts("q").active_message_count == 16


def test_management_of_a_namespace_that_is_down_fails(broker: Driver) -> None:
    broker.queue()
    broker.down(None)
    call = broker.call(Operation.MANAGE)
    for attempt in (
        lambda: broker.queue("other"),
        lambda: broker.get(address("q")),
        lambda: broker.update(address("q"), QueueProperties("q")),
        lambda: broker.delete(address("q")),
        lambda: broker.counts("q"),
        lambda: broker.management.listed(call, EntityKind.QUEUE),
        lambda: broker.management.namespace(call),
    ):
        with pytest.raises(ServiceBusConnectionError):
            attempt()


# ---------------------------------------------------------------------- descriptions


def test_description_is_returned_complete(broker: Driver) -> None:
    made = broker.queue()
    assert made == QueueProperties(
        "q",
        authorization_rules=[],
        auto_delete_on_idle=NO_LIFE,
        dead_lettering_on_message_expiration=False,
        default_message_time_to_live=NO_LIFE,
        duplicate_detection_history_time_window=timedelta(minutes=10),
        enable_batched_operations=True,
        enable_express=False,
        enable_partitioning=False,
        lock_duration=timedelta(seconds=60),
        max_delivery_count=10,
        max_size_in_megabytes=1024,
        requires_duplicate_detection=False,
        requires_session=False,
        status=EntityStatus.ACTIVE,
        max_message_size_in_kilobytes=256,
        availability_status=EntityAvailabilityStatus.AVAILABLE,
    )
    topic = broker.topic()
    assert (topic.support_ordering, topic.filtering_messages_before_publishing) == (True, False)
    assert broker.topic("p", enable_partitioning=True).support_ordering is False
    subscription = broker.subscription()
    assert subscription.dead_lettering_on_filter_evaluation_exceptions is True


@pytest.mark.parametrize("name", [name for name, each in SETTINGS.items() if each.default is not None])
def test_an_entity_of_a_release_without_a_setting_has_its_default(broker: Driver, name: str) -> None:
    earlier = Driver()
    for description in (earlier.queue(), earlier.topic(), earlier.subscription()):
        topic = "t" if isinstance(description, SubscriptionProperties) else None
        unknown: dict[str, Any] = {name: None} if name in description else {}
        put_back = broker.management.put_back(topic, replace(description, **unknown), 0.0)
        assert put_back.description == description


@pytest.mark.deviation("broker.lock-minimum")
@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("lock_duration", [seconds(5), MINUTES_5], [seconds(4.9), MINUTES_5 + seconds(1), 60]),
        ("max_delivery_count", [1, 2**31 - 1], [0, -1, 2**31, True, "10"]),
        ("default_message_time_to_live", [seconds(1), NO_LIFE], [seconds(0.9), timedelta(0)]),
        (
            "duplicate_detection_history_time_window",
            [seconds(20), timedelta(days=7)],
            [seconds(19), timedelta(days=7, seconds=1), timedelta(days=25)],
        ),
        ("auto_delete_on_idle", [MINUTES_5, NO_LIFE], [MINUTES_5 - seconds(1)]),
        ("requires_session", [True], ["yes"]),
        ("status", [EntityStatus.DISABLED], [EntityStatus.CREATING, EntityStatus.UNKNOWN]),
        ("user_metadata", ["x" * 1024], ["x" * 1025]),
        ("max_message_size_in_kilobytes", [256], [255, 257, 1024]),
    ],
)
def test_values_have_ranges(broker: Driver, field: str, good: list[Any], bad: list[Any]) -> None:
    for number, value in enumerate(good):
        assert getattr(broker.queue(f"good{number}", **{field: value}), field) == value
    for value in bad:
        with pytest.raises(InvalidOperationError, match="40000"):
            broker.queue("bad", **{field: value})
    with pytest.raises(MessagingEntityNotFoundError):
        broker.get(address("bad"))


def test_status_given_as_text_is_a_member() -> None:
    created = Driver().queue(status="Disabled")
    assert created.status is EntityStatus.DISABLED


def test_premium_chooses_its_message_size() -> None:
    broker = Driver(PREM_2021)
    assert broker.queue().max_message_size_in_kilobytes == 1024
    broker.queue("large", max_message_size_in_kilobytes=102_400)
    broker.send("large", message("x" * 2_000_000))
    with pytest.raises(MessageSizeExceededError):
        broker.send("q", message("x" * 2_000_000))
    for size in (1023, 102_401):
        with pytest.raises(InvalidOperationError, match="'MaxMessageSizeInKilobytes' must be between 1024 and"):
            broker.queue("bad", max_message_size_in_kilobytes=size)


def test_the_time_to_live_in_the_basic_tier_is_14_days() -> None:
    broker = Driver(BASIC_2021)
    assert broker.queue().default_message_time_to_live == timedelta(days=14)
    assert broker.queue("max", default_message_time_to_live=NO_LIFE).default_message_time_to_live == timedelta(days=14)
    assert broker.queue("less", default_message_time_to_live=seconds(5)).default_message_time_to_live == seconds(5)
    with pytest.raises(InvalidOperationError):
        broker.queue("more", default_message_time_to_live=timedelta(days=15))


@pytest.mark.parametrize(
    "described",
    [
        {"requires_session": True},
        {"requires_duplicate_detection": True},
        {"forward_to": "q"},
        {"forward_dead_lettered_messages_to": "q"},
    ],
)
def test_the_basic_tier_has_plain_queues_only(described: dict[str, Any]) -> None:
    broker = Driver(BASIC_2021)
    broker.queue()
    with pytest.raises(InvalidOperationError):
        broker.queue("other", **described)
    with pytest.raises(InvalidOperationError):
        broker.topic()


@pytest.mark.parametrize(
    ("rules", "is_fit"),
    [
        ([AuthorizationRule(key_name="a", rights=ALL_RIGHTS)], True),
        ([AuthorizationRule(key_name=f"r{n}", rights=[AccessRights.SEND]) for n in range(12)], True),
        ([AuthorizationRule(key_name=f"r{n}", rights=[AccessRights.SEND]) for n in range(13)], False),
        ([AuthorizationRule(key_name="a", rights=[AccessRights.MANAGE])], False),
        ([AuthorizationRule(key_name=name, rights=[AccessRights.SEND]) for name in "aA"], False),
    ],
)
def test_authorization_rules_are_checked(broker: Driver, rules: list[AuthorizationRule], is_fit: bool) -> None:
    if is_fit:
        kept = broker.queue(authorization_rules=rules).authorization_rules or []
        assert [(rule.key_name, rule.rights) for rule in kept] == [(rule.key_name, rule.rights) for rule in rules]
    else:
        with pytest.raises(InvalidOperationError):
            broker.queue(authorization_rules=rules)


# ---------------------------------------------------------------------- names and addresses


@pytest.mark.parametrize("path", ["", "/a", "a/", "a@b", "a?b", "a#b", "a*b", "a" * 261, "a//b", "q/$DeadLetterQueue"])
def test_bad_paths_are_refused(broker: Driver, path: str) -> None:
    with pytest.raises(InvalidOperationError):
        broker.queue(path)


def test_paths_compare_without_case_and_backslashes_are_slashes(broker: Driver) -> None:
    assert broker.queue("Orders\\New").name == "Orders/New"
    broker.send("orders/new", message("a"))
    assert str(broker.one("ORDERS\\NEW")) == "a"
    with pytest.raises(MessagingEntityAlreadyExistsError, match="40900"):
        broker.queue("ORDERS/new")


@pytest.mark.parametrize(("name", "is_fit"), [("s" * 50, True), ("s" * 51, False), ("a/b", False)])
def test_subscription_names(broker: Driver, name: str, is_fit: bool) -> None:
    broker.topic()
    if is_fit:
        broker.subscription("t", name)
    else:
        with pytest.raises(InvalidOperationError):
            broker.subscription("t", name)


def test_sub_queues_cannot_be_managed_alone(broker: Driver) -> None:
    broker.queue()
    with pytest.raises(MessagingEntityNotFoundError):
        broker.delete(address("q/$DeadLetterQueue"))


def test_an_address_leads_to_one_kind(broker: Driver) -> None:
    broker.queue()
    broker.topic()
    for where in (topic_address("q"), address("t"), address("none")):
        with pytest.raises(MessagingEntityNotFoundError, match="40400"):
            broker.get(where)
    with pytest.raises(MessagingEntityAlreadyExistsError):
        broker.topic("q")
    with pytest.raises(InvalidOperationError):
        broker.create("x", TopicProperties("x"))
    with pytest.raises(InvalidOperationError):
        broker.update(address("q"), RuleProperties("q"))


def test_a_queue_is_not_a_topic_and_a_topic_has_no_sub_queues(broker: Driver) -> None:
    broker.queue()
    entity = broker.namespace.directory.find("q")[0]
    with pytest.raises(InvalidOperationError):
        _ = entity.topic_body
    broker.topic()
    topic = broker.namespace.directory.find("t")[0]
    assert topic.sub_queue("deadletter") is None
    with pytest.raises(MessagingEntityNotFoundError):
        broker.receive("t/$DeadLetterQueue")


def test_entities_are_listed_by_name(broker: Driver) -> None:
    for name in ("b", "A", "ab"):
        broker.queue(name)
    broker.topic("topic")
    broker.subscription("topic", "y")
    broker.subscription("topic", "x")
    broker.rule("topic/Subscriptions/x", "r")
    call = broker.call(Operation.MANAGE)

    def listed(kind: EntityKind, parents: tuple[str, ...] = (), **bounds: int) -> list[str]:
        return [each.name for each in broker.management.listed(call, kind, parents, **bounds)]

    assert listed(EntityKind.QUEUE) == ["A", "ab", "b"]
    assert listed(EntityKind.QUEUE, skip=1, most=1) == ["ab"]
    assert listed(EntityKind.RULE, ("topic", "x"), skip=1) == ["r"]
    broker.queue("aa")
    assert listed(EntityKind.QUEUE) == ["A", "aa", "ab", "b"]
    broker.management.delete(call, EntityAddress(EntityKind.QUEUE, ("aa",)))
    assert listed(EntityKind.TOPIC) == ["topic"]
    assert listed(EntityKind.SUBSCRIPTION, ("topic",)) == ["x", "y"]
    assert listed(EntityKind.RULE, ("topic", "x")) == ["$Default", "r"]


def test_the_namespace_describes_itself(broker: Driver) -> None:
    described = broker.management.namespace(broker.call(Operation.MANAGE))
    broker.wait(5)
    assert described == broker.management.namespace(broker.call(Operation.MANAGE))
    assert (described.name, described.messaging_sku) == ("contoso", MessagingSku.STANDARD)


def test_runtime_properties_have_times(broker: Driver) -> None:
    broker.queue()
    counts = broker.counts("q")
    assert (counts.created_at_utc, counts.accessed_at_utc) == (at(START), NEVER)
    broker.wait(5)
    broker.update(address("q"), broker.get(address("q")))
    counts = broker.counts("q")
    assert (counts.accessed_at_utc, counts.updated_at_utc) == (NEVER, at(START + 5))
    broker.wait(5)
    broker.send("q", message())
    counts = broker.counts("q")
    assert (counts.accessed_at_utc, counts.updated_at_utc) == (at(START + 10), at(START + 5))


def test_a_new_subscription_counts_as_accessed(broker: Driver) -> None:
    broker.topic()
    broker.subscription()
    assert broker.counts("t/Subscriptions/s").accessed_at_utc == at(START)


def test_delete_removes_everything_below(broker: Driver) -> None:
    broker.topic()
    broker.subscription()
    broker.subscription("t", "other")
    broker.delete(address("t/Subscriptions/s"))
    broker.delete(topic_address("t"))
    assert broker.removed == [
        "t/Subscriptions/s",
        "t/Subscriptions/s/$DeadLetterQueue",
        "t/Subscriptions/other",
        "t/Subscriptions/other/$DeadLetterQueue",
    ]
    for path in ("t", "t/Subscriptions/other"):
        with pytest.raises(MessagingEntityNotFoundError):
            broker.receive(path)
    broker.topic()
    assert broker.management.listed(broker.call(Operation.MANAGE), EntityKind.SUBSCRIPTION, ("t",)) == []


def test_a_recreated_entity_is_empty(broker: Driver) -> None:
    broker.queue()
    broker.send("q", message("a"))
    broker.delete(address("q"))
    broker.queue()
    assert broker.receive() == []


# ---------------------------------------------------------------------- status, idleness, throttling


@pytest.mark.deviation("broker.disabled-entities", "broker.disabled-peeks")
@pytest.mark.parametrize(
    ("status", "may_send", "may_receive", "may_settle"),
    [
        (EntityStatus.ACTIVE, True, True, True),
        (EntityStatus.SEND_DISABLED, False, True, True),
        (EntityStatus.RECEIVE_DISABLED, True, False, False),
        (EntityStatus.DISABLED, False, False, False),
    ],
)
def test_the_status_of_a_queue_determines_rejected_operations(
    broker: Driver, status: EntityStatus, may_send: bool, may_receive: bool, may_settle: bool
) -> None:
    description = broker.queue()
    broker.send("q", message())
    held = broker.one()
    broker.update(address("q"), replace(description, status=status))
    attempts = (
        (lambda: broker.send("q", message()), may_send),
        (lambda: broker.namespace.open_sender(broker.call(Operation.OPEN), "q"), may_send),
        (lambda: broker.schedule("q", message(scheduled_enqueue_time_utc=at(START + 9))), may_send),
        (lambda: broker.receive(), may_receive),
        (lambda: broker.peek(), may_receive),
        (lambda: broker.receive("q/$DeadLetterQueue"), may_receive),
        (
            lambda: broker.namespace.open_receiver(broker.call(Operation.OPEN), "q", with_session=False),
            may_receive,
        ),
        (lambda: broker.renew("q", held), may_settle),
        (lambda: broker.settle("q", held), may_settle),
    )
    for attempt, is_allowed in attempts:
        if is_allowed:
            attempt()
        else:
            with pytest.raises(MessagingEntityDisabledError):
                attempt()
    assert broker.get(address("q")).status is status


def test_a_disabled_topic_rejects_sends_but_its_subscriptions_deliver(broker: Driver) -> None:
    description = broker.topic()
    broker.subscription()
    broker.send("t", message("a"))
    broker.update(topic_address("t"), replace(description, status=EntityStatus.DISABLED))
    with pytest.raises(MessagingEntityDisabledError):
        broker.send("t", message())
    assert bodies(broker.drain("t/Subscriptions/s")) == ["a"]


def test_a_disabled_subscription_still_gets_copies(broker: Driver) -> None:
    broker.topic()
    description = broker.subscription()
    where = address("t/Subscriptions/s")
    broker.update(where, replace(description, status=EntityStatus.RECEIVE_DISABLED))
    broker.send("t", message("a"))
    with pytest.raises(MessagingEntityDisabledError):
        broker.receive("t/Subscriptions/s")
    broker.update(where, replace(description, status=EntityStatus.ACTIVE))
    assert bodies(broker.drain("t/Subscriptions/s")) == ["a"]


def vanished(broker: Driver, where: EntityAddress) -> bool:
    try:
        broker.get(where)
    except MessagingEntityNotFoundError:
        return True
    return False


@pytest.mark.deviation("broker.statuses")
@pytest.mark.parametrize("path", ["q", "t", "t/Subscriptions/s"])
def test_each_kind_of_entity_takes_each_status(broker: Driver, path: str) -> None:
    broker.queue()
    broker.topic()
    broker.subscription()
    where = topic_address(path) if path == "t" else address(path)
    for status in ("ACTIVE", "SEND_DISABLED", "RECEIVE_DISABLED", "DISABLED"):
        changed = replace(broker.get(where), status=EntityStatus[status])
        assert broker.update(where, changed).status is EntityStatus[status]
    broker.rule("t/Subscriptions/s", "r")


@pytest.mark.deviation("broker.performance-flags")
def test_flags_of_performance_are_stored_without_effect(broker: Driver) -> None:
    queue = broker.queue(enable_express=True, enable_batched_operations=False)
    topic = broker.topic(enable_express=True, filtering_messages_before_publishing=True)
    assert (queue.enable_express, queue.enable_batched_operations) == (True, False)
    assert (topic.enable_express, topic.filtering_messages_before_publishing) == (True, True)
    broker.send("t", message())  # which no subscription gets
    broker.send("q", message("a"))
    assert bodies(broker.drain()) == ["a"]


def test_an_idle_queue_is_deleted(broker: Driver) -> None:
    broker.queue(auto_delete_on_idle=MINUTES_5)
    broker.wait(299)
    assert not vanished(broker, address("q"))
    broker.send("q", message())
    broker.wait(299)
    assert not vanished(broker, address("q"))
    broker.wait(1)
    assert vanished(broker, address("q"))
    assert broker.removed == ["q", "q/$DeadLetterQueue"]


def test_a_queue_that_is_waited_for_or_has_scheduled_messages_is_not_idle(broker: Driver) -> None:
    broker.queue("a", auto_delete_on_idle=MINUTES_5)
    broker.queue("b", auto_delete_on_idle=MINUTES_5)
    broker.waited_for.add("a")
    broker.schedule("b", message(scheduled_enqueue_time_utc=at(START + 400)))
    broker.wait(300)
    assert not vanished(broker, address("a"))
    assert not vanished(broker, address("b"))
    broker.waited_for.clear()
    broker.wait(300)
    assert vanished(broker, address("a"))


def test_a_subscription_in_use_keeps_its_topic(broker: Driver) -> None:
    broker.topic(auto_delete_on_idle=MINUTES_5)
    broker.subscription()
    broker.wait(299)
    broker.receive("t/Subscriptions/s")
    broker.wait(299)
    assert not vanished(broker, topic_address("t"))
    broker.waited_for.add("t/Subscriptions/s")
    broker.wait(100)
    assert not vanished(broker, topic_address("t"))
    broker.waited_for.clear()
    broker.wait(300)
    assert vanished(broker, topic_address("t"))
    assert vanished(broker, address("t/Subscriptions/s"))


def test_arriving_copies_do_not_keep_a_subscription(broker: Driver) -> None:
    broker.topic()
    broker.subscription(auto_delete_on_idle=MINUTES_5)
    broker.wait(299)
    broker.send("t", message())
    broker.wait(1)
    assert vanished(broker, address("t/Subscriptions/s"))
    assert not vanished(broker, topic_address("t"))


def test_idle_time_can_be_changed_and_lifted(broker: Driver) -> None:
    description = broker.queue(auto_delete_on_idle=MINUTES_5)
    broker.update(address("q"), replace(description, auto_delete_on_idle=NO_LIFE))
    broker.wait(10_000)
    assert not vanished(broker, address("q"))
    broker.update(address("q"), replace(description, auto_delete_on_idle=MINUTES_5))
    broker.delete(address("q"))
    broker.wait(300)
    broker.queue()


def test_a_subscription_s_size_is_its_topic_s(broker: Driver) -> None:
    broker.topic()
    broker.subscription()
    broker.send("t", message("x" * 100))
    policy = broker.namespace.directory.find("t")[0].body.policy
    policy.max_size_bytes = 300
    with pytest.raises(ServiceBusQuotaExceededError):
        broker.send("t", message("x" * 200))
    assert isinstance(broker.get(address("t/Subscriptions/s")), SubscriptionProperties)


def test_many_spellings_of_a_path_do_not_fill_the_memory(broker: Driver) -> None:
    name = "abcdefghijklmno"
    broker.queue(name)
    for number in range(20_100):
        spelt = "".join(letter.upper() if number >> place & 1 else letter for place, letter in enumerate(name))
        broker.namespace.directory.find(spelt)
    assert len(broker.namespace.directory._found) < 20_100
