"""Creates the backlog queues of a pair in its secondary namespace, or verifies that they exist."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final, Literal

from sbclient.entities import UNLIMITED, EntityAddress, EntityKind, EntityProperties, QueueProperties
from sbclient.errors import (
    BacklogUnavailableError,
    InvalidOperationError,
    MessagingEntityAlreadyExistsError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from sbclient.rules.backlog import may_recover
from sbclient.tasks import gather
from sbclient.telemetry.log import get_logger
from sbclient.transport.base import Administration

log = get_logger(__name__)

MAX_DELIVERY_COUNT: Final = 2**31 - 1
MAX_SIZE_MEGABYTES: Final = 5120


def backlog_queue(name: str, *, requires_session: bool) -> QueueProperties:
    """Return the description of a new backlog queue.

    Source: documented, except for sessions (our choice). 5120 MB, unlimited delivery count, time to live and idle time,
    locks of 1 min, dead-lettering of expired messages, batched operations; not partitioned, no duplicate detection.
    """
    return QueueProperties(
        name,
        auto_delete_on_idle=UNLIMITED,
        dead_lettering_on_message_expiration=True,
        default_message_time_to_live=UNLIMITED,
        enable_batched_operations=True,
        lock_duration=timedelta(minutes=1),
        max_delivery_count=MAX_DELIVERY_COUNT,
        max_size_in_megabytes=MAX_SIZE_MEGABYTES,
        requires_session=requires_session or None,
    )


async def provision(
    administration: Administration,
    names: Sequence[str],
    *,
    mode: Literal["create", "verify"],
    requires_session: bool = False,
) -> dict[str, QueueProperties]:
    """Create the missing queues; return the descriptions of all usable queues by name, in order.

    Existing queues are not changed; those that would lose or reject messages are not usable. Several clients may
    create the same queues at once.

    Raises:
        BacklogUnavailableError: no queue is usable, or one is not although it must be: with `requires_session`, because
            every client must choose the same queue for a session, or a missing one with `mode="verify"`. It holds every
            cause.
    """
    prefix = names[0].rpartition("/")[0] + "/"
    try:
        found = [queue async for queue in administration.list(EntityKind.QUEUE, prefix=prefix)]
    except ServiceBusError as error:
        advice = 'grant the Manage right on the secondary, or set the option provision="none"'
        if may_recover(error):
            advice = "the secondary is unavailable"
        elif isinstance(error, ServiceBusAuthenticationError):
            advice = "the secondary rejects the credential"
        raise BacklogUnavailableError(
            f"cannot list the backlog queues below {prefix!r}: {advice}", {prefix: error}
        ) from error
    existing = {queue.name.casefold(): queue for queue in found}
    missing = [name for name in names if name.casefold() not in existing]
    if missing and mode == "verify":
        raise BacklogUnavailableError(
            f'backlog queues are missing: {", ".join(missing)}. Create them, or pair with provision="create"'
        )
    causes: dict[str, Exception] = {}
    usable: dict[str, QueueProperties] = {}

    async def make(name: str) -> None:
        try:
            queue = existing.get(name.casefold()) or await _created(administration, name, requires_session)
            usable[name] = usable_queue(queue, requires_session=requires_session)
        except ServiceBusError as error:
            log.warning("backlog.not_usable", "backlog queue {queue!r} is not usable: {error}", queue=name, error=error)
            causes[name] = error

    await gather(map(make, names))
    if not usable:
        raise BacklogUnavailableError(f"no backlog queue below {prefix!r} can be used or created", causes)
    if causes and requires_session:
        raise BacklogUnavailableError(
            f'ordering="session" needs every session backlog queue, but {", ".join(sorted(causes))} cannot be used: '
            "every client must choose the same queue for a session",
            causes,
        )
    return {name: usable[name] for name in names if name in usable}


async def _created(administration: Administration, name: str, requires_session: bool) -> EntityProperties:
    address = EntityAddress(EntityKind.QUEUE, (name,))
    try:
        return await administration.create(address, backlog_queue(name, requires_session=requires_session))
    except MessagingEntityAlreadyExistsError:
        return await administration.get(address)  # another client has created it, or it is not a queue


async def keeping_entity(administration: Administration, path: str) -> EntityProperties | None:
    """Return the description of a queue or topic that keeps messages; None = the key lacks Manage.

    Raises:
        MessagingEntityNotFoundError: there is neither.
        InvalidOperationError: it is a topic without a subscription.
    """
    topic = EntityAddress(EntityKind.TOPIC, (path,))
    try:
        with suppress(MessagingEntityNotFoundError):
            return await administration.get(EntityAddress(EntityKind.QUEUE, (path,)))
        found, runtime = await administration.get(topic), await administration.runtime(topic)
    except (ServiceBusAuthenticationError, ServiceBusAuthorizationError):
        return None
    if not runtime.subscription_count:
        raise InvalidOperationError(f"{path!r} is a topic without a subscription, which drops messages: create one")
    return found


def usable_queue(queue: EntityProperties, *, requires_session: bool) -> QueueProperties:
    """Return an entity's description if it is a queue that keeps every message for the syphon.

    Raises:
        InvalidOperationError: `requires_session` is wrong, or the queue detects duplicates (messages for different
            entities may have equal ids) or forwards its messages.
    """
    if not isinstance(queue, QueueProperties):
        raise InvalidOperationError(f"{queue.name!r} is not a queue: delete it, or set the option primary_name")
    for name, found, wanted in (
        ("requires_session", bool(queue.requires_session), requires_session),
        ("requires_duplicate_detection", bool(queue.requires_duplicate_detection), False),
        ("forward_to", queue.forward_to or None, None),
    ):
        if found != wanted:
            raise InvalidOperationError(
                f"backlog queue {queue.name!r} has {name} {found!r}, not {wanted!r}: drain it, then delete it, so that "
                "the client creates it again"
            )
    return queue
