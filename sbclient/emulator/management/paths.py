"""The paths of management requests, which name an entity or a list of entities.

Laws (source: the service's documents and recorded answers, unless said otherwise):

1. The slashes in a name are written `%2F`. A path with plain slashes is accepted if it is unambiguous (our choice).
2. Keywords such as `subscriptions` are case-insensitive.
3. A page has at most 100 entities. `$skip` and `$top`, from 0 to 2,147,483,647, select the next one. A page of none is
   followed by itself (seen).
4. An id and a link repeat the path and the query of the request. The link to the next page encodes the `$` of `$skip`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

from sbclient.broker.directory import path_of
from sbclient.emulator.net.http_messages import Request
from sbclient.emulator.sas import Grant
from sbclient.entities import AccessRights, EntityAddress, EntityKind
from sbclient.errors import InvalidOperationError, ServiceBusAuthorizationError

MAX_PAGE: Final = 100
MAX_BOUND: Final = 2**31 - 1

_VERSION = re.compile(r"\d{4}-\d{2}", re.ASCII)
_LISTS: Final = {"queues": EntityKind.QUEUE, "topics": EntityKind.TOPIC}


class MethodError(InvalidOperationError):
    """The resource does not support the HTTP method."""


class VerbError(InvalidOperationError):
    """The path belongs to an entity that has no such part in the management API, as its dead-letter queue."""


class BoundsError(InvalidOperationError):
    """`$skip` or `$top` is invalid."""


class RightError(ServiceBusAuthorizationError):
    """The token lacks the right to manage an entity; the text begins with the words of the service.

    Attributes:
        words: of the service.
    """

    def __init__(self, words: str, more: str) -> None:
        super().__init__(f"{words}. {more}")
        self.words = words


class Target(NamedTuple):
    """The target of a request.

    Attributes:
        names: of the entity, or of the parent of a list.
        kind: None = a queue or a topic, whichever exists.
        is_list: whether the target is the list of all entities of that kind below.
    """

    names: tuple[str, ...]
    kind: EntityKind | None
    is_list: bool = False

    def below(self, name: str) -> Target:
        """One entity of a list."""
        return Target((*self.names, name), self.kind)


def target_of(segments: Sequence[str]) -> Target:
    """The target that the path of a request names.

    Raises:
        InvalidOperationError: the path has no valid form.
    """
    if not segments:
        raise InvalidOperationError('BR0012The specified name ("") is not valid.\r\nParameter name: entityName')
    words = [segment.casefold() for segment in segments]
    if "subscriptions" in words[2:] and words[1] != "subscriptions":  # of a topic whose name has plain slashes
        at = words.index("subscriptions", 2)
        segments = ("/".join(segments[:at]), *segments[at:])
        words = [segment.casefold() for segment in segments]
    match len(segments):
        case 2 if words[0] == "$resources" and words[1] in _LISTS:
            return Target((), _LISTS[words[1]], is_list=True)
        case 2 if words[1] == "subscriptions":
            return Target((segments[0],), EntityKind.SUBSCRIPTION, is_list=True)
        case 3 if words[1] == "subscriptions":
            return Target((segments[0], segments[2]), EntityKind.SUBSCRIPTION)
        case 4 if words[1::2] == ["subscriptions", "rules"]:
            return Target((segments[0], segments[2]), EntityKind.RULE, is_list=True)
        case 5 if words[1::2] == ["subscriptions", "rules"]:
            return Target((segments[0], segments[2], segments[4]), EntityKind.RULE)
        case count if count and words[0] and not words[0].startswith("$") and "subscriptions" not in words:
            return Target(("/".join(segments),), None)
    raise InvalidOperationError(
        f"SubCode=40000. /{'/'.join(segments)[:300]} names no entity: "
        "use /queue, /topic/subscriptions/name/rules/name or /$Resources/queues"
    )


def scopes_of(target: Target) -> tuple[str, ...]:
    """The paths of which a token must cover one: that of the entity; for a list that of its parent, or its own.

    A token for a rule may cover its subscription, or the address of the rule itself.
    """
    scope = "".join(target.names[:1])
    if len(target.names) > 1:
        scope = path_of(EntityAddress(EntityKind.SUBSCRIPTION, target.names[:2]))
    if target.kind is not None and target.is_list:
        return scope, f"{scope or '$Resources'}/{title_of(target.kind)}"
    if target.kind is EntityKind.RULE:
        return scope, f"{scope}/{title_of(target.kind)}/{target.names[2]}"
    return (scope,)


def check_right(grant: Grant, target: Target, method: str) -> None:
    """Check the right to manage the target of a request.

    Raises:
        RightError: the grant lacks it.
    """
    scopes = scopes_of(target)
    covered = next((scope for scope in scopes if grant.covers(scope)), scopes[0])
    try:
        grant.check(covered, AccessRights.MANAGE)
    except ServiceBusAuthorizationError as error:
        raise RightError(_words_of(target, method), error.message) from error


def _words_of(target: Target, method: str) -> str:
    kind = target.kind
    if kind in (EntityKind.SUBSCRIPTION, EntityKind.RULE):
        doing = {"PUT": "CreateOrUpdate", "DELETE": "Delete"}.get(method, "Enumerate" if target.is_list else "Get")
        name = title_of(kind) if target.is_list else kind.capitalize()
        return f"SubCode=40100: Unauthorized : Unauthorized access for '{doing}{name}' operation"
    if method in ("PUT", "DELETE"):
        return f"Authorization failed for specified action: Manage,Entity{'Write' if method == 'PUT' else 'Delete'}"
    return "Manage,EntityRead claims required for this operation"


def title_of(kind: EntityKind) -> str:
    """The heading of a list."""
    return f"{kind.capitalize()}s"


def url(request: Request, *segments: str, scheme: str = "https", query: str | None = None) -> str:
    """A URL with the host name that the client uses for this server.

    Args:
        query: instead of that of the request.
    """
    path = "/".join(quote(segment, safe="$/") for segment in segments)
    query = request.raw_query if query is None else query
    return f"{scheme}://{request.authority}/{path}{query and '?'}{query}"


def version_query(request: Request) -> str:
    """The query of the address of an entity in a list."""
    return f"api-version={request.query['api-version']}" if "api-version" in request.query else ""


def next_url(request: Request, skip: int) -> str:
    """The URL of the page of a list that begins with that entity."""
    query = dict(parse_qsl(request.raw_query, keep_blank_values=True)) | {"$skip": str(skip)}
    return url(request, *request.segments, query=urlencode(query))


def check_method(request: Request, *allowed: str) -> None:
    """
    Raises:
        MethodError: the request has another method.
    """
    if request.method not in allowed:
        raise MethodError(
            f"{request.method[:16]} is not allowed for /{'/'.join(request.segments)[:300]}: use {' or '.join(allowed)}"
        )


def version_of(request: Request) -> str:
    """The api-version of a request; empty = the oldest, without partitioning.

    Raises:
        InvalidOperationError: it is not a version.
    """
    version = request.query.get("api-version", "")
    if version and _VERSION.fullmatch(version) is None:
        raise InvalidOperationError(f"SubCode=40000. api-version is {version[:64]!r}: write it as 2021-05")
    return version


def bounds_of(request: Request) -> tuple[int, int]:
    """How many entities to skip, and how many a page has.

    Raises:
        BoundsError: one of them is not a number, negative, or too large.
    """
    bounds = []
    for name, default in (("$skip", 0), ("$top", MAX_PAGE)):
        text = request.query.get(name, str(default))
        if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= MAX_BOUND):
            raise BoundsError(f"{name} is {text[:64]!r}: it should be non-negative integer, at most {MAX_BOUND}")
        bounds.append(int(text))
    return bounds[0], min(bounds[1], MAX_PAGE)
