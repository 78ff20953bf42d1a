"""Claims-based security: the tokens of one connection, put to its node `$cbs`.

Laws:
1. A connection has one pair of links with `$cbs`. There is one token for each audience.
2. A token is replaced when 85 % of its time has passed; links do not notice. If that fails it is tried again, and the
   links stay attached until the token expires.
3. The status of the reply decides the error: the service answers 404 for an entity that does not exist.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Final

from sbclient import clock
from sbclient.amqp import servicebus
from sbclient.errors import ServiceBusAuthenticationError, ServiceBusError
from sbclient.tasks import Deadlines, OwnedTasks
from sbclient.telemetry.log import get_logger
from sbclient.transport.amqp.connection import AmqpConnection
from sbclient.transport.amqp.credentials import Token, TokenSource
from sbclient.transport.amqp.requests import Requests
from sbclient.transport.amqp.single_flight import SingleFlight
from sbclient.transport.credential_file import Rejections

log = get_logger(__name__)

PUT_S: Final = 60.0
"""How long the service may take to judge a token, where the caller waits longer."""

RENEWED_AFTER: Final = 0.85
RETRY_S: Final = 10.0
LEAST_LIFE_S: Final = 1.0
"""A token is used this long at least, also one that has ended by the clock of this machine."""
_LONGEST_NAP_S: Final = 86_400.0
_LATEST: Final = 253_402_300_799.0


class Tokens:
    """The tokens of one connection.

    Args:
        connection: an open one.
        source: gives out tokens.
        host: of the audiences.
        rejections: of the credential, shared by the connections of a namespace.
        tasks: owns the tasks that outlive a call.
        deadlines: expires requests.
    """

    def __init__(
        self,
        connection: AmqpConnection,
        source: TokenSource,
        host: str,
        *,
        rejections: Rejections,
        tasks: OwnedTasks,
        deadlines: Deadlines,
    ) -> None:
        self._connection = connection
        self._source = source
        self._host = host
        self._rejections = rejections
        self._tasks = tasks
        self._renew_at: dict[str, float] = {}
        self._expires_at: dict[str, float] = {}
        self._puts: dict[str, SingleFlight[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._requests = Requests(self._connect, servicebus.CBS, tasks=tasks, deadlines=deadlines)

    async def ensure(self, path: str) -> None:
        """Return when the connection has a token for an entity.

        Raises:
            ServiceBusError: the service refuses the token, or the credential gives none; nothing is in doubt.
        """
        if self.has(path):
            return
        put = self._puts.get(path)
        if put is None:
            put = SingleFlight(lambda: self._put(path), tasks=self._tasks, name=f"put a token for {path}")
            self._puts[path] = put
        try:
            await put.get()
        finally:
            if not put.is_running and self._puts.get(path) is put:  # else a later caller has begun another one
                del self._puts[path]

    def has(self, path: str) -> bool:
        """Whether the connection has a valid token for an entity."""
        return self._expires_at.get(path, 0.0) > clock.now()

    async def renew(self) -> None:
        """Replace every token now, because the credential may have changed."""
        await asyncio.gather(*map(self._renew, list(self._renew_at)))

    def stop(self) -> None:
        """Renew nothing any more, because the connection is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self, error: ServiceBusError) -> None:
        """Renew nothing any more, and detach."""
        self.stop()
        self._requests.close(error)

    async def _connect(self) -> AmqpConnection:
        return self._connection

    async def _put(self, path: str) -> None:
        audience = f"amqps://{self._host}/{path}"
        token = await self._source(audience)
        arguments = {
            servicebus.TYPE: token.kind,
            servicebus.NAME: audience,
            servicebus.EXPIRATION: datetime.fromtimestamp(min(token.expires_at, _LATEST), tz=UTC),
        }
        doing = f"open {path!r}"
        try:
            await self._requests.ask(
                servicebus.PUT_TOKEN, token.text, doing=doing, timeout_s=PUT_S, arguments=arguments
            )
        except ServiceBusAuthenticationError as error:
            self._rejections.rejected(error)
            raise
        self._rejections.accepted()
        self._note(path, token)

    def _note(self, path: str, token: Token) -> None:
        now = clock.now()
        self._expires_at[path] = token.expires_at
        self._renew_at[path] = now + max((token.expires_at - now) * RENEWED_AFTER, LEAST_LIFE_S)
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._renew_at and not self._connection.is_over:
            delay_s = min(self._renew_at.values()) - clock.now()
            self._timer = clock.call_later(min(max(delay_s, 0.0), _LONGEST_NAP_S), self._renew_due)

    def _renew_due(self) -> None:
        self._timer = None
        if self._connection.is_over or self._tasks.is_closed:
            return
        now = clock.now()
        due = [path for path, at in self._renew_at.items() if at <= now]
        for path in due:
            self._renew_at[path] = now + RETRY_S
            self._tasks.start(self._renew(path), name=f"renew the token for {path}")
        self._arm()

    async def _renew(self, path: str) -> None:
        try:
            await self._put(path)
        except ServiceBusError as error:
            log.warning("amqp.token_not_renewed", "cannot renew the token of {path!r}: {error}", path=path, error=error)
