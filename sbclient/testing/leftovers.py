"""Finds what a test has left in a namespace: locked messages, and backlog messages that were not drained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from sbclient.hosting.host import BrokerHost
from sbclient.rules.backlog import is_backlog_path
from sbclient.testing.namespaces import MemoryNamespace, MemoryPair
from sbclient.testing.served import ServedPair

if TYPE_CHECKING:
    from sbclient.emulator.emulator import Emulator

NOT_DRAINED: Final = "no syphon has drained: `await client.run_syphon(until='empty')`"
DEAD: Final = "no syphon can drain: see why they were dead-lettered"
LONG_AGO: Final = 0.0
"""A time at which nothing expires, so that the state is as the test has left it."""

MAX_NAMED: Final = 10
"""Messages of one entity that are named."""


def assert_no_leftovers(*namespaces: MemoryNamespace | MemoryPair | Emulator | ServedPair) -> None:
    """Check at the end of a test that no message is locked, and none is in a backlog queue.

    The fixtures of pytest do this for each test; call it where a test does not use them, as with unittest.

    Raises:
        AssertionError: there are such messages. The text names each, its entity and, for namespaces in this process,
            the line that received it.
    """
    found = [line for each in namespaces for host in _hosts(each) for line in _found(host)]
    if found:
        raise AssertionError("\n".join(["the test has left messages behind:", *found]))


def _hosts(of: MemoryNamespace | MemoryPair | Emulator | ServedPair) -> list[BrokerHost]:
    if isinstance(of, MemoryPair):
        return [of.primary, of.secondary]
    if isinstance(of, MemoryNamespace):
        return [of]
    emulator = of.emulator if isinstance(of, ServedPair) else of
    return [emulator.context(name).host for name in emulator.namespaces]


def _found(host: BrokerHost) -> Iterator[str]:
    for entity in host.namespace.directory.all():
        for name, queue in zip(("", *entity.sub_queues), entity.queues(), strict=True):
            place = f"{name} of {entity.path}" if name else entity.path
            entries = [entry for fragment in queue.fragments for entry in fragment.browse(LONG_AGO, 0)]
            locked = [entry for entry in entries if entry.token]
            advice = "complete, abandon, defer or dead-letter it"
            if queue.fragments and queue.fragments[0].has_sessions:
                advice += ", or close the receiver of its session"
            for entry in locked[:MAX_NAMED]:
                line = host.receipts.place_of(entry) if isinstance(host, MemoryNamespace) else None
                received = f", received at {line}" if line else ""
                yield f"{place}: message {entry.content.message_id!r} is locked{received}: {advice}"
            if len(locked) > MAX_NAMED:
                yield f"{place}: {len(locked) - MAX_NAMED:,} more messages are locked"
            lost = len(entries) - len(locked)
            if lost and is_backlog_path(entity.path):
                count = "1 message" if lost == 1 else f"{lost:,} messages"
                yield f"{place} holds {count} that {DEAD if name else NOT_DRAINED}"
