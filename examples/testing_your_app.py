"""A small application and its tests: an order desk that must not lose an order while Service Bus is down.

Run it with pytest. The fixture `servicebus_pair` comes with sbclient, and async tests that use it need no other plugin.
It can also run as a program, which passes a pair to its tests.
"""

from __future__ import annotations

import json

from sbclient import PairedNamespaceOptions, ServiceBusClient, ServiceBusMessage
from sbclient.testing import Fault, FaultKind, MemoryPair, in_virtual_time, memory_pair

# ---- the application ------------------------------------------------------------------------------------------------

OPTIONS = PairedNamespaceOptions(divert_while_suspect=True)


class OrderDesk:
    """Sends the orders of customers."""

    def __init__(self, client: ServiceBusClient) -> None:
        self._sender = client.get_queue_sender("orders")

    async def place(self, number: int, total: float) -> None:
        body = json.dumps({"number": number, "total": total})
        await self._sender.send_messages(ServiceBusMessage(body, message_id=f"order-{number}"))


async def totals(client: ServiceBusClient) -> dict[int, float]:
    """What the kitchen has received: each order and its total."""
    received: dict[int, float] = {}
    async with client.get_queue_receiver("orders", max_wait_time=1) as receiver:
        async for message in receiver:
            order = json.loads(str(message))
            received[order["number"]] = order["total"]
            await receiver.complete_message(message)
    return received


# ---- its tests ------------------------------------------------------------------------------------------------------


async def test_orders_arrive(servicebus_pair: MemoryPair) -> None:
    async with servicebus_pair.client(OPTIONS) as client:
        await client.administration.create_queue("orders")
        await OrderDesk(client).place(1, 9.5)
        assert await totals(client) == {1: 9.5}


async def test_no_order_is_lost_in_an_outage(servicebus_pair: MemoryPair) -> None:
    async with servicebus_pair.client(OPTIONS) as client:
        await client.administration.create_queue("orders")
        desk = OrderDesk(client)
        outage = servicebus_pair.primary.inject(Fault(FaultKind.DOWN))
        for number in range(10):
            await desk.place(number, 1.0)
        servicebus_pair.primary.heal(outage)
        report = await client.run_syphon(until="empty")
        assert report.drained == 10
        assert await totals(client) == dict.fromkeys(range(10), 1.0)


if __name__ == "__main__":
    for test in (test_orders_arrive, test_no_order_is_lost_in_an_outage):
        in_virtual_time(test)(memory_pair(seed=1))
        print(f"{test.__name__}: passed")
