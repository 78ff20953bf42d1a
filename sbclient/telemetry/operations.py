"""Records metrics and traces for the operations of one sender or receiver.

Operations are passed as coroutines. If telemetry is disabled, the coroutine is returned unchanged at almost no cost.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from sbclient import clock
from sbclient.amqp import EncodedMessage
from sbclient.errors import ServiceBusError
from sbclient.message import ServiceBusReceivedMessage
from sbclient.telemetry import metrics, tracing

T = TypeVar("T")

OPENTELEMETRY: Final = "opentelemetry"
"""Telemetry is disabled until the application has imported this package."""

PRIMARY: Final = "primary"
BACKLOG: Final = "backlog"
ROUTES: Final = (PRIMARY, BACKLOG)

ACCEPTED: Final = "accepted"
REFUSED: Final = "refused"
IN_DOUBT: Final = "in_doubt"


class Telemetry:
    """The telemetry of one entity of one namespace.

    Args:
        route: returns the current route of messages, `primary` or `backlog`.
        trace_room: returns how many bytes a trace context may add to each message of a call.
    """

    def __init__(
        self,
        namespace: str,
        path: str,
        *,
        route: Callable[[], str] = lambda: PRIMARY,
        trace_room: Callable[[list[EncodedMessage]], int] = lambda _: tracing.TRACE_BYTES,
    ) -> None:
        self._where = {metrics.DESTINATION: path, **metrics.server(namespace)}
        self._measured = {metrics.SYSTEM: "servicebus", **self._where}
        self._route = route
        self._trace_room = trace_room

    def sending(
        self, operation: str, messages: list[EncodedMessage] | int, send: Callable[..., Awaitable[T]], *args: Any
    ) -> Awaitable[T]:
        """Call `send(*args)`, which sends messages, with telemetry around it.

        Args:
            operation: `send` or `schedule`.
            messages: each is replaced by one with a trace context, if that fits; or their number, without tracing.
            send: sends the messages of the list; may return the route that they took.
        """
        if OPENTELEMETRY not in sys.modules or not (metrics.is_read() or tracing.is_on()):
            return send(*args)
        return self._sent(operation, messages, partial(send, *args))

    async def _sent(self, operation: str, messages: list[EncodedMessage] | int, send: Callable[[], Awaitable[T]]) -> T:
        began_at = clock.monotonic()
        name = tracing.SCHEDULE if operation == "schedule" else tracing.SEND
        traced = [] if isinstance(messages, int) else messages
        room_bytes = self._trace_room(traced) if tracing.is_on() else 0
        spans = tracing.sending(name, traced, self._where, room_bytes)
        result: dict[str, str | int] = {}
        try:
            with spans:
                try:
                    answer = await send()
                except BaseException as error:
                    result = self._result(error)
                    raise
                else:
                    result = self._result(None, answer)
                    return answer
                finally:
                    spans.set(metrics.ROUTE, result[metrics.ROUTE])
        finally:
            if metrics.is_read():
                attributes = {**self._measured, metrics.OPERATION: operation, **result}
                metrics.record(metrics.OPERATION_DURATION, clock.monotonic() - began_at, attributes)
                metrics.add(metrics.SENT, messages if isinstance(messages, int) else len(messages), attributes)

    def _result(self, error: BaseException | None, answer: Any = None) -> dict[str, str | int]:
        route = answer if answer in ROUTES else self._route()
        return {metrics.ROUTE: route, **result_of(error)}

    def received(
        self, name: str, messages: Sequence[ServiceBusReceivedMessage], began_at: float, *, is_consuming: bool = True
    ) -> None:
        """Record that messages were returned to the application.

        Args:
            name: the name of the span.
            began_at: start of the wait for them, in monotonic seconds.
            is_consuming: whether they were received and not only peeked.
        """
        if not messages or OPENTELEMETRY not in sys.modules:
            return
        if is_consuming and metrics.is_read():
            metrics.add(metrics.CONSUMED, len(messages), {**self._measured, metrics.OPERATION: "receive"})
        if tracing.is_on():
            waited_s = clock.monotonic() - began_at
            began_at = clock.now() - waited_s
            with tracing.handling(name, "receive", messages, self._where, began_at=began_at):
                pass

    def settling(self, message: ServiceBusReceivedMessage, mode: str, work: Awaitable[T]) -> Awaitable[T]:
        """Return `work`, a call that settles a message, with telemetry around it."""
        return self._settled(message, mode, work) if OPENTELEMETRY in sys.modules and tracing.is_on() else work

    async def _settled(self, message: ServiceBusReceivedMessage, mode: str, work: Awaitable[T]) -> T:
        name = f"ServiceBus.{mode.replace('_', '-')}"
        with tracing.handling(name, "settle", [message], self._where):
            return await work


def result_of(error: BaseException | None) -> dict[str, str | int]:
    """Return the attributes of an operation that ended with this error, or that succeeded. A cancelled operation is
    in doubt."""
    if error is None:
        return {metrics.OUTCOME: ACCEPTED}
    is_refused = isinstance(error, ServiceBusError) and not error.is_in_doubt
    return {metrics.OUTCOME: REFUSED if is_refused else IN_DOUBT, metrics.ERROR: type(error).__name__}
