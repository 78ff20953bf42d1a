from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from sbclient import clock
from sbclient.emulator.sas import Authorizer, root_rule
from sbclient.errors import InvalidOperationError, ServiceBusAuthenticationError
from sbclient.rules.connection_string import parse_connection_string
from sbclient.transport.amqp.credentials import Token, identity, shared_key, signature, token_source
from sbclient.transport.amqp.tokens import LEAST_LIFE_S, RETRY_S
from sbclient.transport.amqp.transport import AmqpTransport
from tests.transport.amqp.service import Service


class Issued(NamedTuple):
    at: float
    life_s: float
    is_refused: bool


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("lives", "pauses"), [((60, 600, 3600, 120_000), (0, 10, 1000, 50_000)), ((-5, 0, 1, 20, 60), (0, 1, 3, 20))]
)
async def test_each_token_is_replaced_in_time_whatever_the_others_are_and_links_do_not_notice(
    service: Service, lives: Sequence[float], pauses: Sequence[float], seed: int
) -> None:
    random, issued = Random(seed), defaultdict[str, list[Issued]](list)

    async def source(audience: str) -> Token:
        life_s = random.choice(lives) * random.uniform(0.5, 1.0)
        issued[audience].append(Issued(clock.now(), life_s, bool(issued[audience]) and random.random() < 0.2))
        return Token(audience, "jwt", clock.now() + life_s)

    def answer(audience: str) -> tuple[int, None, None]:
        return 500 if issued[audience][-1].is_refused else 202, None, None

    service.replies["put-token"] = answer
    transport = service.transport(source)
    for number in range(8):
        await transport.open_sender(f"orders-{number}").open(timeout_s=10)
        await clock.sleep(random.choice(pauses))
    await clock.sleep(3 * pauses[-1])
    for number in range(8):
        assert service.end.attached.count(f"orders-{number}") == 1
        tokens = issued[f"amqps://contoso/orders-{number}"]
        due = [one.at + (RETRY_S if one.is_refused else max(0.85 * one.life_s, LEAST_LIFE_S)) for one in tokens]
        assert [one.at for one in tokens[1:]] == pytest.approx(due[:-1], abs=0.1)
        assert due[-1] > clock.now()
    assert service.end.attached.count("$cbs") == 2
    await transport.close()


async def test_links_to_one_entity_wait_for_one_token(service: Service, transport: AmqpTransport) -> None:
    links = [transport.open_sender("orders") for _ in range(10)]
    await asyncio.gather(*(link.open(timeout_s=10) for link in links))
    assert service.asked == ["put-token"]


async def test_request_names_kind_and_audience(service: Service, transport: AmqpTransport) -> None:
    await transport.open_sender("orders").open(timeout_s=10)
    _, arguments, body = service.end.requests[0]
    assert arguments["type"] == "servicebus.windows.net:sastoken"
    assert arguments["name"] == "amqps://contoso/orders"
    assert body.startswith("SharedAccessSignature ")
    assert arguments["expiration"].timestamp() == pytest.approx(clock.now() + 3600, abs=1)


async def test_signed_token_proves_itself_to_the_emulator() -> None:
    rule = root_rule("c2VjcmV0a2V5")
    token = await shared_key(rule.key_name, "c2VjcmV0a2V5")("amqps://contoso.example/orders/x")
    grant = Authorizer(rules=[rule]).authenticate(token.text, clock.now())
    assert grant.path == "orders/x"
    assert token.expires_at == pytest.approx(clock.now() + 3600, abs=1)


async def test_signature_is_sent_as_it_is() -> None:
    text = "SharedAccessSignature sr=a&sig=SECRET&se=1700000100&skn=k"
    assert await signature(text)("any") == Token(text, "servicebus.windows.net:sastoken", 1_700_000_100.0)
    assert (await signature(text.removeprefix("SharedAccessSignature "))("any")).text == text


class Credential:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.scopes: list[str] = []

    async def get_token(self, *scopes: str, **options: Any) -> Any:
        self.scopes += scopes
        if self.error is not None:
            raise self.error
        return SimpleNamespace(token="SECRET.jwt", expires_on=1_700_009_999)


async def test_identity_credential_gives_web_tokens() -> None:
    credential = Credential()
    assert await identity(credential)("any") == Token("SECRET.jwt", "jwt", 1_700_009_999.0)
    assert credential.scopes == ["https://servicebus.azure.net//.default"]


async def test_failing_credential_is_an_authentication_error_without_secrets() -> None:
    credential = Credential(RuntimeError("Bearer SECRET was not accepted"))
    with pytest.raises(ServiceBusAuthenticationError) as caught:
        await identity(credential)("any")
    assert "SECRET" not in str(caught.value)


async def test_kinds_of_credentials() -> None:
    connection = parse_connection_string("Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=SECRET")
    assert "&skn=n" in (await token_source(connection, None)("a")).text
    named = token_source(None, SimpleNamespace(named_key=("n", "SECRET")))
    assert (await named("a")).text == (await shared_key("n", "SECRET")("a")).text
    signed = token_source(None, SimpleNamespace(signature="SharedAccessSignature se=5"))
    assert (await signed("a")).expires_at == 5.0
    assert (await token_source(None, Credential())("a")).kind == "jwt"
    with pytest.raises(InvalidOperationError):
        token_source(None, object())


async def test_no_repr_shows_a_secret(service: Service, transport: AmqpTransport) -> None:
    shown = [shared_key("name", "SECRET"), signature("SECRET"), await signature("SECRET")("a"), identity(Credential())]
    assert not any("SECRET" in repr(each) for each in shown)
    sender, receiver = transport.open_sender("orders"), transport.open_receiver("orders")
    await sender.open(timeout_s=10)
    assert "c2VjcmV0" not in f"{transport!r} {sender!r} {receiver!r} {service.end.sink!r}"
