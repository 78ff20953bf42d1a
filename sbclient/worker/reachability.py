"""Whether one namespace is reachable: by the answers that the syphon receives and, if there are none, by probes."""

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
"""Longest time between two probes of an unreachable namespace."""


class Reachability:
    """The reachability of one namespace.

    Args:
        side: `"primary"` or `"secondary"`, for the log.
        namespace: its name.
        probe: sends it a request.
        heard_at: returns when the syphon last received an answer from it, in monotonic seconds; None = never.
        interval_s: longest time without an answer before it is probed.
    """

    def __init__(
        self,
        side: str,
        namespace: str,
        clock: Clock,
        *,
        probe: Callable[[], Awaitable[None]],
        heard_at: Callable[[], float | None],
        interval_s: float,
    ) -> None:
        self._side = side
        self._namespace = namespace
        self._clock = clock
        self._probe = probe
        self._heard_at = heard_at
        self._interval_s = interval_s
        self._probed_at = float("-inf")
        self._answered_at: float | None = None
        self._error: OngoingError | None = None

    def health(self) -> NamespaceHealth:
        """Return the current health. An answer to the syphon after the error means that the namespace is reachable."""
        heard_at = self._heard_at()
        error = self._error if heard_at is None or heard_at <= self._probed_at else None
        known = [at for at in (self._answered_at, heard_at) if at is not None]
        return NamespaceHealth(self._namespace, max(known, default=None), error)

    def answered(self, error: ServiceBusError | None = None) -> None:
        """Record an answer; an error may mean that the namespace is unreachable."""
        if error is not None and is_unreachable(error):
            self.failed(error)
            return
        self._probed_at = self._answered_at = self._clock.monotonic()
        self._end_error(self._answered_at)

    def _note_answer(self) -> None:
        """End the error if the syphon has received an answer since the last probe."""
        health = self.health()
        if health.error is None and health.reached_at is not None:
            self._end_error(health.reached_at)

    def _end_error(self, answered_at: float) -> None:
        if self._error is not None:
            log.info(
                "worker.reachable",
                "the {side} is reachable again after {seconds} s",
                side=self._side,
                seconds=round(answered_at - self._error.since_at, 1),
            )
            self._error = None

    def failed(self, error: ServiceBusError) -> None:
        """Record that the namespace is unusable."""
        self._note_answer()
        self._probed_at = self._clock.monotonic()
        if self._error is None:
            log.warning(
                "worker.unreachable",
                "the {side} is unreachable: {error}: {reason}",
                side=self._side,
                error=error,
                reason=error.message,
            )
        self._error = OngoingError.of(error, self._probed_at, self._error)

    def _next_probe_at(self) -> float:
        health = self.health()
        if health.error is not None:
            return self._probed_at + min(AGAIN_S, self._interval_s)
        return float("-inf") if health.reached_at is None else health.reached_at + self._interval_s

    async def keep(self) -> None:
        """Probe the namespace whenever it has not answered for a while; runs until cancelled."""
        while True:
            self._note_answer()
            left_s = self._next_probe_at() - self._clock.monotonic()
            if left_s > 0:
                await self._clock.sleep(left_s)
                continue
            try:
                await self._probe()
            except ServiceBusError as error:
                self.answered(error)
            else:
                self.answered()
