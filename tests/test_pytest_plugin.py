"""The pytest plugin, as a stranger's test suite meets it."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture
def stranger(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A test suite of its own, with our plugin as installing the package gives it."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    return pytester


def results(stranger: pytest.Pytester, source: str) -> tuple[dict[str, int], str]:
    stranger.makepyfile(source)
    is_installed = any(point.name == "sbclient" for point in entry_points(group="pytest11"))
    run = stranger.runpytest_subprocess(*([] if is_installed else ["-p", "sbclient.pytest_plugin"]))
    return run.parseoutcomes(), run.stdout.str()


def test_a_pair_for_each_test_on_virtual_time(stranger: pytest.Pytester) -> None:
    outcomes, _ = results(
        stranger,
        """
        import pytest
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
                await servicebus_pair.clock.sleep(3600)
        """,
    )
    assert outcomes == {"passed": 2}


def test_what_is_left_behind_fails_the_test_unless_it_is_meant(stranger: pytest.Pytester) -> None:
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

        def test_not_brought_home(servicebus_pair):
            async def divert():
                async with servicebus_pair.client() as client:
                    client.pair.force_failover("orders")
                    async with client.get_queue_sender("orders") as sender:
                        await sender.send_messages(ServiceBusMessage("an order"))
            asyncio.run(divert())
        """,
    )
    assert outcomes == {"passed": 3, "errors": 2}
    assert "orders has 1 locked messages" in out
    assert "holds 1 messages that no syphon brought home" in out


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
