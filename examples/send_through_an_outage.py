"""Send while the primary namespace is down: the messages wait in the secondary until a syphon moves them back.

Both namespaces are in this process, and time is virtual, so that a minute of outage passes at once. For the service,
use `ServiceBusClient.from_connection_string(PRIMARY, secondary=SECONDARY)` with two connection strings.
"""

from __future__ import annotations

import asyncio

from sbclient import ServiceBusConnectionError, ServiceBusMessage
from sbclient.testing import Fault, FaultKind, memory_pair, run_virtual


async def main() -> None:
    pair = memory_pair(seed=7)
    async with pair.client() as client:
        await client.administration.create_queue("orders")
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("order 1"))
            print("order 1: accepted by the primary")

            pair.primary.inject(Fault(FaultKind.DOWN))
            order = ServiceBusMessage("order 2")
            while True:
                try:
                    await sender.send_messages(order)
                    break
                except ServiceBusConnectionError as error:
                    print(f"order 2: {error}")
                    await asyncio.sleep(10)  # the failover interval, one minute by default, is not over yet
            print(f"order 2: accepted, 'orders' is {client.pair.status().entities['orders'].state}")

            pair.primary.heal()
            await asyncio.sleep(70)  # the next ping, at most a minute away, finds the primary well
            await sender.send_messages(ServiceBusMessage("order 3"))
            print(f"order 3: 'orders' is {client.pair.status().entities['orders'].state}")

        report = await client.run_syphon(until="empty")
        print(f"the syphon brought {report.drained} message home")

        async with client.get_queue_receiver("orders", max_wait_time=5) as receiver:
            async for message in receiver:
                print(f"received: {message}")
                await receiver.complete_message(message)


if __name__ == "__main__":
    run_virtual(main())
