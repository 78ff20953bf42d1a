"""Two connections joined without a socket, and what each was told."""

from __future__ import annotations

from typing import Any, TypeVar

from sbclient.amqp import (
    AttachRequested,
    Connection,
    ConnectionOptions,
    IncomingLink,
    OutgoingLink,
    Session,
    Source,
    Target,
)

NOW = 1000.0
Told = TypeVar("Told")

CLIENT = ConnectionOptions(container_id="client", hostname="contoso", idle_timeout_s=None)
SERVER = ConnectionOptions(container_id="server")


class Pipe:
    """A client and a server; `flow` carries bytes both ways until both are quiet.

    Attributes:
        client_told, server_told: all events so far, oldest first.
    """

    def __init__(
        self, server: ConnectionOptions = SERVER, client: ConnectionOptions = CLIENT, chunk: int = 65_536, **asks: Any
    ) -> None:
        self.chunk = chunk
        self.client = Connection.client(client, now=NOW, **asks)
        self.server = Connection.server(server, now=NOW)
        self.client_told: list[Any] = []
        self.server_told: list[Any] = []

    def flow(self) -> None:
        """Carry everything; events are noted, none is answered."""
        while self._carry(self.client, self.server, self.server_told) | self._carry(
            self.server, self.client, self.client_told
        ):
            pass

    def _carry(self, source: Connection, sink: Connection, told: list[Any]) -> bool:
        output = source.bytes_to_send(now=NOW)
        for start in range(0, len(output), self.chunk):
            sink.receive_bytes(output[start : start + self.chunk], now=NOW)
            while (event := sink.next_event()) is not None:
                told.append(event)
        while (event := sink.next_event()) is not None:
            told.append(event)
        return bool(output)

    def session(self) -> Session:
        """A session that the client has begun, as the client sees it."""
        session = self.client.begin()
        self.flow()
        return session

    def sending(self, credit: int = 100, **asked: Any) -> tuple[OutgoingLink, IncomingLink]:
        """A link on which the client sends: its two ends."""
        link = self.session().attach_sender("s", target=Target(address="orders"), **asked)
        self.flow()
        end = last(self.server_told, AttachRequested).link
        assert isinstance(end, IncomingLink)
        end.accept(credit=credit)
        self.flow()
        return link, end

    def receiving(self, credit: int = 100, **asked: Any) -> tuple[OutgoingLink, IncomingLink]:
        """A link on which the server sends: its two ends."""
        link = self.session().attach_receiver("r", source=Source(address="orders"), **asked)
        self.flow()
        end = last(self.server_told, AttachRequested).link
        assert isinstance(end, OutgoingLink)
        end.accept()
        self.flow()
        link.grant(credit)
        self.flow()
        return end, link


def last(told: list[Any], kind: type[Told]) -> Told:
    """The newest event of a kind."""
    return [event for event in told if isinstance(event, kind)][-1]


def of_kind(told: list[Any], kind: type[Told]) -> list[Told]:
    """All events of a kind."""
    return [event for event in told if isinstance(event, kind)]
