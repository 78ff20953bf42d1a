"""A call that waits for an answer of the service over AMQP."""

from __future__ import annotations

import asyncio
import copy
from typing import Any, TypeVar

from sbclient.errors import OperationTimeoutError, ServiceBusError, with_doubt

E = TypeVar("E", bound=ServiceBusError)


class Waiter:
    """A call that waits for the service.

    Attributes:
        deadline: monotonic seconds.
        future: its result.
        doing: the operation and its object, for errors.
    """

    __slots__ = ("deadline", "doing", "future")

    def __init__(self, deadline: float, doing: str) -> None:
        self.deadline = deadline
        self.doing = doing
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def is_in_doubt(self) -> bool:
        """Whether the service may have acted if no answer comes."""
        return False

    def finish(self, result: Any = None) -> None:
        """Give the caller its result, unless it has gone."""
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Give the caller an error, unless it has gone."""
        if not self.future.done():
            self.future.set_exception(error)

    def expire(self) -> None:
        """The deadline has passed."""
        if not self.future.done():
            self.future.set_exception(timeout_error(self.doing, is_in_doubt=self.is_in_doubt))


def timeout_error(doing: str, *, is_in_doubt: bool) -> OperationTimeoutError:
    """Return the error of a call whose deadline has passed."""
    return OperationTimeoutError(
        f"{doing}: the service did not answer in time, whether it acted is in doubt"
        if is_in_doubt
        else f"{doing}: the service did not become ready in time, nothing was sent",
        is_in_doubt=is_in_doubt,
    )


def own_error(error: E, *, is_in_doubt: bool) -> E:
    """A copy of an error for one of several callers: an exception that many tasks raise mixes up their tracebacks.

    Args:
        error: the common cause.
        is_in_doubt: whether the service may have acted on this caller's request.
    """
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    return with_doubt(own, is_in_doubt)
