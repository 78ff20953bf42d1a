"""Checks of a pair that move no message. Each returns findings: what is wrong, and what to do about it.

`sbclient doctor`, a dry run, the start of a worker, `/readyz` and `sbclient backlog` show these findings; none has
words of its own for the same trouble.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sbclient import clock
from sbclient.backlog import UNKNOWN_DESTINATION, Backlog, BacklogQueueView, DestinationView, together
from sbclient.entities import EntityAddress, EntityKind, QueueProperties
from sbclient.errors import (
    BacklogUnavailableError,
    InvalidOperationError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)
from sbclient.pairing.pair import Pair
from sbclient.rules.connection_string import ConnectionString, parse_connection_string
from sbclient.rules.syphon_reason import SyphonReason

CHECK_S: Final = 15.0
"""Longest duration of one check."""

CONCURRENT_CHECKS: Final = 16
"""Over azure-servicebus each check takes a connection, which takes a second to close."""

PROBED: Final = 200
"""Limit of destinations that are probed."""

ACCEPTS: Final = "accepts messages"

PRIMARY: Final = "primary"
SECONDARY: Final = "secondary"
BACKLOG: Final = "backlog"

ENTITY_MISSING: Final = "entity_missing"
ENTITY_FAILS: Final = "entity_fails"
QUEUES_MISSING: Final = "queues_missing"
QUEUES_UNAVAILABLE: Final = "queues_unavailable"
QUEUE_UNUSABLE: Final = "queue_unusable"
DESTINATION_REFUSES: Final = "destination_refuses"
MESSAGES_REJECTED: Final = "messages_rejected"

MISSING_ENTITY: Final = "sbclient-syphon-probe"
"""Probed if no entity of the primary is known: the answer that it does not exist proves that the namespace works."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Attributes:
        about: `PRIMARY`, `SECONDARY`, `BACKLOG` or another part of the pair.
        text: one sentence.
        code: a name of the problem for programs; one of few. Empty if nothing is wrong.
        advice: what to do; empty if nothing is wrong, or there is nothing to do.
        error: the error that the namespace returned; None = none.
        names: the entities that it is about, if it is about some of many.
    """

    about: str
    text: str
    code: str = ""
    advice: str = ""
    error: ServiceBusError | None = None
    names: tuple[str, ...] = ()

    def content(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "about": self.about,
            "code": self.code or None,
            "text": self.text,
            "advice": self.advice or None,
            "error": None if self.error is None else type(self.error).__name__,
        }

    def as_error(self) -> ServiceBusError:
        """Return an error of the class that the namespace returned, with the text and the advice."""
        kind = InvalidOperationError if self.error is None else type(self.error)
        return kind(f"{self.text}; {self.advice}" if self.advice else self.text)


@dataclass(frozen=True, slots=True)
class Side:
    """One namespace of a pair, as findings name it.

    Attributes:
        side: `PRIMARY` or `SECONDARY`.
        namespace: its name.
        string: its connection string; None = unknown.
        origin: where the connection string comes from; empty = unknown.
    """

    side: str
    namespace: str
    string: ConnectionString | None = None
    origin: str = ""

    def __str__(self) -> str:
        """Return the words for it in a sentence."""
        return f"the {self.side} {self.namespace}"

    @property
    def where(self) -> str:
        """The words for its connection string in an advice."""
        known = [] if self.string is None else [self.string.key_name or "signature"]
        known += [self.origin] if self.origin else []
        return f"the connection string of the {self.side}" + (f" ({', '.join(known)})" if known else "")


def sides_of(pair: Pair, primary: str, secondary: str, origins: Mapping[str, str]) -> tuple[Side, Side]:
    """Return the primary and the secondary of a pair.

    Args:
        primary, secondary: connection strings; empty = unknown.
        origins: where each is from, by side.
    """
    state = pair.state
    namespaces, texts = (state.primary.namespace, state.secondary.namespace), (primary, secondary)
    first, second = (
        Side(side, namespace, parse_connection_string(text) if text else None, origins.get(side, ""))
        for side, namespace, text in zip((PRIMARY, SECONDARY), namespaces, texts, strict=True)
    )
    return first, second


def unreachable_code(side: str, kind: type[ServiceBusError]) -> str:
    """Return the code of a namespace that `is_unreachable` by an error of this class."""
    return f"{side}_{'rejects_credential' if is_refused_kind(kind) else 'unreachable'}"


def unreachable(side: Side, error: ServiceBusError, right: str) -> Finding:
    """Return the finding for an error of a namespace that `is_unreachable`.

    Args:
        right: that the request needed, such as `Listen on 'q'`.
    """
    text, advice = _unreachable(side, error, right)
    return Finding(side.side, text, unreachable_code(side.side, type(error)), advice, error)


def _unreachable(side: Side, error: ServiceBusError, right: str) -> tuple[str, str]:
    from sbclient.transport.amqp.socket import ConnectStep, failed_step  # commands start faster without it

    name, reason = str(side), error.message
    host = side.namespace if side.string is None else side.string.host
    if isinstance(error, ServiceBusAuthenticationError):
        return (
            f"{name} rejects the credential: {reason}",
            f"put the current key into {side.where}; a worker and an application with `credential_file` read it again "
            "after `kill -HUP`, others need a restart",
        )
    if isinstance(error, ServiceBusAuthorizationError):
        named, _, entity = right.partition(" ")
        some = "" if entity else "; if it has this right for some entities only, set probe_entity to one of them"
        return (
            f"{name} does not grant the right {right}: {reason}",
            f"grant {named} to the key in {side.where}, or use another key{some}",
        )
    match failed_step(error):
        case ConnectStep.PROXY:
            return (
                f"{name} cannot be reached through the HTTP proxy: {reason}",
                "check the address of the proxy (--http-proxy, SERVICEBUS_HTTP_PROXY, option http_proxy) and that "
                "it permits CONNECT to the namespace",
            )
        case ConnectStep.NAME:
            return (
                f"the host name of {name} cannot be resolved: {reason}",
                f"correct the host name in {side.where}, or repair DNS on this machine: `getent hosts {host}`",
            )
        case ConnectStep.TCP:
            return (
                f"{name} cannot be reached over TCP: {reason}",
                f"if it is an outage, wait: senders divert and a syphon drains afterwards; otherwise open the "
                f"firewall to {host}, ports 5671 and 443",
            )
        case ConnectStep.TLS:
            return (
                f"TLS with {name} fails: {reason}",
                "install the authority that signed its certificate, or remove the device that intercepts TLS",
            )
    what = "does not answer" if isinstance(error, OperationTimeoutError) else "fails"
    return (
        f"{name} accepts connections but {what}: {type(error).__name__}: {reason}",
        "if it is an outage, wait: senders divert and a syphon drains afterwards; see the status of the service",
    )


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


def failing_entity(side: Side, path: str, error: ServiceBusError) -> Finding:
    """Return the finding for an entity of a namespace that is reachable."""
    if isinstance(error, MessagingEntityNotFoundError):
        text = f"the entity {path!r} does not exist in {side}"
        advice = f"create it (`sbclient admin create queue {path!r}`), or correct its name"
        return Finding(side.side, text, ENTITY_MISSING, advice, error)
    text = f"{path!r} in {side} answers {type(error).__name__}: {error.message}"
    advice = "look at the state of this entity in the portal or with `sbclient admin show`"
    return Finding(side.side, text, ENTITY_FAILS, advice, error)


async def check_primary(pair: Pair, side: Side, path: str | None) -> list[Finding]:
    """Return what is wrong with the primary, or with one entity of it.

    Args:
        path: of the entity; None = unknown.
    """
    try:
        await probe_primary(pair, path)
    except ServiceBusError as error:
        if is_unreachable(error):
            return [unreachable(side, error, f"Send on {path!r}" if path else "Send")]
        if path:
            return [failing_entity(side, path, error)]
    return []


async def check_queues(pair: Pair, side: Side, queues: Sequence[str]) -> list[Finding]:
    """Probe every backlog queue and return what is wrong, what concerns all of them first."""
    errors = await _errors_of(partial(probe_queue, pair), queues)
    for queue, error in errors.items():
        if is_refused(error):
            return [unreachable(side, error, f"Listen on {queue!r}")]
    missing = tuple(queue for queue, error in errors.items() if isinstance(error, MessagingEntityNotFoundError))
    unusable = {queue: error for queue, error in errors.items() if isinstance(error, InvalidOperationError)}
    failing = {queue: error for queue, error in errors.items() if queue not in missing and queue not in unusable}
    advice = "drain it, then delete it, so that a client creates it again"
    findings = [
        Finding(BACKLOG, f"backlog queue {queue!r} cannot be read: {error.message}", QUEUE_UNUSABLE, advice, error)
        for queue, error in unusable.items()
    ]
    if missing:
        findings.append(queues_missing(side.namespace, missing, len(queues)))
    if failing and len(errors) == len(queues) and is_unreachable(error := next(iter(failing.values()))):
        return [unreachable(side, error, "Listen"), *findings]
    if failing:
        named = ", ".join(f"{queue} ({type(error).__name__}: {error.message})" for queue, error in failing.items())
        text, advice = f"backlog queues are unavailable: {named}", "look at them with `sbclient admin show`"
        first = next(iter(failing.values()))
        findings.append(Finding(BACKLOG, text, QUEUES_UNAVAILABLE, advice, first, tuple(failing)))
    return findings


def queues_missing(namespace: str, missing: Sequence[str], count: int) -> Finding:
    """Return the finding for backlog queues, of this number, that do not exist."""
    named = missing[0] if len(missing) == 1 else f"{missing[0]} … {missing[-1]}"
    return Finding(
        BACKLOG,
        f"{len(missing)} of {count} backlog queues do not exist in {namespace}: {named}",
        QUEUES_MISSING,
        "set primary_name and backlog_queue_count (--primary-name, --backlog-queue-count) to the values of the "
        "senders; the first sender that pairs, or `sbclient syphon --provision`, creates the queues",
        MessagingEntityNotFoundError(named),
        tuple(missing),
    )


def ending(findings: Iterable[Finding], queues: Sequence[str], *, are_chosen: bool) -> Finding | None:
    """Return the first finding with which a worker cannot drain; None = there is none.

    Args:
        queues: names of the backlog queues that it would drain.
        are_chosen: whether the user chose these queues, so that each must exist.
    """
    for finding in findings:
        is_of_all = len(finding.names) == len(queues)
        if {
            QUEUE_UNUSABLE: True,
            QUEUES_MISSING: is_of_all or are_chosen,
            QUEUES_UNAVAILABLE: is_of_all,
        }.get(finding.code, finding.error is not None and is_unreachable(finding.error)):
            return finding
    return None


async def surveyed(pair: Pair, backlog: Backlog, side: Side, limit: int) -> list[BacklogQueueView]:
    """Survey the backlog.

    Args:
        side: the secondary.
        limit: as for `Backlog.survey`.

    Raises:
        ServiceBusError: the secondary or a backlog queue cannot be used, or no backlog queue exists.
    """
    failed: ServiceBusError | None = None
    views: list[BacklogQueueView] = []
    try:
        views = await backlog.survey(limit=limit)
    except ServiceBusError as error:
        failed = error
    if not any(view.is_present for view in views):
        found = await check_queues(pair, side, backlog.queues)
        first = ending(found, backlog.queues, are_chosen=False) or next(iter(found), None)
        if first is not None:
            raise first.as_error() from failed
        if failed is not None:
            raise failed
    return views


async def reject_without_sessions(pair: Pair, views: Sequence[BacklogQueueView]) -> None:
    """Count as rejected the messages without a session id for queues of the primary that require one.

    Without Manage on the primary it is not known which do.
    """

    async def check(path: str) -> None:
        with suppress(TimeoutError):
            async with clock.timeout(CHECK_S):
                queue = await pair.state.primary.administration.get(EntityAddress(EntityKind.QUEUE, (path,)))
            if isinstance(queue, QueueProperties) and queue.requires_session:
                for view in views:
                    view.reject_without_session(path, SyphonReason.REFUSED)

    paths = [path for path, part in together(views).by_destination.items() if part.without_session]
    await _errors_of(check, [path for path in paths[:PROBED] if path != UNKNOWN_DESTINATION])


def refusing_destination(path: str, answer: str, part: DestinationView | None = None) -> Finding:
    """Return the finding for a destination that does not accept messages.

    Args:
        answer: class and text of its error.
        part: the messages for it; None = unknown.
    """
    state, advice = "does not accept messages", "repair it"
    if answer.startswith(ServiceBusQuotaExceededError.__name__):
        state, advice = "is full or has reached another quota", "receive from it, or raise the quota"
    amount = "" if part is None else f": {part.waiting:,} waiting and {part.parked:,} parked for {path!r}"
    advice += f"; a syphon tries {path!r} again within a minute"
    return Finding(BACKLOG, f"{path!r} {state} ({answer}){amount}", DESTINATION_REFUSES, advice)


def rejected_messages(parts: Mapping[str, DestinationView]) -> list[Finding]:
    """Return a finding for the messages of each destination that a syphon will dead-letter, by reason."""
    return [
        Finding(
            BACKLOG,
            f"{number:,} messages for {path!r} will be dead-lettered by the syphon: {reason}",
            MESSAGES_REJECTED,
            "see the dead-letter reasons in docs/pairing.md",
        )
        for path, part in parts.items()
        for reason, number in part.rejected.items()
    ]


async def destination_answers(pair: Pair, paths: Sequence[str]) -> dict[str, str]:
    """Open a link to each destination in the primary; return `ACCEPTS` or the error, by path."""
    errors = await _errors_of(partial(probe_primary, pair), [path for path in paths if path != UNKNOWN_DESTINATION])
    answers = {path: f"{type(error).__name__}: {error.message}" for path, error in errors.items()}
    answers[UNKNOWN_DESTINATION] = "the destinations can be read only with a lock on the session"
    return {path: answers.get(path, ACCEPTS) for path in paths}


async def _errors_of(check: Callable[[str], Awaitable[object]], names: Sequence[str]) -> dict[str, ServiceBusError]:
    """Await a check of each name, several at a time, and return the errors by name."""
    slots = asyncio.Semaphore(CONCURRENT_CHECKS)
    errors: dict[str, ServiceBusError] = {}

    async def ask(name: str) -> None:
        async with slots:
            try:
                await check(name)
            except ServiceBusError as error:
                errors[name] = error

    await asyncio.gather(*map(ask, names))
    return {name: errors[name] for name in names if name in errors}
