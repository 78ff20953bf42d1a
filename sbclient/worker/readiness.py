"""Whether the worker is ready, and if it is not, why: a rule over what is known of it.

Ready means that a message diverted now would be brought home soon: both namespaces can be reached, every backlog queue
was asked lately, not every entity refuses, and the worker is neither starting, paused nor ending. It says nothing of
whether the process should be restarted: while the primary is down it is not ready, and needed more than ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sbclient.rules.refusal import OngoingError
from sbclient.syphon.status import QueueStatus, SyphonStatus

GRACE_S: Final = 60.0
"""How much later than expected an answer of a backlog queue may come."""

TOLD_OF: Final = 3
"""How many queues or entities one reason names."""


class WorkerState(StrEnum):
    """Where the worker is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class NamespaceHealth:
    """One namespace. Moments are monotonic seconds.

    Attributes:
        namespace: what names it.
        reached_at: when it last answered; None = not yet.
        error: why it cannot be reached; None = it can, as far as is known.
    """

    namespace: str
    reached_at: float | None
    error: OngoingError | None


def reasons_against(
    state: WorkerState,
    primary: NamespaceHealth,
    secondary: NamespaceHealth,
    syphon: SyphonStatus | None,
    *,
    now: float,
    since_at: float,
) -> list[str]:
    """Why the worker is not ready, each reason a sentence; none if it is.

    Args:
        syphon: how it stands; None while none runs.
        now: monotonic seconds.
        since_at: when this syphon began.
    """
    reasons = [] if state is WorkerState.RUNNING else [f"the worker is {state}"]
    if state is WorkerState.STOPPING:
        return reasons
    for side, health in (("primary", primary), ("secondary", secondary)):
        if health.error is not None:
            span_s = now - health.error.since_at
            reasons.append(f"the {side} {health.namespace} cannot be reached for {span_s:.0f} s: {health.error.text}")
        elif health.reached_at is None and state is not WorkerState.STARTING:
            reasons.append(f"the {side} {health.namespace} has not answered yet")
    if syphon is not None and state is WorkerState.RUNNING:
        reasons += _reasons_of(syphon, now, since_at)
    return reasons


def _reasons_of(syphon: SyphonStatus, now: float, since_at: float) -> list[str]:
    reasons: list[str] = []
    if syphon.is_stalled and syphon.refusing:
        told = [f"{path} ({error.text})" for path, error in list(syphon.refusing.items())[:TOLD_OF]]
        reasons.append(f"every entity of the primary that was tried refuses: {_some(told, len(syphon.refusing))}")
    failing = [queue for queue in syphon.queues if queue.error is not None]
    if failing:
        told = [f"{queue.queue} ({queue.error.text})" for queue in failing[:TOLD_OF] if queue.error]
        reasons.append(f"backlog queues give no messages: {_some(told, len(failing))}")
    limit_s = syphon.longest_pause_s + GRACE_S
    silent = [
        queue
        for queue in syphon.queues
        if queue.error is None and not syphon.is_stalled and now - _heard_at(queue, since_at) > limit_s
    ]
    if silent:
        told = [f"{queue.queue} (for {now - _heard_at(queue, since_at):.0f} s)" for queue in silent[:TOLD_OF]]
        reasons.append(f"backlog queues have not answered lately: {_some(told, len(silent))}")
    return reasons


def _heard_at(queue: QueueStatus, since_at: float) -> float:
    return since_at if queue.answered_at is None else max(queue.answered_at, since_at)


def _some(told: list[str], count: int) -> str:
    more = count - len(told)
    return ", ".join(told) + (f" and {more:,} more" if more > 0 else "")
