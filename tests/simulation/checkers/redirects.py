"""I22: a syphon delivers to the secondary only what the primary has refused for long enough, and then returns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from sbclient.errors import MessagingEntityNotFoundError, ServiceBusServerBusyError
from tests.simulation.checkers.failover import GRAIN_S, is_outage
from tests.simulation.history import Attempt, Outcome, Violation
from tests.simulation.world import World

PREPARED_S: Final = 30.0
"""How long a transfer may take until it sends: a settlement, and its timeout."""

ENDS_WITHIN_S: Final = 240.0
"""How long after the last outage messages may be redirected: a probe, its answer, and the message that follows."""


def check_redirects(world: World) -> Iterator[Violation]:
    plan = world.plan
    after = plan.options.redirect_after
    by_syphon: dict[tuple[str, str], list[Attempt]] = defaultdict(list)
    for one in world.history.attempts:
        if not one.is_backlog and one.client.startswith(("syphon", "last-syphon")):
            by_syphon[one.client, one.path].append(one)
        elif one.side == "secondary" and not one.is_backlog:
            yield Violation("I22", f"{one.client} sent {one.uids} to {one.path} of the secondary")
    ends_at = world.history.epoch + plan.traffic_s + ENDS_WITHIN_S
    for (client, path), attempts in by_syphon.items():
        asked = [one for one in attempts if one.side == "primary"]
        for one in attempts:
            if one.side == "primary" or one.what != "send":
                continue
            if after is None or (path not in plan.elsewhere and one.outcome is Outcome.OK):
                yield Violation("I22", f"{client} redirected {one.uids} to {path}")
            elif one.begin > ends_at:
                yield Violation("I22", f"{client} redirected {one.uids} {one.begin - ends_at:.0f} s too late")
            elif "twice" not in plan.syphons:  # each of two syphons asks for itself
                since = _outage_since(asked, one.begin)
                if since is None or one.begin < since + after.total_seconds() - GRAIN_S:
                    yield Violation("I22", f"{client} redirected {one.uids} to {path}, refused since {since}")


def _outage_since(attempts: Sequence[Attempt], at: float) -> float | None:
    """When the outage that lasts at a moment was first noticed: no other answer has come before and since.

    A transfer that has begun settles what else is in its group before it sends.
    """
    last_at = max((one.begin for one in attempts if one.end < at - PREPARED_S and _ends_outage(one)), default=0.0)
    return min((one.end for one in attempts if _is_outage(one) and last_at <= one.end <= at), default=None)


def _is_outage(one: Attempt) -> bool:
    """Whether an answer counts; an entity that is missing does not, since the syphon has not sent to it before."""
    return one.error is not None and is_outage(one.error) and not issubclass(one.error, _NEITHER)


def _ends_outage(one: Attempt) -> bool:
    if one.error is None:
        return one.what == "send" and one.outcome is Outcome.OK
    is_busy = issubclass(one.error, ServiceBusServerBusyError)
    return not is_busy and not _is_outage(one)


_NEITHER: Final = (MessagingEntityNotFoundError, ServiceBusServerBusyError)
