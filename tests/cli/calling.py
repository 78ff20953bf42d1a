"""Calling a command inside the test's process, on namespaces of its own."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from typer.testing import Result

from sbclient import ServiceBusClient, ServiceBusMessage
from tests import commands

PRIMARY = "memory://cli-test"
SECONDARY = "memory://cli-test-backup"


def call(*arguments: str, status: int = 0, stdin: str | bytes | None = None) -> Result:
    return commands.call(*arguments, "--primary", PRIMARY, status=status, stdin=stdin)


def paired(*arguments: str, status: int = 0, stdin: str | None = None) -> Result:
    return call(*arguments, "--secondary", SECONDARY, status=status, stdin=stdin)


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def on(namespace: str, work: Callable[[ServiceBusClient], Awaitable[Any]], **kwargs: Any) -> Any:
    """Do something with a client of the namespace, as another program would."""

    async def main() -> Any:
        async with ServiceBusClient.from_connection_string(namespace, **kwargs) as client:
            return await work(client)

    return asyncio.run(main())


def sent(queue: str, *messages: ServiceBusMessage, namespace: str = PRIMARY) -> None:
    async def work(client: ServiceBusClient) -> None:
        async with client.get_queue_sender(queue) as sender:
            for message in messages:
                await sender.send_messages(message)

    on(namespace, work)


def run_line(line: str) -> None:
    """Run what is shown as a line for the shell, each part of a pipe in turn, and let nothing wait for long.

    What is made exists already in the world of the examples: it is deleted first.
    """
    output = ""
    for part in line.split(" | "):
        program, *arguments = shlex.split(part)
        arguments, into = (arguments[:-2], arguments[-1]) if ">" in arguments else (arguments, None)
        assert program == "sbclient"
        if arguments[:2] == ["admin", "create"]:
            named = [word for word in arguments[2:] if not word.startswith("--") and "=" not in word]
            commands.call("admin", "delete", *named, "--yes", status=None)
        arguments = [word for word in arguments if word not in ("--follow", "--watch")]
        if arguments[0] == "receive":
            arguments += ["--wait", "0.1"]
        output = commands.call(*arguments, stdin=output).stdout
        if into is not None:
            Path(into).write_text(output, encoding="utf-8")
