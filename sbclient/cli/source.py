"""The entity that `receive` and `peek` read, as their options name it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

from sbclient.cli.common import explained_missing
from sbclient.cli.completion import queues, subscriptions, topics
from sbclient.client.client import ServiceBusClient
from sbclient.client.receiver import ServiceBusReceiver
from sbclient.delivery import NEXT_AVAILABLE_SESSION, ServiceBusSubQueue, SessionChoice
from sbclient.errors import InvalidOperationError

ANY_SESSION = "*"

Queue = Annotated[str | None, typer.Option(autocompletion=queues, help="Read this queue.")]
Topic = Annotated[
    str | None, typer.Option(autocompletion=topics, help="Read a subscription of this topic; needs --subscription.")
]
Subscription = Annotated[
    str | None, typer.Option(autocompletion=subscriptions, help="Read this subscription; needs --topic.")
]
DeadLetter = Annotated[bool, typer.Option("--dead-letter", help="Read the dead-letter queue of the entity.")]
TransferDeadLetter = Annotated[
    bool, typer.Option("--transfer-dead-letter", help="Read the dead letters of messages that could not be forwarded.")
]


@dataclass(frozen=True, slots=True)
class Source:
    """A queue or subscription, or one of its sub-queues. `session` is an id, or `*` for the next available session."""

    queue: str | None
    topic: str | None
    subscription: str | None
    session: str | None = None
    dead_letter: bool = False
    transfer_dead_letter: bool = False

    @property
    def is_sub_queue(self) -> bool:
        return self.dead_letter or self.transfer_dead_letter

    @contextmanager
    def explained_errors(self, primary: str) -> Iterator[None]:
        """Name the option --session in the error of an entity that requires one, and an entity that is missing."""
        names = [self.queue or ""] if self.topic is None else [self.topic, self.subscription or ""]
        try:
            with explained_missing(primary, "queue" if self.topic is None else "subscription", *names):
                yield
        except InvalidOperationError as error:
            if self.session is not None or "session" not in error.message:
                raise
            raise InvalidOperationError(f"{error.message}; add --session NAME or --session '*'") from error

    def receiver(self, client: ServiceBusClient, *, max_wait_time: float | None = None) -> ServiceBusReceiver:
        """Return a receiver of the entity.

        Raises:
            InvalidOperationError: the options do not name exactly one entity.
        """
        if self.dead_letter and self.transfer_dead_letter:
            raise InvalidOperationError("give either --dead-letter or --transfer-dead-letter")
        sub_queue = ServiceBusSubQueue.DEAD_LETTER if self.dead_letter else None
        if self.transfer_dead_letter:
            sub_queue = ServiceBusSubQueue.TRANSFER_DEAD_LETTER
        session: SessionChoice = NEXT_AVAILABLE_SESSION if self.session == ANY_SESSION else self.session
        match self.queue, self.topic, self.subscription:
            case str(queue), None, None:
                return client.get_queue_receiver(
                    queue, session_id=session, sub_queue=sub_queue, max_wait_time=max_wait_time
                )
            case None, str(topic), str(subscription):
                return client.get_subscription_receiver(
                    topic, subscription, session_id=session, sub_queue=sub_queue, max_wait_time=max_wait_time
                )
        raise InvalidOperationError("give either --queue, or --topic with --subscription")
