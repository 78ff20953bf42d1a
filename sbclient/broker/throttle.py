"""Throttling: the number of operations that a namespace executes in one second.

Source: throttling of the Standard tier: each second has its credits, a data operation costs 1 for each message, a
management operation 10, the evaluation of a filter 1.
"""

from __future__ import annotations

from typing import Final

from sbclient.errors import ServiceBusServerBusyError

MANAGEMENT_CREDITS: Final = 10


class Throttle:
    """The credits of one namespace.

    Args:
        credits_per_second: None = any number.
    """

    def __init__(self, namespace: str, credits_per_second: int | None) -> None:
        self._namespace = namespace
        self._credits_per_second = credits_per_second
        self._second = -1
        self._spent = 0

    def spend(self, now: float, credit_count: int) -> None:
        """Use credits of this second.

        Raises:
            ServiceBusServerBusyError: too few are left.
        """
        if self._credits_per_second is None:
            return
        if int(now) != self._second:
            self._second, self._spent = int(now), 0
        if self._spent + credit_count > self._credits_per_second:
            raise ServiceBusServerBusyError(
                f"50009: namespace {self._namespace} has spent {self._spent} of {self._credits_per_second} credits "
                f"in this second and {credit_count} more are too many. Please wait 2 seconds and try again."
            )
        self._spent += credit_count
