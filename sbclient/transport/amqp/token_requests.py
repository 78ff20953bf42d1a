"""Requests about locks: calls of one step of the event loop that concern the same group share a request.

Laws:
1. A request names each token once, and at most 1,000 tokens. It ends at the earliest deadline of its calls, which are
   less than a second apart.
2. If the service refuses a request for several tokens, each token gets a request of its own. Any other error may have
   happened after the service acted, or a retry may help: then each call gets a copy of it.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import Final, Generic, TypeAlias, TypeVar
from uuid import UUID

from sbclient import clock
from sbclient.errors import ServiceBusConnectionError, ServiceBusError
from sbclient.tasks import OwnedTasks
from sbclient.transport.amqp.waiter import own_error

G = TypeVar("G", bound=Hashable)
T = TypeVar("T")

MAX_TOKENS: Final = 1_000
DEADLINES_APART_S: Final = 1.0

Ask: TypeAlias = Callable[[G, Sequence[UUID], float], Awaitable[Sequence[T]]]
"""Sends one request, for all tokens or none, within some seconds; returns an answer for each token."""


class _Calls(Generic[T]):
    """The calls that share a request, by token."""

    __slots__ = ("deadline", "futures")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.futures: dict[UUID, asyncio.Future[T]] = {}

    def has_room_for(self, token: UUID, deadline: float) -> bool:
        return (
            token not in self.futures
            and len(self.futures) < MAX_TOKENS
            and abs(deadline - self.deadline) < DEADLINES_APART_S
        )


class TokenRequests(Generic[G, T]):
    """Lets calls about lock tokens share requests.

    Args:
        ask: sends a request for tokens of one group.
        doing: the operation and its object, for errors.
        tasks: owns the requests.
    """

    def __init__(self, ask: Ask[G, T], doing: str, *, tasks: OwnedTasks) -> None:
        self._ask = ask
        self._doing = doing
        self._tasks = tasks
        self._waiting: dict[G, _Calls[T]] = {}

    async def call(self, group: G, token: UUID, deadline: float) -> T:
        """Return the answer for one token.

        Args:
            group: what the tokens of one request must have in common.
            token: of the lock.
            deadline: monotonic seconds.
        """
        calls = self._waiting.get(group)
        if calls is None or not calls.has_room_for(token, deadline):
            calls = _Calls(deadline)
            self._tasks.start(self._run(group, calls), name=self._doing)
            self._waiting[group] = calls
        calls.deadline = min(calls.deadline, deadline)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        calls.futures[token] = future
        return await future

    async def _run(self, group: G, calls: _Calls[T]) -> None:
        if self._waiting.get(group) is calls:
            del self._waiting[group]
        await self._answer(group, calls)

    async def _answer(self, group: G, calls: _Calls[T]) -> None:
        futures = {token: future for token, future in calls.futures.items() if not future.done()}
        if not futures:
            return
        try:
            timeout_s = max(calls.deadline - clock.monotonic(), 0.001)
            answers = await self._ask(group, list(futures), timeout_s)
        except ServiceBusError as error:
            if len(futures) > 1 and not error.is_in_doubt and not error.is_transient:
                await asyncio.gather(*(self._answer(group, _one(calls, token)) for token in futures))
            else:
                _fail(futures.values(), error)
        except Exception as error:
            _fail(futures.values(), error)
        except asyncio.CancelledError:
            _fail(
                futures.values(), ServiceBusConnectionError(f"{self._doing}: the client was closed", is_in_doubt=True)
            )
            raise
        else:
            for future, answer in zip(futures.values(), answers, strict=True):
                if not future.done():
                    future.set_result(answer)


def _one(calls: _Calls[T], token: UUID) -> _Calls[T]:
    alone = _Calls[T](calls.deadline)
    alone.futures[token] = calls.futures[token]
    return alone


def _fail(futures: Iterable[asyncio.Future[T]], error: Exception) -> None:
    for future in futures:
        if not future.done():
            if isinstance(error, ServiceBusError):
                future.set_exception(own_error(error, is_in_doubt=error.is_in_doubt))
            else:
                future.set_exception(copy.copy(error))
