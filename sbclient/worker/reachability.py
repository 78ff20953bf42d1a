"""Whether one namespace can be reached: by what the syphon meets there and, where that tells nothing, by asking."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from sbclient.clock import Clock
from sbclient.errors import ServiceBusError
from sbclient.rules.refusal import OngoingError
from sbclient.telemetry.log import get_logger
from sbclient.worker.inspection import is_unreachable
from sbclient.worker.readiness import NamespaceHealth

log = get_logger(__name__)

AGAIN_S: Final = 10.0
"""How soon a namespace that could not be reached is asked again."""


class Reachability:
    """What is known of one namespace.

    Args:
        side: `"primary"` or `"secondary"`, for the log.
        namespace: what names it.
        ask: asks it something.
        heard_at: when the syphon last had an answer from it, in monotonic seconds; None = never.
        interval_s: how old an answer may become.
    """

    def __init__(
        self,
        side: str,
        namespace: str,
        clock: Clock,
        *,
        ask: Callable[[], Awaitable[None]],
        heard_at: Callable[[], float | None],
        interval_s: float,
    ) -> None:
        self._side = side
        self._namespace = namespace
        self._clock = clock
        self._ask = ask
        self._heard_at = heard_at
        self._interval_s = interval_s
        self._asked_at = float("-inf")
        self._answered_at: float | None = None
        self._error: OngoingError | None = None

    def health(self) -> NamespaceHealth:
        """What is known now."""
        heard_at = self._heard_at()
        if self._error is not None and heard_at is not None and heard_at > self._asked_at:
            self.answered()
        known = [at for at in (self._answered_at, heard_at) if at is not None]
        return NamespaceHealth(self._namespace, max(known, default=None), self._error)

    def answered(self, error: ServiceBusError | None = None) -> None:
        """It answered, perhaps with an error; whether that means that it cannot be reached is judged here."""
        if error is not None and is_unreachable(error):
            self.failed(error)
            return
        now = self._asked_at = self._clock.monotonic()
        if self._error is not None:
            log.info(
                "worker.reachable",
                "the {side} is reachable again after {seconds} s",
                side=self._side,
                seconds=round(now - self._error.since_at, 1),
            )
        self._answered_at, self._error = now, None

    def failed(self, error: ServiceBusError) -> None:
        """It cannot be used, whatever the error is."""
        self._asked_at = self._clock.monotonic()
        if self._error is None:
            log.warning(
                "worker.unreachable",
                "the {side} is unreachable: {error}: {reason}",
                side=self._side,
                error=error,
                reason=error.message,
            )
        self._error = OngoingError.of(error, self._asked_at, self._error)

    async def keep(self) -> None:
        """Ask whenever nothing was heard for a while; runs until cancelled."""
        while True:
            health = self.health()
            if health.error is not None:
                await self._clock.sleep(min(AGAIN_S, self._interval_s))
            elif health.reached_at is not None:
                left_s = health.reached_at + self._interval_s - self._clock.monotonic()
                if left_s > 0:
                    await self._clock.sleep(left_s)
                    continue
            try:
                await self._ask()
            except ServiceBusError as error:
                self.answered(error)
            else:
                self.answered()
