"""The events that a connection emits. Each event is a named tuple, for use in `match`.

Every link ends with one `LinkDetached`, every session with one `SessionEnded`, every connection with one
`ConnectionClosed`. Links and sessions that the owner ends itself emit no such event; the peer's answer to the end of a
session emits `EndAnswered`.
"""

from __future__ import annotations

from typing import TypeAlias

from sbclient.amqp.connection import ConnectionClosed, ConnectionOpened, CredentialsOffered
from sbclient.amqp.delivery import DispositionReceived, DispositionsReceived
from sbclient.amqp.incoming import DeliveryReceived, LinkDrained
from sbclient.amqp.link import AttachRequested, LinkAttached, LinkDetached
from sbclient.amqp.outgoing import CreditGranted
from sbclient.amqp.session import DispositionWalked, EndAnswered, SessionBegun, SessionEnded, WindowOpened

Event: TypeAlias = (
    CredentialsOffered
    | ConnectionOpened
    | ConnectionClosed
    | SessionBegun
    | SessionEnded
    | EndAnswered
    | WindowOpened
    | AttachRequested
    | LinkAttached
    | LinkDetached
    | CreditGranted
    | LinkDrained
    | DeliveryReceived
    | DispositionReceived
    | DispositionsReceived
    | DispositionWalked
)
