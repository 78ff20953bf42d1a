"""Both ends of a connection in random sequences: when all is read they agree, and what has ended leaves nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any, Final

import pytest

from sbclient.amqp import (
    ACCEPTED,
    RELEASED,
    AmqpError,
    AttachRequested,
    Connection,
    ConnectionClosed,
    CreditGranted,
    DeliveryReceived,
    DispositionReceived,
    DispositionsReceived,
    EndAnswered,
    EndpointClosedError,
    IncomingLink,
    LinkDetached,
    LinkDrained,
    Modified,
    OutgoingLink,
    Rejected,
    Session,
    SessionEnded,
    Source,
    Target,
)
from sbclient.amqp.limits import decoded_bytes
from sbclient.amqp.outgoing import MAX_TAG_BYTES
from tests.amqp.pipe import CLIENT, NOW, SERVER, Pipe

ERROR: Final = AmqpError("amqp:not-found", "there is no orders")
OUTCOMES: Final = (ACCEPTED, ACCEPTED, RELEASED, Rejected(ERROR), Modified(delivery_failed=True))
ROOMY: Final[dict[str, Any]] = {"max_message_size": 4_000}
TIGHT: Final[dict[str, Any]] = {
    "max_frame_size": 512,
    "incoming_window": 5,
    "max_unsettled": 9,
    "max_message_size": 4_000,
    "max_partial_bytes": 6_000,
    "handle_max": 3,
    "channel_max": 1,
    "max_links": 6,
    "max_output_bytes": 700,
}


class Side:
    """One end: what it did, and the events that were reported to it."""

    def __init__(self, connection: Connection, events: list[Any], random: Random) -> None:
        self.connection = connection
        self.events = events
        self.random = random
        self.links: list[Any] = []
        self.sessions: list[Session] = []
        self.requests: list[Any] = []
        self.sent: dict[Any, dict[bytes, bytes]] = {}
        self.refused: dict[Any, set[bytes]] = {}
        self.received: dict[Any, dict[bytes, bytes]] = {}
        self.drains: set[Any] = set()  # links whose last grant was a drain that is not answered
        self.kept: set[Any] = set()  # links that renew their credit
        self.own: set[Any] = set()  # the links and sessions that this side ended first
        self.reported: Counter[tuple[Any, type]] = Counter()
        self.opened_bytes = decoded_bytes(connection.remote)

    def take(self) -> None:
        """Answer the events since the last time."""
        events, self.events[:] = list(self.events), []
        for event in events:
            match event:
                case AttachRequested(link, _):
                    self.links.append(link)
                    self.requests.append(link)
                case DeliveryReceived(link, message):
                    assert message.tag not in self.received.setdefault(link, {})
                    self.received[link][message.tag] = message.payload
                case CreditGranted(link, _, True):
                    if self.random.random() < 0.7:
                        self.send(link)
                    if link.is_open:
                        link.drained()
                case LinkDrained(link):
                    self.drains.discard(link)
                case DispositionReceived() | DispositionsReceived():
                    for each in [event] if isinstance(event, DispositionReceived) else event.each():
                        delivery: Any = each.delivery
                        assert delivery.is_settled or not each.settled
                        if delivery.link.is_sender and isinstance(each.state, Rejected) and each.state.error != ERROR:
                            self.refused.setdefault(delivery.link, set()).add(delivery.tag)
                        if not each.settled:
                            delivery.settle(each.state)
                case LinkDetached(link, _, _):
                    self.reported[link, LinkDetached] += 1
                    assert not self.reported[link.session, SessionEnded]
                case SessionEnded(session, _) | EndAnswered(session):
                    self.reported[session, type(event)] += 1

    def send(self, link: OutgoingLink) -> None:
        """Send as many messages as there is credit for, or fewer."""
        for _ in range(self.random.randrange(4)):
            if link.is_over or link.credit < 1:
                return
            sent = self.sent.setdefault(link, {})
            tag, size = len(sent).to_bytes(MAX_TAG_BYTES, "big"), self.random.choice((0, 9, 600, 3_999, 4_000, 4_001))
            sent[tag] = self.random.randbytes(size)
            settled = self.random.random() < 0.2
            link.send(sent[tag], tag=tag, settled=settled)
            if settled:  # a refusal would not be reported
                self.refused.setdefault(link, set()).add(tag)

    def act(self) -> None:
        """Do one thing at random."""
        random = self.random
        link = random.choice(self.links) if self.links else None
        if link is None or link.is_over:
            return
        match random.randrange(12):
            case 0 | 1 | 2 if isinstance(link, OutgoingLink):
                self.send(link)
            case 0 | 1 if isinstance(link, IncomingLink) and link.has_attached:
                drain = random.random() < 0.4 and link not in self.kept
                link.grant(random.randrange(5), drain=drain)
                (self.drains.add if drain else self.drains.discard)(link)
            case 2 if isinstance(link, IncomingLink) and link.is_open:
                self.keep(link, random.choice((0, 4)))
            case 3 | 4 | 5 | 6 if isinstance(link, IncomingLink) and link.unsettled:
                some = random.sample(list(link.unsettled.values()), random.randint(1, len(link.unsettled)))
                state, settled = random.choice(OUTCOMES), random.random() < 0.7
                if random.random() < 0.5:
                    link.settle_many(some, state, settled=settled)
                else:
                    del some[1:]
                    some[0].settle(state, settled=settled)
                assert all(each.is_settled is settled for each in some)
            case 7 if random.random() < 0.5:
                self.own.add(link)
                link.detach(random.choice((None, ERROR)))
            case 8 if random.random() < 0.2:
                self.end(link.session)
            case _ if link in self.requests:
                self.answer(link)

    def keep(self, link: IncomingLink, credit: int) -> None:
        """Let the link renew its credit, as the memory of this side knows."""
        link.keep_credit(credit)
        (self.kept.add if credit else self.kept.discard)(link)
        if credit:
            self.drains.discard(link)

    def answer(self, link: Any) -> None:
        """Accept or refuse what the peer requested."""
        self.requests.remove(link)
        if link.is_over:
            return
        if self.random.random() < 0.1:
            self.own.add(link)
            link.refuse(ERROR)
        elif isinstance(link, IncomingLink):
            link.accept()
            self.keep(link, self.random.choice((0, 3)))
        else:
            link.accept()

    def end(self, session: Session) -> None:
        """End a session, which ends its links without a report to this side."""
        if session.is_open:
            self.own.add(session)
            self.own.update(link for link in session.links if not self.reported[link, LinkDetached])
            session.end(self.random.choice((None, ERROR)))

    def ask(self) -> None:
        """Begin a session, or request a link."""
        try:
            if not self.sessions or self.random.random() < 0.1:
                self.sessions.append(self.connection.begin())
                return
            session = self.random.choice(self.sessions[-2:])
            name = self.random.choice("abc")
            number = {"number": len(self.links)}
            if any(link.name == name for link in session.links):
                return  # names are unique while they are in use
            if self.random.random() < 0.5:
                link: Any = session.attach_sender(name, target=Target("t"), properties=number)
            else:
                link = session.attach_receiver(name, source=Source("s"), properties=number)
            self.links.append(link)
        except EndpointClosedError:
            return

    def check(self) -> None:
        """The connection counts what there is."""
        connection: Any = self.connection
        links = [link for session in connection.sessions for link in session.links]
        assert connection._link_count == len(links)
        assert connection._retained_bytes == self.opened_bytes + sum(link.retained_bytes for link in links)
        partial = [link._partial for link in links if isinstance(link, IncomingLink) and link._partial is not None]
        assert connection._partial_bytes == sum(each.reserved for each in partial)
        for session in connection.sessions:
            for is_sender in (True, False):
                mine = [link for link in session.links if link.is_sender is is_sender]
                kept = {number: each for link in mine for number, each in link.unsettled.items()}
                assert session._direction(is_sender) == kept

    def check_over(self) -> None:
        """What is over says nothing more, whatever is asked of it."""
        for link in self.links:
            if link.is_over:
                link.settle_many(list(link.unsettled.values()), ACCEPTED, settled=True)
                for each in link.unsettled.values():
                    each.settle(ACCEPTED)
                link.detach()
        for session in self.sessions:
            if not session.is_open:
                session.end()
                assert not session.links
        assert not self.connection.has_output

    def check_reports(self, *, is_closed: bool) -> None:
        """What one side ends is reported to the other side once, and never to itself."""
        for each in [*self.links, *self.sessions]:
            kind, is_over = (LinkDetached, each.is_over) if each in self.links else (SessionEnded, not each.is_open)
            assert self.reported[each, kind] == (is_over and each not in self.own), each
            if kind is SessionEnded and not is_closed:
                assert self.reported[each, EndAnswered] == (each in self.own)


class Walk:
    """A pipe whose two ends act at random."""

    def __init__(self, seed: int, options: dict[str, Any]) -> None:
        self.random = Random(seed)
        self.pipe = Pipe(replace(SERVER, **options), replace(CLIENT, **options), chunk=self.random.choice((7, 65_536)))
        self.pipe.flow()
        self.client = Side(self.pipe.client, self.pipe.client_events, self.random)
        self.server = Side(self.pipe.server, self.pipe.server_events, self.random)
        self.sides = (self.client, self.server)

    def run(self) -> None:
        for _ in range(self.random.randrange(60)):
            self.client.ask()
            for side in self.random.sample(self.sides, 2):
                side.act()
            if self.random.random() < 0.5:  # what is on its way crosses what the other side does next
                self.pipe.carry(to_server=self.random.random() < 0.5)
            for side in self.sides:
                if self.random.random() < 0.5:
                    side.take()

    def rest(self) -> None:
        """Carry everything, until neither side has something to say."""
        for side in self.sides:
            for link in list(side.requests):
                side.answer(link)
        self.pipe.flow()
        while any(side.events for side in self.sides):
            for side in self.sides:
                side.take()
                for link in list(side.requests):
                    side.answer(link)
            self.pipe.flow()

    def close(self) -> None:
        """Close the connection; all that ends with it is reported to each side, and then the end."""
        side = self.random.choice(self.sides)
        if self.random.random() < 0.4:
            for each in self.sides:
                each.connection.receive_eof()
        else:
            for session in side.connection.sessions:
                side.end(session)
            side.connection.close(ERROR, now=NOW)
        self.pipe.flow()
        for each in self.sides:
            closed = each.events[-1]
            each.take()
            assert isinstance(closed, ConnectionClosed)
            assert each.connection.is_over
            each.check_reports(is_closed=True)

    def check(self, *, loses_none: bool) -> None:
        """At rest, the two ends of each link agree."""
        for side in self.sides:
            side.check()
            side.check_over()
            side.check_reports(is_closed=False)
        numbers: dict[int, Any] = {link.remote.properties["number"]: link for link in self.server.links}
        for number, here in enumerate(self.client.links):
            there: Any = numbers.get(number)
            assert here.is_open == (there is not None and there.is_open)
            if not here.is_open:
                continue
            out, end = (here, there) if here.is_sender else (there, here)
            sender, receiver = self.sides if here.is_sender else self.sides[::-1]
            assert not out.session.held_bytes
            assert out.delivery_count == end.delivery_count
            assert out.credit == max(0, min(end.credit, out.session.unsettled_room))
            assert end not in receiver.drains, "a drain that no grant followed was not answered"
            assert {one.tag: one.state for one in out.unsettled.values()} == {
                one.tag: one.state for one in end.unsettled.values()
            }
            sent, received = sender.sent.get(out, {}), receiver.received.get(end, {})
            assert list(received) == sorted(received)
            for tag, payload in sent.items():
                if tag in received:
                    assert received[tag] == payload
                    assert len(payload) <= 4_000
                else:
                    assert tag in sender.refused[out]
                    assert len(payload) > 4_000 or not loses_none


@pytest.mark.parametrize("options", [ROOMY, TIGHT], ids=["roomy", "tight"])
def test_both_ends_agree_after_any_sequence_and_what_has_ended_leaves_nothing(options: dict[str, Any]) -> None:
    for seed in range(60):
        walk = Walk(seed, options)
        for cycle in range(4):
            walk.run()
            if cycle == 3:
                walk.close()
                break
            walk.rest()
            walk.check(loses_none=options is ROOMY)
            if cycle == 1:
                side = walk.random.choice(walk.sides)
                for session in side.connection.sessions:
                    side.end(session)
                walk.rest()
                walk.check(loses_none=options is ROOMY)
                assert [side.connection.sessions for side in walk.sides] == [[], []]
