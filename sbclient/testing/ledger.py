"""Compares sent with delivered messages: whether any is lost, unexpected, delivered twice or out of order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, repr=False)
class Ledger:
    """The messages of one run by id. An id may be any value, for instance a message id with a destination.

    Attributes:
        sent: the messages that may arrive, each with its position in the order of the sends.
        accepted: the messages that must arrive, or be dead-lettered.
        delivered: the number of deliveries of each message.
        out_of_order: messages whose first delivery follows that of a later one of their session.
    """

    sent: dict[Any, int] = field(default_factory=dict)
    accepted: set[Any] = field(default_factory=set)
    delivered: Counter[Any] = field(default_factory=Counter)
    dead_lettered: set[Any] = field(default_factory=set)
    out_of_order: int = 0
    _latest: dict[str, int] = field(default_factory=dict)

    def send(self, *messages: Any) -> None:
        for each in messages:
            self.sent.setdefault(each, len(self.sent))

    def deliver(self, message: Any, session: str | None = None) -> None:
        if session is not None and message in self.sent and not self.delivered[message]:
            latest = self._latest.get(session, -1)
            self.out_of_order += self.sent[message] < latest
            self._latest[session] = max(self.sent[message], latest)
        self.delivered[message] += 1

    @property
    def lost(self) -> set[Any]:
        return self.accepted - self.delivered.keys() - self.dead_lettered

    @property
    def unexpected(self) -> set[Any]:
        return self.delivered.keys() - self.sent.keys()

    @property
    def duplicates(self) -> int:
        """The number of deliveries beyond the first of each message."""
        return self.delivered.total() - len(self.delivered)
