"""Fixtures for whoever tests a program that uses Service Bus; pytest finds them once `sbclient` is installed.

    servicebus_namespace   a namespace of the bundled broker: `.client()`, `.inject(fault)`, `.heal()`, `.host`
    servicebus_pair        two of them: `.client(options)`, `.unpaired_client()`, `.primary`, `.secondary`
    servicebus_emulator    the broker as a server, for programs with another client: `.connection_string`

The first two run on virtual time in tests that run on a virtual loop (`sbclient.testing.in_virtual_time`), on real time
elsewhere. After the test they are looked through: a message that is still locked, or still in the backlog, fails it,
unless the test is marked `servicebus_leftovers`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest

if TYPE_CHECKING:
    from sbclient.emulator import Emulator
    from sbclient.testing import MemoryNamespace, MemoryPair

EMULATOR_START_S = 30.0


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "servicebus_leftovers: let this test leave locked messages or a backlog in its namespaces"
    )


def _seed(request: pytest.FixtureRequest) -> int:
    """The same for the same test, so that what it found by chance it finds again."""
    return crc32(request.node.nodeid.encode())


@pytest.fixture
def servicebus_namespace(request: pytest.FixtureRequest) -> Iterator[MemoryNamespace]:
    """A fresh namespace inside this process."""
    from sbclient.testing import AmbientClock, memory_namespace

    namespace = memory_namespace(clock=AmbientClock(), seed=_seed(request))
    yield namespace
    _check(request, namespace.host)


@pytest.fixture
def servicebus_pair(request: pytest.FixtureRequest) -> Iterator[MemoryPair]:
    """A fresh pair of namespaces inside this process."""
    from sbclient.testing import AmbientClock, memory_pair

    pair = memory_pair(clock=AmbientClock(), seed=_seed(request))
    yield pair
    _check(request, pair.primary, pair.secondary)


def _check(request: pytest.FixtureRequest, *hosts: Any) -> None:
    from sbclient.testing.leftovers import leftovers

    if request.node.get_closest_marker("servicebus_leftovers"):
        return
    found = [line for host in hosts for line in leftovers(host)]
    if found:
        pytest.fail("\n".join(["the test left something behind:", *found]), pytrace=False)


@pytest.fixture
def servicebus_emulator() -> Iterator[Emulator]:
    """A namespace `sbemulatorns` served on a free port of this machine, by a thread of this process."""
    from sbclient.emulator import Emulator

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="servicebus emulator", daemon=True)
    thread.start()
    emulator = Emulator()
    try:
        asyncio.run_coroutine_threadsafe(emulator.start(), loop).result(EMULATOR_START_S)
        yield emulator
    finally:
        asyncio.run_coroutine_threadsafe(emulator.close(), loop).result(EMULATOR_START_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
