"""The HTTP of the administration client: whom it asks, and what it accepts as an answer."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sbclient.administration import CorrelationRuleFilter, ServiceBusAdministrationClient, SqlRuleAction, SqlRuleFilter
from sbclient.certificate import Certificate
from sbclient.emulator import Emulator
from sbclient.errors import ServiceBusError
from sbclient.transport.sdk import http
from tests.hostile.service import Answer, answers, serving

pytestmark = pytest.mark.real_time

HARMLESS = "PREFIX ns1: xmlns:ns1= <ns1:x> </ns1:x> :ns1 ns0: <!DOCTYPE"
FEED = b'<feed xmlns="http://www.w3.org/2005/Atom"/>'
EMPTY = Answer(f"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: {len(FEED)}", [FEED])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    made = Certificate(tmp_path_factory.mktemp("certificate"))
    made.make()
    return made


def client_of(port: int, certificate: Certificate, **options: Any) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        f"Endpoint=sb://127.0.0.1:{port}/;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0",
        connection_verify=str(certificate.path),
        **options,
    )


@pytest.mark.promise("client.http")
@pytest.mark.parametrize(("name", "answer"), [pytest.param(*each, id=each[0]) for each in answers()])
async def test_hostile_answer_is_an_error_with_its_cause(name: str, answer: Answer, certificate: Certificate) -> None:
    async with serving(answer, certificate) as service, client_of(service.port, certificate) as client:
        if answer.is_valid:
            assert [each async for each in client.list_queues()] == []
        else:
            with pytest.raises(ServiceBusError) as caught:
                await client.get_queue("q")
            assert caught.value.__cause__ is not None

    assert not service.elsewhere
    assert len(service.requests) == 1
    assert sum(service.sent) < 20 * http.MAX_ANSWER_BYTES  # of 1,500 MiB; the system holds some


@pytest.mark.promise("client.netrc")
async def test_netrc_does_not_replace_the_token(
    certificate: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "netrc"
    path.write_text("default login user password secret\n")
    path.chmod(0o600)
    monkeypatch.setenv("NETRC", str(path))
    async with serving(EMPTY, certificate) as service, client_of(service.port, certificate) as client:
        assert [each async for each in client.list_queues()] == []

    assert b"\r\nAuthorization: SharedAccessSignature " in service.requests[0]


async def test_proxy_of_the_environment_is_used_unless_it_excludes_the_host(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    async with serving(EMPTY, certificate) as service:
        async with client_of(service.port, certificate) as client:
            with pytest.raises(ServiceBusError, match="cannot be reached"):
                await client.get_queue("q")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        async with client_of(service.port, certificate) as client:
            assert [each async for each in client.list_queues()] == []


def test_account_of_a_proxy_does_not_change_its_address() -> None:
    proxies = http.proxies_of_option(
        {"proxy_hostname": "proxy", "proxy_port": 1, "username": "a:b", "password": "x@y/"}
    )

    assert proxies["https"] == "http://a%3Ab:x%40y%2F@proxy:1"


@pytest.mark.promise("client.secrets")
async def test_token_is_not_logged(certificate: Certificate, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with (
        serving(EMPTY, certificate) as service,
        client_of(service.port, certificate, logging_enable=True) as client,
    ):
        assert [each async for each in client.list_queues()] == []

    assert "/queues" in caplog.text
    assert "sig=" not in caplog.text


@pytest.fixture
async def emulated(tmp_path: Path) -> AsyncIterator[ServiceBusAdministrationClient]:
    async with (
        Emulator("contoso", seed=1, certificate_directory=tmp_path) as served,
        ServiceBusAdministrationClient.from_connection_string(
            served.connection_string, connection_verify=str(served.certificate_path)
        ) as client,
    ):
        yield client


async def test_text_that_looks_like_xml_is_stored_unchanged(emulated: ServiceBusAdministrationClient) -> None:
    await emulated.create_queue("q", user_metadata=HARMLESS)
    await emulated.create_topic("t", user_metadata=HARMLESS)
    await emulated.create_subscription("t", "s", user_metadata=HARMLESS)
    sql, correlation = SqlRuleFilter(f"x = '{HARMLESS}'"), CorrelationRuleFilter(properties={"ns1:": HARMLESS})
    await emulated.create_rule("t", "s", "sql", filter=sql, action=SqlRuleAction(f"SET x = '{HARMLESS}'"))
    await emulated.create_rule("t", "s", "correlation", filter=correlation)

    queue, topic = await emulated.get_queue("q"), await emulated.get_topic("t")
    subscription = await emulated.get_subscription("t", "s")
    assert [queue.user_metadata, topic.user_metadata, subscription.user_metadata] == [HARMLESS] * 3
    rule = await emulated.get_rule("t", "s", "sql")
    assert (rule.filter, rule.action) == (sql, SqlRuleAction(f"SET x = '{HARMLESS}'"))
    found = (await emulated.get_rule("t", "s", "correlation")).filter
    assert isinstance(found, CorrelationRuleFilter)
    assert found.properties == {"ns1:": HARMLESS}
