"""Tracks whether a namespace is reachable.

The responses to the syphon show that it is. If the syphon gets none for a while, the namespace is probed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from sbclient import clock
from sbclient.errors import ServiceBusError
from sbclient.rules.refusal import OngoingError
from sbclient.telemetry.log import get_logger
from sbclient.worker.inspection import PRIMARY, Side, is_refused, is_refused_kind, is_unreachable, unreachable
from sbclient.worker.readiness import NamespaceHealth

log = get_logger(__name__)

UNREACHABLE: Final = "the {side} {namespace} is unreachable: {error}: {reason}"
REJECTS: Final = "the {side} {namespace} rejects the credential{origin}: {error}: {reason}"

UNREACHABLE_PROBE_INTERVAL_S: Final = 10.0
"""Longest pause between two probes of an unreachable namespace."""


class Reachability:
    """The reachability of one namespace.

    Args:
        side: the namespace.
        probe: sends a request to it.
        reached_at: returns when the syphon last got a response from it, in monotonic seconds; None = never.
        interval_s: time without a response after which it is probed.
    """

    def __init__(
        self,
        side: Side,
        *,
        probe: Callable[[], Awaitable[None]],
        reached_at: Callable[[], float | None],
        interval_s: float,
    ) -> None:
        self._side = side
        self._probe = probe
        self._syphon_reached_at = reached_at
        self._interval_s = interval_s
        self._probed_at = float("-inf")
        self._probe_reached_at: float | None = None
        self._error: OngoingError | None = None
        self._advice = ""

    def health(self) -> NamespaceHealth:
        """Return the current health. A response to the syphon after the error means that the namespace is reachable."""
        syphon_reached_at = self._syphon_reached_at()
        error = self._error if syphon_reached_at is None or syphon_reached_at <= self._probed_at else None
        known = [at for at in (self._probe_reached_at, syphon_reached_at) if at is not None]
        return NamespaceHealth(self._side.namespace, max(known, default=None), error, self._advice if error else "")

    def record_result(self, error: ServiceBusError | None = None) -> None:
        """Record a response (None), or an error, which may mean that the namespace is unreachable."""
        if error is not None and is_unreachable(error):
            self.failed(error)
            return
        self._probed_at = self._probe_reached_at = clock.monotonic()
        self._end_error(self._probe_reached_at)

    def _end_past_error(self) -> None:
        """End the error if the syphon has got a response since the last probe."""
        health = self.health()
        if health.error is None and health.reached_at is not None:
            self._end_error(health.reached_at)

    def _end_error(self, reached_at: float) -> None:
        if self._error is not None:
            where: dict[str, Any] = {"side": self._side.side, "namespace": self._side.namespace}
            where["seconds"] = round(reached_at - self._error.since_at, 1)
            if is_refused_kind(self._error.kind):
                log.info(
                    "worker.accepted", "the {side} {namespace} accepts the credential again after {seconds} s", **where
                )
            else:
                log.info("worker.reachable", "the {side} {namespace} is reachable again after {seconds} s", **where)
            self._error = None

    def failed(self, error: ServiceBusError) -> None:
        """Record that the namespace is unreachable."""
        self._end_past_error()
        self._probed_at = clock.monotonic()
        if self._error is None or is_refused_kind(self._error.kind) != is_refused(error):
            side = self._side
            where: dict[str, Any] = {"side": side.side, "namespace": side.namespace, "reason": error.message}
            if is_refused(error):
                origin = f" ({side.origin})" if side.origin else ""
                log.warning("worker.rejected", REJECTS, error=error, origin=origin, **where)
            else:
                log.warning("worker.unreachable", UNREACHABLE, error=error, **where)
        self._error = OngoingError.of(error, self._probed_at, self._error)
        self._advice = unreachable(self._side, error, "Send" if self._side.side == PRIMARY else "Listen").advice

    def _next_probe_at(self) -> float:
        health = self.health()
        if health.error is not None:
            return self._probed_at + min(UNREACHABLE_PROBE_INTERVAL_S, self._interval_s)
        return float("-inf") if health.reached_at is None else health.reached_at + self._interval_s

    async def probe_forever(self) -> None:
        """Probe the namespace whenever it has not responded for a while; runs until cancelled."""
        while True:
            self._end_past_error()
            left_s = self._next_probe_at() - clock.monotonic()
            if left_s > 0:
                await clock.sleep(left_s)
                continue
            await self.probe()

    async def probe(self) -> None:
        """Probe the namespace now."""
        try:
            await self._probe()
        except ServiceBusError as error:
            self.record_result(error)
        else:
            self.record_result()
