"""The management API, document by document, in virtual time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from random import Random
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient import clock
from sbclient.amqp import DateTimeOffset, TimeSpan, encode_message
from sbclient.broker.directory import Entity
from sbclient.broker.faults import Fault, FaultKind
from sbclient.broker.filters import SystemProperties, compile_filter
from sbclient.broker.management import Management
from sbclient.broker.profile import PREM_2021
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.faults import WireFault, WireFaultKind, WireFaults
from sbclient.emulator.management.api import ManagementApi
from sbclient.emulator.management.atom_descriptions import SERVICE_BUS
from sbclient.emulator.management.atom_values import read_any
from sbclient.emulator.management.xml import Element, write_element
from sbclient.emulator.net.http_messages import NoResponse, Response
from sbclient.emulator.sas import AuthorizationMode, Authorizer
from sbclient.entities import AccessRights, AuthorizationRule, Description, SqlRuleFilter
from sbclient.formats.refusal_reason import read_reason, write_reason
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage
from tests.emulator.amqp.client import put
from tests.emulator.requests import described, read_document, request, token

QUEUE, TOPIC, SUBSCRIPTION = described("Queue"), described("Topic"), described("Subscription")

TRUE_RULE = described("Rule", '<Filter i:type="TrueFilter"/>')


@pytest.fixture
def api(context: NamespaceContext) -> ManagementApi:
    return ManagementApi(context)


async def made(api: ManagementApi, *paths_and_bodies: tuple[str, str]) -> None:
    for path, body in paths_and_bodies:
        answer = await api.answer(request("PUT", f"{path}?api-version=2024-05", body))
        assert answer.status == 201, answer.body


def description(answer: Response) -> Element:
    content = read_document(answer.body).child("content")
    assert content is not None
    return content.children[0]


def fields(answer: Response) -> dict[str, str]:
    return {child.name: child.text for child in description(answer).children}


def times(document: Element) -> dict[str, str]:
    """The times in the description of an entity."""
    content = document.child("content")
    assert content is not None
    return {child.name: child.text for child in content.children[0].children if child.name.endswith("At")}


def titles(answer: Response) -> list[str]:
    return [title.text for entry in read_document(answer.body).all("entry") if (title := entry.child("title"))]


def is_missing(answer: Response) -> bool:
    """Whether a GET found nothing: a 404, or the list of public services."""
    return answer.status == 404 or b"Publicly Listed Services" in answer.body


def error(answer: Response) -> tuple[int, str]:
    """The status, which the document repeats, and the detail."""
    code, detail = (read_document(answer.body).child(name) for name in ("Code", "Detail"))
    assert code is not None
    assert detail is not None
    assert int(code.text) == answer.status
    assert re.search(
        r"\. ?TrackingId:[0-9a-f]{32}, SystemTracker:[^,]+, Timestamp:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d$", detail.text
    )
    return answer.status, detail.text


class TestCreate:
    @pytest.mark.deviation("emulator.strict-transport-security")
    async def test_entry_is_an_atom_entry_named_by_its_title(self, api: ManagementApi) -> None:
        answer = await api.answer(request("PUT", "/a%2Fb", QUEUE))
        text = answer.body.decode()
        assert answer.content_type.startswith("application/atom+xml")
        assert answer.headers["Strict-Transport-Security"] == "max-age=0"
        assert text.startswith(
            '<entry xmlns="http://www.w3.org/2005/Atom"><id>https://localhost:5672/a/b</id>'
            '<title type="text">a/b</title><published>2023-11-14T22:13:20Z</published>'
            "<updated>2023-11-14T22:13:20Z</updated><author><name>contoso</name></author>"
            '<link rel="self" href="https://localhost:5672/a/b"/><content type="application/xml">'
            '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" '
            'xmlns:i="http://www.w3.org/2001/XMLSchema-instance">'
        )

    async def test_every_field_is_returned(self, api: ManagementApi) -> None:
        said = {
            "LockDuration": "PT13S",
            "MaxSizeInMegabytes": "3072",
            "RequiresDuplicateDetection": "true",
            "RequiresSession": "true",
            "DefaultMessageTimeToLive": "PT11M",
            "DeadLetteringOnMessageExpiration": "true",
            "DuplicateDetectionHistoryTimeWindow": "PT12M",
            "MaxDeliveryCount": "14",
            "EnableBatchedOperations": "false",
            "Status": "SendDisabled",
            "AutoDeleteOnIdle": "PT10M",
            "EnableExpress": "true",
            "UserMetadata": "a &amp; b",
        }
        answer = await api.answer(request("PUT", "/orders", described("Queue", **said)))
        assert fields(answer).items() >= {**said, "UserMetadata": "a & b"}.items()

    async def test_partitioned_queue_says_sixteen_times_the_size(self, api: ManagementApi) -> None:
        body = described("Queue", MaxSizeInMegabytes=5120, EnablePartitioning="true")
        found = fields(await api.answer(request("PUT", "/orders?api-version=2021-05", body)))
        assert (found["MaxSizeInMegabytes"], found["EnablePartitioning"]) == ("81920", "true")
        assert found["SupportOrdering"] == "false"

    async def test_partitioning_needs_an_api_version_that_knows_it(self, api: ManagementApi) -> None:
        body = described("Queue", EnablePartitioning="true")
        status, detail = error(await api.answer(request("PUT", "/orders?api-version=2012-03", body)))
        assert (status, detail[:14]) == (400, "SubCode=40000.")
        assert (await api.answer(request("PUT", "/orders?api-version=2013-10", body))).status == 201
        assert fields(await api.answer(request("PUT", "/plain", body)))["EnablePartitioning"] == "false"

    async def test_an_existing_name_is_a_conflict_for_every_kind(self, api: ManagementApi) -> None:
        await made(api, ("/orders", QUEUE))
        for body in (QUEUE, TOPIC):
            status, detail = error(await api.answer(request("PUT", "/Orders", body)))
            assert (status, detail[:14]) == (409, "SubCode=40900.")
            assert "Conflict. You're requesting an operation that isn't allowed" in detail

    async def test_subscription_of_a_missing_topic_is_missing(self, api: ManagementApi) -> None:
        status, detail = error(await api.answer(request("PUT", "/t/subscriptions/s", SUBSCRIPTION)))
        assert status == 404
        assert detail.startswith("The incoming request is not recognized as a namespace policy put request.")

    async def test_new_subscription_has_the_rule_that_lets_every_message_pass(self, api: ManagementApi) -> None:
        await made(api, ("/t", TOPIC), ("/t/subscriptions/s", SUBSCRIPTION))
        listed = await api.answer(request("GET", "/t/subscriptions/s/rules"))
        assert titles(listed) == ["$Default"]
        assert b'<Filter i:type="TrueFilter"><SqlExpression>1=1</SqlExpression>' in listed.body

    async def test_default_rule_may_come_with_the_subscription(self, api: ManagementApi) -> None:
        rule = (
            "<DefaultRuleDescription><Filter i:type='SqlFilter'><SqlExpression>a = 1</SqlExpression></Filter>"
            "<Name>mine</Name></DefaultRuleDescription>"
        )
        await made(api, ("/t", TOPIC), ("/t/subscriptions/s", described("Subscription", rule)))
        assert titles(await api.answer(request("GET", "/t/subscriptions/s/rules"))) == ["mine"]

    async def test_subscription_whose_default_rule_cannot_be_read_is_not_made(self, api: ManagementApi) -> None:
        rule = (
            "<DefaultRuleDescription><Filter i:type='SqlFilter'><SqlExpression>a = = 1</SqlExpression></Filter>"
            "</DefaultRuleDescription>"
        )
        await made(api, ("/t", TOPIC))
        answer = await api.answer(request("PUT", "/t/subscriptions/s", described("Subscription", rule)))
        assert error(answer)[0] == 400
        assert (await api.answer(request("GET", "/t/subscriptions/s"))).status == 404

    async def test_ordering_is_returned_as_sent(self, api: ManagementApi) -> None:
        for partitioned, sent, shown in ((True, "true", "true"), (False, "false", "false"), (True, None, "false")):
            chosen = {} if sent is None else {"SupportOrdering": sent}
            body = described("Topic", **chosen, EnablePartitioning=str(partitioned).lower())
            answer = await api.answer(request("PUT", f"/t-{partitioned}-{sent}?api-version=2021-05", body))
            assert fields(answer)["SupportOrdering"] == shown

    async def test_authorization_rules_come_back_with_keys(self, api: ManagementApi) -> None:
        rules = (
            "<AuthorizationRules><AuthorizationRule i:type='SharedAccessAuthorizationRule'>"
            "<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue>"
            "<Rights><AccessRights>Send</AccessRights><AccessRights>Listen</AccessRights></Rights>"
            "<KeyName>worker</KeyName><PrimaryKey>first</PrimaryKey></AuthorizationRule></AuthorizationRules>"
        )
        await made(api, ("/orders", described("Queue", rules)))
        element = description(await api.answer(request("GET", "/orders"))).child("AuthorizationRules")
        assert element is not None
        (rule,) = element.children
        texts = {child.name: child.text for child in rule.children}
        assert rule.type_name == "SharedAccessAuthorizationRule"
        assert list(texts) == [
            "ClaimType",
            "ClaimValue",
            "Rights",
            "CreatedTime",
            "ModifiedTime",
            "KeyName",
            "PrimaryKey",
            "SecondaryKey",
        ]
        assert (texts["ClaimType"], texts["KeyName"], texts["PrimaryKey"]) == ("SharedAccessKey", "worker", "first")
        assert len(texts["SecondaryKey"]) == 44
        assert [right.text for right in rule.children[2].children] == ["Send", "Listen"]

    async def test_each_time_is_in_each_description(self, api: ManagementApi) -> None:
        """After create, get, list and update, of entities of each kind; only the time of an update changes."""
        entities = {"Queue": "/orders", "Topic": "/news", "Subscription": "/news/subscriptions/eu"}
        lists = {"Queue": "/$Resources/queues", "Topic": "/$Resources/topics", "Subscription": "/news/subscriptions"}
        for kind, path in entities.items():
            seen = [await api.answer(request("PUT", path, described(kind)))]
            await clock.sleep(10)
            for _ in range(2):
                seen.append(await api.answer(request("GET", path)))
                entry = read_document((await api.answer(request("GET", lists[kind]))).body).child("entry")
                assert entry is not None
                assert times(entry) == times(read_document(seen[-1].body))
                await api.answer(request("PUT", path, described(kind, UserMetadata="7"), if_match="*"))
            created, before, after = (times(read_document(answer.body)) for answer in seen)
            assert created.keys() == before.keys() - ({"AccessedAt"} if kind != "Subscription" else set())
            assert before["CreatedAt"] == created["CreatedAt"] == after["CreatedAt"] == created["UpdatedAt"]
            assert after["UpdatedAt"] > before["UpdatedAt"] == created["UpdatedAt"]

    @pytest.mark.deviation("emulator.rule-times")
    async def test_authorization_rules_have_the_times_of_creation_and_change(self, api: ManagementApi) -> None:
        """Those that were sent are kept. A rule that an update leaves as it is keeps both."""

        def body(kind: str, **keys: str) -> str:
            sent = {"old": "<CreatedTime>2022-01-12T01:28:26Z</CreatedTime>"}
            inner = "".join(
                f"<AuthorizationRule>{sent.get(name, '')}<KeyName>{name}</KeyName><PrimaryKey>{key}</PrimaryKey>"
                f"<SecondaryKey>b</SecondaryKey></AuthorizationRule>"
                for name, key in keys.items()
            )
            return described(kind, f"<AuthorizationRules>{inner}</AuthorizationRules>")

        async def found(path: str) -> dict[str, list[str]]:
            rules = description(await api.answer(request("GET", path))).child("AuthorizationRules")
            assert rules is not None
            named = [{child.name: child.text for child in rule.children} for rule in rules.children]
            return {rule["KeyName"]: [rule["CreatedTime"], rule["ModifiedTime"]] for rule in named}

        for kind, path in (("Queue", "/orders"), ("Topic", "/news")):
            await made(api, (path, body(kind, old="a", new="a", other="a")))
            first = await found(path)
            assert first["old"] == ["2022-01-12T01:28:26Z", first["new"][1]]
            assert first["new"] == first["other"] == [first["new"][0]] * 2
            await clock.sleep(10)
            changed = body(kind, old="a", new="b", OTHER="a", later="a")
            await api.answer(request("PUT", path, changed, if_match="*"))
            second = await found(path)
            assert second["old"] == first["old"]
            assert second["new"][0] == first["new"][0] < second["new"][1] == second["later"][0] == second["later"][1]
            assert second["OTHER"][0] == first["other"][0]

    @pytest.mark.parametrize(
        ("fields_said", "named"),
        [
            ({"LockDuration": "PT5M1S"}, "Parameter name: LockDuration"),
            ({"LockDuration": "soon"}, "LockDuration"),
            ({"MaxMessageSizeInKilobytes": "1024"}, "Bad Request."),
            ({"DuplicateDetectionHistoryTimeWindow": "P14D"}, "must be between 00:00:20 and 7.00:00:00."),
            (
                {"DuplicateDetectionHistoryTimeWindow": "P14D"},
                "Parameter name: DuplicateDetectionHistoryTimeWindow\r\nActual value was 14.00:00:00.",
            ),
            ({"AutoDeleteOnIdle": "PT0.5S"}, "must be between 00:05:00 and 10675199.02:48:05.4775807."),
            ({"AutoDeleteOnIdle": "PT0.5S"}, "Actual value was 00:00:00.5000000."),
            ({"MaxDeliveryCount": "0"}, "The value supplied must be between 1 and 2147483647."),
            ({"MaxSizeInMegabytes": "1500"}, "max_size_in_megabytes"),
            ({"MaxDeliveryCount": "many"}, "MaxDeliveryCount"),
            ({"RequiresSession": "perhaps"}, "RequiresSession"),
            ({"Status": "Sleeping"}, "Status"),
            ({"UserMetadata": "x" * 1025}, "user_metadata"),
        ],
    )
    async def test_value_that_is_not_allowed_is_named(
        self, api: ManagementApi, fields_said: dict[str, str], named: str
    ) -> None:
        body = described("Queue", **fields_said)
        status, detail = error(await api.answer(request("PUT", "/orders?api-version=2021-05", body)))
        assert (status, detail[:14]) == (400, "SubCode=40000.")
        assert named in detail
        assert "orders" in detail
        assert is_missing(await api.answer(request("GET", "/orders")))

    @pytest.mark.parametrize("body", [b"", b"<entry/>", b"nothing", TRUE_RULE.encode(), SUBSCRIPTION.encode()])
    async def test_body_that_does_not_fit_the_path_is_refused(self, api: ManagementApi, body: bytes) -> None:
        assert error(await api.answer(request("PUT", "/orders", body)))[0] == 400

    @pytest.mark.parametrize(
        "path", ["/", "/a%3Fb", "/%2Fa", "/a%2F", "/" + "x" * 261, "/a%20b", "/t/subscriptions/a%2Fb"]
    )
    async def test_name_that_is_not_allowed_is_refused(self, api: ManagementApi, path: str) -> None:
        await made(api, ("/t", TOPIC))
        body = SUBSCRIPTION if "subscriptions" in path else QUEUE
        assert error(await api.answer(request("PUT", path, body)))[0] == 400

    async def test_too_many_partitioned_entities_are_a_quota_error(self, api: ManagementApi) -> None:
        body = described("Queue", EnablePartitioning="true")
        await made(api, *((f"/q{index}", body) for index in range(100)))
        status, detail = error(await api.answer(request("PUT", "/q100?api-version=2021-05", body)))
        assert (status, detail[:14]) == (403, "SubCode=40300.")


class TestGetAndDelete:
    async def test_counts_are_those_of_the_broker(self, api: ManagementApi, host: BrokerHost) -> None:
        await made(api, ("/orders", QUEUE))
        at = datetime.fromtimestamp(clock.now() + 600, UTC)
        put(host, "orders", ServiceBusMessage(b"1"), ServiceBusMessage(b"2", scheduled_enqueue_time_utc=at))
        found = await api.answer(request("GET", "/orders"))
        counts = description(found).child("CountDetails")
        assert counts is not None
        assert {child.name: child.text for child in counts.children} == {
            "ActiveMessageCount": "1",
            "DeadLetterMessageCount": "0",
            "ScheduledMessageCount": "1",
            "TransferMessageCount": "0",
            "TransferDeadLetterMessageCount": "0",
        }
        assert (
            b'<CountDetails xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus">'
            b"<d2p1:ActiveMessageCount>1<" in found.body
        )
        assert fields(found)["MessageCount"] == "2"
        assert int(fields(found)["SizeInBytes"]) > 0

    async def test_new_entity_was_never_accessed(self, api: ManagementApi) -> None:
        await made(api, ("/orders", QUEUE))
        assert fields(await api.answer(request("GET", "/orders")))["AccessedAt"] == "0001-01-01T00:00:00Z"

    async def test_topic_counts_its_subscriptions_and_filters(self, api: ManagementApi) -> None:
        correlation = described("Rule", '<Filter i:type="CorrelationFilter"><Label>a</Label></Filter>')
        await made(api, ("/t", TOPIC), ("/t/subscriptions/a", SUBSCRIPTION), ("/t/subscriptions/b", SUBSCRIPTION))
        await made(api, ("/t/subscriptions/b/rules/c", correlation))
        found = fields(await api.answer(request("GET", "/t?api-version=2024-05")))
        counts = found["SubscriptionCount"], found["SqlFilterCount"], found["CorrelationFilterCount"]
        assert counts == ("2", "2", "1")
        assert "SqlFilterCount" not in fields(await api.answer(request("GET", "/t?api-version=2021-05")))

    @pytest.mark.parametrize(
        "path",
        ["/q", "/t/subscriptions/s", "/t/subscriptions/s/rules/r", "/t/subscriptions", "/t/subscriptions/s/rules"],
    )
    async def test_a_missing_entity_is_not_found(self, api: ManagementApi, path: str) -> None:
        assert is_missing(await api.answer(request("GET", path)))
        if not path.endswith(("subscriptions", "rules")):
            assert error(await api.answer(request("DELETE", path)))[0] == 404

    async def test_names_are_case_insensitive_and_keep_their_spelling(self, api: ManagementApi) -> None:
        await made(api, ("/Orders", QUEUE))
        assert b'<title type="text">Orders</title>' in (await api.answer(request("GET", "/oRDERS"))).body

    async def test_path_with_plain_slashes_is_understood(self, api: ManagementApi) -> None:
        await made(api, ("/a%2Fb%2Fc", QUEUE))
        assert (await api.answer(request("GET", "/a/b/c"))).status == 200
        await made(
            api, ("/x%2Fy", TOPIC), ("/x/y/Subscriptions/s", SUBSCRIPTION), ("/x/y/Subscriptions/s/Rules/r", TRUE_RULE)
        )
        assert titles(await api.answer(request("GET", "/x%2Fy/subscriptions/s/rules"))) == ["$Default", "r"]
        assert titles(await api.answer(request("GET", "/x/y/Subscriptions"))) == ["s"]

    async def test_delete_leaves_nothing(self, api: ManagementApi) -> None:
        await made(api, ("/t", TOPIC), ("/t/subscriptions/s", SUBSCRIPTION))
        answer = await api.answer(request("DELETE", "/t"))
        assert (answer.status, answer.body) == (200, b"")
        assert is_missing(await api.answer(request("GET", "/t/subscriptions/s")))

    async def test_availability_is_limited_while_a_fragment_is_down(self, api: ManagementApi, host: BrokerHost) -> None:
        await made(api, ("/orders", described("Queue", EnablePartitioning="true")))
        fault = host.inject(Fault(FaultKind.DOWN, "orders", fragments=[3]))
        assert fields(await api.answer(request("GET", "/orders")))["EntityAvailabilityStatus"] == "Limited"
        status, detail = error(await api.answer(request("DELETE", "/orders")))
        assert (status, detail[:14]) == (500, "SubCode=50000.")
        host.heal(fault)
        assert fields(await api.answer(request("GET", "/orders")))["EntityAvailabilityStatus"] == "Available"

    async def test_namespace_is_described(self, api: ManagementApi) -> None:
        answer = await api.answer(request("GET", "/$namespaceinfo"))
        assert description(answer).name == "NamespaceInfo"
        assert fields(answer) == {
            "CreatedTime": "2023-11-14T22:13:20Z",
            "MessagingSKU": "Standard",
            "ModifiedTime": "2023-11-14T22:13:20Z",
            "Name": "contoso",
            "NamespaceType": "Messaging",
        }

    async def test_premium_namespace_has_its_messaging_units(self) -> None:
        host = BrokerHost("contoso", random=Random(1), profile=PREM_2021)
        context = NamespaceContext(host, Authorizer(AuthorizationMode.NONE), WireFaults(Random(1)))
        found = fields(await ManagementApi(context).answer(request("GET", "/$namespaceinfo", authorization="")))
        assert (found["MessagingSKU"], found["MessagingUnits"]) == ("Premium", "1")


class TestUpdate:
    async def test_update_changes_the_given_settings(self, api: ManagementApi) -> None:
        await made(api, ("/orders", QUEUE))
        body = described("Queue", LockDuration="PT13S")
        answer = await api.answer(request("PUT", "/orders", body, if_match="*"))
        assert answer.status == 200
        assert fields(await api.answer(request("GET", "/orders")))["LockDuration"] == "PT13S"

    async def test_update_of_a_missing_entity_is_not_found(self, api: ManagementApi) -> None:
        await made(api, ("/t", TOPIC), ("/t/subscriptions/s", SUBSCRIPTION))
        for path, body in (
            ("/q", QUEUE),
            ("/t/subscriptions/x", SUBSCRIPTION),
            ("/t/subscriptions/s/rules/x", TRUE_RULE),
        ):
            assert error(await api.answer(request("PUT", path, body, if_match="*")))[0] == 404

    @pytest.mark.parametrize(
        ("field", "words"),
        [
            ("RequiresSession", "The value for the RequiresSession property of an existing Queue cannot be changed"),
            (
                "RequiresDuplicateDetection",
                "The value for the RequiresDuplicateDetection property of an existing Queue cannot be changed",
            ),
            ("EnablePartitioning", "Partitioning cannot be changed for Queue. "),
        ],
    )
    async def test_error_names_the_unchangeable_property(self, api: ManagementApi, field: str, words: str) -> None:
        await made(api, ("/orders", QUEUE))
        answer = await api.answer(request("PUT", "/orders", described("Queue", **{field: "true"}), if_match="*"))
        status, detail = error(answer)
        assert status == 400
        assert detail.startswith(f"SubCode=40000. {words}")

    async def test_the_document_of_get_can_be_put(self, api: ManagementApi) -> None:
        """As the SDK does it: read, change one field, write everything."""
        await made(api, ("/orders", described("Queue", MaxSizeInMegabytes="2048", EnablePartitioning="true")))
        before = fields(await api.answer(request("GET", "/orders")))
        said = {name: text for name, text in before.items() if name not in ("CountDetails", "AuthorizationRules")}
        answer = await api.answer(request("PUT", "/orders", described("Queue", **said), if_match="*"))
        assert answer.status == 200
        after = fields(await api.answer(request("GET", "/orders")))
        assert after["MaxSizeInMegabytes"] == before["MaxSizeInMegabytes"] == "32768"

    async def test_rule_is_replaced_whole(self, api: ManagementApi) -> None:
        await made(api, ("/t", TOPIC), ("/t/subscriptions/s", SUBSCRIPTION))
        path = "/t/subscriptions/s/rules/$Default"
        body = described("Rule", '<Filter i:type="FalseFilter"/><Action i:type="EmptyRuleAction"/>')
        assert (await api.answer(request("PUT", path, body, if_match="*"))).status == 200
        assert b'<Filter i:type="FalseFilter"><SqlExpression>1=0<' in (await api.answer(request("GET", path))).body


FORWARDING = "servicebussupplementaryauthorization"
DEAD_LETTERING = "servicebusdlqsupplementaryauthorization"


class TestForwarding:
    async def test_destination_is_a_url_outside_and_a_path_inside(self, api: ManagementApi, host: BrokerHost) -> None:
        await made(api, ("/A%2Fb", QUEUE), ("/q", described("Queue", ForwardTo="SB://LocalHost:5672/A/b")))
        assert fields(await api.answer(request("GET", "/q")))["ForwardTo"] == "sb://localhost:5672/A/b"
        put(host, "q", "1")
        assert fields(await api.answer(request("GET", "/a%2Fb")))["MessageCount"] == "1"

    @pytest.mark.parametrize("method_is_update", [False, True])
    async def test_missing_destination_is_a_bad_value(self, api: ManagementApi, method_is_update: bool) -> None:
        headers = {"if_match": "*"} if method_is_update else {}
        if method_is_update:
            await made(api, ("/q", QUEUE))
        body = described("Queue", ForwardTo="sb://localhost:5672/nowhere")
        status, detail = error(await api.answer(request("PUT", "/q", body, **headers)))
        assert (status, detail[:14]) == (400, "SubCode=40400.")

    @pytest.mark.parametrize("is_update", [False, True])
    @pytest.mark.parametrize(
        ("field", "header", "other"),
        [
            ("ForwardTo", "servicebussupplementaryauthorization", "servicebusdlqsupplementaryauthorization"),
            (
                "ForwardDeadLetteredMessagesTo",
                "servicebusdlqsupplementaryauthorization",
                "servicebussupplementaryauthorization",
            ),
        ],
    )
    async def test_needs_manage_on_the_destination(
        self, api: ManagementApi, field: str, header: str, other: str, is_update: bool
    ) -> None:
        await made(api, ("/target", QUEUE), *([("/q", QUEUE)] if is_update else []))
        headers = {"if_match": "*"} if is_update else {}
        for wrong in ({}, {header: token("other")}, {other: token("target")}):
            asked = request(
                "PUT", "/q", described("Queue", **{field: "target"}), authorization=token("q"), **headers, **wrong
            )
            assert error(await api.answer(asked))[0] == 401
        right = {**headers, header: token("target")}
        asked = request("PUT", "/q", described("Queue", **{field: "target"}), authorization=token("q"), **right)
        assert (await api.answer(asked)).status == (200 if is_update else 201)


class TestRules:
    async def put(self, api: ManagementApi, inner: str) -> Response:
        if is_missing(await api.answer(request("GET", "/t"))):
            await made(api, ("/t", TOPIC), ("/t/subscriptions/s", SUBSCRIPTION))
        return await api.answer(request("PUT", "/t/subscriptions/s/rules/r", described("Rule", inner)))

    async def test_sql_filter_with_parameters_and_action(self, api: ManagementApi) -> None:
        value = '<Value i:type="d6p1:{}" xmlns:d6p1="{}">{}</Value>'
        xs, ser = "http://www.w3.org/2001/XMLSchema", "http://schemas.microsoft.com/2003/10/Serialization/"
        pairs = "".join(
            f"<KeyValueOfstringanyType><Key>@{kind}</Key>"
            f"{value.format(kind, ser if kind == 'duration' else xs, text)}</KeyValueOfstringanyType>"
            for kind, text in {
                "string": "a",
                "int": "1",
                "long": "2",
                "boolean": "true",
                "double": "3",
                "dateTime": "2026-01-31T00:00:00.1234567Z",
                "duration": "PT1H0.0000001S",
            }.items()
        )
        inner = (
            "<Filter i:type='SqlFilter'><SqlExpression>a = @string</SqlExpression>"
            f"<CompatibilityLevel>20</CompatibilityLevel><Parameters>{pairs}</Parameters></Filter>"
            "<Action i:type='SqlRuleAction'><SqlExpression>SET b = 1</SqlExpression></Action><Name>r</Name>"
        )
        answer = await self.put(api, inner)
        assert answer.status == 201, answer.body
        text = (await api.answer(request("GET", "/t/subscriptions/s/rules/r"))).body.decode()
        assert f"<Parameters>{pairs}</Parameters>" in text
        assert (
            '<Action i:type="SqlRuleAction"><SqlExpression>SET b = 1</SqlExpression>'
            "<CompatibilityLevel>20</CompatibilityLevel><Parameters/></Action>" in text
        )
        assert "<CreatedAt>2023-11-14T22:13:20Z</CreatedAt><Name>r</Name></RuleDescription>" in text

    @pytest.mark.parametrize(
        ("date", "span", "is_selected"),
        [
            ("2026-11-23T10:00:00Z", "PT3M0.0000001S", True),
            ("2026-11-23T10:00:00.0000001Z", "PT3M0.0000001S", True),
            ("2026-11-23T10:00:00.0000002Z", "PT3M0.0000001S", False),
            ("2026-11-23T10:00:00Z", "PT3M", False),
        ],
    )
    def test_parameters_are_compared_with_values_of_net(self, date: str, span: str, is_selected: bool) -> None:
        parameters = {"@date": read_any("dateTime", date), "@span": read_any("duration", span)}
        ready = compile_filter(SqlRuleFilter("at > @date AND span = @span", parameters))
        values = {"at": DateTimeOffset.of_ticks(639_310_248_000_000_002), "span": TimeSpan.of_ticks(1_800_000_001)}
        sent = encode_message(ServiceBusMessage(b"", application_properties=values))
        assert ready.matches(sent, SystemProperties()) is is_selected

    @pytest.mark.deviation("emulator.rule-elements")
    async def test_correlation_filter_lists_its_properties_in_order(self, api: ManagementApi) -> None:
        names = ["CorrelationId", "MessageId", "To", "ReplyTo", "Label", "SessionId", "ReplyToSessionId", "ContentType"]
        inner = "".join(f"<{name}>{name} x</{name}>" for name in reversed(names))
        answer = await self.put(api, f"<Filter i:type='CorrelationFilter'>{inner}</Filter>")
        said = description(answer).child("Filter")
        assert said is not None
        assert [(child.name, child.text) for child in said.children] == [(name, f"{name} x") for name in names]

    @pytest.mark.parametrize(
        "inner",
        [
            "",
            "<Filter/>",
            "<Filter i:type='MagicFilter'/>",
            "<Filter i:type='SqlFilter'/>",
            "<Filter i:type='SqlFilter'><SqlExpression>a = = 1</SqlExpression></Filter>",
            "<Filter i:type='TrueFilter'/><Action i:type='Boom'/>",
            "<Filter i:type='TrueFilter'/><Action i:type='SqlRuleAction'><SqlExpression>SET</SqlExpression></Action>",
            "<Filter i:type='CorrelationFilter'><Properties><KeyValueOfstringanyType><Key>a</Key>"
            "</KeyValueOfstringanyType></Properties></Filter>",
        ],
    )
    async def test_rule_that_cannot_be_read_is_refused(self, api: ManagementApi, inner: str) -> None:
        assert error(await self.put(api, inner))[0] == 400

    async def test_rule_that_is_there_is_a_conflict(self, api: ManagementApi) -> None:
        assert (await self.put(api, "<Filter i:type='TrueFilter'/>")).status == 201
        assert error(await self.put(api, "<Filter i:type='TrueFilter'/>"))[0] == 409


class TestLists:
    async def test_are_sorted_by_name_and_hold_one_kind(self, api: ManagementApi) -> None:
        await made(api, ("/b", QUEUE), ("/a", QUEUE), ("/C", QUEUE), ("/t", TOPIC))
        assert titles(await api.answer(request("GET", "/$Resources/queues"))) == ["a", "b", "C"]
        assert titles(await api.answer(request("GET", "/$Resources/topics"))) == ["t"]

    @pytest.mark.deviation("emulator.next-page")
    async def test_come_in_pages_that_lead_to_the_next(self, api: ManagementApi) -> None:
        await made(api, *((f"/q{index:02}", QUEUE) for index in range(25)))
        seen: list[str] = []
        target = "/$Resources/queues?$top=10&$skip=0&api-version=2021-05"
        while target:
            assert target == f"/$Resources/queues?$top=10&$skip={len(seen)}&api-version=2021-05"
            answer = await api.answer(request("GET", target))
            page = titles(answer)
            assert len(page) <= 10
            seen += page
            links = [link.attributes for link in read_document(answer.body).all("link")]
            assert links[0]["rel"] == "self"
            target = unquote(links[1]["href"]).removeprefix("https://localhost:5672") if len(links) == 2 else ""
        assert seen == [f"q{index:02}" for index in range(25)]

    async def test_a_page_describes_only_its_own_entities(
        self, api: ManagementApi, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The cost of a list grows with the entities, not with their square."""
        await made(api, *((f"/q{index:03}", QUEUE) for index in range(300)))
        described, describe = [], Management._described

        def counted(management: Management, entity: Entity, now: float) -> Description:
            described.append(entity.path)
            return describe(management, entity, now)

        monkeypatch.setattr(Management, "_described", counted)
        for skip in range(0, 300, 100):
            await api.answer(request("GET", f"/$Resources/queues?$skip={skip}"))
        assert len(described) <= 303  # one more shows that there is a next page
        assert sorted(set(described)) == [f"q{index:03}" for index in range(300)]

    async def test_last_full_page_leads_nowhere(self, api: ManagementApi) -> None:
        await made(api, ("/a", QUEUE), ("/b", QUEUE))
        answer = await api.answer(request("GET", "/$Resources/queues?$top=2"))
        assert b'rel="next"' not in answer.body

    async def test_page_has_at_most_a_hundred(self, api: ManagementApi) -> None:
        await made(api, *((f"/q{index:03}", QUEUE) for index in range(101)))
        answer = await api.answer(request("GET", "/$Resources/queues?$top=1000"))
        assert len(titles(answer)) == 100
        assert b'href="https://localhost:5672/$Resources/queues?%24top=1000&amp;%24skip=100"' in answer.body

    async def test_page_of_none_is_followed_by_itself(self, api: ManagementApi) -> None:
        await made(api, ("/a", QUEUE))
        answer = await api.answer(request("GET", "/$Resources/queues?$top=0"))
        assert (answer.status, titles(answer)) == (200, [])
        assert b'href="https://localhost:5672/$Resources/queues?%24top=0&amp;%24skip=0"' in answer.body

    @pytest.mark.parametrize(
        ("query", "names"),
        [
            ("startswith(path, 'SHOP/') eq true", ["shop/a", "shop/b"]),
            ("startswith(path,'shop/') eq false", ["it-s", "new"]),
            ("startswith(path,'shop/') ne true and path ne 'new'", ["it-s"]),
            ("startswith(path,'s') AND NOT (path eq 'shop/a' or path eq 'x')", ["shop/b"]),
            ("path ne 'it''s' and path eq 'it-s'", ["it-s"]),
            ("path like '%/%'", ["shop/a", "shop/b"]),
            ("path like '%OP/_' or path like '_e%' or path like 'n\\w'", []),
            ("path like 'sh%P/a' or path like 'new'", ["new", "shop/a"]),
            ("path gt 'new' and path le 'shop/a'", ["shop/a"]),
            ("messageCount gt 0", []),
            ("MessageCount eq 0 and path ge 'shop/b'", ["shop/b"]),
            ("AccessedAt lt '2000-01-01'", ["it-s", "new", "shop/a", "shop/b"]),
            ("CreatedAt gt '1970-01-01T00:00:00Z'", ["it-s", "new", "shop/a", "shop/b"]),
            ("ModifiedAt lt '1970-01-01'", []),
        ],
    )
    async def test_filter_selects_entities(self, api: ManagementApi, query: str, names: list[str]) -> None:
        await made(api, *((f"/{quote(name, safe='')}", QUEUE) for name in ("it-s", "new", "shop/a", "shop/b")))
        target = f"/$Resources/queues?$filter={quote(query)}"
        assert titles(await api.answer(request("GET", target))) == names
        paged = [titles(await api.answer(request("GET", f"{target}&$skip={skip}&$top=1"))) for skip in range(4)]
        assert [name for page in paged for name in page] == names

    async def test_filter_with_a_long_pattern_takes_little_time(self, api: ManagementApi) -> None:
        await made(api, ("/" + "a" * 260, QUEUE))
        begun = time.thread_time()
        target = f"/$Resources/queues?$filter={quote('path like ' + repr('%a' * 4 + 'b'))}"
        assert titles(await api.answer(request("GET", target))) == []
        assert time.thread_time() - begun < 1

    async def test_filter_selects_subscriptions_and_rules(self, api: ManagementApi) -> None:
        await made(api, ("/t", TOPIC), ("/t/subscriptions/b", SUBSCRIPTION), ("/t/subscriptions/a", SUBSCRIPTION))
        answer = await api.answer(
            request("GET", "/t/subscriptions?$filter=startswith(subscriptionName,'b')%20eq%20true")
        )
        assert titles(answer) == ["b"]
        assert titles(await api.answer(request("GET", "/t/subscriptions/a/rules?$filter=name%20eq%20'r'"))) == []

    @pytest.mark.parametrize(
        ("query", "words"),
        [
            ("startswith(name,'x') eq true", "The specified property 'name' does not exist or is not allowed."),
            ("price gt 5", "The specified property 'price' does not exist or is not allowed."),
            ("= 5", "There was an error parsing the filter expression. [Token line=1, column=1, Token in error== 5]"),
            ("nonsense(((", "The specified property 'nonsense' does not exist"),
            *(
                (text, "There was an error parsing")
                for text in ("path", "path eq", "path eq 5", "path eq 'x", "(path eq 'x'")
            ),
            *(
                (text, "There was an error parsing")
                for text in ("path eq 'x' path", "messageCount gt '5'", "path is 'x'")
            ),
            *(
                (text, "There was an error parsing")
                for text in ("createdAt gt 'soon'", "startswith(path,'x') eq maybe")
            ),
            ("startswith(messageCount,'x')", "startswith is for names"),
            ("not " * 30 + "path eq 'x'", "nested more than"),
            (f"path like '{'%' * 4097}'", "the LIKE pattern has 4097 characters"),
            ("(" * 3000, "nested more than"),
        ],
    )
    async def test_invalid_filter_selects_nothing(self, api: ManagementApi, query: str, words: str) -> None:
        await made(api, ("/a", QUEUE))
        status, detail = error(await api.answer(request("GET", f"/$Resources/queues?$filter={quote(query)}")))
        assert (status, detail.startswith("Invalid Filter. ")) == (400, True)
        assert words in detail

    @pytest.mark.parametrize("query", ["$skip=5", "$skip=2147483647"])
    async def test_may_be_empty(self, api: ManagementApi, query: str) -> None:
        await made(api, ("/a", QUEUE))
        answer = await api.answer(request("GET", f"/$Resources/queues?{query}"))
        assert (answer.status, titles(answer)) == (200, [])
        assert b'rel="next"' not in answer.body

    @pytest.mark.parametrize(
        "query", ["$top=-1", "$skip=-1", "$top=a", "$skip=1.5", "$top=2147483648", "$top=99999999999"]
    )
    async def test_invalid_bounds_are_rejected(self, api: ManagementApi, query: str) -> None:
        status, detail = error(await api.answer(request("GET", f"/$Resources/queues?{query}")))
        assert status == 400
        assert "SubCode" not in detail

    async def test_largest_page_of_the_first_net_client_is_accepted(self, api: ManagementApi) -> None:
        await made(api, ("/a", QUEUE))
        assert titles(await api.answer(request("GET", "/$Resources/queues?$skip=0&$top=2147483647"))) == ["a"]

    async def test_subscriptions_and_rules_are_below_theirs(self, api: ManagementApi) -> None:
        await made(api, ("/t", TOPIC), ("/t/subscriptions/b", SUBSCRIPTION), ("/t/subscriptions/a", SUBSCRIPTION))
        await made(api, ("/t/subscriptions/a/rules/r", TRUE_RULE))
        assert titles(await api.answer(request("GET", "/t/Subscriptions"))) == ["a", "b"]
        answer = await api.answer(request("GET", "/t/subscriptions/a/Rules"))
        assert titles(answer) == ["$Default", "r"]
        assert b"<id>https://localhost:5672/t/subscriptions/a/Rules/r</id>" in answer.body

    async def test_ids_repeat_the_spelling_of_the_request(self, api: ManagementApi) -> None:
        await made(api, ("/T", TOPIC), ("/T/Subscriptions/S", SUBSCRIPTION))
        for path in ("/T/Subscriptions/S", "/T/Subscriptions/S/Rules/$Default", "/T/Subscriptions/S/rules/$default"):
            answer = await api.answer(request("GET", path))
            assert f"<id>sb://localhost:5672{path}</id>".encode() in answer.body
        answer = await api.answer(request("GET", "/T/Subscriptions/?$top=1"))
        assert b"<id>https://localhost:5672/T/Subscriptions/S</id>" in answer.body

    async def test_root_is_an_empty_list(self, api: ManagementApi) -> None:
        answer = await api.answer(request("GET", "/?api-version=2021-05"))
        assert (answer.status, titles(answer)) == (200, [])


class TestRefusals:
    async def test_request_without_token_is_refused(self, api: ManagementApi) -> None:
        answer = await api.answer(request("GET", "/q", authorization=""))
        status, detail = error(answer)
        assert (status, detail[:14]) == (401, "SubCode=40102.")
        assert "WWW-Authenticate" in answer.headers

    @pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
    @pytest.mark.parametrize("given", ["", token(key="x"), token("other")])
    async def test_a_client_without_the_right_learns_nothing_of_an_entity(
        self, api: ManagementApi, method: str, given: str
    ) -> None:
        body = QUEUE if method == "PUT" else ""
        answers = [await api.answer(request(method, "/q", body, authorization=given))]
        await made(api, ("/q", QUEUE))
        answers.append(await api.answer(request(method, "/q", body, authorization=given)))
        absent, present = [(each.status, sorted(each.headers)) for each in answers]
        assert absent == present
        assert present[0] == 401

    async def test_bad_token_is_refused(self, api: ManagementApi) -> None:
        status, detail = error(await api.answer(request("PUT", "/q", QUEUE, authorization=token(key="x"))))
        assert status == 401
        assert detail.startswith("InvalidSignature: The token has an invalid signature. TrackingId:")

    @pytest.mark.parametrize(
        "path", ["$Resources/Queues", "$Resources/Topics", "prices/Subscriptions", "prices/Subscriptions/eu/Rules"]
    )
    async def test_token_for_the_address_of_a_list_opens_the_list(self, api: ManagementApi, path: str) -> None:
        await made(api, ("/prices", TOPIC), ("/prices/subscriptions/eu", SUBSCRIPTION))
        own = token(path)
        assert (await api.answer(request("GET", f"/{path}", authorization=own))).status == 200
        for other in ("/$namespaceinfo", "/prices", "/prices/subscriptions/eu/rules/$Default"):
            expected = 200 if other.startswith(f"/{path}".casefold()) else 401
            assert (await api.answer(request("GET", other, authorization=own))).status == expected

    async def test_token_of_one_entity_opens_no_other(self, api: ManagementApi) -> None:
        await made(api, ("/q1", QUEUE), ("/q10", QUEUE))
        reading = "Manage,EntityRead claims required for this operation. "
        for target, text in (("/q10", reading), ("/$Resources/queues", reading), ("/$namespaceinfo", "SubCode=40100.")):
            status, detail = error(await api.answer(request("GET", target, authorization=token("q1"))))
            assert status == 401
            assert detail.startswith(text)
        assert (await api.answer(request("GET", "/q1", authorization=token("q1")))).status == 200

    async def test_key_without_manage_changes_and_shows_nothing(self, api: ManagementApi) -> None:
        rules = (
            "<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Send</AccessRights></Rights>"
            "<KeyName>worker</KeyName><PrimaryKey>k</PrimaryKey></AuthorizationRule></AuthorizationRules>"
        )
        await made(api, ("/q", described("Queue", rules)))
        weak = token("q", key_name="worker", key="k")
        words = {
            "GET": "Manage,EntityRead claims required for this operation",
            "DELETE": "Authorization failed for specified action: Manage,EntityDelete",
            "PUT": "Authorization failed for specified action: Manage,EntityWrite",
        }
        for method, text in words.items():
            answer = await api.answer(request(method, "/q", QUEUE, authorization=weak))
            assert (answer.status, answer.reason) == (401, text)
            assert error(answer)[1].startswith(f"{text}. ")

    @pytest.mark.parametrize(
        ("method", "path", "operation"),
        [
            ("GET", "/t/subscriptions/s", "GetSubscription"),
            ("GET", "/t/subscriptions", "EnumerateSubscriptions"),
            ("PUT", "/t/subscriptions/s", "CreateOrUpdateSubscription"),
            ("DELETE", "/t/subscriptions/s/rules/r", "DeleteRule"),
        ],
    )
    async def test_error_names_the_operation_on_a_subscription(
        self, api: ManagementApi, method: str, path: str, operation: str
    ) -> None:
        answer = await api.answer(request(method, path, SUBSCRIPTION, authorization=token("q")))
        text = f"SubCode=40100: Unauthorized : Unauthorized access for '{operation}' operation"
        assert (answer.status, answer.reason) == (401, text)
        assert error(answer)[1].startswith(text)

    async def test_missing_queue_is_missing_without_manage_too(self, host: BrokerHost) -> None:
        rule = AuthorizationRule(key_name="reader", rights=[AccessRights.LISTEN], primary_key="k")
        authorizer = Authorizer(rules=[rule])
        api = ManagementApi(NamespaceContext(host=host, authorizer=authorizer, wire_faults=WireFaults(Random(1))))
        weak = token(key_name="reader", key="k")
        for path, status in (("/nowhere", 200), ("/nowhere/subscriptions/s", 401), ("/$Resources/queues", 401)):
            answer = await api.answer(request("GET", path, authorization=weak))
            assert (answer.status, is_missing(answer)) == (status, status == 200)

    @pytest.mark.deviation("emulator.resource-manager")
    @pytest.mark.parametrize(
        "target",
        [
            "/$Resources",
            "/$Resources/rules",
            "/$management",
            "/t/subscriptions/s/other/x",
            "/subscriptions/s/resourceGroups/g/providers/Microsoft.ServiceBus/namespaces/contoso",
        ],
    )
    async def test_path_of_no_entity_is_rejected(self, api: ManagementApi, target: str) -> None:
        assert error(await api.answer(request("GET", target)))[0] == 400

    async def test_unsupported_method_is_rejected(self, api: ManagementApi) -> None:
        for method, target in (("POST", "/q"), ("PUT", "/$Resources/queues"), ("DELETE", "/$namespaceinfo")):
            assert error(await api.answer(request(method, target)))[0] == 405

    async def test_invalid_api_version_is_rejected(self, api: ManagementApi) -> None:
        assert error(await api.answer(request("GET", "/$Resources/queues?api-version=latest")))[0] == 400

    async def test_busy_namespace_answers_503(self, api: ManagementApi, context: NamespaceContext) -> None:
        context.wire_faults.inject(WireFault(WireFaultKind.SERVER_BUSY))
        status, detail = error(await api.answer(request("GET", "/$Resources/queues")))
        assert (status, detail[:14]) == (503, "SubCode=50004.")

    async def test_lost_acknowledgement_does_not_undo_the_change(
        self, api: ManagementApi, context: NamespaceContext
    ) -> None:
        context.wire_faults.inject(WireFault(WireFaultKind.DROP_ACKNOWLEDGEMENT, "orders", count=1))
        with pytest.raises(NoResponse):
            await api.answer(request("PUT", "/orders", QUEUE))
        assert (await api.answer(request("GET", "/orders"))).status == 200

    async def test_namespace_that_is_down_does_not_answer(self, api: ManagementApi, host: BrokerHost) -> None:
        host.inject(Fault(FaultKind.DOWN))
        with pytest.raises(NoResponse):
            await api.answer(request("GET", "/$Resources/queues"))

    async def test_namespace_that_hangs_times_out(self, api: ManagementApi, host: BrokerHost) -> None:
        host.inject(Fault(FaultKind.HANG))
        began_at = clock.now()
        status, _ = error(await api.answer(request("GET", "/$Resources/queues")))
        assert (status, clock.now() - began_at) == (504, 60)


async def test_what_is_not_used_reads_the_same_later(api: ManagementApi) -> None:
    await made(api, ("/q", QUEUE), ("/t", TOPIC), ("/t/Subscriptions/s", SUBSCRIPTION))
    await made(api, ("/t/Subscriptions/s/Rules/r", TRUE_RULE))
    paths = ("/q", "/t", "/t/Subscriptions/s", "/t/Subscriptions/s/Rules/r", "/$namespaceinfo")
    first = [(await api.answer(request("GET", path))).body for path in paths]
    await clock.sleep(100)
    assert [(await api.answer(request("GET", path))).body for path in paths] == first


async def test_changes_are_published_as_events(api: ManagementApi, context: NamespaceContext) -> None:
    watcher = context.events.subscribe()
    await made(api, ("/t", TOPIC), ("/t/subscriptions/s", SUBSCRIPTION), ("/t/subscriptions/s/rules/r", TRUE_RULE))
    await api.answer(request("PUT", "/t", TOPIC, if_match="*"))
    await api.answer(request("DELETE", "/t"))
    events = watcher.take_all()
    assert [(event["event"], event["kind"], event["path"]) for event in events] == [
        ("entity.created", "topic", "t"),
        ("entity.created", "subscription", "t/Subscriptions/s"),
        ("entity.created", "rule", "t/Subscriptions/s"),
        ("entity.updated", "topic", "t"),
        ("entity.deleted", "topic", "t"),
    ]


def as_read(elements: Sequence[Element]) -> list[Element]:
    return list(elements)


def in_own_order(elements: Sequence[Element], *, reverse: bool = False) -> list[Element]:
    """As a serializer that has an order of its own, and puts what it does not know, or knows already, at the end."""
    first = {element.name: element for element in reversed(elements)}
    rest = [element for element in elements if element is not first[element.name]]
    return [*(first[name] for name in sorted(first, reverse=reverse)), *rest]


def in_reversed_order(elements: Sequence[Element]) -> list[Element]:
    return in_own_order(elements, reverse=True)


def with_unknown(elements: Sequence[Element]) -> list[Element]:
    (unknown,) = read_document(b"<a><Unknown>1</Unknown></a>").children
    return [unknown, *elements[:3], unknown, *elements[3:], unknown]


@pytest.mark.parametrize("kind", ["Queue", "Topic", "Subscription"])
@pytest.mark.parametrize("form", [as_read, in_own_order, in_reversed_order, with_unknown])
async def test_description_does_not_grow_by_being_read_and_written_back(
    api: ManagementApi,
    context: NamespaceContext,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    form: Callable[[Sequence[Element]], list[Element]],
) -> None:
    await made(api, ("/news", TOPIC))
    path = {"Queue": "/orders", "Topic": "/prices", "Subscription": "/news/subscriptions/eu"}[kind]
    await made(api, (path, described(kind, UserMetadata="m")))
    seen = []
    for _ in range(100):
        elements = description(await api.answer(request("GET", f"{path}?api-version=2021-05"))).children
        seen.append([(element.name, element.text) for element in elements if element.name != "UpdatedAt"])
        body = described(kind, *(write_element(element, SERVICE_BUS) for element in form(elements)))
        answer = await api.answer(request("PUT", f"{path}?api-version=2021-05", body, if_match="*"))
        assert answer.status == 200, answer.body
    assert all(each == seen[2] for each in seen[2:])
    assert len([event for event in context.events.recent if event["event"] == "entity.elements_ignored"]) <= 2
    assert len([record for record in caplog.records if "would not apply" in record.getMessage()]) <= 2


@pytest.mark.deviation("emulator.ignored-elements")
async def test_elements_out_of_order_are_reported(
    api: ManagementApi, context: NamespaceContext, caplog: pytest.LogCaptureFixture
) -> None:
    watcher = context.events.subscribe()
    texts = ["<ForwardTo>t</ForwardTo>", "<UserMetadata>m</UserMetadata>", "<EnableExpress>false</EnableExpress>"]
    await made(api, ("/t", TOPIC), ("/r", described("Queue", *texts)), ("/q", described("Queue", texts[2], *texts[:2])))
    reported = [event for event in watcher.take_all() if event["event"] == "entity.elements_ignored"]
    assert [(event["path"], event["elements"]) for event in reported] == [("q", ["ForwardTo", "UserMetadata"])]
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "Service Bus would not apply ForwardTo, UserMetadata of queue q: these elements follow later ones of the schema"
    ]
    for ignored in ([texts[1]], [texts[1]], [], [texts[1]]):  # each change is reported
        body = described("Queue", texts[2], *ignored)
        answer = await api.answer(request("PUT", "/q?api-version=2024-05", body, if_match="*"))
        assert answer.status == 200, answer.body
        events = [event for event in watcher.take_all() if event["event"] == "entity.elements_ignored"]
        reported += events
    assert [event["elements"] for event in reported] == [["ForwardTo", "UserMetadata"], *[["UserMetadata"]] * 2]


def _large(kind: str) -> str:
    return described(kind, MaxMessageSizeInKilobytes="2048")


HIDDEN: dict[str, tuple[str, str, str, str]] = {
    "large messages": ("PUT", "/big?api-version=2021-05", _large("Queue"), "std-2021 has"),
    "large messages of a topic": ("PUT", "/big?api-version=2021-05", _large("Topic"), "std-2021 has"),
    "forwarded sessions": (
        "PUT",
        "/q2?api-version=2021-05",
        described("Queue", RequiresSession="true", ForwardTo="orders"),
        "requires sessions, which are not forwarded",
    ),
    "a range": ("PUT", "/q2", described("Queue", LockDuration="PT6M"), "lock_duration of q2"),
    "a value that cannot change": ("PUT", "/orders", described("Queue", RequiresSession="true"), "delete and recreate"),
    "a queue that exists": ("PUT", "/orders", QUEUE, "choose another name"),
    "a subscription that exists": ("PUT", "/news/subscriptions/eu", SUBSCRIPTION, "choose another name"),
    "a missing queue": ("DELETE", "/missing", "", "missing"),
    "a missing subscription": ("GET", "/news/subscriptions/us", "", "us"),
    "a verb": ("GET", "/orders/$DeadLetterQueue", "", "is a sub-queue"),
}
"""Requests that are refused in words of the service, which do not say the reason of the broker."""


@pytest.mark.parametrize("case", HIDDEN)
async def test_reason_behind_the_words_of_the_service_is_in_a_header(
    api: ManagementApi, context: NamespaceContext, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    caplog.set_level("INFO", "sbclient.emulator.management.errors")
    method, target, body, reason = HIDDEN[case]
    await made(api, ("/orders", QUEUE), ("/news", TOPIC), ("/news/subscriptions/eu", SUBSCRIPTION))
    watcher = context.events.subscribe()
    options = {"if_match": "*"} if case == "a value that cannot change" else {}
    answer = await api.answer(request(method, target, body, **options))
    stated = read_reason(answer.headers["X-Sbclient-Reason"])
    assert reason in stated
    assert stated.rstrip(".") not in answer.body.decode()
    assert any(stated in record.getMessage() for record in caplog.records)
    is_shown = [event["reason"] for event in watcher.take_all() if event["event"] == "entity.refused"]
    is_setting = "exists" not in case and "missing" not in case and case != "a verb"
    assert is_shown == ([stated.rstrip(".")] if is_setting else [])
    assert [record.levelname for record in caplog.records if stated in record.getMessage()] == (
        ["WARNING"] if is_setting else ["INFO"]
    )


async def test_client_without_a_token_learns_no_reason(api: ManagementApi) -> None:
    await made(api, ("/orders", QUEUE))
    for authorization in ("", "SharedAccessSignature sr=x&sig=y&se=1&skn=z", token(key="wrong")):
        answer = await api.answer(request("GET", "/orders", authorization=authorization))
        assert answer.status == 401
        assert "X-Sbclient-Reason" not in answer.headers


@given(st.text(max_size=3_000))
def test_reason_travels_in_a_header(reason: str) -> None:
    value = write_reason(reason)
    assert all(" " <= character <= "~" for character in value)
    assert read_reason(value) == " ".join(reason[:2_000].encode(errors="replace").decode().split())
