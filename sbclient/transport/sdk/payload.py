"""Messages past the SDK's own codec: the bytes that came in are read, and what goes out is written, by `sbclient.amqp`.

Why: the SDK's decoder hands over text and names as bytes and moments as numbers, and its encoder refuses integers from
2**31 on, cuts lives to whole seconds and has no way to say several AMQP types. A message that passes through the syphon
would arrive as another.

How, in the words of the SDK's classes:

1. In: the bytes of each delivery are put, as they are, into the body of a message that otherwise has only header and
   annotations. That one the SDK decodes; `payload_of` takes the bytes out again.
2. Out: a batch (message format 0x80013700) whose parts we have encoded. So the SDK sends lists, too; one message is a
   batch of one.
3. Only with a version of the SDK whose inside is known. With any other the public way is taken, see `azure_message`:
   types are lost as said above (and the SDK cannot read decimals at all), what is given back counts as a delivery, and
   settling waits up to a second for a receive call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Any, Final, Self
from uuid import UUID

from sbclient.amqp.encode import encode_binary, encode_string, encode_value, sized_map
from sbclient.amqp.errors import EncodeError, WireError
from sbclient.amqp.message import WireMessage, encode_message
from sbclient.amqp.sections import DELIVERY_ANNOTATIONS, HEADER, MESSAGE_ANNOTATIONS, PROPERTIES, Sections
from sbclient.errors import InvalidOperationError
from sbclient.message import ServiceBusMessage
from sbclient.rules.size import PARTITION_KEY_ANNOTATION

KNOWN_VERSIONS: Final = ("7.15.",)
"""Beginnings of the versions of azure-servicebus whose inside is as this file expects."""

DRAIN_READ_S: Final = 0.1
MAX_DRAIN_READS: Final = 10
"""For 1 s at most the service's answer to a drain is awaited; behind it nothing comes any more."""

_DATA: Final = b"\x00\x53\x75"
_APPLICATION_PROPERTIES: Final = b"\x00\x53\x74"
_LOST_STATES: Final = ("DETACHED", "ERROR")
"""Of a link on which no outcome comes any more."""

_INT64: Final = range(-(2**63), 2**63)
_KEPT: Final = (str, int, float, datetime, UUID, Decimal, type(None))
"""What an application property of ours may be; the AMQP types that are subclasses of these keep themselves."""


@cache
def is_known_sdk() -> bool:
    """Whether the installed azure-servicebus is of a version whose inside is known."""
    from azure.servicebus import __version__ as version

    return version.startswith(KNOWN_VERSIONS)


class OpaqueProperty(str):
    """An application property that no class of ours can hold, such as binary: it reads as text, and is sent as it came.

    Attributes:
        encoded: its AMQP encoding.
    """

    __slots__ = ("encoded",)

    encoded: bytes

    @classmethod
    def of(cls, value: Any) -> Self:
        """For a value of the AMQP decoder."""
        shown = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
        opaque = cls(shown)
        opaque.encoded = encode_value(value)
        return opaque


# -- in ----------------------------------------------------------------------------------------------------------------


def wrapped(payload: bytes) -> bytes:
    """A message for the SDK to decode: the header and the annotations of `payload`, and all of it as the body."""
    try:
        sections = Sections(payload)
    except WireError:
        return _DATA + encode_binary(payload)
    head = sections.raw(HEADER) + sections.raw(DELIVERY_ANNOTATIONS) + sections.raw(MESSAGE_ANNOTATIONS)
    return head + _DATA + encode_binary(payload)


def payload_of(sdk_message: Any) -> bytes:
    """The bytes that `wrapped` put into a message which the SDK has decoded; it lets go of them."""
    raw = sdk_message.raw_amqp_message
    payload = b"".join(raw.body)
    raw._data_body = []
    return payload


def read_payload(payload: bytes) -> WireMessage:
    """The message in `payload`, whose application properties have values that ours may have.

    Raises:
        WireError, InvalidOperationError: it cannot be read.
    """
    message = WireMessage.of(payload)
    typed = message.sections.application_properties
    message._application_properties = {
        name: value if _is_kept(value) else OpaqueProperty.of(value) for name, value in typed.items()
    }
    return message


def _is_kept(value: Any) -> bool:
    return isinstance(value, _KEPT) and (not isinstance(value, int) or int(value) in _INT64)


class Tap:
    """What an opened receiver of the SDK is fitted with: raw payloads, and a way to interrupt it.

    Attributes:
        is_pausing: while true, a receive call returns with what it has; see `pause`.
        is_receiving: whether messages that arrive are wanted. The SDK gives back those that arrive between two of its
            calls; ours keeps them while it only makes room for somebody else. In a session they are always kept: one
            that is given back would be overtaken by the next.
    """

    def __init__(self, receiver: Any, *, keeps_all: bool) -> None:
        self._receiver = receiver
        self._keeps_all = keeps_all
        self.is_pausing = False
        self.is_receiving = False
        self._is_drained = False
        self._read: asyncio.Task[Any] | None = None
        handler = receiver._handler
        link, transport = handler._link, handler._connection._transport
        link._incoming_transfer = self._unpacking(link._incoming_transfer)
        link._incoming_flow = self._noting_drain(link._incoming_flow)
        handler.do_work_async = self._interruptible(handler.do_work_async)
        transport.receive_frame = self._interruptible_read(transport.receive_frame)
        link._on_transfer = self._message_received  # which the link took from its handler when it was made
        receiver._mgmt_request_response_with_retry = self._unpacking_replies(receiver._mgmt_request_response_with_retry)

    def pause(self) -> None:
        """Let the receive call that is inside come back at once, though it waits for a frame."""
        self.is_pausing = True
        if self._read is not None:
            self._read.cancel()

    def _unpacking(self, incoming_transfer: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
        """The bytes of all frames of a delivery, wrapped, come with its last frame."""
        parts: list[bytes] = []

        async def incoming(frame: Any) -> None:
            parts.append(bytes(frame[11]))
            payload = b""
            if not frame[5]:
                payload = wrapped(b"".join(parts))
                parts.clear()
            await incoming_transfer([*frame[:11], memoryview(payload), *frame[12:]])

        return incoming

    def _noting_drain(self, incoming_flow: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
        async def incoming(frame: Any) -> None:
            self._is_drained = self._is_drained or bool(frame[8])
            await incoming_flow(frame)

        return incoming

    def _interruptible(self, do_work: Callable[..., Awaitable[bool]]) -> Callable[..., Awaitable[bool]]:
        async def work(**kwargs: Any) -> bool:
            return not self.is_pausing and await do_work(**kwargs)

        return work

    def _interruptible_read(self, receive_frame: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """The SDK looks for a frame for a fifth of a second at a time, and cancels the look then: so may we, earlier.
        What had come of a frame is kept for the next look."""

        async def read(**kwargs: Any) -> Any:
            if not self._receiver._receive_context.is_set():
                return await receive_frame(**kwargs)
            look = self._read = asyncio.ensure_future(receive_frame(**kwargs))
            try:
                return await look
            except asyncio.CancelledError:
                if self.is_pausing and look.cancelled() and not _is_cancelling():
                    return None, None  # as after a look in vain
                raise
            finally:
                self._read = None

        return read

    async def _message_received(self, frame: Any, message: Any) -> None:
        if self._keeps_all or self.is_receiving or self._receiver._receive_context.is_set():
            self._receiver._handler._received_messages.put((frame, message))
        else:
            await self._receiver._handler.settle_messages_async(frame[1], frame[2], "released")

    def _unpacking_replies(self, request: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Peeked and deferred messages come in the replies of the management link."""

        async def requesting(mgmt_operation: bytes, message: Any, callback: Callable[..., Any], **kwargs: Any) -> Any:
            def unpacking(status: int, reply: Any, description: Any, amqp_transport: Any) -> Any:
                if isinstance(reply.value, dict):
                    for entry in reply.value.get(b"messages") or ():
                        entry[b"message"] = wrapped(bytes(entry[b"message"]))
                return callback(status, reply, description, amqp_transport=amqp_transport)

            return await request(mgmt_operation, message, unpacking, **kwargs)

        return requesting

    async def side_by_side(self, calls: Sequence[Coroutine[Any, Any, None]]) -> list[BaseException | None]:
        """Do settling calls of the SDK at the same time: all are sent, then all answers are awaited.

        Each call stays the SDK's own but for the moment in which it waits for its outcome. Left alone, each would read
        from the socket by itself, and wait in vain for what another one has read.

        Returns: the error of each call, None for those that succeeded.
        """
        link = self._receiver._handler._link
        wait_alone = link._wait_for_disposition_outcome
        outcomes: dict[int, asyncio.Future[None]] = {}
        moved = asyncio.Event()

        async def wait(delivery_ids: Sequence[int], *more: Any) -> None:
            outcome = outcomes[delivery_ids[0]] = asyncio.get_running_loop().create_future()
            moved.set()
            await outcome
            await wait_alone(delivery_ids, *more)  # it is there, and only has to be judged

        link._wait_for_disposition_outcome = wait
        tasks = [asyncio.ensure_future(call) for call in calls]
        for task in tasks:
            task.add_done_callback(lambda _: moved.set())
        try:
            while len(outcomes) + sum(task.done() for task in tasks) < len(tasks):
                moved.clear()
                await moved.wait()
            await self._hear(outcomes, wait_alone)
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            return [answer if isinstance(answer, BaseException) else None for answer in answers]
        finally:
            link._wait_for_disposition_outcome = wait_alone
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _hear(
        self, outcomes: dict[int, asyncio.Future[None]], wait_alone: Callable[..., Awaitable[None]]
    ) -> None:
        """Read from the socket until every outcome that is waited for has come, or none will come any more."""
        handler = self._receiver._handler
        link = handler._link
        try:
            while True:
                for number in [number for number in outcomes if link._pending_dispositions[number]["settled"]]:
                    outcomes.pop(number).set_result(None)
                if not outcomes:
                    return
                if link.state.name in _LOST_STATES:
                    await wait_alone(list(outcomes), None)  # raises what the SDK makes of it
                await handler._connection.listen(wait=False)
        except Exception as error:
            for number, outcome in outcomes.items():
                link._pending_dispositions.pop(number, None)
                outcome.set_exception(error)

    @property
    def arrived(self) -> int:
        """How many messages have arrived that no call has returned."""
        return int(self._receiver._handler._received_messages.qsize())

    @property
    def has_credit(self) -> bool:
        """Whether the service may still deliver something."""
        return bool(self._receiver._handler._link.current_link_credit > 0)

    async def drain(self) -> list[Any]:
        """Take back what credit is left, and return what had come on it, for a mode where nothing can be given back."""
        handler = self._receiver._handler
        self._is_drained = False
        await handler._link.flow(link_credit=0, drain=True)
        for _ in range(MAX_DRAIN_READS):
            await handler._connection.listen(wait=DRAIN_READ_S, batch=100)
            if self._is_drained:
                break
        arrived = []
        while not handler._received_messages.empty():
            arrived.append(self._receiver._build_received_message(handler._received_messages.get()))
        return arrived

    async def release(self, sdk_message: Any) -> None:
        """Give a message back as if it had never been delivered."""
        await self._receiver._handler.settle_messages_async(
            sdk_message._delivery_id, sdk_message._delivery_tag, "released"
        )
        sdk_message._settled = True


def _is_cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


# -- out ---------------------------------------------------------------------------------------------------------------


def encoded(message: ServiceBusMessage) -> bytes:
    """The message as it goes out.

    Raises:
        InvalidOperationError: AMQP cannot say its body or one of its properties.
    """
    try:
        properties = message._application_properties
        if properties and any(isinstance(value, OpaqueProperty) for value in properties.values()):
            return _with_opaque(message, properties)
        return encode_message(message)
    except EncodeError as error:
        raise InvalidOperationError(f"message {message.message_id!r} cannot be sent: {error}") from error


def _with_opaque(message: ServiceBusMessage, properties: Mapping[str, Any]) -> bytes:
    rest = Sections(encode_message(message.copy(application_properties=None)))
    entries: list[bytes] = []
    for name, value in properties.items():
        entries.append(encode_string(name))
        entries.append(value.encoded if isinstance(value, OpaqueProperty) else encode_value(value))
    return b"".join(
        (
            rest.raw(HEADER),
            rest.raw(MESSAGE_ANNOTATIONS),
            rest.raw(PROPERTIES),
            _APPLICATION_PROPERTIES,
            sized_map(b"".join(entries), len(entries)),
            rest.raw_body,
        )
    )


def fill_batch(batch: Any, messages: Sequence[ServiceBusMessage], payloads: Sequence[bytes]) -> None:
    """Put encoded messages into an empty batch of the SDK; it writes exactly `rules.size.batch_size` bytes for it."""
    first = messages[0]
    if first.session_id is not None:
        batch._message[3] = _front_class()((first.message_id, *(None,) * 9, first.session_id))
    elif first.message_id is not None:
        batch._message[3] = _front_class()((first.message_id,))
    if first.partition_key is not None:
        batch._message[2] = {PARTITION_KEY_ANNOTATION.encode(): first.partition_key}
    batch._message[5].extend(payloads)
    batch._count = len(payloads)


@cache
def _front_class() -> type[tuple[str | None, ...]]:
    """A properties section without the absent fields at its end, each of which the SDK's own class writes."""
    from azure.servicebus._pyamqp.message import Properties

    sdk_class: Any = Properties
    return type("Front", (tuple,), {"_code": sdk_class._code, "_definition": sdk_class._definition})


def schedule_request(messages: Sequence[ServiceBusMessage]) -> dict[str, list[dict[str, Any]]]:
    """The body of a request to schedule messages."""
    entries = []
    for message in messages:
        entry: dict[str, Any] = {"message-id": message.message_id}
        if message.session_id is not None:
            entry["session-id"] = message.session_id
        if message.partition_key is not None:
            entry["partition-key"] = message.partition_key
        entry["message"] = bytearray(encoded(message))
        entries.append(entry)
    return {"messages": entries}
