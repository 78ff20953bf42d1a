"""Messages over HTTP, in virtual time."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbclient import clock
from sbclient.amqp import EncodedMessage, encode_message
from sbclient.amqp.types import Opaque
from sbclient.broker.entry import Entry
from sbclient.broker.faults import Call, Fault, FaultKind, Operation
from sbclient.delivery import MAX_BATCH_MESSAGES, ServiceBusReceiveMode, Settlement, SettleMode
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.faults import WireFault, WireFaultKind
from sbclient.emulator.messaging.http_message import (
    BATCH_TYPE,
    MAX_BATCH_PROPERTIES,
    header_type,
    headers_of,
)
from sbclient.emulator.net.http import serve_http
from sbclient.emulator.net.http_messages import NoResponse, Request, Response
from sbclient.emulator.page.namespace_registry import NamespaceRegistry
from sbclient.emulator.router import Router
from sbclient.emulator.sas import ROOT_KEY, ROOT_KEY_NAME
from sbclient.entities import EntityKind, EntityStatus
from sbclient.hosting.host import BrokerHost
from sbclient.message import AmqpMessageBodyType, ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.rules.shared_access_signature import sign
from tests.emulator.amqp.client import create, wire
from tests.emulator.requests import NoConnection, request, token

LOCK_S: Final = 30.0
NO_TOKEN: Final = "00000000-0000-0000-0000-000000000000"
BODY: Final = "an order"


@pytest.fixture
def router(context: NamespaceContext) -> Router:
    """The HTTP requests of a namespace with a queue, a topic and a session queue."""
    host = context.host
    create(host, EntityKind.QUEUE, "orders", lock_duration=timedelta(seconds=LOCK_S), max_delivery_count=2)
    create(host, EntityKind.TOPIC, "prices")
    create(host, EntityKind.SUBSCRIPTION, "prices", "eu")
    create(host, EntityKind.QUEUE, "jobs", requires_session=True)
    return Router(context, NamespaceRegistry())


async def send(router: Router, body: str = BODY, path: str = "orders", **properties: Any) -> Response:
    return await ask(router, "POST", f"/{path}/messages", body, BrokerProperties=json.dumps(properties))


async def ask(router: Router, method: str, target: str, body: str = "", **headers: str) -> Response:
    """The response to a request, whose headers are named as they are."""
    asked = request(method, target, body, **{name.lower(): value for name, value in headers.items()})
    names = {name.lower().replace("_", "-"): name.replace("_", "-") for name in headers}
    return await router.answer(replace(asked, header_names=names))


def taken(host: BrokerHost, path: str = "orders") -> list[ServiceBusReceivedMessage]:
    """All messages, as a client receives them over AMQP."""
    call = Call(Operation.RECEIVE, clock.now())
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    return [each.received() for each in host.namespace.receive(call, path, max_message_count=100, mode=mode)]


def put(host: BrokerHost, message: ServiceBusMessage, path: str = "orders") -> None:
    host.namespace.send(Call(Operation.SEND, clock.now()), path, [encode_message(message)])


def broker_properties(response: Response) -> dict[str, Any]:
    properties: dict[str, Any] = json.loads(response.headers["BrokerProperties"])
    return properties


def location(response: Response) -> str:
    return "/" + response.headers["Location"].split("/", 3)[3]


# ---------------------------------------------------------------------- send


async def test_a_message_arrives_with_all_its_properties(router: Router, host: BrokerHost) -> None:
    texts = {
        "CorrelationId": "c",
        "Label": "é",
        "MessageId": "m",
        "ReplyTo": "r",
        "ReplyToSessionId": "rs",
        "To": "t",
        "PartitionKey": "k",
    }
    response = await ask(
        router,
        "POST",
        "/orders/messages?timeout=60&api-version=2013-10",
        BODY,
        BrokerProperties=json.dumps({**texts, "TimeToLive": 90.5, "ForcePersistence": True, "Unknown": [1]}),
        Content_Type="text/plain; charset=utf-8",
        Priority="High",
        Quoted='"5"',
        Escaped='"a\\u20ac"',
        Umlaut="ö".encode().decode("latin-1"),
        Count="5",
        Share="0.5",
        IsNew="true",
        Long="9" * 30,
        NotANumber="NaN",
        User_Agent="curl",
        Sec_Fetch_Mode="cors",
    )
    assert (response.status, response.body) == (201, b"")
    (message,) = taken(host)
    assert bytes(message) == BODY.encode()
    assert message.body_type is AmqpMessageBodyType.DATA
    assert [message.correlation_id, message.subject, message.message_id, message.reply_to] == ["c", "é", "m", "r"]
    assert [message.reply_to_session_id, message.to, message.partition_key] == ["rs", "t", "k"]
    assert message.time_to_live == timedelta(seconds=90.5)
    assert message.content_type == "text/plain; charset=utf-8"
    assert message.application_properties == {
        "Priority": "High",
        "Quoted": "5",
        "Escaped": "a€",
        "Umlaut": "ö",
        "Count": 5,
        "Share": 0.5,
        "IsNew": True,
        "Long": "9" * 30,
        "NotANumber": "NaN",
    }


@pytest.mark.parametrize("written", ["Fri, 24 Nov 2023 00:00:00 GMT", "2023-11-24T00:00:00Z"])
async def test_a_scheduled_message_waits(router: Router, host: BrokerHost, written: str) -> None:
    assert (await send(router, ScheduledEnqueueTimeUtc=written)).status == 201
    assert taken(host) == []
    await clock.sleep(datetime(2023, 11, 24, tzinfo=UTC).timestamp() - clock.now())
    assert len(taken(host)) == 1


async def test_a_message_without_an_id_gets_one(router: Router, host: BrokerHost) -> None:
    await send(router)
    await send(router)
    ids = [message.message_id for message in taken(host)]
    assert all(re.fullmatch("[0-9a-f]{32}", str(each)) for each in ids)
    assert len(set(ids)) == 2


async def test_a_batch_is_sent_as_a_whole(router: Router, host: BrokerHost) -> None:
    batch: list[dict[str, Any]] = [
        {"Body": "one", "BrokerProperties": {"Label": "x", "TimeToLiveTimeSpan": "1.00:00:40.5"}},
        {"Body": "two", "UserProperties": {"Priority": "High", "Count": 5, "Share": 0.5, "IsNew": False}},
        {"BrokerProperties": {"TimeToLiveTimeSpan": None}, "UserProperties": None},
    ]
    assert (await ask(router, "POST", "/prices/messages", json.dumps(batch), Content_Type=BATCH_TYPE)).status == 201
    one, two, three = taken(host, "prices/Subscriptions/eu")
    assert (bytes(one), one.subject, one.time_to_live) == (b"one", "x", timedelta(days=1, seconds=40.5))
    assert (bytes(two), two.content_type) == (b"two", None)
    assert two.application_properties == {"Priority": "High", "Count": 5, "Share": 0.5, "IsNew": False}
    assert bytes(three) == b""
    too_large = [{"Body": "small"}, {"Body": "a" * 300_000}]
    refused = await ask(router, "POST", "/prices/messages", json.dumps(too_large), Content_Type=BATCH_TYPE)
    assert refused.status == 403
    assert taken(host, "prices/Subscriptions/eu") == []


MALFORMED: Final = (
    "",
    "{",
    "[]",
    "5",
    '{"Label": 5}',
    '{"TimeToLive": "soon"}',
    '{"TimeToLive": -1}',
    '{"TimeToLive": true}',
    '{"TimeToLive": 1e999}',
    '{"TimeToLiveTimeSpan": "40"}',
    '{"ScheduledEnqueueTimeUtc": "tomorrow"}',
    '{"ScheduledEnqueueTimeUtc": 5}',
    '{"ScheduledEnqueueTimeUtc": "Fri, 24 Nov 99999 00:00:00 GMT"}',
    '{"MessageId": "' + "m" * 129 + '"}',
    '{"Label": "\\ud800"}',
    "[" * 100_000,
    '{"TimeToLive": ' + "9" * 5_000 + "}",
)


@pytest.mark.parametrize("blank", ["", " ", "\t", "  "])
async def test_blanks_around_a_header_and_its_parameters_change_nothing(
    router: Router, context: NamespaceContext, blank: str
) -> None:
    batch = json.dumps([{"Body": "a"}, {"Body": "b"}])
    for kind in (BATCH_TYPE, BATCH_TYPE.upper()):
        for value in (f"{blank}{kind}{blank}", f"{kind}{blank};{blank}charset=utf-8{blank}"):
            response = await ask(router, "POST", "/orders/messages", batch, Content_Type=value)
            assert response.status == 201
            assert [bytes(message) for message in taken(context.host)] == [b"a", b"b"]
    properties = f"{blank}{json.dumps({'Label': 'x'})}{blank}"
    assert (await ask(router, "POST", "/orders/messages", BODY, BrokerProperties=properties)).status == 201
    assert [message.subject for message in taken(context.host)] == ["x"]


@pytest.mark.parametrize("text", MALFORMED, ids=lambda text: text[:40])
async def test_malformed_broker_properties_are_refused(router: Router, host: BrokerHost, text: str) -> None:
    response = await ask(router, "POST", "/orders/messages", BODY, BrokerProperties=text)
    assert response.status == 400
    assert b"of the HTTP header 'BrokerProperties' is invalid" in response.body
    assert len(response.body) < 2_000
    assert taken(host) == []


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{}",
        "[]",
        "[5]",
        '[{"Body": 5}]',
        '[{"UserProperties": []}]',
        '[{"UserProperties": {"a": {}}}]',
        f'[{{"UserProperties": {{"a": {2**63}}}}}]',
        '[{"BrokerProperties": []}]',
        '[{"Body": "\\ud800"}]',
        '[{"Body": "good"}, {"BrokerProperties": {"Label": 5}}]',
        f"[{'{},' * MAX_BATCH_MESSAGES}{{}}]",
        json.dumps([{"UserProperties": dict.fromkeys(map(str, range(MAX_BATCH_PROPERTIES + 1)), 0)}]),
        "[" * 100_000,
    ],
    ids=lambda text: text[:60],
)
async def test_a_malformed_batch_is_refused(router: Router, host: BrokerHost, body: str) -> None:
    assert (await ask(router, "POST", "/orders/messages", body, Content_Type=BATCH_TYPE)).status == 400
    assert taken(host) == []


async def test_a_batch_may_have_as_many_messages_as_a_transfer(router: Router, host: BrokerHost) -> None:
    body = f"[{'{},' * (MAX_BATCH_MESSAGES - 1)}{{}}]"
    assert (await ask(router, "POST", "/orders/messages", body, Content_Type=BATCH_TYPE)).status == 201
    assert len(host.namespace.queue("orders")) == MAX_BATCH_MESSAGES


async def test_a_duplicate_is_dropped(router: Router, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "once", requires_duplicate_detection=True)
    for body in ("first", "second"):
        assert (await send(router, body, "once", MessageId="m")).status == 201
    put(host, ServiceBusMessage("third", message_id="m"), "once")
    assert [bytes(message) for message in taken(host, "once")] == [b"first"]


# ---------------------------------------------------------------------- receive and settle


async def test_peek_lock_returns_the_message_with_its_properties(router: Router, host: BrokerHost) -> None:
    await send(router, "earlier")
    await ask(router, "DELETE", "/orders/messages/head")
    put(host, ServiceBusMessage(BODY, message_id="m", subject="s", content_type="text/csv", time_to_live=10))
    response = await ask(router, "POST", "/Orders/messages/head")
    assert (response.status, response.body, response.content_type) == (201, BODY.encode(), "text/csv")
    properties = broker_properties(response)
    lock_token = properties.pop("LockToken")
    assert properties == {
        "DeliveryCount": 1,
        "EnqueuedSequenceNumber": 0,
        "EnqueuedTimeUtc": "Tue, 14 Nov 2023 22:13:20 GMT",
        "Label": "s",
        "LockedUntilUtc": "Tue, 14 Nov 2023 22:13:50 GMT",
        "MessageId": "m",
        "SequenceNumber": 2,
        "State": "Active",
        "TimeToLive": 10,
    }
    assert response.headers["Location"] == f"http://localhost:5672/orders/messages/2/{lock_token}"


async def test_a_message_without_limit_shows_the_largest_time_to_live(router: Router) -> None:
    await send(router)
    assert broker_properties(await ask(router, "DELETE", "/orders/messages/head"))["TimeToLive"] == 922337203685.47754


async def test_receive_and_delete_removes_the_message(router: Router, host: BrokerHost) -> None:
    await send(router)
    response = await ask(router, "DELETE", "/orders/messages/head")
    assert (response.status, response.body) == (200, BODY.encode())
    assert not {"LockToken", "LockedUntilUtc"} & broker_properties(response).keys()
    assert (await ask(router, "DELETE", "/orders/messages/head?timeout=0")).status == 204
    assert len(host.namespace.queue("orders")) == 0


@pytest.mark.parametrize("by", ["SequenceNumber", "MessageId"])
async def test_a_lock_is_renewed_released_and_completed(router: Router, host: BrokerHost, by: str) -> None:
    await send(router, MessageId="a/b c")

    async def settle(method: str, response: Response) -> int:
        properties = broker_properties(response)
        name = str(properties[by]).replace("/", "%2F").replace(" ", "%20")
        return (await ask(router, method, f"/orders/messages/{name}/{properties['LockToken']}")).status

    first = await ask(router, "POST", "/orders/messages/head")
    await clock.sleep(LOCK_S - 1)
    assert await settle("POST", first) == 200
    await clock.sleep(LOCK_S - 1)
    assert (await ask(router, "POST", "/orders/messages/head?timeout=0")).status == 204
    assert await settle("PUT", first) == 200
    second = await ask(router, "POST", "/orders/messages/head?timeout=0")
    assert broker_properties(second)["DeliveryCount"] == 2
    assert await settle("DELETE", second) == 200
    assert [await settle(method, second) for method in ("POST", "PUT", "DELETE")] == [404, 404, 404]
    assert len(host.namespace.queue("orders")) == 0


@pytest.mark.deviation("emulator.http-lock-lost")
async def test_an_expired_lock_cannot_be_settled(router: Router) -> None:
    await send(router)
    locked = location(await ask(router, "POST", "/orders/messages/head"))
    await clock.sleep(LOCK_S + 1)
    assert [(await ask(router, method, locked)).status for method in ("POST", "PUT", "DELETE")] == [404, 404, 404]


async def test_a_lock_token_is_valid_only_for_its_own_message(router: Router, host: BrokerHost) -> None:
    await send(router, MessageId="m")
    lock_token = broker_properties(await ask(router, "POST", "/orders/messages/head"))["LockToken"]
    for target in (f"/orders/messages/2/{lock_token}", f"/orders/messages/other/{lock_token}"):
        assert (await ask(router, "DELETE", target)).status == 404
    assert (await ask(router, "DELETE", f"/orders/messages/m/{lock_token.upper()}")).status == 200


async def test_dead_letters_are_received_with_their_reason(router: Router, host: BrokerHost) -> None:
    put(host, ServiceBusMessage(BODY))
    call = Call(Operation.RECEIVE, clock.now())
    (entry,) = host.namespace.receive(call, "orders", max_message_count=1)
    settlement = Settlement(SettleMode.DEAD_LETTER, "bad", 'a "description"\r\nof two lines')
    host.namespace.settle(call, "orders", [UUID(int=entry.token)], settlement)
    response = await ask(router, "POST", "/orders/$deadletterqueue/messages/head")
    assert response.status == 201
    assert response.headers["DeadLetterReason"] == '"bad"'
    assert json.loads(response.headers["DeadLetterErrorDescription"]) == 'a "description"\r\nof two lines'
    assert (await ask(router, "DELETE", location(response))).status == 200


async def test_a_message_that_fails_too_often_is_dead_lettered(router: Router) -> None:
    await send(router)
    for _ in range(2):
        await ask(router, "PUT", location(await ask(router, "POST", "/orders/messages/head")))
    response = await ask(router, "DELETE", "/orders/$DeadLetterQueue/messages/head?timeout=0")
    assert response.headers["DeadLetterReason"] == '"MaxDeliveryCountExceeded"'


async def test_a_receive_waits_for_its_timeout_of_60_seconds_by_default(router: Router) -> None:
    began_at = clock.now()
    assert (await ask(router, "POST", "/orders/messages/head")).status == 204
    assert clock.now() - began_at == pytest.approx(60)
    waiting = asyncio.create_task(ask(router, "DELETE", "/orders/messages/head?timeout=2.5"))
    await clock.sleep(1)
    await send(router)
    assert (await waiting).status == 200


async def test_a_waiting_receive_ends_with_its_token(router: Router, host: BrokerHost) -> None:
    expires_at = clock.now() + 5
    short = sign("sb://a/", ROOT_KEY_NAME, ROOT_KEY, expires_at)
    asked = request("DELETE", "/orders/messages/head", authorization=short)
    waiting = asyncio.create_task(router.answer(asked))
    await clock.sleep(10)
    await send(router)
    assert (await waiting).status == 401
    assert len(taken(host)) == 1


@pytest.mark.parametrize(
    ("message", "body"),
    [
        (ServiceBusMessage([b"a", b"b"]), b"ab"),
        ("text", b"text"),
        (5, b"5"),
        ({"a": [1, "é"]}, '{"a": [1, "é"]}'.encode()),
        (b"\xff", b"\xff"),
    ],
)
async def test_a_body_that_is_an_amqp_value_is_received_as_text(
    router: Router, host: BrokerHost, message: Any, body: bytes
) -> None:
    if not isinstance(message, ServiceBusMessage):
        value, message = message, ServiceBusMessage(None)
        message._body, message._body_type = value, AmqpMessageBodyType.VALUE
    put(host, message)
    assert (await ask(router, "DELETE", "/orders/messages/head")).body == body


@pytest.mark.deviation("emulator.http-headers")
@pytest.mark.parametrize(
    ("header", "value"),
    [
        ('"', '"'),
        ('""', ""),
        ('"\\"', "\\"),  # no JSON, but in quotes
        ('"a', '"a'),
        ('a"', 'a"'),
        ("", ""),
        ("null", "null"),
        ("[1]", "[1]"),
        ("1e400", "1e400"),
        ("-9223372036854775808", -(2**63)),
        ("9223372036854775808", "9223372036854775808"),
        ("-0.0", 0.0),
        ("True", "True"),
    ],
)
async def test_text_that_is_no_value_is_a_string(router: Router, host: BrokerHost, header: str, value: Any) -> None:
    assert (await ask(router, "POST", "/orders/messages", BODY, Given=header)).status == 201
    (message,) = taken(host)
    found = message.application_properties["Given"]
    assert (found, type(found)) == (value, type(value))


async def test_properties_of_all_types_are_received(router: Router, host: BrokerHost) -> None:
    at = datetime(1994, 11, 6, 8, 49, 37, tzinfo=UTC)
    properties: dict[str, Any] = {
        "text": 'é"\r\n',
        "int": -5,
        "float": 0.5,
        "bool": True,
        "time": at,
        "span": timedelta(seconds=1.5),
        "id": UUID(int=1),
        "decimal": Decimal("1.10"),
    }
    put(host, ServiceBusMessage(BODY, application_properties={**properties, "none": None}))
    headers = dict((await ask(router, "DELETE", "/orders/messages/head")).headers)
    del headers["BrokerProperties"]
    assert headers == {
        "text": '"\\u00e9\\"\\r\\n"',
        "int": "-5",
        "float": "0.5",
        "bool": "true",
        "time": '"Sun, 06 Nov 1994 08:49:37 GMT"',
        "span": "1.5",
        "id": '"00000000-0000-0000-0000-000000000001"',
        "decimal": "1.10",
    }


@pytest.mark.parametrize(
    ("payload", "body"),
    [
        (b"\x00\x53\x74\xc1\x03\x02\xa1\x05\x00\x53\x75\xa0\x01x", b"x"),
        (b"\x00\x53\x74\xc1\x05\x02\x54\x01\x54\x02\x00\x53\x75\xa0\x01x", b"x"),
        (b"\x00\x53\x77\xc1\x04\x01\xa1\x01x", b"\x00\x53\x77\xc1\x04\x01\xa1\x01x"),
    ],
    ids=["properties", "numbers as names", "body"],
)
async def test_a_malformed_message_is_received(router: Router, host: BrokerHost, payload: bytes, body: bytes) -> None:
    host.namespace.send(Call(Operation.SEND, clock.now()), "orders", [EncodedMessage.of(payload)])
    response = await ask(router, "DELETE", "/orders/messages/head")
    assert (response.status, response.body) == (200, body)


@pytest.mark.deviation("emulator.http-headers")
@settings(deadline=None)
@given(
    st.dictionaries(
        st.one_of(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
            st.sampled_from(
                ["Content-Length", "transfer-encoding", "Location", "Set-Cookie", "Access-Control-Max-Age"]
            ),
        ),
        st.one_of(
            st.text(st.characters(exclude_categories=["Cs"])),
            st.integers(-(2**63), 2**63 - 1),
            st.floats(),
            st.booleans(),
            st.binary().map(lambda raw: Opaque.of("x", b"\xa0" + bytes([len(raw)]) + raw)),
        ),
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
)
def test_no_message_breaks_the_response_of_its_receiver(properties: dict[str, Any], text: str) -> None:
    """Whatever a sender writes, a receiver reads one response with a body of the right length."""
    message = ServiceBusMessage(
        text, application_properties=properties, content_type=text, subject=text, correlation_id=text, message_id="m"
    )
    entry = Entry(encode_message(message), 1)
    headers = {"Content-Length": str(len(text.encode())), **headers_of(entry)}
    if content_type := header_type(entry.content.content_type):
        headers["Content-Type"] = content_type
    server, client = h11.Connection(h11.SERVER), h11.Connection(h11.CLIENT, max_incomplete_event_size=10**7)
    server.receive_data(client.send(h11.Request(method="POST", target="/", headers=[("Host", "a")])))
    assert isinstance(server.next_event(), h11.Request)
    client.send(h11.EndOfMessage())
    parts = (
        h11.Response(status_code=200, headers=list(headers.items())),
        h11.Data(data=text.encode()),
        h11.EndOfMessage(),
    )
    client.receive_data(b"".join(server.send(part) or b"" for part in parts))
    response = client.next_event()
    assert isinstance(response, h11.Response)
    read = {name.decode(): value.decode() for name, value in response.headers}
    assert read.keys() == {name.lower() for name in headers}
    assert json.loads(read["brokerproperties"]).get("Label") == text
    received = b""
    while isinstance(event := client.next_event(), h11.Data):
        received += event.data
    assert received == text.encode()


# ---------------------------------------------------------------------- refusals

REFUSED: Final = (
    ("POST", "/missing/messages", 410),
    ("POST", "/missing/messages/head", 410),
    ("DELETE", f"/missing/messages/1/{NO_TOKEN}", 410),
    ("POST", "/prices/messages/head", 410),
    ("POST", "/prices/Subscriptions/us/messages/head", 410),
    ("POST", "/prices/Subscriptions/eu/messages", 400),
    ("POST", "/orders/$DeadLetterQueue/messages", 400),
    ("POST", "/orders/messages/head?timeout=soon", 400),
    ("POST", "/orders/messages/head?timeout=-1", 400),
    ("POST", "/orders/messages/head?timeout=1e9", 400),
    ("DELETE", f"/orders/messages/1/{NO_TOKEN}", 404),
    ("PUT", f"/orders/messages/1/{NO_TOKEN}", 404),
    ("POST", f"/orders/messages/1/{NO_TOKEN}", 404),
    ("POST", "/jobs/messages", 400),
    ("POST", "/jobs/messages/head", 405),
    ("DELETE", "/jobs/messages/head", 405),
    ("DELETE", f"/jobs/messages/1/{NO_TOKEN}", 405),
    ("PUT", f"/jobs/messages/1/{NO_TOKEN}", 405),
    ("POST", f"/jobs/messages/1/{NO_TOKEN}", 405),
    ("POST", "/disabled/messages", 400),
    ("POST", "/disabled/messages/head", 400),
    ("POST", "/full/messages", 403),
    ("POST", "/large/messages", 403),
)


@pytest.mark.parametrize(("method", "target", "status"), REFUSED)
async def test_refusal_has_the_documented_status(
    router: Router, host: BrokerHost, method: str, target: str, status: int
) -> None:
    create(host, EntityKind.QUEUE, "disabled", status=EntityStatus.DISABLED)
    create(host, EntityKind.QUEUE, "large")
    create(host, EntityKind.QUEUE, "full", max_size_in_megabytes=1024)
    host.namespace.queue("full").policy.max_size_bytes = 10
    response = await ask(router, method, target, "a" * 300_000 if "large" in target else BODY)
    assert response.status == status
    assert response.body.startswith(f"<Error><Code>{status}</Code><Detail>".encode())


async def test_a_message_of_a_session_queue_is_not_settled_over_http(router: Router, host: BrokerHost) -> None:
    assert (await send(router, path="jobs", SessionId="a")).status == 201
    call = Call(Operation.SESSION, clock.now())
    lock = host.namespace.accept_session(call, "jobs", "a")
    assert lock is not None
    (entry,) = host.namespace.receive(call, "jobs", max_message_count=1, lock=lock)
    assert (await ask(router, "DELETE", f"/jobs/messages/1/{UUID(int=entry.token)}")).status == 405
    assert len(host.namespace.queue("jobs")) == 1


@pytest.mark.parametrize(
    "target",
    ["/orders/messages", "/orders/messages/head", f"/orders/messages/1/{NO_TOKEN}"],
)
async def test_other_methods_and_paths_are_left_to_the_management_api(router: Router, target: str) -> None:
    assert b"Publicly Listed Services" in (await ask(router, "GET", target)).body


async def test_a_subscription_may_be_called_messages(router: Router, host: BrokerHost) -> None:
    create(host, EntityKind.SUBSCRIPTION, "prices", "messages")
    assert (await ask(router, "DELETE", f"/prices/subscriptions/messages/rules/{NO_TOKEN}")).status == 404
    await send(router, path="prices")
    assert (await ask(router, "DELETE", "/prices/subscriptions/messages/messages/head")).status == 200
    assert (await ask(router, "DELETE", "/prices/subscriptions/messages")).status == 200


# ---------------------------------------------------------------------- faults


async def test_faults_affect_requests(router: Router, context: NamespaceContext) -> None:
    host = context.host
    context.inject(WireFault(WireFaultKind.SERVER_BUSY, "orders"))
    assert [(await send(router)).status, (await send(router, path="prices")).status] == [503, 201]
    context.heal()
    context.inject(WireFault(WireFaultKind.DROP_ACKNOWLEDGEMENT, "orders"))
    with pytest.raises(NoResponse):
        await send(router)
    assert len(taken(host)) == 1
    context.heal()
    context.inject(Fault(FaultKind.DOWN))
    with pytest.raises(NoResponse):
        await send(router)
    context.heal()
    assert taken(host) == []


async def test_a_receive_ends_when_its_client_disconnects(router: Router, context: NamespaceContext) -> None:
    """The message that arrives later is left for others."""
    for method in ("POST", "DELETE"):
        client, server = wire()
        head = f"{method} /orders/messages/head HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token()}\r\n\r\n"
        serving = asyncio.create_task(serve_http(server, context, head.encode(), router.answer, _no_upgrade))
        await clock.sleep(1)
        await client.close()
        await clock.wait({serving}, 5)
        assert serving.done()
        await send(router)
        assert [bytes(message) for message in taken(context.host)] == [BODY.encode()]


async def _no_upgrade(*_: Any) -> None:
    raise AssertionError("no request asks for a WebSocket")


async def test_a_message_that_arrives_as_its_client_disconnects_is_released(router: Router, host: BrokerHost) -> None:
    class Leaving(NoConnection):
        async def gone(self) -> None:
            await clock.sleep(0)

    put(host, ServiceBusMessage(BODY))
    asked: Request = replace(request("POST", "/orders/messages/head"), connection=Leaving())
    with pytest.raises(NoResponse):
        await router.answer(asked)
    (message,) = taken(host)
    assert message.delivery_count == 0


async def test_requests_that_are_sent_ahead_are_answered_in_order(router: Router, context: NamespaceContext) -> None:
    client, server = wire()
    head = f"Host: localhost\r\nAuthorization: {token()}\r\nContent-Length: 0\r\n\r\n"
    receive = f"DELETE /orders/messages/head HTTP/1.1\r\n{head}".encode()
    serving = asyncio.create_task(serve_http(server, context, receive, router.answer, _no_upgrade))
    await clock.sleep(1)
    client.write(f"DELETE /orders/messages/head?timeout=1 HTTP/1.1\r\n{head}".encode())
    await clock.sleep(1)
    await send(router)
    await clock.sleep(2)
    heard = b""
    while not client.incoming.empty():
        heard += await client.read()
    assert re.findall(rb"HTTP/1.1 (\d+)", heard) == [b"200", b"204"]
    await client.close()
    await serving
