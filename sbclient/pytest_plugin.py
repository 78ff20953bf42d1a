"""Pytest fixtures for programs that use Service Bus. pytest finds them if `sbclient` is installed.

    servicebus_namespace      a namespace of the bundled broker: `.client()`, `.inject(fault)`, `.heal()`
    servicebus_pair           two of them: `.client(options)`, `.unpaired_client()`, `.primary`, `.secondary`
    servicebus_emulator       the broker as a server, for programs with another client: `.connection_string`
    servicebus_emulator_pair  two namespaces of one server: `.primary` and `.secondary` are connection strings

An async test with one of the first two runs in virtual time, whether pytest-asyncio, anyio or no other plugin would run
it. It runs in real time with the ini option `servicebus_time = real`, with one of the last two fixtures, or, with a
warning, with an async fixture. A test that passes fails after all if it leaves locked messages or backlog messages in
its namespaces, unless it has the marker `servicebus_leftovers`. The marker
`servicebus_broker(profile="prem-2017", front_end_count=2)` configures the broker.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import pytest

if TYPE_CHECKING:
    from sbclient.emulator.emulator import Emulator
    from sbclient.hosting.host import BrokerHost
    from sbclient.testing import MemoryNamespace, MemoryPair, ServedPair

IN_MEMORY: Final = frozenset(("servicebus_namespace", "servicebus_pair"))
SERVED: Final = frozenset(("servicebus_emulator", "servicebus_emulator_pair"))
FIXTURES: Final = IN_MEMORY | SERVED

REAL_TIME: Final = (
    "{test} runs in real time, because its fixture {fixture!r} is async: use an ordinary fixture, put "
    "@sbclient.testing.in_virtual_time above the test, or set servicebus_time = real for all tests"
)

_HAS_FAILED: Final = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "servicebus_time", "the time of async tests with Service Bus in memory: virtual or real", default="virtual"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "servicebus_leftovers: let this test leave locked messages or a backlog in its namespaces"
    )
    config.addinivalue_line(
        "markers", "servicebus_broker(profile, front_end_count): the profile and the front ends of its namespaces"
    )
    if (value := config.getini("servicebus_time")) not in ("virtual", "real"):
        raise pytest.UsageError(f"servicebus_time is {value!r}: give virtual or real")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Replace an async test that uses one of the fixtures by a function that runs it.

    Plugins for async tests then call it as an ordinary function. In real time a test is left to the plugin that runs
    it, if there is one.
    """
    test = _coroutine_function(pyfuncitem)
    if test is None or not FIXTURES.intersection(pyfuncitem.fixturenames):
        return (yield)
    is_virtual = _runs_in_virtual_time(pyfuncitem)
    is_handled = test is not pyfuncitem.obj or "anyio_backend" in pyfuncitem.fixturenames
    if is_handled and not is_virtual:
        return (yield)
    found, pyfuncitem.obj = pyfuncitem.obj, _synchronous(test, is_virtual=is_virtual)
    try:
        return (yield)
    finally:
        pyfuncitem.obj = found


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Note whether a test, or its set-up, has failed before its fixtures end."""
    if call.when != "teardown":
        item.stash[_HAS_FAILED] = call.excinfo is not None


def _coroutine_function(item: pytest.Function) -> Callable[..., Any] | None:
    """Return the async function of a test; None if it has none. pytest-asyncio has replaced it by its own function."""
    test = item.obj
    if type(item).__module__.startswith("pytest_asyncio") and not hasattr(test, "hypothesis"):
        test = getattr(test, "__wrapped__", test)
    return test if inspect.iscoroutinefunction(test) else None


def _runs_in_virtual_time(item: pytest.Function) -> bool:
    if item.config.getini("servicebus_time") == "real" or SERVED.intersection(item.fixturenames):
        return False
    for name in item.fixturenames:
        for fixture in item._fixtureinfo.name2fixturedefs.get(name, ()):
            function = inspect.unwrap(fixture.func)
            if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
                item.warn(pytest.PytestWarning(REAL_TIME.format(test=item.name, fixture=name)))
                return False
    return True


def _synchronous(test: Callable[..., Any], *, is_virtual: bool) -> Callable[..., None]:
    """Return a function that runs an async test."""

    def run(**arguments: Any) -> None:
        if is_virtual:
            from sbclient.testing import in_virtual_time

            in_virtual_time(test)(**arguments)
        else:
            asyncio.run(test(**arguments))

    return run


def _seed(request: pytest.FixtureRequest) -> int:
    """A seed that is the same in every run of a test."""
    return crc32(request.node.nodeid.encode())


def _broker_options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The arguments of the nearest marker `servicebus_broker`."""
    marker = request.node.get_closest_marker("servicebus_broker")
    if marker is None:
        return {}
    if marker.args or not marker.kwargs.keys() <= {"profile", "front_end_count"}:
        pytest.fail("servicebus_broker takes profile= and front_end_count= only", pytrace=False)
    return dict(marker.kwargs)


@pytest.fixture
def servicebus_namespace(request: pytest.FixtureRequest) -> Iterator[MemoryNamespace]:
    """A fresh namespace inside this process: `.client()`, `.create_queue()`, `.inject(fault)`, `.heal()`."""
    from sbclient.testing import memory_namespace

    namespace = memory_namespace(seed=_seed(request), **_broker_options(request))
    with _checked(request, namespace):
        yield namespace


@pytest.fixture
def servicebus_pair(request: pytest.FixtureRequest) -> Iterator[MemoryPair]:
    """A fresh pair of namespaces inside this process: `.client()`, `.primary.inject(fault)`, `.primary.heal()`."""
    from sbclient.testing import memory_pair

    pair = memory_pair(seed=_seed(request), **_broker_options(request))
    with _checked(request, pair.primary, pair.secondary):
        yield pair


@pytest.fixture
def servicebus_emulator(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    """A namespace served on a free port, for any client: `.connection_string`, `.create_queue()`, `.inject(fault)`."""
    from sbclient.testing import served

    with served(**_broker_options(request)) as emulator, _checked(request, emulator.context().host):
        yield emulator


@pytest.fixture
def servicebus_emulator_pair(request: pytest.FixtureRequest) -> Iterator[ServedPair]:
    """Two namespaces on free ports, for a paired client of any process: `.primary`, `.secondary`, `.emulator`."""
    from sbclient.testing import ServedPair, served

    with (
        served("contoso", "contoso-backup", **_broker_options(request)) as emulator,
        _checked(request, *(emulator.context(name).host for name in emulator.namespaces)),
    ):
        yield ServedPair(emulator, *(emulator.connection_strings[name] for name in emulator.namespaces))


@contextmanager
def _checked(request: pytest.FixtureRequest, *hosts: BrokerHost) -> Iterator[None]:
    """Fail the test if it leaves messages in the namespaces, unless it has failed anyway."""
    from sbclient.testing.leftovers import Receipts, leftovers

    receipts = Receipts()
    for host in hosts:
        host.on_received = receipts
    yield
    if request.node.stash.get(_HAS_FAILED, False) or request.node.get_closest_marker("servicebus_leftovers"):
        return
    found = [line for host in hosts for line in leftovers(host, receipts)]
    if found:
        pytest.fail("\n".join(["the test has left messages behind:", *found]), pytrace=False)
