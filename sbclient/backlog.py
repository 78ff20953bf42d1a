"""Counts the messages of the backlog queues of a pair, and resubmits or deletes their dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeVar

from sbclient import clock
from sbclient.entities import EntityAddress, EntityKind
from sbclient.errors import (
    InvalidOperationError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from sbclient.message import (
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
)
from sbclient.pairing.pair import Pair
from sbclient.rules.entity_path import dead_letter_path
from sbclient.rules.envelope import MalformedEnvelopeError, path_of, unseal
from sbclient.tasks import gather
from sbclient.telemetry import metrics
from sbclient.telemetry.log import get_logger
from sbclient.transport.dead_letters import TIMEOUT_S, DeadLetters, Selection, everything, pages

log = get_logger(__name__)

T = TypeVar("T")

UNKNOWN_DESTINATION: Final = "(unknown)"
NO_REASON: Final = "(none)"


@dataclass(slots=True, kw_only=True)
class DestinationView:
    """Messages of a backlog queue for one entity of the primary.

    Attributes:
        waiting: number of messages that a syphon can receive or has in flight.
        parked: number of messages deferred because their destination refuses them.
        rejected: number of waiting and parked messages that a syphon will dead-letter, by reason.
        without_session: number of waiting and parked messages without a session id that are not in `rejected`.
        dead_letters: number of messages that cannot be forwarded, by reason.
        oldest_utc: enqueued time of the oldest waiting or parked message; None if there is none.
    """

    waiting: int = 0
    parked: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    without_session: int = 0
    dead_letters: Counter[str] = field(default_factory=Counter)
    oldest_utc: datetime | None = None

    @property
    def depth(self) -> int:
        """Number of waiting and parked messages."""
        return self.waiting + self.parked

    @property
    def sendable(self) -> int:
        """Number of messages that a syphon will send to their destination."""
        return self.depth - self.rejected.total()

    def add(self, other: DestinationView) -> None:
        """Add other counts."""
        self.waiting += other.waiting
        self.parked += other.parked
        self.rejected += other.rejected
        self.without_session += other.without_session
        self.dead_letters += other.dead_letters
        self.oldest_utc = min(filter(None, (self.oldest_utc, other.oldest_utc)), default=None)


@dataclass(slots=True)
class BacklogQueueView(DestinationView):
    """Messages of one backlog queue, in total and for each entity.

    Attributes:
        queue: its name.
        is_present: whether it exists.
        by_destination: counts by path of the destination; `(unknown)` if a message does not name one.
        is_complete: False if the limit was reached, so that every number is a lower bound.
    """

    queue: str
    is_present: bool = True
    by_destination: dict[str, DestinationView] = field(default_factory=dict)
    is_complete: bool = True

    @property
    def destinations(self) -> Counter[str]:
        """Number of waiting and parked messages by destination."""
        return Counter({path: view.depth for path, view in self.by_destination.items() if view.depth})

    @property
    def sendable_to(self) -> list[str]:
        """The destinations that a syphon will send waiting or parked messages to."""
        return [path for path, view in self.by_destination.items() if view.sendable]

    def reject_without_session(self, path: str, reason: str) -> None:
        """Count the messages for this destination without a session id as rejected."""
        part = self.by_destination.get(path, DestinationView())
        for each in (self, part):
            each.rejected += Counter({reason: part.without_session})
        self.without_session -= part.without_session
        part.without_session = 0

    def count(self, message: ServiceBusReceivedMessage, seen: DestinationView) -> None:
        """Count one message, in total and for its destination."""
        path = path_of(message)
        place = UNKNOWN_DESTINATION if path is None else path
        self.add(seen)
        self.by_destination.setdefault(place, DestinationView()).add(seen)


def together(views: Iterable[BacklogQueueView]) -> BacklogQueueView:
    """Return the counts of several queues, in total and for each entity."""
    total = BacklogQueueView("")
    for view in views:
        total.add(view)
        for path, part in view.by_destination.items():
            total.by_destination.setdefault(path, DestinationView()).add(part)
    return total


class Backlog:
    """The backlog of a pair, for operators. Needs the Listen right on the secondary, and Send to resubmit.

    Args:
        on_progress: called with the number of messages that were peeked, resubmitted or deleted so far.
    """

    def __init__(self, pair: Pair, *, on_progress: Callable[[int], None] | None = None) -> None:
        self._pair = pair.state
        self._on_progress = on_progress
        self._counted = 0
        self._latest: list[BacklogQueueView] = []
        self._counted_by_syphon: Collection[str] = ()
        self._read_time: Callable[[], float] | None = None
        self._ahead_s = 0.0

    @property
    def queues(self) -> Sequence[str]:
        """Names of the backlog queues of the pair, session queues last; empty before they are provisioned."""
        return [*self._pair.backlog_queues, *self._pair.session_backlog_queues]

    async def survey(self, *, limit: int = 100_000) -> list[BacklogQueueView]:
        """Peek at the messages of every queue and count them.

        Args:
            limit: of the messages peeked in each queue and in its dead letters.
        """
        return await self._survey(None, limit)

    async def _survey(
        self, queues: Collection[str] | None, limit: int, *, only_dead: Collection[str] = ()
    ) -> list[BacklogQueueView]:
        """Survey these queues; None = all."""
        await self._pair.backlog.wait(TIMEOUT_S)
        queues = self.queues if queues is None else queues
        works = [self._view(queue, limit, only_dead=queue in only_dead) for queue in queues]
        return await gather(works)

    async def watch(
        self,
        *,
        every: timedelta = timedelta(minutes=1),
        limit: int = 100_000,
        queues: Collection[str] | None = None,
        beside_syphon: bool = False,
    ) -> None:
        """Survey repeatedly, for the metrics of depth and age; runs until cancelled.

        Each survey peeks at every message; one operation returns 100. A syphon reports these metrics without surveys,
        see `docs/metrics.md`.

        Args:
            every: pause between two surveys.
            limit: as for `survey`.
            queues: names of the queues to survey; None = all.
            beside_syphon: omit what a syphon of this process reports: waiting and parked messages of plain queues.
        """
        counted_by_syphon = self._pair.backlog_queues if beside_syphon else ()
        self._counted_by_syphon = counted_by_syphon
        self._read_time, self._ahead_s = clock.reader(), clock.now() - clock.monotonic()
        metrics.watch(self)
        try:
            while True:
                try:
                    self._latest = await self._survey(queues, limit, only_dead=counted_by_syphon)
                except* ServiceBusError as group:
                    names = sorted({type(error).__name__ for error in group.exceptions})
                    log.info(
                        "backlog.not_surveyed",
                        "cannot count the messages of the backlog: {error}",
                        error=", ".join(names),
                    )
                await clock.sleep(every.total_seconds())
        finally:
            metrics.unwatch(self)

    def measured(self) -> Iterator[tuple[metrics.Instrument, float, metrics.Attributes]]:
        """Yield the results of the latest survey; see `metrics.Watched`."""
        for view in self._latest:
            where = self._pair.at_backlog(view.queue)
            depths = {"dead_lettered": view.dead_letters.total()}
            is_counted = view.queue not in self._counted_by_syphon
            if is_counted:
                depths |= {"waiting": view.waiting, "parked": view.parked}
            for state, depth in depths.items():
                yield metrics.BACKLOG_DEPTH, depth, {**where, metrics.STATE: state}
            if not is_counted or (view.depth and view.oldest_utc is None):
                continue  # the syphon reports it, or it is unknown
            age_s = 0.0
            if view.oldest_utc is not None and self._read_time is not None:
                age_s = self._read_time() + self._ahead_s - view.oldest_utc.timestamp()
            yield metrics.BACKLOG_AGE, max(age_s, 0.0), where

    async def _view(self, queue: str, limit: int, *, only_dead: bool) -> BacklogQueueView:
        view = BacklogQueueView(queue)
        try:
            if not only_dead:
                await self._look_into(view, limit)
            async for message in self._browse(dead_letter_path(queue), limit, view):
                view.count(message, DestinationView(dead_letters=Counter([message.dead_letter_reason or NO_REASON])))
        except MessagingEntityNotFoundError:
            view.is_present = False
        return view

    async def _look_into(self, view: BacklogQueueView, limit: int) -> None:
        try:
            await self._look_at_messages(view, limit)
        except InvalidOperationError:
            if view.queue not in self._pair.session_backlog_queues:
                raise
            await self._read_counts(view)

    async def _look_at_messages(self, view: BacklogQueueView, limit: int) -> None:
        now, options = clock.now(), self._pair.options
        async for message in self._browse(view.queue, limit, view):
            is_parked = message.state is ServiceBusMessageState.DEFERRED
            is_without_session, rejected = False, Counter[str]()
            try:
                mode, allowed = options.backlog_time_to_live, options.syphon_destinations
                original = unseal(message, now=now, time_to_live_mode=mode, allowed=allowed).message
                is_without_session = original.session_id is None
            except MalformedEnvelopeError as malformed:
                rejected[malformed.reason] += 1
            one = DestinationView(
                waiting=not is_parked,
                parked=is_parked,
                rejected=rejected,
                without_session=is_without_session,
                oldest_utc=message.enqueued_time_utc,
            )
            view.count(message, one)

    async def _read_counts(self, view: BacklogQueueView) -> None:
        """Read the message count of a session queue: azure-servicebus peeks there only with a session lock.

        Without the Manage right, one message is counted for each session, which is the minimum.
        """
        secondary = self._pair.secondary
        try:
            counts = await secondary.administration.runtime(EntityAddress(EntityKind.QUEUE, (view.queue,)))
            waiting = counts.active_message_count
        except (ServiceBusAuthenticationError, ServiceBusAuthorizationError):
            sessions = await secondary.list_sessions(view.queue, state_updated_after=None, timeout_s=TIMEOUT_S)
            waiting, view.is_complete = len(sessions), not sessions
        total = DestinationView(waiting=waiting)
        view.add(total)
        if waiting:
            view.by_destination[UNKNOWN_DESTINATION] = total

    async def _browse(self, path: str, limit: int, view: BacklogQueueView) -> AsyncIterator[ServiceBusReceivedMessage]:
        left = limit
        async with aclosing(pages(self._pair.secondary, path)) as browsed:
            async for page in browsed:
                taken = page[:left]
                for message in taken:
                    yield message
                left -= len(taken)
                self._count(len(taken))
                if len(taken) < len(page):
                    view.is_complete = False
                    return

    async def resubmit(self, *, reason: str | None = None, queue: str | None = None) -> int:
        """Send the current dead letters to their backlog queue again, so that a syphon forwards them.

        Each is sent before it is completed, so a failure can cause a duplicate. Dead letters of session queues are
        skipped, since their order would change.

        Args:
            reason: only messages with this reason; None = all.
            queue: name of one backlog queue; None = all.

        Returns:
            Number of resubmitted messages.
        """
        return await self._each(queue, lambda dead: dead.resubmit(_with_reason(reason)))

    async def purge(self, *, reason: str | None = None, queue: str | None = None) -> int:
        """Delete the current dead letters. Waiting and parked messages are not affected.

        Args:
            reason, queue: as for `resubmit`.

        Returns:
            Number of deleted messages.
        """
        return await self._each(queue, lambda dead: dead.purge(_with_reason(reason)), with_sessions=True)

    async def _each(
        self, queue: str | None, work: Callable[[DeadLetters], Awaitable[int]], *, with_sessions: bool = False
    ) -> int:
        """Do something with the dead letters of one backlog queue, or of all, and return the sum."""
        await self._pair.backlog.wait(TIMEOUT_S)
        queues = self.queues if with_sessions else self._pair.backlog_queues
        chosen = [name for name in queues if queue is None or name.casefold() == queue.casefold()]
        if not chosen:
            raise InvalidOperationError(f"{queue!r} is not one of the backlog queues {', '.join(queues)}")

        async def handle(name: str) -> int:
            with suppress(MessagingEntityNotFoundError):
                return await work(DeadLetters(self._pair.secondary, name, on_done=self._count))
            return 0

        return sum(await gather(list(map(handle, chosen))))

    def _count(self, number: int) -> None:
        self._counted += number
        if self._on_progress is not None:
            self._on_progress(self._counted)


def _with_reason(reason: str | None) -> Selection:
    """Select dead letters with this reason; None = all."""
    return everything if reason is None else lambda message: (message.dead_letter_reason or NO_REASON) == reason
