"""Send and receive orders although the primary namespace is lost for the whole run.

Two emulators run in processes of their own; that of the primary is killed before the first message is sent. The client
diverts, its syphon delivers to the queue of the same name in the secondary, and the receiver takes messages from both.
With containers: see deploy/compose-lost-primary.yaml. To use other namespaces, which need the queue `orders`, set
SERVICEBUS_CONNECTION_STRING and SERVICEBUS_SECONDARY_CONNECTION_STRING.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

from sbclient import PairedNamespaceOptions, ServiceBusClient, ServiceBusMessage

MESSAGES = 20
OPTIONS = PairedNamespaceOptions(
    failover_interval=timedelta(0),  # divert at the first error
    redirect_after=timedelta(0),  # deliver in the secondary from the first refusal
    receive_from="both",
    enable_syphon=True,
)


async def exchange(primary: str, secondary: str) -> None:
    """Send the orders and receive each of them."""
    async with ServiceBusClient.from_connection_string(
        primary, secondary=secondary, options=OPTIONS, timeout=8.0, retry_total=0
    ) as client:
        async with client.get_queue_sender("orders") as sender:
            for number in range(MESSAGES):
                await sender.send_messages(ServiceBusMessage(f"order {number}", message_id=f"{number}"))
        print(f"{MESSAGES} orders are accepted, 'orders' is {client.pair.status().entities['orders'].state}")
        received: dict[str | None, str] = {}
        async with client.get_queue_receiver("orders") as receiver:
            while len(received) < MESSAGES:
                for message in await receiver.receive_messages(MESSAGES, max_wait_time=30):
                    received[message.message_id] = message.namespace
                    await receiver.complete_message(message)
        print(f"{len(received)} orders are received, from the {' and the '.join(sorted(set(received.values())))}")


def start_emulator() -> tuple[subprocess.Popen[str], dict[str, str]]:
    """Start an emulator; return its process and the connection strings of its namespaces."""
    config = Path(__file__).parent / "deploy" / "Config.json"
    ports = ["--namespace", "contoso:0", "--namespace", "contoso-backup:0", "--http-port", "0"]
    command = [sys.executable, "-m", "sbclient", "emulator", "--config", str(config), *ports, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["connection_strings"]


def main() -> None:
    given = [os.environ.get(f"SERVICEBUS_{side}CONNECTION_STRING", "") for side in ("", "SECONDARY_")]
    with ExitStack() as emulators:
        if not all(given):
            for number, name in enumerate(("contoso", "contoso-backup")):
                emulator, strings = start_emulator()
                emulators.enter_context(emulator)
                emulators.callback(emulator.kill)
                given[number] = strings[name]
                if name == "contoso":
                    emulator.kill()
                    print("the primary is lost")
        asyncio.run(exchange(*given))


if __name__ == "__main__":
    main()
