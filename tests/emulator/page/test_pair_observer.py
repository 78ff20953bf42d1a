"""What the broker sees of pairs: from the names of backlog queues, from what lies in them, and from pings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from sbclient.broker.namespace import Namespace
from sbclient.emulator.page import pair_observer as pairs_seen
from sbclient.emulator.page.pair_observer import RECENT_S, UNKNOWN, PairObserver, backlog_queues_of, primary_of
from sbclient.errors import ServiceBusConnectionError
from sbclient.message import ServiceBusMessage
from sbclient.rules.envelope import PATH
from sbclient.rules.ping import ping_message
from tests.broker.driver import DEAD_LETTER, START, Driver, message

BACKLOG = "contoso/x-servicebus-transfer/0"


@pytest.fixture
def primary() -> Driver:
    return Driver()


@pytest.fixture
def secondary() -> Driver:
    return Driver(seed=2)


def diverted(path: str | None, body: str = "x") -> ServiceBusMessage:
    return message(body, application_properties={} if path is None else {PATH: path})


class Watched:
    """A pair, and who looks at it."""

    def __init__(self, primary: Driver | None, secondary: Driver) -> None:
        self.primary, self.secondary = primary, secondary
        self.pair = PairObserver("contoso", secondary.namespace)

    def look(self) -> Mapping[str, Any]:
        queues = backlog_queues_of(self.secondary.namespace)["contoso"]
        return self.pair.observe(queues, None if self.primary is None else self.primary.namespace, self.secondary.now)

    def destinations(self) -> dict[str, Any]:
        return {each["path"]: each for each in self.look()["destinations"]}


@pytest.fixture
def watched(primary: Driver, secondary: Driver) -> Watched:
    secondary.queue(BACKLOG)
    return Watched(primary, secondary)


def test_each_destination_has_its_waiting_messages_and_the_oldest_time(watched: Watched, secondary: Driver) -> None:
    secondary.send(BACKLOG, diverted("orders"))
    secondary.wait(30)
    secondary.send(BACKLOG, diverted("orders"))
    secondary.send(BACKLOG, diverted("payments"))
    seen = watched.destinations()
    assert (seen["orders"]["waiting"], seen["orders"]["oldest_at"]) == (2, START)
    assert (seen["payments"]["waiting"], seen["payments"]["oldest_at"]) == (1, START + 30)


def test_destination_is_diverted_while_messages_arrive(watched: Watched, secondary: Driver) -> None:
    secondary.send(BACKLOG, diverted("orders"))
    assert watched.destinations()["orders"]["state"] == "diverted"
    secondary.wait(RECENT_S)
    assert watched.destinations()["orders"]["state"] == "waiting"
    secondary.send(BACKLOG, diverted("orders"))
    assert watched.destinations()["orders"]["state"] == "diverted"


def test_an_accepted_ping_ends_it_at_once(watched: Watched, primary: Driver, secondary: Driver) -> None:
    primary.queue("orders")
    secondary.send(BACKLOG, diverted("orders"))
    for driver in (primary, secondary):
        driver.wait(1)
    primary.send("orders", ping_message(message_id="m"))
    assert watched.destinations()["orders"]["state"] == "waiting"
    secondary.wait(1)
    secondary.send(BACKLOG, diverted("orders"))
    assert watched.destinations()["orders"]["state"] == "diverted"


def test_the_history_of_a_destination_has_the_times_of_messages_and_pings(
    watched: Watched, primary: Driver, secondary: Driver
) -> None:
    primary.queue("orders")
    secondary.wait(3)
    secondary.send(BACKLOG, diverted("orders"))
    secondary.wait(60)  # without a reader
    states = watched.destinations()["orders"]["states"]
    assert states == [{"from": START + 3, "state": "diverted"}, {"from": START + 3 + RECENT_S, "state": "waiting"}]
    secondary.send(BACKLOG, diverted("orders"))
    primary.wait(64)
    primary.send("orders", ping_message(message_id="m"))
    secondary.wait(5)
    states = watched.destinations()["orders"]["states"][2:]
    assert states == [{"from": START + 63, "state": "diverted"}, {"from": START + 64, "state": "waiting"}]
    for received in secondary.receive(BACKLOG, 2):
        secondary.settle(BACKLOG, received)
    assert watched.destinations()["orders"]["states"][4:] == [{"from": secondary.now, "state": "quiet"}]


def test_forwarded_messages_still_count_as_arrived(watched: Watched, secondary: Driver) -> None:
    secondary.send(BACKLOG, diverted("orders"))
    secondary.send(BACKLOG, diverted("orders"))
    watched.look()
    secondary.settle(BACKLOG, secondary.one(BACKLOG))
    seen = watched.look()
    (orders,) = seen["destinations"]
    assert (orders["waiting"], orders["arrived"], orders["oldest_at"]) == (1, 2, START)
    (queue,) = seen["queues"]
    assert (queue["waiting"], queue["arrived"], queue["left"], queue["dead"]) == (1, 2, 1, 0)
    secondary.settle(BACKLOG, secondary.one(BACKLOG), how=DEAD_LETTER)
    assert watched.destinations()["orders"]["waiting"] == 0
    assert watched.look()["queues"][0]["dead"] == 1


def test_messages_that_are_delivered_to_the_secondary_are_seen_there(watched: Watched, secondary: Driver) -> None:
    secondary.queue("orders")
    secondary.send("orders", message("from before"))
    secondary.send(BACKLOG, diverted("orders"))
    assert watched.destinations()["orders"]["elsewhere_at"] is None
    for second in (5, 10, 15):
        secondary.wait(5)
        secondary.send("orders", message(f"{second}"))
        assert watched.destinations()["orders"]["elsewhere_at"] == START + 5
    secondary.wait(59)
    assert watched.destinations()["orders"]["elsewhere_at"] == START + 5
    secondary.wait(1)
    assert watched.destinations()["orders"]["elsewhere_at"] is None


def test_the_last_ping_at_the_primary_is_shown(watched: Watched, primary: Driver, secondary: Driver) -> None:
    primary.queue("orders")
    secondary.send(BACKLOG, diverted("orders"))
    assert watched.destinations()["orders"]["ping"] is None
    primary.down(None)
    with pytest.raises(ServiceBusConnectionError):
        primary.send("orders", ping_message(message_id="m"))
    assert watched.destinations()["orders"]["ping"] == {"at": START, "refusal": "ServiceBusConnectionError"}
    primary.heal()
    primary.send("orders", ping_message(message_id="m"))
    assert watched.destinations()["orders"]["ping"] == {"at": START, "refusal": None}


def test_messages_without_a_destination_are_counted_too(watched: Watched, secondary: Driver) -> None:
    secondary.send(BACKLOG, diverted(None))
    secondary.send(BACKLOG, message(application_properties={PATH: 5}))
    assert watched.destinations()[UNKNOWN]["waiting"] == 2


def test_a_long_backlog_is_read_bit_by_bit(
    watched: Watched, secondary: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs_seen, "MAX_READ", 10)
    monkeypatch.setattr(pairs_seen, "MAX_KNOWN", 25)
    secondary.send(BACKLOG, *(diverted("orders") for _ in range(40)))
    counts = [(watched.destinations()["orders"]["waiting"], watched.look()["unread"]) for _ in range(2)]
    assert counts == [(10, 20), (25, 15)]
    for received in secondary.receive(BACKLOG, 20):
        secondary.settle(BACKLOG, received)
    assert (watched.destinations()["orders"]["waiting"], watched.look()["unread"]) == (15, 0)
    assert watched.destinations()["orders"]["arrived"] == 40


def test_destinations_cannot_fill_the_memory(
    watched: Watched, secondary: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs_seen, "MAX_DESTINATIONS", 3)
    secondary.send(BACKLOG, *(diverted(f"q{number}") for number in range(9)))
    assert len(watched.destinations()) == 3


def test_messages_of_a_deleted_queue_disappear(watched: Watched, secondary: Driver) -> None:
    other = "contoso/x-servicebus-transfer/1"
    secondary.queue(other)
    secondary.send(other, diverted("orders"))
    assert watched.destinations()["orders"]["waiting"] == 1
    secondary.namespace.directory.remove(secondary.namespace.directory.find(other)[0])
    assert watched.destinations()["orders"]["waiting"] == 0


def test_backlog_queues_are_known_by_their_names(secondary: Driver) -> None:
    for path in ("contoso/x-servicebus-transfer/0", "Contoso/x-servicebus-transfer-sessions/0", "other/q", "plain"):
        secondary.queue(path)
    secondary.queue("localhost-5672/x-servicebus-transfer/0")
    found = backlog_queues_of(secondary.namespace)
    assert {name: len(queues) for name, queues in found.items()} == {"contoso": 2, "localhost-5672": 1}


def test_the_primary_is_found_by_its_name_or_its_port(primary: Driver, secondary: Driver) -> None:
    namespaces: dict[str, Namespace] = {"contoso": primary.namespace, "backup": secondary.namespace}
    ports = {"contoso": 5672, "backup": 5673}
    assert primary_of("CONTOSO", namespaces, ports) is primary.namespace
    assert primary_of("localhost-5673", namespaces, ports) is secondary.namespace
    assert primary_of("127.0.0.1-5672", namespaces, ports) is primary.namespace
    assert primary_of("contoso-eu", namespaces, ports) is None
    assert primary_of("localhost-1", namespaces, ports) is None


def test_a_primary_elsewhere_is_named_after_its_queues(secondary: Driver) -> None:
    secondary.queue(BACKLOG)
    seen = Watched(None, secondary).look()
    assert (seen["primary"], seen["secondary"], seen["is_primary_here"]) == ("contoso", "contoso", False)
