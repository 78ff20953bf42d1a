"""Time and memory of the decoder for the worst inputs that are known: `python -m tests.hostile.decoding`.

Each input is decoded at two sizes. The time for a byte must not grow with the size. A refused input counts, too.
"""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Final

from sbclient.amqp.decode import MAX_COUNT, MAX_OTHER_KEYS, decode_value
from sbclient.amqp.encode import MAX_DEPTH
from sbclient.amqp.errors import WireError
from tests.hostile.keys import KEYS
from tests.hostile.raw_client import encoded_map

SIZES: Final = (2**17, 2**20)
MAX_BYTES_PER_BYTE: Final = 100
MAX_NS_PER_BYTE: Final = 1_000


def repeated(element: bytes, size: int) -> bytes:
    """Lists of as many elements as are allowed, in a list."""
    of_list = min(MAX_COUNT, max(1, size // len(element)))
    inner = b"\xd0" + struct.pack(">II", of_list * len(element) + 4, of_list) + element * of_list
    count = max(1, size // len(inner))
    return b"\xd0" + struct.pack(">II", len(inner) * count + 4, count) + inner * count


def nested(size: int) -> bytes:
    """Lists as deep as allowed."""
    value = b"\x40"
    for _ in range(MAX_DEPTH - 3):
        value = b"\xd0" + struct.pack(">II", len(value) + 4, 1) + value
    return repeated(value, size)


def maps(keys: Callable[[int], Iterator[bytes]], entries: int) -> Callable[[int], bytes]:
    """Maps of such keys."""
    return lambda size: repeated(encoded_map((key, b"\x40") for key in keys(entries)), size)


def one_map(keys: Callable[[int], Iterator[bytes]]) -> Callable[[int], bytes]:
    """One map of such keys that fills the size."""
    return lambda size: encoded_map((key, b"\x40") for key in keys(min(MAX_COUNT // 2, size // 19)))


INPUTS: Final[dict[str, Callable[[int], bytes]]] = {
    "nulls": lambda size: repeated(b"\x40", size),
    "empty lists": lambda size: repeated(b"\x45", size),
    "empty maps": lambda size: repeated(b"\xc1\x01\x00", size),
    "arrays of nothing": lambda size: repeated(b"\xe0\x02\x10\x40", size),
    "arrays of arrays of nothing": lambda size: repeated(
        b"\xf0" + struct.pack(">IIB", 755, 250, 0xE0) + b"\x02\x10\x40" * 250, size
    ),
    "descriptions": lambda size: repeated(b"\x00\x40\x40", size),
    "strings of one character": lambda size: repeated(b"\xa1\x02\xc4\x80", size),
    "symbols": lambda size: repeated(b"\xa3\x01a", size),
    "uuids": lambda size: repeated(b"\x98" + bytes(16), size),
    "decimals": lambda size: repeated(b"\x94" + b"\x5f\xff" + b"\xff" * 14, size),
    "decimals with exponents": lambda size: repeated(b"\x94\x5f\xfe" + bytes(13) + b"\x01", size),
    "timestamps": lambda size: repeated(b"\x83" + bytes(8), size),
    "nested lists": nested,
    **{f"map of {kind}": one_map(keys) for kind, keys in KEYS.items()},
    **{f"maps of {MAX_OTHER_KEYS} {kind}": maps(keys, MAX_OTHER_KEYS) for kind, keys in KEYS.items()},
}


def outcome(raw: bytes, *, typed: bool) -> str:
    """Decode, and return what became of it."""
    try:
        decode_value(raw, typed=typed)
    except WireError:
        return "refused"
    return "decoded"


def seconds(raw: bytes, *, typed: bool) -> float:
    """The shortest of three runs."""
    taken = []
    for _ in range(3):
        began_at = time.process_time()
        outcome(raw, typed=typed)
        taken.append(time.process_time() - began_at)
    return min(taken)


def memory_bytes(raw: bytes, *, typed: bool) -> int:
    """The most memory that decoding takes."""
    tracemalloc.start()
    try:
        outcome(raw, typed=typed)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def main() -> int:
    """Print a row for each input; the exit status is 1 if one costs too much."""
    small, large = SIZES
    print(f"{'':34} {'':5} {'':8} {'ns a byte':>10} {'':>10}  {'bytes a byte':>12}")
    print(f"{'':34} {'':5} {'':8} {f'{small >> 10} KiB':>10} {f'{large >> 10} KiB':>10}")
    is_good = True
    for name, make in INPUTS.items():
        for typed in (False, True):
            first, second = make(small), make(large)
            costs = [1e9 * seconds(raw, typed=typed) / len(raw) for raw in (first, second)]
            memory = memory_bytes(second, typed=typed) / len(second)
            is_good = is_good and memory <= MAX_BYTES_PER_BYTE and max(costs) <= MAX_NS_PER_BYTE
            title, end = "typed" if typed else "plain", outcome(second, typed=typed)
            print(f"{name:34} {title:5} {end:8} {costs[0]:10.0f} {costs[1]:10.0f}  {memory:12.0f}", flush=True)
    return 0 if is_good else 1


if __name__ == "__main__":
    raise SystemExit(main())
