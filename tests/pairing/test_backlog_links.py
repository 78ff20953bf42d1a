"""Links to backlog queues that concurrent transfers share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from sbclient.errors import ServiceBusConnectionError, ServiceBusError
from sbclient.message import ServiceBusMessage
from sbclient.pairing.backlog_links import SharedLink
from sbclient.transport.base import SenderLink
from tests.payloads import batch_of

Done = Callable[[ServiceBusError | None], None]


class Started:
    """A link whose transfers leave at once and are answered later."""

    def __init__(self) -> None:
        self.answers: list[Done] = []

    def start(self, messages: Sequence[ServiceBusMessage], *, timeout_s: float, done: Done) -> bool:
        self.answers.append(done)
        return True


NOTHING = batch_of([ServiceBusMessage(None)])


def test_a_dropped_link_stays_open_until_its_last_transfer_ends() -> None:
    unused: list[SharedLink] = []
    link = SharedLink(cast(SenderLink, object()), unused.append)
    with link:
        with link:
            link.drop()
        assert unused == []
    assert unused == [link]
    link.drop()
    assert unused == [link]


def test_a_dropped_link_stays_open_until_the_last_transfer_that_was_started_is_answered() -> None:
    unused: list[SharedLink] = []
    errors: list[Any] = []
    started = Started()
    link = SharedLink(cast(SenderLink, started), unused.append)
    assert link.start(NOTHING, timeout_s=1.0, done=errors.append)
    assert link.start(NOTHING, timeout_s=1.0, done=errors.append)
    error = ServiceBusConnectionError("reset")
    started.answers[0](error)
    link.drop()
    assert unused == []
    started.answers[1](None)
    assert errors == [error, None]
    assert unused == [link]
