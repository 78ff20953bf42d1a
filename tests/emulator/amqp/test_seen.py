"""Behaviour that traces and recordings of the real service show, in raw frames. Each test states one of its facts."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from sbclient import clock
from sbclient.amqp import (
    ACCEPTED,
    AmqpError,
    Attach,
    Modified,
    Properties,
    Sections,
    Source,
    Target,
)
from sbclient.amqp.performatives import (
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    SaslMechanisms,
    SaslOutcome,
    Transfer,
)
from sbclient.amqp.types import Described, Int, Symbol, longs
from sbclient.broker.faults import Call, Operation
from sbclient.broker.profile import PROFILES
from sbclient.emulator.context import NamespaceContext, ServerSettings
from sbclient.emulator.faults import WireFaults
from sbclient.emulator.sas import ROOT_KEY, ROOT_KEY_NAME, Authorizer
from sbclient.entities import EntityAddress, EntityKind, EntityStatus, QueueProperties
from sbclient.hosting.host import BrokerHost
from sbclient.rules.shared_access_signature import sign
from tests.emulator.amqp.client import create, put
from tests.emulator.amqp.raw import RECEIVER, Raw, detached, flow, raw_client, receiver, sender, taken
from tests.payloads import encode_sections

SESSION_FILTER = "com.microsoft:session-filter"
NUMBER = "x-opt-sequence-number"


def text_of(detach: Detach | Close | End) -> str:
    assert detach.error is not None
    return detach.error.description or ""


# Connection ----------------------------------------------------------------------------------------------------------


async def test_external_is_offered_and_welcomed(context: NamespaceContext) -> None:
    async with raw_client(context) as raw:
        opened = await raw.open(max_frame_size=32_768)
        assert opened.max_frame_size == 32_768  # the smaller of the two
        assert (await raw.next(SaslMechanisms)).mechanisms == ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
        assert raw.outcome == SaslOutcome(0, b"Welcome!")


async def test_external_needs_a_token(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "q")
    async with raw_client(context) as raw:
        await raw.open(mechanism="EXTERNAL")
        raw.write(receiver("r", 0, "q"))
        assert await detached(raw) == "amqp:unauthorized-access"


async def test_silent_connection_is_closed_after_the_announced_time(context: NamespaceContext) -> None:
    async with raw_client(context) as raw:
        opened = await raw.open()
        began_at = clock.monotonic()
        closed = await raw.next(Close, within_s=1_000)
        assert closed.error == AmqpError(
            "amqp:connection:forced",
            f"The connection was inactive for more than the allowed {opened.idle_time_out} milliseconds and is closed "
            "by container 'contoso'.",
        )
        assert 240 <= clock.monotonic() - began_at <= 246


@pytest.mark.parametrize(("profile", "is_refused"), [("std-2021", True), ("prem-2021", False)])
async def test_jms_2_needs_a_premium_namespace(profile: str, is_refused: bool) -> None:
    host = BrokerHost("contoso", random=Random(1), profile=PROFILES[profile])
    context = NamespaceContext(host=host, authorizer=Authorizer(), wire_faults=WireFaults(Random(2)))
    async with raw_client(context) as raw:
        with suppress(TimeoutError):  # a refused client gets no begin
            await raw.open(properties={"com.microsoft:is-client-provider": True})
        if is_refused:
            assert (await raw.next(Close)).error == AmqpError(
                "amqp:not-implemented",
                "Full JMS 2.0 parity over AMQP is a feature supported only by a Premium Messaging namespace.",
            )
        else:
            with pytest.raises(TimeoutError):
                await raw.next(Close, within_s=10)


async def test_original_client_has_several_reply_links_of_cbs(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "q")
    token = sign("sb://contoso.example/q", ROOT_KEY_NAME, ROOT_KEY, clock.now() + 600)
    async with raw_client(context) as raw:
        await raw.open(mechanism="EXTERNAL")
        for number in range(3):
            source, handle = f"$cbs/{number:032x}", 2 * number
            raw.write(
                sender(f"to{number}", handle, "$cbs"),
                Attach(f"from{number}", handle + 1, RECEIVER, source=Source(source), target=Target("x")),
                flow(handle + 1, credit=1),
            )
        for number in (1, 0, 2):
            payload = encode_sections(
                properties=Properties(message_id=str(number), reply_to=f"$cbs/{number:032x}"),
                application_properties={"operation": "put-token", "type": "t", "name": "sb://contoso.example/q"},
                value=token,
            )
            raw.write((Transfer(2 * number, number, b"t", 0, settled=True), payload))
            transfer = await raw.next(Transfer)
            reply = Sections(raw.payloads[transfer.delivery_id or 0])
            assert reply.application_properties["status-code"] == 202
            assert reply.properties.correlation_id == str(number)
            attached = [frame for frame in raw.frames(Attach) if frame.name == f"from{number}"]
            assert transfer.handle == attached[0].handle


@pytest.mark.deviation("emulator.frame-details", "emulator.cbs-replies")
async def test_details_of_frames_that_differ_from_those_of_the_service(
    context: NamespaceContext, host: BrokerHost
) -> None:
    create(host, EntityKind.QUEUE, "q")
    put(host, "q", "x")
    async with raw_client(context) as raw:
        assert (await raw.open()).container_id == "contoso"
        assert raw.begun is not None
        assert raw.begun.next_outgoing_id == 0
        raw.write(receiver("r", 0, "q"), flow(0, credit=1))
        await raw.next(Attach)
        assert (await raw.next(Transfer)).batchable is False
        raw.write(sender("to", 1, "$cbs"), receiver("from", 2, "$cbs"))
        assert (await raw.next(Attach)).max_message_size == 2**20
        token = sign("sb://contoso.example/q", ROOT_KEY_NAME, ROOT_KEY, clock.now() + 600)
        payload = encode_sections(
            properties=Properties(message_id="1", reply_to="here"),
            application_properties={"operation": "put-token", "type": "t", "name": "sb://contoso.example/q"},
            value=token,
        )
        raw.write((Transfer(1, 0, b"t", 0, settled=True), payload))
        assert (await raw.next(Transfer)).settled is True


async def test_one_reply_link_of_plain_cbs(context: NamespaceContext) -> None:
    async with raw_client(context) as raw:
        await raw.open(mechanism="EXTERNAL")
        raw.write(receiver("one", 0, "$cbs"), receiver("two", 1, "$cbs"))
        refused = await raw.next(Detach)
        assert text_of(refused) == "A link to connection 'contoso' $cbs node has already been opened."


async def test_credit_of_cbs(context: NamespaceContext) -> None:
    async with raw_client(context) as raw:
        await raw.open()
        raw.write(sender("tokens", 0, "$cbs"))
        assert (await raw.next(Flow)).link_credit == 100


@pytest.mark.parametrize(
    ("change", "status", "text"),
    [
        (lambda token: token.replace("sig=", "sig=x"), 401, "InvalidSignature: The token has an invalid signature."),
        (lambda token: token.replace("skn=", "skn=x"), 401, "InvalidSignature: The token has an invalid signature."),
        (lambda token: token.replace("skn=", "x="), 401, "MalformedToken: "),
        (lambda token: re.sub("&se=[0-9]+", "", token), 500, "The service was unable to process the request"),
        (
            lambda _: sign("sb://contoso.example/other", ROOT_KEY_NAME, ROOT_KEY, clock.now() + 600),
            401,
            "InvalidAudience: The authorization header contains a token with a wrong audience.",
        ),
    ],
)
async def test_texts_of_refused_tokens(
    context: NamespaceContext, host: BrokerHost, change: Any, status: int, text: str
) -> None:
    create(host, EntityKind.QUEUE, "q")
    token = sign("sb://contoso.example/q", ROOT_KEY_NAME, ROOT_KEY, clock.now() + 600)
    async with raw_client(context) as raw:
        await raw.open()
        reply = await raw.request("$cbs", "put-token", change(token), name="sb://contoso.example/q")
    assert reply.application_properties["status-code"] == status
    assert reply.application_properties["status-description"].startswith(text)


# Links ---------------------------------------------------------------------------------------------------------------


@pytest.mark.deviation("broker.jms")
async def test_durable_subscriber_of_a_topic_receives_from_the_subscription_of_that_name(
    context: NamespaceContext, host: BrokerHost
) -> None:
    create(host, EntityKind.TOPIC, "t")
    create(host, EntityKind.SUBSCRIPTION, "t", "orders")
    put(host, "t", "x")
    source = Source("t", durable=2, capabilities=(Symbol("topic"),))
    async with raw_client(context) as raw:
        await raw.open()
        raw.write(Attach("orders", 0, RECEIVER, source=source, target=Target("here")), flow(0, credit=1))
        assert await raw.messages(1) == ["x"]
        raw.write(Attach("nobody", 1, RECEIVER, source=source, target=Target("here")))
        assert await detached(raw) == "amqp:not-found"


@pytest.mark.parametrize(("entity_type", "is_refused"), [(0, False), (1, True), (2, True), (9, False)])
async def test_another_entity_type_is_refused(
    context: NamespaceContext, host: BrokerHost, entity_type: int, is_refused: bool
) -> None:
    create(host, EntityKind.QUEUE, "q")
    async with raw_client(context) as raw:
        await raw.open()
        raw.write(sender("s", 0, "q", properties={"com.microsoft:entity-type": Int(entity_type)}))
        if is_refused:
            assert await detached(raw) == "amqp:not-allowed"
        else:
            assert (await raw.next(Attach)).target is not None


@pytest.mark.parametrize(("stated", "answered"), [(1_000, 1_000), (0, 262_144), (2**64 - 1, 262_144)])
async def test_attach_of_a_sender_states_the_smaller_message_size(
    stated: int, answered: int, context: NamespaceContext, host: BrokerHost
) -> None:
    create(host, EntityKind.QUEUE, "q")
    async with raw_client(context) as raw:
        await raw.open()
        raw.write(sender("s", 0, "q", max_message_size=stated))
        assert (await raw.next(Attach)).max_message_size == answered


async def test_idle_links_are_detached_with_their_timer(host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "q")
    settings = ServerSettings(idle_link_timeout_s=120)
    context = NamespaceContext(host=host, authorizer=Authorizer(), wire_faults=WireFaults(Random(2)), settings=settings)
    async with raw_client(context) as raw:
        await raw.open()
        raw.write(sender("s", 0, "q"), receiver("r", 1, "q"))
        texts = set()
        for _ in range(2):
            texts.add(text_of(await raw.next(Detach, within_s=1_000)))
        assert texts == {
            "The link 's' is force detached. Code: publisher(s). Details: AmqpMessagePublisher.IdleTimerExpired: "
            "Idle timeout: 00:02:00.",
            "The link 'r' is force detached. Code: consumer(r). Details: AmqpMessageConsumer.IdleTimerExpired: "
            "Idle timeout: 00:02:00.",
        }


async def test_each_use_of_a_link_begins_its_timer_anew(host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "q")
    create(host, EntityKind.QUEUE, "p", lock_duration=timedelta(minutes=5))
    settings = ServerSettings(idle_link_timeout_s=120)
    context = NamespaceContext(host=host, authorizer=Authorizer(), wire_faults=WireFaults(Random(2)), settings=settings)
    async with raw_client(context) as raw:
        await raw.open()
        await raw.attach(sender("s", 0, "q"), receiver("r", 1, "q"), receiver("cbs", 2, "$cbs"), receiver("p", 3, "p"))
        put(host, "p", *map(str, range(6)))
        raw.write(flow(3, credit=6))
        for number in range(6):
            await clock.sleep(100)
            raw.write(Disposition(RECEIVER, number, state=ACCEPTED, settled=True))
            raw.write((Transfer(0, number, b"t", 0, True), encode_sections(data=[b"m"])), flow(1, credit=number + 1))
        with pytest.raises(TimeoutError):
            await raw.next(Detach, within_s=0.1)
        used_at = clock.monotonic()
        assert {(await raw.next(Detach, within_s=1_000)).handle for _ in range(3)} == {0, 1, 3}  # a node has no timer
        assert 119 <= clock.monotonic() - used_at <= 240


@pytest.mark.deviation("emulator.idle-links")
async def test_without_the_setting_idle_links_and_connections_without_links_are_kept(
    context: NamespaceContext, host: BrokerHost
) -> None:
    create(host, EntityKind.QUEUE, "q")
    async with raw_client(context) as raw, raw_client(context) as bare:
        await raw.open()
        await bare.open()
        raw.write(sender("s", 0, "q"), receiver("r", 1, "q"))
        for _ in range(20):
            await clock.sleep(100)
            raw.write(flow())
            bare.write(flow())
        with pytest.raises(TimeoutError):
            await raw.next(Detach, within_s=1)
        with pytest.raises(TimeoutError):
            await bare.next(Close, within_s=1)


async def test_filter_that_is_not_applied_is_not_echoed(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "q")
    selector = {"apache.org:selector-filter:string": Described(Symbol("apache.org:selector-filter:string"), "a = 1")}
    async with raw_client(context) as raw:
        await raw.open()
        raw.write(receiver("r", 0, "q", filters=selector))
        source = (await raw.next(Attach)).source
        assert source is not None
        assert source.filter is None


@pytest.mark.deviation("emulator.updated-entities")
@pytest.mark.parametrize("place", ["q", "t/Subscriptions/s"])
async def test_update_detaches_the_receivers_of_an_entity(
    context: NamespaceContext, host: BrokerHost, place: str
) -> None:
    create(host, EntityKind.QUEUE, "q")
    create(host, EntityKind.QUEUE, "other")
    create(host, EntityKind.TOPIC, "t")
    create(host, EntityKind.SUBSCRIPTION, "t", "s")
    address = (
        EntityAddress(EntityKind.QUEUE, ("q",)) if place == "q" else EntityAddress(EntityKind.SUBSCRIPTION, ("t", "s"))
    )
    async with raw_client(context) as raw:
        await raw.open()
        raw.write(receiver("r", 0, place), flow(0, credit=1), receiver("o", 1, "other"), sender("s", 2, "q"))
        for _ in range(3):
            await raw.next(Attach)
        management = host.namespace.management
        properties = management.get(Call(Operation.MANAGE, clock.now()), address)
        assert not isinstance(properties, QueueProperties) or properties.status is EntityStatus.ACTIVE
        updated_at = clock.monotonic()
        management.update(Call(Operation.MANAGE, clock.now()), address, properties)
        refused = await raw.next(Detach)
        assert clock.monotonic() - updated_at == pytest.approx(0.5, abs=0.1)
        assert refused.handle == 0
        assert refused.error is not None
        assert refused.error.condition == "amqp:link:detach-forced"
        assert text_of(refused).endswith("Code: consumer(r). Details: InnerMessageReceiver was closed.")
        with pytest.raises(TimeoutError):
            await raw.next(Detach, within_s=10)


async def test_expired_token_detaches_with_renew_token(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "q")
    token = sign("sb://contoso.example/q", ROOT_KEY_NAME, ROOT_KEY, clock.now() + 60)
    async with raw_client(context) as raw:
        await raw.open(mechanism="ANONYMOUS")
        reply = await raw.request("$cbs", "put-token", token, name="sb://contoso.example/q")
        assert reply.application_properties == {"status-code": 202, "status-description": "Accepted"}
        raw.write(receiver("r", 0, "q"), flow(0, credit=1))
        refused = await raw.next(Detach, within_s=100)
        assert refused.closed
        assert refused.error is not None
        assert refused.error.condition == "amqp:link:detach-forced"
        assert "is force detached. Code: RenewToken. Details: Unauthorized access. 'Listen' claim(s)" in text_of(
            refused
        )


async def test_one_link_too_many_ends_the_session(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "q")
    async with raw_client(context) as raw:
        await raw.open()
        assert raw.begun is not None
        assert raw.begun.handle_max == 255
        await raw.attach(receiver("last", 255, "q"))
        raw.write(receiver("more", 256, "q"))
        ended = await raw.next(End)
        assert ended.error == AmqpError(
            "amqp:resource-limit-exceeded",
            "Cannot allocate more handles to the current session or connection. The maximum number of handles allowed "
            "is 255. Please free up resources and try again.",
        )
        raw.write(End(), Begin(None, 0, 5_000, 5_000))  # the connection goes on
        await raw.next(Begin)


# Sessions ------------------------------------------------------------------------------------------------------------


@pytest.mark.deviation("emulator.lost-sessions")
@pytest.mark.parametrize("credit", [0, 5])
async def test_lost_session_is_detached_with_and_without_credit(
    context: NamespaceContext, host: BrokerHost, credit: int
) -> None:
    create(host, EntityKind.QUEUE, "s", requires_session=True)
    async with raw_client(context) as raw:
        await raw.open()
        raw.write(receiver("r", 0, "s", filters={SESSION_FILTER: "a"}), flow(0, credit=credit))
        await raw.next(Attach)
        began_at = clock.monotonic()
        refused = await raw.next(Detach, within_s=100)
        assert refused.error is not None
        assert refused.error.condition == "com.microsoft:session-lock-lost"
        assert text_of(refused).startswith(
            "The session lock has expired on the MessageSession. Accept a new MessageSession."
        )
        assert 60 <= clock.monotonic() - began_at <= 63


async def test_renewed_session_is_not_detached(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "s", requires_session=True)
    async with raw_client(context) as raw:
        await raw.open()
        raw.write(receiver("r", 0, "s", filters={SESSION_FILTER: "a"}))
        await raw.next(Attach)
        for _ in range(4):
            await asyncio.sleep(40)
            assert (await renewed(raw)).application_properties["statusCode"] == 200
        with pytest.raises(TimeoutError):
            await raw.next(Detach, within_s=55)


async def renewed(raw: Raw) -> Sections:
    reply = await raw.request("s/$management", "com.microsoft:renew-session-lock", {"session-id": "a"})
    raw.write(Detach(100, closed=True), Detach(101, closed=True))
    for _ in range(2):
        await raw.next(Detach)
    return reply


@pytest.mark.parametrize("closes", ["never", "before", "after"])
@pytest.mark.parametrize("name", ["one", "two"])
@pytest.mark.parametrize("wanted", ["a", None])
@pytest.mark.parametrize("credit", [1, 5])
async def test_lost_session_is_accepted_again_and_gives_its_messages(
    context: NamespaceContext, host: BrokerHost, closes: str, name: str, wanted: str | None, credit: int
) -> None:
    create(host, EntityKind.QUEUE, "s", requires_session=True, lock_duration=timedelta(seconds=5))
    put(host, "s", "0", "1", session_id="a")
    async with raw_client(context) as raw:
        await raw.open()
        raw.write(receiver("one", 0, "s", filters={SESSION_FILTER: "a"}), flow(0, credit=credit))
        await raw.next(Attach)
        assert await raw.messages(min(credit, 2)) == ["0", "1"][:credit]
        await asyncio.sleep(5.1)
        if closes == "before":
            raw.write(Detach(0, closed=True))
        raw.write(receiver(name, 1, "s", filters={SESSION_FILTER: wanted}), flow(1, credit=1))
        await raw.next(Attach)
        if closes == "after":
            raw.write(Detach(0, closed=True))
        assert await raw.messages(1) == ["0"]
        raw.write(Flow(1, 5_000, 0, 5_000, 1, 0, 2))
        assert await raw.messages(1) == ["1"]
        renewal = await raw.request("s/$management", "com.microsoft:renew-session-lock", {"session-id": "a"})
        assert renewal.application_properties["statusCode"] == 200


@pytest.mark.parametrize("channel", [1, 2])
@pytest.mark.parametrize(
    ("waits", "prefetch"), [("", 0), ("", 10), ("for its detach", 0), ("for its detach", 10), ("for a message", 0)]
)
async def test_lost_session_is_accepted_again_by_a_client_with_an_amqp_session_per_link(
    context: NamespaceContext, host: BrokerHost, channel: int, waits: str, prefetch: int
) -> None:
    create(host, EntityKind.QUEUE, "s", requires_session=True, lock_duration=timedelta(seconds=5))
    put(host, "s", "0", "1", session_id="a")
    begin = Begin(None, 0, 5_000, 5_000)
    described = Described(Symbol(SESSION_FILTER), "a")
    async with raw_client(context) as raw:
        await raw.open(mechanism="ANONYMOUS")
        token = sign("sb://contoso.example/s", ROOT_KEY_NAME, ROOT_KEY, clock.now() + 600)
        await raw.request("$cbs", "put-token", token, name="sb://contoso.example/s")
        raw.write(begin, receiver("one", 0, "s", filters={SESSION_FILTER: described}), channel=1)
        raw.write(flow(0, credit=prefetch or 1), channel=1)
        assert await raw.messages(1) == ["0"]
        if prefetch:
            assert await raw.messages(1) == ["1"]
        if waits == "for a message":
            raw.write(Flow(1, 5_000, 0, 5_000, 0, 1, 1), channel=1)
            assert await raw.messages(1) == ["1"]
        if waits:
            assert await detached(raw) == "com.microsoft:session-lock-lost"
        else:
            await asyncio.sleep(5.1)  # the detach is on its way
        raw.write(Detach(0, closed=True), End(), channel=1)
        await raw.next(Attach)
        if channel == 1:
            await raw.next(End)
        raw.write(begin, receiver("two", 0, "s", filters={SESSION_FILTER: described}), channel=channel)
        raw.write(flow(0, credit=prefetch or 1), channel=channel)
        assert await raw.messages(1) == ["0"]
        raw.write(Disposition(RECEIVER, 0, state=ACCEPTED), channel=channel)
        assert (await raw.next(Disposition)).state == ACCEPTED
        if not prefetch:
            raw.write(Flow(1, 5_000, 0, 5_000, 0, 1, 1), channel=channel)
        assert await raw.messages(1) == ["1"]


@pytest.mark.parametrize("ending", ["close", "cut", "half-open"])
@pytest.mark.parametrize("wanted", ["a", None])
@pytest.mark.parametrize("drains", [False, True])
async def test_session_of_a_lost_connection_is_accepted_by_the_next_one(
    context: NamespaceContext, host: BrokerHost, ending: str, wanted: str | None, drains: bool
) -> None:
    create(host, EntityKind.QUEUE, "s", requires_session=True, lock_duration=timedelta(seconds=5))
    put(host, "s", "0", "1", session_id="a")
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(raw_client(context))
        await first.open()
        first.write(receiver("r", 0, "s", filters={SESSION_FILTER: wanted}), flow(0, credit=1))
        assert await first.messages(1) == ["0"]
        if drains:  # a call that has waited for the next message in vain
            first.write(Flow(1, 5_000, 0, 5_000, 0, 1, 1), Flow(1, 5_000, 0, 5_000, 0, 1, 1, drain=True))
            assert await first.messages(1) == ["1"]
        if ending == "close":
            first.write(Close())
            await first.next(Close)
        elif ending == "cut":
            await stack.aclose()
        else:
            await asyncio.sleep(5.1)
        async with raw_client(context) as second:
            await second.open()
            second.write(receiver("r", 0, "s", filters={SESSION_FILTER: "a"}), flow(0, credit=2))
            assert await second.messages(2) == ["0", "1"]


async def test_messages_of_a_session_carry_the_end_of_its_lock(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "s", requires_session=True)
    put(host, "s", "x", session_id="a")
    async with raw_client(context) as raw:
        await raw.open()
        raw.write(receiver("r", 0, "s", filters={SESSION_FILTER: "a"}), flow(0, credit=1))
        ticks = ((await raw.next(Attach)).properties or {})["com.microsoft:locked-until-utc"]
        delivery_id, message = await taken(raw)
        until = datetime(1, 1, 1, tzinfo=UTC) + timedelta(microseconds=ticks // 10)
        assert message.message_annotations["x-opt-locked-until"] == until
        number = message.message_annotations[NUMBER]
        await raw.settle(delivery_id, Modified(True, True))
        reply = await raw.request(
            "s/$management",
            "com.microsoft:receive-by-sequence-number",
            {"sequence-numbers": longs([number]), "session-id": "a"},
        )
        (deferred,) = reply.value()["messages"]
        assert Sections(deferred["message"]).message_annotations["x-opt-locked-until"] == until
