"""What all tests share: async tests and fixtures run in virtual time unless they ask for real time.

A test asks with `@pytest.mark.real_time` (or `pytestmark` in its file). A directory in which everything needs real
time, as the network does, answers the hook below in a conftest of its own with `{"real": asyncio.new_event_loop}`; one
that returns both names runs each async test under both.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import pytest_asyncio
from hypothesis import settings

from sbclient.client.client import ServiceBusClient
from sbclient.client.receiver import ServiceBusReceiver
from sbclient.client.sender import ServiceBusSender
from sbclient.telemetry import metrics, tracing
from sbclient.testing import MemoryPair, VirtualLoop, memory_pair
from sbclient.transport.memory.receiver import MemoryReceiver
from sbclient.transport.memory.sender import MemorySender
from tests.client.scene import QUEUE, make_queue

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

settings.register_profile("shared machine", deadline=None)  # how long one example takes says nothing here
settings.load_profile("shared machine")

HERE: Final = Path(__file__).parent

SLOW_FOLDERS: Final = (
    *("spark", "test_examples.py", "processes", "page", "simulation", "wire_pair", "wire", "contract", "rights"),
    *("secrets", "stage"),
)
"""Tests here wait for processes, sockets or a browser. They are not `quick`, and start first, in this order."""

SHARED_FOLDERS: Final = ("spark", "page")
"""The tests of such a folder share a Java virtual machine or a browser, so one worker of pytest-xdist runs them all."""

REAL_LOOPS: Final[dict[str, Callable[[], asyncio.AbstractEventLoop]]] = {"real": asyncio.new_event_loop}
"""The event loops that a test with the marker `every_loop` runs on."""

if sys.platform != "win32":
    import uvloop

    REAL_LOOPS["uvloop"] = uvloop.new_event_loop

EPOCH: Final = 1_700_000_000.0
"""The wall time at which a test in virtual time begins."""

HORIZON_S = 2 * 366 * 86400.0
"""A test whose virtual time passes this runs away: something periodic was left behind."""


def pytest_configure(config: pytest.Config) -> None:
    # Else each worker and each program that a test starts compiles everything again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # A shell starts background programs with SIGINT ignored, and each child would inherit that: Ctrl-C had no effect.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "real_time: run this async test on a real event loop, not a virtual one")
    config.addinivalue_line("markers", "every_loop: run this test in real time on asyncio's loop and on uvloop's")
    config.addinivalue_line("markers", "quick: added to tests outside the slow folders, but slow and real_time ones")
    config.addinivalue_line("markers", "slow: not quick, because it starts processes or does much work")
    config.addinivalue_line("markers", "deviation(*ids): shows these differences of sbclient/cli/deviations.json")
    config.addinivalue_line("markers", "promise(*names): shows these promises of docs/security.md")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import the slow folders for `-m quick`."""
    is_slow = collection_path.is_dir() and folder_of(collection_path) in SLOW_FOLDERS
    return True if is_slow and config.option.markexpr == "quick" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the quick tests, and start with the folders that take longest."""
    for item in items:
        if folder_of(item.path) not in SLOW_FOLDERS and not any(map(item.get_closest_marker, ("slow", "real_time"))):
            item.add_marker("quick")
    ranks = {folder: rank for rank, folder in enumerate(SLOW_FOLDERS)}
    items.sort(key=lambda item: ranks.get(folder_of(item.path), len(ranks)))


def pytest_collection_finish() -> None:
    """Exempt what stays until the end from garbage collections: there are hundreds of thousands of these objects."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Name the known differences from Service Bus, and the promises, that a failed test shows."""
    if call.when != "call" or call.excinfo is None or call.excinfo.errisinstance(pytest.skip.Exception):
        return
    for kind, page in (("deviation", "sbclient/cli/deviations.json"), ("promise", "docs/security.md")):
        for marker in item.iter_markers(kind):
            for name in marker.args:
                call.excinfo.value.add_note(
                    f"this test shows the {kind} {name!r}: if the behaviour is meant to change, change {page} too"
                )


@cache
def folder_of(path: Path) -> str:
    """The folder of tests/ that a path is in; its own name if it is in none."""
    return next(iter(path.relative_to(HERE).parts), "")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two workers more than processors, because many tests wait. None for named files, which end sooner without."""
    if any(".py" in argument for argument in config.args):
        return 0
    return (os.cpu_count() or 1) + 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run each file in one worker, which its module fixtures need, and each shared folder, too."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # pytest-xdist ships no types
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            folder = folder_of(config.rootpath / path)
            return folder if folder in SHARED_FOLDERS else path

    return Scheduling(config, log)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.get_closest_marker("real_time"):
        return REAL_LOOPS if item.get_closest_marker("every_loop") else {"real": asyncio.new_event_loop}
    return {"virtual": lambda: VirtualLoop(horizon_s=HORIZON_S, epoch=EPOCH)}


@pytest.fixture
def metric_reader() -> Iterator[InMemoryMetricReader]:
    """Reads what is measured in this test."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    metrics.attach(provider)
    yield reader
    metrics.detach(provider)


@pytest.fixture
def span_exporter() -> Iterator[InMemorySpanExporter]:
    """Holds the spans that have ended in this test."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.attach(provider)
    yield exporter
    tracing.detach()


class _Made:
    """The senders and receivers that a test makes, and the links below them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._used: list[weakref.ref[ServiceBusSender | ServiceBusReceiver]] = []
        self._links: list[MemorySender | MemoryReceiver] = []
        for kind in (ServiceBusSender, ServiceBusReceiver):
            self._note(patch, kind, lambda used: self._used.append(weakref.ref(used)))
        for link in (MemorySender, MemoryReceiver):
            self._note(patch, link, self._links.append)

    @staticmethod
    def _note(patch: pytest.MonkeyPatch, kind: type, note: Callable[[Any], None]) -> None:
        init: Callable[..., None] = kind.__init__  # type: ignore[misc]  # of this very class

        def noted(made: Any, *args: Any, **kwargs: Any) -> None:
            init(made, *args, **kwargs)
            note(made)

        patch.setattr(kind, "__init__", noted)

    def left_open(self) -> list[str]:
        """Return the open links of closed clients, if the test has closed every sender and receiver that it made."""
        used = [each() for each in self._used]
        if any(each is None or not each._calls.are_over for each in used):
            return []
        left = [link for link in self._links if link._connection._is_closed and not link._is_closed]
        return [f"{type(link).__name__} of {link._path}" for link in left]


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[MemoryPair]:
    """Two namespaces, `contoso` with the queue `orders`, and `contoso-backup`; no task and no link may be left."""
    with pytest.MonkeyPatch.context() as patch:
        made = _Made(patch)
        pair = memory_pair(seed=1)
        await make_queue(pair)
        before = asyncio.all_tasks()
        yield pair
    left = [task.get_name() for task in asyncio.all_tasks() - before if task is not asyncio.current_task()]
    assert not left, f"tasks were left behind: {left}"
    assert not made.left_open(), f"links were left open: {made.left_open()}"


@pytest_asyncio.fixture
async def client(pair: MemoryPair) -> AsyncIterator[ServiceBusClient]:
    """A paired client with the documented defaults."""
    async with pair.client() as client:
        yield client


@pytest.fixture
def queue() -> str:
    return QUEUE
