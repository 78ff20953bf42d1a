"""The state that the senders, receivers and transactions of one client share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

from sbclient.errors import (
    InvalidOperationError,
    PairedClientError,
    ServiceBusConnectionError,
    ServiceBusError,
    keep_doubt,
)
from sbclient.message import NamespaceSide
from sbclient.options import RetryOptions
from sbclient.pairing.state import PairState
from sbclient.retry import RetryPolicy
from sbclient.tasks import NOWHERE, LoopHome, OwnedTasks
from sbclient.transport.base import Transport

if TYPE_CHECKING:
    from sbclient.client.receiver import ServiceBusReceiver
    from sbclient.client.sender import ServiceBusSender

T = TypeVar("T")

_RANDOM_BITS: Final = ~(0xF << 76 | 0x3 << 62)
_VERSION_4: Final = 0x4 << 76 | 0x2 << 62
"""Version and variant of a random UUID. Source: RFC 9562."""
_ID_BITS: Final = (1 << 128) - 1
_IDS_AT_ONCE: Final = 32


class ClientCore:
    """The shared state of one client.

    Attributes:
        primary: the primary namespace.
        pair: the state of the pair; None without pairing.
        retry: the retry policy.
        tasks: the tasks that run in the background.
        home: the event loop of the client; it is ready where operations may begin, see `is_open`.
        is_closed: whether `end` was called.
        links: the senders and receivers that are still referenced, in the order in which `close` closes them.

    Args:
        on_open: called once, when the client is open.
    """

    def __init__(
        self,
        primary: Transport,
        pair: PairState | None,
        retry_options: RetryOptions,
        random: Random,
        *,
        on_open: Callable[[], None],
    ) -> None:
        self.primary = primary
        self.pair = pair
        self.random = random
        self.retry = RetryPolicy(retry_options, random)
        self.tasks = OwnedTasks()
        self.home = LoopHome()
        self.is_closed = False
        self.fault_cause: BaseException | None = None
        self.links: WeakKeyDictionary[ServiceBusSender | ServiceBusReceiver, None] = WeakKeyDictionary()
        self._on_open = on_open
        self._opening = asyncio.Lock()

    @property
    def is_open(self) -> bool:
        """Whether operations may begin: the client has been used in this loop, and is neither closed nor unusable."""
        return self.home.ready is asyncio._get_running_loop()

    def enter_loop(self) -> None:
        """Belong to the running event loop; drop what belonged to another one that has ended.

        Raises:
            InvalidOperationError: the client belongs to another loop that may run.
        """
        self.primary.enter_loop()
        if self.pair is not None:
            self.pair.secondary.enter_loop()
        if self.home.enter(f"the client of {self.primary.namespace}") is None:
            return
        is_closed = self.tasks.is_closed
        self.tasks.abandon()
        self.tasks = OwnedTasks()
        self.tasks.is_closed = is_closed
        self._opening = asyncio.Lock()
        if self.pair is not None:
            self.pair.leave_loop()
        for link in list(self.links):
            link.leave_loop()

    def check(self) -> None:
        """Raise if the client cannot be used.

        Raises:
            PairedClientError: the client of the other namespace was closed.
            InvalidOperationError: the client is closed.
        """
        if self.fault_cause is not None:
            raise PairedClientError(
                f"the client of {self.primary.namespace} is unusable because its partner was closed: open a new pair"
            ) from self.fault_cause
        if self.is_closed:
            raise InvalidOperationError(f"the client of {self.primary.namespace} is closed: open a new one")

    async def open(self, *, timeout_s: float | None = None) -> None:
        """Provision the backlog queues, once. After a failure it can be called again.

        An unavailable secondary delays it by 2 s at most: provisioning goes on in the background.

        Args:
            timeout_s: of the operation that needs the client; None = the client's.
        """
        self.check()
        if self.is_open:
            return
        self.enter_loop()
        async with self._opening:
            self.check()
            if self.is_open:
                return
            if self.pair is not None:
                try:
                    # Most of the timeout is kept for the operation itself.
                    await self.pair.open(
                        self.tasks, (self.retry.options.timeout if timeout_s is None else timeout_s) / 4
                    )
                except ServiceBusError:
                    self.check()  # if the client was closed, that error is more precise
                    raise
                self.check()
            self.home.ready = asyncio.get_running_loop()
            self._on_open()

    def end(self) -> None:
        """Make later operations raise `InvalidOperationError`."""
        self.is_closed = True
        self.home.ready = NOWHERE

    def transport(self, side: NamespaceSide) -> Transport:
        """Return the transport to a namespace; to the primary without a pair."""
        return self.primary if self.pair is None or side == "primary" else self.pair.secondary

    def primary_answered(self) -> None:
        """Record that the primary is reachable, so that its name is not misspelled."""
        if self.pair is not None:
            self.pair.is_primary_reached = True

    def fault(self, cause: BaseException) -> None:
        """Make later operations raise `PairedClientError` from this cause, and cancel the background tasks."""
        if self.fault_cause is None and not self.is_closed:
            self.fault_cause = cause
            self.home.ready = NOWHERE
            self.tasks.cancel()

    def new_id(self) -> str:
        """Return a new UUID, version 4, as a string."""
        return _uuid_text(self.random.getrandbits(128))

    def new_ids(self) -> Iterator[str]:
        """Return new UUIDs for the messages of one list.

        The random bits of many are read at once, which costs half as much, and not kept: after a fork both processes
        would use the same.
        """
        while True:
            bits = self.random.getrandbits(128 * _IDS_AT_ONCE)
            for _ in range(_IDS_AT_ONCE):
                yield _uuid_text(bits & _ID_BITS)
                bits >>= 128


def _uuid_text(bits: int) -> str:
    # Half of the cost of `str(UUID(...))`, for a value that most messages need.
    digits = f"{bits & _RANDOM_BITS | _VERSION_4:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


class Calls:
    """The calls of one sender or receiver that are under way: they end when it is closed, whatever they wait for.

    Attributes:
        are_over: whether `end` was called.

    Args:
        owner: what is closed, for errors: `the receiver of 'orders'`.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._under_way: set[asyncio.Task[Any]] = set()
        self._ended: set[asyncio.Task[Any]] = set()
        self.are_over = False

    async def run(self, call: Awaitable[T], *, changes: bool = False) -> T:
        """Wait for the answer of a call. A task runs one at a time.

        Args:
            changes: whether the call changes something, so that it is in doubt after the end.

        Raises:
            InvalidOperationError: `end` was called.
            ServiceBusConnectionError: as well, and the call changes something.
        """
        task = asyncio.current_task()
        assert task is not None  # coroutines of a client run in tasks
        cancelled_before = task.cancelling()
        self._under_way.add(task)
        try:
            return await call
        except asyncio.CancelledError:
            if not self._was_ended(task) or task.cancelling() > cancelled_before:
                raise
            cause = None
        except ServiceBusError as error:
            if not self.are_over:
                raise
            cause = error
        finally:
            self._under_way.discard(task)
            if self._ended:
                self._was_ended(task)
        try:
            if changes:
                text = f"{self._owner} was closed: whether the call was done is in doubt"
                raise ServiceBusConnectionError(text) from cause
            raise InvalidOperationError(f"{self._owner} was closed: get a new one from the client") from cause
        finally:
            del cause  # its traceback refers to this frame

    def _was_ended(self, task: asyncio.Task[Any]) -> bool:
        """Return whether `end` has cancelled the call of a task; take that back, so that the task goes on."""
        if task not in self._ended:
            return False
        self._ended.discard(task)
        task.uncancel()
        return True

    def end(self) -> None:
        """End the calls; later ones are refused before they get here."""
        self.are_over = True
        for task in self._under_way:
            if task.cancel():
                self._ended.add(task)
        self._under_way.clear()

    def leave_loop(self) -> None:
        """Forget the calls of an event loop that has ended."""
        self._under_way.clear()
        self._ended.clear()


async def each_part(work: Callable[[list[int]], Awaitable[None]], parts: Sequence[list[int]]) -> None:
    """Do some work for each part of some sequence numbers; raise the first error when all parts have ended.

    A note on the error names the parts that failed. It is in doubt if another one is, or if a part was done.
    """
    if len(parts) == 1:
        await work(parts[0])
        return
    outcomes = await asyncio.gather(*map(work, parts), return_exceptions=True)
    failed = [(part, outcome) for part, outcome in zip(parts, outcomes, strict=True) if outcome is not None]
    if failed:
        numbers = ", ".join(str(number) for part, _ in failed for number in part)
        error = failed[0][1]
        error.add_note(f"{len(failed)} of {len(parts)} partitions failed, with the sequence numbers {numbers}")
        if isinstance(error, ServiceBusError):
            is_partly_done = len(failed) < len(parts)
            keep_doubt(error, is_partly_done or any(getattr(each, "is_in_doubt", True) for _, each in failed))
        try:
            raise error
        finally:
            del error, failed, outcomes  # the tracebacks refer to this frame
