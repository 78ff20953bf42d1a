"""The pytest plugin, as a stranger's test suite meets it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from textwrap import dedent
from typing import Any, Final

import aiohttp  # noqa: F401 - imported before the tests of strangers, which forget what they import
import azure.servicebus.aio.management  # noqa: F401
import pytest
import trustme  # noqa: F401

from sbclient.pytest_plugin import FIXTURES
from sbclient.testing import VirtualLoop

pytestmark = pytest.mark.slow  # each test runs pytest

ROOT: Final = Path(__file__).parents[2]

pytest_plugins = ["pytester"]


@pytest.fixture
def stranger(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A test suite of its own, with our plugin as installing the package gives it."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return pytester


IS_INSTALLED: Final = any(point.name == "sbclient" for point in entry_points(group="pytest11"))
PLUGIN: Final = () if IS_INSTALLED else ("-p", "sbclient.pytest_plugin")
WARNINGS: Final = (
    *("-W", "default"),  # our own tests turn warnings to errors
    *("-W", 'ignore:The configuration option "asyncio_default_fixture_loop_scope" is unset'),
)


def results(stranger: pytest.Pytester, source: str, *arguments: str) -> tuple[dict[str, int], str]:
    stranger.makepyfile(source)
    run = stranger.runpytest_inprocess(*WARNINGS, *arguments, *PLUGIN)
    return run.parseoutcomes(), run.stdout.str()


def test_a_pair_for_each_test_on_virtual_time(stranger: pytest.Pytester) -> None:
    outcomes, _ = results(
        stranger,
        """
        import asyncio, pytest
        from sbclient import ServiceBusMessage
        from sbclient.testing import in_virtual_time

        @pytest.mark.parametrize("time", [1, 2])
        @in_virtual_time
        async def test_an_outage(servicebus_pair, time):
            async with servicebus_pair.client() as client:
                await client.administration.create_queue("orders")
                client.pair.force_failover("orders")
                async with client.get_queue_sender("orders") as sender:
                    await sender.send_messages(ServiceBusMessage("an order"))
                assert (await client.run_syphon(until="empty")).drained == 1
                await asyncio.sleep(3600)
        """,
    )
    assert outcomes == {"passed": 2}


def test_leftover_messages_fail_the_test_unless_allowed(stranger: pytest.Pytester) -> None:
    outcomes, out = results(
        stranger,
        """
        import asyncio, pytest
        from sbclient import ServiceBusMessage

        async def take(namespace):
            async with namespace.client() as client:
                await client.administration.create_queue("orders")
                async with client.get_queue_sender("orders") as sender:
                    await sender.send_messages(ServiceBusMessage("an order"))
                await client.get_queue_receiver("orders").receive_messages()

        def test_locked(servicebus_namespace):
            asyncio.run(take(servicebus_namespace))

        @pytest.mark.servicebus_leftovers
        def test_locked_on_purpose(servicebus_namespace):
            asyncio.run(take(servicebus_namespace))

        def test_not_drained(servicebus_pair):
            async def divert():
                async with servicebus_pair.client() as client:
                    client.pair.force_failover("orders")
                    async with client.get_queue_sender("orders") as sender:
                        await sender.send_messages(ServiceBusMessage("an order"))
            asyncio.run(divert())
        """,
    )
    assert outcomes == {"passed": 1, "failed": 2}
    assert re.search(r"orders: message '\S{36}' is locked, received at \S+\.py:9: complete, abandon", out), out
    assert "holds 1 message that no syphon has drained" in out


def test_a_test_that_has_failed_is_not_reported_again_for_what_it_leaves(stranger: pytest.Pytester) -> None:
    outcomes, out = results(
        stranger,
        """
        import pytest
        from sbclient import ServiceBusMessage

        async def take(namespace):
            namespace.create_queue("orders")
            async with namespace.client() as client:
                await client.get_queue_sender("orders").send_messages(ServiceBusMessage("an order"))
                await client.get_queue_receiver("orders").receive_messages()

        async def test_fails(servicebus_namespace):
            await take(servicebus_namespace)
            assert False

        @pytest.mark.xfail
        async def test_is_expected_to_fail(servicebus_namespace):
            await take(servicebus_namespace)
            assert False

        async def test_passes(servicebus_namespace):
            await take(servicebus_namespace)
        """,
        *ALONE,
    )
    assert outcomes == {"failed": 2, "xfailed": 1}, out
    failures, _, _ = out.partition("short test summary")  # which repeats whole messages where CI is set
    assert failures.count("the test has left messages behind") == 1


def test_the_emulator_serves_the_bare_sdk(stranger: pytest.Pytester) -> None:
    outcomes, out = results(
        stranger,
        """
        from azure.servicebus import ServiceBusClient, ServiceBusMessage
        from azure.servicebus.management import ServiceBusAdministrationClient

        def test_a_round_trip(servicebus_emulator):
            text = servicebus_emulator.connection_string
            with ServiceBusAdministrationClient.from_connection_string(
                text, connection_verify=str(servicebus_emulator.certificate_path)
            ) as administration:
                administration.create_queue("orders")
            with ServiceBusClient.from_connection_string(text) as client:
                with client.get_queue_sender("orders") as sender:
                    sender.send_messages(ServiceBusMessage("an order"))
                with client.get_queue_receiver("orders", max_wait_time=5) as receiver:
                    message, = receiver.receive_messages()
                    receiver.complete_message(message)
            assert str(message) == "an order"
        """,
    )
    assert outcomes == {"passed": 1}, out


ALONE = ("-p", "no:asyncio", "-p", "no:anyio")
"""As where no plugin for async tests is installed."""


@pytest.mark.parametrize("plugins", [ALONE, ("-o", "asyncio_mode=strict"), ("-o", "asyncio_mode=auto")])
def test_an_async_test_needs_no_other_plugin(stranger: pytest.Pytester, plugins: tuple[str, ...]) -> None:
    outcomes, out = results(
        stranger,
        """
        import asyncio, pytest
        from sbclient import ServiceBusMessage
        from sbclient.testing import VirtualLoop

        @pytest.mark.parametrize("body", ["one", "two"])
        async def test_a_round_trip(servicebus_namespace, body, tmp_path):
            async with servicebus_namespace.client() as client:
                await client.administration.create_queue("orders")
                async with client.get_queue_sender("orders") as sender:
                    await sender.send_messages(ServiceBusMessage(body))
                async with client.get_queue_receiver("orders") as receiver:
                    message, = await receiver.receive_messages()
                    await receiver.complete_message(message)
            assert str(message) == body

        class TestDesk:
            async def test_in_a_class(self, servicebus_pair):
                await asyncio.sleep(0.01)
        """,
        *plugins,
    )
    assert outcomes == {"passed": 3}, out


def test_default_is_virtual_time_and_real_time_for_the_emulator(
    stranger: pytest.Pytester,
) -> None:
    outcomes, out = results(
        stranger,
        """
        import asyncio, time
        from datetime import UTC, datetime, timedelta
        from sbclient import ServiceBusClient, ServiceBusMessage
        from sbclient.testing import VirtualLoop

        async def test_virtual(servicebus_namespace):
            assert isinstance(asyncio.get_running_loop(), VirtualLoop)
            began_at = time.monotonic()
            async with servicebus_namespace.client() as client:
                await client.administration.create_queue("orders")
                async with client.get_queue_sender("orders") as sender:
                    later = datetime.now(UTC) + timedelta(hours=1)
                    await sender.schedule_messages(ServiceBusMessage("x"), later)
                await asyncio.sleep(3500)
                async with client.get_queue_receiver("orders") as receiver:
                    assert await receiver.receive_messages(max_wait_time=1) == []
                    message, = await receiver.receive_messages(max_wait_time=200)
                    await receiver.complete_message(message)
            assert time.monotonic() - began_at < 10

        async def test_real(servicebus_emulator):
            assert not isinstance(asyncio.get_running_loop(), VirtualLoop)
            servicebus_emulator.create_queue("visits", requires_session=True)
            servicebus_emulator.create_topic("prices")
            servicebus_emulator.create_subscription("prices", "eu", max_delivery_count=3)
            text = servicebus_emulator.connection_string
            async with ServiceBusClient.from_connection_string(text) as client:
                queue, = [each async for each in client.administration.list_queues()]
                assert queue.requires_session
                subscription = await client.administration.get_subscription("prices", "eu")
                assert subscription.max_delivery_count == 3
        """,
        *ALONE,
    )
    assert outcomes == {"passed": 2}, out


MARKED: Final = """
    import asyncio, pytest
    from sbclient.testing import VirtualLoop

    def is_virtual():
        return isinstance(asyncio.get_running_loop(), VirtualLoop)

    @pytest.fixture
    async def client(servicebus_namespace):
        async with servicebus_namespace.client() as client:
            yield client

    @pytest.fixture(scope="module")
    def anyio_backend():
        return "asyncio"

    {mark}
    async def test_marked(servicebus_namespace):
        assert is_virtual() is {is_virtual}

    @pytest.fixture(scope="module")
    async def database():
        yield is_virtual()

    {mark}
    async def test_with_an_async_fixture(client):
        assert is_virtual() is {is_virtual}
        await client.administration.create_queue("orders")

    {mark}
    async def test_with_an_async_fixture_of_the_module(client, database):
        assert not is_virtual()
        assert not database
        await client.administration.create_queue("orders")

    {mark}
    async def test_served(servicebus_emulator_pair):
        assert not is_virtual()
        assert "Endpoint" in servicebus_emulator_pair.secondary

    {mark}
    async def test_without_a_fixture_of_ours(tmp_path):
        assert not is_virtual()
"""
ASYNCIO_AUTO: Final = ("", ("-o", "asyncio_mode=auto"))
ANYIO: Final = ("@pytest.mark.anyio", ("-p", "no:asyncio"))


@pytest.mark.parametrize(("mark", "plugins"), [ASYNCIO_AUTO, ANYIO], ids=["asyncio auto", "anyio"])
@pytest.mark.parametrize(("options", "is_virtual"), [((), True), (("-o", "servicebus_time=real"), False)])
def test_time_is_virtual_under_other_plugins_unless_configured(
    stranger: pytest.Pytester, mark: str, plugins: tuple[str, ...], options: tuple[str, ...], is_virtual: bool
) -> None:
    if mark:
        pytest.importorskip("anyio")
    source = dedent(MARKED).format(mark=mark, is_virtual=is_virtual)
    outcomes, out = results(stranger, source, *plugins, *options)
    assert outcomes == {"passed": 5} | ({"warnings": 1} if is_virtual else {}), out
    says = (
        "test_with_an_async_fixture_of_the_module runs in real time, because its async fixture 'database' has the scope"
    )
    assert (says in out) is is_virtual


@pytest.mark.parametrize("plugins", [ALONE, ("-o", "asyncio_mode=strict"), ("-o", "asyncio_mode=auto")])
def test_async_fixtures_share_the_virtual_time_of_their_test(
    stranger: pytest.Pytester, plugins: tuple[str, ...]
) -> None:
    outcomes, out = results(
        stranger,
        """
        import asyncio, contextvars, pytest

        name = contextvars.ContextVar("name")

        @pytest.fixture
        async def began_at():
            name.set("set in a fixture")
            await asyncio.sleep(3600)
            return asyncio.get_running_loop().time()

        class TestDesk:
            @pytest.fixture
            async def receiver(self, servicebus_namespace, began_at):
                self.is_mine = True
                servicebus_namespace.create_queue("orders")
                async with servicebus_namespace.client() as client:
                    yield client.get_queue_receiver("orders", max_wait_time=7200)
                    print("ended at", asyncio.get_running_loop().time())

            async def test_times(self, receiver, began_at):
                assert began_at == 3600
                assert self.is_mine
                assert name.get() == "set in a fixture"
                assert await receiver.receive_messages() == []

        @pytest.fixture
        async def twice(servicebus_namespace):
            yield 1
            yield 2

        async def test_twice(twice):
            pass
        """,
        *plugins,
        "-s",
    )
    assert outcomes == {"passed": 2, "errors": 1}, out
    assert "ended at 10800.0" in out
    assert "the fixture twice has yielded twice" in out


def test_datetime_is_virtual_if_configured_and_a_failure_says_how(stranger: pytest.Pytester) -> None:
    pytest.importorskip("time_machine")
    source = """
        import asyncio, time
        from datetime import UTC, datetime
        from sbclient.testing import in_virtual_time

        async def test_times(servicebus_namespace):
            for _ in range(3):
                await asyncio.sleep(3600)
                assert datetime.now(UTC) == servicebus_namespace.now()
                assert time.time() == servicebus_namespace.now().timestamp()

        @in_virtual_time(patch_datetime=True)
        async def test_decorated(servicebus_namespace):
            await asyncio.sleep(86_400)
            assert datetime.now(UTC) == servicebus_namespace.now()
        """
    outcomes, out = results(stranger, source, *ALONE, "-o", "servicebus_time=virtual-datetime")
    assert outcomes == {"passed": 2}, out
    outcomes, out = results(stranger, source, *ALONE)
    assert outcomes == {"passed": 1, "failed": 1}, out
    assert "Virtual time is 1:00:00 ahead of datetime.now()" in out


def test_unittest_has_virtual_time_and_the_check_for_leftovers(stranger: pytest.Pytester) -> None:
    outcomes, out = results(
        stranger,
        """
        import asyncio, unittest
        from sbclient import ServiceBusMessage
        from sbclient.testing import assert_no_leftovers, in_virtual_time, memory_pair, served

        class OrdersTest(unittest.TestCase):
            def setUp(self):
                self.pair = memory_pair(seed=1)
                self.pair.primary.create_queue("orders")

            @in_virtual_time
            async def test_an_order_is_received(self):
                async with self.pair.client() as client:
                    await client.get_queue_sender("orders").send_messages(ServiceBusMessage("an order"))
                    (message,) = await client.get_queue_receiver("orders").receive_messages()
                    with self.assertRaises(AssertionError) as caught:
                        assert_no_leftovers(self.pair)
                    self.assertIn("received at " + __file__, str(caught.exception))
                    await asyncio.sleep(59)
                    await client.get_queue_receiver("orders").complete_message(message)
                assert_no_leftovers(self.pair, self.pair.primary)

            def test_emulator(self):
                with served("contoso") as emulator:
                    assert_no_leftovers(emulator)
        """,
        *ALONE,
    )
    assert outcomes == {"passed": 2}, out


def test_an_unknown_time_is_refused(stranger: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    run = stranger.runpytest_subprocess(*PLUGIN, "-o", "servicebus_time=fast")
    assert "servicebus_time is 'fast': give one of virtual, virtual-datetime, real" in run.stderr.str()
    run = stranger.runpytest_subprocess(*PLUGIN, "-o", "servicebus_outage_limit=1h")
    assert "servicebus_outage_limit is '1h': give whole seconds, or 0 for no limit" in run.stderr.str()
    monkeypatch.setattr("sbclient.pytest_plugin.find_spec", lambda name: None)
    run = stranger.runpytest_inprocess(*WARNINGS, *PLUGIN, "-o", "servicebus_time=virtual-datetime")
    assert "requires time-machine: python -m pip install time-machine" in run.stderr.str()
    monkeypatch.setitem(sys.modules, "time_machine", None)
    with pytest.raises(ImportError, match="patch_datetime requires the package time-machine"):
        VirtualLoop(patch_datetime=True)


def test_test_that_waits_forever_fails_and_names_the_place(stranger: pytest.Pytester) -> None:
    outcomes, out = results(
        stranger,
        """
        import asyncio, pytest

        @pytest.fixture
        async def pollers():
            return [asyncio.create_task(asyncio.Event().wait()) for _ in range(20)]

        async def test_waits(servicebus_namespace, pollers):
            async with servicebus_namespace.client() as client:
                await client.administration.create_queue("orders")
                async for message in client.get_queue_receiver("orders"):
                    pass
        """,
        *ALONE,
    )
    assert outcomes == {"failed": 1}, out
    assert re.search(r"DeadlockError: \S*test_test_that_waits\w*\.py:10 in test_waits, awaiting", out), out
    assert re.search(r"and 1\d more", out), out


@pytest.mark.parametrize(("limit", "outcome"), [("3600", "failed"), ("0", "passed")])
def test_an_outage_that_is_never_healed_fails_the_test(stranger: pytest.Pytester, limit: str, outcome: str) -> None:
    outcomes, out = results(
        stranger,
        """
        import asyncio
        from sbclient.exceptions import ServiceBusError
        from sbclient.testing import Fault

        async def test_outage(servicebus_namespace):
            servicebus_namespace.create_queue("orders")
            servicebus_namespace.inject(Fault("busy"))
            async with servicebus_namespace.client(retry_total=0) as client:
                for _ in range(15_000):
                    try:
                        await client.administration.get_queue("orders")
                    except ServiceBusError:
                        await asyncio.sleep(1)
        """,
        *ALONE,
        "-o",
        f"servicebus_outage_limit={limit}",
    )
    assert outcomes == {outcome: 1}, out
    assert ("namespace 'contoso' is busy since 0 s" in out) == (outcome == "failed"), out


def test_leftovers_on_the_emulator_or_in_the_backlog_fail_the_test(stranger: pytest.Pytester) -> None:
    outcomes, out = results(
        stranger,
        """
        from azure.servicebus import ServiceBusClient as AzureClient, ServiceBusMessage as AzureMessage
        from sbclient import ServiceBusMessage

        def test_on_the_emulator(servicebus_emulator):
            servicebus_emulator.create_queue("orders")
            with AzureClient.from_connection_string(servicebus_emulator.connection_string) as client:
                with client.get_queue_sender("orders") as sender:
                    sender.send_messages(AzureMessage("an order"))
                with client.get_queue_receiver("orders", max_wait_time=5) as receiver:
                    receiver.receive_messages()

        async def test_in_the_backlog(servicebus_pair):
            async with servicebus_pair.client() as client:
                backlog = client.pair.state.backlog_queues[0]
                async with servicebus_pair.unpaired_client(secondary=True) as other:
                    async with other.get_queue_sender(backlog) as sender:
                        await sender.send_messages(ServiceBusMessage("unknown destination"))
                await client.run_syphon(until="empty")
        """,
        *ALONE,
    )
    assert outcomes == {"failed": 2}, out
    assert re.search(r"orders: message '\S{36}' is locked: complete, abandon, defer or dead-letter it", out), out
    assert "holds 1 message that no syphon can drain" in out


def documented() -> Iterator[Any]:
    """Every test that the README and the pages show."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
        for number, block in enumerate(blocks, start=1):
            if re.search(r"^(async )?def \w+\(servicebus_", block, re.M):
                yield pytest.param(block, id=f"{page.name} {number}")
    example = ROOT / "examples" / "testing_your_app.py"
    yield pytest.param(example.read_text(encoding="utf-8"), id=example.name)


@pytest.mark.parametrize("source", list(documented()))
def test_documented_examples_pass_as_tests(stranger: pytest.Pytester, source: str) -> None:
    outcomes, out = results(stranger, source, *ALONE)
    assert outcomes == {"passed": len(re.findall(r"^(?:async )?def test_", source, re.M))}, out


def test_a_program_that_makes_its_own_client_runs_in_virtual_time(stranger: pytest.Pytester) -> None:
    outcomes, out = results(
        stranger,
        """
        import asyncio
        from sbclient import AutoLockRenewer, MessageLockLostError, ServiceBusClient, ServiceBusMessage
        import pytest

        async def program(renewer, wait_s):
            async with ServiceBusClient.from_connection_string("memory://shop") as client:
                async with client.get_queue_receiver("orders", auto_lock_renewer=renewer) as receiver:
                    message, = await receiver.receive_messages()
                    await asyncio.sleep(wait_s)
                    await receiver.complete_message(message)

        async def test_the_lock_is_lost_or_renewed(servicebus_namespace):
            async with ServiceBusClient.from_connection_string("memory://shop") as client:
                await client.administration.create_queue("orders")
                await client.get_queue_sender("orders").send_messages(ServiceBusMessage("an order"))
            with pytest.raises(MessageLockLostError):
                await program(None, 90)
            await program(AutoLockRenewer(), 250)
        """,
        *ALONE,
    )
    assert outcomes == {"passed": 1}, out


def test_the_pages_show_each_fixture() -> None:
    shown = " ".join(each.values[0] for each in documented())
    assert all(name in shown for name in FIXTURES)


def test_a_marker_configures_the_broker_of_every_fixture(stranger: pytest.Pytester) -> None:
    outcomes, _ = results(
        stranger,
        """
        import pytest
        from sbclient.emulator import Emulator
        from sbclient.testing import MemoryNamespace

        FIXTURES = ["namespace", "pair", "emulator", "emulator_pair"]

        @pytest.mark.servicebus_broker(profile="prem-2017", front_end_count=3)
        @pytest.mark.parametrize("name", FIXTURES)
        def test_configured(name, request):
            made = request.getfixturevalue(f"servicebus_{name}")
            made = getattr(made, "emulator", made)
            host = made.context().host if isinstance(made, Emulator) else getattr(made, "secondary", made)
            assert {host.connect() for _ in range(100)} == {0, 1, 2}
            assert host.namespace.profile.name == "prem-2017"

        @pytest.mark.servicebus_broker(tier="premium")
        def test_misspelt(servicebus_namespace):
            pass
        """,
    )
    assert outcomes == {"passed": 4, "errors": 1}
