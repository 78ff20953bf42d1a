"""The contract of the public interface, tested on every kind of namespace.

    memory    the broker in this process, in virtual time
    sdk       azure-servicebus over sockets to the broker's server, in real time
    amqp      our own AMQP engine over sockets to the broker's server, in real time
    uvloop    the same, with client and server on uvloop's event loop, for the checks of test_conformance.py
    service   a real namespace, named by SERVICEBUS_CONNECTION_STRING; SERVICEBUS_SECONDARY_CONNECTION_STRING names
              its partner

Each test runs once on each kind; the event loop it is given says which. Where kinds differ, a test names what it needs
with `@pytest.mark.needs("…")`, and is skipped on those that have it not. There is no other difference.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import pytest
from azure.servicebus._pyamqp.aio._client_async import AMQPClientAsync

from sbclient.emulator import Emulator
from sbclient.testing import VirtualLoop, served
from sbclient.transport.memory.transport import drop_memory_host
from tests.conftest import REAL_LOOPS
from tests.contract.kinds import Amqp, Memory, NamespaceKind, Sdk, Service
from tests.stage.serving import ServingThread, serving

HORIZON_S = 366 * 86400.0


class MemoryLoop(VirtualLoop):
    """Says: this test is about memory."""


class SdkLoop(asyncio.SelectorEventLoop):
    """Says: this test is about azure-servicebus."""


class AmqpLoop(asyncio.SelectorEventLoop):
    """Says: this test is about our own engine."""


class ServiceLoop(asyncio.SelectorEventLoop):
    """Says: this test is about the real service."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*capabilities): skip this test on kinds of namespaces without them")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    kinds: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
        "memory": lambda: MemoryLoop(horizon_s=HORIZON_S),
        "sdk": SdkLoop,
        "amqp": AmqpLoop,
    }
    if "uvloop" in REAL_LOOPS and item.path.name == "test_conformance.py":
        kinds["uvloop"] = REAL_LOOPS["uvloop"]
    if os.environ.get("SERVICEBUS_CONNECTION_STRING"):
        kinds["service"] = ServiceLoop
    return kinds


@pytest.fixture(scope="session")
def emulator() -> Iterator[Emulator]:
    with served("contoso", "contoso-backup") as emulator:
        yield emulator


@pytest.fixture(scope="session")
def emulator_on_uvloop() -> Iterator[Emulator]:
    thread = ServingThread(REAL_LOOPS["uvloop"])
    with serving(thread, "contoso", "contoso-backup") as emulator:
        yield emulator
    thread.close()


@pytest.fixture
async def kind(request: pytest.FixtureRequest) -> AsyncIterator[NamespaceKind]:
    """The namespace under test, and its partner."""
    made: NamespaceKind
    loop = asyncio.get_running_loop()
    if isinstance(loop, MemoryLoop):
        made = Memory()
    elif isinstance(loop, SdkLoop):
        made = Sdk(request.getfixturevalue("emulator"))
    elif isinstance(loop, AmqpLoop):
        made = Amqp(request.getfixturevalue("emulator"))
    elif isinstance(loop, ServiceLoop):
        made = Service()
    else:
        made = Amqp(request.getfixturevalue("emulator_on_uvloop"))
    needed = {name for mark in request.node.iter_markers("needs") for name in mark.args}
    if missing := needed - made.capabilities:
        pytest.skip(f"{made.name} has no {', '.join(sorted(missing))}")
    yield made
    await made.close()
    if isinstance(made, Memory):
        for name in made.names:
            drop_memory_host(name)


@pytest.fixture(autouse=True, scope="session")
def _sdk_closes_at_once() -> Iterator[None]:
    """Do not wait up to a second for each closed link of azure-servicebus, until its keep-alive task looks again."""
    close: Any = AMQPClientAsync.close_async

    async def close_at_once(client: Any) -> None:
        if client._keep_alive_thread is not None:
            client._keep_alive_thread.cancel()
            client._keep_alive_thread = None
        await close(client)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AMQPClientAsync, "close_async", close_at_once)
        yield
