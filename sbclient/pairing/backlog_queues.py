"""The backlog queues of a pair. They are provisioned in the background while the secondary does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Final

from sbclient import clock
from sbclient.delivery import SenderLimits
from sbclient.errors import BacklogUnavailableError, OperationTimeoutError, ServiceBusError
from sbclient.options import PairedNamespaceOptions
from sbclient.pairing.provisioning import provision
from sbclient.retry import repeat
from sbclient.rules.backlog import may_recover
from sbclient.rules.backoff import growing
from sbclient.tasks import OwnedTasks
from sbclient.telemetry.log import get_logger
from sbclient.transport.base import Transport

log = get_logger(__name__)

OPENING_S: Final = 2.0
"""The longest time that the opening of a client waits for the secondary. Then the client works without it."""

ATTEMPT_S: Final = 60.0
"""The longest duration of one attempt to provision the queues. A namespace may have thousands of queues to list."""

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
"""Pauses between two attempts; a diversion begins the next attempt at once."""


class BacklogQueues:
    """The backlog queues of one pair.

    Attributes:
        plain, with_sessions: the names of the usable queues; empty before they are provisioned.
        limits: the size limits of the queues; None = unknown.
        split_by_key: whether a transfer may have only one partition key, because a queue is partitioned.
        provisioned: set when the queues can be used.
        error: the error of the last attempt to provision them; None if there was none.

    Args:
        primary: the name of the primary namespace, for the log.
        names, session_names: the names of all queues.
    """

    def __init__(
        self,
        primary: str,
        secondary: Transport,
        options: PairedNamespaceOptions,
        random: Random,
        *,
        names: Sequence[str],
        session_names: Sequence[str],
    ) -> None:
        self._primary = primary
        self._secondary = secondary
        self._mode = options.provision
        self._random = random
        self._names = names
        self._session_names = session_names
        self._is_in_background = False
        self.plain: list[str] = []
        self.with_sessions: list[str] = []
        self.limits: SenderLimits | None = None
        self.split_by_key = False
        self.error: ServiceBusError | None = None
        self._begin()

    def _begin(self) -> None:
        """Make what belongs to one event loop."""
        self._task: asyncio.Task[None] | None = None
        self._is_attempting = False
        self._attempt_now = asyncio.Event()
        self._attempt_ended = asyncio.Event()
        self.provisioned = asyncio.Event()

    def leave_loop(self) -> None:
        """Make anew what belonged to an event loop that has ended. Queues that were provisioned remain so."""
        is_provisioned = self.provisioned.is_set()
        self._begin()
        if is_provisioned:
            self.provisioned.set()

    async def open(self, tasks: OwnedTasks, timeout_s: float) -> None:
        """Provision the queues. If the secondary does not answer in time, go on in the background and return.

        After a failure it can be called again.

        Args:
            tasks: owns the task in the background.
            timeout_s: how long to wait, at most `OPENING_S`.

        Raises:
            BacklogUnavailableError: the queues cannot be used, and waiting cannot change that.
        """
        if self.provisioned.is_set():
            return
        if self._task is None or self._task.done():
            self._is_in_background = False
            self._task = tasks.start(self._provision(), name="provision backlog queues")
        try:
            if not await clock.wait_for(self._attempt_ended, min(OPENING_S, timeout_s)):
                self._failed(OperationTimeoutError(f"{self._secondary.namespace} has not answered yet"))
        except asyncio.CancelledError:
            await self._give_up(tasks)
            raise
        if self.error is not None and not may_recover(self.error):
            await self._give_up(tasks)
            raise self.error
        if self.error is not None:
            self._is_in_background = True
            self._warn(self.error)

    async def _give_up(self, tasks: OwnedTasks) -> None:
        task, self._task = self._task, None
        if task is not None and tasks.end(task):
            await asyncio.wait([task])

    async def wait(self, timeout_s: float) -> None:
        """Wait until the queues can be used, but not longer than for one attempt, which begins as soon as possible.

        Raises:
            BacklogUnavailableError: the attempt failed, or did not end in time. It is raised from the cause.
        """
        if self.provisioned.is_set():
            return
        try:
            async with clock.timeout(max(timeout_s, 0)):
                if self._is_attempting:
                    await self._attempt_ended.wait()
                if not self.provisioned.is_set():
                    self._attempt_now.set()
                    await self._attempt_ended.wait()
        except TimeoutError:
            pass
        if self.provisioned.is_set():
            return
        cause = _cause_of(self.error or OperationTimeoutError("it has not answered yet"))
        raise BacklogUnavailableError(
            f"the backlog queues of {self._secondary.namespace} are not provisioned",
            {self._secondary.namespace: cause},
        ) from cause

    async def _provision(self) -> None:
        """Try until it succeeds."""
        pause_s = growing(FIRST_PAUSE_S, LONGEST_PAUSE_S, self._random)
        await repeat(self._try_once, pause_s, self._pause)

    async def _try_once(self, _: int) -> bool:
        self._is_attempting = True
        try:
            async with clock.timeout(ATTEMPT_S):
                await self._attempt()
        except TimeoutError:
            self._failed(OperationTimeoutError(f"{self._secondary.namespace} did not answer in {ATTEMPT_S:g} s"))
        except ServiceBusError as error:
            self._failed(error)
        else:
            self._succeeded()
        self._is_attempting = False
        self._attempt_now.clear()
        ended, self._attempt_ended = self._attempt_ended, asyncio.Event()
        ended.set()
        return self.provisioned.is_set()

    async def _pause(self, seconds: float) -> None:
        await clock.wait_for(self._attempt_now, seconds)

    async def _attempt(self) -> None:
        administration = self._secondary.administration
        plain, with_sessions = list(self._names), list(self._session_names)
        if self._mode != "none":
            try:
                queues = await provision(administration, self._names, mode=self._mode)
                plain = list(queues)
                if with_sessions:
                    await provision(administration, with_sessions, mode=self._mode, requires_session=True)
            finally:
                await administration.disconnect()
            self.split_by_key = any(queue.enable_partitioning for queue in queues.values())
            self.limits = await self._limits_of(plain[0])
        self.plain, self.with_sessions = plain, with_sessions

    async def _limits_of(self, queue: str) -> SenderLimits | None:
        link = self._secondary.open_sender(queue)
        try:
            return await link.limits(timeout_s=ATTEMPT_S)
        except ServiceBusError:
            return None
        finally:
            await link.close()

    def _failed(self, error: ServiceBusError) -> None:
        is_news = type(self.error) is not type(error)
        self.error = error
        if is_news and self._is_in_background:
            self._warn(error)

    def _warn(self, error: ServiceBusError) -> None:
        log.warning(
            "pair.not_provisioned",
            "the backlog queues in {secondary!r} are not provisioned, so sends cannot be diverted: {error}; the client "
            "tries again in the background",
            secondary=self._secondary.namespace,
            error=_cause_of(error),
        )

    def _succeeded(self) -> None:
        self.error = None
        self.provisioned.set()
        log.info(
            "pair.opened",
            "paired {primary!r} with {secondary!r} ({queues} backlog queues)",
            primary=self._primary,
            secondary=self._secondary.namespace,
            queues=len(self.plain),
        )


def _cause_of(error: ServiceBusError) -> Exception:
    """Return the error of the namespace that an error of provisioning was raised from."""
    return error.__cause__ if isinstance(error.__cause__, ServiceBusError) else error
