"""Looks whether both namespaces can be reached and allow what the syphon needs, without moving anything."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

from sbclient.errors import (
    BacklogUnavailableError,
    InvalidOperationError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from sbclient.pairing.pair import Pair

ASK_S: Final = 15.0
"""How long one question may take."""

AT_ONCE: Final = 16
"""Entities that are asked at once: over azure-servicebus each costs a connection, and a second to close it."""

UNKNOWN_ENTITY: Final = "sbclient-syphon-probe"
"""Asked for where no entity of the primary is known: that it does not exist is an answer too."""


def chosen_queues(pair: Pair, numbers: Collection[int] | None) -> list[str]:
    """The backlog queues with these numbers, by name, those for sessions last.

    Args:
        pair: opened.
        numbers: counted from 0; None = every one that the pair has.

    Raises:
        MessagingEntityNotFoundError: one of them could not be made.
    """
    every = {
        name: int(name.rpartition("/")[2]) for name in (*pair.state.backlog_queues, *pair.state.session_backlog_queues)
    }
    if numbers is None:
        return list(every)
    if unknown := sorted(set(numbers) - set(every.values())):
        raise MessagingEntityNotFoundError(
            f"backlog queue {', '.join(map(str, unknown))} cannot be had in {pair.state.secondary.namespace}: "
            "see the log"
        )
    return [name for name, number in every.items() if number in numbers]


def is_refused(error: ServiceBusError) -> bool:
    """Whether the credential is not accepted, or lacks the right."""
    return isinstance(error, ServiceBusAuthenticationError | ServiceBusAuthorizationError)


def is_unreachable(error: ServiceBusError) -> bool:
    """Whether an error means that the namespace itself cannot be used; other answers prove that it can be reached."""
    return is_refused(error) or (error.is_outage and error.is_transient)


def may_pass(error: ServiceBusError) -> bool:
    """Whether waiting may help: the namespace cannot be reached, or is busy."""
    if isinstance(error, BacklogUnavailableError):
        causes = [*error.causes.values(), error.__cause__]
        return any(isinstance(cause, ServiceBusError) and may_pass(cause) for cause in causes)
    return error.is_outage or error.is_transient


async def ask_primary(pair: Pair, path: str | None) -> None:
    """Open a link to an entity of the primary; nothing is sent.

    Args:
        path: of the entity; None = one that does not exist, which proves as much.

    Raises:
        ServiceBusError: what it answered; see `is_unreachable`.
    """
    link = pair.state.primary.open_sender(path or UNKNOWN_ENTITY)
    try:
        await link.open(timeout_s=ASK_S)
    finally:
        await link.close()


async def ask_queue(pair: Pair, queue: str) -> None:
    """Look at one message of a backlog queue, or at which sessions it has; nothing is taken.

    Raises:
        ServiceBusError: what it answered.
    """
    if queue in pair.state.session_backlog_queues:
        await pair.state.secondary.list_sessions(queue, state_updated_after=None, timeout_s=ASK_S)
        return
    link = pair.state.secondary.open_receiver(queue)
    try:
        await link.open(timeout_s=ASK_S)
        await link.peek(max_message_count=1, sequence_number=1, timeout_s=ASK_S)
    finally:
        await link.close()


async def check_primary(pair: Pair, path: str | None) -> ServiceBusError | None:
    """What the primary answers; None = it can be reached.

    Raises:
        ServiceBusAuthenticationError, ServiceBusAuthorizationError: the credential does not do.
    """
    try:
        await ask_primary(pair, path)
    except ServiceBusError as error:
        if is_refused(error):
            advice = "" if path else "; if it has that for some entities only, name one of them by probe_entity"
            raise type(error)(
                f"the primary {pair.state.primary.namespace} refuses the credential: it needs the Send right{advice} "
                f"({error.message})"
            ) from error
        return error if is_unreachable(error) else None
    return None


async def check_queues(pair: Pair, queues: Sequence[str], *, are_chosen: bool) -> list[str]:
    """Ask every backlog queue; returns those that do not exist.

    Args:
        are_chosen: whether somebody named them one by one, so that each must exist.

    Raises:
        ServiceBusAuthenticationError, ServiceBusAuthorizationError: the credential does not do.
        MessagingEntityNotFoundError: one that was chosen does not exist, or none does.
        ServiceBusError: none answered.
    """
    turns = asyncio.Semaphore(AT_ONCE)

    async def answer(queue: str) -> ServiceBusError | None:
        async with turns:
            try:
                await ask_queue(pair, queue)
            except ServiceBusError as error:
                return error
            return None

    answers = dict(zip(queues, await asyncio.gather(*map(answer, queues)), strict=True))
    missing = [queue for queue, error in answers.items() if isinstance(error, MessagingEntityNotFoundError)]
    for queue, error in answers.items():
        if error is not None and is_refused(error):
            raise type(error)(
                f"the secondary {pair.state.secondary.namespace} refuses the credential for {queue!r}: it needs "
                f"the Listen right ({error.message})"
            ) from error
        if isinstance(error, InvalidOperationError):
            raise InvalidOperationError(f"backlog queue {queue!r} cannot be read: {error.message}") from error
    if missing and (are_chosen or len(missing) == len(queues)):
        named = missing[0] if len(missing) == 1 else f"{missing[0]} … {missing[-1]}"
        raise MessagingEntityNotFoundError(
            f"{len(missing)} of {len(queues)} backlog queues do not exist in {pair.state.secondary.namespace} "
            f"({named}): set primary_name and backlog_queue_count as the senders were paired with, or make them with "
            "--provision"
        )
    if all(answers.values()):
        outage = next(error for queue, error in answers.items() if error is not None and queue not in missing)
        raise type(outage)(
            f"the secondary {pair.state.secondary.namespace} gives no messages: {outage.message}"
        ) from outage
    return missing
