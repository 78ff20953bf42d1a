"""Pytest fixtures for programs that use Service Bus. pytest finds them if `sbclient` is installed.

    servicebus_namespace   a namespace of the bundled broker: `.client()`, `.inject(fault)`, `.heal()`, `.host`
    servicebus_pair        two of them: `.client(options)`, `.unpaired_client()`, `.primary`, `.secondary`
    servicebus_emulator    the broker as a server, for programs with another client: `.connection_string`

An async test with one of them needs no other plugin. It runs in virtual time, or with `servicebus_emulator` in real
time. If another plugin runs it, `sbclient.testing.in_virtual_time` selects virtual time. A test fails if it leaves
locked messages or backlog messages in its namespaces, unless it has the marker `servicebus_leftovers`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final
from zlib import crc32

import pytest

if TYPE_CHECKING:
    from sbclient.emulator.emulator import Emulator
    from sbclient.hosting.host import BrokerHost
    from sbclient.testing import MemoryNamespace, MemoryPair

FIXTURES: Final = frozenset(("servicebus_namespace", "servicebus_pair", "servicebus_emulator"))
ON_REAL_TIME: Final = "servicebus_emulator"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "servicebus_leftovers: let this test leave locked messages or a backlog in its namespaces"
    )


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test that uses one of the fixtures, unless another plugin runs it.

    Plugins for async tests wrap their tests, or come first; the error of pytest itself comes last.
    """
    used = FIXTURES.intersection(pyfuncitem.fixturenames)
    if not used or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    if ON_REAL_TIME in used:
        asyncio.run(pyfuncitem.obj(**arguments))
    else:
        from sbclient.testing import in_virtual_time

        in_virtual_time(pyfuncitem.obj)(**arguments)
    return True


def _seed(request: pytest.FixtureRequest) -> int:
    """A seed that is the same in every run of a test."""
    return crc32(request.node.nodeid.encode())


@pytest.fixture
def servicebus_namespace(request: pytest.FixtureRequest) -> Iterator[MemoryNamespace]:
    """A fresh namespace inside this process: `.client()`, `.inject(fault)`, `.heal()`."""
    from sbclient.testing import AmbientClock, memory_namespace

    namespace = memory_namespace(clock=AmbientClock(), seed=_seed(request))
    yield namespace
    _check(request, namespace.host)


@pytest.fixture
def servicebus_pair(request: pytest.FixtureRequest) -> Iterator[MemoryPair]:
    """A fresh pair of namespaces inside this process: `.client()`, `.primary.inject(fault)`, `.primary.heal()`."""
    from sbclient.testing import AmbientClock, memory_pair

    pair = memory_pair(clock=AmbientClock(), seed=_seed(request))
    yield pair
    _check(request, pair.primary, pair.secondary)


@pytest.fixture
def servicebus_emulator(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    """A namespace served on a free port, for any client: `.connection_string`, `.create_queue()`, `.inject(fault)`."""
    from sbclient.testing import served

    with served() as emulator:
        yield emulator
        _check(request, emulator.context().host)


def _check(request: pytest.FixtureRequest, *hosts: BrokerHost) -> None:
    from sbclient.testing.leftovers import leftovers

    if request.node.get_closest_marker("servicebus_leftovers"):
        return
    found = [line for host in hosts for line in leftovers(host)]
    if found:
        pytest.fail("\n".join(["the test has left messages behind:", *found]), pytrace=False)
