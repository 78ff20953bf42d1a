"""The token node `$cbs`: a client authenticates by the tokens that it puts here.

Laws (source: claims-based security, documented; users of the SDK see the statuses):

1. 202: the token is valid. 401: the token is invalid, or does not cover its audience. 404: the audience is an entity
   that does not exist. Rights are not checked here: a token without one is valid, and the attach that needs the right
   is refused.
2. Namespace faults also apply to a token for an entity that does not exist: a namespace that is down cannot report it.
3. The text of a token determines its type; the type that the client names is ignored.
"""

from __future__ import annotations

from sbclient import clock
from sbclient.amqp import servicebus
from sbclient.broker.faults import Operation
from sbclient.emulator.amqp.address import Node as Place
from sbclient.emulator.amqp.address import node_of
from sbclient.emulator.amqp.conditions import (
    ACCEPTED,
    BAD_REQUEST,
    INTERNAL,
    UNAUTHORIZED,
    amqp_error_of,
    ends_connection,
    status_of,
)
from sbclient.emulator.amqp.peer import OPERATION_TIMEOUT_S, Peer
from sbclient.emulator.amqp.request_response import Replies, Request
from sbclient.emulator.sas import ExpiryMissingError
from sbclient.errors import MessagingEntityNotFoundError, ServiceBusAuthenticationError, ServiceBusError


class TokenNode:
    """Stores the tokens of one connection."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def on_request(self, request: Request, replies: Replies) -> None:
        """Store one token, and reply whether it is valid."""
        try:
            # Without waiting, because the next attach needs the token.
            reply = self._put_token(request)
        except MessagingEntityNotFoundError:
            self._peer.start(self._reply_as_broker(request, replies), name="amqp token for a missing entity")
        else:
            _reply(request, replies, *reply)

    def _put_token(self, request: Request) -> tuple[int, str]:
        """Store a token; returns the status and its description.

        Raises:
            MessagingEntityNotFoundError: the audience does not exist.
        """
        if request.operation != servicebus.PUT_TOKEN:
            return BAD_REQUEST, f"$cbs has no operation {request.operation[:64]!r}: send put-token"
        try:
            self._put(request)
        except MessagingEntityNotFoundError:
            raise
        except ExpiryMissingError as error:  # seen with the service
            text = "The service was unable to process the request; please retry the operation."
            return INTERNAL, f"{text} The cause: {error.message}"
        except ServiceBusAuthenticationError as error:
            return UNAUTHORIZED, error.message
        except ServiceBusError as error:
            return status_of(amqp_error_of(error).condition), error.message
        return ACCEPTED, "Accepted"

    async def _reply_as_broker(self, request: Request, replies: Replies) -> None:
        """Open a sender to the missing entity, so that the client gets the error, or the fault, of the broker."""
        peer, path = self._peer, node_of(request.arguments.get(servicebus.NAME)).path
        try:
            await peer.perform(
                Operation.OPEN,
                path,
                lambda call: peer.host.namespace.open_sender(call, path),
                timeout_s=OPERATION_TIMEOUT_S,
            )
            status, description = self._put_token(request)  # the entity was created in between
        except ServiceBusError as error:
            reported = peer.report(error)
            if ends_connection(error):
                peer.flush()
                return
            status, description = status_of(reported.condition), reported.description or ""
        _reply(request, replies, status, description)

    def _put(self, request: Request) -> None:
        peer = self._peer
        audience = node_of(request.arguments.get(servicebus.NAME))
        token = request.body
        if isinstance(token, bytes):
            token = token.decode(errors="replace")
        if not isinstance(token, str):
            token = ""
        grant = peer.context.authorizer.authenticate(token, clock.now())
        path = _audience_path(audience)
        if not grant.covers(path):
            raise ServiceBusAuthenticationError(
                "InvalidAudience: The authorization header contains a token with a wrong audience. It is for "
                f"{grant.path!r} and does not cover {path!r}: sign one for that"
            )
        if audience.path:
            peer.host.namespace.directory.find(audience.path)
        peer.admit(path, grant)


def _reply(request: Request, replies: Replies, status: int, description: str) -> None:
    # The SDK takes any error condition as a failure, so the reply has none.
    replies.send(request, {servicebus.CBS_STATUS_CODE: status, servicebus.CBS_STATUS_DESCRIPTION: description})


def _audience_path(audience: Place) -> str:
    """The path that a token covers. A token for a management node covers only that node."""
    return "/".join(part for part in (audience.path, audience.kind) if part)
