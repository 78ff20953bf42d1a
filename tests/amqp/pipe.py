"""Two connections joined without a socket, and the events of each."""

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
Event = TypeVar("Event")

CLIENT = ConnectionOptions(container_id="client", hostname="contoso", idle_timeout_s=None)
SERVER = ConnectionOptions(container_id="server")


class Pipe:
    """A client and a server; `flow` carries bytes in both directions until neither has output.

    Attributes:
        client_events, server_events: all events so far, oldest first.
    """

    def __init__(
        self, server: ConnectionOptions = SERVER, client: ConnectionOptions = CLIENT, chunk: int = 65_536, **asks: Any
    ) -> None:
        self.chunk = chunk
        self.client = Connection.client(client, now=NOW, **asks)
        self.server = Connection.server(server, now=NOW)
        self.client_events: list[Any] = []
        self.server_events: list[Any] = []

    def flow(self) -> None:
        """Carry all bytes and record the events, without answering them."""
        while self.carry(to_server=True) | self.carry(to_server=False):
            pass

    def carry(self, *, to_server: bool) -> bool:
        """Carry what one side has to send now; False if there is nothing."""
        if to_server:
            return self._carry(self.client, self.server, self.server_events)
        return self._carry(self.server, self.client, self.client_events)

    def _carry(self, source: Connection, sink: Connection, events: list[Any]) -> bool:
        output = source.bytes_to_send(now=NOW)
        for start in range(0, len(output), self.chunk):
            sink.receive_bytes(output[start : start + self.chunk], now=NOW)
            while (event := sink.next_event()) is not None:
                events.append(event)
        while (event := sink.next_event()) is not None:
            events.append(event)
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
        end = last(self.server_events, AttachRequested).link
        assert isinstance(end, IncomingLink)
        end.accept(credit=credit)
        self.flow()
        return link, end

    def receiving(self, credit: int = 100, **asked: Any) -> tuple[OutgoingLink, IncomingLink]:
        """A link on which the server sends: its two ends."""
        link = self.session().attach_receiver("r", source=Source(address="orders"), **asked)
        self.flow()
        end = last(self.server_events, AttachRequested).link
        assert isinstance(end, OutgoingLink)
        end.accept()
        self.flow()
        link.grant(credit)
        self.flow()
        return end, link


def last(events: list[Any], kind: type[Event]) -> Event:
    """The newest event of a kind."""
    return [event for event in events if isinstance(event, kind)][-1]


def of_kind(events: list[Any], kind: type[Event]) -> list[Event]:
    """All events of a kind."""
    return [event for event in events if isinstance(event, kind)]
