"""Messages that the .NET client with paired namespaces has sent; `original_client.json` says where they come from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from sbclient.amqp import EncodedMessage


class Recorded(NamedTuple):
    """One recorded message.

    Attributes:
        client: the version of the client.
        role: primary, backlog or ping.
        path: of the queue that it was sent to.
        payload: its sections.
    """

    client: str
    role: str
    path: str
    payload: bytes

    def __str__(self) -> str:
        return f"{self.client}-{self.role}-{self.message.message_id if self.role != 'ping' else 0}"

    @property
    def message(self) -> EncodedMessage:
        return EncodedMessage.of(self.payload)

    @property
    def number(self) -> int:
        """The number of a message that is no ping."""
        return int((self.message.message_id or "").removeprefix("m"))


_FILE: Final = Path(__file__).with_name("original_client.json")
RECORDED: Final = [
    Recorded(**{**each, "payload": bytes.fromhex(each["payload"])})
    for each in json.loads(_FILE.read_text())["messages"]
]
BACKLOG: Final = [each for each in RECORDED if each.role == "backlog"]
PINGS: Final = [each for each in RECORDED if each.role == "ping"]


def healthy(recorded: Recorded) -> Recorded:
    """Return the message that the same client sent to its primary with the same attributes as one of the backlog."""
    return next(
        each
        for each in RECORDED
        if each.role == "primary" and each.client == recorded.client and each.number % 4 == recorded.number % 4
    )


def comparable(payload: bytes) -> dict[str, Any]:
    """Return the sections that another AMQP library reads, without what differs from one recorded message to the next.

    Values are text with their types, maps have no order, and nulls are left out. The number of the message is `#`, and
    a time that depends on the run is `?`; absolute expiry and creation are left out.
    """
    proton = pytest.importorskip("proton", reason="python-qpid-proton is not installed")
    found: dict[str, Any] = {}
    while payload:
        data = proton.Data()
        payload = payload[data.decode(payload) :]
        data.rewind()
        data.next()
        section = data.get_py_described()
        value = bytes(section.value) if isinstance(section.value, memoryview) else section.value
        name = _SECTIONS[int(section.descriptor)]
        if isinstance(value, list):
            value = {place: each for place, each in enumerate(value) if each is not None}
            if name == "properties":
                value = {place: each for place, each in value.items() if place not in (8, 9)}
        found[name] = (
            {str(key): _shown(each) for key, each in value.items()} if isinstance(value, dict) else _shown(value)
        )
    return found


_SECTIONS: Final = {
    0x70: "header",
    0x71: "delivery-annotations",
    0x72: "message-annotations",
    0x73: "properties",
    0x74: "application-properties",
    0x75: "data",
    0x77: "value",
}
_NUMBER: Final = re.compile(r"\A('m|'label |'c|'s|'pk|b'body-|int32\()\d")
_RUN: Final = re.compile(r"timestamp\((?!1795435200000)\d+\)")
"""Any timestamp but the one that each message has as a property."""


def _shown(value: Any) -> str:
    return _NUMBER.sub(r"\1#", _RUN.sub("timestamp(?)", repr(value)))
