"""Whether the worker is ready, and if not, why.

Ready means that a message diverted now would be forwarded soon: both namespaces are reachable, every backlog queue was
polled recently, at least one destination accepts messages, and the worker is neither starting, paused nor stopping. A
worker that is not ready need not be restarted: during an outage of the primary it is not ready, but must keep running.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sbclient.errors import MessagingEntityNotFoundError
from sbclient.rules.refusal import OngoingError
from sbclient.syphon.status import QueueStatus, SyphonStatus
from sbclient.worker.inspection import (
    BACKLOG,
    PRIMARY,
    QUEUES_UNAVAILABLE,
    SECONDARY,
    Finding,
    is_refused_kind,
    queues_missing,
    unreachable_code,
)

GRACE_S: Final = 60.0
"""The tolerated delay of the answer of a backlog queue."""

SYPHON: Final = "syphon"

NAMED: Final = 3
"""The maximum number of queues or entities that one reason names."""


class WorkerState(StrEnum):
    """Phase of the worker."""

    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class NamespaceHealth:
    """Health of one namespace. Times are monotonic seconds.

    Attributes:
        namespace: its name.
        reached_at: time of its last answer; None = no answer yet.
        error: why it is unreachable; None = no known error.
        advice: what to do about the error.
    """

    namespace: str
    reached_at: float | None
    error: OngoingError | None
    advice: str = ""


def reasons_against(
    state: WorkerState,
    primary: NamespaceHealth,
    secondary: NamespaceHealth,
    syphon: SyphonStatus | None,
    *,
    now: float,
    since_at: float,
) -> list[Finding]:
    """Return why the worker is not ready, one sentence for each reason; empty if it is ready.

    Args:
        syphon: its status; None if none runs.
        now: monotonic seconds.
        since_at: when this syphon started.
    """
    reasons = [] if state is WorkerState.RUNNING else [Finding(SYPHON, f"the worker is {state}", str(state))]
    if state is WorkerState.STOPPING:
        return reasons
    for side, health in ((PRIMARY, primary), (SECONDARY, secondary)):
        if health.error is not None:
            unreachable_s = now - health.error.since_at
            kind = health.error.kind
            what = "has rejected the credential" if is_refused_kind(kind) else "has been unreachable"
            text = f"the {side} {health.namespace} {what} for {unreachable_s:.0f} s: {health.error.text}"
            reasons.append(Finding(side, text, unreachable_code(side, kind), health.advice))
        elif health.reached_at is None and state is not WorkerState.STARTING:
            text = f"the {side} {health.namespace} has not answered yet"
            reasons.append(Finding(side, text, f"{side}_silent"))
    if syphon is not None and state is WorkerState.RUNNING:
        reasons += _reasons_of(syphon, secondary.namespace, now, since_at)
    return reasons


def _reasons_of(syphon: SyphonStatus, namespace: str, now: float, since_at: float) -> list[Finding]:
    reasons: list[Finding] = []
    if syphon.is_stalled and syphon.refusing:
        named = [f"{path} ({error.text})" for path, error in list(syphon.refusing.items())[:NAMED]]
        text = f"every destination that was tried refuses messages: {_some(named, len(syphon.refusing))}"
        reasons.append(Finding(BACKLOG, text, "destinations_refuse"))
    failing = [queue for queue in syphon.queues if queue.error is not None]
    missing = [queue.queue for queue in failing if queue.error and queue.error.kind is MessagingEntityNotFoundError]
    if missing:
        reasons.append(queues_missing(namespace, missing, len(syphon.queues)))
    failing = [queue for queue in failing if queue.queue not in missing]
    if failing:
        named = [f"{queue.queue} ({queue.error.text})" for queue in failing[:NAMED] if queue.error]
        text = f"backlog queues are unavailable: {_some(named, len(failing))}"
        reasons.append(Finding(BACKLOG, text, QUEUES_UNAVAILABLE))
    limit_s = syphon.longest_pause_s + GRACE_S
    silent = [
        queue
        for queue in syphon.queues
        if queue.error is None and not syphon.is_stalled and now - _heard_at(queue, since_at) > limit_s
    ]
    if silent:
        named = [f"{queue.queue} (for {now - _heard_at(queue, since_at):.0f} s)" for queue in silent[:NAMED]]
        text = f"backlog queues have not answered recently: {_some(named, len(silent))}"
        reasons.append(Finding(BACKLOG, text, "queues_silent"))
    return reasons


def _heard_at(queue: QueueStatus, since_at: float) -> float:
    return since_at if queue.answered_at is None else max(queue.answered_at, since_at)


def _some(named: list[str], count: int) -> str:
    more = count - len(named)
    return ", ".join(named) + (f" and {more:,} more" if more > 0 else "")
