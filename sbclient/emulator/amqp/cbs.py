"""The token node `$cbs`: who a client is and what it may do is said by the tokens that it puts here.

Laws (source: claims-based security, documented; the statuses are what the SDK's users see):

1. 202: the token counts. 401: it proves nothing, or not for its audience. 404: the audience is an entity that does not
   exist. Rights are not looked at here: a token that lacks one is good, and the attach that needs it is refused.
2. That an entity does not exist is said as at every other door, so that no fault of the namespace is passed by: one
   that is down or hangs does not know what it holds.
3. The kind of a token is told from its text; what the client calls it is not believed.
"""

from __future__ import annotations

from sbclient.broker.faults import Operation
from sbclient.emulator.amqp.address import Node as Place
from sbclient.emulator.amqp.address import node_of
from sbclient.emulator.amqp.conditions import (
    ACCEPTED,
    BAD_REQUEST,
    UNAUTHORIZED,
    amqp_error_of,
    ends_connection,
    status_of,
)
from sbclient.emulator.amqp.peer import OPERATION_TIMEOUT_S, Peer
from sbclient.emulator.amqp.request_response import Replies, Request
from sbclient.errors import MessagingEntityNotFoundError, ServiceBusAuthenticationError, ServiceBusError


class TokenNode:
    """Takes the tokens of one connection."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def on_request(self, request: Request, replies: Replies) -> None:
        """Take one token, and say whether it counts."""
        try:
            # At once: a link that is attached next finds its token here.
            told = self._answered(request)
        except MessagingEntityNotFoundError:
            self._peer.start(self._answer_of_door(request, replies), name="amqp token for what is not there")
        else:
            _reply(request, replies, *told)

    def on_tokens_changed(self) -> None:
        """The node itself needs no token."""

    def _answered(self, request: Request) -> tuple[int, str]:
        """The status, and what it means.

        Raises:
            MessagingEntityNotFoundError: the audience does not exist.
        """
        if request.operation != "put-token":
            return BAD_REQUEST, f"$cbs knows put-token, not {request.operation[:64]!r}: send that"
        try:
            self._put(request)
        except MessagingEntityNotFoundError:
            raise
        except ServiceBusAuthenticationError as error:
            return UNAUTHORIZED, error.message
        except ServiceBusError as error:
            return status_of(amqp_error_of(error).condition), error.message
        return ACCEPTED, "Accepted"

    async def _answer_of_door(self, request: Request, replies: Replies) -> None:
        peer, path = self._peer, node_of(request.arguments.get("name")).path
        try:
            await peer.perform(
                Operation.OPEN,
                path,
                lambda call: peer.host.namespace.open_sender(call, path),
                timeout_s=OPERATION_TIMEOUT_S,
            )
            status, description = self._answered(request)  # somebody made it meanwhile
        except ServiceBusError as error:
            told = peer.told(error)
            if ends_connection(error):
                peer.flush()
                return
            status, description = status_of(told.condition), error.message
        _reply(request, replies, status, description)

    def _put(self, request: Request) -> None:
        peer = self._peer
        audience = node_of(request.arguments.get("name"))
        token = request.body
        if isinstance(token, bytes):
            token = token.decode(errors="replace")
        if not isinstance(token, str):
            token = ""
        grant = peer.context.authorizer.authenticate(token, peer.host.clock.now())
        path = _audience_path(audience)
        if not grant.covers(path):
            raise ServiceBusAuthenticationError(
                f"the token is for {grant.path!r} and does not cover its audience {path!r}: sign one for that"
            )
        if audience.path:
            peer.host.namespace.directory.find(audience.path)
        if peer.grants.add(path, grant):
            peer.tokens_changed()


def _reply(request: Request, replies: Replies, status: int, description: str) -> None:
    # The SDK takes the mere presence of an error condition as a failure, so it is never sent here.
    replies.send(request, {"status-code": status, "status-description": description})


def _audience_path(audience: Place) -> str:
    """Where a token counts: for a management node there alone, so that it opens no other link."""
    return "/".join(part for part in (audience.path, audience.kind) if part)
