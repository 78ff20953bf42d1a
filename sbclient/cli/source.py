"""Which entity `receive` and `peek` look at, and a receiver for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

from sbclient.client.client import ServiceBusClient
from sbclient.client.receiver import ServiceBusReceiver
from sbclient.delivery import NEXT_AVAILABLE_SESSION, ServiceBusSubQueue, SessionChoice
from sbclient.errors import InvalidOperationError

ANY_SESSION = "*"

Queue = Annotated[str | None, typer.Option(help="From this queue.")]
Topic = Annotated[str | None, typer.Option(help="From this topic's --subscription.")]
Subscription = Annotated[str | None, typer.Option(help="From this subscription of --topic.")]
DeadLetter = Annotated[bool, typer.Option("--dead-letter", help="From its dead-letter queue.")]
TransferDeadLetter = Annotated[
    bool, typer.Option("--transfer-dead-letter", help="From the dead letters of what could not be forwarded.")
]


@dataclass(frozen=True, slots=True)
class Source:
    """A queue or subscription, or one of its sub-queues, perhaps one session of it; `*` is the next available one."""

    queue: str | None
    topic: str | None
    subscription: str | None
    session: str | None = None
    dead_letter: bool = False
    transfer_dead_letter: bool = False

    @property
    def is_sub_queue(self) -> bool:
        """Whether it holds dead letters."""
        return self.dead_letter or self.transfer_dead_letter

    @contextmanager
    def advising(self) -> Iterator[None]:
        """Say in the words of the command line what an entity with sessions wants."""
        try:
            yield
        except InvalidOperationError as error:
            if self.session is not None or "session" not in error.message:
                raise
            raise InvalidOperationError(f"{error.message}; here with --session NAME or --session '*'") from error

    def receiver(self, client: ServiceBusClient, *, max_wait_time: float | None = None) -> ServiceBusReceiver:
        """A receiver for it.

        Raises:
            InvalidOperationError: what was given names no entity.
        """
        choice: SessionChoice = NEXT_AVAILABLE_SESSION if self.session == ANY_SESSION else self.session
        if self.dead_letter and self.transfer_dead_letter:
            raise InvalidOperationError("give one of --dead-letter and --transfer-dead-letter")
        sub_queue = (
            ServiceBusSubQueue.DEAD_LETTER
            if self.dead_letter
            else ServiceBusSubQueue.TRANSFER_DEAD_LETTER
            if self.transfer_dead_letter
            else None
        )
        if self.queue is not None and self.topic is None and self.subscription is None:
            return client.get_queue_receiver(
                self.queue, session_id=choice, sub_queue=sub_queue, max_wait_time=max_wait_time
            )
        if self.queue is None and self.topic is not None and self.subscription is not None:
            return client.get_subscription_receiver(
                self.topic, self.subscription, session_id=choice, sub_queue=sub_queue, max_wait_time=max_wait_time
            )
        raise InvalidOperationError("give --queue, or --topic with --subscription")
