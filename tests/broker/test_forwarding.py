"""Forwarding and sending by way of another entity."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from sbclient.broker.faults import FaultKind
from sbclient.entities import UNLIMITED, EntityStatus, SqlRuleAction
from sbclient.errors import (
    InvalidOperationError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusInternalError,
)
from sbclient.rules.partition_key import fragment_of
from tests.broker.driver import (
    ABANDON,
    DEAD_LETTER,
    KEYS,
    START,
    Driver,
    address,
    at,
    bodies,
    message,
    seconds,
    topic_address,
)


def where(broker: Driver, path: str) -> list[int]:
    return [index for index, fragment in enumerate(broker.body(path).fragments) for _ in range(len(fragment))]


@pytest.mark.parametrize("is_topic_source", [False, True])
@pytest.mark.parametrize("is_topic_destination", [False, True])
@pytest.mark.parametrize("source_is_partitioned", [False, True])
@pytest.mark.parametrize("destination_is_partitioned", [False, True])
def test_forwarding_works_from_to_and_between_partitioned_entities(
    broker: Driver,
    is_topic_source: bool,
    is_topic_destination: bool,
    source_is_partitioned: bool,
    destination_is_partitioned: bool,
) -> None:
    if is_topic_destination:
        broker.topic("end", enable_partitioning=destination_is_partitioned)
        broker.subscription("end", "s")
    else:
        broker.queue("end", enable_partitioning=destination_is_partitioned)
    if is_topic_source:
        broker.topic("begin", enable_partitioning=source_is_partitioned)
        broker.subscription("begin", "s", forward_to="end")
    else:
        broker.queue("begin", enable_partitioning=source_is_partitioned, forward_to="end")
    for number in range(20):
        broker.send("begin", message(str(number)))
    received = broker.drain("end/Subscriptions/s" if is_topic_destination else "end")
    assert sorted(map(int, bodies(received))) == list(range(20))
    assert broker.counts("begin/Subscriptions/s" if is_topic_source else "begin").total_message_count == 0


def test_forwarding_is_set_on_the_source_and_can_be_changed(broker: Driver) -> None:
    broker.queue("end")
    broker.queue()
    broker.send("q", message("before"))
    description = broker.get(address("q"))
    description.forward_to = "end"
    broker.update(address("q"), description)
    with pytest.raises(InvalidOperationError):
        broker.receive()
    assert bodies(broker.drain("end")) == ["before"]
    broker.send("q", message("after"))
    assert bodies(broker.drain("end")) == ["after"]
    description.forward_to = None
    broker.update(address("q"), description)
    broker.send("q", message("stays"))
    assert bodies(broker.drain("q")) == ["stays"]


@pytest.mark.parametrize("key", ["session_id", "partition_key"])
def test_keys_are_kept_and_used_at_the_destination(broker: Driver, key: str) -> None:
    broker.partitioned("end")
    broker.queue(forward_to="end")
    broker.send("q", message(**{key: "k"}))
    broker.peek("end")
    assert where(broker, "end") == [fragment_of("k", 16)]


def test_the_message_id_is_a_key_where_duplicates_are_detected(broker: Driver) -> None:
    broker.partitioned("end", requires_duplicate_detection=True)
    broker.partitioned(forward_to="end")
    broker.send("q", message("a", message_id="m"))
    broker.send("q", message("b", message_id="m"))
    broker.peek("end")
    assert where(broker, "end") == [fragment_of("m", 16)]


def test_the_destination_must_exist_and_be_a_queue_or_topic(broker: Driver) -> None:
    broker.topic()
    broker.subscription()
    for path in ("nowhere", "t/Subscriptions/s"):
        with pytest.raises(MessagingEntityNotFoundError):
            broker.queue(forward_to=path)
        with pytest.raises(MessagingEntityNotFoundError):
            broker.queue(forward_dead_lettered_messages_to=path)
    with pytest.raises(MessagingEntityNotFoundError):
        broker.subscription("t", "other", forward_to="nowhere")


def test_a_session_entity_cannot_forward(broker: Driver) -> None:
    broker.queue("end")
    with pytest.raises(InvalidOperationError, match="q requires sessions, which are not forwarded"):
        broker.queue(requires_session=True, forward_to="end")
    broker.topic("t")
    with pytest.raises(InvalidOperationError, match="s requires sessions, which are not forwarded"):
        broker.subscription("t", "s", requires_session=True, forward_to="end")
    assert broker.queue(requires_session=True, forward_dead_lettered_messages_to="end").requires_session


def test_an_entity_cannot_forward_to_itself(broker: Driver) -> None:
    description = broker.queue()
    with pytest.raises(InvalidOperationError, match="q cannot forward to itself"):
        broker.update(address("q"), replace(description, forward_to="Q"))


@pytest.mark.parametrize(("hops", "arrives"), [(3, True), (4, True), (5, False)])
def test_a_message_is_forwarded_four_times_at_most(broker: Driver, hops: int, arrives: bool) -> None:
    broker.queue(f"q{hops}")
    for number in reversed(range(hops)):
        broker.queue(f"q{number}", forward_to=f"q{number + 1}")
    broker.send("q0", message("a"))
    assert len(broker.receive(f"q{hops}")) == arrives
    if not arrives:
        assert broker.one(f"q{hops - 1}/$DeadLetterQueue").dead_letter_reason == "MaxTransferHopCountExceeded"


def test_a_cycle_of_forwarding_ends(broker: Driver) -> None:
    broker.queue("a")
    broker.queue("b", forward_to="a")
    description = broker.get(address("a"))
    description.forward_to = "b"
    broker.update(address("a"), description)
    broker.send("a", message())
    assert sum(broker.counts(path).dead_letter_message_count for path in "ab") == 1


def test_a_cycle_through_a_topic_ends_too(broker: Driver) -> None:
    broker.topic()
    broker.queue("a", forward_to="t")
    broker.subscription("t", "s", forward_to="a")
    broker.subscription("t", "kept")
    broker.send("a", message())
    assert len(broker.drain("t/Subscriptions/kept")) == 2  # four hops: each second one is to the topic
    counts = broker.counts("a"), broker.counts("t/Subscriptions/s")
    assert sum(each.dead_letter_message_count for each in counts) == 1
    assert sum(each.transfer_dead_letter_message_count for each in counts) == 0


@pytest.mark.parametrize("source", ["q", "t/Subscriptions/s"])
@pytest.mark.parametrize("trouble", ["disabled", "full", "deleted", "refused"])
def test_a_message_that_cannot_be_forwarded_is_in_the_dead_letter_queue_of_the_source(
    broker: Driver, trouble: str, source: str
) -> None:
    broker.queue("end", requires_session=trouble == "refused")
    if source == "q":
        broker.queue(forward_to="end")
    else:
        broker.topic()
        broker.subscription(forward_to="end")
    if trouble == "disabled":
        description = broker.get(address("end"))
        description.status = EntityStatus.SEND_DISABLED
        broker.update(address("end"), description)
    elif trouble == "full":
        broker.body("end").policy.max_size_bytes = 1
    elif trouble == "deleted":
        broker.delete(address("end"))
    broker.send(source.partition("/")[0], message("a"))
    counts = broker.counts(source)
    assert (counts.dead_letter_message_count, counts.transfer_dead_letter_message_count) == (1, 0)
    dead = broker.one(f"{source}/$DeadLetterQueue")
    assert (
        dead.dead_letter_reason
        == {
            "disabled": "MessagingEntityDisabledError",
            "full": "ServiceBusQuotaExceededError",
            "deleted": "MessagingEntityNotFoundError",
            "refused": "InvalidOperationError",
        }[trouble]
    )


@pytest.mark.deviation("broker.unreachable-destination")
@pytest.mark.parametrize("kind", [FaultKind.DOWN, FaultKind.HANG])
@pytest.mark.parametrize("struck", ["end", "end fragment", "q fragment"])
def test_forwarding_waits_for_an_unreachable_destination(broker: Driver, kind: FaultKind, struck: str) -> None:
    broker.partitioned("end")
    broker.queue("q", forward_to="end")
    path, *fragment = struck.split()
    fault = broker.down(path, *([fragment_of("k", 16) if path == "end" else 0] if fragment else []), kind=kind)
    if path == "end":
        broker.send("q", message("a", partition_key="k"))
        assert broker.counts("q").active_message_count == 1
    broker.heal(fault)
    if path == "q":
        broker.send("q", message("a", partition_key="k"))
    assert bodies(broker.drain("end")) == ["a"]


def test_a_source_fragment_that_is_down_keeps_its_messages(broker: Driver) -> None:
    broker.queue("end")
    broker.partitioned(forward_to="end")
    fault = broker.down("end")
    broker.send("q", message("a", partition_key=KEYS[3]))
    broker.send("q", message("b", partition_key=KEYS[4]))
    broker.heal(fault)
    broker.down("q", 3)
    assert bodies(broker.drain("end")) == ["b"]
    broker.heal()
    assert bodies(broker.drain("end")) == ["a"]


def test_dead_letters_are_forwarded_with_their_reason(broker: Driver) -> None:
    broker.queue("graves")
    broker.queue(forward_dead_lettered_messages_to="graves")
    broker.send("q", message("a", application_properties={"mine": 1}))
    broker.settle("q", broker.one(), how=DEAD_LETTER)
    received = broker.one("graves")
    assert (received.dead_letter_reason, received.dead_letter_error_description) == ("why", "in full")
    assert (received.dead_letter_source, received.application_properties["mine"]) == ("q", 1)


def test_expired_messages_are_forwarded_at_the_next_request(broker: Driver) -> None:
    broker.queue("graves")
    broker.queue(dead_lettering_on_message_expiration=True, forward_dead_lettered_messages_to="graves")
    broker.send("q", message("a", time_to_live=seconds(5)))
    broker.wait(5)
    assert broker.one("graves").dead_letter_reason == "TTLExpiredException"


@pytest.mark.parametrize("trouble", ["disabled", "full", "deleted", "refused"])
def test_dead_letters_that_cannot_be_forwarded_stay_and_are_forwarded_when_they_can(
    broker: Driver, trouble: str
) -> None:
    broker.queue("graves", requires_session=trouble == "refused")
    broker.queue(forward_dead_lettered_messages_to="graves")
    described = broker.get(address("graves"))
    size_bytes = broker.body("graves").policy.max_size_bytes
    if trouble == "disabled":
        broker.update(address("graves"), replace(described, status=EntityStatus.DISABLED))
    elif trouble == "full":
        broker.body("graves").policy.max_size_bytes = 1
    elif trouble == "deleted":
        broker.delete(address("graves"))
    broker.send("q", message("a"))
    broker.settle("q", broker.one(), how=DEAD_LETTER)
    counts = broker.counts("q")
    assert (counts.dead_letter_message_count, counts.transfer_dead_letter_message_count) == (1, 0)
    if trouble == "disabled":
        broker.update(address("graves"), described)
    elif trouble == "full":
        broker.body("graves").policy.max_size_bytes = size_bytes
    else:
        if trouble == "refused":
            broker.delete(address("graves"))
        broker.queue("graves")
    assert broker.one("graves").dead_letter_reason == "why"
    assert broker.counts("q").dead_letter_message_count == 0


@pytest.mark.deviation("broker.blocked-dead-letters")
def test_a_dead_letter_that_cannot_be_forwarded_holds_up_those_behind_it(broker: Driver) -> None:
    broker.queue("graves", requires_session=True)
    broker.queue(forward_dead_lettered_messages_to="graves")
    for session_id in (None, "s"):
        broker.send("q", message(session_id=session_id))
        broker.settle("q", broker.one(), how=DEAD_LETTER)
    assert broker.counts("q").dead_letter_message_count == 2
    broker.delete(address("graves"))
    broker.queue("graves")
    assert len(broker.drain("graves")) == 2


def test_a_source_is_never_idle(broker: Driver) -> None:
    broker.queue("end")
    created = broker.queue(forward_to="end", auto_delete_on_idle=timedelta(minutes=5))
    assert created.auto_delete_on_idle == UNLIMITED
    broker.queue("later", auto_delete_on_idle=timedelta(minutes=5))
    described = broker.get(address("later"))
    described.forward_to = "end"
    broker.update(address("later"), described)
    broker.wait(3600)
    assert broker.counts("q").total_message_count == 0
    assert broker.counts("later").total_message_count == 0
    described.forward_to = None
    described.auto_delete_on_idle = timedelta(minutes=5)
    broker.update(address("later"), described)
    broker.wait(300)
    broker.namespace.advance(broker.now)
    assert broker.updated == ["later", "later"]
    assert broker.removed[0] == "later"


@pytest.mark.parametrize("partitioned", [False, True])
def test_messages_due_for_forwarding_are_not_counted_at_the_source(broker: Driver, partitioned: bool) -> None:
    broker.queue("end")
    broker.queue("q", forward_to="end", enable_partitioning=partitioned)
    broker.schedule("q", message(scheduled_enqueue_time_utc=at(START + 100)))
    broker.wait(200)
    assert broker.counts("q").total_message_count == 0
    assert broker.counts("end").active_message_count == 1


def test_the_destination_checks_schedule_duplicates_and_session_again(broker: Driver) -> None:
    broker.queue("end", requires_duplicate_detection=True, requires_session=True)
    broker.queue(forward_to="end")
    for name in "ab":
        broker.send("q", message(name, message_id="m", session_id="s", scheduled_enqueue_time_utc=at(START + 10)))
    assert broker.accept("end") is None
    broker.wait(10)
    lock = broker.accept("end")
    assert lock is not None
    assert bodies(broker.receive("end", 5, lock=lock)) == ["a"]


def test_a_forwarded_message_keeps_its_first_number(broker: Driver) -> None:
    broker.queue("end")
    broker.queue("middle", forward_to="end")
    broker.partitioned(forward_to="middle")
    broker.send("q", message(partition_key="k"))
    received = broker.one("end")
    assert received.enqueued_sequence_number == fragment_of("k", 16) << 48 | 1


def test_a_message_from_a_partitioned_queue_has_a_plain_number(broker: Driver) -> None:
    broker.queue("end")
    broker.partitioned(forward_to="end")
    broker.send("q", message(partition_key=KEYS[9]))
    assert broker.one("end").sequence_number == 1


def test_forwarding_does_not_extend_the_time_to_live(broker: Driver) -> None:
    broker.queue("end")
    broker.queue(forward_to="end")
    fault = broker.down("end")
    broker.send("q", message(time_to_live=seconds(10)))
    broker.wait(6)
    broker.heal(fault)
    assert broker.one("end").expires_at_utc == at(START + 10)


def test_a_deleted_source_is_forgotten(broker: Driver) -> None:
    broker.queue("end")
    broker.queue(forward_to="end")
    broker.delete(address("q"))
    broker.send("end", message("a"))
    assert bodies(broker.drain("end")) == ["a"]
    assert broker.namespace.sources("end") == [broker.namespace.directory.find("end")[0]]


def test_the_via_key_places_a_message_that_is_sent_directly_and_has_no_key(broker: Driver) -> None:
    broker.partitioned()
    for _ in range(3):
        broker.send("q", message(), via_partition_key=KEYS[5])
        broker.send("q", message(partition_key=KEYS[6]), via_partition_key=KEYS[5])
    assert [len(fragment) for fragment in broker.body().fragments][5:7] == [3, 3]


def test_the_via_key_selects_the_fragment_of_the_via_queue(broker: Driver) -> None:
    broker.queue("end")
    broker.partitioned("between")
    fault = broker.down("end")
    broker.send("end", message("a"), via="between", via_partition_key=KEYS[5])
    entity = broker.namespace.directory.find("between")[0]
    assert [len(fragment) for fragment in entity.sub_queues["transfer"].fragments].index(1) == 5
    assert broker.counts("between").transfer_message_count == 1
    broker.heal(fault)
    assert bodies(broker.drain("end")) == ["a"]
    assert broker.counts("between").transfer_message_count == 0


def test_a_transaction_with_send_via_includes_other_entities(broker: Driver) -> None:
    broker.queue("in")
    broker.queue("out")
    broker.send("in", message("order"))
    held = broker.one("in")
    transaction = broker.begin()
    broker.send("out", message("reply"), transaction=transaction, via="in")
    broker.settle("in", held, transaction=transaction)
    assert broker.receive("out") == []
    broker.commit(transaction)
    assert bodies(broker.drain("out")) == ["reply"]
    assert broker.counts("in").total_message_count == 0


def test_in_a_transaction_on_a_partitioned_entity_the_via_key_is_its_key(broker: Driver) -> None:
    broker.queue("out")
    broker.partitioned("in")
    transaction = broker.begin()
    with pytest.raises(InvalidOperationError):
        broker.send("out", message(), transaction=transaction, via="in")
    broker.send("out", message("a"), transaction=transaction, via="in", via_partition_key="k")
    with pytest.raises(InvalidOperationError):
        broker.send("out", message(), transaction=transaction, via="in", via_partition_key="other")
    broker.commit(transaction)
    assert bodies(broker.drain("out")) == ["a"]


def test_a_disabled_destination_fills_the_transfer_dead_letter_queue(broker: Driver) -> None:
    broker.queue("out")
    broker.queue("in")
    description = broker.get(address("out"))
    description.status = EntityStatus.DISABLED
    broker.update(address("out"), description)
    broker.send("out", message("a"), via="in")
    dead = broker.one("in/$Transfer/$DeadLetterQueue")
    assert (str(dead), dead.dead_letter_reason) == ("a", "MessagingEntityDisabledError")
    broker.settle("in/$Transfer/$DeadLetterQueue", dead, how=ABANDON)


def test_a_missing_destination_is_not_found_and_an_oversized_message_refused(broker: Driver) -> None:
    broker.queue("in")
    broker.queue("out")
    with pytest.raises(MessagingEntityNotFoundError):
        broker.send("nowhere", message(), via="in")
    with pytest.raises(MessageSizeExceededError):
        broker.send("out", message("x" * 300_000), via="in")
    assert broker.counts("in").total_message_count == 0


def test_send_via_a_topic_passes_no_subscription(broker: Driver) -> None:
    broker.queue("out")
    broker.topic()
    broker.subscription()
    broker.send("out", message("a"), via="t")
    assert bodies(broker.drain("out")) == ["a"]
    assert broker.receive("t/Subscriptions/s") == []
    with pytest.raises(InvalidOperationError):
        broker.send("out", message(), via="t/Subscriptions/s")


def test_a_topic_keeps_what_it_cannot_forward_in_its_transfer_dead_letter_queue(broker: Driver) -> None:
    broker.queue("out")
    broker.topic()
    broker.body("out").policy.max_size_bytes = 1
    broker.send("out", message("a"), via="t")
    assert bodies(broker.receive("t/$Transfer/$DeadLetterQueue")) == ["a"]
    with pytest.raises(MessagingEntityNotFoundError):
        broker.receive("t/$DeadLetterQueue")


def test_sending_through_a_queue_that_is_down_fails(broker: Driver) -> None:
    broker.queue("out")
    broker.queue("in")
    broker.down("in", 0)
    with pytest.raises(ServiceBusInternalError):
        broker.send("out", message(), via="in")


def test_a_topic_forwards_through_its_subscription_with_rules(broker: Driver) -> None:
    broker.topic("end")
    broker.subscription("end", "s")
    broker.topic()
    broker.subscription("t", "s", forward_to="end")
    broker.send("t", message("a", time_to_live=seconds(5)))
    assert bodies(broker.drain("end/Subscriptions/s")) == ["a"]
    assert {entity.path for entity in broker.namespace.sources("end")} == {"end", "t", "t/Subscriptions/s"}
    broker.delete(topic_address("t"))
    assert broker.namespace.sources("nowhere") == []


def test_waiting_messages_stay_when_forwarding_is_removed(broker: Driver) -> None:
    broker.queue("end")
    description = broker.queue(forward_to="end")
    fault = broker.down("end")
    broker.send("q", message("a"))
    assert broker.counts("q").active_message_count == 1
    description.forward_to = None
    broker.update(address("q"), description)
    broker.heal(fault)
    assert broker.receive("end") == []
    assert bodies(broker.drain("q")) == ["a"]


def test_an_existing_transfer_dead_letter_queue_is_used_for_transfers(broker: Driver) -> None:
    broker.queue("out")
    broker.queue("in")
    assert broker.receive("in/$Transfer/$DeadLetterQueue") == []
    broker.body("out").policy.max_size_bytes = 1
    broker.send("out", message("a"), via="in")
    assert bodies(broker.receive("in/$Transfer/$DeadLetterQueue")) == ["a"]


def test_dead_letters_have_the_published_reasons_and_descriptions(broker: Driver) -> None:
    broker.queue("end")
    broker.queue(max_delivery_count=2, dead_lettering_on_message_expiration=True)
    broker.send("q", message("deliveries"))
    for _ in range(2):
        broker.settle("q", broker.one(), how=ABANDON)
    broker.send("q", message("expiry", time_to_live=seconds(5)))
    broker.wait(5)
    assert broker.receive("q") == []
    broker.topic()
    broker.subscription("t", "s", requires_session=True)
    broker.send("t", message("session"))
    broker.topic("u")
    broker.subscription("u", "s")
    broker.rule("u/Subscriptions/s", "r", action=SqlRuleAction("SET b = a + a; SET c = a + a"))
    broker.send("u", message("headers", application_properties={"a": "v" * 20_000}))
    broker.queue("a", forward_to="end")
    broker.update(address("end"), replace(broker.get(address("end")), forward_to="a"))
    broker.send("a", message("hops"))
    paths = ("q", "t/Subscriptions/s", "u/Subscriptions/s", "a", "end")
    found = [each for path in paths for each in broker.receive(f"{path}/$DeadLetterQueue", 5)]
    assert {(each.dead_letter_reason, each.dead_letter_error_description) for each in found} == {
        ("MaxDeliveryCountExceeded", "Message could not be consumed after 2 delivery attempts."),
        ("TTLExpiredException", "The message expired and was dead lettered."),
        ("Session ID is null.", "Session enabled entity doesn't allow a message whose session identifier is null."),
        ("HeaderSizeExceeded", "The size quota for this stream has been exceeded."),
        (
            "MaxTransferHopCountExceeded",
            "The maximum number of allowed hops when forwarding between queues has been exceeded. "
            "This value is set to 4.",
        ),
    }
