"""The offsets of a stream: JSON objects that Spark keeps in the checkpoint, one for each micro-batch.

    {"mode": "peek", "namespace": "contoso.servicebus.windows.net", "queues": {"orders": {"next": {"0": 118}, …}}}

With `mode` peek, `next` is the sequence number by fragment at which the next micro-batch starts. With `mode` receive,
`numbers` are the messages of this micro-batch, and `open` those of earlier ones that are not completed yet, as ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

from sbclient.arguments.kinds import INT64
from sbclient.errors import InvalidOperationError
from sbclient_spark.read.options import Mode

ADVICE: Final = "start the stream with another checkpointLocation, or restore the options"


@dataclass(frozen=True, slots=True)
class QueueOffset:
    """The position in one queue.

    Attributes:
        created: when the queue was created, in ISO 8601; None = unknown.
        until: the enqueued time of the newest message before `next`, in ISO 8601; None = no message so far.
        next: the number of the next message by fragment; of other fragments, none was read.
        first: in the first offset after the initial one, the `next` of that one, which Spark does not store.
        numbers: messages of the micro-batch.
        open: messages of earlier micro-batches that are not completed.
    """

    created: str | None = None
    until: str | None = None
    next: dict[int, int] = field(default_factory=dict)
    first: dict[int, int] | None = None
    numbers: tuple[int, ...] = ()
    open: tuple[int, ...] = ()

    def to_json(self, mode: Mode) -> dict[str, Any]:
        found: dict[str, Any] = {"created": self.created}
        if mode == "receive":
            return found | {"numbers": ranges_text(self.numbers), "open": ranges_text(self.open)}
        found |= {"until": self.until, "next": _texts(self.next)}
        return found if self.first is None else found | {"first": _texts(self.first)}

    @classmethod
    def of_json(cls, given: Mapping[str, Any]) -> QueueOffset:
        return cls(
            created=_text(given.get("created")),
            until=_time(_text(given.get("until"))),
            next=_numbers(given.get("next", {})),
            first=_numbers(given["first"]) if "first" in given else None,
            numbers=numbers_of(given.get("numbers", "")),
            open=numbers_of(given.get("open", "")),
        )


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The position in all queues of a stream.

    Attributes:
        namespace: its host name.
        batch: how many micro-batches were planned before; 0 = the initial offset.
    """

    mode: Mode
    namespace: str
    batch: int
    queues: dict[str, QueueOffset]

    def to_json(self) -> dict[str, Any]:
        """Return the offset as Spark stores it."""
        queues = {path: queue.to_json(self.mode) for path, queue in self.queues.items()}
        return {"mode": self.mode, "namespace": self.namespace, "batch": self.batch, "queues": queues}

    @classmethod
    def of_json(cls, given: Mapping[str, Any], *, mode: Mode, namespace: str, paths: Iterable[str]) -> StreamOffset:
        """Return the offset of a checkpoint.

        Raises:
            InvalidOperationError: the checkpoint belongs to another stream.
        """
        try:
            queues = {path: QueueOffset.of_json(queue) for path, queue in given["queues"].items()}
            found = cls(given["mode"], given["namespace"], _number(given["batch"]), queues)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidOperationError(
                f"the checkpoint has an offset of another source ({type(error).__name__}): {ADVICE}"
            ) from None
        if found.namespace != namespace:
            raise InvalidOperationError(
                f"the checkpoint is of {found.namespace}, and the options name {namespace}: {ADVICE}"
            )
        if set(queues) != set(paths):
            raise InvalidOperationError(
                f"the checkpoint is of {', '.join(queues)}, and the options name {', '.join(paths)}: {ADVICE}"
            )
        if found.mode != mode:
            raise InvalidOperationError(
                f"the checkpoint is of mode {found.mode!r}, and the options say {mode!r}: {ADVICE}"
            )
        return found


MAX_NUMBERS: Final = 10_000_000
"""Of the messages of a micro-batch in one queue."""


def ranges_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return numbers as ranges in ascending order; the end is inclusive."""
    ordered = sorted(set(numbers))
    breaks = [place for place, (low, high) in enumerate(pairwise(ordered), start=1) if high != low + 1]
    bounds = pairwise([0, *breaks, len(ordered)]) if ordered else []
    return [(ordered[low], ordered[high - 1]) for low, high in bounds]


def ranges_text(numbers: Iterable[int]) -> str:
    """Return numbers as text such as `1-500,507`."""
    return ",".join(f"{low}-{high}" if high > low else str(low) for low, high in ranges_of(numbers))


def numbers_of(text: str) -> tuple[int, ...]:
    """Return the numbers of a text from `ranges_text`.

    Raises:
        ValueError: the text is not one, such as that of a damaged checkpoint.
    """
    found: list[int] = []
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        numbers = range(_number(int(low)), _number(int(high or low)) + 1)
        if len(found) + numbers.stop - numbers.start > MAX_NUMBERS:
            raise ValueError(f"more than {MAX_NUMBERS:,} numbers")
        found += numbers
    return tuple(found)


def _texts(numbers: Mapping[int, int]) -> dict[str, int]:
    return {str(fragment): number for fragment, number in sorted(numbers.items())}


def _numbers(texts: Mapping[str, int]) -> dict[int, int]:
    return {_number(int(fragment)): _number(number) for fragment, number in texts.items()}


def _number(given: int) -> int:
    if type(given) is not int or given not in INT64:
        raise ValueError("no whole number of 64 bits")
    return given


def _text(given: str | None) -> str | None:
    if not isinstance(given, str | None):
        raise TypeError("no text")
    return given


def _time(given: str | None) -> str | None:
    if given is not None and datetime.fromisoformat(given).tzinfo is None:
        raise ValueError("no time with a zone")
    return given
