"""`sbclient verify` against emulators, in threads and in processes of their own."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from sbclient import MessageLockLostError, ServiceBusClient
from sbclient.broker.faults import Fault, FaultKind, Operation
from sbclient.cli.common import Exit
from sbclient.cli.conformance import CHECKS
from sbclient.cli.verify import PREFIX, Observation, Row, print_rows
from sbclient.emulator import Emulator
from sbclient.testing import served
from tests import commands
from tests.cli.calling import call
from tests.cli.test_commands_page import SECTIONS, shape, shapes_in
from tests.commands import SBCLIENT
from tests.limit import HANG_S
from tests.stage.namespaces import Namespace, connection_string
from tests.stage.programs import Program

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def emulated() -> Iterator[Emulator]:
    with served("contoso", "contoso-backup") as emulator:
        yield emulator


def verified(emulated: Emulator, *arguments: str) -> Result:
    primary = emulated.connection_strings["contoso"]
    result = commands.call("verify", "--primary", primary, *arguments, status=None)
    assert re.search("SharedAccessKey=([^;]+)", primary)[1] not in result.output  # type: ignore[index]  # it is there
    return result


async def temporary_queues(client: ServiceBusClient) -> list[str]:
    return [queue.name async for queue in client.administration.list_queues() if queue.name.startswith(PREFIX)]


def test_a_namespace_in_memory_is_refused() -> None:
    assert "has no transport to verify" in call("verify", "--yes", status=Exit.BAD_INPUT).stderr


def test_verify_asks_before_it_creates_entities(emulated: Emulator) -> None:
    result = verified(emulated)
    assert result.exit_code == Exit.BAD_INPUT
    assert "confirm with --yes" in result.stderr


def test_a_difference_is_shown_with_status_1(emulated: Emulator) -> None:
    fault = Fault(FaultKind.ERROR, operations=[Operation.RENEW], error=MessageLockLostError)
    emulated.inject(fault)
    try:
        result = verified(emulated, "--yes", "--transport", "amqp")
    finally:
        emulated.heal()
    assert result.exit_code == Exit.INCOMPLETE, result.output
    assert re.findall(r"^(.+?)  +[\d.]+ s  different", result.stdout, re.M) == ["renew a lock", "session with state"]
    assert "renew a lock: expected extended\n  amqp: MessageLockLostError: " in result.stdout


def test_a_check_that_did_not_run_is_named_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([Row(CHECKS[0], {"sdk": Observation("there is no such operation", None, True)})], ["sdk"])
    assert capsys.readouterr().out.endswith("\n\nsend was not checked over sdk: there is no such operation\n")


@pytest.mark.real_time
async def test_verify_leaves_nothing_in_a_namespace(tmp_path: Path) -> None:
    """One run to its end, and one that is interrupted."""
    namespace = Namespace("verified", tmp_path)
    run = Program("verify", tmp_path)
    try:
        await namespace.begin()
        environment = {"SERVICEBUS_CONNECTION_STRING": connection_string(namespace.port)}
        command = [*SBCLIENT, "verify", "--transport", "amqp", "--yes", "--json"]
        run.start(command, environment)
        assert await run.ended(HANG_S) == Exit.OK, run.output()
        printed = json.loads(run.file("out").read_text())
        assert {check["name"]: check["result"] for check in printed["checks"]} == dict.fromkeys(
            [check.name for check in CHECKS], "same"
        )
        assert shape(printed) == shape(shapes_in("verify")[0])
        async with namespace.client() as client:
            assert await temporary_queues(client) == []
            slow = {"kind": "slow", "operations": ["send"], "latency_s": 2}  # so that the run is not over too soon
            await namespace.control("POST", "faults", slow)
            run.start(command, environment)
            while not await temporary_queues(client):
                assert run.is_running, run.output()
            run.signal(signal.SIGINT)
            assert await run.ended(HANG_S) == Exit.INTERRUPTED, run.output()
            assert run.output().count("\n") == 1
            assert await temporary_queues(client) == []
    finally:
        run.kill()
        namespace.kill()


def test_the_documented_table_has_every_check() -> None:
    (table,) = re.findall(r"^```text\n(check .*?)^```", SECTIONS["verify"], re.M | re.S)
    names: list[Any] = [re.split(r"  +", line)[0] for line in table.splitlines()[1:]]
    assert names == [check.name for check in CHECKS]
