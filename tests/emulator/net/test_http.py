"""HTTP/1.1 over a wire in memory, in virtual time: what is asked arrives, and hostile bytes do no harm."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from random import Random
from typing import Any

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbclient import clock
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.faults import WireFaults
from sbclient.emulator.net.http import MAX_HEADER_LINES, serve_http
from sbclient.emulator.net.http_messages import NoResponse, Request, Response, json_body, json_object
from sbclient.emulator.net.stream import ByteStream
from sbclient.emulator.sas import Authorizer
from sbclient.hosting.host import BrokerHost
from sbclient.testing import run_virtual
from tests.blanks import AROUND_A_LINE
from tests.emulator.amqp.client import Pipe, wire
from tests.emulator.requests import request

GET = b"GET /orders HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Talk:
    """A client of the server under test, and what the server's handler was asked."""

    def __init__(self, context: NamespaceContext) -> None:
        self.asked: list[Request] = []
        self.answer = Response(200, b"fine")
        self.error: Exception | None = None
        self.upgraded: list[bytes] = []
        self.client, self.server = wire()
        self._context = context
        self._task: asyncio.Task[None] | None = None

    async def handle(self, request: Request) -> Response:
        self.asked.append(request)
        if self.error is not None:
            raise self.error
        return self.answer

    async def upgrade(self, stream: ByteStream, asked: Any, after: bytes) -> None:
        self.upgraded.append(after)

    def say(self, data: bytes) -> None:
        """Send; the first bytes are what the listener has read already."""
        if self._task is None:
            work = serve_http(self.server, self._context, data, self.handle, self.upgrade)
            self._task = asyncio.create_task(work)
        else:
            self.client.write(data)

    async def heard(self) -> bytes:
        """Everything that the server has said until it has nothing more to do."""
        await clock.sleep(0.001)
        heard = b""
        while not self.client.incoming.empty():
            heard += await self.client.read()
        return heard

    async def ended(self) -> bytes:
        """Everything until the server ends the connection."""
        assert self._task is not None
        await self._task
        return await self.heard()

    @property
    def is_over(self) -> bool:
        return self._task is not None and self._task.done()

    async def end(self) -> None:
        await self.client.close()
        if self._task is not None:
            await asyncio.wait([self._task])


@pytest.fixture
async def talk(context: NamespaceContext) -> AsyncIterator[Talk]:
    talk = Talk(context)
    yield talk
    await talk.end()


def status(said: bytes) -> int:
    return int(said.split(b" ", 2)[1])


async def test_request_arrives_in_its_parts(talk: Talk) -> None:
    talk.say(
        b"PUT /a%2Fb/Subscriptions/s%20?$skip=1&api-version=2021-05&empty= HTTP/1.1\r\nHost: contoso.localhost:5672\r\n"
        b"If-Match: *\r\nX-Two: a\r\nx-two: b\r\nContent-Length: 5\r\n\r\nhello"
    )
    assert await talk.heard() == (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n"
        b"Date: Tue, 14 Nov 2023 22:13:20 GMT\r\nServer: sbclient\r\nContent-Length: 4\r\n\r\nfine"
    )
    (request,) = talk.asked
    assert request.method == "PUT"
    assert request.segments == ("a/b", "Subscriptions", "s ")
    assert request.query == {"$skip": "1", "api-version": "2021-05", "empty": ""}
    assert request.headers["if-match"] == "*"
    assert request.headers["x-two"] == "a, b"
    assert request.authority == "contoso.localhost:5672"
    assert request.body == b"hello"


@pytest.mark.parametrize(
    ("target", "segments"),
    [(b"/", ()), (b"//", ()), (b"/a/", ("a",)), (b"http://host:80/a/b", ("a", "b")), (b"/%E2%82%AC", ("€",))],
)
async def test_target_is_split_before_it_is_unquoted(talk: Talk, target: bytes, segments: tuple[str, ...]) -> None:
    talk.say(b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await talk.heard()
    assert talk.asked[0].segments == segments


@pytest.mark.parametrize("target", [b"*", b"orders", b"/%FF", b"/" + b"a" * 9000, b"/a?" + b"b=c&" * 70])
async def test_target_that_cannot_be_read_is_refused(talk: Talk, target: bytes) -> None:
    talk.say(b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status(await talk.ended()) == 400
    assert talk.asked == []


async def test_connection_stays_for_the_next_request(talk: Talk) -> None:
    for _ in range(3):
        talk.say(GET)
        assert status(await talk.heard()) == 200
    assert len(talk.asked) == 3
    assert not talk.is_over


async def test_requests_in_one_piece_are_answered_in_order(talk: Talk) -> None:
    talk.say(GET.replace(b"orders", b"one") + GET.replace(b"orders", b"two"))
    assert (await talk.heard()).count(b"HTTP/1.1 200") == 2
    assert [request.segments for request in talk.asked] == [("one",), ("two",)]


@pytest.mark.parametrize(
    "head", [b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n"]
)
async def test_connection_ends_on_request_of_the_client(talk: Talk, head: bytes) -> None:
    talk.say(head)
    assert status(await talk.ended()) == 200


async def test_body_in_chunks_and_bytes_is_one_body(talk: Talk) -> None:
    head = b"PUT /q HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    whole = head + b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n"
    talk.say(whole[:1])
    for at in range(1, len(whole)):
        talk.say(whole[at : at + 1])
    assert status(await talk.heard()) == 200
    assert talk.asked[0].body == b"hello world"


async def test_client_that_expects_100_continue_gets_it(talk: Talk) -> None:
    talk.say(b"PUT /q HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    assert (await talk.heard()).startswith(b"HTTP/1.1 100 ")
    talk.say(b"hi")
    assert status(await talk.heard()) == 200
    assert talk.asked[0].body == b"hi"


async def test_head_has_no_body(talk: Talk) -> None:
    talk.say(GET.replace(b"GET", b"HEAD"))
    said = await talk.heard()
    assert b"Content-Length: 4" in said
    assert said.endswith(b"\r\n\r\n")
    talk.say(GET)
    assert status(await talk.heard()) == 200


class TestLimits:
    @pytest.mark.promise("emulator.http")
    async def test_head_is_bounded(self, talk: Talk) -> None:
        talk.say(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: " + b"a" * 70_000)
        assert status(await talk.ended()) == 431

    @pytest.mark.promise("emulator.http")
    @pytest.mark.parametrize("count", [MAX_HEADER_LINES, MAX_HEADER_LINES + 1])
    async def test_headers_are_few(self, talk: Talk, count: int) -> None:
        talk.say(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + b"a:\r\n" * (count - 2) + b"\r\n")
        assert status(await talk.ended()) == (200 if count <= MAX_HEADER_LINES else 431)

    async def test_lines_of_a_body_are_not_headers(self, talk: Talk) -> None:
        head = b"PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n"
        for piece in (head[:-1], head[-1:] + b"\n" * 2_000, b"\n" * 3_000):
            talk.say(piece)
            said = await talk.heard()
        assert status(said) == 200

    async def test_body_is_bounded(self, talk: Talk) -> None:
        talk.say(b"PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999999\r\n\r\n" + b"a" * (2**20 + 1))
        assert status(await talk.ended()) == 413
        assert talk.asked == []

    async def test_body_in_pieces_is_bounded(self, talk: Talk) -> None:
        talk.say(b"PUT / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(2**20 // 4096 + 1):
            talk.say(b"1000\r\n" + b"a" * 4096 + b"\r\n")
        assert status(await talk.ended()) == 413
        assert talk.asked == []

    async def test_slow_request_times_out(self, talk: Talk) -> None:
        talk.say(GET[:1])
        began_at = clock.now()
        for at in range(1, 20):
            await clock.sleep(2)
            talk.say(GET[at : at + 1])
        assert status(await talk.ended()) == 408
        assert clock.now() - began_at < 40

    async def test_silent_connection_ends_without_a_response(self, talk: Talk) -> None:
        talk.say(GET)
        assert status(await talk.heard()) == 200
        began_at = clock.now()
        assert await talk.ended() == b""
        assert clock.now() - began_at == pytest.approx(120, abs=1)

    async def test_client_that_disconnects_within_a_request_ends_the_connection(self, talk: Talk) -> None:
        talk.say(b"PUT /q HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nhal")
        await talk.heard()
        await talk.client.close()
        await talk.ended()
        assert talk.asked == []


class TestHostileBytes:
    @pytest.mark.parametrize(
        "data",
        [
            b"\x00" * 100,
            b"\r\n" * 10 + b"GET\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: localhost\r\nBad Header: x\r\n\r\n",
            b"PUT / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"PUT / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2;\nxx\r\nab\r\n0\r\n\r\n",
            b"PUT / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabxx0\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length : 0\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: localhost\r\nA: b\rc\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"G\xc3\xa9T / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ],
    )
    async def test_is_refused_and_the_connection_ends(self, talk: Talk, data: bytes) -> None:
        talk.say(data)
        said = await talk.ended()
        assert status(said) in (400, 501, 505)
        assert talk.asked == []

    async def test_refusal_does_not_repeat_what_was_sent(self, talk: Talk) -> None:
        talk.say(b"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization SharedAccessSignature sig=secret\r\n\r\n")
        assert b"secret" not in await talk.ended()

    @settings(max_examples=60, deadline=None)
    @given(data=st.one_of(st.binary(min_size=1, max_size=300), st.binary(max_size=60).map(GET[:-2].__add__)))
    def test_no_bytes_break_the_server(self, data: bytes) -> None:
        async def attempt() -> None:
            host = BrokerHost("contoso", random=Random(1))
            talk = Talk(NamespaceContext(host, Authorizer(), WireFaults(Random(1))))
            talk.say(data)
            await clock.sleep(300)
            assert talk.is_over
            await talk.end()

        run_virtual(attempt())


class TestHandlers:
    async def test_exception_of_a_handler_is_a_500_without_details(self, talk: Talk) -> None:
        talk.error = RuntimeError("the secret of the handler")
        talk.say(GET)
        said = await talk.heard()
        assert status(said) == 500
        assert b"secret" not in said

    async def test_handler_may_close_the_connection_without_a_response(self, talk: Talk) -> None:
        talk.error = NoResponse()
        talk.say(GET)
        assert await talk.ended() == b""

    async def test_headers_of_the_answer_are_sent(self, talk: Talk) -> None:
        talk.answer = Response(201, b"x", "application/xml", {"X-Extra": "1"})
        talk.say(GET)
        said = await talk.heard()
        assert said.startswith(b"HTTP/1.1 201 ")
        assert b"Content-Type: application/xml\r\n" in said
        assert b"X-Extra: 1\r\n" in said


class Ticks:
    """Events, one a second; tells whether it was closed."""

    def __init__(self, count: int) -> None:
        self._left = count
        self.is_closed = False

    def __aiter__(self) -> Ticks:
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        await clock.sleep(1)
        self._left -= 1
        return b"tick"

    async def aclose(self) -> None:
        self.is_closed = True


def body_of(said: bytes) -> bytes:
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("Host", "h")]))
    client.send(h11.EndOfMessage())
    client.receive_data(said)
    body = b""
    while isinstance(event := client.next_event(), h11.Response | h11.Data | h11.InformationalResponse):
        body += bytes(event.data) if isinstance(event, h11.Data) else b""
    return body


class TestStreams:
    async def test_events_are_sent_at_once(self, talk: Talk) -> None:
        ticks = Ticks(2)
        talk.answer = replace(talk.answer, events=ticks, body=b"first ")
        talk.say(GET)
        said = await talk.heard()
        assert body_of(said) == b"first "
        await clock.sleep(1)
        said += await talk.heard()
        assert body_of(said) == b"first tick"
        await clock.sleep(1)
        said += await talk.heard()
        assert body_of(said) == b"first ticktick"
        assert ticks.is_closed

    async def test_client_that_disconnects_ends_the_events(self, talk: Talk) -> None:
        ticks = Ticks(10**6)
        talk.answer = replace(talk.answer, events=ticks)
        talk.say(GET)
        await clock.sleep(2.5)
        await talk.client.close()
        await talk.ended()
        assert ticks.is_closed

    async def test_client_that_does_not_read_them_is_cut_off(self, talk: Talk) -> None:
        ticks = Ticks(10**6)
        talk.answer = replace(talk.answer, events=ticks)
        talk.say(GET)
        await clock.sleep(2.5)
        talk.server.is_read.clear()
        began_at = clock.now()
        await talk.ended()
        assert ticks.is_closed
        assert clock.now() - began_at == pytest.approx(30, abs=2)


class TestUpgrade:
    ASKED = (
        b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    )

    async def test_upgraded_connection_is_passed_on_with_the_bytes_that_follow(self, talk: Talk) -> None:
        talk.say(self.ASKED + b"\x82\x00after")
        assert await talk.ended() == b""
        assert talk.upgraded == [b"\x82\x00after"]

    @pytest.mark.promise("emulator.http")
    @pytest.mark.parametrize(
        "body", [b"Content-Length: 2\r\n\r\n\x82\x00", b"Transfer-Encoding: chunked\r\n\r\n2\r\n\x82\x00\r\n0\r\n\r\n"]
    )
    async def test_request_with_a_body_is_not_upgraded(self, talk: Talk, body: bytes) -> None:
        talk.say(self.ASKED[:-2] + body)
        assert status(await talk.ended()) == 400
        assert talk.upgraded == []

    async def test_request_with_an_empty_body_is_upgraded(self, talk: Talk) -> None:
        talk.say(self.ASKED[:-2] + b"Content-Length: 0\r\n\r\n")
        await talk.ended()
        assert talk.upgraded == [b""]

    async def test_only_at_its_path(self, talk: Talk) -> None:
        talk.say(self.ASKED.replace(b"/$servicebus/websocket", b"/other"))
        assert status(await talk.heard()) == 200
        assert talk.upgraded == []

    @pytest.mark.parametrize("target", [b"/%24", b"https://localhost/$", b"wss://localhost:5672/$"])
    async def test_other_forms_of_the_target_are_understood(self, talk: Talk, target: bytes) -> None:
        talk.say(self.ASKED.replace(b"/$", target))
        await talk.ended()
        assert talk.upgraded == [b""]


async def test_write_waits_for_a_slow_reader(talk: Talk) -> None:
    assert isinstance(talk.server, Pipe)
    talk.server.is_read.clear()
    talk.say(GET + GET)
    assert (await talk.heard()).count(b"HTTP/1.1 200") == 1
    talk.server.is_read.set()
    assert (await talk.heard()).count(b"HTTP/1.1 200") == 1


async def test_client_that_never_reads_is_disconnected(talk: Talk) -> None:
    talk.server.is_read.clear()
    talk.say(GET)
    began_at = clock.now()
    assert status(await talk.ended()) == 200
    assert clock.now() - began_at == pytest.approx(30, abs=1)


@pytest.mark.parametrize("said", ["", "null", "{}", '{"a": " x\\n"}', "[1]", '"\\u00a0"'])
def test_blanks_around_a_json_body_mean_nothing(said: str) -> None:
    """Also when there is nothing else in it."""
    expected = json.loads(said) if said else None
    for before, after in AROUND_A_LINE:
        if said or before.isspace() or not before:  # nothing comes after a mark of the byte order
            posted = request("POST", "/", (before + said + after).encode())
            assert json_body(posted) == expected, (before, after)
            if expected is None or expected == {}:
                assert json_object(posted) == {}
