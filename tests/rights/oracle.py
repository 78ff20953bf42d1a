"""The expected results according to the service's documents, independent of the broker's code.

Sources, unless stated otherwise: "Service Bus access control with shared access signatures", its table of the rights
required, and "AMQP request-response operations".

1. Manage includes Send and Listen.
2. A token covers its resource and everything below it. Below an entity are its parts: sub-queues, nodes, subscriptions
   and their rules. A queue whose path starts with the path of another queue is a separate entity (our choice: the
   documents describe no entity inside another). Over HTTP the address of a request is below its entity.
3. A rule of an entity signs for that entity only, a rule of the namespace for everything in it.
4. An invalid token is rejected when it is put (401), for any path. A valid token without the needed right is accepted,
   and the operations that need the right are rejected.
5. Rules of subscriptions are changed over AMQP with Listen, over HTTP with Manage. Source: the SDKs' `RuleManager`.
6. Scheduling stores a message and needs Send. The table says Listen; here Listen alone does not allow it.
7. A rejection is `amqp:unauthorized-access` on a link and in a reply, and 401 over HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from sbclient.entities import AccessRights
from tests.rights.credentials import EVERY_RIGHT, Flaw, Scope
from tests.rights.world import SUBSCRIPTIONS, TOP_ENTITIES, TOPIC

UNAUTHORIZED: Final = "amqp:unauthorized-access"
ENDED: Final = "amqp:link:detach-forced"
"""The condition with which a link ends whose token does not cover it any more."""


class Claim(StrEnum):
    """The claim that an operation needs."""

    MANAGE = "Manage"
    SEND = "Send"
    LISTEN = "Listen"
    ANY = "any right"
    NOTHING = "nothing"


def granted(rights: frozenset[AccessRights]) -> frozenset[AccessRights]:
    """Return the claims that the rights of a rule grant."""
    return EVERY_RIGHT if AccessRights.MANAGE in rights else rights


def _segments(path: str) -> list[str]:
    return [part.lower() for part in path.split("/") if part]


def _entity_of(path: str) -> list[str]:
    """Return the segments of the queue or topic of a path, which need not exist."""
    segments = _segments(path)
    for at, segment in enumerate(segments):
        is_part = segment == "messages" and segments not in _ENTITIES
        if segment.startswith("$") or (segment == "subscriptions" and 0 < at < len(segments) - 1) or (at and is_part):
            return segments[:at]
    return segments


def _canonical(path: str) -> str:
    return "/".join(_segments(path))


_ENTITIES: Final = [_segments(path) for path in TOP_ENTITIES]
_PATHS: Final = {
    "",
    *map(_canonical, TOP_ENTITIES),
    *(_canonical(f"{TOPIC}/subscriptions/{name}") for name in SUBSCRIPTIONS),
}


def proves(scope: Scope) -> bool:
    """Whether the signer may sign for the resource."""
    return not scope.home or _entity_of(scope.path) == _segments(scope.home)


def covers(scope: Scope, path: str) -> bool:
    """Whether a validly signed token for a resource covers a path."""
    resource, wanted = _segments(scope.path), _segments(path)
    if wanted[: len(resource)] != resource:
        return False
    of_entity = _entity_of(scope.path)
    return of_entity not in _ENTITIES or _entity_of(path) == of_entity


def is_accepted(scope: Scope, flaw: Flaw, path: str) -> bool:
    """Whether a token is accepted for a path."""
    return flaw.is_open or (flaw.is_good and proves(scope) and covers(scope, path))


def exists(path: str) -> bool:
    """Whether a token may be put for a path: of the namespace, or of an entity, its parts or nodes."""
    base = _canonical(path).removesuffix("/$management")
    above = base.removesuffix("/$deadletterqueue")
    return base in _PATHS or (above in _PATHS and above not in ("", TOPIC))


def status_of_put(scope: Scope, flaw: Flaw, path: str) -> int:
    """Return the status of putting a token for a path."""
    if not is_accepted(scope, flaw, path):
        return 401
    return 202 if exists(path) else 404


def allows(rights: frozenset[AccessRights], scope: Scope, flaw: Flaw, paths: Sequence[str], claim: Claim) -> bool:
    """Whether an operation is allowed that needs a claim on each of some paths.

    The client has put the token for each of them, and for the token's own resource.
    """
    if claim is Claim.NOTHING or flaw.is_open:
        return True
    if not all(is_accepted(scope, flaw, path) for path in paths):
        return False
    held = granted(rights)
    return bool(held) if claim is Claim.ANY else AccessRights(claim.value) in held
