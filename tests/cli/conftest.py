from __future__ import annotations

import logging
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbclient import ServiceBusClient
from sbclient.cli import startup_signals
from sbclient.cli.common import _call
from sbclient.transport.memory.transport import drop_memory_host
from tests.cli.calling import PRIMARY, SECONDARY, on

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def _namespaces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("SERVICEBUS_CONNECTION_STRING", "SERVICEBUS_SECONDARY_CONNECTION_STRING"):
        monkeypatch.delenv(name, raising=False)
    left_by_others = {each: signal.getsignal(each) for each in _SIGNALS}
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_DFL)  # Spark leaves one of its own in this process
    before = _of_process()
    yield
    drop_memory_host(PRIMARY)
    drop_memory_host(SECONDARY)
    assert _of_process() == before, "a command has left something in the process"
    for each, handler in left_by_others.items():
        if handler is not None:  # one that Python did not install
            signal.signal(each, handler)


def _of_process() -> list[object]:
    """What a command changes in its process while it runs. It may leave the handlers that a process starts with."""
    handlers = [signal.getsignal(each) for each in _SIGNALS]
    common = (signal.SIG_DFL, signal.default_int_handler, startup_signals._terminate)
    return [
        [each for each in handlers if each not in common],
        signal.pthread_sigmask(signal.SIG_BLOCK, []) if hasattr(signal, "pthread_sigmask") else None,  # Windows
        _call.get(None),
        logging.root.manager.disable,
        warnings.showwarning,
    ]


@pytest.fixture
def _what_readers_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The namespaces, queues, topics and files that the help and the pages speak of."""
    monkeypatch.setenv("SERVICEBUS_CONNECTION_STRING", PRIMARY)
    monkeypatch.setenv("SERVICEBUS_SECONDARY_CONNECTION_STRING", SECONDARY)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders.csv").write_text("OrderNo,text\n1,one\n2,two\n")
    (tmp_path / "entities.json").write_text('{"entities": [{"kind": "queue", "names": ["new"]}]}')
    (tmp_path / "Config.json").write_text('{"UserConfig": {"Namespaces": [{"Name": "contoso"}]}}')
    (tmp_path / "dead.jsonl").write_text('{"body": "x"}\n')

    async def work(client: ServiceBusClient) -> None:
        administration = client.administration
        for name in ("orders", "visits"):
            await administration.create_queue(name, requires_session=name == "visits")
        await administration.create_topic("prices")
        await administration.create_subscription("prices", "eu")

    on(PRIMARY, work, secondary=SECONDARY)
