"""Topics, subscriptions and rules."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any, Final

import pytest

from sbclient.broker.faults import Operation
from sbclient.broker.profile import STD_2021
from sbclient.broker.sql.values import LEAST_STEPS, MAX_STEPS, Steps
from sbclient.entities import (
    CorrelationRuleFilter,
    EntityKind,
    FalseRuleFilter,
    RuleProperties,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)
from sbclient.errors import (
    InvalidOperationError,
    MessagingEntityAlreadyExistsError,
    MessagingEntityNotFoundError,
    ServiceBusInternalError,
    ServiceBusQuotaExceededError,
)
from sbclient.rules.partition_key import fragment_of
from tests.broker.driver import (
    ABANDON,
    DEAD_LETTER,
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

SUB = "t/Subscriptions/s"
DEFAULT = address(f"{SUB}/$Rules/$Default")


@pytest.fixture(params=[False, True], ids=["plain", "partitioned"])
def topic(request: pytest.FixtureRequest) -> Driver:
    broker = Driver()
    broker.topic(enable_partitioning=request.param)
    broker.subscription()
    return broker


def received(broker: Driver, path: str = SUB) -> list[str]:
    return sorted(bodies(broker.drain(path)))


def test_default_rule_of_a_new_subscription_matches_everything(topic: Driver) -> None:
    topic.send("t", message("a"))
    assert received(topic) == ["a"]
    (rule,) = topic.management.listed(topic.call(Operation.MANAGE), EntityKind.RULE, ("t", "s"))
    assert rule.name == "$Default"
    assert isinstance(rule, RuleProperties)
    assert rule.filter == TrueRuleFilter()


def test_every_subscription_has_its_own_copy(topic: Driver) -> None:
    topic.subscription("t", "other")
    topic.send("t", message("a"))
    assert received(topic) == ["a"]
    assert received(topic, "t/Subscriptions/other") == ["a"]


def test_a_subscription_without_rules_receives_nothing(topic: Driver) -> None:
    topic.delete(DEFAULT)
    topic.send("t", message("a"))
    assert received(topic) == []


def test_matching_rules_without_action_make_one_copy_and_each_with_action_its_own(topic: Driver) -> None:
    topic.rule(SUB, "two", filter=SqlRuleFilter("x > 1"))
    topic.rule(SUB, "three", filter=TrueRuleFilter())
    topic.rule(SUB, "four", filter=SqlRuleFilter("x = 2"), action=SqlRuleAction("SET y = 4"))
    topic.rule(SUB, "five", filter=TrueRuleFilter(), action=SqlRuleAction("SET y = 5"))
    topic.rule(SUB, "six", filter=FalseRuleFilter(), action=SqlRuleAction("SET y = 6"))
    topic.send("t", message("a", application_properties={"x": 2}))
    copies = topic.drain(SUB)
    assert sorted(str(each.application_properties) for each in copies) == [
        "{'x': 2, 'y': 4, 'RuleName': 'four'}",
        "{'x': 2, 'y': 5, 'RuleName': 'five'}",
        "{'x': 2}",
    ]


@pytest.mark.parametrize("order", list(permutations(("plain-1", "plain-2", "tag-1", "tag-2"))))
def test_the_order_of_rules_makes_no_difference(order: tuple[str, ...]) -> None:
    topic = Driver()
    topic.topic()
    topic.subscription()
    for name in order:
        action = SqlRuleAction(f"SET tag = '{name}'") if name.startswith("tag") else None
        topic.rule(SUB, name, filter=TrueRuleFilter(), action=action)
    topic.delete(DEFAULT)
    for _ in range(2):
        topic.send("t", message("a"))
        tags = [str(each.application_properties.get("tag")) for each in topic.drain(SUB)]
        assert sorted(tags) == ["None", "tag-1", "tag-2"]


def test_a_filter_sees_system_and_user_properties(topic: Driver) -> None:
    topic.delete(DEFAULT)
    topic.rule(SUB, "r", filter=SqlRuleFilter("sys.Label = 'l' AND colour = 'red' AND sys.Size > 0"))
    topic.send("t", message("a", subject="l", application_properties={"colour": "red"}))
    topic.send("t", message("b", subject="l", application_properties={"colour": "blue"}))
    topic.send("t", message("colour = 'red'", subject="l"))
    assert received(topic) == ["a"]


def test_a_correlation_filter_requires_all_its_properties(topic: Driver) -> None:
    topic.delete(DEFAULT)
    topic.rule(SUB, "r", filter=CorrelationRuleFilter(label="l", correlation_id="c", properties={"p": 1}))
    topic.send("t", message("a", subject="l", correlation_id="c", application_properties={"p": 1}))
    topic.send("t", message("b", subject="L", correlation_id="c", application_properties={"p": 1}))
    topic.send("t", message("c", subject="l", correlation_id="c"))
    assert received(topic) == ["a"]


def test_an_action_changes_the_copy_only(topic: Driver) -> None:
    topic.subscription("t", "other")
    topic.rule(SUB, "r", action=SqlRuleAction("SET sys.Label = 'new'; REMOVE x"))
    topic.delete(DEFAULT)
    topic.send("t", message("a", subject="old", application_properties={"x": 1}))
    (changed,), (kept,) = topic.drain(SUB), topic.drain("t/Subscriptions/other")
    assert (changed.subject, changed.application_properties) == ("new", {"RuleName": "r"})
    assert (kept.subject, kept.application_properties) == ("old", {"x": 1})


def test_each_copy_counts_with_its_own_size(topic: Driver) -> None:
    topic.subscription("t", "other")
    topic.rule(SUB, "r", action=SqlRuleAction("SET more = a + a"))
    topic.delete(DEFAULT)
    sizes = [0, 0]
    for _ in range(2):
        topic.send("t", message("a", partition_key="k", application_properties={"a": "v" * 1_000}))
        grown = [topic.counts(path).size_in_bytes or 0 for path in (SUB, "t/Subscriptions/other")]
        changed, kept = (now - before for now, before in zip(grown, sizes, strict=True))
        assert kept + 2_000 < changed < kept + 2_100
        sizes = grown
    assert topic.management.runtime(topic.call(Operation.MANAGE), topic_address("t")).size_in_bytes == sum(sizes)


def test_a_changed_session_leaves_the_copy_in_its_fragment(broker: Driver) -> None:
    broker.topic(enable_partitioning=True)
    broker.subscription(requires_session=True)
    broker.delete(DEFAULT)
    broker.rule(SUB, "r", action=SqlRuleAction("SET sys.SessionId = 'fresh'"))
    broker.send("t", message("a", session_id="old"))
    sizes = [len(fragment) for fragment in broker.body(SUB).fragments]
    assert sizes.index(1) == fragment_of("old", 16) != fragment_of("fresh", 16)
    assert broker.receive(SUB, lock=broker.held(SUB, "fresh")) == []


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_filter_error_dead_letters_if_configured(topic: Driver, is_asked: bool) -> None:
    topic.subscription("t", "strict", dead_lettering_on_filter_evaluation_exceptions=is_asked)
    path = "t/Subscriptions/strict"
    topic.delete(address(f"{path}/$Rules/$Default"))
    topic.rule(path, "r", filter=SqlRuleFilter("x / 0 > 1"))
    topic.rule(path, "s", filter=SqlRuleFilter("x % 0 > 1"))
    topic.send("t", message("a", time_to_live=seconds(5), application_properties={"x": 1}))
    assert topic.receive(path) == []
    dead = topic.receive(f"{path}/$DeadLetterQueue")
    assert len(dead) == is_asked
    if is_asked:
        assert dead[0].dead_letter_reason == "FilterEvaluationException"
        assert dead[0].expires_at_utc is None


def test_other_rules_are_still_evaluated(topic: Driver) -> None:
    topic.rule(SUB, "r", filter=SqlRuleFilter("x / 0 > 1"), action=SqlRuleAction("SET y = 1"))
    topic.send("t", message("a", application_properties={"x": 1}))
    assert received(topic) == ["a"]
    assert received(topic, f"{SUB}/$DeadLetterQueue") == ["a"]


def test_the_option_can_be_changed(topic: Driver) -> None:
    description = topic.get(address(SUB))
    description.dead_lettering_on_filter_evaluation_exceptions = False
    topic.update(address(SUB), description)
    topic.rule(SUB, "r", filter=SqlRuleFilter("x / 0 > 1"), action=SqlRuleAction("SET y = 1"))
    topic.send("t", message("a", application_properties={"x": 1}))
    assert received(topic, f"{SUB}/$DeadLetterQueue") == []


CAUSES: Final[dict[str, dict[str, Any]]] = {
    "why": {},
    "MaxDeliveryCountExceeded": {"max_delivery_count": 1},
    "TTLExpiredException": {"dead_lettering_on_message_expiration": True},
    "FilterEvaluationException": {"dead_lettering_on_filter_evaluation_exceptions": True},
    "Session ID is null.": {"requires_session": True},
}


@pytest.mark.parametrize("is_forwarded", [False, True])
@pytest.mark.parametrize("reason", CAUSES)
def test_a_dead_letter_names_its_subscription_and_does_not_expire(
    topic: Driver, reason: str, is_forwarded: bool
) -> None:
    topic.queue("graves")
    graves = {"forward_dead_lettered_messages_to": "graves"} if is_forwarded else {}
    topic.subscription("t", "dying", **CAUSES[reason], **graves)
    path = "t/Subscriptions/dying"
    if reason == "FilterEvaluationException":
        topic.rule(path, "r", filter=SqlRuleFilter("x / 0 > 1"))
        topic.delete(address(f"{path}/$Rules/$Default"))
    for _ in range(2):
        topic.send("t", message("a", time_to_live=seconds(5), application_properties={"x": 1}))
        if reason in ("why", "MaxDeliveryCountExceeded"):
            topic.settle(path, topic.one(path), how=DEAD_LETTER if reason == "why" else ABANDON)
        topic.wait(1000.0)
        topic.counts(path)  # a request, at which messages expire
        dead = topic.one("graves" if is_forwarded else f"{path}/$DeadLetterQueue")
        assert (dead.dead_letter_reason, dead.dead_letter_source) == (reason, path)
        assert is_forwarded or dead.expires_at_utc is None
        if is_forwarded:
            topic.settle("graves", dead, how=DEAD_LETTER)
            again = topic.one("graves/$DeadLetterQueue")
            assert (again.dead_letter_reason, again.dead_letter_source) == ("why", path)  # where it failed first


def test_a_copy_without_a_session_is_dead_lettered_where_one_is_required(topic: Driver) -> None:
    topic.subscription("t", "sessions", requires_session=True)
    topic.schedule("t", message("a", scheduled_enqueue_time_utc=at(START + 50)))
    topic.wait(60)
    dead = topic.one("t/Subscriptions/sessions/$DeadLetterQueue")
    assert (dead.dead_letter_reason, dead.enqueued_time_utc) == ("Session ID is null.", at(START + 50))
    assert received(topic) == ["a"]


def test_a_copy_whose_headers_have_grown_too_large_is_dead_lettered(topic: Driver) -> None:
    topic.delete(DEFAULT)
    topic.rule(SUB, "r", action=SqlRuleAction("SET b = a + a; SET c = a + a"))
    topic.send("t", message("x", application_properties={"a": "v" * 20_000}))
    assert topic.one(f"{SUB}/$DeadLetterQueue").dead_letter_reason == "HeaderSizeExceeded"


@pytest.mark.parametrize(("topic_s", "subscription_s", "wins_s"), [(10, 20, 10), (20, 10, 10)])
def test_the_smaller_time_to_live_of_topic_and_subscription_applies(
    broker: Driver, topic_s: float, subscription_s: float, wins_s: float
) -> None:
    broker.topic(default_message_time_to_live=seconds(topic_s))
    broker.subscription(default_message_time_to_live=seconds(subscription_s))
    broker.send("t", message())
    received = broker.one(SUB)
    assert (received.expires_at_utc, received.time_to_live) == (at(START + wins_s), seconds(wins_s))


def test_scheduled_messages_are_stored_in_the_topic(topic: Driver) -> None:
    (number,) = topic.schedule("t", message("a", scheduled_enqueue_time_utc=at(START + 10)))
    topic.schedule("t", message("b", scheduled_enqueue_time_utc=at(START + 10)))
    assert topic.peek(SUB) == []
    topic.cancel("t", number)
    topic.wait(10)
    assert topic.namespace.sources(SUB)[1].path == "t"
    assert received(topic) == ["b"]


def test_a_topic_counts_its_scheduled_messages_only(topic: Driver) -> None:
    topic.schedule("t", message("a", scheduled_enqueue_time_utc=at(START + 10)))
    topic.send("t", message("b"))
    counts = topic.management.runtime(topic.call(Operation.MANAGE), topic_address("t"))
    assert (counts.active_message_count, counts.scheduled_message_count, counts.subscription_count) == (0, 1, 1)
    assert topic.counts(SUB).active_message_count == 1
    assert counts.size_in_bytes > topic.counts(SUB).size_in_bytes > 0


def test_topic_accepts_sends_and_its_subscription_does_not(topic: Driver) -> None:
    with pytest.raises(InvalidOperationError):
        topic.send(SUB, message())


def test_rules_are_described_changed_and_removed(topic: Driver) -> None:
    created = topic.rule(SUB, "r", filter=SqlRuleFilter("x = 1"))
    assert created.created_at_utc == at(START)
    where = address(f"{SUB}/$Rules/R")
    assert topic.get(where) == created
    topic.wait(5)
    changed = topic.update(where, RuleProperties("r", filter=SqlRuleFilter("x = 2")))
    assert changed.created_at_utc == at(START)
    topic.delete(DEFAULT)
    topic.send("t", message("a", application_properties={"x": 1}))
    topic.send("t", message("b", application_properties={"x": 2}))
    assert received(topic) == ["b"]
    topic.delete(where)
    for missing in (where, address("t/Subscriptions/none/$Rules/r")):
        with pytest.raises(MessagingEntityNotFoundError):
            topic.get(missing)


def test_rule_names_are_unique(topic: Driver) -> None:
    with pytest.raises(MessagingEntityAlreadyExistsError):
        topic.rule(SUB, "$default")


@pytest.mark.parametrize(("length", "is_fit"), [(50, True), (51, False)])
def test_a_rule_name_has_at_most_50_characters(topic: Driver, length: int, is_fit: bool) -> None:
    if is_fit:
        topic.rule(SUB, "r" * length)
    else:
        with pytest.raises(InvalidOperationError):
            topic.rule(SUB, "r" * length)


def test_subscriptions_and_filters_are_limited() -> None:
    broker = Driver(replace(STD_2021, max_subscriptions=2, max_sql_filters=3, max_correlation_filters=1))
    broker.topic()
    broker.subscription("t", "a")
    broker.subscription("t", "s")
    with pytest.raises(ServiceBusQuotaExceededError):
        broker.subscription("t", "c")
    broker.rule(SUB, "third")
    with pytest.raises(ServiceBusQuotaExceededError):
        broker.rule(SUB, "fourth")
    broker.rule(SUB, "equal", filter=CorrelationRuleFilter(label="x"))
    with pytest.raises(ServiceBusQuotaExceededError):
        broker.rule(SUB, "equal-too", filter=CorrelationRuleFilter(label="x"))
    broker.delete(address(f"{SUB}/$Rules/equal"))
    broker.rule(SUB, "equal-too", filter=CorrelationRuleFilter(label="x"))


def test_a_rule_changes_its_kind_only_where_there_is_room_for_it() -> None:
    broker = Driver(replace(STD_2021, max_sql_filters=1, max_correlation_filters=1))
    broker.topic()
    broker.subscription()
    broker.rule(SUB, "equal", filter=CorrelationRuleFilter(label="x"))
    with pytest.raises(ServiceBusQuotaExceededError):
        broker.update(address(f"{SUB}/$Rules/equal"), RuleProperties("equal", filter=SqlRuleFilter("a = 1")))
    with pytest.raises(ServiceBusQuotaExceededError):
        broker.update(DEFAULT, RuleProperties("$Default", filter=CorrelationRuleFilter(label="x")))
    broker.update(DEFAULT, RuleProperties("$Default", filter=SqlRuleFilter("a = 1")))
    broker.update(address(f"{SUB}/$Rules/equal"), RuleProperties("equal", filter=CorrelationRuleFilter(label="y")))


def test_the_documented_limits_are_the_defaults() -> None:
    assert (STD_2021.max_subscriptions, STD_2021.max_sql_filters, STD_2021.max_correlation_filters) == (
        2_000,
        2_000,
        100_000,
    )


def test_a_subscription_of_jms_is_made_once(topic: Driver) -> None:
    manage = topic.management
    call = topic.call(Operation.MANAGE)
    brief = manage.subscribe(call, "t", "an odd:name", is_durable=False, selector="n > 1")
    durable = manage.subscribe(call, "t", "lasting", is_durable=True)
    for path, idle_s in ((brief, 300.0), (durable, None)):
        idle = topic.get(address(path)).auto_delete_on_idle
        assert (None if idle in (None, NO_LIFE) else idle.total_seconds()) == idle_s
    for number in (1, 2):
        topic.send("t", message(str(number), application_properties={"n": number}))
    for path in (brief, durable):  # they exist: nothing of them changes
        topic.management.subscribe(call, "t", path.rpartition("/")[2], is_durable=True, selector="n = 0")
    assert received(topic, brief) == ["2"]
    assert received(topic, durable) == ["1", "2"]
    topic.wait(300)
    topic.namespace.advance(topic.now)
    with pytest.raises(MessagingEntityNotFoundError):
        topic.get(address(brief))
    with pytest.raises(MessagingEntityNotFoundError):
        manage.subscribe(call, "missing", "s", is_durable=True)
    topic.down("t")
    with pytest.raises(ServiceBusInternalError):
        manage.subscribe(call, "t", "lasting", is_durable=True)


@pytest.mark.promise("emulator.rules")
def test_rules_of_a_topic_share_the_work_for_a_message(topic: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    spent = 0
    spend = Steps.spend

    def counted(steps: Steps, count: int) -> None:
        nonlocal spent
        spent += count
        spend(steps, count)

    monkeypatch.setattr(Steps, "spend", counted)
    heavy, light = SqlRuleFilter("a LIKE '%" + "a_" * 200 + "b%'"), SqlRuleFilter("a LIKE '%a_a%'")
    topic.delete(DEFAULT)
    for number in range(20):
        path = f"t/Subscriptions/{number}"
        topic.subscription("t", f"{number}", dead_lettering_on_filter_evaluation_exceptions=False)
        topic.delete(address(f"{path}/$Rules/$Default"))
        topic.rule(path, "r", filter=heavy)
    topic.rule(SUB, "r", filter=light)  # is evaluated first
    topic.subscription("t", "last")
    topic.delete(address("t/Subscriptions/last/$Rules/$Default"))
    topic.rule("t/Subscriptions/last", "r", filter=light)
    topic.send("t", message("x", application_properties={"a": "a" * 30_000}))
    assert received(topic) == received(topic, "t/Subscriptions/last") == ["x"]
    assert MAX_STEPS < spent <= MAX_STEPS + 22 * (LEAST_STEPS + 100)
