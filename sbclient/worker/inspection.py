"""Checks that both namespaces are reachable and grant the rights that the syphon needs, without moving messages."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

from sbclient.backlog import UNKNOWN_DESTINATION
from sbclient.errors import (
    BacklogUnavailableError,
    InvalidOperationError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
    ServiceBusServerBusyError,
)
from sbclient.pairing.pair import Pair

CHECK_S: Final = 15.0
"""Longest duration of one check."""

CONCURRENT_CHECKS: Final = 16
"""Over azure-servicebus each check takes a connection, which takes a second to close."""

PROBED: Final = 200
"""Limit of destinations that are probed."""

ACCEPTS: Final = "accepts messages"

MISSING_ENTITY: Final = "sbclient-syphon-probe"
"""Probed if no entity of the primary is known: the answer that it does not exist proves that the namespace works."""


def chosen_queues(pair: Pair, numbers: Collection[int] | None) -> list[str]:
    """Return the names of the backlog queues with these numbers, session queues last.

    Args:
        pair: opened.
        numbers: counted from 0; None = all.

    Raises:
        MessagingEntityNotFoundError: a queue could not be created when the pair was opened.
    """
    every = {
        name: int(name.rpartition("/")[2]) for name in (*pair.state.backlog_queues, *pair.state.session_backlog_queues)
    }
    if numbers is None:
        return list(every)
    if unknown := sorted(set(numbers) - set(every.values())):
        raise MessagingEntityNotFoundError(
            f"backlog queue {', '.join(map(str, unknown))} is not usable in {pair.state.secondary.namespace}: "
            "see backlog.not_usable in the log"
        )
    return [name for name, number in every.items() if number in numbers]


def is_refused(error: ServiceBusError) -> bool:
    """Return whether the credential is rejected or lacks a right."""
    return is_refused_kind(type(error))


def refusal_in(error: ServiceBusError) -> ServiceBusError | None:
    """Return the error of a credential that an error is, or has as the cause for a backlog queue; None = none."""
    causes = error.causes.values() if isinstance(error, BacklogUnavailableError) else ()
    refused = (one for one in (error, *causes) if isinstance(one, ServiceBusError) and is_refused(one))
    return next(refused, None)


def is_refused_kind(kind: type[ServiceBusError]) -> bool:
    """Like `is_refused`, for the class of an error."""
    return issubclass(kind, ServiceBusAuthenticationError | ServiceBusAuthorizationError)


def is_unreachable(error: ServiceBusError) -> bool:
    """Return whether the namespace does not answer or rejects the credential; other errors prove it reachable."""
    is_answer = isinstance(error, ServiceBusServerBusyError)
    return is_refused(error) or (error.is_outage and error.is_transient and not is_answer)


async def probe_primary(pair: Pair, path: str | None) -> None:
    """Open a link to an entity of the primary without sending.

    Args:
        path: of the entity; None = an entity that does not exist.

    Raises:
        ServiceBusError: the namespace or the entity returned it; see `is_unreachable`.
    """
    link = pair.state.primary.open_sender(path or MISSING_ENTITY)
    try:
        await link.open(timeout_s=CHECK_S)
    finally:
        await link.close()


async def probe_queue(pair: Pair, queue: str) -> None:
    """Peek at one message of a backlog queue, which proves that it exists and can be read.

    Raises:
        ServiceBusError: the queue returned it.
    """
    link = pair.state.secondary.open_receiver(queue)
    try:
        await link.open(timeout_s=CHECK_S)
        await link.peek(max_message_count=1, sequence_number=1, timeout_s=CHECK_S)
    except InvalidOperationError:
        if queue not in pair.state.session_backlog_queues:
            raise
        # a session queue accepts the credential before it rejects a receiver without a session
    finally:
        await link.close()


def _refusal(subject: str, error: ServiceBusError, right: str) -> ServiceBusError:
    """Return the error of a credential: only a valid one can lack a right."""
    lacks = isinstance(error, ServiceBusAuthorizationError)
    return type(error)(f"{subject} rejects the credential: {f'it needs {right} ' if lacks else ''}({error.message})")


async def check_primary(pair: Pair, path: str | None) -> ServiceBusError | None:
    """Return the error that makes the primary unusable; None = it is reachable.

    Raises:
        ServiceBusAuthenticationError, ServiceBusAuthorizationError: the credential is rejected or lacks a right.
    """
    try:
        await probe_primary(pair, path)
    except ServiceBusError as error:
        if is_refused(error):
            advice = "" if path else "; if it has this right for some entities only, set probe_entity to one of them"
            raise _refusal(f"the primary {pair.state.primary.namespace}", error, f"the Send right{advice}") from error
        return error if is_unreachable(error) else None
    return None


async def check_queues(pair: Pair, queues: Sequence[str], *, are_chosen: bool) -> list[str]:
    """Probe every backlog queue; return those that do not exist.

    Args:
        are_chosen: whether the user chose these queues, so that each must exist.

    Raises:
        ServiceBusAuthenticationError, ServiceBusAuthorizationError: the credential is rejected or lacks a right.
        MessagingEntityNotFoundError: a chosen queue does not exist, or no queue does.
        ServiceBusError: no queue is reachable.
    """
    slots = asyncio.Semaphore(CONCURRENT_CHECKS)

    async def probe(queue: str) -> ServiceBusError | None:
        async with slots:
            try:
                await probe_queue(pair, queue)
            except ServiceBusError as error:
                return error
            return None

    errors = dict(zip(queues, await asyncio.gather(*map(probe, queues)), strict=True))
    missing = [queue for queue, error in errors.items() if isinstance(error, MessagingEntityNotFoundError)]
    for queue, error in errors.items():
        if error is not None and is_refused(error):
            subject = f"the secondary {pair.state.secondary.namespace}, queue {queue!r},"
            raise _refusal(subject, error, "the Listen right") from error
        if isinstance(error, InvalidOperationError):
            raise InvalidOperationError(f"backlog queue {queue!r} cannot be read: {error.message}") from error
    if missing and (are_chosen or len(missing) == len(queues)):
        named = missing[0] if len(missing) == 1 else f"{missing[0]} … {missing[-1]}"
        raise MessagingEntityNotFoundError(
            f"{len(missing)} of {len(queues)} backlog queues do not exist in {pair.state.secondary.namespace} "
            f"({named}): set primary_name and backlog_queue_count to the values of the senders, or create them with "
            "--provision"
        )
    if all(errors.values()):
        outage = next(error for queue, error in errors.items() if error is not None and queue not in missing)
        raise type(outage)(
            f"the secondary {pair.state.secondary.namespace} is unavailable: {outage.message}"
        ) from outage
    return missing


async def destination_answers(pair: Pair, paths: Sequence[str]) -> dict[str, str]:
    """Open a link to each destination in the primary; return `ACCEPTS` or the error, by path."""
    slots = asyncio.Semaphore(CONCURRENT_CHECKS)

    async def probe(path: str) -> str:
        if path == UNKNOWN_DESTINATION:
            return "the destinations can be read only with a lock on the session"
        async with slots:
            try:
                await probe_primary(pair, path)
            except ServiceBusError as error:
                return f"{type(error).__name__}: {error.message}"
        return ACCEPTS

    return dict(zip(paths, await asyncio.gather(*map(probe, paths)), strict=True))
