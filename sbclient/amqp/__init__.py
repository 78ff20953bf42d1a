"""AMQP 1.0 without I/O: bytes in, events out; calls in, bytes out. For servers and clients.

A server runs one `Connection` for each socket. Without error handling and timers this looks as follows:

    connection = Connection.server(ConnectionOptions(container_id="contoso"), now=clock.now())
    while not connection.is_over:
        connection.receive_bytes(await reader.read(65_536), now=clock.now())      # or .receive_eof() on b""
        while (event := connection.next_event()) is not None:
            match event:
                case AttachRequested(IncomingLink() as link, attach):             # the peer requests to send
                    link.accept(credit=1_000, max_message_size=262_144)
                case AttachRequested(link, attach):                               # the peer requests to receive
                    link.refuse(AmqpError(NOT_FOUND, f"there is no {attach.source.address}"))
                case DeliveryReceived(link, delivery):
                    store(EncodedMessage.of(delivery.payload))                    # split_batch() for BATCH_FORMAT
                    delivery.settle(ACCEPTED)
                case CreditGranted(link, credit, drain):
                    for entry in take(min(credit, link.credit)):
                        link.send(encode_delivery(entry, annotations_of(entry)), tag=entry.token.bytes_le)
                case DispositionReceived(delivery, state, settled):
                    delivery.settle(state if settle(delivery.tag, state) else Rejected(AmqpError(...)))
                case DispositionsReceived(link, deliveries, state, settled):      # the same for several deliveries
                    link.settle_many(deliveries, state, settled=True)
        writer.write(connection.bytes_to_send(now=clock.now()))                   # after every call as well

The owner also calls `pass_time` at `next_deadline()`, and stops reading while its bytes are not written. If the peer
breaks a rule, the engine closes the link, session or connection and emits `LinkDetached`, `SessionEnded` or
`ConnectionClosed`; `next_event` never raises. `ConnectionOptions` bounds the memory that a peer can make this side use.
All events are in `amqp.events`.

Messages: `Sections` finds the sections of a message without decoding them, `EncodedMessage` is a message in
its encoded form, `encode_message` makes one, `encode_delivery` adds the broker's annotations to a stored message, and
`encode_value_message` builds requests and replies.

Values: the classes of `amqp.types` stand for AMQP types, and types of .NET, that have no Python type of their own.

The classes of `azure.servicebus.amqp` are here too, so that a search-and-replace of its name is enough.
"""

from sbclient.amqp.batch import EncodedBatch, split_batch
from sbclient.amqp.broker_annotations import BrokerAnnotations, encode_delivery
from sbclient.amqp.connection import Connection, ConnectionClosed, ConnectionOpened, CredentialsOffered
from sbclient.amqp.delivery import DispositionReceived, DispositionsReceived, IncomingDelivery, OutgoingDelivery
from sbclient.amqp.encoded import EncodedMessage, encode_message
from sbclient.amqp.errors import AmqpError, EncodeError, EndpointClosedError, WireError
from sbclient.amqp.incoming import DeliveryReceived, IncomingLink, LinkDrained
from sbclient.amqp.limits import Limits
from sbclient.amqp.link import AttachRequested, Link, LinkAttached, LinkDetached
from sbclient.amqp.options import ConnectionOptions
from sbclient.amqp.outgoing import CreditGranted, OutgoingLink
from sbclient.amqp.performatives import BATCH_FORMAT, Attach, Coordinator, Source, Target
from sbclient.amqp.sasl import PlainCredentials
from sbclient.amqp.sections import Header, Properties, Sections, encode_value_message
from sbclient.amqp.session import DispositionWalked, EndAnswered, Session, SessionBegun, SessionEnded, WindowOpened
from sbclient.amqp.states import (
    ACCEPTED,
    RELEASED,
    Accepted,
    Declare,
    Declared,
    Discharge,
    Modified,
    Rejected,
    Released,
    TransactionalState,
)
from sbclient.amqp.types import (
    Binary,
    Byte,
    Char,
    DateTimeOffset,
    Decimal32,
    Decimal64,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    TimeSpan,
    UByte,
    UInt,
    ULong,
    Uri,
    UShort,
)
from sbclient.message import (
    AmqpAnnotatedMessage,
    AmqpMessageBodyType,
    AmqpMessageHeader,
    AmqpMessageProperties,
)

__all__ = [
    "ACCEPTED",
    "BATCH_FORMAT",
    "RELEASED",
    "Accepted",
    "AmqpAnnotatedMessage",
    "AmqpError",
    "AmqpMessageBodyType",
    "AmqpMessageHeader",
    "AmqpMessageProperties",
    "Attach",
    "AttachRequested",
    "Binary",
    "BrokerAnnotations",
    "Byte",
    "Char",
    "Connection",
    "ConnectionClosed",
    "ConnectionOpened",
    "ConnectionOptions",
    "Coordinator",
    "CredentialsOffered",
    "CreditGranted",
    "DateTimeOffset",
    "Decimal32",
    "Decimal64",
    "Declare",
    "Declared",
    "DeliveryReceived",
    "Discharge",
    "DispositionReceived",
    "DispositionWalked",
    "DispositionsReceived",
    "EncodeError",
    "EncodedBatch",
    "EncodedMessage",
    "EndAnswered",
    "EndpointClosedError",
    "Float",
    "Header",
    "IncomingDelivery",
    "IncomingLink",
    "Int",
    "Limits",
    "Link",
    "LinkAttached",
    "LinkDetached",
    "LinkDrained",
    "Long",
    "Modified",
    "OutgoingDelivery",
    "OutgoingLink",
    "PlainCredentials",
    "Properties",
    "Rejected",
    "Released",
    "Sections",
    "Session",
    "SessionBegun",
    "SessionEnded",
    "Short",
    "Source",
    "Symbol",
    "Target",
    "TimeSpan",
    "TransactionalState",
    "UByte",
    "UInt",
    "ULong",
    "UShort",
    "Uri",
    "WindowOpened",
    "WireError",
    "encode_delivery",
    "encode_message",
    "encode_value_message",
    "split_batch",
]
