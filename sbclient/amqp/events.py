"""What a connection tells its owner. Each event is a named tuple, so it can be matched and taken apart.

Every link that was announced by `AttachRequested` or asked for by this side ends with one `LinkDetached`, every session
with one `SessionEnded`, every connection with one `ConnectionClosed`, whoever ends them; except that nothing is told of
links and sessions that the owner ends itself, save `EndAnswered`.
"""

from __future__ import annotations

from typing import TypeAlias

from sbclient.amqp.connection import ConnectionClosed, ConnectionOpened, CredentialsOffered
from sbclient.amqp.delivery import DispositionReceived
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
    | DispositionWalked
)
