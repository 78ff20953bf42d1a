"""An entity that stays full: it fails over once, everything is diverted, and it recovers when there is room."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any, Final

import pytest

from sbclient import clock
from sbclient.amqp import EncodedBatch, encode_message
from sbclient.broker.descriptions import policy_of
from sbclient.broker.profile import STD_2021
from sbclient.client.client import ServiceBusClient
from sbclient.client.sender import ServiceBusSender
from sbclient.emulator.page.overview import detail_of, row_of
from sbclient.entities import EntityKind, settings_of
from sbclient.errors import ServiceBusQuotaExceededError
from sbclient.message import ServiceBusMessage
from sbclient.rules.failover import FailoverState
from sbclient.rules.ping import ping_message
from sbclient.testing import MemoryPair
from sbclient.worker.diagnosis import Doctor
from tests.client.scene import BACKLOG, QUEUE, until

CAPACITY_BYTES = 40_000
MINUTES_20 = 1_200.0
PAYLOAD = b"x" * 3_000

PLACES = ["queue", "topic", "forwarded", "partitioned", "sessions"]


class Scene:
    """A primary entity that is nearly full.

    Attributes:
        path: that is sent to.
        keys: of each message.
    """

    def __init__(self, pair: MemoryPair, place: str) -> None:
        self.pair, self.primary = pair, pair.primary.namespace
        self.path = QUEUE if place == "queue" else place
        self.keys: dict[str, Any] = {}
        if place == "topic":
            pair.primary.create_topic(place)
            pair.primary.create_subscription(place, "s")
        elif place == "forwarded":
            pair.primary.create_queue("target", status="SendDisabled")
            pair.primary.create_queue(place, forward_to="target")
        elif place == "partitioned":
            pair.primary.create_queue(place, enable_partitioning=True)
            self.keys = {"partition_key": "k"}
        elif place == "sessions":
            pair.primary.create_queue(place, requires_session=True)
            self.keys = {"session_id": "a"}
        self.entity, self.body = self.primary.directory.find(self.path)
        self.body.policy.max_size_bytes = CAPACITY_BYTES

    @property
    def usage(self) -> int:
        return max(fragment.usage.size_bytes for fragment in self.body.fragments)

    def sender(self, client: ServiceBusClient) -> ServiceBusSender:
        is_topic = self.entity.body is not None and self.path == "topic"
        return client.get_topic_sender(self.path) if is_topic else client.get_queue_sender(self.path)

    def enlarge(self) -> None:
        self.body.policy.max_size_bytes = 2**20


@pytest.mark.parametrize("place", PLACES)
async def test_entity_that_stays_full_is_failed_over_once(
    pair: MemoryPair, client: ServiceBusClient, place: str
) -> None:
    scene = Scene(pair, place)
    outcomes: list[bool] = []
    async with scene.sender(client) as sender:
        while scene.usage + len(PAYLOAD) + 200 < CAPACITY_BYTES:  # a gap remains that a ping would fit into
            await sender.send_messages(ServiceBusMessage(PAYLOAD, **scene.keys))
        began_at = clock.monotonic()
        for number in range(120):
            try:
                await sender.send_messages(ServiceBusMessage(PAYLOAD, **scene.keys))
                outcomes.append(True)
            except ServiceBusQuotaExceededError:
                outcomes.append(False)
            await clock.sleep(max(0.0, began_at + (number + 1) * MINUTES_20 / 120 - clock.monotonic()))
        failed = outcomes.count(False)
        assert failed <= 7  # the sends of the first interval of 60 s
        assert all(outcomes[7:])
        status = client.pair.status().entities[scene.path]
        assert status.state is FailoverState.FAILED_OVER
        assert status.diverted == 120 - failed
        names = [event.name for event in client.pair.events()]
        assert names.count("failover.engaged") == 1
        assert "failover.recovered" not in names
        scene.enlarge()
        await until(lambda: client.pair.status().entities[scene.path].state is FailoverState.HEALTHY, at_most_s=70.0)
        await sender.send_messages(ServiceBusMessage(PAYLOAD, **scene.keys))


async def test_pings_of_an_empty_entity_need_no_more_room_than_they_have(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    scene = Scene(pair, "queue")
    async with scene.sender(client) as sender:
        await sender.send_messages(ServiceBusMessage("first"))
        client.pair.mark_unhealthy(QUEUE)
        await until(lambda: client.pair.status().entities[QUEUE].state is FailoverState.HEALTHY, at_most_s=70.0)


LIMITS: Final = {"max_size_in_megabytes": (2, 2 * 2**20)}
"""A low value of each setting that limits what an entity holds, and the number that the page shows for it."""
NO_LIMITS: Final = {"max_delivery_count", "max_message_size_in_kilobytes", "size_in_bytes"}


def test_every_number_of_an_entity_is_known_to_limit_what_it_holds_or_not() -> None:
    kinds = (EntityKind.QUEUE, EntityKind.TOPIC)
    numbers = {name for kind in kinds for name, type_ in settings_of(kind).items() if type_ in (int, float)}
    assert numbers == LIMITS.keys() | NO_LIMITS, (
        "name it in LIMITS or in NO_LIMITS of tests/pairing/test_full_entities.py"
    )


@pytest.mark.parametrize("name", LIMITS)
async def test_what_is_full_by_a_limit_refuses_pings_and_is_shown_by_the_doctor_and_the_page(
    pair: MemoryPair, client: ServiceBusClient, name: str
) -> None:
    value, shown = LIMITS[name]
    entity, body = pair.secondary.namespace.directory.find(BACKLOG[0])
    setattr(entity.description, name, value)
    for field, limit in asdict(policy_of(entity.description, STD_2021)).items():
        setattr(body.policy, field, limit)
    (part,) = detail_of(entity, ())["parts"]  # before there are messages, whose number may be the same
    assert shown in part.values(), "show the limit in _part_of of emulator/page/overview.py, and in page/static"
    link = client.pair.state.secondary.open_sender(BACKLOG[0])

    for message in (ServiceBusMessage(PAYLOAD * 80), ServiceBusMessage(PAYLOAD[:400]), ping_message(message_id="m")):
        copies = [link.send(EncodedBatch([encode_message(message)]), timeout_s=9) for _ in range(999)]
        with pytest.raises(ServiceBusQuotaExceededError):
            await asyncio.gather(*copies)
    await link.close()
    found = await Doctor(client, "memory://contoso", "memory://contoso-backup").examine(sample_s=0)
    full = [each for each in found.problems if each.code == "queue_full" and name in each.advice]
    assert [f"{value:,}" in each.text for each in full] == [True], f"find {name} in _full of worker/diagnosis.py"
    assert row_of(entity, ())["state"] == "full"
