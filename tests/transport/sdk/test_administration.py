"""The requests that the administration client sends: their bytes, and what the emulator does with them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import pytest
from azure.core.pipeline.transport import AioHttpTransport

from sbclient import ServiceBusClient, ServiceBusError
from sbclient.administration import AccessRights, AuthorizationRule, ServiceBusAdministrationClient
from sbclient.emulator import Emulator
from sbclient.formats.description_tables import KINDS, TABLES

pytestmark = pytest.mark.real_time


class Recorder:
    """The bodies of the requests of the SDK."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def elements(self) -> list[str]:
        """The elements of the last description."""
        (described,) = ElementTree.fromstring(self.bodies[-1]).iterfind("{*}content/*")
        return [element.tag.rpartition("}")[2] for element in described]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    found, send = Recorder(), AioHttpTransport.send

    async def recorded(self: AioHttpTransport, request: Any, **options: Any) -> Any:
        if request.body:
            assert request.headers["Content-Length"] == str(len(request.body))
            found.bodies.append(request.body)
        return await send(self, request, **options)

    monkeypatch.setattr(AioHttpTransport, "send", recorded)
    return found


@pytest.fixture
async def emulator(tmp_path: Path) -> AsyncIterator[Emulator]:
    async with Emulator("contoso", seed=1, certificate_directory=tmp_path) as served:
        yield served


@pytest.fixture
async def client(emulator: Emulator) -> AsyncIterator[ServiceBusAdministrationClient]:
    async with ServiceBusAdministrationClient.from_connection_string(
        emulator.connection_string, connection_verify=str(emulator.certificate_path)
    ) as connected:
        yield connected


def is_in_order(kind: str, elements: list[str]) -> bool:
    places = [list(TABLES[KINDS[kind]]).index(name) for name in elements]
    return places == sorted(places)


async def test_queue_is_described_in_the_order_of_the_service(
    client: ServiceBusAdministrationClient, recorder: Recorder, emulator: Emulator
) -> None:
    await client.create_queue("target")
    rule = AuthorizationRule(key_name="worker", rights=[AccessRights.SEND])
    await client.create_queue(
        "q",
        forward_to="target",
        forward_dead_lettered_messages_to="target",
        user_metadata="<&>",
        enable_express=True,
        enable_partitioning=False,
        authorization_rules=[rule],
    )
    elements = recorder.elements()
    assert elements.index("ForwardTo") < elements.index("EnablePartitioning")
    assert elements.index("ForwardDeadLetteredMessagesTo") < elements.index("EnableExpress")
    assert is_in_order("QueueDescription", elements)
    found = await client.get_queue("q")
    await client.update_queue(found, max_delivery_count=7)
    assert is_in_order("QueueDescription", recorder.elements())
    found = await client.get_queue("q")
    assert (found.forward_to, found.forward_dead_lettered_messages_to) == ("target", "target")
    assert (found.user_metadata, found.max_delivery_count, found.enable_express) == ("<&>", 7, True)
    assert [each.key_name for each in found.authorization_rules or ()] == ["worker"]
    assert not [event for event in emulator.context().events.recent if "elements" in event]


async def test_topic_and_subscription_are_described_in_the_order_of_the_service(
    client: ServiceBusAdministrationClient, recorder: Recorder, emulator: Emulator
) -> None:
    await client.create_queue("target")
    await client.create_topic("t", user_metadata="topic", support_ordering=True, enable_express=False)
    assert is_in_order("TopicDescription", recorder.elements())
    await client.create_subscription(
        "t", "s", forward_to="target", forward_dead_lettered_messages_to="target", user_metadata="subscription"
    )
    assert is_in_order("SubscriptionDescription", recorder.elements())
    await client.update_subscription("t", await client.get_subscription("t", "s"), max_delivery_count=7)
    assert is_in_order("SubscriptionDescription", recorder.elements())
    topic, found = await client.get_topic("t"), await client.get_subscription("t", "s")
    assert (topic.user_metadata, found.user_metadata) == ("topic", "subscription")
    assert (found.forward_to, found.forward_dead_lettered_messages_to) == ("target", "target")
    assert not [event for event in emulator.context().events.recent if "elements" in event]


RULES: Final = """
import asyncio, pathlib, sys
sys.modules["_elementtree"] = None  # so that the class of elements can be changed
from xml.etree import ElementTree
ElementTree.Element.__bool__ = lambda self: True
from sbclient.administration import *
from sbclient.emulator import Emulator

async def main():
    async with Emulator("contoso", certificate_directory=pathlib.Path(sys.argv[1])) as emulator:
        async with ServiceBusAdministrationClient.from_connection_string(
            emulator.connection_string, connection_verify=str(emulator.certificate_path)
        ) as client:
            await client.create_topic("t")
            await client.create_subscription("t", "s")
            action = SqlRuleAction("SET n = @n", {"@n": 2})
            filters = [
                SqlRuleFilter("colour = @colour", {"@colour": "blue"}),
                CorrelationRuleFilter(label="red", properties={"n": 1}),
                TrueRuleFilter(),
                FalseRuleFilter(),
            ]
            for number, chosen in enumerate(filters):
                made = await client.create_rule("t", "s", str(number), filter=chosen, action=action)
                assert (made.filter, made.action) == (chosen, action), made
                await client.update_rule("t", "s", made, action=None)
            listed = {rule.name: rule async for rule in client.list_rules("t", "s")}
            for number, chosen in enumerate(filters):
                assert (listed[str(number)].filter, listed[str(number)].action) == (chosen, None), listed

asyncio.run(main())
"""


def test_rules_are_right_where_every_xml_element_is_true(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", RULES, str(tmp_path)], check=True)


@pytest.mark.parametrize("transport", ["amqp", "sdk"])
async def test_error_has_the_reason_of_the_emulator_beside_the_words_of_the_service(
    emulator: Emulator, transport: str
) -> None:
    trust: dict[str, Any] = {"connection_verify": str(emulator.certificate_path)}
    async with ServiceBusClient.from_connection_string(
        emulator.connection_string, transport=transport, **trust
    ) as client:
        administration = client.administration
        await administration.create_queue("orders")
        for refused in (
            administration.create_queue("big", max_message_size_in_kilobytes=2048),
            administration.create_queue("grouped", requires_session=True, forward_to="orders"),
            administration.create_topic("orders"),
        ):
            with pytest.raises(ServiceBusError, match=r"The emulator's reason: .*(2048|not forwarded|choose another)"):
                await refused


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_disconnect_ends_no_request_of_another_caller(
    client: ServiceBusAdministrationClient, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    send, entered, may_go = AioHttpTransport.send, asyncio.Event(), asyncio.Event()

    async def late(self: AioHttpTransport, request: Any, **options: Any) -> Any:
        entered.set()
        await may_go.wait()
        return await send(self, request, **options)

    await client.create_queue("orders")
    monkeypatch.setattr(AioHttpTransport, "send", late)
    running = asyncio.ensure_future(client.get_queue("orders"))
    await entered.wait()
    if is_cancelled:
        running.cancel()
    await client._transport.administration.disconnect()
    may_go.set()
    if is_cancelled:
        with pytest.raises(asyncio.CancelledError):
            await running
    else:
        assert (await running).name == "orders"
    assert (await client.get_queue("orders")).name == "orders"
