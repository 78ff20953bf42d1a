"""Sessions: the messages of one customer, in order, by one receiver at a time, with a state that is kept."""

from __future__ import annotations

import asyncio

from sbclient import NEXT_AVAILABLE_SESSION, OperationTimeoutError, ServiceBusClient, ServiceBusMessage


async def main() -> None:
    async with ServiceBusClient.from_connection_string("memory://session-example") as client:
        await client.administration.create_queue("parcels", requires_session=True, enable_partitioning=True)
        async with client.get_queue_sender("parcels") as sender:
            for step in ("packed", "shipped", "delivered"):
                for customer in ("ada", "grace"):
                    await sender.send_messages(ServiceBusMessage(step, session_id=customer))

        while True:
            try:
                async with client.get_queue_receiver(
                    "parcels", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=0.1
                ) as receiver:
                    session = receiver.session
                    assert session is not None
                    steps = []
                    async for message in receiver:
                        steps.append(str(message))
                        await receiver.complete_message(message)
                    await session.set_state(steps[-1])
                    print(f"{session.session_id}: {', '.join(steps)}")
            except OperationTimeoutError:
                break  # no session has anything left

        async with client.get_queue_receiver("parcels", session_id="ada", max_wait_time=0.1) as receiver:
            assert receiver.session is not None
            state = await receiver.session.get_state()
            print(f"the state of ada's session: {(state or b'').decode()}")


if __name__ == "__main__":
    asyncio.run(main())
