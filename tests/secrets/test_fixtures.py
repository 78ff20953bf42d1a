"""Reports of failed assertions about the plugin's fixtures and about messages contain no body."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.secrets.canaries import BODY, PROPERTY, found_in

pytest_plugins = ["pytester"]

SUITE = f"""
import asyncio
import pytest
from sbclient import ServiceBusMessage
from sbclient.testing import Fault, FaultKind, in_virtual_time

def secret():
    return ServiceBusMessage({BODY!r}, application_properties={{"note": {PROPERTY!r}}})

async def sent(client):
    await client.administration.create_queue("orders")
    sender = client.get_queue_sender("orders")
    await sender.send_messages(secret())
    return sender

@in_virtual_time
async def test_namespace(servicebus_namespace):
    async with servicebus_namespace.client() as client:
        await sent(client)
        assert servicebus_namespace is None

@in_virtual_time
async def test_client(servicebus_namespace):
    async with servicebus_namespace.client() as client:
        assert await sent(client) == client

@in_virtual_time
async def test_pair(servicebus_pair):
    async with servicebus_pair.client() as client:
        await sent(client)
        client.pair.force_failover("orders")
        await client.get_queue_sender("orders").send_messages(secret())
        assert client.pair.status() == client.pair.events()

@in_virtual_time
async def test_messages(servicebus_namespace):
    async with servicebus_namespace.client() as client:
        await sent(client)
        messages = await client.get_queue_receiver("orders").receive_messages()
        assert messages == [secret()]

@in_virtual_time
async def test_errors(servicebus_namespace):
    async with servicebus_namespace.client() as client:
        sender = await sent(client)
        servicebus_namespace.inject(Fault(FaultKind.DOWN))
        await sender.send_messages(secret(), timeout=3)

@in_virtual_time
async def test_batch(servicebus_namespace):
    async with servicebus_namespace.client() as client:
        sender = await sent(client)
        batch = await sender.create_message_batch()
        batch.add_message(secret())
        assert not batch

def test_emulator(servicebus_emulator):
    assert servicebus_emulator == 1
"""


def test_failed_assertions_show_no_body(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    # The canaries stand in a module of their own: pytest shows the lines of the test that failed.
    pytester.makepyfile(given=SUITE[: SUITE.index("async def sent")])
    pytester.makepyfile(test_suite="from given import *\n" + SUITE[SUITE.index("async def sent") :])
    is_installed = any(point.name == "sbclient" for point in entry_points(group="pytest11"))
    run = pytester.runpytest_subprocess("-vv", "-l", *([] if is_installed else ["-p", "sbclient.pytest_plugin"]))
    output = run.stdout.str() + run.stderr.str()
    assert run.parseoutcomes()["failed"] == 7, output
    assert not list(found_in(output))
