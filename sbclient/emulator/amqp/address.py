"""The addresses of links, which name the token node, a management node or an entity.

Clients write addresses as bare paths or as `amqps://host:port/path`, also on plain TCP. Only the path is used.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from sbclient.amqp import WireError
from sbclient.amqp.errors import INVALID_FIELD
from sbclient.amqp.servicebus import CBS, MANAGEMENT

MAX_ADDRESS_LENGTH: Final = 2048
"""Characters, including the host."""

MAX_PATH_LENGTH: Final = 512
"""Characters; the longest valid path, to the transfer dead letters of a subscription, has fewer than 400."""


class Node(NamedTuple):
    """The node of a link.

    Attributes:
        path: of the entity; empty for the token node and for the management node of the namespace.
        kind: `"$cbs"`, `"$management"`, or `""` for the entity itself.
    """

    path: str
    kind: str = ""


def node_of(address: Any) -> Node:
    """The node that the address of a source, a target or the audience of a token names.

    Raises:
        WireError: the address is not a string, or too long.
    """
    if not isinstance(address, str):
        raise WireError(INVALID_FIELD, f"the address of a link is a {type(address).__name__}, a string is expected")
    if len(address) > MAX_ADDRESS_LENGTH:
        raise WireError(
            INVALID_FIELD, f"the address of a link has {len(address)} characters, {MAX_ADDRESS_LENGTH} are allowed"
        )
    path = entity_path_of(address)
    if len(path) > MAX_PATH_LENGTH:
        raise WireError(INVALID_FIELD, f"the path of a link has {len(path)} characters, {MAX_PATH_LENGTH} are allowed")
    if path.partition("/")[0].casefold() == CBS:  # older .NET clients receive replies from $cbs/<id>
        return Node("", CBS)
    base, slash, last = path.rpartition("/")
    if last.casefold() == MANAGEMENT:
        return Node(base if slash else "", MANAGEMENT)
    return Node(path)


def entity_path_of(address: str) -> str:
    """The path in an address, percent-decoded, without scheme, host, query and outer slashes."""
    _, scheme, rest = address.partition("://")
    path = rest.partition("/")[2] if scheme else address
    return unquote(path.partition("?")[0]).strip("/")
