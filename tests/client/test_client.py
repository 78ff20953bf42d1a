"""Clients: opening, pairing, closing, a borrowed secondary, and the senders and receivers they create."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from azure.core.credentials import AzureSasCredential

from sbclient import clock
from sbclient.client.client import ServiceBusClient
from sbclient.delivery import ServiceBusSubQueue
from sbclient.entities import AccessRights, AuthorizationRule
from sbclient.errors import (
    InvalidOperationError,
    MessagingEntityNotFoundError,
    PairedClientError,
    ServiceBusAuthenticationError,
    ServiceBusConnectionError,
    ServiceBusError,
)
from sbclient.message import ServiceBusMessage
from sbclient.options import PairedNamespaceOptions
from sbclient.rules.failover import FailoverState
from sbclient.syphon.queue_source import QueueSource
from sbclient.testing import Fault, FaultKind, MemoryPair
from sbclient.transport.memory.transport import MemoryTransport, drop_memory_host, memory_host
from tests.client.scene import QUEUE, diverted, make_queue, options, taken, texts

SYPHONING = options(enable_syphon=True)


async def raises(client: ServiceBusClient, error: type[ServiceBusError]) -> None:
    """Every operation raises that."""
    with pytest.raises(error):
        client.get_queue_sender(QUEUE)
    with pytest.raises(error):
        client.get_queue_receiver(QUEUE)
    with pytest.raises(error):
        client.transaction()
    with pytest.raises(error):
        _ = client.administration
    with pytest.raises(error):
        _ = [session async for session in client.list_queue_sessions(QUEUE)]
    with pytest.raises(error):
        await client.__aenter__()


# -- opening -----------------------------------------------------------------------------------------------------------


async def test_the_first_use_opens_a_client(pair: MemoryPair) -> None:
    client = pair.client()
    await client.get_queue_sender(QUEUE).send_messages(ServiceBusMessage("a"))
    assert len(client.pair.status().backlog_queues) == 10
    await client.close()
    assert texts(await taken(pair)) == ["a"]


async def send_one(client: ServiceBusClient) -> None:
    await client.get_queue_sender(QUEUE).send_messages(ServiceBusMessage("a"))


FIRST_USES: dict[str, Callable[[ServiceBusClient], Awaitable[Any]]] = {
    "enter": lambda client: client.__aenter__(),
    "send": send_one,
    "receive": lambda client: client.get_queue_receiver(QUEUE).receive_messages(max_wait_time=0.1),
    "peek": lambda client: client.get_queue_receiver(QUEUE).peek_messages(),
    "begin": lambda client: client.transaction().__aenter__(),
}


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("first", FIRST_USES)
async def test_concurrent_first_uses_open_a_client_once(pair: MemoryPair, first: str, *, fails: bool) -> None:
    """Though the first one is cancelled, or all of them failed before."""

    async def running(count: int) -> Counter[str]:
        client = pair.client(SYPHONING)
        before = asyncio.all_tasks()
        for is_down in (True, False) if fails else (False,):
            if is_down:
                for host in (pair.primary, pair.secondary):
                    host.inject(Fault(FaultKind.ERROR))
            uses = [asyncio.ensure_future(use(client)) for use in (FIRST_USES[first], *FIRST_USES.values())[:count]]
            await asyncio.sleep(0)
            if count > 1:
                uses[0].cancel()
            await asyncio.gather(*uses, return_exceptions=is_down or count > 1)
            for host in (pair.primary, pair.secondary):
                host.heal()
        await clock.sleep(1.0)
        names = Counter(task.get_name() for task in asyncio.all_tasks() - before)
        await client.close()
        assert asyncio.all_tasks() <= before
        return names

    alone = await running(1)
    assert {"pinger"} < set(alone)
    assert await running(len(FIRST_USES) + 1) == alone


@pytest.mark.parametrize("steps", range(10))
async def test_closing_while_opening_leaves_no_task(pair: MemoryPair, steps: int) -> None:
    client = pair.client(SYPHONING)
    opening = asyncio.ensure_future(client.__aenter__())
    for _ in range(steps):
        await asyncio.sleep(0)
    await client.close()
    answer = (await asyncio.gather(opening, return_exceptions=True))[0]
    assert answer is client or isinstance(answer, InvalidOperationError)


async def test_without_a_secondary_there_is_no_pair(pair: MemoryPair) -> None:
    async with pair.unpaired_client() as client:
        with pytest.raises(InvalidOperationError, match="secondary"):
            _ = client.pair
        with pytest.raises(InvalidOperationError):
            await client.run_syphon()
        assert client.fully_qualified_namespace == "memory://contoso"


# -- bad arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "build",
    [
        lambda: ServiceBusClient(),
        lambda: ServiceBusClient("contoso.servicebus.windows.net"),
        lambda: ServiceBusClient("Endpoint=sb://contoso;SharedAccessKey=s3cr3t", "credential"),
        lambda: ServiceBusClient.from_connection_string("nonsense s3cr3t"),
        lambda: ServiceBusClient.from_connection_string("memory://one", secondary="nonsense s3cr3t"),
        lambda: ServiceBusClient.from_connection_string("memory://one", secondary="memory://ONE"),
        lambda: ServiceBusClient.from_connection_string("memory://one", options=PairedNamespaceOptions()),
        lambda: ServiceBusClient.from_connection_string("memory://one", user_agent="x"),
        lambda: ServiceBusClient.from_connection_string("memory://one", timeout=0),
        lambda: ServiceBusClient.from_connection_string("memory://one", retry_total=-1),
        lambda: ServiceBusClient.from_connection_string("memory://!", secondary="memory://two"),
    ],
)
def test_invalid_arguments_raise_without_showing_secrets(build: Any) -> None:
    with pytest.raises(InvalidOperationError) as caught:
        build()
    assert "s3cr3t" not in str(caught.value)
    drop_memory_host("one")


@pytest.mark.deviation("client.async-only")
def test_entering_a_client_requires_an_asyncio_event_loop() -> None:
    client = ServiceBusClient.from_connection_string("memory://contoso")
    with pytest.raises(InvalidOperationError, match="trio"):
        client.__aenter__().send(None)


async def test_a_memory_connection_string_opens_a_namespace_of_this_process() -> None:
    async with (
        ServiceBusClient.from_connection_string("memory://one", secondary="memory://two") as client,
        ServiceBusClient.from_connection_string("memory://ONE") as again,
    ):
        await client.administration.create_queue(QUEUE)
        assert (await again.administration.get_queue(QUEUE)).name == QUEUE
        assert client.pair.status().secondary == "memory://two"
    for name in ("one", "two"):
        drop_memory_host(name)


async def test_a_connection_string_with_entity_path_opens_only_that_entity() -> None:
    host = memory_host("one")
    async with ServiceBusClient.from_connection_string("memory://one") as client:
        client._entity_path = "orders"
        client.get_queue_sender("Orders")
        with pytest.raises(InvalidOperationError):
            client.get_queue_receiver("bills")
    assert host is memory_host("one")
    drop_memory_host("one")


@pytest.mark.parametrize("until", ["never", "", 0])
async def test_run_syphon_ends_when_empty_or_runs_until_cancelled(client: ServiceBusClient, until: Any) -> None:
    with pytest.raises(InvalidOperationError):
        await client.run_syphon(until=until)


@pytest.mark.deviation("client.link-options")
def test_options_of_azure_servicebus_without_an_effect_are_ignored() -> None:
    given: dict[str, Any]
    for given in ({"logging_enable": False, "uamqp_transport": False}, {"connection_verify": "ca.pem"}):
        ServiceBusClient.from_connection_string("memory://one", **given)
    with pytest.warns(UserWarning, match="logging_enable.*retry_mode") as caught:
        client = ServiceBusClient.from_connection_string("memory://one", logging_enable=True, retry_mode="fixed")
    for name in ("client_identifier", "socket_timeout"):
        options: dict[str, Any] = {name: "5"}
        for get in (client.get_queue_sender, client.get_topic_sender, client.get_queue_receiver):
            with pytest.warns(UserWarning, match=name) as more:
                get(QUEUE, **options)
            caught.list.extend(more)
        with pytest.warns(UserWarning, match=name):
            client.get_subscription_receiver("prices", "eu", **options)
    assert {warning.filename for warning in caught} == {__file__}
    with pytest.raises(TypeError, match="prefetch"):
        client.get_queue_receiver(QUEUE, prefetch=5)
    drop_memory_host("one")


@pytest.mark.parametrize(
    ("name", "namespace"),
    [
        *((name, "contoso.example") for name in ("contoso.example", " contoso.example/", "contoso.example:443")),
        *((url, "contoso.example") for url in ("https://contoso.example/", "https://contoso.example:443/")),
        ("sb://contoso.example", "contoso.example"),
        ("https://localhost:5300/", "localhost:5300"),
    ],
)
def test_namespace_may_be_a_url(name: str, namespace: str) -> None:
    client = ServiceBusClient(name, AzureSasCredential("SharedAccessSignature sr=x"))
    assert client.fully_qualified_namespace == namespace


def test_namespace_with_a_path_is_rejected_without_its_text() -> None:
    with pytest.raises(InvalidOperationError, match="not the name of a host") as caught:
        ServiceBusClient("https://contoso.example/secret", AzureSasCredential("SharedAccessSignature sr=x"))
    assert "secret" not in str(caught.value)


async def test_sub_queues_can_be_received_from(pair: MemoryPair, client: ServiceBusClient) -> None:
    dead = client.get_queue_receiver(QUEUE, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    assert dead.entity_path == f"{QUEUE}/$DeadLetterQueue"
    transfer = client.get_queue_receiver(QUEUE, sub_queue="transferdeadletter")
    assert transfer.entity_path == f"{QUEUE}/$Transfer/$DeadLetterQueue"
    for path in (dead.entity_path, transfer.entity_path):
        assert client.get_queue_receiver(path).entity_path == path
        with pytest.raises(InvalidOperationError):
            client.get_queue_receiver(path, sub_queue="deadletter")
        with pytest.raises(InvalidOperationError):
            client.get_queue_sender(path)
    path = "prices/Subscriptions/eu/$DeadLetterQueue"
    assert client.get_subscription_receiver("prices", "eu/$deadletterqueue").entity_path == path


# -- closing -----------------------------------------------------------------------------------------------------------


async def test_a_closed_client_rejects_every_operation(pair: MemoryPair) -> None:
    async with pair.client(SYPHONING) as client:
        sender, receiver = client.get_queue_sender(QUEUE), client.get_queue_receiver(QUEUE)
    await client.close()
    await raises(client, InvalidOperationError)
    for use in (sender.send_messages(ServiceBusMessage("a")), receiver.receive_messages(), client.run_syphon()):
        with pytest.raises(InvalidOperationError):
            await use


async def test_closing_ends_sends_receives_pings_and_syphons(pair: MemoryPair) -> None:
    client = pair.client(SYPHONING)
    await client.__aenter__()
    pair.primary.inject(Fault(FaultKind.HANG))
    client.pair.mark_unhealthy("bills")
    send = asyncio.ensure_future(client.get_queue_sender(QUEUE).send_messages(ServiceBusMessage("a")))
    run = asyncio.ensure_future(client.run_syphon())
    await clock.sleep(1.0)
    await client.close()
    with pytest.raises(ServiceBusConnectionError):
        await send
    with pytest.raises(InvalidOperationError):
        await run
    assert clock.monotonic() < 10.0


async def test_a_cancelled_run_syphon_raises_cancelled_error_after_close(pair: MemoryPair) -> None:
    client = pair.client()
    await client.__aenter__()
    run = asyncio.ensure_future(client.run_syphon())
    await clock.sleep(1.0)
    run.cancel()
    await client.close()
    with pytest.raises(asyncio.CancelledError):
        await run


async def test_a_client_has_a_syphon_until_the_last_one_ends(pair: MemoryPair) -> None:
    async with pair.client() as client:
        for _ in range(2):
            runs = [asyncio.ensure_future(client.run_syphon()) for _ in range(3)]
            await clock.sleep(1.0)
            for run in runs:
                assert client.pair.state.has_syphon
                run.cancel()
                await asyncio.wait([run])
            assert not client.pair.state.has_syphon


@pytest.mark.parametrize("name", [QUEUE, f"{QUEUE}/$DeadLetterQueue"])
@pytest.mark.parametrize("sub_queue", [None, *ServiceBusSubQueue])
@pytest.mark.parametrize("session_id", [None, "s"])
def test_dead_letters_have_no_session_however_they_are_named(
    client: ServiceBusClient, name: str, sub_queue: ServiceBusSubQueue | None, session_id: str | None
) -> None:
    is_twice = sub_queue is not None and name != QUEUE
    if is_twice or (session_id is not None and (sub_queue is not None or name != QUEUE)):
        with pytest.raises(InvalidOperationError):
            client.get_queue_receiver(name, sub_queue=sub_queue, session_id=session_id)
    else:
        client.get_queue_receiver(name, sub_queue=sub_queue, session_id=session_id)


async def test_closing_during_a_drain_dead_letters_no_message(pair: MemoryPair) -> None:
    client = pair.client()
    client.pair.force_failover(QUEUE)
    sender = client.get_queue_sender(QUEUE)
    for number in range(50):
        await sender.send_messages(ServiceBusMessage(str(number)))
    pair.primary.inject(Fault(FaultKind.SLOW, latency_s=1.0))
    run = asyncio.ensure_future(client.run_syphon())
    await clock.sleep(0.5)
    await client.close()
    with pytest.raises(InvalidOperationError):
        await run
    pair.primary.heal()
    await clock.sleep(70.0)
    async with pair.client() as client:
        report = await client.run_syphon(until="empty")
        assert report.dead_lettered == {}
    assert {*texts(await taken(pair))} == {str(number) for number in range(50)}


async def test_close_can_be_called_again_after_cancellation(pair: MemoryPair) -> None:
    client = pair.client()
    await client.__aenter__()
    client.pair.force_failover(QUEUE)
    await client.get_queue_sender(QUEUE).send_messages(ServiceBusMessage("a"))
    pair.primary.inject(Fault(FaultKind.SLOW, latency_s=3.0))
    run = asyncio.ensure_future(client.run_syphon())
    await clock.sleep(1.0)
    closing = asyncio.ensure_future(client.close())
    await clock.sleep(0.5)
    closing.cancel()
    await asyncio.wait([closing])
    await client.close()
    with pytest.raises(InvalidOperationError):
        await run
    transport = client._core.primary
    assert isinstance(transport, MemoryTransport)
    with pytest.raises(InvalidOperationError):
        transport.check_open()


async def test_a_failed_syphon_of_the_client_is_restarted(pair: MemoryPair, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[float] = []

    async def broken(self: QueueSource) -> None:
        runs.append(clock.monotonic())
        raise ZeroDivisionError

    monkeypatch.setattr(QueueSource, "run", broken)
    async with pair.client(SYPHONING):
        await clock.sleep(25.0)
    assert sorted({*runs}) == [0.0, 10.0, 20.0]


async def test_unreferenced_senders_are_released(pair: MemoryPair, client: ServiceBusClient) -> None:
    for _ in range(100):
        await client.get_queue_sender(QUEUE).send_messages(ServiceBusMessage("a"))
    gc.collect()
    assert len(client._core.links) <= 2


# -- a borrowed secondary ----------------------------------------------------------------------------------------------


async def test_an_open_client_can_be_the_secondary_and_is_not_closed(pair: MemoryPair) -> None:
    async with pair.unpaired_client(secondary=True) as lender:
        async with ServiceBusClient(transport=MemoryTransport(pair.primary), secondary=lender) as client:
            client.pair.force_failover(QUEUE)
            await client.get_queue_sender(QUEUE).send_messages(ServiceBusMessage("a"))
        assert len([queue async for queue in lender.administration.list_queues()]) == 10
        async with ServiceBusClient(transport=MemoryTransport(pair.primary), secondary=lender):
            pass  # the lender is free again
    assert texts(await diverted(pair)) == ["a"]


async def test_a_client_of_another_pair_is_rejected_as_secondary(pair: MemoryPair) -> None:
    async with pair.client() as paired, pair.unpaired_client(secondary=True) as lender:
        with pytest.raises(InvalidOperationError):
            ServiceBusClient(transport=MemoryTransport(pair.primary), secondary=paired)
        borrower = ServiceBusClient(transport=MemoryTransport(pair.primary), secondary=lender)
        with pytest.raises(InvalidOperationError):
            ServiceBusClient(transport=MemoryTransport(pair.primary), secondary=lender)
        await borrower.close()
    with pytest.raises(InvalidOperationError):
        ServiceBusClient(transport=MemoryTransport(pair.primary), secondary=lender)


async def test_the_same_namespace_twice_is_rejected(pair: MemoryPair) -> None:
    async with pair.unpaired_client() as lender:
        with pytest.raises(InvalidOperationError):
            ServiceBusClient(transport=MemoryTransport(pair.primary), secondary=lender)
        assert lender._borrower is None


async def test_a_partner_not_closed_within_5_s_is_faulted(pair: MemoryPair) -> None:
    lender = pair.unpaired_client(secondary=True)
    client = ServiceBusClient(transport=MemoryTransport(pair.primary), secondary=lender, options=SYPHONING)
    await client.__aenter__()
    sender = client.get_queue_sender(QUEUE)
    run = asyncio.ensure_future(client.run_syphon())
    await lender.close()
    await clock.sleep(4.5)
    await sender.send_messages(ServiceBusMessage("a"))
    await clock.sleep(1.0)
    await raises(client, PairedClientError)
    with pytest.raises(PairedClientError) as caught:
        await sender.send_messages(ServiceBusMessage("b"))
    assert isinstance(caught.value.__cause__, ServiceBusConnectionError)
    with pytest.raises(PairedClientError):
        await run
    await client.close()


async def test_closing_the_secondary_faults_the_paired_client(pair: MemoryPair) -> None:
    lender = pair.unpaired_client(secondary=True)
    async with ServiceBusClient(transport=MemoryTransport(pair.primary), secondary=lender, options=SYPHONING):
        pass
    await clock.sleep(6.0)
    await raises(lender, PairedClientError)
    await lender.close()


@pytest.mark.parametrize("enable_syphon", [False, True])
async def test_a_partner_is_faulted_only_with_a_syphon_and_after_the_grace_period(
    pair: MemoryPair, enable_syphon: bool
) -> None:
    lender = pair.unpaired_client(secondary=True)
    client = ServiceBusClient(
        transport=MemoryTransport(pair.primary), secondary=lender, options=options(enable_syphon=enable_syphon)
    )
    await client.__aenter__()
    await lender.close()
    await clock.sleep(4.0)
    if enable_syphon:
        await client.close()
    await clock.sleep(10.0)
    if enable_syphon:
        await raises(client, InvalidOperationError)
    else:
        await client.get_queue_sender(QUEUE).send_messages(ServiceBusMessage("a"))
        await client.close()


@pytest.mark.parametrize("error", [ServiceBusAuthenticationError, ServiceBusConnectionError])
@pytest.mark.parametrize("is_primary", [True, False])
async def test_a_namespace_that_refuses_everything_faults_no_client(
    pair: MemoryPair, error: type[ServiceBusError], is_primary: bool
) -> None:
    async with pair.unpaired_client(secondary=True) as lender:
        await lender.administration.create_queue("own")
        client = ServiceBusClient(transport=MemoryTransport(pair.primary), secondary=lender, options=SYPHONING)
        async with client, client.get_queue_sender(QUEUE) as sender, lender.get_queue_sender("own") as own:
            await sender.send_messages(ServiceBusMessage("a"))
            side, refused, working = (pair.primary, sender, own) if is_primary else (pair.secondary, own, sender)
            side.inject(Fault(FaultKind.ERROR, error=error))
            for _ in range(3):
                with pytest.raises(error):
                    await refused.send_messages(ServiceBusMessage("b"))
                await working.send_messages(ServiceBusMessage("c"))
                await clock.sleep(6.0)  # longer than the grace period of a closed partner
            side.heal()
            await refused.send_messages(ServiceBusMessage("d"))
            assert (await client.run_syphon(until="empty")).drained == 0


# -- mistakes of the caller --------------------------------------------------------------------------------------------


@pytest.mark.deviation("client.unknown-options")
@pytest.mark.parametrize(
    ("mistake", "advice"),
    [
        ({"secondary": "memory://s", "options": {"failover_interval": 5}}, "a PairedNamespaceOptions"),
        ({"secondary": 5}, "ServiceBusClient"),
        ({"secondary": ("contoso",)}, "ServiceBusClient"),
        ({"retry_total": "3"}, "an int"),
        ({"retry_total": 1.5}, "an int"),
        ({"retry_backoff_max": "3"}, "a number"),
        ({"timeout": timedelta(seconds=3)}, "number of seconds"),
        ({"retry_totl": 3}, "did you mean 'retry_total'?"),
        ({"loging_enable": True}, "not an option"),
    ],
    ids=str,
)
def test_a_mistake_in_an_option_is_explained(mistake: dict[str, Any], advice: str) -> None:
    with pytest.raises(InvalidOperationError) as caught:
        ServiceBusClient.from_connection_string("memory://mistakes", **mistake)
    assert advice in str(caught.value)
    drop_memory_host("mistakes")


async def test_rights_may_be_given_by_name(client: ServiceBusClient) -> None:
    rights: Any = ["Send"]
    rule = AuthorizationRule(key_name="k", rights=rights)
    queue = await client.administration.create_queue("q", authorization_rules=[rule])
    assert [rule.rights for rule in queue.authorization_rules or ()] == [[AccessRights.SEND]]


@pytest.mark.parametrize("rights", ["Send", ["Sned"], 5, None])
async def test_wrong_rights_are_rejected(client: ServiceBusClient, rights: Any) -> None:
    rules = [AuthorizationRule(key_name="k", rights=rights)]
    with pytest.raises(InvalidOperationError, match="AccessRights"):
        await client.administration.create_queue("q", authorization_rules=rules)


async def _error(work: Any) -> ServiceBusError:
    with pytest.raises(ServiceBusError) as caught:
        await work
    return caught.value


# -- sessions and secrets ----------------------------------------------------------------------------------------------


async def test_sessions_are_listed(pair: MemoryPair, client: ServiceBusClient) -> None:
    await make_queue(pair, "visits", requires_session=True)
    await client.administration.create_topic("prices")
    await client.administration.create_subscription("prices", "eu", requires_session=True)
    for sender in (client.get_queue_sender("visits"), client.get_topic_sender("prices")):
        await sender.send_messages(ServiceBusMessage("a", session_id="s"))
    assert [session async for session in client.list_queue_sessions("visits")] == ["s"]
    assert [session async for session in client.list_subscription_sessions("prices", "eu", timeout=5)] == ["s"]
    with pytest.raises(MessagingEntityNotFoundError):
        _ = [session async for session in client.list_queue_sessions("typo")]


async def test_errors_and_reprs_show_no_secret_and_no_body(pair: MemoryPair, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with (
        pair.client(PairedNamespaceOptions(failover_interval=timedelta(0), is_outage=lambda _: True)) as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        pair.primary.inject(Fault(FaultKind.DOWN))
        await sender.send_messages(ServiceBusMessage("s3cr3t", application_properties={"k": "s3cr3t"}))
        pair.secondary.inject(Fault(FaultKind.DOWN))
        with pytest.raises(ServiceBusError) as caught:
            await sender.send_messages(ServiceBusMessage("s3cr3t"))
        shown = [str(caught.value), repr(client), repr(sender), repr(client.pair.status()), repr(client.pair.events())]
        shown += [repr(vars(record)) for record in caplog.records]
    assert client.pair.status().entities[QUEUE].state is FailoverState.FAILED_OVER
    assert not [text for text in shown if "s3cr3t" in text]
