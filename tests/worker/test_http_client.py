"""HTTP requests of the commands, against the hostile answers of `tests.hostile.service`."""

from __future__ import annotations

import asyncio
from urllib.request import Request

import pytest

from sbclient.cli.control import Control
from sbclient.errors import ServiceBusConnectionError
from sbclient.worker.http_client import MAX_ANSWER_BYTES, Answer, answer_to
from tests.hostile.service import Answer as Hostile
from tests.hostile.service import answers, serving

pytestmark = pytest.mark.real_time


@pytest.mark.parametrize(("name", "answer"), [pytest.param(*each, id=each[0]) for each in answers()])
async def test_hostile_answer_stays_short_and_is_not_followed(name: str, answer: Hostile) -> None:
    async with serving(answer, None) as service:
        request = Request(f"http://127.0.0.1:{service.port}/", headers={"Authorization": "secret"})
        try:
            found: Answer | None = await asyncio.to_thread(answer_to, request, timeout_s=20)
        except OSError:
            found = None

    assert not service.elsewhere
    assert len(service.requests) == 1
    if name.startswith("redirect"):
        assert found is not None
        assert found.status == int(name.removeprefix("redirect-"))
    assert found is None or len(found.body) <= MAX_ANSWER_BYTES


@pytest.mark.parametrize("status", [200, 302, 404, 500])
@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b'{"error": 1', b"[" * 100_000])
async def test_control_api_reports_what_is_no_answer_of_an_emulator(status: int, body: bytes) -> None:
    head = f"HTTP/1.1 {status} X\r\nLocation: {{other}}\r\nContent-Length: {len(body)}"
    async with serving(Hostile(head, [body]), None) as service:
        address = f"Endpoint=sb://127.0.0.1:{service.port};SharedAccessKeyName=k;SharedAccessKey=s"
        control = Control(f"{address};UseDevelopmentEmulator=true", None, None)
        with pytest.raises(ServiceBusConnectionError, match="is not an answer of an emulator"):
            await control.call("GET", "faults")

    assert not service.elsewhere
