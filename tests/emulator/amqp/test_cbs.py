"""Tokens: what each answer of the token node means, and what a token opens."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from sbclient import clock
from sbclient.amqp.sections import Properties
from sbclient.broker.faults import Fault, FaultKind
from sbclient.emulator import sas
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.faults import WireFaults
from sbclient.emulator.sas import AuthorizationMode, Authorizer
from sbclient.entities import AccessRights, AuthorizationRule, EntityKind
from sbclient.hosting.host import BrokerHost
from sbclient.rules.shared_access_signature import sign
from tests.emulator.amqp.client import HOST, Client, condition_of, connected, create
from tests.payloads import encode_sections


@pytest.fixture
async def queue(host: BrokerHost) -> str:
    rule = AuthorizationRule(key_name="sender", rights=[AccessRights.SEND], primary_key="secret")
    create(host, EntityKind.QUEUE, "q", authorization_rules=[rule])
    return "q"


def token(client: Client, path: str, *, key_name: str = "RootManageSharedAccessKey", key: str = "SAS_KEY_VALUE") -> str:
    return sign(f"{HOST}/{path}", key_name, key, clock.now() + 3600)


async def test_a_good_token_is_accepted_with_dashes_in_the_names(context: NamespaceContext, queue: str) -> None:
    async with connected(context) as client:
        arguments = {"type": "jwt", "name": f"{HOST}/{queue}"}
        reply, body = await client.request("$cbs", "put-token", token(client, queue), arguments=arguments)
        assert reply == {"status-code": 202, "status-description": "Accepted"}
        assert body is None


async def test_a_connection_counts_once_however_many_tokens_it_has(context: NamespaceContext, queue: str) -> None:
    for _ in range(2):
        async with connected(context) as client:
            assert context.amqp_connection_count == 0
            for number in range(3):
                assert await client.put_token(queue if number else "") == 202
                assert context.amqp_connection_count == 1
        assert context.amqp_connection_count == 0


@pytest.mark.deviation("emulator.frame-details")
async def test_a_request_above_the_stated_size_is_rejected(context: NamespaceContext, queue: str) -> None:
    async with connected(context, queue) as client:
        requests, _ = await client.node("$cbs")
        outcome = await client.transfer(requests, encode_sections(data=[b"x" * 2**20]))
        assert condition_of(outcome) == "amqp:link:message-size-exceeded"


@pytest.mark.parametrize(
    ("path", "bad", "status"),
    [
        ("missing", None, 404),
        ("q/$Nowhere", None, 404),
        ("q", "SharedAccessSignature sr=x", 401),
        ("q", "", 401),
        ("q", "eyJ.eyJ.x", 401),
        ("q", "SharedAccessSignature sr=sb%3a%2f%2fcontoso%2fq&sig=AAAA&se=1&skn=RootManageSharedAccessKey", 401),
    ],
)
async def test_bad_tokens_and_unknown_entities_are_refused(
    context: NamespaceContext, queue: str, path: str, bad: str | None, status: int
) -> None:
    async with connected(context) as client:
        assert await client.put_token(path, bad if bad is not None else token(client, path)) == status
        assert await client.refusal(await client.sender(queue)) == "amqp:unauthorized-access"


@pytest.mark.parametrize(
    ("kind", "status", "after_s"), [(FaultKind.ERROR, 500, 0), (FaultKind.BUSY, 503, 0), (FaultKind.SLOW, 404, 1)]
)
async def test_a_namespace_fault_also_applies_to_missing_entities(
    context: NamespaceContext, host: BrokerHost, kind: FaultKind, status: int, after_s: float
) -> None:
    async with connected(context) as client:
        fault = host.inject(Fault(kind))
        began_at = clock.monotonic()
        assert await client.put_token("missing") == status
        assert clock.monotonic() - began_at == pytest.approx(after_s, abs=0.1)
        host.heal(fault)
        assert await client.put_token("missing") == 404


async def test_a_hanging_namespace_does_not_answer_for_missing_entities(
    context: NamespaceContext, host: BrokerHost
) -> None:
    async with connected(context) as client:
        host.inject(Fault(FaultKind.HANG))
        with pytest.raises(TimeoutError):
            await client.put_token("missing")


async def test_a_namespace_that_is_down_ends_the_connection_for_missing_entities(
    context: NamespaceContext, host: BrokerHost
) -> None:
    async with connected(context) as client:
        host.inject(Fault(FaultKind.DOWN))
        asking = asyncio.ensure_future(client.put_token("missing"))
        closed = await asyncio.wait_for(client.closed, 60)
        asking.cancel()
        assert closed.error is not None
        assert closed.error.condition == "amqp:connection:forced"


@pytest.mark.parametrize("path", ["q", "t", "t/Subscriptions/s", "t/subscriptions/S/$deadletterqueue", ""])
async def test_every_path_can_be_an_audience(context: NamespaceContext, queue: str, path: str) -> None:
    create(context.host, EntityKind.TOPIC, "t")
    create(context.host, EntityKind.SUBSCRIPTION, "t", "s")
    async with connected(context) as client:
        assert await client.put_token(path) == 202


async def test_without_a_token_the_management_node_is_refused(context: NamespaceContext, queue: str) -> None:
    async with connected(context) as client:
        assert await client.refusal(await client.sender(f"{queue}/$management")) == "amqp:unauthorized-access"
        assert await client.refusal(await client.sender("$management")) == "amqp:not-found"


async def test_a_client_without_rights_does_not_learn_which_entities_exist(
    context: NamespaceContext, queue: str
) -> None:
    async with connected(context) as client:
        assert await client.refusal(await client.sender("missing/$management")) == "amqp:unauthorized-access"
        assert await client.refusal(await client.sender("missing")) == "amqp:unauthorized-access"
        assert await client.refusal(await client.receiver("missing")) == "amqp:unauthorized-access"
        assert await client.put_token("missing", token(client, "missing", key="guess")) == 401
        assert await client.put_token("") == 202
        assert await client.refusal(await client.receiver("missing/$management")) == "amqp:not-found"


async def test_no_error_contains_text_of_a_token(context: NamespaceContext, queue: str) -> None:
    async with connected(context) as client:
        bad = token(client, queue, key="guess")
        arguments = {"name": f"{HOST}/{queue}"}
        reply, _ = await client.request("$cbs", "put-token", bad, arguments=arguments)
        signature = bad.partition("sig=")[2].partition("&")[0]
        assert signature not in reply["status-description"]


@pytest.mark.parametrize("body", [5, None, ["x"], b"\xff\xfe"])
async def test_an_invalid_token_is_rejected(context: NamespaceContext, queue: str, body: object) -> None:
    async with connected(context) as client:
        reply, _ = await client.request("$cbs", "put-token", body, arguments={"name": f"{HOST}/{queue}"})
        assert reply["status-code"] == 401


@pytest.mark.parametrize(("operation", "name"), [("get-token", f"{HOST}/q"), ("put-token", 5), ("", None)])
async def test_an_invalid_request_gets_a_reply(
    context: NamespaceContext, queue: str, operation: str, name: object
) -> None:
    async with connected(context) as client:
        reply, _ = await client.request("$cbs", operation, "x", arguments={"name": name})
        assert reply["status-code"] == 400


async def test_audiences_of_a_connection_are_bounded(
    context: NamespaceContext, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sas, "MAX_GRANTS", 2)
    for name in ("a", "b"):
        create(context.host, EntityKind.QUEUE, name)
    async with connected(context) as client:
        statuses = [await client.put_token(path) for path in ("a", "b", "q", "a")]
        assert statuses == [202, 202, 403, 202]


async def test_without_authorization_no_token_is_needed(host: BrokerHost, queue: str) -> None:
    context = context_of(host, AuthorizationMode.NONE)
    async with connected(context) as client:
        assert (await client.sender(queue)).is_open
        assert await client.put_token(queue, "anything") == 202
        assert await client.put_token("missing", "anything") == 404


async def test_any_web_token_is_accepted_if_configured(host: BrokerHost, queue: str) -> None:
    context = context_of(host, AuthorizationMode.ANY_JWT)
    async with connected(context) as client:
        assert await client.put_token(queue, "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.") == 202
        assert (await client.sender(queue)).is_open


def context_of(host: BrokerHost, mode: AuthorizationMode) -> NamespaceContext:
    return NamespaceContext(host=host, authorizer=Authorizer(mode), wire_faults=WireFaults(Random(1)))


async def test_replies_need_no_credit_however_many_there_are(context: NamespaceContext, queue: str) -> None:
    async with connected(context) as client:
        _, replies = await client.node("$cbs")
        assert replies.credit == 0
        for _ in range(300):
            assert await client.put_token(queue) == 202


async def test_request_without_a_reply_link_does_not_affect_other_clients(
    context: NamespaceContext, queue: str
) -> None:
    async with connected(context) as client:
        link = await client.sender("$cbs")
        payload = encode_sections(
            properties=Properties(message_id="1"), application_properties={"operation": "put-token"}, value="x"
        )
        await client.transfer(link, payload)
        async with connected(context) as other:
            assert await other.put_token(queue) == 202


async def test_a_connection_has_one_pair_of_links_with_the_token_node(context: NamespaceContext, queue: str) -> None:
    async with connected(context) as client:
        requests, replies = await client.node("$cbs")
        for second in (await client.sender("$cbs"), await client.receiver("$cbs")):
            assert await client.refusal(second) == "amqp:not-allowed"
        assert await client.put_token(queue) == 202
        requests.detach()
        replies.detach()
        assert not (await client.sender("$cbs")).is_over
