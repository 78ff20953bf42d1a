"""What clients of JMS ask of a Premium namespace, in raw frames. `.ci/proofs programs` runs real clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from sbclient import clock
from sbclient.amqp import (
    ACCEPTED,
    Declared,
    DeliveryReceived,
    EncodedMessage,
    IncomingDelivery,
    IncomingLink,
    LinkDrained,
    OutgoingLink,
    Source,
    Target,
    TransactionalState,
)
from sbclient.amqp.types import Described
from sbclient.broker.entry import WORK_AT_ONCE, Entry, Selector
from sbclient.broker.faults import Fault, FaultKind, Operation
from sbclient.broker.profile import PREM_2021
from sbclient.emulator.amqp import jms
from sbclient.emulator.amqp.conditions import TRANSACTION_ROLLBACK
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.management.api import ManagementApi
from sbclient.entities import EntityKind
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage
from tests.emulator.amqp.client import Client, condition_of, connected, create
from tests.emulator.requests import request
from tests.payloads import encode_sections

SELECTOR = 0x468C00000004
TOPIC: dict[str, Any] = {"capabilities": ("topic",)}
DURABLE: dict[str, Any] = {"durable": 2, "expiry_policy": "never", "distribution_mode": "copy"}


@pytest.fixture
def host() -> BrokerHost:
    host = BrokerHost("contoso", random=Random(1), profile=PREM_2021)
    create(host, EntityKind.QUEUE, "q")
    create(host, EntityKind.TOPIC, "t")
    return host


def selecting(text: Any) -> dict[str, Any]:
    return {"filter": {"jms-selector": Described(SELECTOR, text)}}


async def received_from(client: Client, name: str = "link", **source: Any) -> IncomingLink:
    link = client.session.attach_receiver(name, source=Source(**source))
    await client.attached(link)
    return link


async def bodies(client: Client, link: IncomingLink, count: int) -> list[str]:
    """The next messages of a link, accepted."""
    link.grant(count)
    client.flush()
    deliveries = [(await client.event(DeliveryReceived, link, within_s=100)).delivery for _ in range(count)]
    for each in deliveries:
        if not each.is_settled:
            await client.settle(each, ACCEPTED)
    return [text_of(each) for each in deliveries]


async def detached(client: Client, link: IncomingLink | OutgoingLink, path: str, *, closed: bool = True) -> None:
    """Detach a link, and wait until the server has handled that."""
    link.detach(closed=closed)
    await client.sender(path)


def text_of(delivery: IncomingDelivery) -> str:
    return str(EncodedMessage.of(delivery.payload).decoded())


async def numbered(client: Client, path: str, *numbers: int) -> None:
    link = await client.sender(path)
    for number in numbers:
        await client.send(link, ServiceBusMessage(str(number), application_properties={"n": number}))


def subscriptions(host: BrokerHost) -> list[str]:
    return [each.description.name for each in host.namespace.directory.all() if each.topic is not None]


@pytest.mark.deviation("broker.jms")
async def test_a_receiver_with_a_selector_gets_what_it_matches(context: NamespaceContext) -> None:
    async with connected(context, "q") as client:
        await numbered(client, "q", *range(10))
        link = await received_from(client, address="q", **selecting("n >= 5"))
        assert client.granted(link)["jms-selector"].value == "n >= 5"
        assert await bodies(client, link, 5) == ["5", "6", "7", "8", "9"]
        plain = await received_from(client, "plain", address="q")
        assert await bodies(client, plain, 5) == ["0", "1", "2", "3", "4"]
        link.grant(1)
        client.flush()
        await client.sender("q")  # the first receiver waits
        plain.grant(1)
        await numbered(client, "q", 1)
        assert text_of((await client.event(DeliveryReceived, plain)).delivery) == "1"
        await numbered(client, "q", 11)
        assert text_of((await client.event(DeliveryReceived, link)).delivery) == "11"


@pytest.mark.parametrize("drain", [False, True])
async def test_a_message_behind_many_others_is_selected(context: NamespaceContext, drain: bool) -> None:
    async with connected(context, "q") as client:
        last = 2 * WORK_AT_ONCE // jms._STEPS_OF_A_MESSAGE + 1
        await numbered(client, "q", *range(last + 1))
        link = await received_from(client, address="q", **selecting(f"n = {last}"))
        link.grant(2, drain=drain)
        client.flush()
        assert text_of((await client.event(DeliveryReceived, link)).delivery) == f"{last}"


async def test_abandoned_messages_are_selected_again(context: NamespaceContext) -> None:
    async with connected(context, "q") as client:
        await numbered(client, "q", 1, 2, 3)
        plain = await received_from(client, "plain", address="q")
        plain.grant(3)
        client.flush()
        taken = [(await client.event(DeliveryReceived, plain)).delivery for _ in range(3)]
        for each in taken:
            each.settle(settled=True)  # without an outcome: released
        link = await received_from(client, address="q", **selecting("n = 2"))
        assert await bodies(client, link, 1) == ["2"]
        assert await bodies(client, plain, 2) == ["1", "3"]


@pytest.mark.deviation("broker.jms")
@pytest.mark.parametrize("text", ["n >=", "n BETWEEN 1 AND 2", "JMSPriority > 3", 7])
async def test_a_selector_that_is_not_valid_is_refused(context: NamespaceContext, text: Any) -> None:
    async with connected(context, "q") as client:
        link = client.session.attach_receiver("link", source=Source("q", **selecting(text)))
        client.flush()
        assert await client.refusal(link) == "amqp:invalid-field"


@pytest.mark.promise("emulator.selectors")
@pytest.mark.deviation("broker.jms")
async def test_a_selector_that_takes_much_work_is_refused_at_once(
    context: NamespaceContext, record_property: Callable[[str, object], None]
) -> None:
    hostile = (
        *("NOT " * 250 + "n = 1", "n = 1" + " OR n = 1" * 5_000, "'" * 60_001, "n LIKE '" + "%a" * 3_000 + "'"),
        *("n = " + "9" * 60_000, "JMS" * 20_000, "n = 1e999999", "n IN (" + "1," * 20_000),
    )
    async with connected(context, "q") as client:
        began_at = time.thread_time()
        for number, text in enumerate(hostile):
            link = client.session.attach_receiver(f"link {number}", source=Source("q", **selecting(text)))
            client.flush()
            assert await client.refusal(link) == "amqp:invalid-field", text[:20]
        assert time.thread_time() - began_at < 1.0
    record_property("attacks", len(hostile))
    record_property("bytes", max(map(len, hostile)))


@pytest.mark.promise("emulator.selectors")
@pytest.mark.parametrize("mode", ["move", "copy"])
async def test_one_receiver_evaluates_its_selector_in_a_step(
    context: NamespaceContext, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, work = 0, dict[int, int]()
    compiled = jms.compile_selector

    def compile_selector(text: str) -> Selector:
        matches = compiled(text).matches

        def counted(entry: Entry) -> tuple[bool, int]:
            work[step] = work.get(step, 0) + 1
            return matches(entry)[0], WORK_AT_ONCE // 4

        return Selector(counted)

    async def count() -> None:
        nonlocal step
        for _ in range(1_000):
            step += 1
            await clock.sleep(0)

    monkeypatch.setattr(jms, "compile_selector", compile_selector)
    async with connected(context, "q") as client:
        await numbered(client, "q", *range(21))
        counting = asyncio.ensure_future(count())
        links = [
            await received_from(client, f"{number}", address="q", distribution_mode=mode, **selecting("n = 20"))
            for number in range(5)
        ]
        for link in links:
            link.grant(100)
        client.flush()
        await counting
    assert sum(work.values()) >= 5 * 20
    assert max(work.values()) == 4


async def test_a_browser_takes_nothing(context: NamespaceContext) -> None:
    async with connected(context, "q") as client:
        await numbered(client, "q", 1, 2, 3)
        link = await received_from(client, address="q", distribution_mode="copy", **selecting("n <> 2"))
        assert await bodies(client, link, 2) == ["1", "3"]
        link.grant(5, drain=True)
        client.flush()
        await client.event(LinkDrained, link)
        plain = await received_from(client, "plain", address="q")
        assert await bodies(client, plain, 3) == ["1", "2", "3"]


@pytest.mark.deviation("broker.jms")
async def test_a_temporary_queue_ends_with_its_link(context: NamespaceContext) -> None:
    async with connected(context, "") as client:
        link = client.session.attach_sender("link", target=Target(dynamic=True, capabilities=("temporary-queue",)))
        await client.attached(link)
        target = client.answer(link).target
        assert isinstance(target, Target)
        assert await client.send(link, ServiceBusMessage("x")) == ACCEPTED
        assert await bodies(client, await received_from(client, "reader", address=target.address), 1) == ["x"]
        await detached(client, link, "q")
        assert context.host.namespace.directory.get(target.address) is None


@pytest.mark.deviation("broker.jms")
async def test_a_delivery_time_schedules(context: NamespaceContext) -> None:
    async with connected(context, "q") as client:
        link, at_ms = await client.sender("q"), int((clock.now() + 60) * 1000)
        payload = encode_sections(message_annotations={"x-opt-delivery-time": at_ms}, data=[b"later"])
        assert await client.transfer(link, payload) == ACCEPTED
        reader = await received_from(client, address="q")
        began = clock.now()
        assert await bodies(client, reader, 1) == ["later"]
        assert clock.now() - began == pytest.approx(60, abs=1)


@pytest.mark.deviation("broker.jms")
async def test_subscriptions_of_clients_live_as_long_as_they_say(context: NamespaceContext, host: BrokerHost) -> None:
    async with connected(context, "t") as client:
        plain = await received_from(client, "plain", address="t", **TOPIC)
        shared = await received_from(
            client, "crew|volatile1", address="t", capabilities=("topic", "shared"), **selecting("n = 2")
        )
        second = await received_from(client, "crew|volatile2", address="t", capabilities=("topic", "shared"))
        durable = await received_from(client, "mine", address="t", **TOPIC, **DURABLE)
        assert subscriptions(host) == ["plain$client$ND", "crew$client$ND", "mine$client$D"]
        await numbered(client, "t", 1, 2)
        assert await bodies(client, plain, 2) == await bodies(client, durable, 2) == ["1", "2"]
        assert await bodies(client, second, 1) == ["2"]
        for link in (plain, shared, durable):
            await detached(client, link, "t", closed=link is not durable)
        assert subscriptions(host) == ["crew$client$ND", "mine$client$D"]
        await numbered(client, "t", 3)
        assert await bodies(client, await received_from(client, "mine", address="t", **TOPIC, **DURABLE), 1) == ["3"]
    assert subscriptions(host) == ["mine$client$D"]
    shown = await ManagementApi(context).answer(request("GET", "/t/subscriptions/mine$client$D?api-version=2021-05"))
    assert b"<IsClientAffine>false</IsClientAffine>" in shown.body


async def test_only_a_durable_subscriber_takes_a_subscription_that_others_have_made(
    context: NamespaceContext, host: BrokerHost
) -> None:
    create(host, EntityKind.SUBSCRIPTION, "t", "mine")
    durable: dict[str, Any] = {"address": "t", **TOPIC, **DURABLE}
    async with connected(context, "t") as client:
        await numbered(client, "t", 1)
        for number in (1, 2):  # it stays when its receiver leaves
            link = await received_from(client, "mine", **durable)
            assert await bodies(client, link, 1) == [str(number)]
            await numbered(client, "t", number + 1)
            await detached(client, link, "t")
            assert subscriptions(host) == ["mine"]
        other = await received_from(client, "mine", address="t", **TOPIC)
        assert subscriptions(host) == ["mine", "mine$client$ND"]
        await detached(client, other, "t")
        assert subscriptions(host) == ["mine"]


async def test_a_subscription_that_is_not_shared_has_one_receiver(context: NamespaceContext) -> None:
    async with connected(context, "t") as client:
        await received_from(client, "mine", address="t", **TOPIC, **DURABLE)
        client.begin()
        link = client.session.attach_receiver("mine", source=Source("t", **TOPIC, **DURABLE))
        client.flush()
        assert await client.refusal(link) == "amqp:not-allowed"


async def test_a_link_without_a_source_unsubscribes(context: NamespaceContext, host: BrokerHost) -> None:
    async with connected(context, "t") as client:

        def looked_up(name: str) -> IncomingLink:
            link = client.session.attach_receiver(name, source=None)  # type: ignore[arg-type]
            client.flush()
            return link

        assert await client.refusal(looked_up("mine")) == "amqp:not-found"
        durable = await received_from(client, "mine", address="t", **TOPIC, **DURABLE)
        client.begin()
        assert await client.refusal(looked_up("mine")) == "amqp:not-allowed"
        durable.detach(closed=False)
        await client.sender("t")
        link = looked_up("mine")
        await client.attached(link)
        await detached(client, link, "t")
        assert subscriptions(host) == []


@pytest.mark.parametrize("ends_by", ["a rollback", "a commit that fails", "the end of its control link", "a later end"])
async def test_a_transaction_that_fails_returns_what_was_settled_for_good(
    context: NamespaceContext, ends_by: str
) -> None:
    async with connected(context, "q") as client:
        await numbered(client, "q", 1, 2)
        link = await client.receiver("q", credit=2)
        deliveries = [(await client.event(DeliveryReceived, link)).delivery for _ in range(2)]
        for cycle in (1, 2):
            coordinator = await client.coordinator()
            declared = await client.declare(coordinator)
            assert isinstance(declared, Declared)
            for delivery in deliveries:
                delivery.settle(TransactionalState(declared.txn_id, ACCEPTED), settled=True)
            if ends_by == "a later end":  # of its control link, in another step than the settlement
                client.flush()
                await asyncio.sleep(1)
            if ends_by in ("the end of its control link", "a later end"):
                coordinator.detach()
            elif ends_by == "a commit that fails":
                context.host.inject(Fault(FaultKind.ERROR, "q", operations=(Operation.TRANSACTION,), count=1))
                assert condition_of(await client.discharge(coordinator, declared.txn_id)) == TRANSACTION_ROLLBACK
            else:
                assert await client.discharge(coordinator, declared.txn_id, fail=True) == ACCEPTED
            link.grant(2)
            client.flush()
            deliveries = [(await client.event(DeliveryReceived, link)).delivery for _ in range(2)]
            assert [EncodedMessage.of(each.payload).header.delivery_count for each in deliveries] == [cycle, cycle]
        declared = await client.declare(coordinator := await client.coordinator())
        assert isinstance(declared, Declared)
        for delivery in deliveries:
            delivery.settle(TransactionalState(declared.txn_id, ACCEPTED), settled=True)
        assert await client.discharge(coordinator, declared.txn_id) == ACCEPTED
    assert len(context.host.namespace.queue("q")) == 0
