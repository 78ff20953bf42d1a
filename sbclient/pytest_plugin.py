"""Pytest fixtures for programs that use Service Bus. pytest finds them if `sbclient` is installed.

    servicebus_namespace      a namespace of the bundled broker: `.client()`, `.inject(fault)`, `.heal()`
    servicebus_pair           two of them: `.client(options)`, `.unpaired_client()`, `.primary`, `.secondary`
    servicebus_emulator       the broker as a server, for programs with another client: `.connection_string`
    servicebus_emulator_pair  two namespaces of one server: `.primary` and `.secondary` are connection strings

An async test with one of the first two runs in virtual time, with its async fixtures, whether pytest-asyncio, anyio or
no other plugin would run it. It runs in real time with the ini option `servicebus_time = real`, with one of the last
two fixtures, or, with a warning, with an async fixture of a wider scope. With `servicebus_time = virtual-datetime`
`datetime.now()` is virtual too. `servicebus_outage_limit` is how many seconds a test may try again during an outage
that nothing ends. A test fails if it leaves locked messages or backlog messages in its namespaces, unless it has the
marker `servicebus_leftovers`. The marker `servicebus_broker(profile="prem-2017", front_end_count=2)`
configures the broker.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import pytest

if TYPE_CHECKING:
    from sbclient.emulator.emulator import Emulator
    from sbclient.testing import MemoryNamespace, MemoryPair, ServedPair

IN_MEMORY: Final = frozenset(("servicebus_namespace", "servicebus_pair"))
SERVED: Final = frozenset(("servicebus_emulator", "servicebus_emulator_pair"))
FIXTURES: Final = IN_MEMORY | SERVED

VIRTUAL_DATETIME: Final = "virtual-datetime"
TIMES: Final = ("virtual", VIRTUAL_DATETIME, "real")

REAL_TIME: Final = (
    "{test} runs in real time, because its async fixture {fixture!r} has the scope {scope!r}: give it the scope "
    "'function', put @sbclient.testing.in_virtual_time above the test, or set servicebus_time = real for all tests"
)

_NAMESPACES: Final = pytest.StashKey[list[Any]]()
"""The namespaces of a test."""

_IS_VIRTUAL: Final = pytest.StashKey[bool]()
_RUNNER: Final = pytest.StashKey[asyncio.Runner]()
"""Runs the async fixtures of a test, and the test, in virtual time."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "servicebus_time", f"the time of async tests with Service Bus in memory: {', '.join(TIMES)}", default=TIMES[0]
    )
    parser.addini(
        "servicebus_outage_limit",
        "seconds of virtual time that a test may try again during an outage that nothing ends; 0 = no limit",
        default="3600",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "servicebus_leftovers: let this test leave locked messages or a backlog in its namespaces"
    )
    config.addinivalue_line(
        "markers", "servicebus_broker(profile, front_end_count): the profile and the front ends of its namespaces"
    )
    if (value := config.getini("servicebus_time")) not in TIMES:
        raise pytest.UsageError(f"servicebus_time is {value!r}: give one of {', '.join(TIMES)}")
    limit = config.getini("servicebus_outage_limit")
    if not limit.isdecimal():
        raise pytest.UsageError(f"servicebus_outage_limit is {limit!r}: give whole seconds, or 0 for no limit")
    if value == VIRTUAL_DATETIME and find_spec("time_machine") is None:
        raise pytest.UsageError(f"servicebus_time = {value} requires time-machine: python -m pip install time-machine")


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
    found, pyfuncitem.obj = pyfuncitem.obj, _synchronous(pyfuncitem, test, is_virtual=is_virtual)
    try:
        return (yield)
    finally:
        pyfuncitem.obj = found


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Run an async fixture on the loop of a test in virtual time, before other plugins run it on their own."""
    item, function = request.node, fixturedef.func
    if not (isinstance(item, pytest.Function) and _is_async(function) and _is_virtual_test(item)):
        return (yield)
    if inspect.ismethod(function) and type(function.__self__) is type(request.instance):
        function = function.__func__.__get__(request.instance)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fixturedef, "func", _synchronous_fixture(function, _runner(item)))
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that has passed so far if it leaves messages in its namespaces."""
    result = yield
    if item.get_closest_marker("servicebus_leftovers") is None and (namespaces := item.stash.get(_NAMESPACES, ())):
        from sbclient.testing import assert_no_leftovers

        try:
            assert_no_leftovers(*namespaces)
        except AssertionError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
    return result


def _coroutine_function(item: pytest.Function) -> Callable[..., Any] | None:
    """Return the async function of a test; None if it has none. pytest-asyncio has replaced it by its own function."""
    test = item.obj
    if type(item).__module__.startswith("pytest_asyncio") and not hasattr(test, "hypothesis"):
        test = getattr(test, "__wrapped__", test)
    return test if inspect.iscoroutinefunction(test) else None


def _is_virtual_test(item: pytest.Function) -> bool:
    """Whether this is an async test that runs in virtual time."""
    is_ours = _coroutine_function(item) is not None and IN_MEMORY.intersection(item.fixturenames)
    return bool(is_ours) and _runs_in_virtual_time(item)


def _runs_in_virtual_time(item: pytest.Function) -> bool:
    if _IS_VIRTUAL not in item.stash:
        item.stash[_IS_VIRTUAL] = _can_run_in_virtual_time(item)
    return item.stash[_IS_VIRTUAL]


def _can_run_in_virtual_time(item: pytest.Function) -> bool:
    if item.config.getini("servicebus_time") == "real" or SERVED.intersection(item.fixturenames):
        return False
    for name in item.fixturenames:
        for fixture in item._fixtureinfo.name2fixturedefs.get(name, ()):
            if fixture.scope != "function" and _is_async(fixture.func):
                text = REAL_TIME.format(test=item.name, fixture=name, scope=fixture.scope)
                item.warn(pytest.PytestWarning(text))
                return False
    return True


def _is_async(function: Callable[..., Any]) -> bool:
    function = inspect.unwrap(function)
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _runner(item: pytest.Function) -> asyncio.Runner:
    """Return what runs the async fixtures of a test and the test; it is closed after the fixtures."""
    if _RUNNER not in item.stash:
        from sbclient.testing.virtual_test import new_runner

        runner = item.stash[_RUNNER] = new_runner(**_time_options(item))

        def close() -> None:
            del item.stash[_RUNNER]
            runner.close()

        item.addfinalizer(close)
    return item.stash[_RUNNER]


def _time_options(item: pytest.Item) -> dict[str, Any]:
    """The options of the virtual loop of a test."""
    return {
        "patch_datetime": item.config.getini("servicebus_time") == VIRTUAL_DATETIME,
        "outage_limit_s": int(item.config.getini("servicebus_outage_limit")) or None,
    }


def _synchronous_fixture(function: Callable[..., Any], runner: asyncio.Runner) -> Callable[..., Any]:
    """Return a fixture that runs an async fixture."""
    from sbclient.testing.virtual_test import run_test

    async def step(generator: AsyncGenerator[Any, None]) -> Any:
        return await anext(generator)

    def returning(**arguments: Any) -> Any:
        return run_test(runner, function(**arguments))

    def yielding(**arguments: Any) -> Iterator[Any]:
        generator = function(**arguments)
        yield run_test(runner, step(generator))
        with suppress(StopAsyncIteration):
            run_test(runner, step(generator))
            raise RuntimeError(f"the fixture {function.__name__} has yielded twice: let it yield once")

    return yielding if inspect.isasyncgenfunction(inspect.unwrap(function)) else returning


def _synchronous(item: pytest.Function, test: Callable[..., Any], *, is_virtual: bool) -> Callable[..., None]:
    """Return a function that runs an async test."""

    def run(**arguments: Any) -> None:
        if not is_virtual:
            asyncio.run(test(**arguments))
            return
        from sbclient.testing.virtual_test import in_virtual_time, run_test

        if _RUNNER in item.stash:
            run_test(item.stash[_RUNNER], test(**arguments))
        else:
            in_virtual_time(**_time_options(item))(test)(**arguments)

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


def _checked(request: pytest.FixtureRequest, namespaces: Any) -> None:
    """Let the test fail if it leaves messages in the namespaces."""
    request.node.stash.setdefault(_NAMESPACES, []).append(namespaces)


@pytest.fixture
def servicebus_namespace(request: pytest.FixtureRequest) -> MemoryNamespace:
    """A fresh namespace inside this process: `.client()`, `.create_queue()`, `.inject(fault)`, `.heal()`."""
    from sbclient.testing import memory_namespace

    namespace = memory_namespace(seed=_seed(request), **_broker_options(request))
    _checked(request, namespace)
    return namespace


@pytest.fixture
def servicebus_pair(request: pytest.FixtureRequest) -> MemoryPair:
    """A fresh pair of namespaces inside this process: `.client()`, `.primary.inject(fault)`, `.primary.heal()`."""
    from sbclient.testing import memory_pair

    pair = memory_pair(seed=_seed(request), **_broker_options(request))
    _checked(request, pair)
    return pair


@pytest.fixture
def servicebus_emulator(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    """A namespace served on a free port, for any client: `.connection_string`, `.create_queue()`, `.inject(fault)`."""
    from sbclient.testing import served

    with served(**_broker_options(request)) as emulator:
        _checked(request, emulator)
        yield emulator


@pytest.fixture
def servicebus_emulator_pair(request: pytest.FixtureRequest) -> Iterator[ServedPair]:
    """Two namespaces on free ports, for a paired client of any process: `.primary`, `.secondary`, `.emulator`."""
    from sbclient.testing import ServedPair, served

    with served("contoso", "contoso-backup", **_broker_options(request)) as emulator:
        _checked(request, emulator)
        yield ServedPair(emulator, *(emulator.connection_strings[name] for name in emulator.namespaces))
