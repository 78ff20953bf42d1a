"""One emulated namespace as a process: prints how to reach it, then executes commands from standard input.

python -m tests.wire_pair.served contoso
{"connection_string": "Endpoint=…", "certificate": "/…/authority.pem"}
reset            a fault of the wire, by name: what stands is cut, what is new is refused
heal
"""

from __future__ import annotations

import asyncio
import json
import sys

from sbclient.emulator import Emulator
from sbclient.emulator.faults import WireFault, WireFaultKind


async def serve(name: str) -> None:
    async with Emulator(name) as emulator:
        ready = {
            "connection_string": emulator.connection_string,
            "certificate": str(emulator.certificate_path),
        }
        say(json.dumps(ready))
        orders = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
        while order := (await orders.readline()).decode().strip():
            if order == "heal":
                emulator.heal()
            else:
                emulator.inject(WireFault(WireFaultKind(order)))
            say("done")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
