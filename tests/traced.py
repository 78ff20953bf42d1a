"""Spans that have ended, as a picture to compare."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan


def parent_of(span: ReadableSpan) -> int | None:
    """The id of the span's parent."""
    return span.parent.span_id if span.parent is not None else None


def tree(spans: Sequence[ReadableSpan]) -> str:
    """The names of spans, each below its parent and two columns to the right, in the order of their beginnings."""
    known = {span.context.span_id for span in spans if span.context}

    def lines(parent: int | None, depth: int) -> list[str]:
        found = []
        for span in sorted(spans, key=lambda span: span.start_time or 0):
            own = parent_of(span)
            if (own if own in known else None) == parent and span.context:
                found += ["  " * depth + span.name, *lines(span.context.span_id, depth + 1)]
        return found

    return "\n".join(lines(None, 0))
