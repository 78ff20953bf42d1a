"""Addresses, credentials and options of transport='sdk', over real sockets to the broker's server."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import TransportType as SdkTransportType

from sbclient import (
    InvalidOperationError,
    ServiceBusAuthenticationError,
    ServiceBusClient,
    ServiceBusMessage,
    TransportType,
    clock,
)
from sbclient.emulator import Emulator
from sbclient.emulator.sas import ROOT_KEY, ROOT_KEY_NAME
from sbclient.entities import EntityAddress, EntityKind, QueueProperties
from sbclient.rules.connection_string import parse_connection_string
from sbclient.rules.shared_access_signature import sign
from sbclient.transport.sdk.transport import open_sdk_transport
from tests.payloads import batch_of

pytestmark = pytest.mark.real_time

QUEUE = EntityAddress(EntityKind.QUEUE, ("orders",))


@pytest.fixture
async def emulator() -> AsyncIterator[Emulator]:
    async with Emulator("contoso") as emulator:
        yield emulator


def options_of(emulator: Emulator, **more: Any) -> dict[str, Any]:
    return {"connection_verify": str(emulator.certificate_path), "transport": "sdk", **more}


def host_of(emulator: Emulator) -> str:
    return f"localhost:{emulator.ports['contoso']}"


def token_for(emulator: Emulator) -> str:
    return sign(f"sb://{host_of(emulator)}", ROOT_KEY_NAME, ROOT_KEY, int(clock.now()) + 600)


async def works(client: ServiceBusClient) -> None:
    """Create a queue, send and receive."""
    async with client:
        await client.administration.create_queue("orders")
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("x"))
        async with client.get_queue_receiver("orders") as receiver:
            (message,) = await receiver.receive_messages(1, max_wait_time=5.0)
            await receiver.complete_message(message)
        assert str(message) == "x"


async def test_a_key(emulator: Emulator) -> None:
    await works(ServiceBusClient.from_connection_string(emulator.connection_string, **options_of(emulator)))


async def test_a_signature_instead_of_a_key(emulator: Emulator) -> None:
    text = f"Endpoint=sb://{host_of(emulator)};UseDevelopmentEmulator=true;SharedAccessSignature={token_for(emulator)}"
    await works(ServiceBusClient.from_connection_string(text, **options_of(emulator)))


async def test_an_ssl_context(emulator: Emulator) -> None:
    context = ssl.create_default_context(cafile=str(emulator.certificate_path))
    await works(
        ServiceBusClient.from_connection_string(emulator.connection_string, ssl_context=context, transport="sdk")
    )


async def test_a_named_key_credential(emulator: Emulator) -> None:
    credential = AzureNamedKeyCredential(ROOT_KEY_NAME, ROOT_KEY)
    await works(ServiceBusClient(host_of(emulator), credential, **options_of(emulator, use_tls=False)))


async def test_a_signature_credential(emulator: Emulator) -> None:
    credential = AzureSasCredential(token_for(emulator))
    await works(ServiceBusClient(host_of(emulator), credential, **options_of(emulator, use_tls=False)))


class Identity:
    """The part of an asynchronous azure-identity credential that the SDK uses."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self.is_broken = is_broken
        self.scopes: list[str] = []

    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        if self.is_broken:
            from azure.core.exceptions import ClientAuthenticationError

            raise ClientAuthenticationError("no way to sign in")
        self.scopes += scopes
        parts = ({"alg": "RS256"}, {"aud": scopes[0], "exp": int(clock.now()) + 600})
        encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
        return AccessToken(".".join([*encoded, "c2ln"]), int(clock.now()) + 600)


async def test_an_identity() -> None:
    async with Emulator("contoso", auth="jwt-any") as emulator:
        identity = Identity()
        await works(ServiceBusClient(host_of(emulator), identity, **options_of(emulator, use_tls=False)))
        assert set(identity.scopes) == {"https://servicebus.azure.net//.default"}


async def test_an_identity_that_cannot_sign_in_raises(emulator: Emulator) -> None:
    async with ServiceBusClient(
        host_of(emulator), Identity(is_broken=True), **options_of(emulator, use_tls=False)
    ) as client:
        with pytest.raises(ServiceBusAuthenticationError):
            await client.get_queue_sender("orders").send_messages(ServiceBusMessage("x"), timeout=5.0)


@pytest.mark.filterwarnings("ignore:ssl=None is deprecated")  # the SDK hands that to aiohttp
@pytest.mark.parametrize(
    "way", [SdkTransportType.AmqpOverWebsocket, TransportType.AmqpOverWebsocket], ids=["SDK", "ours"]
)
async def test_web_sockets_at_a_custom_endpoint(emulator: Emulator, way: Any) -> None:
    pytest.importorskip("aiohttp")
    await works(
        ServiceBusClient.from_connection_string(
            emulator.connection_string,
            transport_type=way,
            custom_endpoint_address=f"sb://{host_of(emulator)}",
            **options_of(emulator),
        )
    )


async def test_options_are_passed_to_the_sdk() -> None:
    proxy = {"proxy_hostname": "proxy.contoso", "proxy_port": 3128, "username": "me", "password": "hunter2"}
    text = "Endpoint=sb://contoso.servicebus.windows.net;SharedAccessKeyName=n;SharedAccessKey=hunter2"
    transport = open_sdk_transport(parse_connection_string(text), random=Random(1), http_proxy=proxy, user_agent="app")
    sdk = transport.sdk_sender("orders")
    assert sdk._config.http_proxy == {**proxy, "proxy_hostname": "http://proxy.contoso"}
    assert sdk._config.user_agent == "app"
    assert sdk._config.retry_total == 0, "there is one retry policy, ours"
    administration = transport.sdk_administration()
    assert administration._config.proxy_policy.proxies["https"] == "http://me:hunter2@proxy.contoso:3128"
    assert administration._config.retry_policy.total_retries == 0
    assert "hunter2" not in f"{transport!r} {transport.namespace}"
    await administration.close()
    await transport.close()


async def test_a_transport_connects_on_first_use() -> None:
    text = "Endpoint=sb://192.0.2.1;SharedAccessKeyName=n;SharedAccessKey=k"
    transport = open_sdk_transport(parse_connection_string(text), random=Random(1))
    sender, receiver = transport.open_sender("orders"), transport.open_receiver("orders")
    assert not sender.is_open
    await receiver.close()
    await transport.close()
    with pytest.raises(InvalidOperationError):
        await transport.administration.create(QUEUE, QueueProperties("orders"))
    with pytest.raises(InvalidOperationError):
        await sender.send(batch_of([ServiceBusMessage("x")]), timeout_s=1.0)


def test_a_namespace_without_a_credential_is_rejected() -> None:
    with pytest.raises(InvalidOperationError):
        open_sdk_transport(None, fully_qualified_namespace="contoso", random=Random(1))


@pytest.mark.parametrize(("name", "near"), [("secondry", "secondary"), ("conection_verify", "connection_verify")])
def test_a_misspelt_option_is_rejected_with_the_nearest_name(name: str, near: str) -> None:
    options: dict[str, Any] = {name: "x"}
    with pytest.raises(InvalidOperationError, match=near):
        ServiceBusClient.from_connection_string(
            "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=k",
            transport="sdk",
            **options,
        )


@pytest.mark.parametrize(
    ("text", "is_perhaps"),
    [
        ("Endpoint=sb://contoso.servicebus.windows.net/", False),
        ("Endpoint=sb://localhost/", True),
        ("Endpoint=sb://broker:5672/", True),
        ("Endpoint=sb://localhost:5672/;UseDevelopmentEmulator=true", False),
    ],
)
def test_an_address_that_may_be_an_emulator_is_recognised(text: str, is_perhaps: bool) -> None:
    connection = parse_connection_string(f"{text};SharedAccessKeyName=k;SharedAccessKey=secret")
    place = open_sdk_transport(connection, random=Random(1)).place
    assert (place.namespace, place.is_perhaps_emulator) == (connection.namespace, is_perhaps)
