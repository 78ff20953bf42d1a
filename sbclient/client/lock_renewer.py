"""Renews the locks of messages and sessions in the background while an application processes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, TypeAlias

from sbclient import clock
from sbclient.arguments.checked import checked
from sbclient.arguments.kinds import Kind, Pause, wrong_type
from sbclient.errors import AutoLockRenewFailed, AutoLockRenewTimeout, InvalidOperationError, ServiceBusError
from sbclient.message import ServiceBusReceivedMessage
from sbclient.tasks import OwnedTasks

if TYPE_CHECKING:
    from sbclient.client.receiver import ServiceBusReceiver, ServiceBusSession


LEAST_S: Final = 0.1
"""A lock with less time left counts as one with so much: half of it passes before the renewal."""


def _check_holder(name: str, value: Any) -> Any:
    if not all(hasattr(value, each) for each in ("renewals", "is_closed", "entity_path")):
        raise wrong_type(name, value, "a ServiceBusReceiver")
    return value


Holder: TypeAlias = Annotated["ServiceBusReceiver", Kind("a ServiceBusReceiver", _check_holder)]
Renewable: TypeAlias = "ServiceBusReceivedMessage | ServiceBusSession"
OnFailure: TypeAlias = Callable[[Any, Exception | None], Awaitable[None]]


@checked
class AutoLockRenewer:
    """Renews locks; pass it to a receiver, or register messages and sessions.

    Args:
        max_lock_renewal_duration: seconds after which a lock is no longer renewed. Default 300 (azure-servicebus).
        on_lock_renew_failure: awaited with the message or session and the error when a renewal has failed, so that the
            lock is lost. Not when the longest duration has passed: the lock is held then, until it expires.
        loop: ignored; the renewer runs in the loop that calls `register`.
    """

    def __init__(
        self,
        max_lock_renewal_duration: Pause = 300,
        on_lock_renew_failure: OnFailure | None = None,
        loop: object = None,
    ) -> None:
        self._max_s = max_lock_renewal_duration
        self._on_failure = on_lock_renew_failure
        self._tasks = OwnedTasks()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop renewing all locks."""
        self._is_closed = True
        await self._tasks.close()

    def check_open(self) -> None:
        """Raise `InvalidOperationError` if the renewer is closed."""
        if self._is_closed:
            raise InvalidOperationError("the lock renewer is closed and renews nothing: use a new one")

    def register(
        self,
        receiver: Holder,
        renewable: Renewable,
        max_lock_renewal_duration: Pause | None = None,
        on_lock_renew_failure: OnFailure | None = None,
    ) -> None:
        """Renew a lock, whenever half of it has passed, until the message is settled or the duration has passed.

        A lock that is registered again is renewed as the last call says.
        The error that ends it early is stored as `auto_renew_error` of the message or session.

        Raises:
            InvalidOperationError: the renewer is closed, or the message has no lock: it was peeked, or deleted on
                receipt.
            TypeError: it is neither a received message nor a session.
        """
        self.check_open()
        if not hasattr(renewable, "locked_until_utc"):
            raise wrong_type("renewable", renewable, "a received message or a session")
        if renewable.locked_until_utc is None:
            raise InvalidOperationError(
                "there is no lock to renew: register messages received with PEEK_LOCK, or an accepted session"
            )
        max_s = self._max_s if max_lock_renewal_duration is None else max_lock_renewal_duration
        on_failure = on_lock_renew_failure or self._on_failure
        renewals, key = receiver.renewals, id(renewable)
        if (earlier := renewals.get(key)) is not None:
            earlier()
        task = self._tasks.start(self._renew(receiver, renewable, max_s, on_failure), name="renew lock")
        renewals[key] = stop = partial(self._tasks.end, task)

        def forget(_: object) -> None:
            if renewals.get(key) is stop:
                del renewals[key]

        task.add_done_callback(forget)

    async def _renew(
        self, receiver: ServiceBusReceiver, renewable: Renewable, max_s: float, on_failure: OnFailure | None
    ) -> None:
        end_at = clock.monotonic() + max_s
        error: Exception | None = None
        if self._is_done(receiver, renewable):
            return
        try:
            while not receiver.is_closed:
                left_s = self._left_s(renewable)
                pause_s = left_s / 2
                if clock.monotonic() + pause_s >= end_at:
                    await clock.sleep(max(end_at - clock.monotonic(), 0))
                    if not self._is_done(receiver, renewable):
                        error = AutoLockRenewTimeout(
                            f"the lock was renewed for {max_s} s, the longest duration: raise max_lock_renewal_duration"
                        )
                    break
                await clock.sleep(pause_s)
                if self._is_done(receiver, renewable):
                    if left_s == LEAST_S:  # the lock has ended
                        return
                    continue  # a transaction is not decided, and a rollback locks the message again
                if isinstance(renewable, ServiceBusReceivedMessage):
                    await receiver.renew_message_lock(renewable)
                else:
                    await renewable.renew_lock()
        except (ServiceBusError, ValueError) as cause:
            if self._is_done(receiver, renewable):
                return
            error = AutoLockRenewFailed(f"a lock of {receiver.entity_path!r} could not be renewed: {cause}")
            error.__cause__ = cause.with_traceback(None)  # it would refer to this frame, and this to the message
        if error is not None:
            receiver.renewals.pop(id(renewable), None)  # a settlement does not interrupt the callback
            renewable.auto_renew_error = error
            if on_failure is not None and isinstance(error, AutoLockRenewFailed):
                await on_failure(renewable, error)

    def _left_s(self, renewable: Renewable) -> float:
        until = renewable.locked_until_utc
        left_s = (until - datetime.fromtimestamp(clock.now(), UTC)).total_seconds() if until else 0.0
        return max(left_s, LEAST_S)

    @staticmethod
    def _is_done(receiver: ServiceBusReceiver, renewable: Renewable) -> bool:
        if receiver.is_closed:
            return True
        return isinstance(renewable, ServiceBusReceivedMessage) and renewable.is_settled
