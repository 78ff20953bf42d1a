"""Opens the transport for a connection string or a namespace."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any, Final

from sbclient.errors import InvalidOperationError, TransactionNotSupportedError
from sbclient.options import TRANSPORT_OPTIONS, check_known
from sbclient.rules.connection_string import ConnectionString, namespace_name
from sbclient.transport.base import Transport

NAMES: Final = ("amqp", "sdk")
DEFAULT: Final = "amqp"
"""The default transport for a namespace on the network."""

_OF_TLS: Final = ("connection_verify", "ssl_context")
"""Options without an effect on a namespace in this process, so that a program can be tested there unchanged."""


def open_transport(
    connection: ConnectionString | None,
    *,
    fully_qualified_namespace: str | None = None,
    credential: Any = None,
    random: Random,
    transport: str | None = None,
    enable_cross_entity_transactions: bool = False,
    **sdk_options: Any,
) -> Transport:
    """Return a transport for a connection string, or for a namespace and a credential.

    Args:
        fully_qualified_namespace: `contoso.servicebus.windows.net`, also as `https://…/` or `sb://…/`.
        transport: `"amqp"`, our own engine, or `"sdk"`, azure-servicebus; None = the default. Ignored for a namespace
            in this process.
        enable_cross_entity_transactions: whether transactions may span entities.
        sdk_options: see `TRANSPORT_OPTIONS`.

    Raises:
        InvalidOperationError: the transport is unknown, or `sdk_options` were given for a namespace in this process.
        TransactionNotSupportedError: transactions over azure-servicebus cannot span entities.
    """
    if transport not in (None, *NAMES):
        raise InvalidOperationError(f"transport is {transport!r:.80}: give 'amqp', 'sdk', or an object with the port")
    if fully_qualified_namespace is not None:
        fully_qualified_namespace = namespace_name(fully_qualified_namespace)
    if connection is not None and connection.is_memory:
        for name in _OF_TLS:
            sdk_options.pop(name, None)
        if sdk_options:
            check_known(sdk_options, TRANSPORT_OPTIONS)
            raise InvalidOperationError(
                f"{', '.join(sorted(sdk_options))}: {connection.namespace} has no such options, remove them"
            )
        from sbclient.transport.memory.transport import MemoryTransport, memory_host  # imports the broker

        host = memory_host(connection.host)
        return MemoryTransport(host, is_cross_entity=enable_cross_entity_transactions)
    from sbclient.transport.sdk.transport import open_sdk_transport  # imports the SDK

    open_sdk = partial(
        open_sdk_transport,
        connection,
        fully_qualified_namespace=fully_qualified_namespace,
        credential=credential,
        random=random,
        **sdk_options,
    )
    if (transport or DEFAULT) == "sdk":
        if enable_cross_entity_transactions:
            raise TransactionNotSupportedError(
                "azure-servicebus has no transactions over several entities: remove enable_cross_entity_transactions, "
                "or use transport='amqp'"
            )
        return open_sdk()
    from sbclient.transport.amqp.transport import open_amqp_transport

    return open_amqp_transport(
        connection,
        fully_qualified_namespace=fully_qualified_namespace,
        credential=credential,
        random=random,
        management=open_sdk,
        enable_cross_entity_transactions=enable_cross_entity_transactions,
        **sdk_options,
    )
