"""Which texts name an entity, and how a path and its sub-queues are written.

Laws (source: the service's rules for entity names):

1. A queue or topic path has at most 260 characters; a subscription or rule name at most 50, and no slash.
2. Segments, with one slash between two, are letters, digits, `.`, `-` and `_`; a segment of dots alone is refused, for
   it would make the path a relative one wherever it stands in a URL (our choice).
3. A backslash is a slash, and letters' case does not distinguish entities: `canonical` is what to look up by.
4. `/Subscriptions/` inside a path leads to a subscription, so no queue or topic may contain it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias

from sbclient.errors import InvalidOperationError

SubQueue: TypeAlias = Literal["deadletter", "transferdeadletter"]

MAX_PATH_LENGTH: Final = 260
MAX_NAME_LENGTH: Final = 50

_SUBSCRIPTIONS: Final = "/Subscriptions/"
_DEAD_LETTER: Final = "/$DeadLetterQueue"
_TRANSFER_DEAD_LETTER: Final = "/$Transfer/$DeadLetterQueue"

_PATHS_KEPT: Final = 4096
"""The paths of which the forms are remembered: every request asks for them several times."""

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
    """The key of a path: equal for two paths exactly if they name the same entity."""
    return path.replace("\\", "/").casefold()


def check_entity_path(path: str, kind: str = "queue") -> str:
    """The path as it is to be used, with slashes for backslashes; letters keep their case.

    Args:
        path: a queue's or topic's path, or a subscription's or rule's name.
        kind: `"queue"`, `"topic"`, `"subscription"` or `"rule"`.

    Raises:
        InvalidOperationError: the text breaks a law above; its text names both.
    """
    form = _FORMS[kind]
    if not isinstance(path, str):
        raise InvalidOperationError(f"a {type(path).__name__} cannot name a {kind}: give its name, a str")
    cleaned = path.replace("\\", "/")
    if len(cleaned) > form.max_length:
        raise InvalidOperationError(
            f"{kind} {path[:40]!r}... has {len(path)} characters, {form.max_length} are allowed: choose a shorter name"
        )
    if form.pattern.fullmatch(cleaned) is None:
        raise InvalidOperationError(f"{path!r} cannot name a {kind}: it may hold {form.rule}")
    if _SUBSCRIPTIONS.casefold() in cleaned.casefold():
        raise InvalidOperationError(f"{path!r} cannot name a {kind}: {_SUBSCRIPTIONS} leads to a topic's subscriptions")
    return cleaned


def is_entity_path(path: str) -> bool:
    """Whether a queue or topic may have that path."""
    try:
        check_entity_path(path)
    except InvalidOperationError:
        return False
    return True


def subscription_path(topic: str, subscription: str) -> str:
    """The path to receive from a subscription: `prices/Subscriptions/eu`."""
    return f"{topic}{_SUBSCRIPTIONS}{subscription}"


def dead_letter_path(path: str) -> str:
    """The path of the dead-letter queue behind a queue or subscription."""
    return path + _DEAD_LETTER


def transfer_dead_letter_path(path: str) -> str:
    """The path of the queue behind an entity for what it could not forward."""
    return path + _TRANSFER_DEAD_LETTER


def entity_of(path: str) -> str:
    """The canonical path of the queue or topic that a path is, or is a part of, whether it exists or not.

    Parts are its sub-queues and nodes, and a topic's subscriptions with what is theirs; empty for the nodes and lists
    of the namespace. `q/x` is no part of `q`: it can only name another entity.
    """
    segments = [segment for segment in canonical(path).split("/") if segment]
    for at, segment in enumerate(segments):
        if segment.startswith("$") or (0 < at < len(segments) - 1 and segment == "subscriptions"):
            return "/".join(segments[:at])
    return "/".join(segments)


@lru_cache(_PATHS_KEPT)
def split_sub_queue(path: str) -> tuple[str, SubQueue | None]:
    """The entity's path, with slashes, and which of its sub-queues is meant; None = the entity itself."""
    cleaned = path.replace("\\", "/")
    lowered = cleaned.lower()
    if not lowered.endswith(_DEAD_LETTER.lower()):
        return cleaned, None
    if lowered.endswith(_TRANSFER_DEAD_LETTER.lower()):
        return cleaned[: -len(_TRANSFER_DEAD_LETTER)], "transferdeadletter"
    return cleaned[: -len(_DEAD_LETTER)], "deadletter"


def belongs_to(path: str, entity: str) -> bool:
    """Whether a path is that of an entity, of a queue behind it, or of a subscription of it if it is a topic."""
    asked, owner = canonical(split_sub_queue(path)[0]), canonical(entity)
    return asked == owner or asked.startswith(f"{owner}{_SUBSCRIPTIONS.casefold()}")


@lru_cache(_PATHS_KEPT)
def split_subscription(path: str) -> tuple[str, str] | None:
    """Topic and subscription of a subscription's path (without a sub-queue); None = a queue or topic."""
    cleaned = path.replace("\\", "/")
    at = cleaned.lower().find(_SUBSCRIPTIONS.lower())
    topic, subscription = cleaned[:at], cleaned[at + len(_SUBSCRIPTIONS) :]
    return None if at < 1 or not subscription or "/" in subscription else (topic, subscription)
