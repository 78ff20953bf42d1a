"""Which transport a connection string or a namespace's name asks for."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from sbclient.clock import Clock
from sbclient.errors import InvalidOperationError
from sbclient.rules.connection_string import ConnectionString
from sbclient.transport.base import Transport

NAMES: Final = ("amqp", "sdk")
DEFAULT: Final = "amqp"
"""How a namespace on the network is reached where nothing is said."""


def open_transport(
    connection: ConnectionString | None,
    *,
    fully_qualified_namespace: str | None = None,
    credential: Any = None,
    clock: Clock,
    random: Random,
    transport: str | None = None,
    **sdk_options: Any,
) -> Transport:
    """A transport for a connection string, or for a namespace and a credential.

    Args:
        transport: `"amqp"`, our own engine, or `"sdk"`, azure-servicebus; None = the default. A namespace inside this
            process has one transport only.
        sdk_options: options with the names and meanings of azure-servicebus: `transport_type`, `http_proxy`,
            `custom_endpoint_address`, `connection_verify`, `ssl_context`, `user_agent`; for `"amqp"` also
            `enable_cross_entity_transactions`; for `"sdk"` whatever else azure-servicebus takes.

    Raises:
        InvalidOperationError: options of the SDK were given for a namespace inside this process, or there is no such
            transport.
    """
    if transport not in (None, *NAMES):
        raise InvalidOperationError(f"transport is {transport!r:.80}: give 'amqp', 'sdk', or an object with the port")
    if connection is not None and connection.is_memory:
        if sdk_options:
            raise InvalidOperationError(
                f"{', '.join(sorted(sdk_options))} mean nothing to {connection.namespace}: leave them out"
            )
        from sbclient.transport.memory.transport import MemoryTransport, memory_host  # with a whole broker behind it

        return MemoryTransport(memory_host(connection.host, clock=clock))
    from sbclient.transport.sdk.transport import open_azure_transport  # the SDK is loaded only where it is used

    if (transport or DEFAULT) == "sdk":
        return open_azure_transport(
            connection,
            fully_qualified_namespace=fully_qualified_namespace,
            credential=credential,
            clock=clock,
            random=random,
            **sdk_options,
        )
    from sbclient.transport.amqp.transport import open_amqp_transport

    def open_management() -> Transport:
        """Entities are managed through azure-servicebus."""
        options = {name: value for name, value in sdk_options.items() if name != "enable_cross_entity_transactions"}
        return open_azure_transport(
            connection,
            fully_qualified_namespace=fully_qualified_namespace,
            credential=credential,
            clock=clock,
            random=random,
            **options,
        )

    return open_amqp_transport(
        connection,
        fully_qualified_namespace=fully_qualified_namespace,
        credential=credential,
        clock=clock,
        random=random,
        management=open_management,
        **sdk_options,
    )
