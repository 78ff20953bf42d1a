"""Messages that go on by themselves: to where an entity forwards, or through one entity to another.

Laws (source: auto-forwarding, dead-letter queues and transactions, documented, unless said otherwise):

1. A queue or subscription hands on everything that can be received from it; a dead-letter queue may hand on too. The
   message keeps its keys and is let in at its destination as if it were sent there: fragment, schedule, duplicate
   detection, session and size are judged anew. It cannot live longer than it would have.
2. After 4 hops, or if the destination is missing, disabled, full or refuses the message, it is dead-lettered at its
   source; what waited in a dead-letter queue, or was sent by way of another entity, in the transfer dead-letter queue.
3. While the destination cannot be reached the message waits (our choice: an outage loses nothing).
4. Order is not promised where either side is partitioned.
"""

from __future__ import annotations

from typing import Final

from sbclient.broker.admission import admit, store
from sbclient.broker.directory import Directory
from sbclient.broker.entity import Queue
from sbclient.broker.entry import Entry
from sbclient.broker.faults import Call, Faults, NoAnswer, Operation
from sbclient.broker.fragment import Fragment
from sbclient.entities import EntityStatus
from sbclient.errors import InvalidOperationError, MessagingEntityDisabledError, ServiceBusError
from sbclient.message import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON, ServiceBusMessage
from sbclient.rules.entity_path import canonical

TOO_MANY_HOPS: Final = "MaxTransferHopCountExceeded"


class Forwarding:
    """The messages of one namespace that are to go on.

    Args:
        directory: the entities.
        faults: of the namespace.
        max_hops: how often a message is handed on.
        max_batch_size_bytes: of a transfer, for admission.
    """

    def __init__(self, directory: Directory, faults: Faults, max_hops: int, max_batch_size_bytes: int) -> None:
        self._directory = directory
        self._faults = faults
        self._max_hops = max_hops
        self._max_batch_size_bytes = max_batch_size_bytes
        self._due: dict[Queue, None] = {}
        self._feeding: dict[str, dict[Queue, None]] = {}

    def direct(self, queue: Queue, destination: str | None) -> None:
        """Let a queue hand on to a path, or with None no longer."""
        if queue.forward_to is not None:
            self._feeding[canonical(queue.forward_to)].pop(queue, None)
        queue.forward_to = destination
        self._due.pop(queue, None)
        if destination is not None:
            self._feeding.setdefault(canonical(destination), {})[queue] = None
            self._due[queue] = None

    @property
    def is_used(self) -> bool:
        """Whether anything was ever to go on."""
        return bool(self._feeding)

    def sources_of(self, path: str) -> list[Queue]:
        """The queues that hand on to a path."""
        return list(self._feeding.get(canonical(path), ()))

    def mark(self, queue: Queue) -> None:
        """A message has come that is to go on."""
        self._due[queue] = None

    def pump(self, now: float) -> None:
        """Hand on everything that can be handed on now."""
        waiting: dict[Queue, None] = {}
        while self._due:
            queue = next(iter(self._due))
            del self._due[queue]
            if not self._emptied(queue, now):
                waiting[queue] = None
        self._due = waiting

    def _emptied(self, queue: Queue, now: float) -> bool:
        """Hand on what a queue has; False if something must wait."""
        is_empty = True
        for fragment in queue.fragments:
            call = Call(Operation.SEND, now)
            if self._faults.stopping(call, queue.path, fragment.index) is not None:
                is_empty = False
                continue
            while (entry := fragment.head(now)) is not None:
                if not self._moved(queue, fragment, entry, now):
                    is_empty = False
                    break
        return is_empty

    def _moved(self, queue: Queue, fragment: Fragment, entry: Entry, now: float) -> bool:
        """Hand on, or dead-letter, the first message of a fragment; False if it must wait."""
        destination = entry.destination if queue.is_transfer else queue.forward_to
        assert destination is not None  # what is due has one
        try:
            self._let_in(destination, entry, Call(Operation.SEND, now))
        except NoAnswer:
            return False
        except ServiceBusError as error:
            if error.is_transient:
                return False
            fragment.take(now)
            reason = TOO_MANY_HOPS if entry.hops >= self._max_hops else type(error).__name__
            fragment.dead_letter(entry, reason, str(error), queue.refused.fragments[fragment.index])
            return True
        fragment.take(now, delete=True)
        return True

    def _let_in(self, path: str, entry: Entry, call: Call) -> None:
        if entry.hops >= self._max_hops:
            raise InvalidOperationError(
                f"the message was forwarded {entry.hops} times and may not go on to {path}: shorten the chain"
            )
        self._faults.check(call, path)
        entity, target = self._directory.find(path)
        if entity.description.status in (EntityStatus.DISABLED, EntityStatus.SEND_DISABLED):
            raise MessagingEntityDisabledError(f"{path} is {entity.description.status}: it takes no messages")
        transfer = admit(
            target,
            [_content_of(entry)],
            is_partitioned=entity.is_partitioned,
            max_batch_size_bytes=self._max_batch_size_bytes,
        )
        fragment = target.placement.choose(call, transfer.key, transfer.size_bytes)
        (copy,) = transfer.entries
        copy.original_number = entry.number if entry.original_number is None else entry.original_number
        copy.hops = entry.hops + 1
        copy.expires_at = entry.expires_at
        copy.dead_letter_source = entry.dead_letter_source
        store(fragment, transfer.entries, None, call.now, is_partitioned=entity.is_partitioned)


def _content_of(entry: Entry) -> ServiceBusMessage:
    """What travels: a dead-lettered message takes its reason along."""
    if entry.dead_letter_reason is None and entry.dead_letter_description is None:
        return entry.content
    reasons = {
        DEAD_LETTER_REASON: entry.dead_letter_reason,
        DEAD_LETTER_DESCRIPTION: entry.dead_letter_description,
    }
    stated = {name: value for name, value in reasons.items() if value is not None}
    return entry.content.copy(application_properties={**entry.content.application_properties, **stated})
