"""Single hostile inputs against the readers of the AMQP engine: `python -m tests.fuzz.amqp_inputs --count 10000000`.

Where `amqp_engine` plays whole conversations, this damages one value, one frame or one message at a time, a hundred
times as fast. Each input is named by seed and number; a failure names both. What must hold: a reader returns, or raises
`WireError`, and memory does not grow.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import Final
from uuid import UUID

from sbclient.amqp import EncodedMessage, WireError, split_batch
from sbclient.amqp.decode import decode_value, skip_value
from sbclient.amqp.encode import encode_value
from sbclient.amqp.frames import TYPE_AMQP, FrameReader, encode_frame
from sbclient.amqp.performatives import Attach, Begin, Flow, Open, Source, Target, Transfer
from sbclient.amqp.types import Described, Symbol
from sbclient.errors import InvalidOperationError
from sbclient.message import ServiceBusMessage
from tests.payloads import batch_of, payload_of

MAX_FRAME: Final = 4096

VALUES: Final = [
    encode_value(value)
    for value in (
        None,
        True,
        2**40,
        -1,
        1.5,
        "text",
        b"bytes" * 60,
        UUID(int=7),
        datetime(2026, 1, 1, tzinfo=UTC),
        Symbol("symbol"),
        [1, "two", [3.0, None, {"four": b"five"}]],
        {"a": 1, "b": [True, False], "c": {"d": "e" * 300}},
        Described(Symbol("x:y"), ["z"]),
    )
]
MESSAGES: Final = [
    payload_of(ServiceBusMessage("body")),
    payload_of(
        ServiceBusMessage(
            [b"one", b"two"],
            message_id="id",
            session_id="s",
            application_properties={"n": 1, "t": "x" * 40, "f": 0.5},
            subject="label",
            content_type="text/plain",
        )
    ),
]
BATCH: Final = batch_of([ServiceBusMessage("a", message_id="1"), ServiceBusMessage("b", message_id="2")]).payload
FRAMES: Final = [
    encode_frame(0, Open("container", hostname="host"), MAX_FRAME),
    encode_frame(1, Begin(None, 0, 100, 100), MAX_FRAME),
    encode_frame(1, Attach("link", 0, True, source=Source("a"), target=Target("b")), MAX_FRAME),
    encode_frame(1, Flow(0, 1, 2, 3, 0, 0, 10), MAX_FRAME),
    encode_frame(1, Transfer(0, 1, b"tag", 0), MAX_FRAME),
]


def read_value(raw: bytes) -> None:
    decode_value(raw)


def pass_over(raw: bytes) -> None:
    skip_value(raw, 0)


def read_message(raw: bytes) -> None:
    message = EncodedMessage.of(raw)
    _ = message.application_properties, message.body, message.message_id, message.time_to_live


def read_batch(raw: bytes) -> None:
    for piece in split_batch(raw):
        read_message(piece)


def read_frames(raw: bytes) -> None:
    reader = FrameReader(MAX_FRAME)
    reader.feed(raw)
    while reader.next_frame(TYPE_AMQP) is not None:
        pass


KINDS: Final[list[tuple[Callable[[bytes], None], list[bytes]]]] = [
    (read_value, VALUES),
    (pass_over, VALUES),
    (read_message, MESSAGES),
    (read_batch, [BATCH]),
    (read_frames, FRAMES),
]


def damaged(random: Random, raw: bytes) -> bytes:
    """One to four hurts: a byte changed, bytes cut out, doubled or added, a length made absurd."""
    data = bytearray(raw)
    for _ in range(random.randrange(1, 5)):
        at = random.randrange(len(data) + 1)
        hurt = random.random()
        if hurt < 0.5 and at < len(data):
            data[at] = random.randrange(256)
        elif hurt < 0.65:
            del data[at : at + random.randrange(1, 9)]
        elif hurt < 0.8:
            data[at:at] = data[at : at + random.randrange(1, 33)]
        elif hurt < 0.9:
            data[at:at] = random.randbytes(random.randrange(1, 9))
        else:
            data[at : at + 4] = random.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x00"))
        if not data:
            data = bytearray(random.randbytes(1))
    return bytes(data)


def run(seed: int, first: int, count: int) -> str | None:
    """Try inputs; returns what is wrong with one, None if nothing is."""
    for number in range(first, first + count):
        random = Random(seed << 40 | number)
        read, corpus = KINDS[number % len(KINDS)]
        raw = damaged(random, random.choice(corpus))
        try:
            read(raw)
        except (WireError, InvalidOperationError):
            continue
        except Exception as error:
            return f"--seed {seed} --first {number} --count 1: {read.__name__}({raw!r}) raised {error!r}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    began_at, done = time.perf_counter(), 0
    warm_kib = 0
    while done < arguments.count:
        step = min(100_000, arguments.count - done)
        if failure := run(arguments.seed, arguments.first + done, step):
            print(failure)
            return 1
        done += step
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        warm_kib = warm_kib or peak_kib
        if done % 1_000_000 == 0:
            print(f"{done:,} inputs, {time.perf_counter() - began_at:.0f} s, peak {peak_kib:,} KiB", flush=True)
    print(
        f"{done:,} inputs, none crashed or hung; peak memory {peak_kib:,} KiB, {warm_kib:,} KiB after the first 100,000"
    )
    return 0 if peak_kib < warm_kib * 1.5 else 1


if __name__ == "__main__":
    sys.exit(main())
