"""The logs, responses and pages of an emulator leak no canary that clients send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Final

import pytest
from azure.servicebus import ServiceBusMessage as SdkMessage
from azure.servicebus.aio import ServiceBusClient as SdkClient

import sbclient
from sbclient.broker.faults import Fault, FaultKind
from sbclient.emulator import Emulator
from sbclient.emulator.control.api import ITEM, ROUTES
from sbclient.emulator.faults import WireFault, WireFaultKind
from sbclient.emulator.page.watch_api import RESOURCES
from sbclient.emulator.sas import ROOT_KEY_NAME
from sbclient.entities import AccessRights, AuthorizationRule, EntityKind
from sbclient.message import ServiceBusMessage
from sbclient.rules.shared_access_signature import sign
from tests.emulator.amqp.client import create
from tests.emulator.requests import described
from tests.limit import HANG_S
from tests.rights.credentials import web_token
from tests.secrets.canaries import (
    BODY,
    GUESS,
    KEY,
    PROPERTY,
    SECOND_KEY,
    SIGNATURE,
    STATE,
    WEB_TOKEN,
    found_in,
)
from tests.secrets.output_capture import OutputCapture, capture_output, debug
from tests.secrets.reachable import reprs_of

pytestmark = pytest.mark.real_time

FOREVER: Final = 4_000_000_000

STREAMS: Final = {"events", "watch"}
"""Requests of the control API whose answers do not end. The other answers are read to the end."""

MESSAGES: Final = {"messages", "messages" + ITEM}
"""Requests of the control API that `MAY_SHOW` bodies."""


@pytest.fixture
def capture() -> Iterator[OutputCapture]:
    with capture_output() as capture:
        yield capture
        capture.check(at_least=5)


@pytest.fixture
async def emulator(tmp_path_factory: pytest.TempPathFactory, capture: OutputCapture) -> AsyncIterator[Emulator]:
    certificates = tmp_path_factory.getbasetemp() / "certificates-of-secrets"
    async with Emulator("contoso", "contoso-backup", key=KEY, seed=1, certificate_directory=certificates) as served:
        rule = AuthorizationRule(
            key_name="app", rights=[AccessRights.SEND], primary_key=SECOND_KEY, secondary_key=SECOND_KEY + "2"
        )
        create(served.context().host, EntityKind.QUEUE, "orders", authorization_rules=[rule])
        create(served.context().host, EntityKind.QUEUE, "jobs", requires_session=True)
        yield served
        for context in (served.context(), served.context("contoso-backup")):
            for where, text in reprs_of([context]):
                capture.add(where, text)
        capture.add("the emulator", repr(served))


def header() -> str:
    return f"Authorization: {sign('sb://localhost/', ROOT_KEY_NAME, KEY, FOREVER)}"


async def request(port: int, method: str, target: str, authorization: str = "A: b", body: str = "") -> tuple[int, str]:
    """The status of an answer, and all of it."""
    head = f"{method} {target} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n{authorization}\r\n"
    raw = f"{head}Content-Length: {len(body.encode())}\r\n\r\n{body}".encode()
    text = await exchange(port, raw)
    return int(text.split(" ", 2)[1]), text


async def exchange(port: int, raw: bytes) -> str:
    """Return what the server sends in response to some bytes until it closes the connection."""
    reader, writer = await asyncio.open_connection("localhost", port)
    writer.write(raw)
    try:
        return (await reader.read()).decode()
    finally:
        writer.close()


async def test_messages_of_every_client_leak_nothing(emulator: Emulator, capture: OutputCapture) -> None:
    debug(asyncio.get_running_loop())
    port = emulator.ports["contoso"]
    watching = asyncio.ensure_future(watched(port))
    for string in (emulator.connection_string, emulator.connection_strings["contoso-backup"]):
        assert KEY in string
    own = sbclient.ServiceBusClient.from_connection_string(
        emulator.connection_string,
        secondary=emulator.connection_strings["contoso-backup"],
        options=sbclient.PairedNamespaceOptions(primary_name="contoso"),
        connection_verify=str(emulator.certificate_path),
    )
    async with own as client:
        sender = client.get_queue_sender("orders")
        await sender.send_messages(ServiceBusMessage(BODY, application_properties={"note": PROPERTY}))
        await client.get_queue_sender("jobs").send_messages(ServiceBusMessage(BODY, session_id="a"))
        async with client.get_queue_receiver("jobs", session_id="a") as sessions:
            assert sessions.session is not None
            await sessions.session.set_state(STATE)
            (message,) = await sessions.receive_messages(max_wait_time=5)
            await sessions.dead_letter_message(message, reason="broken")
        client.pair.force_failover("orders")
        await sender.send_messages(ServiceBusMessage(BODY, application_properties={"note": PROPERTY}))
        for where, text in reprs_of([client, sender, sessions, message]):
            capture.add(where, text)
        capture.add("status", repr(client.pair.status()))
        capture.add("events", repr(client.pair.events()))
    sdk = SdkClient.from_connection_string(emulator.connection_string, retry_total=0)
    async with sdk, sdk.get_queue_sender("orders") as sdk_sender, sdk.get_queue_receiver("orders") as sdk_receiver:
        await sdk_sender.send_messages([SdkMessage(BODY, application_properties={"note": PROPERTY})])
        for received in await sdk_receiver.receive_messages(max_message_count=5, max_wait_time=5):
            await sdk_receiver.dead_letter_message(received, reason="broken")
    readable = {name for name, methods in ROUTES.items() if "GET" in methods} | RESOURCES.keys()
    for target in readable - STREAMS - MESSAGES:
        for query in ("", "?entity=orders", "?entity=jobs"):
            status, text = await request(port, "GET", f"/$control/{target}{query}", header())
            assert status == 200 or not query, text
            capture.add(f"GET /$control/{target}{query}", text)
    status, text = await request(port, "GET", "/health")
    capture.add("GET /health", text)
    events = await watching
    assert "connection.opened" in events
    capture.add("GET /$control/events and watch", events)


async def watched(port: int) -> str:
    """Return the event stream until a connection is opened, and the watch stream of two seconds."""
    text = b""
    for target in sorted(STREAMS):
        reader, writer = await asyncio.open_connection("localhost", port)
        query = "namespace=contoso&entity=orders"
        writer.write(
            f"GET /$control/{target}?{query} HTTP/1.1\r\nHost: localhost:{port}\r\n{header()}\r\n\r\n".encode()
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(HANG_S if target == "events" else 2):
                while b"connection.opened" not in text or target != "events":
                    if not (piece := await reader.read(65_536)):
                        break
                    text += piece
        writer.close()
    return text.decode()


WRONG_TOKENS: Final = {
    "signed with a mistyped key": sign("sb://localhost/", ROOT_KEY_NAME, GUESS, FOREVER),
    "a forged signature": f"SharedAccessSignature sr=sb%3A%2F%2Fh%2F&sig={SIGNATURE}&se={FOREVER}&skn={ROOT_KEY_NAME}",
    "an invalid resource": f"SharedAccessSignature sr=x&sig={SIGNATURE}&se={FOREVER}&skn={ROOT_KEY_NAME}",
    "no expiry": f"SharedAccessSignature sr=sb%3A%2F%2Fh%2F&sig={SIGNATURE}&se=never&skn={ROOT_KEY_NAME}",
    "one field twice": f"SharedAccessSignature sig={SIGNATURE}&sig={SIGNATURE}",
    "the key itself": KEY,
    "a web token": f"{WEB_TOKEN}.{WEB_TOKEN}.{WEB_TOKEN}",
    "a bearer's web token": f"Bearer {WEB_TOKEN}",
    "a password": f"Basic {KEY}",
}


@pytest.mark.parametrize("token", WRONG_TOKENS.values(), ids=WRONG_TOKENS.keys())
async def test_invalid_tokens_leak_nothing(emulator: Emulator, capture: OutputCapture, token: str) -> None:
    port = emulator.ports["contoso"]
    for method, target in (("GET", "/orders"), ("GET", "/$namespaceinfo"), ("GET", "/$control/state"), ("PUT", "/new")):
        status, text = await request(port, method, target, f"Authorization: {token}")
        assert status in (400, 401)
        capture.add(f"{method} {target}", text)


async def test_accepted_web_tokens_leak_nothing(
    capture: OutputCapture, tmp_path_factory: pytest.TempPathFactory
) -> None:
    certificates = tmp_path_factory.getbasetemp() / "certificates-of-secrets"
    token = web_token(3600, FOREVER, header=f'{{"alg": "none", "kid": "{WEB_TOKEN}"}}') + WEB_TOKEN
    async with Emulator("contoso", auth="jwt-any", certificate_directory=certificates) as emulator:
        port = emulator.ports["contoso"]
        for target in ("/$namespaceinfo", "/$control/state", "/$control/overview"):
            status, text = await request(port, "GET", target, f"Authorization: Bearer {token}")
            assert status == 200
            capture.add(target, text)


async def test_invalid_requests_leak_nothing(emulator: Emulator, capture: OutputCapture) -> None:
    port = emulator.ports["contoso"]
    wrong = [
        ("PUT", "/new", f"<a>{KEY}"),
        ("PUT", "/new", described("Queue", AuthorizationRules=f"<AuthorizationRule>{KEY}")),
        *(
            (method, f"/$control/{name.replace(ITEM, '/1')}?entity=nowhere", wrong)
            for name, methods in ROUTES.items()
            for method in methods.keys() - {"GET"}
            for wrong in (f"{{{BODY}", f'"{BODY}"', f'{{"body": "{BODY}"')
        ),
        ("POST", "/$control/messages?entity=orders", f'{{"body": "{BODY}", "session_id": 5}}'),
        ("POST", "/$control/messages?entity=orders", f'{{"body": "{BODY}", "application_properties": "{PROPERTY}"}}'),
        ("POST", "/$control/messages?entity=orders", f'[{{"body_base64": "{BODY}"}}]'),
    ]
    for method, target, body in wrong:
        status, text = await request(port, method, target, header(), body=body)
        assert status >= 400, (target, text)
        capture.add(f"{method} {target}", text)
    for raw in (
        f"GET / HTTP/1.1\r\n{header()}\r\nBad Header: {SIGNATURE}\r\n\r\n",
        f"GET /{KEY.replace('/', '%2F')}%ff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        f"{KEY} {KEY} HTTP/9.9\r\n\r\n",
    ):
        capture.add("a broken request", await exchange(port, raw.encode()))


async def test_unauthorized_clients_leak_nothing(emulator: Emulator, capture: OutputCapture) -> None:
    wrong = emulator.connection_string.replace(KEY, GUESS)
    certificate = str(emulator.certificate_path)
    async with sbclient.ServiceBusClient.from_connection_string(wrong, connection_verify=certificate) as client:
        with capture.expecting(sbclient.ServiceBusError, where="our client"):
            await client.get_queue_sender("orders").send_messages(ServiceBusMessage(BODY))
        with capture.expecting(sbclient.ServiceBusError, where="our client"):
            await client.administration.get_queue("orders")
        for where, text in reprs_of([client]):
            capture.add(where, text)
    token = sign("sb://localhost/orders", ROOT_KEY_NAME, GUESS, FOREVER)
    endpoint = emulator.connection_string.partition(";")[0]
    with_token = f"{endpoint};SharedAccessSignature={token};UseDevelopmentEmulator=true"
    signature = token.partition("sig=")[2].partition("&")[0]
    async with sbclient.ServiceBusClient.from_connection_string(with_token) as client:
        with capture.expecting(sbclient.ServiceBusError, where="our client with a token"):
            await client.get_queue_receiver("orders").receive_messages(max_wait_time=1)
    assert not [text for _, text in capture.entries if signature in text]


FAULTS: Final = [
    WireFault(WireFaultKind.RESET),
    WireFault(WireFaultKind.SERVER_BUSY),
    WireFault(WireFaultKind.DETACH, condition="amqp:internal-error", description="request for"),
    WireFault(WireFaultKind.DROP_ACKNOWLEDGEMENT),
    Fault(FaultKind.DOWN),
    Fault(FaultKind.ERROR, "orders"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault.kind))
async def test_faults_between_client_and_broker_leak_nothing(
    emulator: Emulator, capture: OutputCapture, fault: Fault | WireFault
) -> None:
    async with sbclient.ServiceBusClient.from_connection_string(emulator.connection_string, retry_total=1) as client:
        sender = client.get_queue_sender("orders")
        await sender.send_messages(ServiceBusMessage(BODY))
        emulator.inject(fault)
        with capture.expecting(sbclient.ServiceBusError, where=str(fault.kind)):
            await sender.send_messages(ServiceBusMessage(BODY, application_properties={"note": PROPERTY}), timeout=4)
        for where, text in reprs_of([client, sender]):
            capture.add(where, text)
        emulator.heal()


async def test_places_that_may_show_a_secret_show_it(emulator: Emulator) -> None:
    """The search finds canaries in the places that `MAY_SHOW` lists."""
    port = emulator.ports["contoso"]
    async with sbclient.ServiceBusClient.from_connection_string(emulator.connection_string) as client:
        await client.get_queue_sender("orders").send_messages(ServiceBusMessage(BODY))
        (message,) = await client.get_queue_receiver("orders").receive_messages(max_wait_time=5)
    assert list(found_in(str(message))) == ["the body"]
    _, text = await request(port, "GET", "/$control/messages/1?entity=orders", header())
    assert "the body" in found_in(text)
    _, text = await request(port, "GET", "/orders", header())
    assert "the second key" in found_in(text)
    assert "the key" in found_in(emulator.connection_string)
