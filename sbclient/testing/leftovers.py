"""Finds what a test has left in a namespace: locked messages, and backlog messages that were not drained."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Final

from sbclient.broker.entry import Entry
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusReceivedMessage
from sbclient.rules.backlog import is_backlog_path

NOT_DRAINED: Final = "no syphon has drained: `await client.run_syphon(until='empty')`"
DEAD: Final = "no syphon can drain: see why they were dead-lettered"
LONG_AGO: Final = 0.0
"""A time at which nothing expires, so that the state is as the test has left it."""

MAX_NAMED: Final = 10
"""Messages of one entity that are named."""

_OURS: Final = ("sbclient.", "asyncio.", "contextlib")


class Receipts:
    """Notes the line of the program that has received each message, by lock token."""

    def __init__(self) -> None:
        self._places: dict[int, str] = {}

    def __call__(self, messages: Sequence[ServiceBusReceivedMessage]) -> None:
        """Note the line that waits for these messages. It is unknown if another task receives for it."""
        frame = sys._getframe(1) if messages else None
        while frame is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
            frame = frame.f_back
        if frame is not None and frame.f_code.co_filename != "<frozen runpy>":
            place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            self._places.update((message.lock_token.int, place) for message in messages if message.lock_token)

    def place_of(self, entry: Entry) -> str:
        """Return where a locked message was received, as the rest of a sentence."""
        place = self._places.get(entry.token)
        return f", received at {place}" if place else ""


def leftovers(host: BrokerHost, receipts: Receipts | None = None) -> list[str]:
    """Return one sentence for each problem."""
    return list(_found(host, receipts or Receipts()))


def _found(host: BrokerHost, receipts: Receipts) -> Iterator[str]:
    for entity in host.namespace.directory.all():
        for name, queue in zip(("", *entity.sub_queues), entity.queues(), strict=True):
            place = f"{name} of {entity.path}" if name else entity.path
            entries = [entry for fragment in queue.fragments for entry in fragment.browse(LONG_AGO, 0)]
            locked = [entry for entry in entries if entry.token]
            advice = "complete, abandon, defer or dead-letter it"
            if queue.fragments and queue.fragments[0].has_sessions:
                advice += ", or close the receiver of its session"
            for entry in locked[:MAX_NAMED]:
                yield f"{place}: message {entry.content.message_id!r} is locked{receipts.place_of(entry)}: {advice}"
            if len(locked) > MAX_NAMED:
                yield f"{place}: {len(locked) - MAX_NAMED:,} more messages are locked"
            lost = len(entries) - len(locked)
            if lost and is_backlog_path(entity.path):
                count = "1 message" if lost == 1 else f"{lost:,} messages"
                yield f"{place} holds {count} that {DEAD if name else NOT_DRAINED}"
