"""Checks, compares, splits and joins the paths of entities and of their sub-queues.

Laws (source: the service's rules for entity names):

1. A queue or topic path has at most 260 characters; a subscription or rule name at most 50, and no slash.
2. Segments are separated by one slash and consist of letters, digits, `.`, `-` and `_`. A segment of dots only is
   rejected, because a URL with it would be a relative path (our choice).
3. A backslash equals a slash, and paths are not case-sensitive: look entities up by `canonical(path)`.
4. `/Subscriptions/` marks the path of a subscription, so the path of a queue or topic must not contain it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias

from sbclient.arguments.kinds import shown_text
from sbclient.errors import InvalidOperationError

SubQueue: TypeAlias = Literal["deadletter", "transferdeadletter"]

MAX_PATH_LENGTH: Final = 260
MAX_NAME_LENGTH: Final = 50

_SUBSCRIPTIONS: Final = "/Subscriptions/"
_DEAD_LETTER: Final = "/$DeadLetterQueue"
_TRANSFER_DEAD_LETTER: Final = "/$Transfer/$DeadLetterQueue"

_PATHS_KEPT: Final = 4096
"""The size of the caches: every request needs the same forms of its path several times."""

_SEGMENT = r"(?!\.+(?:/|\Z))[A-Za-z0-9._-]+"


class _Form(NamedTuple):
    max_length: int
    pattern: re.Pattern[str]
    rule: str


_SEGMENT_RULE = "letters, digits, '.', '-' and '_', not dots alone"
_PATH = _Form(MAX_PATH_LENGTH, re.compile(f"{_SEGMENT}(?:/{_SEGMENT})*"), f"{_SEGMENT_RULE}, in segments joined by '/'")
_FORMS: Final = {
    "queue": _PATH,
    "topic": _PATH,
    "subscription": _Form(MAX_NAME_LENGTH, re.compile(_SEGMENT), f"{_SEGMENT_RULE}, without '/'"),
    "rule": _Form(
        MAX_NAME_LENGTH, re.compile(rf"\$?{_SEGMENT}"), f"{_SEGMENT_RULE}, without '/', perhaps after one '$'"
    ),
}


@lru_cache(_PATHS_KEPT)
def canonical(path: str) -> str:
    """Return the lookup key of a path: equal for two paths if and only if they name the same entity."""
    return path.replace("\\", "/").casefold()


def check_entity_path(path: str, kind: str = "queue") -> str:
    """Return the path with slashes for backslashes. The case of letters is kept.

    Args:
        path: a queue's or topic's path, or a subscription's or rule's name.
        kind: `"queue"`, `"topic"`, `"subscription"` or `"rule"`.

    Raises:
        InvalidOperationError: the path breaks one of the rules above. The text shows the path and the rule.
    """
    form = _FORMS[kind]
    if not isinstance(path, str):
        raise InvalidOperationError(f"a {type(path).__name__} cannot name a {kind}: give its name, a str")
    cleaned = path.replace("\\", "/")
    if len(cleaned) > form.max_length:
        raise InvalidOperationError(
            f"{kind} {shown_text(path[:40])}... has {len(path)} characters, {form.max_length} are allowed: choose a "
            "shorter name"
        )
    if form.pattern.fullmatch(cleaned) is None:
        raise InvalidOperationError(f"{shown_text(path)} cannot name a {kind}: use {form.rule}")
    if _SUBSCRIPTIONS.casefold() in cleaned.casefold():
        raise InvalidOperationError(f"{path!r} cannot name a {kind}: {_SUBSCRIPTIONS} is reserved for subscriptions")
    return cleaned


def is_entity_path(path: str) -> bool:
    """Return whether a queue or topic may have that path."""
    try:
        check_entity_path(path)
    except InvalidOperationError:
        return False
    return True


def subscription_path(topic: str, subscription: str) -> str:
    """Return the path to receive from a subscription: `prices/Subscriptions/eu`."""
    return f"{topic}{_SUBSCRIPTIONS}{subscription}"


def dead_letter_path(path: str) -> str:
    """Return the path of the dead-letter queue of a queue or subscription."""
    return path + _DEAD_LETTER


def transfer_dead_letter_path(path: str) -> str:
    """Return the path of the transfer dead-letter queue, which holds the messages that an entity could not forward."""
    return path + _TRANSFER_DEAD_LETTER


def entity_of(path: str) -> str:
    """Return the canonical path of the queue or topic that a path belongs to. The entity need not exist.

    Sub-queues, management nodes and subscriptions belong to their queue or topic; `q/x` does not belong to `q`, since
    it can only name another entity. Returns an empty string for the nodes and lists of the namespace.
    """
    segments = [segment for segment in canonical(path).split("/") if segment]
    for at, segment in enumerate(segments):
        if segment.startswith("$") or (0 < at < len(segments) - 1 and segment == "subscriptions"):
            return "/".join(segments[:at])
    return "/".join(segments)


@lru_cache(_PATHS_KEPT)
def split_sub_queue(path: str) -> tuple[str, SubQueue | None]:
    """Return the path of the entity, with slashes, and its sub-queue, or None for the entity itself."""
    cleaned = path.replace("\\", "/")
    lowered = cleaned.lower()
    if not lowered.endswith(_DEAD_LETTER.lower()):
        return cleaned, None
    if lowered.endswith(_TRANSFER_DEAD_LETTER.lower()):
        return cleaned[: -len(_TRANSFER_DEAD_LETTER)], "transferdeadletter"
    return cleaned[: -len(_DEAD_LETTER)], "deadletter"


def belongs_to(path: str, entity: str) -> bool:
    """Return whether a path names an entity, one of its sub-queues, or one of its subscriptions if it is a topic."""
    base, owner = canonical(split_sub_queue(path)[0]), canonical(entity)
    return base == owner or base.startswith(f"{owner}{_SUBSCRIPTIONS.casefold()}")


@lru_cache(_PATHS_KEPT)
def split_subscription(path: str) -> tuple[str, str] | None:
    """Return topic and subscription for the path of a subscription without a sub-queue; None for a queue or topic."""
    cleaned = path.replace("\\", "/")
    at = cleaned.lower().find(_SUBSCRIPTIONS.lower())
    topic, subscription = cleaned[:at], cleaned[at + len(_SUBSCRIPTIONS) :]
    return None if at < 1 or not subscription or "/" in subscription else (topic, subscription)
