"""FastStream over azure-servicebus, and over sbclient after its imports are replaced."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.stage.programs import Program
from tests.wire.programs import check_lines
from tests.wire.programs.azure_host import CONNECTION_STRING, AzureHost, moved

HERE = Path(__file__).parent / "python"
EDITED_LINES = 29


@pytest.mark.parametrize("is_moved", [False, True], ids=["azure-servicebus", "sbclient"])
async def test_application_sends_receives_and_asks(is_moved: bool, tmp_path: Path) -> None:
    queues = [{"Name": name} for name in ("orders", "unreliable", "commands", "replies")]
    topics = [{"Name": "events", "Subscriptions": [{"Name": "billing"}]}]
    config = tmp_path / "Config.json"
    described = {"Name": "contoso", "Queues": queues, "Topics": topics}
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [described]}}))
    host = AzureHost(tmp_path, f"127.0.0.{8 + is_moved}", "--config", str(config))
    program = Program("orders", tmp_path)
    try:
        await host.begin()
        if is_moved:
            assert moved(["faststream_azure_servicebus"], tmp_path / "moved") == EDITED_LINES
        environment = host.python_environment(tmp_path / "moved")
        program.start(
            [sys.executable, str(HERE / "faststream_orders.py")], environment | {"CONNECTION_STRING": CONNECTION_STRING}
        )
        assert await program.ended(150) == 0, program.output()
        said = [line for line in program.file("out").read_text().splitlines() if line.startswith(("ok ", "failed "))]
        check_lines(said, ("messages", "retries", "request"))
    finally:
        program.kill()
        host.kill()
