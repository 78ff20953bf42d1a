"""Forward messages: from an entity with a `forward_to`, or through a `via` queue to their destination.

Rules (source: auto-forwarding, dead-letter queues and transactions, documented, unless said otherwise):

1. A queue or subscription forwards all ready messages; a dead-letter queue can forward too. A message keeps its keys,
   and the destination treats it like a sent message: fragment, schedule, duplicate detection, session and size are
   checked again. Its time to live is not extended.
2. After 4 hops, or if the destination is missing, disabled, full or rejects the message, it goes to the dead-letter
   queue of its source, or to the transfer dead-letter queue of `via`.
3. A dead letter that its destination does not accept stays in the dead-letter queue and is forwarded when it does
   (said by the service's maintainers); those behind it wait (our choice).
4. While the destination is unreachable, the message waits (our choice: an outage loses no message).
5. The order is undefined if either side is partitioned.
"""

from __future__ import annotations

from random import Random
from typing import Final

from sbclient.amqp import EncodedMessage
from sbclient.broker.admission import admit, store
from sbclient.broker.directory import Directory
from sbclient.broker.entity import Queue
from sbclient.broker.entry import Entry
from sbclient.broker.faults import Call, Faults, NoAnswer, Operation
from sbclient.broker.fragment import Fragment
from sbclient.entities import EntityStatus
from sbclient.errors import InvalidOperationError, MessagingEntityDisabledError, ServiceBusError
from sbclient.rules.entity_path import canonical

TOO_MANY_HOPS: Final = "MaxTransferHopCountExceeded"


class Forwarding:
    """The forwarding of one namespace.

    Args:
        directory: the entities.
        faults: of the namespace.
        max_hops: the maximum number of forwards of a message.
        max_batch_size_bytes: of a transfer, for admission.
        random: for admission.

    Attributes:
        is_used: whether any entity has ever forwarded.
        due: the queues that have a message to forward; `pump` forwards it.
    """

    def __init__(
        self, directory: Directory, faults: Faults, max_hops: int, max_batch_size_bytes: int, random: Random
    ) -> None:
        self._directory = directory
        self._faults = faults
        self._random = random
        self._max_hops = max_hops
        self._max_batch_size_bytes = max_batch_size_bytes
        self.is_used = False
        self.due: dict[Queue, None] = {}
        self._feeding: dict[str, dict[Queue, None]] = {}

    def direct(self, queue: Queue, destination: str | None) -> None:
        """Set or, with None, remove the destination of a queue."""
        if queue.forward_to is not None:
            key = canonical(queue.forward_to)
            self._feeding[key].pop(queue, None)
            if not self._feeding[key]:
                del self._feeding[key]
        queue.forward_to = destination
        self.due.pop(queue, None)
        if destination is not None:
            self.is_used = True
            self._feeding.setdefault(canonical(destination), {})[queue] = None
            self.due[queue] = None

    def sources_of(self, path: str) -> list[Queue]:
        """The queues that forward to a path."""
        return list(self._feeding.get(canonical(path), ()))

    def mark(self, queue: Queue) -> None:
        """Note that a queue has a message to forward."""
        self.due[queue] = None

    def pump(self, now: float) -> None:
        """Forward all messages that can be forwarded now."""
        waiting: dict[Queue, None] = {}
        try:
            while self.due:
                queue = next(iter(self.due))
                del self.due[queue]
                waiting[queue] = None
                if self._emptied(queue, now):
                    del waiting[queue]
        finally:
            self.due.update(waiting)

    def _emptied(self, queue: Queue, now: float) -> bool:
        """Forward the messages of a queue; False if some must wait."""
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
        """Forward or dead-letter the first message of a fragment; False if it must wait."""
        destination = entry.destination if queue.is_transfer else queue.forward_to
        assert destination is not None  # what is due has one
        try:
            self._deliver(destination, entry, Call(Operation.SEND, now))
        except NoAnswer:
            return False
        except ServiceBusError as error:
            if error.is_transient or queue.dead_letters is None:
                return False
            fragment.mark()
            fragment.take(now)
            if entry.hops >= self._max_hops:
                words = "The maximum number of allowed hops when forwarding between queues has been exceeded."
                fragment.dead_letter(entry, TOO_MANY_HOPS, f"{words} This value is set to {self._max_hops}.")
            else:
                fragment.dead_letter(entry, type(error).__name__, str(error))
            return True
        fragment.take(now, delete=True)
        return True

    def _deliver(self, path: str, entry: Entry, call: Call) -> None:
        if entry.hops >= self._max_hops:
            raise InvalidOperationError(
                f"the message was forwarded {entry.hops} times and cannot be forwarded to {path}: shorten the chain"
            )
        self._faults.check(call, path)
        entity, target = self._directory.find(path)
        if entity.description.status in (EntityStatus.DISABLED, EntityStatus.SEND_DISABLED):
            raise MessagingEntityDisabledError(f"{path} is {entity.description.status}: it accepts no messages")
        transfer = admit(
            target,
            [_content_of(entry)],
            self._random,
            max_batch_size_bytes=self._max_batch_size_bytes,
        )
        fragment = target.placement.choose(call, transfer.key, transfer.size_bytes)
        (copy,) = transfer.entries
        copy.original_number = entry.first_number
        copy.hops = entry.hops + 1
        copy.expires_at = entry.expires_at
        copy.dead_letter_source = entry.dead_letter_source
        store(fragment, transfer.entries, None, call.now, transfer.is_partitioned)


def _content_of(entry: Entry) -> EncodedMessage:
    """The content to forward: it keeps the properties that were added, such as a dead-letter reason."""
    added = entry.added_properties
    if not added:
        return entry.content
    return entry.content.with_added(added)
