"""Map keys of AMQP whose hashes an attacker chooses."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from random import Random
from typing import Final

MODULUS: Final = 2**61 - 1
"""Python's hash of a number is the number modulo this."""


def colliding_uuids(count: int) -> Iterator[bytes]:
    """Encoded UUIDs of one hash."""
    for number in range(count):
        yield b"\x98" + (number * MODULUS + 1).to_bytes(16, "big")


def colliding_decimals(count: int) -> Iterator[bytes]:
    """Encoded values of decimal128 of one hash."""
    for number in range(count):
        yield b"\x94" + ((0x3040 << 112) | (number * MODULUS + 1)).to_bytes(16, "big")


def chained_numbers(count: int) -> Iterator[bytes]:
    """Encoded ulongs of different hashes that make a dict of Python search long.

    A dict looks at the slot of the hash, then at `5 * slot + 1 + perturb`, where `perturb` is the hash shifted by 5
    more bits in each step. The first half of the keys fills the path that a search takes once `perturb` is 0. Each of
    the others begins at a filled slot, and its search meets filled slots until it enters the path near its start.
    """
    random = Random(1)
    bits = (count * 3 // 2).bit_length()
    mask = 2**bits - 1
    filled = count // 2
    position, slot = {}, 1
    for place in range(count):
        position[slot] = place
        slot = (5 * slot + 1) & mask
    path = list(position)[:filled]
    keys = dict.fromkeys(path)
    for _ in range(500 * count):
        if len(keys) == count:
            break
        key = (random.randrange(1, 2**12) << bits) | path[random.randrange(len(path))]
        slot, perturb = key & mask, key
        while perturb >> 5 and position.get(slot, count) < filled:
            perturb >>= 5
            slot = (5 * slot + perturb + 1) & mask
        if position.get(slot, count) < filled // 3 and key not in keys:
            keys[key] = None
            filled += 1
    return (b"\x80" + struct.pack(">Q", key) for key in keys)


KEYS: Final[dict[str, Callable[[int], Iterator[bytes]]]] = {
    "uuids": colliding_uuids,
    "decimals": colliding_decimals,
    "numbers": chained_numbers,
}
