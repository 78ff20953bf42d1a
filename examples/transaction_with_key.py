"""A transaction on a partitioned queue: several sends with the same partition key are stored together or not at all."""

from __future__ import annotations

import asyncio

from sbclient import InvalidOperationError, ServiceBusClient, ServiceBusMessage


async def main() -> None:
    async with ServiceBusClient.from_connection_string("memory://transaction-example") as client:
        await client.administration.create_queue("ledger", enable_partitioning=True)
        async with client.get_queue_sender("ledger") as sender:
            async with client.transaction() as transaction:
                for text in ("debit 10", "credit 10"):
                    entry = ServiceBusMessage(text, partition_key="account-1")
                    await sender.send_messages(entry, transaction=transaction)
            print("committed: both entries are in the ledger")

            try:
                async with client.transaction() as transaction:
                    first = ServiceBusMessage("debit 5", partition_key="account-1")
                    await sender.send_messages(first, transaction=transaction)
                    second = ServiceBusMessage("credit 5", partition_key="account-2")
                    await sender.send_messages(second, transaction=transaction)
            except InvalidOperationError as error:
                print(f"rolled back: {error}")

        async with client.get_queue_receiver("ledger", max_wait_time=0.1) as receiver:
            async for message in receiver:
                # Settling can be part of a transaction too.
                async with client.transaction() as transaction:
                    await receiver.complete_message(message, transaction=transaction)
                print(f"received: {message}")


if __name__ == "__main__":
    asyncio.run(main())
