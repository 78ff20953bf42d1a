"""Looks at the destination before the job begins: it exists, knows duplicates, and fits what the columns offer.

What cannot be looked at, because the primary is down, the right is missing or the secret is only known to the
executors, is told and let pass: the tasks will find out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from typing import Final

from sbclient.client.client import ServiceBusClient
from sbclient.clock import Clock
from sbclient.entities import QueueProperties, TopicProperties
from sbclient.errors import (
    InvalidOperationError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from sbclient_spark.credentials import resolve
from sbclient_spark.reports import tell
from sbclient_spark.rows import Destination
from sbclient_spark.worker_clients import open_client, worker_clients
from sbclient_spark.write_options import EntityWord, WriteOptions

KEPT_S: Final = 60.0
"""For how long an answer is used again: a streaming query asks twice for each micro-batch."""

NOT_CHECKED: Final = "cannot check {destination!r}: {reason}"
LOOK_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class DestinationFacts:
    """What is known of where the rows go.

    Attributes:
        word: whether it is a queue or a topic; None = not known.
        is_partitioned, requires_session, detects_duplicates: None = not known.
        duplicate_window: how long duplicates are remembered.
    """

    word: EntityWord | None = None
    is_partitioned: bool | None = None
    requires_session: bool | None = None
    detects_duplicates: bool | None = None
    duplicate_window: timedelta | None = None


UNKNOWN: Final = DestinationFacts()

_answers: dict[tuple[object, str], tuple[float, DestinationFacts]] = {}


def check_destination(
    options: WriteOptions,
    *,
    has_sessions: bool,
    makes_random_ids: bool,
    look: Callable[[WriteOptions], DestinationFacts] | None = None,
) -> DestinationFacts:
    """What is known of the destination, after everything that can be wrong with it was checked.

    Args:
        has_sessions: whether there is a column `session_id`.
        makes_random_ids: whether a row that is sent twice has two ids.
        look: asks the service; None = as this process can.

    Raises:
        MessagingEntityNotFoundError: there is no such queue or topic.
        ServiceBusAuthenticationError, ServiceBusAuthorizationError: the credential is not good for sending there.
        InvalidOperationError: it is there, but the rows cannot go there as the options ask.
    """
    if options.entity_path is None or options.dry_run != "off":
        return UNKNOWN
    facts = (look or _look_once)(options)
    path = options.entity_path
    if facts.word is not None and options.entity is not None and facts.word != options.entity:
        raise InvalidOperationError(f"{path!r} is a {facts.word}, not a {options.entity}: set the option {facts.word}")
    if facts.requires_session and not has_sessions:
        raise InvalidOperationError(f"{path!r} takes messages of sessions only: add a column session_id")
    _check_duplicates(options, facts, makes_random_ids)
    return facts


def _check_duplicates(options: WriteOptions, facts: DestinationFacts, makes_random_ids: bool) -> None:
    demand, path = options.require_duplicate_detection, options.destination
    if demand == "off":
        return
    window_s = facts.duplicate_window.total_seconds() if facts.duplicate_window is not None else 0.0
    wanted_s = options.duplicate_detection_window_s
    problem = None
    if makes_random_ids:
        problem = "messageIdMode is 'random', so that a row that is sent again is a second message: take another mode"
    elif facts.detects_duplicates is None:
        problem = f"whether {path!r} detects duplicates is not known: grant Manage to look, or set the demand to 'off'"
    elif not facts.detects_duplicates:
        problem = (
            f"{path!r} does not detect duplicates, so that a row that is sent again arrives twice: create it with "
            "requires_duplicate_detection"
        )
    elif window_s < wanted_s:
        problem = (
            f"{path!r} remembers message ids for {window_s:g} s, duplicateDetectionWindow asks for {wanted_s:g} s: "
            "what is sent again after a longer outage arrives twice; make its window longer"
        )
    if problem is None:
        return
    if demand == "error":
        raise InvalidOperationError(f"requireDuplicateDetection is 'error': {problem}")
    tell(
        "destination.may_duplicate",
        "messages may arrive twice: {reason}",
        {"destination": path, "reason": problem},
        level=logging.WARNING,
    )


def _look_once(options: WriteOptions) -> DestinationFacts:
    """Ask the service, or remember what it said a moment ago."""
    clock = Clock()
    key = (options.connection, (options.entity_path or "").casefold())
    known = _answers.get(key)
    if known is not None and clock.now() - known[0] < KEPT_S:
        return known[1]
    clients = worker_clients()
    facts = clients.run(look_at(options, clients.clock))
    _answers[key] = (clock.now(), facts)
    return facts


async def look_at(options: WriteOptions, clock: Clock) -> DestinationFacts:
    """What the service says of the destination.

    Raises:
        MessagingEntityNotFoundError, ServiceBusAuthenticationError, ServiceBusAuthorizationError: see above.
    """
    connection, path = options.connection, options.entity_path or ""
    secrets = (connection.primary.connection_string, connection.client_secret, connection.token)
    has_secret_here = not any(secret.env or secret.file for secret in secrets)
    try:
        if connection.auth == "token":
            resolve(connection.token, "token")  # else only asked for by the service's client, which tells less
        client = open_client(connection, paired=False, clock=clock)
    except ServiceBusAuthenticationError as error:
        if has_secret_here:
            raise
        tell("destination.not_checked", NOT_CHECKED, {"destination": path, "reason": str(error)}, level=logging.WARNING)
        return UNKNOWN
    async with client:
        try:
            async with clock.timeout(LOOK_S):
                return await _described(client, path, options.entity)
        except (ServiceBusAuthenticationError, ServiceBusAuthorizationError):
            await _prove_sending(client, Destination(path, options.entity or "queue"), clock)
        except MessagingEntityNotFoundError:
            raise
        except (ServiceBusError, TimeoutError) as error:
            facts = {"destination": path, "error": type(error).__name__, "reason": str(error)}
            tell("destination.not_checked", NOT_CHECKED, facts, level=logging.WARNING)
    return UNKNOWN


async def _described(client: ServiceBusClient, path: str, word: EntityWord | None) -> DestinationFacts:
    administration = client.administration
    description: QueueProperties | TopicProperties
    found: EntityWord = "queue"
    try:
        description = await administration.get_queue(path)
    except MessagingEntityNotFoundError:
        try:
            description, found = await administration.get_topic(path), "topic"
        except MessagingEntityNotFoundError:
            raise MessagingEntityNotFoundError(await _missing(client, path, word)) from None
    return DestinationFacts(
        word=found,
        is_partitioned=bool(description.enable_partitioning),
        requires_session=isinstance(description, QueueProperties) and bool(description.requires_session),
        detects_duplicates=bool(description.requires_duplicate_detection),
        duplicate_window=description.duplicate_detection_history_time_window,
    )


async def _missing(client: ServiceBusClient, path: str, word: EntityWord | None) -> str:
    names = [queue.name async for queue in client.administration.list_queues()]
    names += [topic.name async for topic in client.administration.list_topics()]
    near = get_close_matches(path, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "create it, or mend the name"
    return f"there is no {word or 'queue or topic'} {path!r} in {client.fully_qualified_namespace}: {hint}"


async def _prove_sending(client: ServiceBusClient, destination: Destination, clock: Clock) -> None:
    """Without the right to look: a sender's link still tells a wrong name and a wrong key from an outage."""
    sender = client.get_queue_sender(destination.path)
    try:
        async with clock.timeout(LOOK_S):
            await sender.create_message_batch()
    except (MessagingEntityNotFoundError, ServiceBusAuthenticationError, ServiceBusAuthorizationError):
        raise
    except (ServiceBusError, TimeoutError) as error:
        facts = {"destination": destination.path, "error": type(error).__name__, "reason": str(error)}
        tell("destination.not_checked", NOT_CHECKED, facts, level=logging.WARNING)
    finally:
        await sender.close()
