"""Finds out why messages do not move between the namespaces of a pair, and what to do about it.

The checks are those of a sender and a syphon, over the same transport. They send and receive no message.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Any, Final
from urllib.request import Request

from sbclient import clock
from sbclient.backlog import Backlog, BacklogQueueView, DestinationView, together
from sbclient.client.client import ServiceBusClient
from sbclient.entities import EntityAddress, EntityKind, EntityProperties, QueueProperties, TopicProperties
from sbclient.errors import (
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from sbclient.pairing.pair import Pair
from sbclient.pairing.provisioning import backlog_queue, keeping_entity, usable_queue
from sbclient.rules.connection_string import ConnectionString, parse_connection_string
from sbclient.rules.http_proxy import http_proxy_of
from sbclient.settings.durations import duration_text
from sbclient.transport.amqp.socket import ConnectStep, failed_step
from sbclient.transport.base import Transport
from sbclient.worker.http_client import answer_to
from sbclient.worker.inspection import (
    ACCEPTS,
    BACKLOG,
    CHECK_S,
    ENTITY_FAILS,
    ENTITY_MISSING,
    PRIMARY,
    PROBED,
    QUEUE_UNUSABLE,
    QUEUES_UNAVAILABLE,
    SECONDARY,
    Finding,
    check_primary,
    check_queues,
    destination_answers,
    failing_entity,
    is_refused,
    is_unreachable,
    refusing_destination,
    reject_without_sessions,
    rejected_messages,
    sides_of,
    unreachable,
)
from sbclient.worker.readiness import SYPHON

CLOCK: Final = "clock"

NO_SYPHON: Final = "no_syphon"

LOOKED_AT: Final = 10_000
"""Limit of messages that are peeked in each backlog queue."""

HTTP_S: Final = 5.0
MAX_SKEW_S: Final = 30.0
"""A larger difference of the clocks shifts times to live and scheduled messages noticeably."""

_MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings, problems in order of importance before the facts of the same part.

    Attributes:
        primary, secondary: names of the namespaces.
    """

    primary: str
    secondary: str
    findings: tuple[Finding, ...]

    @property
    def problems(self) -> list[Finding]:
        """What is wrong, the most important problem first."""
        return [finding for finding in self.findings if finding.code]

    @property
    def cause(self) -> str:
        """One sentence: the most important problem."""
        return self.problems[0].text if self.problems else "no problem found"

    def content(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "cause": self.cause,
            "primary": self.primary,
            "secondary": self.secondary,
            "findings": [finding.content() for finding in self.findings],
        }

    def lines(self) -> list[str]:
        """Return a page of text: the cause, the findings, and what to do."""
        lines = [self.cause[:1].upper() + self.cause[1:] + ".", ""]
        names = {PRIMARY: self.primary, SECONDARY: self.secondary}
        for about in (PRIMARY, SECONDARY, BACKLOG, SYPHON, CLOCK):
            found = [finding for finding in self.findings if finding.about == about]
            if about in names:
                lines.append(f"{about:10} {names[about]}")
            lines += [
                f"{about if not at and about not in names else '':10} {'! ' if one.code else '  '}{one.text}"
                for at, one in enumerate(found)
            ]
        if advice := list(dict.fromkeys(problem.advice for problem in self.problems if problem.advice)):
            lines += ["", "next", *(f"  {number}. {text}" for number, text in enumerate(advice, start=1))]
        return lines


class Doctor:
    """Examines one pair.

    Attributes:
        sides: the primary and the secondary, by name.

    Args:
        client: open.
        primary, secondary: the connection strings of the pair.
        entity: path of an entity of the primary to probe; None = the destinations in the backlog.
        worker: address of the HTTP port of a worker, such as `http://127.0.0.1:9464`; None = unknown.
        is_sender: whether the credentials are those of an application that sends, which needs Send on the secondary.
        http_proxy: the option of the client.
        origins: where each connection string comes from, by side.
    """

    def __init__(
        self,
        client: ServiceBusClient,
        primary: str,
        secondary: str,
        *,
        entity: str | None = None,
        worker: str | None = None,
        is_sender: bool = False,
        http_proxy: dict[str, Any] | None = None,
        origins: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._pair: Pair = client.pair
        self._strings = {PRIMARY: parse_connection_string(primary), SECONDARY: parse_connection_string(secondary)}
        self._entity = entity or self._strings[PRIMARY].entity_path
        self._worker = worker
        self._is_sender = is_sender
        self._proxy = http_proxy
        sides = sides_of(self._pair, primary, secondary, origins)
        self.sides = dict(zip((PRIMARY, SECONDARY), sides, strict=True))

    async def examine(self, *, sample_s: float) -> Diagnosis:
        """Check everything.

        Args:
            sample_s: time between two surveys of the backlog, which show whether messages leave it; 0 = one survey.
        """
        backlog = Backlog(self._pair)
        try:
            views = await backlog.survey(limit=LOOKED_AT)
            before, has_moved = together(views), None
            if before.depth and sample_s:
                await clock.sleep(sample_s)
                views = await backlog.survey(limit=LOOKED_AT)
                has_moved = together(views).depth < before.depth
        except ServiceBusError:  # the checks of the secondary find the same error
            views, has_moved = [], None
        return await self.explain(views, has_moved=has_moved)

    async def explain(self, views: Sequence[BacklogQueueView], *, has_moved: bool | None) -> Diagnosis:
        """Check everything but the number of messages.

        Args:
            views: of a survey; empty if the backlog cannot be read.
            has_moved: whether messages left the backlog lately; None = unknown.
        """
        total = together(views)
        paths = list(total.destinations)
        primary, secondary, worker, skew = await asyncio.gather(
            self._primary(paths), self._secondary(), self._ask_worker(), self._skew()
        )
        findings = [*primary, *secondary]
        if views and not any(one.about == SECONDARY and one.error is not None for one in secondary):
            findings += await self._properties(views)
        if not any(one.error is not None for one in primary):
            findings += await self._destinations(views, worker)
        findings += await self._elsewhere(paths)
        is_primary_well = not any(one.code for one in findings)
        findings += _waiting(total) if views else [Finding(BACKLOG, "unknown, because it cannot be read")]
        findings += self._syphon(total, worker, has_moved=has_moved, is_primary_well=is_primary_well)
        findings += self._clocks(skew)
        state = self._pair.state
        return Diagnosis(state.primary.namespace, state.secondary.namespace, tuple(findings))

    # -- the namespaces ------------------------------------------------------------------------------------------

    async def _primary(self, paths: Sequence[str]) -> list[Finding]:
        path = self._entity or next(iter(paths), None)
        found = await check_primary(self._pair, self.sides[PRIMARY], path)
        if found and path in paths and found[0].code in (ENTITY_MISSING, ENTITY_FAILS):
            found = []  # the destinations are checked one by one
        return self._with_steps(PRIMARY, found, f"Send on {path!r}" if path else "Send")

    async def _secondary(self) -> list[Finding]:
        state, side = self._pair.state, self.sides[SECONDARY]
        queues = [*state.backlog_queues, *state.session_backlog_queues]
        found = await check_queues(self._pair, side, queues)
        errors = [one.error for one in found if one.about == SECONDARY and one.error is not None]
        if self._is_sender and all(is_refused(error) or not is_unreachable(error) for error in errors):
            link = state.secondary.open_sender(queues[0])
            try:
                await link.open(timeout_s=CHECK_S)
            except ServiceBusError as error:
                right = f"Send on {queues[0]!r}"
                one = (
                    unreachable(side, error, right) if is_unreachable(error) else failing_entity(side, queues[0], error)
                )
                if one.code != ENTITY_MISSING and one.text not in [other.text for other in found]:
                    found.append(one)
            finally:
                await link.close()
        return self._with_steps(SECONDARY, found, f"Listen on {queues[0]!r}")

    def _with_steps(self, side: str, found: list[Finding], right: str) -> list[Finding]:
        """Add how far a connection to a namespace went."""
        errors = [one.error for one in found if one.about == side and one.error is not None]
        for error in errors:
            if is_unreachable(error):
                return [*found, Finding(side, self._steps(side, error))]
        if any(isinstance(one.error, MessagingEntityNotFoundError) for one in found):
            return [Finding(side, self._steps(side, None)), *found]  # without the entity no right is known
        return [Finding(side, f"{self._steps(side, None)}, {right} granted"), *found]

    def _steps(self, side: str, error: ServiceBusError | None) -> str:
        """Return the steps up to the one that failed: `name ok, TCP refused, TLS not tried`."""
        string = self._strings[side]
        steps: list[str] = []
        if not string.is_memory:
            tls = [] if string.use_development_emulator else [ConnectStep.TLS]
            steps += [*([ConnectStep.PROXY] if self._proxy else []), ConnectStep.NAME, ConnectStep.TCP, *tls]
            steps.append(ConnectStep.AMQP)
        steps += ["credential", "right"]
        if error is None:
            return ", ".join(f"{step} ok" for step in steps[:-1])
        if isinstance(error, ServiceBusAuthorizationError):
            failed = "right"
        elif isinstance(error, ServiceBusAuthenticationError):
            failed = "credential"
        else:
            failed = failed_step(error) if failed_step(error) in steps else steps[0]
        at = steps.index(failed)
        states = ["ok"] * at + ["FAILED"] + ["not tried"] * (len(steps) - at - 1)
        return ", ".join(f"{step} {state}" for step, state in zip(steps, states, strict=True))

    # -- the backlog ---------------------------------------------------------------------------------------------

    async def _properties(self, views: Sequence[BacklogQueueView]) -> list[Finding]:
        """Compare the backlog queues with those that a client creates, if the key has Manage."""
        state, present = self._pair.state, {view.queue for view in views if view.is_present}
        try:
            found = [
                queue
                for names in (state.backlog_queues, state.session_backlog_queues)
                if names
                async for queue in state.secondary.administration.list(
                    EntityKind.QUEUE, prefix=names[0].rpartition("/")[0] + "/"
                )
                if queue.name in present
            ]
        except ServiceBusError as error:
            return [Finding(BACKLOG, f"properties of the queues are unknown: {_short(error)}")]
        findings: list[Finding] = []
        notes: Counter[str] = Counter()
        for queue in found:
            is_of_sessions = queue.name in state.session_backlog_queues
            try:
                usable = usable_queue(queue, requires_session=is_of_sessions)
            except ServiceBusError as error:
                advice = f"repair {queue.name!r} as described"
                findings.append(Finding(BACKLOG, error.message, QUEUE_UNUSABLE, advice, error))
                continue
            if usable.status not in (None, "Active"):
                text = f"backlog queue {queue.name!r} has the status {usable.status}"
                advice = f"`sbclient admin update queue {queue.name} --set status=Active`"
                findings.append(Finding(BACKLOG, text, QUEUES_UNAVAILABLE, advice))
            notes.update(_differences(usable, backlog_queue(queue.name, requires_session=is_of_sessions)))
            findings += await self._full(state.secondary, usable, BACKLOG, "backlog queue", "syphon drains it")
        if found and not notes and not findings:
            findings.append(Finding(BACKLOG, f"{len(found)} queues have the properties that a client gives them"))
        findings += [Finding(BACKLOG, f"{number} queues have {note}") for note, number in notes.items()]
        return findings

    async def _full(
        self, transport: Transport, queue: QueueProperties, about: str, kind: str, remedy: str
    ) -> list[Finding]:
        if not queue.max_size_in_megabytes:
            return []
        runtime = await transport.administration.runtime(EntityAddress(EntityKind.QUEUE, (queue.name,)))
        if (runtime.size_in_bytes or 0) < (queue.max_size_in_megabytes - 1) * _MIB:  # the next message may not fit
            return []
        return [
            Finding(
                about,
                f"{kind} {queue.name!r} is full: {queue.max_size_in_megabytes:,} MB, "
                f"{runtime.total_message_count or 0:,} messages",
                "queue_full",
                f"receive or purge messages of {queue.name!r} ({remedy}), or raise max_size_in_megabytes",
            )
        ]

    async def _destinations(self, views: Sequence[BacklogQueueView], worker: _Worker | None) -> list[Finding]:
        """Return which destinations reject messages, and why."""
        await reject_without_sessions(self._pair, views)
        destinations = together(views).by_destination
        waiting = {path: part for path, part in destinations.items() if part.depth}
        answers = await destination_answers(self._pair, together(views).sendable_to[:PROBED])
        refusing = worker.refusing if worker is not None else {}
        findings: list[Finding] = []
        for path, answer in answers.items():
            part, reason = waiting[path], refusing.get(path)
            full = await self._full_destination(path) if part.parked or reason else []
            amount = f"{part.waiting:,} waiting and {part.parked:,} parked for {path!r}"
            if answer != ACCEPTS or reason:
                findings += full or [refusing_destination(path, reason or answer, part)]
            findings += full if answer == ACCEPTS and not reason else []
            if full or (answer == ACCEPTS and not reason):
                findings.append(Finding(BACKLOG, amount))
        for path, since in worker.redirected.items() if worker is not None else ():
            findings.append(Finding(BACKLOG, f"{path!r}: delivered to the secondary since {since}"))
        findings += rejected_messages(destinations)
        for path, part in destinations.items():
            if part.dead_letters:
                reasons = ", ".join(f"{number:,} {reason}" for reason, number in part.dead_letters.most_common())
                findings.append(Finding(BACKLOG, f"dead letters for {path!r}: {reasons}"))
        return findings

    async def _elsewhere(self, paths: Sequence[str]) -> list[Finding]:
        """Compare entities with those of the same path in the secondary, where a redirect delivers."""
        state, findings = self._pair.state, list[Finding]()
        if state.options.redirect_after is None:
            return findings
        for path in [self._entity] if self._entity else paths[:PROBED]:
            advice = f"create {path!r} in the secondary as in the primary (`sbclient admin export`, `import`)"
            here = there = None
            try:
                there = await keeping_entity(state.secondary.administration, path)
                here = await keeping_entity(state.primary.administration, path)
            except ServiceBusError as error:
                if there is None:
                    text = f"messages for {path!r} cannot be delivered to the secondary: {error.message}"
                    findings.append(Finding(SECONDARY, text, "redirect_impossible", advice, error))
            if isinstance(there, QueueProperties | TopicProperties) and there.status not in (None, "Active"):
                text = f"{path!r} of the secondary has the status {there.status}"
                activate = f"`sbclient admin update queue {path}` in the secondary with --set status=Active"
                findings.append(Finding(SECONDARY, text, "redirect_impossible", activate))
            if here is not None and there is not None and _kind(here) != _kind(there):
                text = f"{path!r} is a {_kind(here)} in the primary and a {_kind(there)} in the secondary"
                findings.append(Finding(SECONDARY, text, "redirect_impossible", advice))
            if isinstance(there, QueueProperties):
                findings += await self._full(state.secondary, there, SECONDARY, "queue", "its consumers are behind")
        return findings

    async def _full_destination(self, path: str) -> list[Finding]:
        administration = self._pair.state.primary.administration
        with suppress(ServiceBusError):  # without Manage nothing is known
            queue = await administration.get(EntityAddress(EntityKind.QUEUE, (path,)))
            if isinstance(queue, QueueProperties):
                transport = self._pair.state.primary
                return await self._full(transport, queue, BACKLOG, "the destination", "its consumers are behind")
        return []

    # -- the syphon ----------------------------------------------------------------------------------------------

    async def redirected(self) -> dict[str, str]:
        """Return since when the secondary gets the messages of an entity, by path, as the worker says."""
        worker = await self._ask_worker()
        return {} if worker is None else worker.redirected

    async def _ask_worker(self) -> _Worker | None:
        if self._worker is None:
            return None
        status, body, _ = await _fetched(f"{self._worker.rstrip('/')}/readyz", None)
        with suppress(ValueError, TypeError, AttributeError, RecursionError):
            content = json.loads(body) if body else {}
            refusing = {path: str(one["error"]) for path, one in content.get("refusing", {}).items()}
            now = clock.now()
            redirected = {
                path: f"{datetime.fromtimestamp(now - for_s, UTC):%Y-%m-%d %H:%M} UTC"
                for path, for_s in content.get("redirected_for_s", {}).items()
            }
            reasons = [str(one) for one in content.get("reasons", [])]
            return _Worker(status in (200, 503), reasons, refusing, redirected)
        return _Worker(False, [], {}, {})

    def _syphon(
        self, total: DestinationView, worker: _Worker | None, *, has_moved: bool | None, is_primary_well: bool
    ) -> list[Finding]:
        start = "start one: `sbclient syphon`, or enable_syphon=True in one process"
        if worker is not None and not worker.is_running:
            text = f"no syphon runs: {self._worker} does not answer as a worker"
            return [Finding(SYPHON, text, NO_SYPHON, f"{start}; the last line of its log has the reason why it ended")]
        if worker is not None and worker.reasons:
            advice = f"resume it: `curl -X POST {self._worker}/resume`" if _is_paused(worker) else ""
            if not advice and is_primary_well:
                advice = "see the reasons of its /readyz"
            text = f"the worker at {self._worker} is not ready: {'; '.join(worker.reasons)}"
            return [Finding(SYPHON, text, "worker_not_ready" if advice else "", advice)]
        if worker is not None:
            return [Finding(SYPHON, f"the worker at {self._worker} is ready")]
        if has_moved:
            return [Finding(SYPHON, "messages leave the backlog, so a syphon runs")]
        if not total.depth:
            return [Finding(SYPHON, "unknown, because no waiting message is known; give --worker to ask one")]
        if total.waiting and total.parked and has_moved is not None and is_primary_well:
            parked = f"a syphon has parked {total.parked:,}"
            text = f"no message was taken, but {parked}: it retries once a minute, or has ended"
            return [
                Finding(SYPHON, text, "no_progress", f"look again in a minute; if the number does not fall, {start}")
            ]
        if total.waiting and has_moved is not None and is_primary_well:
            text = f"no syphon runs: {_messages_wait(total.waiting)}, and none was taken"
            advice = f"{start}; if one runs, give its address with --worker to see its reasons"
            return [Finding(SYPHON, text, NO_SYPHON, advice)]
        if total.parked and not total.waiting:
            text = f"a syphon has parked all messages, {total.parked:,}, because their destinations did not accept them"
            advice = "look again in a minute; if the number does not fall, give --worker to see the reasons"
            is_problem = has_moved is False and is_primary_well
            return [Finding(SYPHON, text, "no_progress", advice) if is_problem else Finding(SYPHON, text)]
        return [Finding(SYPHON, "unknown; give --worker with the address of its HTTP port to ask it")]

    # -- clocks --------------------------------------------------------------------------------------------------

    async def _skew(self) -> dict[str, float | None]:
        """Return by how many seconds the clock of each namespace is ahead of this machine's; None = unknown."""

        async def skew(string: ConnectionString) -> float | None:
            if string.is_memory:
                return 0.0
            host = f"[{string.host}]" if ":" in string.host else string.host
            scheme = "http" if string.use_development_emulator else "https"
            port = f":{string.port or 5672}" if string.use_development_emulator else ""
            sent_at = clock.now()
            _, _, date = await _fetched(f"{scheme}://{host}{port}/", self._proxy)
            received_at = clock.now()
            with suppress(TypeError, ValueError):
                # The header has whole seconds: half of one is the best guess for the rest.
                return parsedate_to_datetime(date or "").timestamp() + 0.5 - (sent_at + received_at) / 2
            return None

        values = await asyncio.gather(*map(skew, self._strings.values()))
        return dict(zip(self._strings, values, strict=True))

    def _clocks(self, skews: dict[str, float | None]) -> list[Finding]:
        findings = []
        for side, skew in skews.items():
            if skew is None:
                findings.append(Finding(CLOCK, f"the time of the {side} is unknown"))
            elif abs(skew) <= MAX_SKEW_S:
                findings.append(Finding(CLOCK, f"equal to that of the {side}, within {max(abs(skew), 1):.0f} s"))
            else:
                word = "behind" if skew > 0 else "ahead of"
                text = f"the clock of this machine is {duration_text(round(abs(skew)))} {word} that of the {side}"
                advice = "synchronize the clock (NTP): tokens, times to live and schedules depend on it"
                findings.append(Finding(CLOCK, text, "clock_skew", advice))
        return findings


@dataclass(frozen=True, slots=True)
class _Worker:
    """The answer of a worker.

    Attributes:
        is_running: whether it is a worker.
        reasons: why it is not ready.
        refusing: the errors of the destinations that reject messages.
        redirected: since when the secondary accepts the messages of a destination.
    """

    is_running: bool
    reasons: list[str]
    refusing: dict[str, str]
    redirected: dict[str, str]


def _kind(entity: EntityProperties) -> str:
    if not isinstance(entity, QueueProperties):
        return "topic"
    return "queue that requires sessions" if entity.requires_session else "queue"


def _is_paused(worker: _Worker) -> bool:
    return "the worker is paused" in worker.reasons


def _short(error: ServiceBusError) -> str:
    if isinstance(error, ServiceBusAuthenticationError | ServiceBusAuthorizationError):
        return "the key lacks the right Manage"
    return f"{type(error).__name__}: {error.message}"


def _messages_wait(number: int) -> str:
    return "1 message waits" if number == 1 else f"{number:,} messages wait"


def _waiting(total: DestinationView) -> list[Finding]:
    dead = total.dead_letters.total()
    return [
        Finding(BACKLOG, f"{_messages_wait(total.waiting)}, {total.parked:,} are parked, {dead:,} are dead letters")
    ]


def _differences(queue: QueueProperties, usual: QueueProperties) -> list[str]:
    """Return the properties of a backlog queue that are not those of a new one."""
    return [
        f"{name} {queue[name]}, not {value}"
        for name, value in usual.items()
        if value and queue[name] not in (None, value)
    ]


async def _fetched(url: str, proxy: dict[str, Any] | None) -> tuple[int | None, bytes, str | None]:
    """Return status, body and date of an HTTP answer; None for what is unknown."""
    address = http_proxy_of(proxy).url if proxy else None
    proxies = {"http": address, "https": address} if address else None
    try:
        answer = await asyncio.to_thread(answer_to, Request(url), timeout_s=HTTP_S, proxies=proxies)
    except (OSError, ValueError):
        return None, b"", None
    return answer.status, answer.body, answer.headers["Date"]
