"""Watches the entities of a pair: applies failover deadlines, and pings failed-over entities until they answer."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import Final

from sbclient import clock
from sbclient.amqp import EncodedBatch, encode_message
from sbclient.errors import InvalidOperationError, MessagingEntityNotFoundError, ServiceBusError
from sbclient.pairing.state import PairedEntity, PairState
from sbclient.rules.failover import PingKeys
from sbclient.rules.ping import ping_message
from sbclient.tasks import OwnedTasks
from sbclient.telemetry import metrics
from sbclient.telemetry.log import get_logger
from sbclient.telemetry.operations import ACCEPTED, REFUSED, result_of

log = get_logger(__name__)

PING_TIMEOUT_S: Final = 20.0
"""The service needs up to 15 s to store a message without a key on another fragment; a ping waits a little longer."""


class Pinger:
    """Applies the failover deadlines of one paired client, and pings its failed-over entities."""

    def __init__(self, pair: PairState, tasks: OwnedTasks) -> None:
        self._pair = pair
        self._tasks = tasks
        self._needs_session: set[str] = set()

    async def run(self) -> None:
        """Run until cancelled: wake at the deadline of each entity, and when an entity changes."""
        pair = self._pair
        deadlines: list[tuple[float, int, PairedEntity]] = []
        order = count()  # equal deadlines must not compare the entities
        while not self._tasks.is_closed:
            now = clock.monotonic()
            due = pair.take_changed()
            while deadlines and deadlines[0][0] <= now:
                due.append(heappop(deadlines)[2])
            for entity in due:
                deadline = self._advance(entity, now)
                if deadline is not None:
                    heappush(deadlines, (deadline, next(order), entity))
            wait_s = max(0.0, deadlines[0][0] - now) if deadlines else None
            await clock.wait_for(pair.changed, wait_s)

    def _advance(self, entity: PairedEntity, now: float) -> float | None:
        """Apply an expired deadline of an entity, or start a due ping; return its next deadline."""
        entity.apply(entity.failover.advance(now))
        if not entity.failover.is_ping_due(now):
            return entity.failover.next_deadline()
        generation = entity.failover.ping_started()  # its result counts only during this failover
        self._tasks.start(self._ping(entity, generation), name=f"ping {entity.path}")
        return None

    async def _ping(self, entity: PairedEntity, generation: int) -> None:
        pair = self._pair
        began_at = clock.monotonic()
        accepted = is_unknown_entity = False
        try:
            error = await self._send_ping(entity)
            accepted = error is None
            if accepted:
                entity.has_sent = pair.is_primary_reached = True
            is_unknown_entity = isinstance(error, MessagingEntityNotFoundError) and not entity.has_sent
            result = {**entity.attributes, **result_of(error), metrics.OUTCOME: ACCEPTED if accepted else REFUSED}
            metrics.record(metrics.PING_DURATION, clock.monotonic() - began_at, result)
        finally:
            now = clock.monotonic()
            answered = entity.failover.ping_answered(
                now, accepted=accepted, generation=generation, is_unknown_entity=is_unknown_entity
            )
            entity.apply(answered)
            pair.note_change(entity)

    async def _send_ping(self, entity: PairedEntity) -> ServiceBusError | None:
        """Send a ping; return its error, or None if it was accepted."""
        link = self._pair.primary.open_sender(entity.path)
        keys = entity.failover.ping_keys
        try:
            if self._pair.options.probe == "link":
                await link.open(timeout_s=PING_TIMEOUT_S)
                return None
            if entity.path in self._needs_session:
                keys = self._with_session(keys)
            try:
                await link.send(self._message(keys), timeout_s=PING_TIMEOUT_S)
            except InvalidOperationError:
                if keys.session_id is not None:
                    raise
                # An entity that requires sessions rejects a ping without one; send it again with a session.
                self._needs_session.add(entity.path)
                await link.send(self._message(self._with_session(keys)), timeout_s=PING_TIMEOUT_S)
        except ServiceBusError as error:
            log.info(
                "failover.ping_failed",
                "a ping to {path!r} failed: {error}",
                path=entity.path,
                error=error,
            )
            return error.with_traceback(None)  # it would refer to this frame
        finally:
            await link.close()
        return None

    def _with_session(self, keys: PingKeys) -> PingKeys:
        """Add a session id: the partition key, so that the ping reaches the same fragment, or else a random id."""
        if keys.session_id is not None:
            return keys
        return keys._replace(session_id=self._new_id() if keys.partition_key is None else keys.partition_key)

    def _message(self, keys: PingKeys) -> EncodedBatch:
        ping = ping_message(message_id=self._new_id(), session_id=keys.session_id, partition_key=keys.partition_key)
        return EncodedBatch([encode_message(ping)])

    def _new_id(self) -> str:
        return f"{self._pair.random.getrandbits(128):032x}"
