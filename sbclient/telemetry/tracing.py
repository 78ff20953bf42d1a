"""Creates spans like azure-servicebus and propagates trace contexts in messages. The only user of the tracing API.

Laws:
1. Without a tracer provider nothing is imported, no span is created and no message is changed.
2. Each sent message has a span of its own, whose context is in its application properties, as in azure-servicebus:
   `Diagnostic-Id`, `traceparent` and, if there is one, `tracestate`. A message that already has a context keeps it.
3. Spans of later operations on a message, in this process or another, are children of that context, so that one trace
   shows all of them. The span of an operation on several messages is linked to each.
4. Span times come from `sbclient.clock`.
"""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar

from sbclient import clock
from sbclient.amqp import EncodedMessage
from sbclient.message import ServiceBusReceivedMessage

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanContext, Tracer, TracerProvider

T = TypeVar("T")

Traced: TypeAlias = EncodedMessage | ServiceBusReceivedMessage

SCOPE: Final = "sbclient"
"""The name of the tracer."""

DIAGNOSTIC_ID: Final = "Diagnostic-Id"
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

TRACE_BYTES: Final = 160
"""The most bytes that a context without `tracestate` adds to an encoded message."""

LONGEST: Final = 512
"""Longer header values are ignored. Source: W3C Trace Context requires at least 512 characters of `tracestate`."""

SEND: Final = "ServiceBus.send"
SCHEDULE: Final = "ServiceBus.schedule"
MESSAGE: Final = "ServiceBus.message"
RECEIVE: Final = "ServiceBus.receive"
RECEIVE_DEFERRED: Final = "ServiceBus.receive_deferred"
PEEK: Final = "ServiceBus.peek"
DIVERT: Final = "sbclient.divert"
DRAIN: Final = "sbclient.drain"
DEAD_LETTER: Final = "sbclient.dead_letter"

OPERATION: Final = "messaging.operation"
COUNT: Final = "messaging.batch.message_count"
ENQUEUED: Final = "enqueuedTime"
ERROR: Final = "error.type"
QUEUE: Final = "sbclient.backlog.queue"

_FIXED: Final = {"az.namespace": "Microsoft.ServiceBus", "messaging.system": "servicebus"}
_API: Final = "opentelemetry.trace"

_attached: Tracer | None = None
_found: Tracer | None = None


def attach(provider: TracerProvider) -> None:
    """Send traces to this provider instead of the global one."""
    global _attached
    _attached = provider.get_tracer(SCOPE)


def detach() -> None:
    """Send traces to the global provider again, if there is one."""
    global _attached
    _attached = None


def is_on() -> bool:
    """Return whether there is a tracer provider, so that spans are created."""
    return _tracer() is not None


def _tracer() -> Tracer | None:
    global _found
    if _attached is not None or _found is not None:
        return _attached or _found
    if _API not in sys.modules:
        return None
    api = sys.modules[_API]
    if not hasattr(api, "get_tracer_provider"):
        return None  # another thread is importing it
    provider = api.get_tracer_provider()
    if isinstance(provider, (api.ProxyTracerProvider, api.NoOpTracerProvider)):
        return None  # imported, but the application has set no provider
    tracer: Tracer = provider.get_tracer(SCOPE)
    _found = tracer  # the global provider can be set only once
    return tracer


# -- the context of a message ------------------------------------------------------------------------------------------


def context_of(message: Traced) -> Context | None:
    """Return the trace context of a message, for use as the parent of a span; None if it has no valid context.

    Requires `opentelemetry-api`.
    """
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    properties = message.application_properties
    parent, state = properties.get(TRACEPARENT) or properties.get(DIAGNOSTIC_ID), properties.get(TRACESTATE)
    if not isinstance(parent, str) or len(parent) > LONGEST:
        return None
    carrier = {TRACEPARENT: parent}
    if isinstance(state, str) and len(state) <= LONGEST:
        carrier[TRACESTATE] = state
    context = TraceContextTextMapPropagator().extract(carrier, context={})  # type: ignore[arg-type]  # an empty one
    return context if get_current_span(context).get_span_context().is_valid else None


def is_signed(message: EncodedMessage) -> bool:
    """Return whether a message has a trace context, valid or not."""
    properties = message.application_properties
    return TRACEPARENT in properties or DIAGNOSTIC_ID in properties


def signed(message: EncodedMessage, span: Span, room_bytes: int) -> EncodedMessage:
    """Return the message with the context of a span, or without it if it adds more than `room_bytes`."""
    from opentelemetry.trace import set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, set_span_in_context(span))
    state_bytes = len(TRACESTATE) + len(carrier[TRACESTATE]) + 10 if TRACESTATE in carrier else 0
    if TRACEPARENT in carrier and TRACE_BYTES + state_bytes <= room_bytes:
        return message.with_added({DIAGNOSTIC_ID: carrier[TRACEPARENT], **carrier})
    return message


def _links(messages: Iterable[Traced]) -> list[Link]:
    from opentelemetry.trace import Link, get_current_span

    links = []
    for message in messages:
        context = context_of(message)
        if context is not None:
            attributes = (
                {ENQUEUED: int(message.enqueued_time_utc.timestamp() * 1000)}
                if isinstance(message, ServiceBusReceivedMessage)
                else None
            )
            links.append(Link(get_current_span(context).get_span_context(), attributes))
    return links


# -- spans -------------------------------------------------------------------------------------------------------------


class Spans:
    """A context manager that ends several spans together.

    An exception sets the status of the spans and propagates.

    Args:
        is_current: whether the first span is the current span inside the context.
    """

    def __init__(self, spans: Sequence[Span], *, is_current: bool = False) -> None:
        self._spans = spans
        self._is_current = is_current
        self._token: Any = None

    def set(self, name: str, value: str | int) -> None:
        """Set an attribute of each span."""
        for span in self._spans:
            span.set_attribute(name, value)

    def __enter__(self) -> Self:
        if self._is_current:
            from opentelemetry import context
            from opentelemetry.trace import set_span_in_context

            self._token = context.attach(set_span_in_context(self._spans[0]))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._token is not None:
            from opentelemetry import context

            context.detach(self._token)
        for span in self._spans:
            if error is not None:
                _blame(span, error)
            span.end(_ns(clock.now()))


def _blame(span: Span, error: BaseException) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute(ERROR, type(error).__name__)
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))


_NONE: Final = Spans(())


def sending(name: str, messages: list[EncodedMessage], where: Mapping[str, str | int], room_bytes: int) -> Spans:
    """Return a context manager with the span of a send. Each message without a trace context gets a span of its own.

    If there is no current span, the spans of the messages are children of the send, so that all are in one trace.

    Args:
        name: `SEND` or `SCHEDULE`.
        messages: each is replaced by the one with its trace context.
        where: the attributes that identify the entity and its namespace.
        room_bytes: the most bytes that a trace context may add to each message; a larger context is omitted.
    """
    tracer = _tracer()
    if tracer is None:
        return _NONE
    from opentelemetry.trace import SpanKind, get_current_span, set_span_in_context

    now_ns = _ns(clock.now())
    attributes = {**_FIXED, **where, OPERATION: "publish"}
    if len(messages) > 1:
        attributes[COUNT] = len(messages)
    has_parent = get_current_span().get_span_context().is_valid
    send = tracer.start_span(name, kind=SpanKind.CLIENT, attributes=attributes, start_time=now_ns)
    parent = None if has_parent else set_span_in_context(send)
    own = {**_FIXED, **where}
    for place, one in enumerate(messages):
        if is_signed(one):
            for link in _links([one]):
                send.add_link(link.context)
            continue
        span = tracer.start_span(MESSAGE, parent, kind=SpanKind.PRODUCER, attributes=own, start_time=now_ns)
        messages[place] = signed(one, span, room_bytes)
        span.end(now_ns)
        send.add_link(span.get_span_context())
    return Spans((send,), is_current=True)


def carrying(
    name: str,
    messages: Iterable[Traced],
    attributes: Mapping[str, str | int],
    work: Awaitable[T],
    *,
    answer: str | None = None,
) -> Awaitable[T]:
    """Return `work` with a span around it in the trace of each message that has a context.

    Args:
        name: `DIVERT`, `DRAIN` or `DEAD_LETTER`.
        answer: the name of the attribute for the result of `work`.
    """
    tracer = _tracer()
    return work if tracer is None else _carried(tracer, name, messages, attributes, work, answer)


async def _carried(
    tracer: Tracer,
    name: str,
    messages: Iterable[Traced],
    attributes: Mapping[str, str | int],
    work: Awaitable[T],
    answer: str | None,
) -> T:
    from opentelemetry.trace import SpanKind

    now_ns, said = _ns(clock.now()), {**_FIXED, **attributes}
    spans = Spans(
        [
            tracer.start_span(name, parent, kind=SpanKind.CLIENT, attributes=said, start_time=now_ns)
            for parent in filter(None, map(context_of, messages))
        ]
    )
    with spans:
        result = await work
        if answer is not None:
            spans.set(answer, str(result))
        return result


def handling(
    name: str,
    operation: str,
    messages: Sequence[ServiceBusReceivedMessage],
    where: Mapping[str, str | int],
    *,
    began_at: float | None = None,
) -> Spans:
    """Return a context manager with a span for an operation on received messages.

    The span is linked to each message. If there is one message and no current span, its trace is the message's trace.

    Args:
        name: `RECEIVE` or another.
        operation: `receive` or `settle`.
        began_at: start of the span in wall-clock seconds; None = now.
    """
    tracer = _tracer()
    if tracer is None:
        return _NONE
    from opentelemetry.trace import SpanKind, get_current_span

    attributes = {**_FIXED, **where, OPERATION: operation}
    if len(messages) > 1:
        attributes[COUNT] = len(messages)
    is_alone = len(messages) == 1 and not get_current_span().get_span_context().is_valid
    span = tracer.start_span(
        name,
        context_of(messages[0]) if is_alone else None,
        kind=SpanKind.CLIENT,
        attributes=attributes,
        links=_links(messages),
        start_time=_ns(clock.now() if began_at is None else began_at),
    )
    return Spans((span,), is_current=True)


def _ns(at: float) -> int:
    return int(at * 1e9)


# -- what is current ---------------------------------------------------------------------------------------------------


@contextmanager
def within(message: Traced) -> Iterator[None]:
    """Make the trace context of a message current, so that log events have its trace id."""
    context_module = sys.modules.get("opentelemetry.context")
    own = context_of(message) if context_module is not None and is_on() else None
    if own is None or context_module is None:
        yield
        return
    token = context_module.attach(own)
    try:
        yield
    finally:
        context_module.detach(token)


def ids() -> dict[str, str]:
    """Return `trace_id` and `span_id` of the current span, in hexadecimal; empty if there is none."""
    if _API not in sys.modules:
        return {}
    current = getattr(sys.modules[_API], "get_current_span", None)
    if current is None:
        return {}
    span: SpanContext = current().get_span_context()
    return {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"} if span.is_valid else {}


def outside() -> contextvars.Context | None:
    """Return the current context without its span, for a task that outlives its caller; None if there is no span."""
    if _API not in sys.modules or not ids():
        return None
    from opentelemetry import context

    own = contextvars.copy_context()
    own.run(context.attach, context.Context())
    return own
