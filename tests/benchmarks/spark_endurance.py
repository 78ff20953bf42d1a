"""Every row once despite faults: Spark jobs on two namespaces that are processes of their own, and their account.

    python -m tests.benchmarks spark_endurance [--rows 1000000] [--source-rows 100000] [--only sink|source] [--json]

One after the other: a frame of numbers; the lines of a CSV that has a column InvoiceNo, a session for each invoice,
in order; and a stream. In the middle of each job the primary is cut off, with its store
kept, and restored. In the middle of the batch jobs a Python worker of Spark is killed with SIGKILL; the query is
stopped and started again from its checkpoint. All the time a `sbclient syphon` runs beside them. In the end all
messages are received and compared with the rows: 1 if any is missing, is there twice or is out of order.

Then a queue is read as a stream into files, in both modes and with sessions: a worker is killed and the query started
again.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from sbclient import ServiceBusClient
from sbclient.delivery import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode
from sbclient.errors import OperationTimeoutError
from tests.benchmarks.spark import session
from tests.commands import SBCLIENT
from tests.spark.endurance import Account, batch, sessions, source, stream
from tests.stage.namespaces import Namespace, connection_string
from tests.stage.pair import connected_to
from tests.stage.programs import Program

AT_ONCE: Final = 1000
WAIT_S: Final = 2.0
STREAM_FILES: Final = 20
SYPHON_END_S: Final = 60.0


class Arrival(NamedTuple):
    """What is kept of a message."""

    session_id: str | None
    message_id: str | None
    text: str

    def __str__(self) -> str:
        return self.text


class ServedPair:
    """A primary and a secondary namespace, each a process; they are controlled at a port that no fault affects."""

    def __init__(self, folder: Path) -> None:
        self._primary, self._secondary = Namespace("contoso", folder), Namespace("contoso-backup", folder)
        self._syphon = Program("syphon", folder)
        self._numbers = count(1)

    def __enter__(self) -> ServedPair:
        for namespace in (self._primary, self._secondary):
            asyncio.run(namespace.begin())
        environment = {
            "SERVICEBUS_CONNECTION_STRING": connection_string(self._primary.port),
            "SERVICEBUS_SECONDARY_CONNECTION_STRING": connection_string(self._secondary.port),
        }
        self._syphon.start([*SBCLIENT, "syphon", "--sessions", "--provision", "--long-poll", "5 s"], environment)
        return self

    def __exit__(self, *_: object) -> None:
        status = asyncio.run(self._syphon.terminate(SYPHON_END_S))
        for program in (self._syphon, self._primary, self._secondary):
            program.kill()
        assert status == 0, f"the syphon ended with {status}: {self._syphon.output()}"

    def options(self, **more: Any) -> dict[str, str]:
        chosen = self.reading(failoverInterval="5 s", pingInterval="5 s", requireDuplicateDetection="error")
        return chosen | {name: str(value) for name, value in more.items()}

    def reading(self, **more: Any) -> dict[str, str]:
        chosen = {
            "connectionString": connection_string(self._primary.port),
            "secondaryConnectionString": connection_string(self._secondary.port),
        }
        return chosen | {name: str(value) for name, value in more.items()}

    def create_queue(self, stem: str, **properties: Any) -> str:
        name = f"{stem}-{next(self._numbers)}"

        async def create() -> None:
            async with self._primary.client() as client:
                await client.administration.create_queue(name, **properties)

        asyncio.run(create())
        return name

    def count(self, name: str) -> int:
        return _messages_in(asyncio.run(self._primary.control("GET", f"state?entity={name}")))

    def backlog(self) -> int:
        return _messages_in(asyncio.run(self._secondary.control("GET", "state")))

    def take(self, name: str, *, sessions: bool = False) -> list[Arrival]:
        found = asyncio.run(self._take(name, sessions=sessions))
        assert self.count(name) == 0, f"something is left in {name}"
        return found

    async def _take(self, name: str, *, sessions: bool) -> list[Arrival]:
        found: list[Arrival] = []
        async with self._primary.client() as client:
            while await self._take_some(client, name, sessions, found) and sessions:
                pass
        return found

    async def _take_some(self, client: ServiceBusClient, name: str, sessions: bool, found: list[Arrival]) -> bool:
        """Receive a queue, or the next session; returns whether there was any."""
        receiver = client.get_queue_receiver(
            name,
            session_id=NEXT_AVAILABLE_SESSION if sessions else None,
            receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE,
            prefetch_count=0 if sessions else AT_ONCE,
            max_wait_time=WAIT_S,
        )
        wait_s = 0.1 if sessions else WAIT_S
        try:
            async with receiver:
                while some := await receiver.receive_messages(AT_ONCE, max_wait_time=wait_s):
                    found += [Arrival(one.session_id, one.message_id, str(one)[:20]) for one in some]
        except OperationTimeoutError:
            return False  # no session is left
        return True

    def cut(self) -> None:
        """Reset every connection to the primary and refuse new ones; what is stored stays."""
        asyncio.run(self._primary.control("POST", "faults", {"kind": "reset"}))

    def heal(self) -> None:
        asyncio.run(self._primary.control("DELETE", "faults"))

    def senders(self) -> set[int]:
        """The Python workers of this Spark that have a connection to the primary."""
        found = connected_to(self._primary.port)
        return {process for process in found if "pyspark" in Path(f"/proc/{process}/cmdline").read_text()}


def _messages_in(state: dict[str, Any]) -> int:
    return sum(fragment["message_count"] for entity in state["entities"] for fragment in entity["fragments"])


@contextmanager
def _invoices(given: Path | None) -> Iterator[Path]:
    """The CSV, or one that is made up: 200 invoices with 20 lines each."""
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "invoices.csv"
        with path.open("w", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(["InvoiceNo", "StockCode", "Quantity"])
            lines.writerows([536365 + number // 20, f"P{number % 11}", number % 5 + 1] for number in range(4000))
        yield path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks spark_endurance")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the frame; the stream has a twentieth")
    parser.add_argument("--source-rows", type=int, default=100_000, help="messages of each stream that reads a queue")
    parser.add_argument("--only", choices=["sink", "source"], help="leave the other jobs out")
    parser.add_argument("--csv", type=Path, help="with a column InvoiceNo; otherwise one is made up")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    arguments = parser.parse_args()
    accounts: list[Account] = []

    def report(account: Account) -> None:
        accounts.append(account)
        if not arguments.json:
            print(_line(account), flush=True)

    with tempfile.TemporaryDirectory() as name, _invoices(arguments.csv) as path:
        folder = Path(name)
        with ServedPair(folder) as pair, session(name, "local[2,4]") as spark:
            if not arguments.json:
                print(HEAD)
            if arguments.only != "source":
                # So slow that there is time for an outage: it is a small file.
                report(sessions(spark, pair, path, maxMessagesPerSecond=100, maxBatchMessages=20))
                rows = max(1, arguments.rows // 20 // STREAM_FILES)
                report(stream(spark, pair, folder, files=STREAM_FILES, rows=rows, maxMessagesPerSecond=1000))
                report(batch(spark, pair, arguments.rows))
            if arguments.only != "sink":
                report(source(spark, pair, folder, arguments.source_rows, mode="peek", enable_partitioning=True))
                report(source(spark, pair, folder, arguments.source_rows, mode="receive"))
                report(source(spark, pair, folder, arguments.source_rows, mode="receive", with_sessions=True))
    if arguments.json:
        print(json.dumps([asdict(account) | {"is_clean": account.is_clean} for account in accounts], indent=1))
    sys.exit(0 if all(account.is_clean for account in accounts) else 1)


HEAD: Final = (
    "job                  rows    arrived  lost  twice  strange  misordered  in backlog  killed  failed tasks  "
    "restarts  drained  seconds"
)


def _line(one: Account) -> str:
    return (
        f"{one.job:15} {one.rows:9,}  {one.arrived:9,}  {one.lost:4}  {one.duplicates:5}  {one.strangers:7}  "
        f"{one.misordered:10}  {one.most_waiting:10,}  {one.killed:6}  {one.failed_tasks:12}  {one.restarts:8}  "
        f"{one.drained:7,}  {one.seconds:7,.1f}"
    )


if __name__ == "__main__":
    main()
