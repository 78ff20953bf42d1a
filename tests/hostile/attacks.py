"""The attacks by name. Each takes a running server and returns what it saw; all are bounded in bytes and time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from sbclient.amqp import Properties, encode_sections
from tests.hostile.keys import KEYS
from tests.hostile.raw_client import RawClient, attach_frame, connected, encoded_map
from tests.hostile.target import Server

KIB: Final = 1024
NULL: Final = b"\x40"


class Attack(NamedTuple):
    """One attack.

    Attributes:
        run: does it, and returns a note for the report.
        settles_s: how long the server may work after the last byte.
    """

    run: Callable[[Server], str]
    settles_s: float = 1.0


def flood_map_of_attach(kind: str) -> Callable[[Server], str]:
    """One attach with a map of 60 KiB, before any token."""

    def run(server: Server) -> str:
        keys = list(KEYS[kind](60 * KIB // (10 if kind == "numbers" else 18)))
        with connected(server.port) as (client,):
            frame = attach_frame(0, encoded_map((key, NULL) for key in keys))
            return _sent_and_answered(client, [frame], f"{len(keys)} keys")

    return run


def flood_map_of_request(kind: str) -> Callable[[Server], str]:
    """One request to `$cbs` whose body is a map of 140 KiB, before any token."""

    def run(server: Server) -> str:
        keys = list(KEYS[kind](140 * KIB // (10 if kind == "numbers" else 18)))
        body = b"\x00\x53\x77" + encoded_map((key, NULL) for key in keys)
        request = encode_sections(properties=Properties(message_id="m"), application_properties={"operation": "x"})
        with connected(server.port) as (client,):
            client.send(client.attach(0, "$cbs"))
            return _sent_and_answered(client, client.transfer(0, request + body), f"{len(keys)} keys")

    return run


def _sent_and_answered(client: RawClient, frames: Iterable[bytes], note: str) -> str:
    began_at = time.perf_counter()
    with suppress(OSError):
        client.send(*frames)
        client.send(b"\x00\x00\x00\x08\x00\x00\x00\x00")  # an invalid frame: the server closes the connection
        client.received()
    return f"{note}, answered after {time.perf_counter() - began_at:.2f} s"


ATTACKS: Final[dict[str, Attack]] = {
    **{f"attach-{kind}": Attack(flood_map_of_attach(kind)) for kind in KEYS},
    **{f"request-{kind}": Attack(flood_map_of_request(kind)) for kind in KEYS},
}
