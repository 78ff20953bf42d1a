"""The management clients of azure-servicebus, unmodified, over https on the port that also takes AMQP."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from ssl import create_default_context
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
)
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import (
    AccessRights,
    ApiVersion,
    AuthorizationRule,
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)
from azure.servicebus.management import ServiceBusAdministrationClient as BlockingClient

from sbclient.emulator import Emulator
from sbclient.rules.shared_access_signature import sign

pytestmark = pytest.mark.real_time

UNLIMITED = timedelta(days=10_675_199, seconds=10_085, microseconds=477_581)


@pytest.fixture
async def client(emulator: Emulator, trusted: str) -> AsyncIterator[ServiceBusAdministrationClient]:
    connected = ServiceBusAdministrationClient.from_connection_string(
        emulator.connection_string, connection_verify=trusted, retry_total=0
    )
    async with connected:
        yield connected


async def names(pages: Any) -> list[str]:
    return [each.name async for each in pages]


async def test_every_setting_of_a_queue(client: ServiceBusAdministrationClient) -> None:
    await client.create_queue("target")
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=[AccessRights.SEND, AccessRights.LISTEN],
        key_name="worker",
        primary_key="first",
        secondary_key="second",
    )
    settings: dict[str, Any] = {
        "auto_delete_on_idle": timedelta(minutes=10),
        "dead_lettering_on_message_expiration": True,
        "default_message_time_to_live": timedelta(minutes=11),
        "duplicate_detection_history_time_window": timedelta(minutes=12),
        "enable_batched_operations": False,
        "enable_express": True,
        "enable_partitioning": True,
        "lock_duration": timedelta(seconds=13),
        "max_delivery_count": 14,
        "requires_duplicate_detection": True,
        "requires_session": True,
    }
    made = await client.create_queue(
        "q",
        max_size_in_megabytes=3072,
        authorization_rules=[rule],
        forward_dead_lettered_messages_to="target",
        **settings,
    )
    (listed, _) = [each async for each in client.list_queues()]
    for found in (made, await client.get_queue("q"), listed):
        assert {name: getattr(found, name) for name in settings} == settings
        assert found.max_size_in_megabytes == 49152
        assert str(found.forward_dead_lettered_messages_to).endswith("/target")
        assert found.authorization_rules is not None
        (stored,) = found.authorization_rules
        assert (stored.key_name, stored.primary_key, stored.secondary_key) == ("worker", "first", "second")
        assert stored.rights == ["Send", "Listen"]


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


async def test_entities_with_sessions_cannot_forward(client: ServiceBusAdministrationClient) -> None:
    await client.create_queue("target")
    await client.create_topic("t")
    for work in (
        client.create_queue("q", requires_session=True, forward_to="target"),
        client.create_subscription("t", "s", requires_session=True, forward_to="target"),
    ):
        with pytest.raises(HttpResponseError, match="Bad Request") as caught:
            await work
        assert caught.value.status_code == 400


async def test_entities_that_forward_keep_their_idle_time(client: ServiceBusAdministrationClient) -> None:
    idle = timedelta(minutes=6)
    await client.create_queue("target")
    await client.create_topic("t")
    queue = await client.create_queue("q", forward_to="target", auto_delete_on_idle=idle)
    subscription = await client.create_subscription("t", "s", forward_to="target", auto_delete_on_idle=idle)
    assert queue.auto_delete_on_idle == subscription.auto_delete_on_idle == idle
    await client.update_queue(queue, max_delivery_count=7)
    await client.update_subscription("t", subscription, max_delivery_count=7)
    for found in (await client.get_queue("q"), await client.get_subscription("t", "s")):
        assert (found.auto_delete_on_idle, found.max_delivery_count) == (idle, 7)
        assert str(found.forward_to).endswith("/target")


@pytest.mark.parametrize("sent", [True, False])
async def test_ordering_of_a_topic_is_returned_as_sent(client: ServiceBusAdministrationClient, sent: bool) -> None:
    for partitioned in (True, False):
        name = f"t-{partitioned}"
        made = await client.create_topic(name, enable_partitioning=partitioned, support_ordering=sent)
        await client.update_topic(made, user_metadata="changed")
        found = await client.get_topic(name)
        assert (made.support_ordering, found.support_ordering, found.user_metadata) == (sent, sent, "changed")


async def test_time_without_a_zone_in_a_rule_stays_without(client: ServiceBusAdministrationClient) -> None:
    await client.create_topic("t")
    await client.create_subscription("t", "s")
    values: dict[str, Any] = {
        "local": datetime.fromisoformat("2026-01-31T12:00:00"),
        "utc": datetime(2026, 1, 31, 12, tzinfo=UTC),
    }
    await client.create_rule("t", "s", "sql", filter=SqlRuleFilter("a = @utc", parameters=dict(values)))
    await client.create_rule("t", "s", "correlation", filter=CorrelationRuleFilter(properties=dict(values)))
    found = {each.name: each async for each in client.list_rules("t", "s")}
    sql, correlation = found["sql"].filter, found["correlation"].filter
    assert isinstance(sql, SqlRuleFilter)
    assert isinstance(correlation, CorrelationRuleFilter)
    assert sql.parameters == correlation.properties == values


@pytest.mark.parametrize(
    ("address", "status", "partitioned"),
    [("q?api-version=2012-03", 400, None), ("q?api-version=2013-10", 201, "true"), ("q", 201, "false")],
)
async def test_version_of_a_request_decides_about_partitioning(
    emulator: Emulator, trusted: str, address: str, status: int, partitioned: str | None
) -> None:
    base = f"https://localhost:{emulator.ports['contoso']}"
    token = sign(base, "RootManageSharedAccessKey", "SAS_KEY_VALUE", 4e9)
    body = (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
        'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">'
        "<EnablePartitioning>true</EnablePartitioning></QueueDescription></content></entry>"
    )
    request = Request(f"{base}/{address}", body.encode(), {"Authorization": token}, method="PUT")

    def put() -> tuple[int, str]:
        try:
            with urlopen(request, context=create_default_context(cafile=trusted)) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    answered, text = await asyncio.to_thread(put)
    assert answered == status
    assert ("SubCode=40000" in text) if partitioned is None else f"<EnablePartitioning>{partitioned}</" in text


async def test_lists_come_in_pages(client: ServiceBusAdministrationClient) -> None:
    expected = [f"q{index:02}" for index in range(25)]
    await asyncio.gather(*(client.create_queue(name) for name in expected))
    assert await names(client.list_queues()) == expected
    assert await names(client.list_queues(start_index=20, max_page_size=2)) == expected[20:]
    assert [each.name async for each in client.list_queues_runtime_properties(max_page_size=7)] == expected


@pytest.mark.parametrize("bounds", [{"start_index": -1}, {"max_page_size": -1}])
async def test_negative_bounds_are_refused(client: ServiceBusAdministrationClient, bounds: dict[str, int]) -> None:
    with pytest.raises(HttpResponseError):
        await names(client.list_queues(**bounds))


async def test_errors_are_the_ones_of_the_service(client: ServiceBusAdministrationClient) -> None:
    await client.create_queue("q")
    with pytest.raises(ResourceExistsError):
        await client.create_queue("q")
    for wrong in ({"lock_duration": timedelta(minutes=6)}, {"max_message_size_in_kilobytes": 4096}):
        with pytest.raises(HttpResponseError, match="SubCode=40000") as caught:
            await client.create_queue("other", **wrong)
        assert caught.value.status_code == 400
    with pytest.raises(HttpResponseError):
        await client.create_queue("")
    found = await client.get_queue("q")
    found.requires_session = True
    with pytest.raises(HttpResponseError, match="RequiresSession"):
        await client.update_queue(found)
    await client.delete_queue("q")
    with pytest.raises(ResourceNotFoundError):
        await client.update_queue(found)


class TestCredentials:
    """Each way in which the SDK proves who it is."""

    def _client(self, emulator: Emulator, trusted: str, **changes: str) -> ServiceBusAdministrationClient:
        text = emulator.connection_string
        for old, new in changes.items():
            text = text.replace(old, new)
        return ServiceBusAdministrationClient.from_connection_string(text, connection_verify=trusted, retry_total=0)

    @pytest.mark.parametrize("part", ["SAS_KEY_VALUE", "RootManageSharedAccessKey"])
    async def test_wrong_key_or_name_is_refused(self, emulator: Emulator, trusted: str, part: str) -> None:
        async with self._client(emulator, trusted, **{part: "other"}) as client:
            with pytest.raises(ClientAuthenticationError):
                await client.create_queue("q")

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
