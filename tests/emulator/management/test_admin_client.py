"""The management clients of azure-servicebus, unmodified, over https on the port that also takes AMQP."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ResourceNotFoundError, ServiceRequestError
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import (
    ApiVersion,
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)
from azure.servicebus.management import ServiceBusAdministrationClient as BlockingClient

from sbclient.emulator import Emulator
from sbclient.rules.shared_access_signature import sign

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.filterwarnings("ignore:Testing an element's truth value:DeprecationWarning"),  # by azure-servicebus
]


@pytest.fixture
async def client(emulator: Emulator, trusted: str) -> AsyncIterator[ServiceBusAdministrationClient]:
    connected = ServiceBusAdministrationClient.from_connection_string(
        emulator.connection_string, connection_verify=trusted, retry_total=0
    )
    async with connected:
        yield connected


async def names(pages: Any) -> list[str]:
    return [each.name async for each in pages]


async def test_topic_subscription_and_rules(client: ServiceBusAdministrationClient) -> None:
    await client.create_queue("target")
    topic = await client.create_topic("t", enable_partitioning=True, default_message_time_to_live="PT11M")
    assert (topic.max_size_in_megabytes, topic.support_ordering) == (16384, False)
    assert topic.filtering_messages_before_publishing is False
    made = await client.create_subscription("t", "s", forward_to="target", max_delivery_count=3)
    assert made.dead_lettering_on_filter_evaluation_exceptions is True
    assert str(made.forward_to).endswith("/target")
    await client.create_subscription("t", "eu")
    assert (await client.get_topic_runtime_properties("t")).subscription_count == 2
    assert (await client.get_subscription_runtime_properties("t", "s")).total_message_count == 0
    made.max_delivery_count = 5
    await client.update_subscription("t", made)
    assert (await client.get_subscription("t", "s")).max_delivery_count == 5
    topic.default_message_time_to_live = timedelta(minutes=7)
    await client.update_topic(topic)
    assert (await client.get_topic("t")).default_message_time_to_live == timedelta(minutes=7)
    assert await names(client.list_subscriptions("t")) == ["eu", "s"]
    assert [each.name async for each in client.list_subscriptions_runtime_properties("t")] == ["eu", "s"]
    await client.delete_subscription("t", "s")
    await client.delete_topic("t")
    assert await names(client.list_topics()) == []
    with pytest.raises(ResourceNotFoundError):
        await client.get_subscription("t", "eu")


async def test_rules_of_every_kind(client: ServiceBusAdministrationClient) -> None:
    await client.create_topic("t")
    await client.create_subscription("t", "s")
    values: dict[str, Any] = {
        "text": "a<b",
        "small": 1,
        "large": 2**40,
        "real": 2.5,
        "yes": True,
        "when": datetime(2026, 1, 31, 12, tzinfo=UTC),
        "local": datetime.fromisoformat("2026-01-31T12:00:00"),
        "span": timedelta(hours=1),
    }
    sql = SqlRuleFilter("a = @text", parameters={f"@{name}": value for name, value in values.items()})
    await client.create_rule("t", "s", "sql", filter=sql, action=SqlRuleAction("SET b = @n", parameters={"@n": 5}))
    correlation = CorrelationRuleFilter(label="l", correlation_id="c", message_id="m", to="t", properties=values)
    await client.create_rule("t", "s", "correlation", filter=correlation)
    await client.create_rule("t", "s", "yes", filter=TrueRuleFilter())
    await client.create_rule("t", "s", "no", filter=FalseRuleFilter())
    found = {each.name: each async for each in client.list_rules("t", "s")}
    assert sorted(found) == ["$Default", "correlation", "no", "sql", "yes"]
    for rule in (found["sql"], await client.get_rule("t", "s", "sql")):
        assert isinstance(rule.filter, SqlRuleFilter)
        assert rule.filter.sql_expression == "a = @text"
        assert rule.filter.parameters == {f"@{name}": value for name, value in values.items()}
        assert isinstance(rule.action, SqlRuleAction)
        assert rule.action.parameters == {"@n": 5}
    for rule in (found["correlation"], await client.get_rule("t", "s", "correlation")):
        assert isinstance(rule.filter, CorrelationRuleFilter)
        assert (rule.filter.label, rule.filter.correlation_id, rule.filter.message_id) == ("l", "c", "m")
        assert rule.filter.properties == values
    assert isinstance(found["yes"].filter, TrueRuleFilter)
    assert isinstance(found["no"].filter, FalseRuleFilter)
    changed = found["sql"]
    changed.filter = FalseRuleFilter()
    await client.update_rule("t", "s", changed)
    assert isinstance((await client.get_rule("t", "s", "sql")).filter, FalseRuleFilter)
    await client.delete_rule("t", "s", "sql")
    with pytest.raises(ResourceNotFoundError):
        await client.get_rule("t", "s", "sql")


async def test_lists_come_in_pages(client: ServiceBusAdministrationClient) -> None:
    expected = [f"q{index:02}" for index in range(25)]
    await asyncio.gather(*(client.create_queue(name) for name in expected))
    assert await names(client.list_queues()) == expected
    assert await names(client.list_queues(start_index=20, max_page_size=2)) == expected[20:]
    assert [each.name async for each in client.list_queues_runtime_properties(max_page_size=7)] == expected


class TestCredentials:
    """Each way in which the SDK proves who it is."""

    def _client(self, emulator: Emulator, trusted: str, **changes: str) -> ServiceBusAdministrationClient:
        text = emulator.connection_string
        for old, new in changes.items():
            text = text.replace(old, new)
        return ServiceBusAdministrationClient.from_connection_string(text, connection_verify=trusted, retry_total=0)

    async def test_token_in_the_connection_string_is_accepted(self, emulator: Emulator, trusted: str) -> None:
        port = emulator.ports["contoso"]
        token = sign(f"https://localhost:{port}", "RootManageSharedAccessKey", "SAS_KEY_VALUE", 4e9)
        text = f"Endpoint=sb://localhost:{port};SharedAccessSignature={token};UseDevelopmentEmulator=true"
        client = ServiceBusAdministrationClient.from_connection_string(text, connection_verify=trusted)
        async with client:
            assert (await client.create_queue("q")).name == "q"

    async def test_token_credential_is_accepted_where_any_is(self, certificates: Any, trusted: str) -> None:
        async with Emulator("contoso", auth="jwt-any", certificate_directory=certificates) as emulator:
            client = ServiceBusAdministrationClient(
                f"localhost:{emulator.ports['contoso']}", _AnyIdentity(), connection_verify=trusted
            )
            async with client:
                await client.create_queue("target")
                assert (await client.create_queue("q", forward_to="target")).name == "q"

    async def test_without_authorization_no_token_is_required(self, certificates: Any, trusted: str) -> None:
        async with Emulator("contoso", auth="none", certificate_directory=certificates) as emulator:
            client = self._client(emulator, trusted, SAS_KEY_VALUE="wrong")
            assert (await client.create_queue("q")).name == "q"
            await client.close()


class _AnyIdentity:
    """A credential with unsigned tokens."""

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        parts = [base64.urlsafe_b64encode(json.dumps(part).encode()) for part in ({"alg": "none"}, {"exp": 4e9})]
        return AccessToken(".".join([*(part.rstrip(b"=").decode() for part in parts), "x"]), 4_000_000_000)

    async def close(self) -> None: ...

    async def __aenter__(self) -> _AnyIdentity:
        return self

    async def __aexit__(self, *exc_info: object) -> None: ...


@pytest.mark.parametrize("version", list(ApiVersion))
async def test_blocking_client_works_in_every_api_version(
    emulator: Emulator, trusted: str, version: ApiVersion
) -> None:
    def work() -> tuple[list[str], int]:
        client = BlockingClient.from_connection_string(
            emulator.connection_string, api_version=version, connection_verify=trusted
        )
        with client:
            client.create_queue("q")
            client.create_topic("t")
            client.create_subscription("t", "s")
            client.create_rule("t", "s", "r", filter=SqlRuleFilter("a = 1"))
            found = [each.name for each in client.list_rules("t", "s")]
            client.delete_topic("t")
            return found, client.get_queue_runtime_properties("q").active_message_count or 0

    assert await asyncio.to_thread(work) == (["$Default", "r"], 0)


async def test_client_finds_the_certificate_by_its_environment(
    emulator: Emulator, trusted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", trusted)

    def work() -> str:
        with BlockingClient.from_connection_string(emulator.connection_string) as client:
            return client.get_namespace_properties().name or ""

    assert await asyncio.to_thread(work) == "contoso"


async def test_client_that_does_not_trust_it_gets_nowhere(emulator: Emulator) -> None:
    client = ServiceBusAdministrationClient.from_connection_string(emulator.connection_string, retry_total=0)
    async with client:
        with pytest.raises(ServiceRequestError):
            await client.create_queue("q")
    assert emulator.context().host.namespace.directory.get("q") is None
