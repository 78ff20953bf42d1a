"""Makes sure that the backlog queues of a pair exist in its secondary namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Final, Literal

from sbclient.entities import UNLIMITED, EntityAddress, EntityKind, EntityProperties, QueueProperties
from sbclient.errors import (
    BacklogUnavailableError,
    InvalidOperationError,
    MessagingEntityAlreadyExistsError,
    ServiceBusError,
)
from sbclient.telemetry.log import get_logger
from sbclient.transport.base import Administration

log = get_logger(__name__)

MAX_DELIVERY_COUNT: Final = 2**31 - 1
MAX_SIZE_MEGABYTES: Final = 5120


def backlog_queue(name: str, *, requires_session: bool) -> QueueProperties:
    """The description of a new backlog queue.

    Documented: 5120 MB, no limit to deliveries, life or idleness, locks of 1 min, expired messages dead-lettered,
    batched operations; all else default, so not partitioned and without duplicate detection. Sessions are ours.
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
    mode: Literal["create", "verify", "none"],
    requires_session: bool = False,
) -> list[str]:
    """The usable ones of the queues named, in order; what is missing is made first.

    One look-up finds what exists; only what is missing is created, and losing a race for it is fine. Existing queues
    are used as they are, but for those that would lose what they are given. With `mode="none"` nothing is looked at.

    Raises:
        BacklogUnavailableError: none is usable, or with `mode="verify"` one is missing; it names every cause.
    """
    if mode == "none":
        return list(names)
    prefix = names[0].rpartition("/")[0] + "/"
    try:
        found = await administration.list(EntityKind.QUEUE, prefix=prefix)
    except ServiceBusError as error:
        raise BacklogUnavailableError(
            f"the backlog queues below {prefix!r} cannot be listed: this needs the Manage right on the secondary, "
            'or the option provision="none"',
            {prefix: error},
        ) from error
    existing = {queue.name.casefold(): queue for queue in found}
    missing = [name for name in names if name.casefold() not in existing]
    if missing and mode == "verify":
        raise BacklogUnavailableError(
            f'backlog queues are missing: {", ".join(missing)}. Create them, or pair with provision="create"'
        )
    causes: dict[str, Exception] = {}

    async def make(name: str) -> None:
        try:
            queue = existing.get(name.casefold()) or await _created(administration, name, requires_session)
            check_usable(queue, requires_session=requires_session)
        except ServiceBusError as error:
            log.warning("backlog.not_usable", "backlog queue {queue!r} is not usable: {error}", queue=name, error=error)
            causes[name] = error

    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(make(name))
    usable = [name for name in names if name not in causes]
    if not usable:
        raise BacklogUnavailableError(f"no backlog queue below {prefix!r} can be used or created", causes)
    return usable


async def _created(administration: Administration, name: str, requires_session: bool) -> EntityProperties:
    address = EntityAddress(EntityKind.QUEUE, (name,))
    try:
        return await administration.create(address, backlog_queue(name, requires_session=requires_session))
    except MessagingEntityAlreadyExistsError:
        return await administration.get(address)  # another client was faster, or it is no queue at all


def check_usable(queue: EntityProperties, *, requires_session: bool) -> None:
    """Refuse an existing queue that would not keep every message for the syphon.

    Raises:
        InvalidOperationError: it has sessions where they are not wanted or none where they are, detects duplicates (ids
            of messages for different entities may be equal), or forwards what it is given.
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
                f"backlog queue {queue.name!r} has {name} {found!r}, not {wanted!r}: drain and delete it, so that it "
                "is made anew"
            )
