"""A stream between two queues, with sessions or with partitions, that is killed with SIGKILL at chosen points.

    python -m tests.benchmarks spark_kills [--only POINT...] [--messages 3000] [--upgrade-from FOLDER] [--json]

For each point a program streams with `mode=receive`, and is killed there: all its processes, or one worker. It then
runs again from its checkpoint, with another number of tasks, to the end. With `--upgrade-from` an earlier version of
this tree, in that folder, runs until it is killed. The destination detects duplicates. Each message must be there once,
each session in order, and the source must be empty. The exit status is 1 if that is not so, or a point was not reached.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from sbclient import ServiceBusMessage
from tests.spark.endurance import Account
from tests.stage.pair import EmulatedPair

ROOT: Final = Path(__file__).parents[2]
SESSIONS: Final = 50
LIMIT_S: Final = 600.0
"""Longest duration of a program, which only one that hangs exceeds."""

SLOW_START: Final = "Python worker failed to connect back"
"""Spark ends a query if a Python process takes longer than 10 s to start, as on a busy machine."""

STARTS: Final = 5
"""How often a program is started that Spark ends for this reason."""

POINTS: Final = {
    "before-plan": "the driver, before it plans a micro-batch",
    "after-plan": "the driver, when it has locked sessions, before Spark stores the offset",
    "before-tasks": "the driver, when Spark has stored the offset",
    "in-read": "all processes, while a task reads",
    "reader": "the worker of a task that reads",
    "in-send": "all processes, while a task sends",
    "sender": "the worker of a task that sends",
    "before-commit": "all processes, when every row was sent",
    "after-commit": "all processes, before Spark stores that the micro-batch is done",
    "before-complete": "the driver, before it completes the messages of a finished micro-batch",
    "in-complete": "the driver, while it completes them",
    "in-partition": "the driver, while it completes them in a queue with partitions and without sessions",
}

KILLER: Final = '''
import os, signal

point, fired = os.environ.get("KILL_AT"), os.environ.get("KILL_FIRED")
calls = 0

def strike(alone=False):
    """Kill this process, or all of the program, at the second call in a process, once."""
    global calls
    calls += 1
    if calls < 2:
        return
    try:
        os.close(os.open(fired, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    if not alone:
        for process in map(int, filter(str.isdigit, os.listdir("/proc"))):
            try:
                if process != os.getpid() and os.getsid(process) == os.getsid(0):
                    os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
    os.kill(os.getpid(), signal.SIGKILL)

def around(owner, name, before=False, after=False, alone=False):
    whole = getattr(owner, name)
    async def wrapped(*arguments, **more):
        if before: strike(alone)
        result = await whole(*arguments, **more)
        if after: strike(alone)
        return result
    setattr(owner, name, wrapped)

def around_call(owner, name, before=False, after=False):
    whole = getattr(owner, name)
    def wrapped(*arguments, **more):
        if before: strike()
        result = whole(*arguments, **more)
        if after: strike()
        return result
    setattr(owner, name, wrapped)

def around_pages(owner, name, alone):
    whole = getattr(owner, name)
    async def wrapped(*arguments, **more):
        async for page in whole(*arguments, **more):
            strike(alone)
            yield page
    setattr(owner, name, wrapped)

if point:
    from sbclient_spark import source
    from sbclient_spark.read import receive_stream, sessions, stream
    from sbclient_spark.write import partition_writer
    reader, writer = receive_stream.ReceiveStreamReader, partition_writer.PartitionWriter
    {
        "before-plan": lambda: around(reader, "_plan", before=True),
        "after-plan": lambda: around(reader, "_plan", after=True),
        "before-tasks": lambda: around_call(reader, "_tasks", before=True),
        "in-read": lambda: around_pages(stream.ServiceBusStreamReader, "_pages", False),
        "reader": lambda: around_pages(stream.ServiceBusStreamReader, "_pages", True),
        "in-send": lambda: around(writer, "offer", after=True),
        "sender": lambda: around(writer, "offer", after=True, alone=True),
        "before-commit": lambda: around_call(source, "_commit", before=True),
        "after-commit": lambda: around_call(source, "_commit", after=True),
        "before-complete": lambda: around(sessions.StreamSessions, "complete", before=True),
        "in-complete": lambda: around(sessions.HeldSession, "settle", after=True),
        "in-partition": lambda: around(receive_stream, "_complete_part", after=True),
    }[point]()
'''

PROGRAM: Final = """
import json, sys
from pyspark.sql import SparkSession
import sbclient_spark

reading, writing, checkpoint = json.loads(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
sbclient_spark.ensure_java()
spark = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
sbclient_spark.register(spark)
rows = spark.readStream.format("servicebus").options(**reading).load().select("body", "message_id", "session_id")
sink = rows.writeStream.format("servicebus").options(**writing).option("checkpointLocation", checkpoint)
assert sink.trigger(availableNow=True).start().awaitTermination(500)
"""


def run(folder: Path, reading: dict[str, str], writing: dict[str, str], point: str | None, tree: Path = ROOT) -> int:
    """Run the program to its end, with the package of a tree; return its status."""
    output, fired = folder / "output", folder / "fired"
    for _ in range(STARTS):
        known_bytes, had_fired = output.stat().st_size if output.exists() else 0, fired.exists()
        status = run_once(folder, reading, writing, point, tree)
        printed = output.read_bytes()[known_bytes:].decode(errors="replace")
        if not status or fired.exists() != had_fired or SLOW_START not in printed:
            break
    return status


def run_once(folder: Path, reading: dict[str, str], writing: dict[str, str], point: str | None, tree: Path) -> int:
    """Run the program once; return its status."""
    environment = dict(os.environ, PYTHONPATH=f"{folder}:{tree}", PYSPARK_PYTHON=sys.executable)
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "KILL_FIRED": str(folder / "fired"), "TMPDIR": str(folder)}
    if point is not None:
        environment["KILL_AT"] = point
    arguments = [json.dumps(reading), json.dumps(writing), str(folder / "checkpoint")]
    with (folder / "output").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise


def killed_at(point: str, messages: int, tree: Path = ROOT) -> Account:
    """Return the account of one stream that is killed at one point, with the package of a tree until then."""
    account = Account(job=point, rows=messages)
    began_at = time.monotonic()
    with tempfile.TemporaryDirectory() as name, EmulatedPair() as pair:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(KILLER)
        os.environ["SSL_CERT_FILE"] = str(pair.certificate)
        window = timedelta(hours=1)
        is_partitioned = point == "in-partition"
        orders = pair.create_queue(
            "orders",
            requires_session=not is_partitioned,
            enable_partitioning=is_partitioned,
            lock_duration=timedelta(seconds=5),
        )
        copies = pair.create_queue(
            "copies",
            requires_session=not is_partitioned,
            requires_duplicate_detection=True,
            duplicate_detection_history_time_window=window,
        )
        pair.run(_fill(pair, orders, messages, is_partitioned=is_partitioned))
        reading = pair.reading(queue=orders, mode="receive", maxMessagesPerTrigger=min(messages // 6, 10_000))
        writing = pair.options(queue=copies, requireDuplicateDetection="error", maxBatchMessages=20)
        status = run(folder, reading | {"minPartitions": "2"}, writing, point, tree)
        account.killed = int((folder / "fired").exists())
        if status:
            account.restarts += 1
            status = run(folder, reading | {"minPartitions": "3"}, writing, None)
        assert status == 0, (folder / "output").read_text()[-3000:]
        account.most_waiting = pair.count(orders)
        arrived = pair.take(copies, sessions=not is_partitioned)
        printed = (folder / "output").read_text(errors="replace")
    account.seconds = round(time.monotonic() - began_at, 1)
    account.take_stock(
        (str(number) for number in range(messages)), ((one.session_id, one.message_id or "") for one in arrived)
    )
    if not is_proven(account):
        print(printed[-5000:], file=sys.stderr, flush=True)
    return account


async def _fill(pair: EmulatedPair, queue: str, messages: int, *, is_partitioned: bool) -> None:
    async with pair.client() as client, client.get_queue_sender(queue) as sender:
        for start in range(0, messages, 500):
            numbers = range(start, min(start + 500, messages))
            sessions = [None if is_partitioned else str(number % SESSIONS) for number in numbers]
            ids = map(str, numbers)
            many = [
                ServiceBusMessage(one, message_id=one, session_id=session)
                for one, session in zip(ids, sessions, strict=True)
            ]
            await sender.send_messages(many)


def is_proven(account: Account) -> bool:
    """Whether the point was reached, everything arrived once and in order, and the source is empty."""
    return account.is_clean and account.killed == 1 and account.most_waiting == 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks spark_kills")
    parser.add_argument("--only", nargs="+", choices=list(POINTS), default=list(POINTS))
    parser.add_argument("--messages", type=int, default=3000)
    parser.add_argument("--upgrade-from", type=Path, default=ROOT, help="a folder with an earlier version")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    arguments = parser.parse_args()
    accounts: list[dict[str, Any]] = []
    for point in arguments.only:
        one = killed_at(point, arguments.messages, arguments.upgrade_from)
        accounts.append(asdict(one) | {"is_proven": is_proven(one)})
        if not arguments.json:
            counts = f"lost {one.lost}, twice {one.duplicates}, misordered {one.misordered}, left {one.most_waiting}"
            times = f"killed {one.killed}, restarts {one.restarts}"
            verdict = "ok" if is_proven(one) else "FAILED"
            print(f"{point:16} {verdict:6} {times}, {counts}, {one.seconds} s: {POINTS[point]}", flush=True)
    if arguments.json:
        print(json.dumps(accounts, indent=1))
    sys.exit(0 if all(one["is_proven"] for one in accounts) else 1)


if __name__ == "__main__":
    main()
