"""A boilermaker application: `python boilermaker_tasks.py COUNT` sends tasks; without COUNT it executes them."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from time import time

from azure.core.credentials import AccessToken
from boilermaker import Boilermaker
from boilermaker.retries import RetryException, RetryPolicy
from boilermaker.service_bus import AzureServiceBus
from done import note


class State:
    """What tasks share."""

    def __init__(self) -> None:
        self.failed: set[int] = set()


class Credential:
    """A credential like DefaultAzureCredential."""

    async def get_token(self, *_: object, **__: object) -> AccessToken:
        return AccessToken("eyJhbGciOiJub25lIn0.eyJleHAiOjQxMDI0NDQ4MDB9.", int(time()) + 3600)

    async def close(self) -> None:
        pass


async def work(_: State, number: int) -> None:
    """Succeed at once."""
    note(number)


async def unreliable(state: State, number: int) -> None:
    """Fail in the first attempt."""
    if number not in state.failed:
        state.failed.add(number)
        raise RetryException("the first attempt")
    note(number)


async def send(app: Boilermaker, number: int) -> None:
    """Send a task until the broker has accepted it."""
    while True:
        try:
            task = unreliable if number % 10 == 9 else work
            await app.apply_async(task, number, delay=3 if number % 10 == 8 else 0)
        except Exception as error:
            sys.stderr.write(f"{number}: {error!r}\n")
            await asyncio.sleep(0.5)
        else:
            break


async def main() -> None:
    state = State()
    url = f"https://{os.environ['HOST']}/"
    app = Boilermaker(state, AzureServiceBus(url, "tasks", Credential))
    policy = RetryPolicy(max_tries=20, delay=1)
    app.register_many_async([work, unreliable], policy=policy, acks_late=True)
    if len(sys.argv) == 1:
        await app.run()
    for each in range(int(sys.argv[1])):
        await send(app, each)
    await app.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(main())
