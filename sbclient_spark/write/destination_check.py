"""Checks the destination of a write on the driver: existence, sessions and duplicate detection.

If the check is impossible, because the primary is unreachable, a right is missing or only the executors have the
secret, a warning is logged and the tasks report errors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from typing import Final

from sbclient import clock
from sbclient.client.client import ServiceBusClient
from sbclient.entities import QueueProperties, TopicProperties
from sbclient.errors import (
    InvalidOperationError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from sbclient_spark.clients import open_client, worker_clients
from sbclient_spark.credentials import resolve
from sbclient_spark.log import log_event
from sbclient_spark.options import Destination, EntityWord
from sbclient_spark.write.options import WriteOptions

CACHE_S: Final = 60.0
"""How long an answer is reused: a streaming query checks twice per micro-batch."""

NOT_CHECKED: Final = "cannot check {destination!r}: {reason}"
TIMEOUT_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class DestinationFacts:
    """The known facts about a destination.

    Attributes:
        word: queue or topic; None = unknown.
        is_partitioned, requires_session, detects_duplicates: None = unknown.
        duplicate_window: the window of duplicate detection.
    """

    word: EntityWord | None = None
    is_partitioned: bool | None = None
    requires_session: bool | None = None
    detects_duplicates: bool | None = None
    duplicate_window: timedelta | None = None


UNKNOWN: Final = DestinationFacts()

_answers: dict[tuple[object, str], tuple[float, DestinationFacts]] = {}
_warned: set[tuple[object, str]] = set()
"""Connections and problems that this process has logged; a stream is checked for each micro-batch."""


def check_destination(
    options: WriteOptions,
    *,
    has_sessions: bool,
    makes_random_ids: bool,
    look: Callable[[WriteOptions], DestinationFacts] | None = None,
) -> DestinationFacts:
    """Check the destination and return its facts.

    Args:
        has_sessions: whether the rows have a column `session_id`.
        makes_random_ids: whether a repeated row has another id.
        look: reads the facts; None = from the service.

    Raises:
        MessagingEntityNotFoundError: the queue or topic does not exist.
        ServiceBusAuthenticationError, ServiceBusAuthorizationError: the credential does not allow sending.
        InvalidOperationError: the destination does not fit the rows or the options.
    """
    if options.entity_path is None or options.dry_run != "off":
        return UNKNOWN
    facts = (look or _look_once)(options)
    path = options.entity_path
    if facts.word is not None and options.entity is not None and facts.word != options.entity:
        raise InvalidOperationError(f"{path!r} is a {facts.word}, not a {options.entity}: set the option {facts.word}")
    if facts.requires_session and not has_sessions:
        raise InvalidOperationError(f"{path!r} requires sessions: add a column session_id")
    _check_duplicates(options, facts, makes_random_ids)
    return facts


def _check_duplicates(options: WriteOptions, facts: DestinationFacts, makes_random_ids: bool) -> None:
    requirement, path = options.require_duplicate_detection, options.destination
    if requirement == "off":
        return
    window_s = facts.duplicate_window.total_seconds() if facts.duplicate_window is not None else 0.0
    wanted_s = options.duplicate_detection_window_s
    problem = None
    if makes_random_ids:
        problem = "messageIdMode is 'random', so a repeated row is a second message: use another mode"
    elif facts.detects_duplicates is None:
        problem = (
            f"duplicate detection of {path!r} is unknown, because the primary did not answer or refuses the right "
            "Manage: grant Manage, or set requireDuplicateDetection to 'off'"
        )
    elif not facts.detects_duplicates:
        problem = (
            f"{path!r} does not detect duplicates, so a repeated row is delivered twice: create it with "
            "requires_duplicate_detection"
        )
    elif window_s < wanted_s:
        problem = (
            f"{path!r} detects duplicates for {window_s:g} s, less than duplicateDetectionWindow {wanted_s:g} s: a row "
            "repeated after a longer outage is delivered twice; increase the window of the entity"
        )
    if problem is None:
        return
    if requirement == "error":
        raise InvalidOperationError(f"requireDuplicateDetection is 'error': {problem}")
    if (key := (options.connection, problem)) in _warned:
        return
    _warned.add(key)
    log_event(
        "destination.may_duplicate",
        "messages may arrive twice: {reason}",
        {"destination": path, "reason": problem},
        level=logging.WARNING,
    )


def _look_once(options: WriteOptions) -> DestinationFacts:
    """Return the facts from the cache or the service. If the service does not answer, an older answer holds."""
    key = (options.connection, (options.entity_path or "").casefold())
    known = _answers.get(key)
    if known is not None and clock.now() - known[0] < CACHE_S:
        return known[1]
    clients = worker_clients()
    facts = clients.run(look_at(options))
    if facts is UNKNOWN and known is not None:
        facts = known[1]
    _answers[key] = (clock.now(), facts)
    return facts


async def look_at(options: WriteOptions) -> DestinationFacts:
    """Read the facts of the destination from the service.

    Raises:
        MessagingEntityNotFoundError, ServiceBusAuthenticationError, ServiceBusAuthorizationError: as above.
    """
    connection, path = options.connection, options.entity_path or ""
    secrets = (connection.primary.connection_string, connection.client_secret, connection.token)
    has_secret_here = not any(secret.env or secret.file for secret in secrets)
    try:
        if connection.auth == "token":
            resolve(connection.token, "token")  # the service client would raise a less precise error later
        client = open_client(connection, paired=False)
    except ServiceBusAuthenticationError as error:
        if has_secret_here:
            raise
        log_event(
            "destination.not_checked", NOT_CHECKED, {"destination": path, "reason": str(error)}, level=logging.WARNING
        )
        return UNKNOWN
    async with client:
        try:
            async with clock.timeout(TIMEOUT_S):
                return await _described(client, path, options.entity)
        except (ServiceBusAuthenticationError, ServiceBusAuthorizationError):
            await _check_sending(client, Destination(path, options.entity or "queue"))
        except MessagingEntityNotFoundError:
            raise
        except (ServiceBusError, TimeoutError) as error:
            facts = {"destination": path, "error": type(error).__name__, "reason": str(error)}
            log_event("destination.not_checked", NOT_CHECKED, facts, level=logging.WARNING)
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
    hint = f"did you mean {near[0]!r}?" if near else "create it, or correct the name"
    return f"the {word or 'queue or topic'} {path!r} does not exist in {client.fully_qualified_namespace}: {hint}"


async def _check_sending(client: ServiceBusClient, destination: Destination) -> None:
    """Open a sender, which distinguishes a wrong name or key from an outage without the right to read facts."""
    sender = client.get_queue_sender(destination.path)
    try:
        async with clock.timeout(TIMEOUT_S):
            await sender.create_message_batch()
    except (MessagingEntityNotFoundError, ServiceBusAuthenticationError, ServiceBusAuthorizationError):
        raise
    except (ServiceBusError, TimeoutError) as error:
        facts = {"destination": destination.path, "error": type(error).__name__, "reason": str(error)}
        log_event("destination.not_checked", NOT_CHECKED, facts, level=logging.WARNING)
    finally:
        await sender.close()
