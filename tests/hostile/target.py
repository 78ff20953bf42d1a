"""The emulator as a process of its own, with its processor time and memory, and a client that measures its latency."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from sbclient.amqp import DispositionReceived, Target
from sbclient.message import ServiceBusMessage
from tests.benchmarks.engine_client import EngineClient
from tests.payloads import payload_of
from tests.stage.emulators import emulator_process

QUEUE: Final = "orders"
SELECTED: Final = "selected"
_QUEUES: Final = [{"Name": QUEUE}, {"Name": SELECTED}]
_RULE: Final = {"Name": "r", "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "a = 1"}}}
_TOPICS: Final = [{"Name": "t", "Subscriptions": [{"Name": "s", "Rules": [_RULE]}]}]  # loads the parser
_CONFIG: Final = {"UserConfig": {"Namespaces": [{"Name": "contoso", "Queues": _QUEUES, "Topics": _TOPICS}]}}
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAUSE_S: Final = 0.005


class Server(NamedTuple):
    """A running emulator.

    Attributes:
        port: of the namespace.
        http_port: the additional port for HTTP.
        process_id: for `cpu_s` and `memory`.
        steps: the file that `steps/sitecustomize.py` writes; None = there is none.
    """

    port: int
    http_port: int
    process_id: int
    steps: Path | None = None

    def longest_step_s(self, since: float) -> float:
        """The most processor time that a step of the event loop has taken since a time of the monotonic clock."""
        lines = self.steps.read_text().splitlines() if self.steps is not None else []
        steps = [tuple(map(float, line.split())) for line in lines]
        return max((spent for ended_at, spent in steps if ended_at >= since), default=0.0)

    def cpu_s(self) -> float:
        """The processor time so far."""
        fields = Path(f"/proc/{self.process_id}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def waited_s(self) -> float:
        """How long the process could run and other programs had all processors."""
        return int(Path(f"/proc/{self.process_id}/schedstat").read_text().split()[1]) / 1e9

    def memory_mib(self, name: str = "VmRSS") -> float:
        """The resident memory; `VmHWM` = the highest since `forget_peak`."""
        lines = Path(f"/proc/{self.process_id}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

    def forget_peak(self) -> None:
        """Start to measure the highest memory anew."""
        Path(f"/proc/{self.process_id}/clear_refs").write_text("5")


@contextmanager
def serving(checkout: Path | None = None, *options: str, descriptors: int | None = None) -> Iterator[Server]:
    """Run an emulator with two queues on free ports.

    Args:
        checkout: a directory with another version of the package; None = this one.
        options: further ones of `sbclient emulator`.
        descriptors: the most that the process may have; None = as many as this one.
    """

    def limit() -> None:
        if descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    folder = checkout or Path(__file__).parents[2]
    with TemporaryDirectory() as directory:
        config = Path(directory) / "Config.json"
        config.write_text(json.dumps(_CONFIG))
        options = ("--config", str(config), "--first-port", "0", "--http-port", "0", *options)
        steps = Path(directory) / "steps"
        path = os.pathsep.join((str(Path(__file__).parent / "steps"), str(folder)))
        variables = {"PYTHONPATH": path, "HOSTILE_STEPS": str(steps), "XDG_CACHE_HOME": directory}
        with emulator_process(*options, cwd=directory, env=variables, preexec_fn=limit) as (process, facts):
            yield Server(facts["ports"]["contoso"], facts["http_port"], process.pid, steps)


class Bystander:
    """A client in a process of its own that sends messages, one after the other, and measures each send."""

    def __init__(self, port: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, far = spawn.Pipe()
        self._process = spawn.Process(target=_measure, args=(port, far), daemon=True)
        self._process.start()
        self._pipe.recv()

    def latencies(self) -> list[float]:
        """The durations of the sends since the last call, in seconds, sorted.

        During a long send others would have begun: they count, too, as if each had begun after the usual pause.
        """
        self._pipe.send(True)
        taken = list(self._pipe.recv())
        return sorted([each - missed * _PAUSE_S for each in taken for missed in range(1 + int(each / _PAUSE_S))])

    def close(self) -> None:
        """End the process."""
        self._pipe.send(False)
        self._process.join(10)


def percentile(latencies: list[float], part: float) -> float:
    """The value that a part of the sorted latencies does not exceed."""
    return latencies[min(len(latencies) - 1, int(len(latencies) * part))] if latencies else float("inf")


def _measure(port: int, pipe: Any) -> None:
    asyncio.run(_send(port, pipe))


async def _send(port: int, pipe: Any) -> None:
    payload = payload_of(ServiceBusMessage(b"x" * 1_000))
    taken: list[float] = []
    count = 0
    async with EngineClient(port) as client:
        link = client.engine.begin().attach_sender("good", target=Target(address=QUEUE))
        await client.attached(link)
        pipe.send(None)
        while True:
            began_at = time.perf_counter()
            link.send(payload, tag=count.to_bytes(4, "big"), settled=False, needs_credit=False)
            await client.events(lambda event: isinstance(event, DispositionReceived))
            taken.append(time.perf_counter() - began_at)
            count += 1
            if pipe.poll():
                if not pipe.recv():
                    return
                pipe.send(taken)
                taken = []
            await asyncio.sleep(_PAUSE_S)
