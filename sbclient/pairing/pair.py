"""The pair of namespaces of a client, as applications see it: its status, its events, and manual failover."""

from __future__ import annotations

from datetime import UTC, datetime

from sbclient import clock
from sbclient.arguments.checked import checked
from sbclient.pairing.state import PairedEntity, PairState
from sbclient.pairing.status import PairedEntityStatus, PairEvent, PairStatus
from sbclient.rules.entity_path import check_entity_path


@checked
class Pair:
    """The pair of namespaces of a client; available as `client.pair`.

    Attributes:
        state: shared by the senders, the pinger and the syphon of the client; not for applications.
    """

    def __init__(self, state: PairState) -> None:
        self.state = state

    def status(self) -> PairStatus:
        """Return the current status."""
        state = self.state
        offset_s = clock.now() - clock.monotonic()
        return PairStatus(
            primary=state.primary.namespace,
            secondary=state.secondary.namespace,
            entities={
                entity.path: PairedEntityStatus(
                    path=entity.path,
                    state=entity.failover.state,
                    since_utc=datetime.fromtimestamp(entity.failover.since_at + offset_s, UTC),
                    is_forced=entity.failover.is_forced,
                    diverted=entity.diverted,
                )
                for entity in state.entities()
            },
            backlog_queues=(*state.backlog_queues, *state.session_backlog_queues),
            quarantined=tuple(state.quarantine.queues(clock.monotonic())),
            is_provisioned=state.backlog.provisioned.is_set(),
            provisioning_error=None if state.backlog.error is None else str(state.backlog.error),
            never_reached=not state.is_primary_reached,
        )

    def events(self) -> list[PairEvent]:
        """Return the last 1,000 events, oldest first."""
        return list(self.state.events)

    def force_failover(self, path: str) -> None:
        """Divert the sends to an entity until `mark_healthy` is called. The client sends no pings."""
        entity = self._entity(path)
        entity.apply(entity.failover.force(clock.monotonic()))

    def mark_unhealthy(self, path: str) -> None:
        """Fail over an entity now. Pings end the failover, as they do after an outage."""
        entity = self._entity(path)
        entity.apply(entity.failover.mark_unhealthy(clock.monotonic()))
        self.state.note_change(entity)  # a forced entity does not change its state, but its pings begin

    def mark_healthy(self, path: str) -> None:
        """Send to the primary again, immediately, with every sender of the client."""
        entity = self._entity(path)
        entity.apply(entity.failover.mark_healthy(clock.monotonic()))

    def _entity(self, path: str) -> PairedEntity:
        return self.state.entity(check_entity_path(path))
