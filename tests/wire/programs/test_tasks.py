"""Celery and boilermaker execute all tasks while a worker and the emulator are killed.

They know only the host name of a namespace: they use its ports 5671 and 443.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from sbclient.emulator.sas import ROOT_KEY
from tests.stage.programs import Program, until
from tests.wire.programs.azure_host import NAME, AzureHost, moved

HERE: Final = Path(__file__).parent / "python"
TASKS: Final = 300
HANG_S: Final = 280.0
WORKERS: Final = {
    "celery": ["-m", "celery", "-A", "celery_tasks", "worker", "--pool", "solo", "--without-mingle"],
    "boilermaker": [str(HERE / "boilermaker_tasks.py")],
}
MOVED: Final = {"boilermaker": (["boilermaker", "aio_azure_clients_toolbox"], 17)}
"""The packages of programs that also run over sbclient, and how many of their lines are edited for that: imports."""


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(
    ("name", "is_moved"), [*((each, False) for each in WORKERS), *((each, True) for each in MOVED)]
)
async def test_all_tasks_are_executed_although_worker_and_emulator_are_killed(
    name: str, is_moved: bool, tmp_path: Path
) -> None:
    config, done = tmp_path / "Config.json", tmp_path / "done"
    queue = {"Name": "tasks", "Properties": {"LockDuration": "PT10S", "MaxDeliveryCount": 10}}
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": "contoso", "Queues": [queue]}]}}))
    host, worker, sender = (
        AzureHost(tmp_path, f"127.0.0.{5 + [*WORKERS].index(name) + 7 * is_moved}", "--config", str(config)),
        *(Program(each, tmp_path) for each in ("worker", "sender")),
    )

    def executed() -> set[int]:
        return {int(each) for each in done.read_text().split()} if done.exists() else set()

    async def wait(is_met: Callable[[set[int]], bool]) -> None:
        met = await until(lambda: is_met(executed()) or not worker.is_running, HANG_S)
        missing = sorted(set(range(TASKS)) - executed())
        assert met, f"{len(missing)} tasks are missing: {missing[:20]}\n{worker.output()}"
        assert worker.is_running, f"{len(missing)} tasks are missing: {missing[:20]}\n{worker.output()}"

    try:
        await host.begin()
        broker = f"azureservicebus://RootManageSharedAccessKey:{ROOT_KEY}@{NAME}"
        if is_moved:
            names, count = MOVED[name]
            assert moved(names, tmp_path / "moved") == count
        environment = {
            **host.python_environment(tmp_path / "moved", HERE),
            "DONE": str(done),
            "BROKER": broker,
            "HOST": NAME,
        }
        sender.start([sys.executable, str(HERE / f"{name}_tasks.py"), str(TASKS)], environment)
        worker.start([sys.executable, *WORKERS[name]], environment)
        await wait(lambda tasks: len(tasks) > TASKS // 10)
        worker.kill()
        worker.start([sys.executable, *WORKERS[name]], environment)
        await wait(lambda tasks: len(tasks) > TASKS // 3)
        host.kill()
        await host.begin()
        await wait(lambda tasks: len(tasks) == TASKS)
        assert await sender.ended(HANG_S) == 0, sender.output()
    finally:
        for each in (sender, worker, host):
            each.kill()
